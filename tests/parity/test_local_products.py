"""Two routes to local matrix products: sizes as priced, and layouts as the rule derives them."""

from dataclasses import replace

import pytest

from meshwright.cost.operator import matmul_shape
from meshwright.graph.op import OpKind
from meshwright.graph.transformer import build_graph
from meshwright.sharding.axes import forward_products
from meshwright.sharding.local_sizes import LocalLayer, layer_axes, local_elements, local_size
from meshwright.sharding.strategy import PlanOptions, Streamed, make_strategy
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
)

SEQUENCE = 512
GQA = AttentionSpec(num_heads=16, num_kv_heads=4, head_size=8, value_head_size=8)
MLA = AttentionSpec(
    kind="mla",
    num_heads=16,
    num_kv_heads=16,
    head_size=8,
    value_head_size=8,
    query_rank=32,
    kv_rank=16,
    rope_head_size=4,
)
EXPERTS = ExpertSpec(num_experts=16, top_k=2, ffn_size=64, shared_ffn_size=64, shared_gate=True)
MODEL = ModelSpec(
    name="test",
    architecture="test",
    hidden_size=128,
    vocab_size=1024,
    layer_kinds=(
        LayerSpec(attention=GQA, feed_forward=FeedForwardSpec(ffn_size=256, gated=True)),
        LayerSpec(attention=MLA, experts=EXPERTS),
    ),
    layer_pattern=(0, 1),
)
GRAPH = build_graph(MODEL)


def derived_shape(op, plan_options, sizes, strategy):
    """Return rows, inner size and columns of a product as its operands meet on a rank."""
    columns = 0.0
    for _, output, made in forward_products(op, plan_options):
        split = made.local.split
        rows = local_elements(replace(output, dims=output.dims[:1]), split, sizes, strategy)
        last = output.dims[-1]
        columns += local_size(last, split.get(last, ()), sizes, strategy)
        inner = local_size(op.contracted[0], made.local.partial, sizes, strategy)
    return rows, inner, columns


@pytest.mark.parametrize("streamed", [Streamed.WEIGHTS, Streamed.INPUTS])
@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize(
    "degrees",
    [
        {},
        {"tp": 4},
        {"tp": 8},  # each of 4 key heads on two ranks
        {"tp": 2, "cp": 4},
        {"tp": 2, "tatp": 4},  # with inputs streamed: each of 4 key heads on two ranks
        {"tatp": 2, "dp_shard": 4, "ep": 4, "etp": 1},
        {"dp_shard": 4, "tp": 2, "ep": 4, "micro_batch_size": 2},
        {"dp_shard": 2, "tp": 4, "ep": 4, "etp": 2},
    ],
)
def test_priced_products_are_the_derived_ones(degrees, sequence_parallel, streamed):
    plan_options = PlanOptions(sequence_parallel=sequence_parallel, streamed=streamed)
    strategy = make_strategy(**degrees)
    for layer in (*GRAPH.layers, GRAPH.head):
        sizes = layer.bind(SEQUENCE * strategy.micro_batch_size, SEQUENCE)
        local = LocalLayer(layer.sizes, layer_axes(layer, plan_options), strategy, SEQUENCE)
        for op in layer.ops:
            if op.kind is OpKind.MATMUL:
                count, rows, inner, columns = matmul_shape(op, local)
                derived = derived_shape(op, plan_options, sizes, strategy)
                assert (count * rows, inner, columns) == derived, op.name
