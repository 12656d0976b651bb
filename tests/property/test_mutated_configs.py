"""Mutated configurations: a valid model, or a fault that names the field; nothing else."""

import copy
import string

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.catalog.huggingface.family import is_harmless
from meshwright.catalog.models import model_entry, read_config
from meshwright.graph.parameters import count_parameters, kv_cache_bytes_per_token

SEEDS = (
    "gpt2-124m", "megatron-1.7b", "pythia-70m", "opt-125m", "bloom-560m", "mpt-7b", "llama3-8b",
    "mistral-7b", "mixtral-8x7b", "qwen2-7b", "qwen1.5-moe-a2.7b", "qwen3-8b", "qwen3-30b-a3b",
    "gemma2-2b", "gemma3-1b", "gemma3-4b", "phi3-mini", "falcon-40b", "deepseek-v2",
    "deepseek-v3", "gpt-oss-20b", "llama4-scout", "grok-1",
    "gemma-2b", "olmo2-1b", "granite3.1-2b", "granite3.1-1b-a400m", "granite4-micro", "glm4-9b",
    "glm4.5-air", "qwen2-vl-2b",
)  # fmt: skip
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.integers(-3, 70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-2, 40), st.text(max_size=5)), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
KINDS = st.sampled_from(("delete", "rename", "retype", "negate", "scale", "add"))


def sections_of(config):
    """Return the section itself and all nested ones."""
    inner = [part for part in config.values() if isinstance(part, dict)]
    return [config, *(deep for part in inner for deep in sections_of(part))]


def mutate(data, config):
    """Change one field somewhere in place; return its name before and after."""
    section = data.draw(st.sampled_from(sections_of(config)))
    kind = data.draw(KINDS)
    name = data.draw(st.sampled_from(sorted(section))) if section else "x"
    if kind == "add" or not section:
        new = data.draw(st.text(string.ascii_lowercase + "_", min_size=1, max_size=12))
        section[new] = data.draw(VALUES)
        return {new}
    value = section.pop(name)
    if kind == "delete":
        return {name}
    if kind == "rename":
        new = data.draw(st.sampled_from((f"{name}s", name[:-1], f"num_{name}", name.upper())))
        section[new] = value
        return {name, new}
    if kind == "negate" and isinstance(value, int):
        section[name] = -value
    elif kind == "scale" and isinstance(value, int):
        section[name] = value * data.draw(st.sampled_from((2, 3, 7))) + data.draw(
            st.integers(-1, 1)
        )
    else:
        section[name] = data.draw(VALUES)
    return {name}


def outcome(config):
    """Return the model, or the paths of the faults."""
    try:
        model = read_config(config, origin="test")
    except SpecError as error:
        return None, [fault.path for fault in error.faults], str(error)
    return model, [], ""


def assert_model_is_sound(model):
    counts = count_parameters(model)
    assert 0 < counts.num_active_params <= counts.num_params
    assert sum(counts.parts.values()) == counts.num_params
    keeps_tokens = any(kind.attention is not None for kind in model.layer_kinds)
    assert (kv_cache_bytes_per_token(model, 2.0) > 0) == keeps_tokens


@settings(suppress_health_check=list(HealthCheck))
@given(seed=st.sampled_from(SEEDS), data=st.data())
def test_a_mutated_field_is_named_or_the_model_is_valid(seed, data):
    config = copy.deepcopy(dict(model_entry(seed).config))
    touched = mutate(data, config)
    model, paths, message = outcome(config)
    if model is not None:
        assert_model_is_sound(model)
        return
    assert paths
    # The fault stands at the field, or its message names it (a rule between two fields).
    assert any(name in path for name in touched for path in paths) or any(
        name in message for name in touched
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_field_that_is_left_out_is_a_fault_or_is_named_as_a_default(seed):
    whole = dict(model_entry(seed).config)
    for name in sorted(set(whole) - {"model_type", "architectures"}):
        model, _, message = outcome({key: whole[key] for key in whole if key != name})
        if model is None:
            assert name in message
        elif not is_harmless(name):
            stated = " ".join(model.conventions)
            assert name in stated or model == read_config(whole)


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(seed=st.sampled_from(SEEDS), data=st.data(), changes=st.integers(2, 5))
def test_several_mutations_never_raise_anything_else(seed, data, changes):
    config = copy.deepcopy(dict(model_entry(seed).config))
    for _ in range(changes):
        mutate(data, config)
    model, paths, _ = outcome(config)
    if model is not None:
        assert_model_is_sound(model)
    assert model is not None or paths


@given(
    seed=st.sampled_from(SEEDS),
    name=st.text(string.ascii_lowercase + "_", min_size=3, max_size=20),
)
@example(seed="llama3-8b", name="num_experts")
def test_an_unknown_field_is_never_passed_over(seed, name):
    config = dict(model_entry(seed).config)
    plain, _, _ = outcome(config)
    if name in config or is_harmless(name) or name == "is_decoder":
        return
    model, paths, _ = outcome({**config, name: 7})
    # Either it is refused by name, or it is a field that the family reads.
    assert name in paths or model != plain


@given(
    config=st.recursive(
        VALUES,
        lambda inner: st.dictionaries(
            st.sampled_from(("model_type", "architectures", "text_config", "hidden_size", "x")),
            inner,
        ),
        max_leaves=6,
    )
)
def test_anything_that_is_no_configuration_is_refused(config):
    model, paths, _ = outcome(config)
    assert model is None
    assert paths


GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 64],
                "group_size": 32, "symmetric": False},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token"},
}  # fmt: skip
QUANTIZED = (
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    {"quant_method": "gptq", "bits": 4, "group_size": 128},
    {"quant_method": "fp8", "weight_block_size": [128, 128],
     "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn", "re:.*mlp"]},
    {"quant_method": "compressed-tensors", "config_groups": {"group_0": GROUP},
     "sparsity_config": {"format": "dense"}},
)  # fmt: skip


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(stated=st.sampled_from(QUANTIZED), data=st.data(), changes=st.integers(1, 3))
def test_mutated_quantisation_is_refused_by_field_or_has_a_width(stated, data, changes):
    stated = copy.deepcopy(stated)
    for _ in range(changes):
        mutate(data, stated)
    model, paths, _ = outcome({**model_entry("llama3-8b").config, "quantization_config": stated})
    if model is None:
        assert all(path.startswith("quantization_config") for path in paths)
    elif model.weight_format is not None:
        assert 0.25 <= model.weight_format.bytes_per_weight <= 10.0
