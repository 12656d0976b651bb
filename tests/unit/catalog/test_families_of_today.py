"""Families with layers of their own: parameters and caches that are worked out by hand."""

import pytest

from meshwright.catalog.models import load_model, model_entry, read_config
from meshwright.graph.flops import ScoreCount, visible_keys
from meshwright.graph.parameters import (
    count_parameters,
    kv_cache_bytes,
    kv_cache_bytes_per_token,
    recurrent_state_bytes,
)

DENSE = {
    "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 20,
}  # fmt: skip


def read(model_type, **changes):
    stated = {"model_type": model_type, **DENSE, **changes}
    return read_config({key: value for key, value in stated.items() if value is not None})


def test_a_short_convolution_by_hand():
    model = read("lfm2", layer_types=["conv"] * 2, block_auto_adjust_ff_dim=False)
    # Three rows of 8 from 8, taps of 3, and back: 192 + 24 + 64, twice.
    assert count_parameters(model).parts["recurrence"] == 2 * 280
    # The last two inputs of each channel are kept, and no state.
    assert recurrent_state_bytes(model, 2.0) == 2 * 2 * 2 * 8
    assert kv_cache_bytes_per_token(model, 2.0) == 0


def test_a_width_is_rounded_up_to_a_multiple():
    # Two thirds of 100 are 66; 5 x 16 is the next multiple.
    model = read("lfm2", intermediate_size=100, block_multiple_of=16, layer_types=["conv"] * 2)
    assert model.layer_kinds[0].feed_forward.ffn_size == 80


KIMI = {
    "num_key_value_heads": 2, "q_lora_rank": None, "kv_lora_rank": 6, "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2, "v_head_dim": 4, "num_experts": 4, "num_experts_per_token": 2,
    "moe_intermediate_size": 5, "num_shared_experts": 1, "linear_head_dim": 4,
    "linear_num_heads": 2, "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip


def test_delta_attention_with_gates_of_low_rank_by_hand():
    model = read("kimi_linear", **KIMI)
    # Queries, keys and values 3 x 8 x 8, taps 3 x 24, writing 8 x 2, two gates of (8 + 8) x 4,
    # a decay for each head, a bias for each channel, and back 8 x 8.
    parts = count_parameters(model).parts
    assert parts["recurrence"] == 192 + 72 + 16 + 128 + 2 + 8 + 64
    # Two states of 4 x 4 in FP32, and two inputs of 24 channels.
    assert recurrent_state_bytes(model, 2.0) == 4 * 32 + 2 * 48
    # One layer caches a latent of 6 and a rotary key of 2.
    assert kv_cache_bytes_per_token(model, 2.0) == 2 * 8


def test_layers_of_a_nested_section_are_counted_from_one():
    nested = {"full_attn_layers": [1], "kda_layers": [2], "head_dim": 4, "num_heads": 2,
              "short_conv_kernel_size": 3}  # fmt: skip
    model = read("kimi_linear", **KIMI | {"layer_types": None, "linear_attn_config": nested})
    assert [model.layer_kinds[kind].recurrence is None for kind in model.layer_pattern] == [
        True,
        False,
    ]


INDEXED = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "moe_intermediate_size": 2048, "n_group": 8, "topk_group": 4, "vocab_size": 129_280,
    "hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128,
}  # fmt: skip


def test_an_index_is_all_that_deepseek_v3_2_adds():
    model, before = read("deepseek_v32", **INDEXED), load_model("deepseek-v3")
    # 1536 x 64 x 128 for its queries, 7168 x (128 + 64) for key and weights, a norm of 2 x 128.
    each = 12_582_912 + 1_376_256 + 256
    added = count_parameters(model).num_params - count_parameters(before).num_params
    assert added == 61 * each
    # A key of 128 beside the latent of 576.
    assert kv_cache_bytes_per_token(model, 2.0) == 2 * 61 * (576 + 128)


def test_layers_that_share_a_choice_have_no_index():
    model = read("glm_moe_dsa", **INDEXED, index_topk_freq=4, index_skip_topk_offset=2)
    heads = [model.layer_kinds[kind].attention.index_heads for kind in model.layer_pattern]
    assert [place for place, count in enumerate(heads) if count][:5] == [0, 1, 5, 9, 13]
    assert all(kind.attention.chosen_keys == 2048 for kind in model.layer_kinds)


JOINED = {
    "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16,
    "q_lora_rank": 12, "o_lora_rank": 6, "o_groups": 2, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "sliding_window": 8, "index_n_heads": 3,
    "index_head_dim": 8, "index_topk": 4, "intermediate_size": None, "hc_mult": 3,
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 8},
}  # fmt: skip


def test_joined_tokens_by_hand():
    model = read("deepseek_v4", **JOINED)
    # 64 tokens: the window of 8 and an entry for each 8, in three layers; an entry and a key of
    # the index for each 2, in the last.
    assert kv_cache_bytes(model, 1.0, 64.0) == 3 * 16 * (8 + 8) + 16 * (8 + 32) + 8 * 32
    joined, chosen = (kind.attention for kind in model.layer_kinds)
    # A window of 8 of 64: 8 (1 - 8 / 128) keys; half of 8 entries, or 4 of 32: 4 (1 - 4 / 64).
    assert visible_keys(joined, 64.0, ScoreCount.CAUSAL) == 7.5 + 4
    assert visible_keys(chosen, 64.0, ScoreCount.CAUSAL) == 7.5 + 3.75


def test_ratios_of_the_published_file_are_kinds_of_layers():
    stated = JOINED | {"compress_ratios": [0, 4, 128, 4], "compress_rates": None}
    model = read("deepseek_v4", **stated)
    strides = [model.layer_kinds[kind].attention.stride for kind in model.layer_pattern]
    assert strides == [None, 4, 128, 4]


SHARING = {
    "head_dim": 4, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "vocab_size_per_layer_input": 18,
    "hidden_size_per_layer_input": 3,
}  # fmt: skip


def test_gemma_4_shares_caches_and_embeds_the_input_of_each_layer():
    model = read("gemma4_text", **SHARING, global_head_dim=6)
    # Two layers keep keys and values: of one head of 4, and of one of 6.
    assert kv_cache_bytes_per_token(model, 1.0) == 2 * 4 + 2 * 6
    parts = count_parameters(model).parts
    # A second table of 18 rows for four layers of 3, and the usual one.
    assert parts["embedding"] == 20 * 8 + 18 * 12
    # A layer: to 3 and back, and a norm. Once: 8 to 12, and a norm of 3.
    assert parts["side"] == 4 * (2 * 24 + 8) + 96 + 3


@pytest.mark.parametrize("shared", [3, 4])
def test_a_shared_cache_needs_an_owner(shared):
    with pytest.raises(ValueError, match="leaves no layer with the cache of"):
        read("gemma4_text", **SHARING | {"num_kv_shared_layers": shared})


def test_attention_beside_a_state_space_adds_up():
    model = read(
        "falcon_h1", mamba_n_heads=2, mamba_d_head=4, mamba_d_ssm=8, mamba_d_state=3,
        mamba_n_groups=1,
    )  # fmt: skip
    layer = count_parameters(model).layer_kinds[0].parts
    # Queries and back 2 x 64, keys and values 2 x 32.
    assert layer["attention"] == 192
    # Gate and x 16, B and C 6, steps 2, from 8; taps 4 and a bias of 14; 3 x 2 numbers; 8 x 8.
    assert layer["recurrence"] == 8 * 24 + 5 * 14 + 6 + 64
    assert layer["norms"] == 2 * 8
    assert kv_cache_bytes_per_token(model, 1.0) == 2 * 2 * 4


@pytest.mark.parametrize(
    ("outer", "inner"), [("llava", "llama"), ("kimi_k25", "deepseek_v3"), ("idefics2", "mistral")]
)
def test_a_model_of_several_media_is_its_text(outer, inner):
    names = {"llama": "llama2-7b", "deepseek_v3": "deepseek-v3", "mistral": "mistral-7b"}
    text = {**model_entry(names[inner]).config, "model_type": inner}
    text.pop("architectures", None)
    model = read_config({"model_type": outer, "text_config": text, "vision_config": {"depth": 2}})
    assert count_parameters(model) == count_parameters(load_model(names[inner]))
    assert any("vision tower" in note for note in model.conventions)


def test_an_unknown_wrapper_is_refused():
    with pytest.raises(ValueError, match="unknown architecture ovis2"):
        read_config({"model_type": "ovis2", "text_config": {"model_type": "llama"}})
