"""FLOPs of a step equal the textbook totals."""

import numpy as np
import pytest

from meshwright.graph.flops import (
    ScoreCount,
    step_flops,
    visible_keys,
)
from meshwright.graph.op import OpKind, weight_elements
from meshwright.graph.transformer import build_graph
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
)


def model_of(*, layers, hidden, heads, kv_heads, vocab, network):
    size = hidden // heads
    attention = AttentionSpec(
        num_heads=heads, num_kv_heads=kv_heads, head_size=size, value_head_size=size
    )
    return ModelSpec(
        name="test",
        architecture="test",
        hidden_size=hidden,
        vocab_size=vocab,
        layer_kinds=(LayerSpec(attention=attention, **network),),
        layer_pattern=(0,) * layers,
    )


def gpt(layers=96, hidden=12288, heads=96, vocab=51200):
    network = {"feed_forward": FeedForwardSpec(ffn_size=4 * hidden, gated=False)}
    return model_of(
        layers=layers, hidden=hidden, heads=heads, kv_heads=heads, vocab=vocab, network=network
    )


def product_weights(graph, *, active=1.0):
    """Parameters of matrix products that one token meets."""
    total = 0.0
    for layer in (*graph.layers, graph.head):
        for op in layer.ops:
            if op.kind is OpKind.MATMUL:
                share = active if "experts" in op.weights[0].dims else 1.0
                total += layer.count * share * weight_elements(op, layer.sizes)
    return total


@pytest.mark.parametrize(
    ("layers", "hidden", "heads"), [(24, 2304, 24), (96, 12288, 96), (128, 25600, 160)]
)
def test_megatron_total_with_full_recomputation(layers, hidden, heads):
    """96 B s l h^2 (1 + s/6h + V/16lh), Narayanan et al. 2021, equation 3."""
    batch, s, vocab = 1536, 2048, 51200
    graph = build_graph(gpt(layers, hidden, heads, vocab), flash_attention=False)
    found = step_flops(
        graph,
        num_tokens=batch * s,
        sequence_length=s,
        count=ScoreCount.FULL,
        recompute="full",
    )
    factor = 1 + s / (6 * hidden) + vocab / (16 * layers * hidden)
    expected = 96 * batch * s * layers * hidden**2 * factor
    assert found.hardware == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kv_heads", [96, 8, 1])
def test_six_parameters_and_twelve_scores_for_each_token(kv_heads):
    """6 P + 12 L h s for each token, with the parameters of products; exact for grouped heads."""
    network = {"feed_forward": FeedForwardSpec(ffn_size=28672, gated=True)}
    model = model_of(
        layers=4, hidden=12288, heads=96, kv_heads=kv_heads, vocab=32000, network=network
    )
    graph = build_graph(model)
    found = step_flops(graph, num_tokens=1000, sequence_length=4096, count=ScoreCount.FULL).model
    assert found == 1000 * (6 * product_weights(graph) + 12 * 4 * 12288 * 4096)


def test_active_parameters_count_in_a_mixture_of_experts():
    experts = ExpertSpec(num_experts=16, top_k=2, ffn_size=512, shared_ffn_size=256)
    model = model_of(
        layers=2, hidden=1024, heads=8, kv_heads=8, vocab=5000, network={"experts": experts}
    )
    graph = build_graph(model)
    found = step_flops(graph, num_tokens=10, sequence_length=128, count=ScoreCount.FULL).model
    active = product_weights(graph, active=2 / 16)
    assert found == 10 * (6 * active + 12 * 2 * 1024 * 128)


def test_frozen_weights_take_four_flops_for_each_parameter():
    """Forward 2 P and the gradients of inputs 2 P; scores have no weights: 4 + 8 of L h s."""
    graph = build_graph(gpt(4, 1024, 8))
    sizes = {"num_tokens": 10, "sequence_length": 128, "count": ScoreCount.FULL}
    frozen = step_flops(graph, **sizes, freezes_weights=True)
    assert frozen.model == 10 * (4 * product_weights(graph) + 12 * 4 * 1024 * 128)
    assert frozen.weight_gradient == 0.0
    again = step_flops(graph, **sizes, recompute="full", freezes_weights=True)
    trained = step_flops(graph, **sizes, recompute="full")
    assert again.recompute == trained.recompute


def test_a_causal_mask_halves_the_scores():
    graph = build_graph(gpt())
    full = step_flops(graph, num_tokens=2048, sequence_length=2048, count=ScoreCount.FULL).model
    causal = step_flops(graph, num_tokens=2048, sequence_length=2048).model
    assert full - causal == 2048 * 6 * 96 * 12288 * 2048


@pytest.mark.parametrize(
    ("kind", "length", "window", "mean"),
    [
        ("sliding", 4096, None, 2048.0),
        ("sliding", 4096, 4096, 2048.0),
        ("sliding", 4096, 1024, 1024 * (1 - 1024 / 8192)),  # 896: full windows but the first
        ("sliding", 512, 1024, 256.0),  # shorter than the window: all before
        ("chunked", 4096, 1024, 512.0),  # half of the own chunk
        ("chunked", 512, 1024, 256.0),
    ],
)
def test_keys_that_a_query_sees_on_average(kind, length, window, mean):
    spec = AttentionSpec(
        num_heads=1,
        num_kv_heads=1,
        head_size=8,
        value_head_size=8,
        window=window,
        window_kind=kind,
    )
    assert visible_keys(spec, float(length), ScoreCount.CAUSAL) == mean
    assert visible_keys(spec, float(length), ScoreCount.FULL) == length


def test_recomputation_changes_hardware_flops_only():
    """Selective repeats the core (2 products of 2 s h each, causal half); full all of a layer."""
    graph = build_graph(gpt(), flash_attention=False)
    sizes = {"num_tokens": 1.0, "sequence_length": 2048}
    model = step_flops(graph, **sizes).model
    core = 96 * 4 * 12288 * 1024
    assert step_flops(graph, **sizes).hardware == model
    assert step_flops(graph, **sizes, recompute="selective").hardware == model + core
    layers = 96 * 24 * 12288**2
    assert step_flops(graph, **sizes, recompute="full").hardware == model + core + layers


def test_flash_attention_repeats_one_of_its_two_products():
    graph = build_graph(gpt())
    sizes = {"num_tokens": 1.0, "sequence_length": 2048}
    core = 96 * 4 * 12288 * 1024
    assert step_flops(graph, **sizes).hardware - step_flops(graph, **sizes).model == core / 2


def test_a_column_of_lengths_equals_its_scalars():
    graph = build_graph(gpt(4, 1024, 8))
    lengths = np.array([512.0, 2048.0, 8192.0])
    column = step_flops(graph, num_tokens=100.0, sequence_length=lengths).model
    single = [step_flops(graph, num_tokens=100.0, sequence_length=s).model for s in lengths]
    assert column.tolist() == single
