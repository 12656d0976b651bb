"""The operator graph: order, wiring, parameters."""

import pytest
from oracles.graph_parameters import graph_parameters

from meshwright.base.errors import SpecError
from meshwright.graph.op import OpKind, matmul_flops_per_row, weight_elements
from meshwright.graph.transformer import build_graph
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
)

GQA = AttentionSpec(num_heads=8, num_kv_heads=2, head_size=16, value_head_size=16)
MLA = AttentionSpec(
    kind="mla",
    num_heads=4,
    num_kv_heads=4,
    head_size=16,
    value_head_size=8,
    query_rank=24,
    kv_rank=12,
    rope_head_size=4,
)
DENSE = FeedForwardSpec(ffn_size=256, gated=True)
EXPERTS = ExpertSpec(
    num_experts=8, top_k=2, ffn_size=32, shared_ffn_size=64, shared_gate=True, router_bias=True
)
HIDDEN, VOCAB = 128, 1000


def model_of(*layers, pattern=(0,), **changes):
    fields = {
        "name": "test",
        "architecture": "test",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "layer_kinds": layers,
        "layer_pattern": pattern,
    }
    return ModelSpec(**fields | changes)


def layer_of(**changes):
    return LayerSpec(**{"attention": GQA, "feed_forward": DENSE} | changes)


def names(graph):
    return [op.name for op in graph.layers[0].ops]


def test_operators_of_a_dense_layer_in_order():
    assert names(build_graph(model_of(layer_of()))) == [
        "attention.norm",
        "attention.qkv",
        "attention.rotary",
        "attention.core",
        "attention.output",
        "residual.attention",
        "feed_forward.norm",
        "feed_forward.up",
        "feed_forward.activation",
        "feed_forward.down",
        "residual.network",
    ]


def test_operators_of_a_mixture_of_experts_in_order():
    layer = layer_of(feed_forward=None, experts=EXPERTS)
    assert names(build_graph(model_of(layer)))[7:] == [
        "experts.router",
        "experts.dispatch",
        "experts.up",
        "experts.activation",
        "experts.down",
        "experts.combine",
        "shared_experts.up",
        "shared_experts.activation",
        "shared_experts.down",
        "shared_experts.gate",
        "shared_experts.scaled",
        "residual.network",
    ]


@pytest.mark.parametrize(
    "layer",
    [
        layer_of(),
        layer_of(num_norms=4),
        layer_of(norms_before=False),
        layer_of(feed_forward=None, experts=EXPERTS, norms_before=False),
        layer_of(num_norms=1, parallel_residual=True),
        layer_of(num_norms=2, parallel_residual=True),
        layer_of(attention=MLA),
        layer_of(feed_forward=None, experts=EXPERTS),
        layer_of(feed_forward=None, experts=EXPERTS, num_norms=4),
        layer_of(attention=GQA.model_copy(update={"qk_norm": "full", "sinks": True})),
    ],
)
def test_each_tensor_is_made_before_it_is_read_and_every_size_is_known(layer):
    graph = build_graph(model_of(layer), dropout=True, flash_attention=False).layers[0]
    sizes, made = graph.bind(64, 32), {graph.input.name}
    for op in graph.ops:
        assert {tensor.name for tensor in op.inputs} <= made
        made |= {tensor.name for tensor in op.outputs}
        used = (*op.inputs, *op.outputs, *op.weights, *op.saved)
        assert all(dim in sizes for tensor in used for dim in tensor.dims)
    assert graph.ops[-1].output.dims == graph.input.dims


def test_parameters_of_a_dense_model():
    """Attention 128 (128 + 2 x 32) + 128 x 128, network 3 x 128 x 256, norms 2 x 128, both ends."""
    layer = HIDDEN * (128 + 64) + 128 * HIDDEN + 3 * HIDDEN * 256 + 2 * HIDDEN
    both_ends = 2 * VOCAB * HIDDEN + HIDDEN
    assert graph_parameters(build_graph(model_of(layer_of(), pattern=(0, 0, 0)))) == (
        3 * layer + both_ends
    )


def test_tied_logits_are_counted_once():
    whole = graph_parameters(build_graph(model_of(layer_of())))
    tied = graph_parameters(build_graph(model_of(layer_of(), tied_embeddings=True)))
    assert whole - tied == VOCAB * HIDDEN


def test_parameters_of_experts():
    """Each of 8: 3 x 128 x 32; shared 3 x 128 x 64 with a gate of 128; router 128 x 8 + 8."""
    layer = layer_of(feed_forward=None, experts=EXPERTS)
    graph = build_graph(model_of(layer)).layers[0]
    counts = {op.name: weight_elements(op, graph.sizes) for op in graph.ops}
    assert counts["experts.up"] + counts["experts.down"] == 8 * 3 * HIDDEN * 32
    shared = counts["shared_experts.up"] + counts["shared_experts.down"]
    assert shared + counts["shared_experts.gate"] == 3 * HIDDEN * 64 + HIDDEN
    assert counts["experts.router"] == HIDDEN * 8 + 8


def test_parameters_of_latent_attention():
    """Queries 128 x 24 + 24 + 24 x 4 x 20; keys and values 128 x 16 + 12 + 12 x 4 x (16 + 8)."""
    graph = build_graph(model_of(layer_of(attention=MLA))).layers[0]
    found = sum(weight_elements(op, graph.sizes) for op in graph.ops if op.region == "attention")
    query = HIDDEN * 24 + 24 + 24 * 4 * 20
    keys = HIDDEN * 16 + 12 + 12 * 4 * 24
    assert found == HIDDEN + query + keys + 4 * 8 * HIDDEN


def test_layer_norms_and_biases_are_counted():
    """LayerNorm has 2h; a bias of its columns for each product."""
    attention = GQA.model_copy(update={"qkv_bias": True, "output_bias": True})
    network = FeedForwardSpec(ffn_size=256, gated=False, bias=True)
    model = model_of(layer_of(attention=attention, feed_forward=network), norm="layer")
    graph = build_graph(model).layers[0]
    vectors = [
        weight_elements(op, graph.sizes)
        - sum(
            graph.sizes[w.dims[0]] * graph.sizes[w.dims[1]] for w in op.weights if len(w.dims) > 1
        )
        for op in graph.ops
    ]
    assert sum(vectors) == 2 * 2 * HIDDEN + (128 + 64) + HIDDEN + 256 + HIDDEN


def test_fused_product_counts_all_its_columns():
    layer = build_graph(model_of(layer_of())).layers[0]
    qkv = layer.ops[1]
    assert qkv.kind is OpKind.MATMUL
    assert matmul_flops_per_row(qkv, layer.sizes) == 2 * HIDDEN * (128 + 32 + 32)


def test_learned_positions_replace_the_rotary_step():
    graph = build_graph(model_of(layer_of(), learned_positions=64, embedding_norm=True))
    assert "attention.rotary" not in names(graph)
    assert [op.name for op in graph.embedding.ops] == [
        "embedding.lookup",
        "embedding.positions",
        "embedding.norm",
    ]


def test_an_unknown_number_of_norms_is_refused():
    with pytest.raises(SpecError, match=r"layer.num_norms: 3 norms .* \(2 or 4 are known\)"):
        build_graph(model_of(layer_of(num_norms=3)))
