"""Local sizes that the shardings imply are those stated dim by dim: all models of the catalog."""

from itertools import product

import pytest
from oracles.stated_local_sizes import StatedLayer
from sampled import sampled

from meshwright.catalog.models import load_model, model_names
from meshwright.graph.transformer import build_graph
from meshwright.sharding.local_sizes import LocalLayer, layer_axes
from meshwright.sharding.strategy import PlanOptions, Streamed, make_strategy

LENGTH = 4096
DEGREES = (
    {}, {"tp": 2, "micro_batch_size": 2}, {"tp": 4, "cp": 2}, {"tatp": 4}, {"tp": 2, "tatp": 2},
    {"tp": 2, "tatp": 3, "micro_batch_size": 2}, {"cp": 4, "tatp": 2}, {"dp_shard": 4, "ep": 4},
    {"dp_shard": 2, "tp": 2, "ep": 2, "etp": 2}, {"tp": 2, "ep": 2, "dp_replicate": 3},
    {"dp_shard": 4, "ep": 2, "tatp": 2},
)  # fmt: skip


def divides(sizes, degrees):
    """Whether each degree divides the dims that it splits, as rules ask for."""
    inner = degrees.get("tp", 1) * degrees.get("tatp", 1)
    heads = ("query_heads", "kv_heads", "inner_heads", "ffn", "shared_ffn")
    experts = sizes.get("experts", degrees.get("ep", 1)) % degrees.get("ep", 1) == 0
    wide = sizes.get("expert_ffn", 0) % (degrees.get("etp", 1) * degrees.get("tatp", 1)) == 0
    return experts and wide and all(sizes.get(name, 0) % inner == 0 for name in heads)


@pytest.mark.parametrize("name", sampled(model_names(), 40))
def test_sizes_are_those_stated_dim_by_dim(name):
    graph = build_graph(load_model(name))
    for layer, degrees in product((*graph.layers, graph.embedding, graph.head), DEGREES):
        if not divides(layer.sizes, degrees):
            continue
        strategy = make_strategy(**degrees)
        for parallel, streamed in product((True, False), (Streamed.WEIGHTS, Streamed.INPUTS)):
            options = PlanOptions(sequence_parallel=parallel, streamed=streamed)
            inputs = streamed is Streamed.INPUTS
            stated = StatedLayer(layer.sizes, strategy, LENGTH, parallel, 1.25, inputs)
            local = LocalLayer(
                layer.sizes,
                layer_axes(layer, options),
                strategy,
                LENGTH,
                expert_load_imbalance=1.25,
            )
            assert local.tokens == stated.tokens
            assert local.token_shard == stated.token_shard
            assert local.routed_rows == stated.routed_rows
            for op in layer.ops:
                assert local.rows_of(op) == stated.rows_of(op), (op.name, degrees, options)
                for tensor in (*op.inputs, *op.outputs, *([op.moved] if op.moved else [])):
                    assert local.width(tensor) == stated.width(tensor), (tensor, degrees, options)
            for dim in ("query_heads", "kv_heads", "experts"):
                if dim in layer.sizes:
                    assert local.size(dim) == stated.size(dim), (dim, degrees, options)
