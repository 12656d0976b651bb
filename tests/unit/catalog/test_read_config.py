"""What single fields of a configuration change, each by a difference that is derived by hand."""

import pytest

from meshwright.base.errors import SpecError
from meshwright.catalog.huggingface.family import HARMLESS
from meshwright.catalog.models import known_model_types, model_entry, read_config
from meshwright.graph.parameters import count_parameters


def config_of(name, **changes):
    config = {**model_entry(name).config, **changes}
    config.pop("architectures", None)
    return config


def count_of(name, **changes):
    return count_parameters(read_config(config_of(name, **changes))).num_params


@pytest.mark.parametrize(
    ("name", "changes", "difference"),
    [
        # Llama 3.2 1B: 16 layers, hidden 2048, 32 heads and 8 kv heads of 64, ffn 8192.
        ("llama3.2-1b", {"attention_bias": True}, 16 * (2048 + 512 + 512 + 2048)),
        ("llama3.2-1b", {"mlp_bias": True}, 16 * (8192 + 8192 + 2048)),
        ("llama3.2-1b", {"num_key_value_heads": 32}, 16 * 2 * (32 - 8) * 64 * 2048),
        ("llama3.2-1b", {"head_dim": 128}, 16 * 2048 * 64 * (32 + 8 + 8 + 32)),
        ("llama3.2-1b", {"tie_word_embeddings": False}, 128_256 * 2048),
        # Qwen3 0.6B: 28 layers, hidden 1024, 16 heads and 8 kv heads of 128.
        ("qwen3-0.6b", {"attention_bias": True}, 28 * (2048 + 1024 + 1024 + 1024)),
        # GPT-2: 12 layers, hidden 768: weights 2 h and one bias for each column taken away.
        ("gpt2-124m", {"n_inner": 3000}, -12 * (3072 - 3000) * (2 * 768 + 1)),
        ("gpt2-124m", {"tie_word_embeddings": False}, 50_257 * 768),
        # OPT-125M: 12 layers, hidden 768, ffn 3072: biases are 4 h, f and h; norms 2 h each.
        ("opt-125m", {"enable_bias": False}, -12 * (4 * 768 + 3072 + 768)),
        ("opt-125m", {"do_layer_norm_before": False}, -2 * 768),
        ("opt-125m", {"layer_norm_elementwise_affine": False}, -25 * 2 * 768),
        # Pythia 70M: 6 layers, hidden 512.
        ("pythia-70m", {"attention_bias": False}, -6 * 4 * 512),
        ("pythia-70m", {"use_parallel_residual": False}, 0),
        # Falcon 7B: 32 layers, hidden 4544, 71 heads of 64, one norm, one kv head.
        ("falcon-7b", {"parallel_attn": False}, 32 * 2 * 4544),
        ("falcon-7b", {"multi_query": False}, 32 * 4544 * 2 * 70 * 64),
        ("falcon-7b", {"bias": True}, 32 * (4544 + 2 * 64 + 4544 + 4 * 4544 + 4544)),
        (
            "falcon-7b",
            {"new_decoder_architecture": True, "num_kv_heads": 71},
            32 * (4544 * 2 * 70 * 64 + 2 * 4544),
        ),
        # Qwen1.5-MoE: 24 layers, hidden 2048; a dense layer has 3 x 2048 x 5632 in place of 60
        # experts of 3 x 2048 x 1408, the router, the shared expert of 5632 and its gate.
        (
            "qwen1.5-moe-a2.7b",
            {"mlp_only_layers": [1, 3]},
            -2 * (60 * 3 * 2048 * 1408 + 60 * 2048 + 2048),
        ),
        (
            "qwen1.5-moe-a2.7b",
            {"decoder_sparse_step": 2},
            -12 * (60 * 3 * 2048 * 1408 + 60 * 2048 + 2048),
        ),
        # DeepSeek-V2-Lite: 27 layers, 16 heads of 128 + 64, hidden 2048; queries by rank 100.
        (
            "deepseek-v2-lite",
            {"q_lora_rank": 100},
            27 * (2048 * 100 + 100 + 100 * 16 * 192 - 2048 * 16 * 192),
        ),
        ("deepseek-v2-lite", {"n_shared_experts": None}, -26 * 3 * 2048 * 2 * 1408),
        ("deepseek-v2-lite", {"attention_bias": True}, 27 * (512 + 64 + 2048)),
        ("deepseek-v3", {"num_nextn_predict_layers": 0}, 0),
        # GPT-OSS 20B: 24 layers, hidden 2880, 64 heads and 8 kv heads of 64.
        ("gpt-oss-20b", {"attention_bias": False}, -24 * (4096 + 512 + 512 + 2880)),
        # MPT-7B: 32 layers, hidden 4096: biases 3 h, h, 4 h, h and of two norms; final norm; table.
        ("mpt-7b", {"no_bias": False}, 32 * (9 + 2) * 4096 + 4096),
        (
            "mpt-7b",
            {"attn_config": {"alibi": False, "attn_type": "multihead_attention"}},
            2048 * 4096,
        ),
        (
            "mpt-7b",
            {"attn_config": {"attn_type": "multiquery_attention"}},
            -32 * 4096 * 2 * (4096 - 128),
        ),
        # Megatron 1.7B: 24 layers, hidden 2304.
        ("megatron-1.7b", {"swiglu": True}, 24 * 4 * (2304 * 2304 + 2304)),
        ("megatron-1.7b", {"add_bias_linear": False}, -24 * 9 * 2304),
        ("megatron-1.7b", {"normalization": "RMSNorm"}, -(2 * 24 + 1) * 2304),
        ("megatron-1.7b", {"position_embedding_type": "rope"}, -2048 * 2304),
        ("megatron-1.7b", {"untie_embeddings_and_output_weights": True}, 51_200 * 2304),
    ],
)
def test_a_field_changes_the_count_as_derived(name, changes, difference):
    assert count_of(name, **changes) - count_of(name) == difference


def windows_of(model):
    return [model.layer_kinds[kind].attention.window for kind in model.layer_pattern]


def test_gemma2_alternates_and_starts_with_the_window():
    windows = windows_of(read_config(config_of("gemma2-2b", num_hidden_layers=4)))
    assert windows == [4096, None, 4096, None]


def test_gemma3_has_one_full_layer_in_six():
    windows = windows_of(read_config(config_of("gemma3-1b", num_hidden_layers=7)))
    assert windows == [512] * 5 + [None, 512]


EXAONE = {
    "model_type": "exaone4", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "sliding_window": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "windows"),
    [
        ({"sliding_window_pattern": "LLG"}, [8, 8, None, 8, 8]),
        ({"sliding_window_pattern": 3}, [8, 8, None, 8, 8]),
        ({"sliding_window": None, "sliding_window_pattern": None}, [None] * 5),
    ],
)
def test_a_period_of_windows_is_a_number_or_letters(stated, windows):
    assert windows_of(read_config(EXAONE | stated)) == windows


def test_other_letters_of_a_period_are_refused():
    with pytest.raises(SpecError, match=r"found 'LXG'; expected .* letters L and G"):
        read_config(EXAONE | {"sliding_window_pattern": "LXG"})


def test_gpt_oss_without_layer_types_starts_with_the_window():
    config = config_of("gpt-oss-20b", num_hidden_layers=3)
    del config["layer_types"]
    assert windows_of(read_config(config)) == [128, None, 128]


def test_qwen_windows_begin_at_max_window_layers_and_only_where_used():
    changes = {"num_hidden_layers": 4, "max_window_layers": 3, "sliding_window": 100}
    assert windows_of(read_config(config_of("qwen2-7b", **changes))) == [None] * 4
    used = read_config(config_of("qwen2-7b", use_sliding_window=True, **changes))
    assert windows_of(used) == [None, None, None, 100]


def test_llama4_chunks_all_but_each_fourth_layer_and_norms_rotary_layers_only():
    model = read_config(model_entry("llama4-scout").config)
    first = [model.layer_kinds[kind].attention for kind in model.layer_pattern[:4]]
    assert [attention.window for attention in first] == [8192, 8192, 8192, None]
    assert {attention.window_kind for attention in first[:3]} == {"chunked"}
    assert [attention.qk_norm for attention in first] == ["unweighted"] * 3 + ["none"]


def test_llama4_maverick_interleaves_dense_layers_and_experts():
    model = read_config(model_entry("llama4-maverick").config)
    dense = [model.layer_kinds[kind].feed_forward is not None for kind in model.layer_pattern]
    assert dense == [True, False] * 24


def test_deepseek_v3_starts_with_three_dense_layers():
    model = read_config(model_entry("deepseek-v3").config)
    dense = [model.layer_kinds[kind].feed_forward is not None for kind in model.layer_pattern]
    assert dense == [True] * 3 + [False] * 58


def test_defaults_that_were_taken_are_named():
    model = read_config(model_entry("gemma3-4b").config)
    assert any("num_attention_heads = 8" in line for line in model.conventions)
    stated = read_config(model_entry("qwen3-32b").config)
    assert not any("num_attention_heads" in line for line in stated.conventions)


def faults_of(config):
    with pytest.raises(SpecError) as caught:
        read_config(config)
    return {fault.path: str(fault) for fault in caught.value.faults}


def test_all_faults_of_a_configuration_come_at_once():
    config = config_of("llama3-8b", hidden_size=-1, vocab_size="many", num_experts=8)
    del config["intermediate_size"]
    faults = faults_of(config)
    assert set(faults) == {"hidden_size", "vocab_size", "num_experts", "intermediate_size"}
    assert "missing" in faults["intermediate_size"]
    assert "might change the structure" in faults["num_experts"]


def test_a_misspelt_field_names_the_near_one():
    faults = faults_of(config_of("llama3-8b", num_key_value_head=8))
    assert "did you mean num_key_value_heads" in faults["num_key_value_head"]


def test_a_hidden_size_that_heads_do_not_divide_names_the_nearest_multiple():
    # 4100 / 32 = 128.1, so the nearest multiple is 128 x 32 = 4096.
    faults = faults_of(config_of("llama3-8b", hidden_size=4100))
    assert "not divisible by num_attention_heads 32" in faults["hidden_size"]
    assert "4096" in faults["hidden_size"]


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("llama3-8b", {"num_key_value_heads": 5}, "num_attention_heads"),
        ("llama3-8b", {"is_encoder_decoder": True}, "is_encoder_decoder"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("gemma2-2b", {"layer_types": ["full_attention"]}, "layer_types"),
        ("gemma2-2b", {"layer_types": ["odd"] * 26}, "layer_types"),
        ("llama4-scout", {"text_config": None}, "text_config"),
        ("deepseek-v3", {"first_k_dense_replace": 62}, "first_k_dense_replace"),
        ("deepseek-v3", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("deepseek-v3", {"topk_method": "greedy"}, "topk_method"),
        ("opt-125m", {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ("falcon-7b", {"num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn"),
        ("phi3-mini", {"attention_bias": True}, "attention_bias"),
        ("bloom-560m", {"hidden_size": 512}, "n_embed"),
        ("mpt-7b", {"attn_config": {"attn_type": "linear"}}, "attn_config.attn_type"),
        ("mpt-7b", {"attn_config": {"attn_tipe": "x"}}, "attn_config.attn_tipe"),
        (
            "mpt-7b",
            {"attn_config": {"attn_type": "grouped_query_attention"}},
            "attn_config.kv_n_heads",
        ),
        ("llama3-8b", {"architectures": ["LlamaForTokenClassification"]}, "architectures"),
        ("llama3-8b", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("llama3-8b", {"num_hidden_layers": 32.0}, "num_hidden_layers"),
        ("llama3-8b", {"num_hidden_layers": True}, "num_hidden_layers"),
    ],
)
def test_a_contradiction_names_its_field(name, changes, field):
    assert field in faults_of({**model_entry(name).config, **changes})


def test_outer_and_inner_tied_flags_must_agree():
    inner = {**model_entry("llama4-scout").config["text_config"], "tie_word_embeddings": True}
    config = {**model_entry("llama4-scout").config, "text_config": inner}
    assert "text_config.tie_word_embeddings" in faults_of(config)


def test_an_unknown_architecture_names_near_ones_and_the_fields_that_differ():
    config = {
        "model_type": "llamma",
        "architectures": ["LlammaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "num_memory_tokens": 16,
    }
    with pytest.raises(SpecError) as caught:
        read_config(config)
    message = str(caught.value)
    assert "unknown architecture llamma (LlammaForCausalLM)" in message
    assert "did you mean llama" in message
    assert "intermediate_size: missing field" in message
    assert "num_memory_tokens: unknown field" in message


def test_a_configuration_without_a_type_lists_the_known_ones():
    faults = faults_of({"hidden_size": 64})
    assert set(faults) == {"model_type", "architectures"}
    assert "deepseek_v3" in faults["model_type"]


def test_the_architecture_alone_is_enough():
    config = dict(model_entry("qwen3-8b").config)
    del config["model_type"]
    assert count_parameters(read_config(config)).num_params == 8_190_735_360


def test_every_family_of_the_catalog_is_known():
    assert {"gpt2", "llama", "llama4", "gemma3", "gpt_oss", "grok-1"} <= set(known_model_types())


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "falcon-40b", "mpt-7b"])
def test_harmless_fields_change_nothing(name):
    config = config_of(name)
    harmless = dict.fromkeys(HARMLESS - set(config) - {"architectures", "model_type"})
    assert read_config({**config, **harmless}) == read_config(config)


@pytest.mark.parametrize(
    ("name", "field", "fine", "wrong"),
    [
        ("mixtral-8x7b", "attention_bias", False, True),
        ("phi4-mini", "lm_head_bias", False, True),
        ("phi4-mini", "full_attn_mod", 1, 2),
        ("llama3-8b", "sliding_window", None, 4096),
        ("llama3-8b", "cross_attention_hidden_size", None, 64),
    ],
)
def test_a_field_that_would_change_the_structure_may_only_say_no(name, field, fine, wrong):
    assert count_of(name, **{field: fine}) == count_of(name)
    assert field in faults_of(config_of(name, **{field: wrong}))


@pytest.mark.parametrize("model_type", ["mamba", "jamba", "zamba2"])
def test_recurrent_layers_of_other_kinds_are_refused_by_name(model_type):
    fault = faults_of({"model_type": model_type, "hidden_size": 64})["model_type"]
    assert f"{model_type} has recurrent layers of a kind that is not priced" in fault


@pytest.mark.parametrize("name", ["gemma-2b", "gemma2-2b", "gemma3-1b"])
def test_attention_to_both_sides_is_refused(name):
    faults = faults_of(config_of(name, use_bidirectional_attention=True))
    assert "only False or None is modelled" in faults["use_bidirectional_attention"]


def test_experts_of_granite_may_be_shared():
    # 24 layers, hidden 1024: gate, up and down of a network of 256.
    config = config_of("granite3.1-1b-a400m")
    shared = config | {"model_type": "granitemoeshared", "shared_intermediate_size": 256}
    counts = [count_parameters(read_config(each)).num_params for each in (config, shared)]
    assert counts[1] - counts[0] == 24 * 3 * 1024 * 256


def test_granite_4_has_attention_or_mamba_in_each_layer():
    config = config_of("granite4-micro")
    inner = {"mamba_expand": 2, "mamba_n_heads": 80, "mamba_d_head": 64, "mamba_n_groups": 1}
    mixed = config | inner | {"layer_types": ["attention"] * 39 + ["mamba"]}
    model = read_config(mixed)
    assert [bool(kind.recurrence) for kind in model.layer_kinds] == [False, True]
    assert model.layer_counts == (39, 1)
    del mixed["layer_types"]
    assert read_config(mixed).attentions == ()
    faults = faults_of(mixed | {"mamba_d_head": 60})
    assert "60 x mamba_n_heads 80 is not mamba_expand x hidden_size 5120" in faults["mamba_d_head"]
    faults = faults_of(mixed | {"layer_types": ["mamba"] * 39 + ["mamba1"]})
    assert "found 'mamba1'" in faults["layer_types"]
    faults = faults_of(config_of("granite4-micro", num_local_experts=8))
    assert "none of num_local_experts 8" in faults["num_experts_per_tok"]


def test_nemotron_h_takes_a_pattern_or_a_list():
    config = config_of("nemotron-h-8b")
    pattern = config["hybrid_override_pattern"]
    words = {"M": "mamba", "*": "attention", "-": "mlp"}
    listed = {key: config[key] for key in config if key != "hybrid_override_pattern"}
    assert "missing" in faults_of(listed)["hybrid_override_pattern"]
    listed["layers_block_type"] = [words[letter] for letter in pattern]
    one, other = read_config(config), read_config(listed)
    assert (one.layer_kinds, one.layer_pattern) == (other.layer_kinds, other.layer_pattern)
    assert [one.layer_counts[kind] for kind in range(3)] == [24, 24, 4]
    faults = faults_of(config | {"hybrid_override_pattern": pattern[:-1] + "x"})
    assert "['x']" in faults["hybrid_override_pattern"]
    faults = faults_of(config | {"hybrid_override_pattern": pattern[:-1]})
    assert "52, but 51 layers are listed" in faults["num_hidden_layers"]
    faults = faults_of(config | {"moe_latent_size": 64, "num_nextn_predict_layers": 1})
    assert set(faults) == {"moe_latent_size", "num_nextn_predict_layers"}


def test_each_fourth_layer_of_qwen3_next_has_attention():
    model = read_config(config_of("qwen3-next-80b-a3b"))
    assert model.layer_pattern == (0, 0, 0, 1) * 12
    linear, full = model.layer_kinds
    assert (linear.attention, full.recurrence) == (None, None)
    assert full.attention.output_gate
    assert linear.experts == full.experts
    stated = ["full_attention"] + ["linear_attention"] * 47
    assert read_config(config_of("qwen3-next-80b-a3b", layer_types=stated)).layer_counts == (1, 47)


def test_groups_of_a_state_space_divide_its_heads():
    faults = faults_of(config_of("mamba2-2.7b", n_groups=3))
    assert "80 is not divisible by n_groups 3" in str(faults)
    assert (
        "65 x num_heads 80 is not expand x"
        in faults_of(config_of("mamba2-2.7b", head_dim=65))["head_dim"]
    )
