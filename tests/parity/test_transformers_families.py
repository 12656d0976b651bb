"""Families of ``config.json`` beside the implementation of transformers, built from the same file.

Parameters are those of the modules (on no device); products are those that PyTorch counts while a
small model runs forward and backward; the cache is what the model itself keeps.
"""

import pytest
import torch
from public_models import transformers  # with a torchvision that can be loaded
from sampled import sampled
from torch.utils.flop_counter import FlopCounterMode

from meshwright.catalog.models import read_config
from meshwright.graph.flops import ScoreCount, layer_flops_per_token, step_flops
from meshwright.graph.op import OpKind
from meshwright.graph.parameters import count_parameters, kv_cache_bytes, recurrent_state_bytes
from meshwright.graph.recurrence import STATE_WORD_BYTES
from meshwright.graph.transformer import build_graph

DENSE = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
GLM_EXPERTS = {
    "num_hidden_layers": 4, "head_dim": 10, "moe_intermediate_size": 32, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "num_nextn_predict_layers": 0,
}  # fmt: skip
GRANITE4 = {
    "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 40,
    "layer_types": ["attention"] * 3, "position_embedding_type": "rope", "mamba_n_heads": 12,
}  # fmt: skip
VISION = {
    "depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 48, "patch_size": 4, "mlp_ratio": 2,
}  # fmt: skip
MULTIMODAL_ROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}

MAMBA = {
    "mamba_n_heads": 12, "mamba_d_head": 8, "mamba_d_state": 6, "mamba_n_groups": 3,
    "mamba_d_conv": 3, "mamba_chunk_size": 4,
}  # fmt: skip
MAMBA2 = {
    "num_heads": 12, "head_dim": 8, "state_size": 6, "n_groups": 3, "conv_kernel": 3,
    "chunk_size": 4, "intermediate_size": None, "num_attention_heads": None,
    "num_key_value_heads": None, "max_position_embeddings": None,
}  # fmt: skip
NEMOTRON = {
    "head_dim": 10, "mamba_num_heads": 10, "mamba_head_dim": 8, "ssm_state_size": 6,
    "n_groups": 5, "conv_kernel": 3, "chunk_size": 4, "num_hidden_layers": 5,
    "hybrid_override_pattern": "M-*M-",
}  # fmt: skip
QWEN3_NEXT = {
    "head_dim": 10, "num_hidden_layers": 4, "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 20,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 6,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 3,
}  # fmt: skip
QWEN3_5 = QWEN3_NEXT | dict.fromkeys(
    ("num_experts", "num_experts_per_tok", "moe_intermediate_size",
     "shared_expert_intermediate_size")
)  # fmt: skip
OLMO_HYBRID = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 6,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention"] * 2 + ["full_attention"],
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWED = {"layer_types": MIXED, "sliding_window": 16}
ROUTED = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "num_shared_experts": 2,
}  # fmt: skip
SPARSE = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
LATENT = {
    "num_key_value_heads": 6, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 6,
}  # fmt: skip
GPT = {
    "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, "n_ctx": 64,
    **dict.fromkeys(
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
         "num_key_value_heads", "intermediate_size")
    ),
}  # fmt: skip
ROUTED_LATENT = LATENT | {
    "num_hidden_layers": 4, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "n_group": 2, "topk_group": 2, "index_n_heads": 4,
    "index_head_dim": 8, "index_topk": 3, "first_k_dense_replace": 1,
}  # fmt: skip
KIMI = ROUTED_LATENT | {
    "q_lora_rank": None, "n_group": None, "topk_group": 1, "num_experts_per_tok": None,
    "n_routed_experts": None, "n_shared_experts": None, "num_experts": 6,
    "num_experts_per_token": 2, "num_shared_experts": 1,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_head_dim": 8, "linear_num_heads": 5, "linear_conv_kernel_dim": 3,
    **dict.fromkeys(("index_n_heads", "index_head_dim", "index_topk")),
}  # fmt: skip
LFM = {"conv_L_cache": 3, "layer_types": ["conv", "full_attention", "conv"]}
SHARING = {
    "head_dim": 10, "num_hidden_layers": 6, "num_kv_shared_layers": 2, "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "vocab_size_per_layer_input": 90,
    "hidden_size_per_layer_input": 8,
}  # fmt: skip
GEMMA4 = SHARING | {"global_head_dim": 14}
HYBRID = GRANITE4 | MAMBA | {"layer_types": ["mamba", "attention", "mamba"]}
RECURRENT = {
    "mamba2": ("mamba2", MAMBA2),
    "mamba2-biases": ("mamba2", MAMBA2 | {"use_bias": True, "use_conv_bias": False}),
    "mamba2-tied": ("mamba2", MAMBA2 | {"n_groups": 1, "tie_word_embeddings": True}),
    "bamba": ("bamba", MAMBA | {"attn_layer_indices": [1]}),
    "bamba-biases": ("bamba", MAMBA | {"attn_layer_indices": [0], "mamba_proj_bias": True}),
    "granite4-mamba": ("granitemoehybrid", HYBRID),
    "granite4-mamba-experts": (
        "granitemoehybrid", HYBRID | EXPERTS | {"position_embedding_type": None},
    ),
    "nemotron-h": ("nemotron_h", NEMOTRON),
    "nemotron-h-biases": ("nemotron_h", NEMOTRON | {"use_bias": True}),
    "nemotron-h-experts": (
        "nemotron_h",
        NEMOTRON | {
            "hybrid_override_pattern": "MEM*E", "n_routed_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 14, "moe_shared_expert_intermediate_size": 22,
        },
    ),
    "qwen3-next": ("qwen3_next", QWEN3_NEXT),
    "qwen3-next-dense-layer": ("qwen3_next", QWEN3_NEXT | {"mlp_only_layers": [2]}),
    "qwen3.5": ("qwen3_5_text", QWEN3_5),
    "qwen3.5-experts": ("qwen3_5_moe_text", QWEN3_NEXT | {"intermediate_size": None}),
    "olmo-hybrid": ("olmo_hybrid", OLMO_HYBRID),
    "falcon-h1": ("falcon_h1", MAMBA | {"mamba_d_ssm": 96}),
    "falcon-h1-norm": (
        "falcon_h1", MAMBA | {"mamba_d_ssm": 96, "mamba_rms_norm": True, "mamba_n_groups": 1},
    ),
    "lfm2": ("lfm2", LFM | {"block_multiple_of": 16}),
    "lfm2-biases": ("lfm2", LFM | {"conv_bias": True, "block_auto_adjust_ff_dim": False}),
    "lfm2-experts": (
        "lfm2_moe",
        LFM | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
               "num_dense_layers": 1},
    ),
    "kimi-linear": ("kimi_linear", KIMI),
    "deepseek-v3.2": ("deepseek_v32", ROUTED_LATENT),
    "glm5": ("glm_moe_dsa", ROUTED_LATENT),
    "glm5-shared-choice": (
        "glm_moe_dsa", ROUTED_LATENT | {"indexer_types": ["full", "shared", "full", "shared"]},
    ),
    "gemma3n": (
        "gemma3n_text",
        SHARING | {"intermediate_size": [80] * 4 + [96] * 2, "laurel_rank": 4,
                   "altup_num_inputs": 3, "activation_sparsity_pattern": [0.0] * 6},
    ),
    "gemma4": ("gemma4_text", GEMMA4),
    "gemma4-wide": (
        "gemma4_text",
        GEMMA4 | {"use_double_wide_mlp": True, "attention_k_eq_v": True,
                  "num_global_key_value_heads": 1},
    ),
    "gemma4-experts": (
        "gemma4_text",
        GEMMA4 | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2,
                  "moe_intermediate_size": 16, "hidden_size_per_layer_input": 0,
                  "num_kv_shared_layers": 0},
    ),
    "gemma4-unified": (
        "gemma4_unified_text",
        {key: value for key, value in GEMMA4.items() if "per_layer_input" not in key},
    ),
}  # fmt: skip
AGAIN = {"gemma3n": 6 * 2 * 48 * 3}
"""FLOPs of products that run twice: each layer routes streams before and after its branches."""
CASES = {
    "gemma": ("gemma", {"head_dim": 12}),
    "gemma-biases": ("gemma", {"head_dim": 12, "attention_bias": True}),
    "gemma-own-head": ("gemma", {"head_dim": 12, "tie_word_embeddings": False}),
    "olmo2": ("olmo2", {}),
    "olmo2-biases-tied": ("olmo2", {"attention_bias": True, "tie_word_embeddings": True}),
    "granite": ("granite", {"embedding_multiplier": 12.0, "logits_scaling": 8.0}),
    "granite-biases": ("granite", {"attention_bias": True, "mlp_bias": True}),
    "granitemoe": ("granitemoe", EXPERTS | {"tie_word_embeddings": True}),
    "granitemoe-biases": ("granitemoe", EXPERTS | {"attention_bias": True}),
    "granitemoeshared": ("granitemoeshared", EXPERTS | {"shared_intermediate_size": 40}),
    "granitemoeshared-none": ("granitemoeshared", EXPERTS | {"shared_intermediate_size": 0}),
    "granite4": ("granitemoehybrid", GRANITE4),
    "granite4-experts": ("granitemoehybrid", GRANITE4 | EXPERTS),
    "glm": ("glm", {"head_dim": 10}),
    "glm-no-biases": ("glm", {"head_dim": 10, "attention_bias": False}),
    "glm4": ("glm4", {"head_dim": 10}),
    "glm4-moe": ("glm4_moe", GLM_EXPERTS | {"use_qk_norm": True, "first_k_dense_replace": 2}),
    "glm4-moe-biases": ("glm4_moe", GLM_EXPERTS | {"attention_bias": True, "n_shared_experts": 2}),
    "qwen2-vl": ("qwen2_vl", MULTIMODAL_ROPE | {"vision_config": VISION}),
    "helium": ("helium", {"head_dim": 8}),
    "apertus": ("apertus", {}),
    "iquestcoder": ("iquestcoder", {"head_dim": 10}),
    "ernie": ("ernie4_5", {"head_dim": 10}),
    "ernie-biases": ("ernie4_5", {"head_dim": 10, "use_bias": True}),
    "ernie-experts": (
        "ernie4_5_moe",
        {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16,
         "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 1},
    ),
    "internlm3": ("internlm3", {"head_dim": 10}),
    "seed-oss": ("seed_oss", {"head_dim": 10, "attention_out_bias": True, "mlp_bias": True}),
    "hunyuan": ("hunyuan_v1_dense", {"head_dim": 10}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 1, 0]}),
    "ministral": ("ministral", WINDOWED | {"head_dim": 10}),
    "ministral3": ("ministral3", {"head_dim": 10}),
    "cwm": ("cwm", WINDOWED | {"head_dim": 10}),
    "vaultgemma": ("vaultgemma", WINDOWED | {"head_dim": 10, "query_pre_attn_scalar": 10}),
    "olmo": ("olmo", {}),
    "olmo3": ("olmo3", WINDOWED),
    "olmoe": ("olmoe", {"num_experts": 6, "num_experts_per_tok": 2}),
    "flex-olmo": ("flex_olmo", {"num_experts": 6, "num_experts_per_tok": 2}),
    "exaone4": ("exaone4", {"sliding_window": 16, "sliding_window_pattern": 3}),
    "exaone4-full": ("exaone4", {"layer_types": ["full_attention"] * 3, "sliding_window": 0}),
    "exaone-experts": ("exaone_moe", WINDOWED | ROUTED | SPARSE | {"head_dim": 10}),
    "mellum": (
        "mellum", WINDOWED | SPARSE | EXPERTS | {"head_dim": 10, "moe_intermediate_size": 16},
    ),
    "hunyuan-experts": (
        "hunyuan_v1_moe", {"head_dim": 10, "num_experts": 6, "moe_topk": 2},
    ),
    "minimax-m2": ("minimax_m2", EXPERTS | {"head_dim": 10}),
    "afmoe": ("afmoe", WINDOWED | ROUTED | {"head_dim": 10, "num_dense_layers": 1}),
    "solar-open": (
        "solar_open",
        {"head_dim": 10, "moe_intermediate_size": 16, "n_routed_experts": 6,
         "num_experts_per_tok": 2},
    ),
    "glm4-moe-lite": (
        "glm4_moe_lite",
        LATENT | SPARSE | {"moe_intermediate_size": 16, "n_routed_experts": 6,
                           "num_experts_per_tok": 2, "n_shared_experts": 1},
    ),
    "minicpm3": ("minicpm3", LATENT),
    "youtu": ("youtu", LATENT),
    "gpt-j": ("gptj", GPT | {"rotary_dim": 8}),
    "codegen": ("codegen", GPT | {"rotary_dim": 8, "n_head": 4}),
    "starcoder": ("gpt_bigcode", GPT),
    "starcoder-many-heads": ("gpt_bigcode", GPT | {"multi_query": False}),
    "starcoder2": ("starcoder2", {"sliding_window": 16}),
    "phi": ("phi", {}),
    "phi-experts": ("phimoe", EXPERTS | {"attention_bias": True, "lm_head_bias": True}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "stablelm-parallel": ("stablelm", {"use_parallel_residual": True}),
    "arcee": ("arcee", {"head_dim": 10}),
    "jais2": ("jais2", {"head_dim": 10}),
    "nemotron": ("nemotron", {"head_dim": 10}),
    "cohere": ("cohere", {"use_qk_norm": True}),
    "aria": (
        "aria_text",
        {"moe_num_experts": 6, "moe_topk": 2, "moe_num_shared_experts": 2, "head_dim": 8},
    ),
    "bitnet": ("bitnet", {}),
    "biogpt": ("biogpt", {"num_key_value_heads": None}),
    "dots1": (
        "dots1",
        {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
         "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 2},
    ),
    "gpt-neo": (
        "gpt_neo",
        {"num_heads": 6, "num_layers": 3, "attention_types": [[["global", "local", "global"], 1]],
         "window_size": 16, **dict.fromkeys(("num_key_value_heads", "num_attention_heads",
                                             "num_hidden_layers"))},
    ),
    "granite-swa": ("granite_swa", WINDOWED),
    "granite-experts-swa": ("granitemoe_swa", WINDOWED | EXPERTS),
    "hunyuan-v3": ("hy_v3", ROUTED | SPARSE | {"head_dim": 10}),
    "hyperclova-x": ("hyperclovax", {"head_dim": 10}),
    "kolibri": (
        "kolibri1",
        WINDOWED | EXPERTS | {"head_dim": 10, "moe_intermediate_size": 16,
                              "shared_expert_intermediate_size": 20, "intermediate_size": None},
    ),
    "laguna": (
        "laguna",
        SPARSE | {"head_dim": 10, "moe_intermediate_size": 16, "num_experts": 6,
                  "num_experts_per_tok": 2, "shared_expert_intermediate_size": 20},
    ),
    "persimmon": ("persimmon", {"num_key_value_heads": None}),
    "xglm": (
        "xglm",
        {"d_model": 48, "ffn_dim": 80, "num_layers": 3, "attention_heads": 6,
         **dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_key_value_heads"))},
    ),
    "cohere2": ("cohere2", WINDOWED | {"head_dim": 8}),
}  # fmt: skip


def config_of(case):
    model_type, changes = (CASES | RECURRENT)[case]
    stated = {"model_type": model_type, **DENSE, **changes}
    return {key: value for key, value in stated.items() if value is not None}


def language_model(config, device):
    """Return the model of transformers, without the vision tower."""
    stated = {key: value for key, value in config.items() if key != "model_type"}
    built = transformers.AutoConfig.for_model(config["model_type"], **stated)
    built.use_cache = True
    built._attn_implementation = built._experts_implementation = "eager"
    auto = transformers.AutoModelForCausalLM
    if "vision_config" in config:
        auto = transformers.AutoModelForImageTextToText
    with torch.device(device):
        model = auto.from_config(built, dtype=torch.float32)
    if "vision_config" in config:
        del model.model.visual
    return model


@pytest.mark.parametrize("case", [*CASES, *RECURRENT])
def test_parameters_are_those_of_the_modules(case):
    model = language_model(config_of(case), "meta")
    ends = ("score_correction_bias", "expert_bias")
    biases = [one for name, one in model.named_buffers() if name.endswith(ends)]
    of_activations = sum("act_fn" in name for name, _ in model.named_parameters())  # a note says so
    held = sum(one.numel() for one in (*model.parameters(), *biases)) - of_activations
    assert count_parameters(read_config(config_of(case))).num_params == held


@pytest.mark.parametrize("case", sampled(CASES, 4))
def test_products_and_cache_are_those_of_a_step(case):
    tokens, model = 7, read_config(config_of(case))
    runner = language_model(config_of(case), "cpu")
    ids = torch.arange(3, 3 + tokens)[None]
    with FlopCounterMode(display=False) as forward:
        output = runner(input_ids=ids)
    with FlopCounterMode(display=False) as backward:
        output.logits.sum().backward()
    counts = step_flops(
        build_graph(model), num_tokens=tokens, sequence_length=tokens, count=ScoreCount.FULL
    )
    assert forward.get_total_flops() == counts.forward
    assert backward.get_total_flops() == counts.input_gradient + counts.weight_gradient
    kept = [part for layer in output.past_key_values.layers for part in (layer.keys, layer.values)]
    assert sum(part.numel() for part in kept) == kv_cache_bytes(model, 1.0, float(tokens))


@pytest.mark.parametrize("case", sampled(RECURRENT, 4))
def test_linear_layers_and_states_are_those_of_a_step(case):
    tokens, model = 7, read_config(config_of(case))
    runner = language_model(config_of(case), "cpu")
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        output = runner(input_ids=torch.arange(3, 3 + tokens)[None], use_cache=True)
    kinds = forward.get_flop_counts()["Global"]
    counted = sum(kinds.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    graph = build_graph(model)
    of_layers = [
        layer.count * layer_flops_per_token(layer, tokens, ScoreCount.FULL, OpKind.MATMUL)
        for layer in (graph.embedding, *graph.layers, graph.head)
    ]
    assert counted == tokens * (sum(of_layers) + AGAIN.get(case, 0))
    cache = getattr(output, "past_key_values", None) or output.cache_params
    states, inputs, pairs = 0, 0, 0
    for layer in cache.layers:
        for name in ("recurrent_states", "conv_states"):
            kept = sum(
                part.numel() for part in getattr(layer, name, {}).values() if part is not None
            )
            states, inputs = (
                (states + kept, inputs) if name == "recurrent_states" else (states, inputs + kept)
            )
        parts = (getattr(layer, name, None) for name in ("keys", "values", "indexer_keys"))
        pairs += sum(part.numel() for part in parts if part is not None)
    assert pairs == kv_cache_bytes(model, 1.0, float(tokens))
    # transformers keeps as many inputs as a convolution sees, of which the newest is not needed
    size = model.recurrences[0].conv_size if model.recurrences else 1
    needed = inputs * (size - 1) / size
    assert STATE_WORD_BYTES * states + needed == recurrent_state_bytes(model, 1.0)


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
def test_text_and_vision_side_by_side_or_nested_are_one_model(model_type):
    flat = config_of("qwen2-vl") | {"model_type": model_type}
    inner = {key: value for key, value in flat.items() if key not in ("vision_config",)}
    nested = {"model_type": model_type, "vision_config": VISION}
    nested["text_config"] = inner | {"model_type": f"{model_type}_text"}
    one, other = read_config(flat), read_config(nested)
    assert count_parameters(one) == count_parameters(other)
    assert any("vision tower" in note for note in one.conventions)
    assert any("vision tower" in note for note in other.conventions)
