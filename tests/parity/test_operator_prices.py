"""A model whose operators all have one option costs what the strategy of that option costs."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from sampled import one_in
from small_problems import dense, experts, gqa, level, model, problem, system

from meshwright.cost.parts import MemoryPart, TimePart
from meshwright.cost.step import price_columns
from meshwright.sharding.strategy import PlanOptions, Recompute, stack
from meshwright.wafer.operators.assignment import assign, best_uniform, model_graph
from meshwright.wafer.operators.options import SharedChoices
from meshwright.wafer.operators.prices import BEFORE, handovers, operator_groups
from meshwright.wafer.operators.resharding import LayoutMoves, busiest_s, moved, pair_routes
from meshwright.wafer.price import choice_network, physical_network

SMALL = model(num_layers=4)
TIED = model(num_layers=3, tied_embeddings=True)
MIXED = model(dense(gqa(8, 2)), dense(gqa(8, 4)), num_layers=4)
ROUTED = model(dense(), experts(4, 2, 64), num_layers=4)
GRID = (level(4, "mesh"), level(2, "mesh"))


def asked(spec=SMALL, capacity_bytes=4e9, **fields):
    on = system(*GRID, capacity_bytes=capacity_bytes)
    return problem(spec, on, **({"sequence_length": 256, "global_batch_size": 16} | fields))


def graph_of(what, num_sequences=8, **choices):
    plan_options = PlanOptions(**({"zero_stage": 1} | choices))
    frame = SharedChoices(plan_options, what.system.num_devices, num_sequences)
    return model_graph(what, frame, physical_network(what))


FORMS = [
    pytest.param(*form) for form in product((TIED, SMALL, MIXED, ROUTED), (1, 0, 2, 3), Recompute)
]
"""Models, stages of ZeRO and forms of recomputation."""


@pytest.mark.parametrize(("spec", "zero_stage", "recompute"), one_in(24, FORMS))
def test_one_option_for_all_is_the_strategy(spec, zero_stage, recompute):
    what = asked(spec)
    graph = graph_of(what, zero_stage=zero_stage, recompute=recompute)
    options = graph.prices.options
    for index in range(0, len(options), 5):
        found = graph.price((index,) * len(graph.places))
        strategy, plan_options = options.strategy(index), options.option_sets[index]
        laid = choice_network(what, [(strategy, [options.choices[index]])])
        alone = price_columns(what, plan_options, stack([strategy]), laid)
        for name in TimePart:
            expected = np.asarray(alone.step.time[name]).reshape(-1)[0]
            assert found.time[name][0] == pytest.approx(expected, rel=1e-9, abs=1e-15)
        assert found.reshard_s == 0.0
        for name in MemoryPart:
            expected = np.asarray(alone.step.memory[0][name]).reshape(-1)[0]
            assert np.ravel(found.memory[name])[0] == pytest.approx(expected)


def test_another_stage_of_zero_is_that_of_its_options_too():
    graph = graph_of(asked(), zero_stage=1)
    under = graph.under(PlanOptions(zero_stage=2))
    options = graph.prices.options
    for before, after in zip(options.option_sets, under.prices.options.option_sets, strict=True):
        assert after.zero_stage == 2
        assert (after.streamed, after.axis_order) == (before.streamed, before.axis_order)
        assert after.sequence_parallel == before.sequence_parallel


@pytest.mark.parametrize(
    ("zero_stage", "divided"), [(0, ()), (1, ("state",)), (2, ("state", "gradient")),
                                (3, ("state", "gradient", "weight"))],
)  # fmt: skip
def test_each_stage_of_zero_divides_its_part_of_what_a_device_holds(zero_stage, divided):
    """By hand: bytes for each parameter, each over dp x cp from its stage of ZeRO on."""
    what = asked()
    graph = graph_of(what, zero_stage=zero_stage)
    optimizer, options = what.workload.optimizer, graph.prices.options
    shards = options.columns.dp_shard * options.columns.cp
    row = int(np.argmax(shards))
    cost = graph.prices.costs[0][0].layer
    params, kept = (float(np.ravel(one)[row]) for one in (cost.dense_params, cost.kept_bytes))
    each = {
        "weight": optimizer.weight_bytes_per_param, "gradient": optimizer.gradient_bytes_per_param,
        "state": optimizer.state_bytes_per_param,
    }  # fmt: skip
    held = sum(
        size * params / (shards[row] if name in divided else 1.0) for name, size in each.items()
    )
    assert shards[row] > 1
    node = graph.places.index((0, 0))
    assert graph.graph_nodes(0.0)[node].num_bytes[row] == pytest.approx(held + kept)


@pytest.mark.parametrize("window_share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_the_graph_is_below_the_price_of_any_choice(zero_stage, window_share):
    graph = graph_of(asked(), zero_stage=zero_stage)
    choices = graph.graph(window_share)
    rng = np.random.default_rng(zero_stage)
    for spread in (1, 2, len(graph.prices.options)):
        used = rng.integers(0, len(graph.prices.options), spread)
        drawn = tuple(rng.choice(used, len(graph.places)).tolist())
        found = graph.price(drawn)
        assert choices.time_s(drawn) <= found.total_s * (1 + 1e-9)
        fixed = (
            found.memory[MemoryPart.LOGITS]
            + found.memory[MemoryPart.TEMPORARY]
            + found.memory[MemoryPart.BUFFERS]
            + found.memory[MemoryPart.MARGIN]
        )
        fixed = fixed + found.memory[MemoryPart.GATHERED]
        held = float(np.max(found.memory_bytes - fixed))
        assert choices.num_bytes(drawn) >= held * (1 - 1e-9)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_the_best_options_are_proven_and_no_worse_than_one_for_all(zero_stage, recompute):
    """Latencies are no part of the bound, so sequences are long here."""
    what = asked(sequence_length=4096, capacity_bytes=64e9)
    graph = graph_of(what, zero_stage=zero_stage, recompute=recompute)
    found, one = assign(graph), best_uniform(graph)
    assert found.assigned.total_s <= one.total_s
    assert found.lower_bound_s <= found.assigned.total_s
    assert found.gap < 0.03


def test_less_memory_takes_no_less_time():
    times = []
    free = assign(graph_of(asked())).assigned
    for share in (1.0, 0.9, 0.8, 0.7):
        found = assign(graph_of(asked(capacity_bytes=free.memory_bytes * share)))
        if found is not None:
            assert found.assigned.memory_bytes <= free.memory_bytes * share
            times.append(found.assigned.total_s)
    assert len(times) >= 2
    assert all(a <= b * (1 + 1e-3) for a, b in pairwise(times))


def test_nothing_fits():
    assert assign(graph_of(asked(capacity_bytes=1e6))) is None


def test_groups_of_a_layer():
    layer = asked().graph.layers[0]
    groups = operator_groups(layer)
    assert [op.name for group in groups for op in group.ops] == [op.name for op in layer.ops]
    assert [group.ops[0].name for group in groups] == [
        "attention.norm", "attention.core", "attention.output", "feed_forward.norm",
        "feed_forward.down",
    ]  # fmt: skip


def test_experts_stay_together():
    layer = asked(model(experts(4, 2, 64), num_layers=2)).graph.layers[0]
    routed = [group for group in operator_groups(layer) if group.ops[0].region == "experts"]
    assert len(routed) == 1
    assert routed[0].ops[-1].name == "experts.combine"


def test_what_passes_between_groups():
    """The residual stream goes from reader to reader; everything else from maker to reader."""
    groups = operator_groups(asked().graph.layers[0])
    pairs = [(h.first, h.second) for h in handovers(groups)]
    assert pairs == [(BEFORE, 0), (0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]
    skip = next(h for h in handovers(groups) if (h.first, h.second) == (0, 2))
    assert [tensor.name for tensor in skip.tensors] == ["layer_input"]


def shares_moved(before, after):
    return moved(before, after[None])[0]


def test_moves_by_hand():
    """Four devices in a row: from quarters to halves that two share, and turned around."""
    quarters = np.array([[[i / 4, (i + 1) / 4]] for i in range(4)])
    halves = np.array([[[i // 2 / 2, (i // 2 + 1) / 2]] for i in range(4)])
    shares = shares_moved(quarters, halves)
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = expected[2, 3] = expected[3, 2] = 0.25
    np.testing.assert_allclose(shares, expected)
    turned = shares_moved(quarters, quarters[::-1])
    np.testing.assert_allclose(turned, np.eye(4)[::-1] / 4)
    assert shares_moved(halves, quarters).sum() == 0.0


def test_busiest_link_by_hand():
    """Turned around on a line of four: the middle link carries two quarters each way."""
    what = replace(asked(), system=system(level(4, "mesh"), level(1, "mesh")))
    network = physical_network(what)
    way = pair_routes(network, np.arange(4))
    turned = np.eye(4)[::-1] / 4
    busy, latency = busiest_s(turned[None], way)
    assert busy[0] == pytest.approx(0.5 / network.bandwidth_bytes_per_s[0])
    assert latency[0] == pytest.approx(3 * network.latency_s[0])


def layouts_of(resharding, tensor, rows):
    numbers = [resharding._layout(tensor, index)[0] for index in rows]
    return numbers, np.stack([resharding.layouts._layouts[number] for number in numbers])


def test_all_that_is_needed_arrives():
    graph = graph_of(asked())
    tensor = asked().graph.layers[0].ops[0].inputs[0]
    _, layouts = layouts_of(graph.resharding, tensor, range(0, 20, 3))
    volume = (layouts[..., 1] - layouts[..., 0]).prod(axis=-1)
    for number, held in enumerate(layouts):
        shares = moved(held, layouts)
        common = np.minimum(held[..., 1], layouts[..., 1]) - np.maximum(
            held[..., 0], layouts[..., 0]
        )
        own = np.maximum(common, 0.0).prod(axis=-1)
        np.testing.assert_allclose(own + shares.sum(axis=1), volume, rtol=1e-5)
        np.testing.assert_allclose(shares[number], 0.0, atol=1e-7)


def test_moves_do_not_depend_on_the_order_in_which_they_are_asked_for():
    graph = graph_of(asked())
    tensor = asked().graph.layers[0].ops[0].inputs[0]
    _, layouts = layouts_of(graph.resharding, tensor, range(len(graph.rows)))
    once, little = (LayoutMoves(graph.resharding.layouts.routes) for _ in range(2))
    numbers = [once.number(layout) for layout in layouts]
    for end in range(1, len(layouts) + 1, 4):
        little.between([little.number(layout) for layout in layouts[:end]])
    again = [little.number(layout) for layout in layouts]
    for one, other in zip(once.between(numbers), little.between(again), strict=True):
        np.testing.assert_array_equal(one, other)
