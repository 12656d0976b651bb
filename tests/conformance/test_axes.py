"""What every axis promises: degree 1 changes nothing, weights never grow, shards tile tensors."""

import numpy as np
import pytest

from meshwright.graph.transformer import build_graph
from meshwright.sharding import launching
from meshwright.sharding.axes import Axis, activation_sharding, all_rules, axes, weight_sharding
from meshwright.sharding.derivation import derive_calls
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    Streamed,
    make_strategy,
    row,
    stack,
)
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
)

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
EXPERTS = ExpertSpec(num_experts=16, top_k=2, ffn_size=64, shared_ffn_size=64)
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
LAYERS = [*GRAPH.layers, GRAPH.embedding, GRAPH.head]
OPTION_SETS = [
    PlanOptions(sequence_parallel=sequence_parallel, context_kind=context_kind, streamed=streamed)
    for sequence_parallel in (True, False)
    for context_kind in ContextKind
    for streamed in (Streamed.WEIGHTS, Streamed.INPUTS)
] + [PlanOptions(vocabulary_parallel=True)]
NAMED = sorted({degree for name in axes for degree in axes[name].degrees})


def weights_held(layer, plan_options, strategy):
    """Return the parameters of one layer on one rank, before data-parallel sharding."""
    weights = [weight for op in layer.ops for weight in op.weights]
    splits = [weight_sharding(weight, plan_options).split for weight in weights]
    pairs = zip(weights, splits, strict=True)
    return sum(local_elements(w, split, bound(layer), strategy) for w, split in pairs)


def bound(layer):
    return layer.bind(512.0, 256.0)


def test_every_axis_is_registered():
    assert {type(axes[name]) for name in axes} == set(Axis.__subclasses__())


@pytest.mark.parametrize("plan_options", OPTION_SETS)
def test_one_device_needs_no_collective(plan_options):
    """No call is made for axes that are not in use, and every group is of one device."""
    alone = make_strategy()
    for layer in LAYERS:
        assert derive_calls(layer, plan_options, ()) == ()
        for call in derive_calls(layer, plan_options):
            assert degree_of(call.axis, alone, bound(layer) | {"kv_heads": 4}) == 1


@pytest.mark.parametrize("plan_options", OPTION_SETS)
def test_one_device_holds_everything(plan_options):
    alone = make_strategy()
    for layer in LAYERS:
        sizes = bound(layer)
        for op in layer.ops:
            for tensor in (*op.inputs, *op.outputs, *op.saved):
                whole = np.prod([sizes[dim] for dim in tensor.dims])
                split = activation_sharding(tensor, plan_options).split
                assert local_elements(tensor, split, sizes, alone) == whole


@pytest.mark.parametrize("degree", NAMED)
@pytest.mark.parametrize("plan_options", OPTION_SETS)
def test_weights_of_a_device_never_grow_with_a_degree(degree, plan_options):
    for layer in LAYERS:
        held = [
            weights_held(layer, plan_options, make_strategy(**{degree: n}))
            for n in (1, 2, 4, 8, 16)
        ]
        assert held == sorted(held, reverse=True)


@pytest.mark.parametrize("name", [name for name in axes if name not in ("dp", "edp", "ep", "etp")])
@pytest.mark.parametrize("plan_options", OPTION_SETS)
def test_shards_tile_each_tensor_or_repeat_it(name, plan_options):
    """An axis of n either splits a tensor into n equal parts or leaves it whole on each rank."""
    strategy, alone = make_strategy(**{name: 4}), make_strategy()
    for layer in GRAPH.layers:
        sizes = bound(layer)
        for op in layer.ops:
            tensors = [(t, activation_sharding(t, plan_options)) for t in (*op.outputs, *op.saved)]
            tensors += [(w, weight_sharding(w, plan_options)) for w in op.weights]
            for tensor, layout in tensors:
                is_routed = "edp" in layout.axes
                whole = local_elements(tensor, layout.split, sizes, alone)
                mine = local_elements(tensor, layout.split, sizes, strategy)
                splits = name in layout.axes or (is_routed and name in ("tp", "cp"))
                assert mine == (whole / 4 if splits else whole), tensor


@pytest.mark.parametrize("plan_options", OPTION_SETS)
def test_an_axis_splits_one_dim_of_a_tensor_at_most(plan_options):
    for layer in LAYERS:
        for op in layer.ops:
            layouts = [activation_sharding(t, plan_options) for t in op.outputs]
            layouts += [weight_sharding(w, plan_options) for w in op.weights]
            for layout in layouts:
                assert len(layout.axes) == len(set(layout.axes))


@pytest.mark.parametrize("plan_options", OPTION_SETS)
def test_a_column_of_strategies_equals_its_rows(plan_options):
    choices = [{}, {"tp": 4}, {"tp": 2, "cp": 2, "dp_shard": 3}, {"tatp": 4, "pp": 2}]
    choices.append({"tp": 2, "dp_shard": 4, "ep": 4, "etp": 2})
    columns = stack([make_strategy(**choice) for choice in choices])
    for layer in LAYERS:
        for call in derive_calls(layer, plan_options):
            column = local_elements(call.tensor, call.split, bound(layer), columns)
            column = np.broadcast_to(column, (len(choices),))
            for index, found in enumerate(column):
                assert found == local_elements(
                    call.tensor, call.split, bound(layer), row(columns, index)
                )


def test_rules_have_names_of_their_own_and_explain_themselves():
    rules = [rule for name in axes for rule in axes[name].rules] + list(launching.rules())
    assert len(all_rules()) == len(rules)
    assert all(rule.explanation and (rule.adjusts or rule.fix) for rule in rules)
