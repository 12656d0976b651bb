"""Parameter parts and key-value cache of small models, by hand."""

import numpy as np

from meshwright.catalog.models import load_model
from meshwright.graph.parameters import (
    PARTS,
    count_parameters,
    kv_cache_bytes,
    kv_cache_bytes_per_token,
    windowed_kv_cache_bytes_per_token,
)
from meshwright.spec.model import AttentionSpec, ExpertSpec, FeedForwardSpec, LayerSpec, ModelSpec

ATTENTION = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=8, value_head_size=8)
WINDOWED = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=8, value_head_size=8, window=16)
LATENT = AttentionSpec(
    kind="mla",
    num_heads=4,
    num_kv_heads=4,
    head_size=8,
    value_head_size=6,
    query_rank=5,
    kv_rank=7,
    rope_head_size=2,
)
DENSE = FeedForwardSpec(ffn_size=20, gated=True)
EXPERTS = ExpertSpec(
    num_experts=8,
    top_k=2,
    ffn_size=10,
    bias=True,
    router_bias=True,
    shared_ffn_size=12,
    shared_gate=True,
)


def model_of(*layers, **rest):
    return ModelSpec(
        name="small",
        architecture="test",
        hidden_size=32,
        vocab_size=100,
        layer_kinds=layers,
        layer_pattern=tuple(range(len(layers))),
        **rest,
    )


def test_parts_of_a_dense_model_by_hand():
    counts = count_parameters(model_of(LayerSpec(attention=ATTENTION, feed_forward=DENSE)))
    assert counts.parts["embedding"] == 100 * 32
    assert counts.parts["head"] == 100 * 32
    assert counts.parts["attention"] == 32 * (4 * 8 + 2 * 2 * 8) + 4 * 8 * 32
    assert counts.parts["feed_forward"] == 3 * 32 * 20
    assert counts.parts["norms"] == 2 * 32 + 32
    assert counts.num_params == 3200 + 3200 + 3072 + 1920 + 96
    assert counts.num_active_params == counts.num_params
    assert tuple(counts.parts) == PARTS


def test_experts_with_all_biases_by_hand():
    counts = count_parameters(model_of(LayerSpec(attention=ATTENTION, experts=EXPERTS)))
    expert = 3 * 32 * 10 + 2 * 10 + 32
    assert counts.parts["experts"] == 8 * expert
    assert counts.parts["shared_experts"] == 3 * 32 * 12 + 2 * 12 + 32 + 32
    assert counts.parts["router"] == 8 * 33
    assert counts.num_params - counts.num_active_params == 6 * expert


def test_latent_attention_by_hand():
    counts = count_parameters(model_of(LayerSpec(attention=LATENT, feed_forward=DENSE)))
    queries = 32 * 5 + 5 * 4 * 10
    keys_and_values = 32 * (7 + 2) + 7 * 4 * (8 + 6)
    assert counts.parts["attention"] == queries + keys_and_values + 4 * 6 * 32
    assert counts.parts["norms"] == 2 * 32 + 5 + 7 + 32


def test_norm_kinds_positions_and_head_by_hand():
    layer = LayerSpec(attention=ATTENTION, feed_forward=DENSE, num_norms=4)
    base = count_parameters(model_of(layer))
    assert base.parts["norms"] == 5 * 32
    assert count_parameters(model_of(layer, norm="layer")).parts["norms"] == 5 * 64
    assert count_parameters(model_of(layer, norm="layer_no_bias")).parts["norms"] == 5 * 32
    assert count_parameters(model_of(layer, norm="layer_unweighted")).parts["norms"] == 0
    assert count_parameters(model_of(layer, embedding_norm=True)).parts["norms"] == 6 * 32
    assert count_parameters(model_of(layer, final_norm=False)).parts["norms"] == 4 * 32
    assert count_parameters(model_of(layer, learned_positions=50)).parts["embedding"] == 150 * 32
    tied = count_parameters(model_of(layer, tied_embeddings=True))
    assert (tied.parts["head"], tied.repeated_head) == (0, 3200)
    assert count_parameters(model_of(layer, head_bias=True)).parts["head"] == 3300


def test_prediction_layers_stay_out_of_the_total():
    layer = LayerSpec(attention=ATTENTION, feed_forward=DENSE)
    without, with_two = model_of(layer), model_of(layer, num_prediction_layers=2)
    counts = count_parameters(with_two)
    assert counts.num_params == count_parameters(without).num_params
    layer_params = 3072 + 1920 + 64
    assert counts.prediction == 2 * (layer_params + 2 * 32 * 32 + 3 * 32)


def test_cache_of_grouped_and_latent_attention_by_hand():
    model = model_of(
        LayerSpec(attention=ATTENTION, feed_forward=DENSE),
        LayerSpec(attention=WINDOWED, feed_forward=DENSE),
        LayerSpec(attention=LATENT, feed_forward=DENSE),
    )
    grouped, latent = 2 * 2 * 8, 7 + 2
    assert kv_cache_bytes_per_token(model, 2.0) == 2 * (2 * grouped + latent)
    assert windowed_kv_cache_bytes_per_token(model, 2.0) == 2 * grouped
    lengths = np.array([1.0, 16.0, 17.0, 100.0])
    kept = np.array([1.0, 16.0, 16.0, 16.0])
    expected = 2 * ((grouped + latent) * lengths + grouped * kept)
    np.testing.assert_array_equal(kv_cache_bytes(model, 2.0, lengths), expected)
    assert [kv_cache_bytes(model, 2.0, float(n)) for n in lengths] == list(expected)


def test_cache_of_published_models():
    # Llama 3 70B: 2 x 80 layers x 8 kv heads x 128 x 2 bytes. DeepSeek-V3: 61 x (512 + 64) x 2.
    assert kv_cache_bytes_per_token(load_model("llama3-70b"), 2.0) == 327_680
    assert kv_cache_bytes_per_token(load_model("deepseek-v3"), 2.0) == 70_272
    # GPT-OSS 120B: 36 layers x 2 x 8 x 64 x 2 bytes, of which half sees 128 tokens only.
    oss = load_model("gpt-oss-120b")
    assert kv_cache_bytes_per_token(oss, 2.0) == 73_728
    assert windowed_kv_cache_bytes_per_token(oss, 2.0) == 36_864
    assert kv_cache_bytes(oss, 2.0, 1_000.0) == 36_864 * 1_000 + 36_864 * 128
