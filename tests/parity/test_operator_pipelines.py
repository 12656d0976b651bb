"""Pipelines of stages whose operators choose: prices, bounds and choices, each by two routes."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from sampled import one_in
from small_problems import dense, experts, gqa, level, model, problem, system

from meshwright.cost.parts import MemoryPart, TimePart
from meshwright.cost.step import price_columns
from meshwright.sharding.strategy import PlanOptions, Recompute, ScheduleKind, make_strategy, stack
from meshwright.wafer.operators.assignment import assign, graph_of, model_graph
from meshwright.wafer.operators.model import fills_of
from meshwright.wafer.operators.options import frame_of
from meshwright.wafer.price import choice_network, physical_network

GRID = system(level(4, "mesh"), level(2, "mesh"), capacity_bytes=4e9)
SMALL = model(num_layers=4)
UNEVEN = model(num_layers=5, tied_embeddings=True)
MIXED = model(dense(gqa(8, 2)), dense(gqa(8, 4)), num_layers=4)
ROUTED = model(dense(), experts(4, 2, 64), num_layers=4)
PIPELINES = (
    (2, 1, ScheduleKind.ONE_F_ONE_B), (4, 1, ScheduleKind.GPIPE), (2, 2, ScheduleKind.INTERLEAVED),
    (2, 1, ScheduleKind.ZERO_BUBBLE), (4, 1, ScheduleKind.ZERO_BUBBLE),
)  # fmt: skip
"""Stages, chunks of each, schedule."""


def graph_of_pipeline(spec, pipeline, on=GRID, num_sequences=4, **choices):
    what = problem(spec, on, sequence_length=256, global_batch_size=32)
    stages, chunks, schedule = pipeline
    each = 8 // stages
    strategy = make_strategy(
        pp=stages, num_virtual_stages=chunks, dp_shard=each, micro_batch_size=num_sequences // each
    )
    plan_options = PlanOptions(**({"zero_stage": 1, "schedule": schedule} | choices))
    frame = frame_of(what, strategy, plan_options)
    return model_graph(what, frame, physical_network(what))


CASES = [
    pytest.param(*one)
    for one in product((SMALL, UNEVEN, MIXED, ROUTED), PIPELINES, (1, 0, 2, 3), Recompute)
    if one[0] is not UNEVEN or one[1][1] == 1
]


@pytest.mark.parametrize(("spec", "pipeline", "zero_stage", "recompute"), one_in(24, CASES))
def test_one_option_for_all_is_the_strategy(spec, pipeline, zero_stage, recompute):
    graph = graph_of_pipeline(spec, pipeline, zero_stage=zero_stage, recompute=recompute)
    what, options = graph.prices.problem, graph.prices.options
    for index in range(0, len(options), 5):
        found = graph.price((index,) * len(graph.places))
        strategy, plan_options = options.strategy(index), options.option_sets[index]
        laid = choice_network(what, [(strategy, [options.choices[index]])])
        alone = price_columns(what, plan_options, stack([strategy]), laid)
        for name in TimePart:
            expected = np.asarray(alone.step.time[name]).reshape(-1)[0]
            assert np.ravel(found.time[name])[0] == pytest.approx(expected, rel=1e-9, abs=1e-15)
        assert found.reshard_s == 0.0
        fullest = max(alone.step.memory, key=lambda use: float(np.max(use.total_bytes)))
        for name in MemoryPart:
            expected = np.asarray(fullest[name]).reshape(-1)[0]
            assert np.ravel(found.memory[name])[0] == pytest.approx(expected)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
def test_the_graph_is_below_the_price_of_any_choice(pipeline):
    rng = np.random.default_rng(pipeline[0])
    for spec, zero_stage in ((SMALL, 1), (MIXED, 3)):
        graph = graph_of_pipeline(spec, pipeline, zero_stage=zero_stage)
        for window_share, spread in product((0.0, 1.0), (1, 2, len(graph.rows))):
            used = rng.integers(0, len(graph.rows), spread)
            drawn = tuple(rng.choice(used, len(graph.places)).tolist())
            bound_s = graph.graph(window_share).time_s(drawn)
            assert bound_s <= graph.price(drawn).total_s * (1 + 1e-9)


def every_choice_s(graph):
    """Return the least price over all choices that fit, one by one."""
    capacity = graph.prices.problem.system.chip.main_memory.capacity_bytes
    best = np.inf
    for choices in product(range(len(graph.rows)), repeat=len(graph.places)):
        found = graph.price(choices)
        if found.memory_bytes <= capacity:
            best = min(best, found.total_s)
    return best


def few_options(graph, number):
    """Return a graph of the options that are fastest as a whole and for some group."""
    costs = np.stack([load.time_s for load in graph.graph_nodes(0.0)])
    rows = np.unique([costs.sum(axis=0).argsort()[:1], costs.argmin(axis=1)[:number]])[:number]
    return graph_of(graph.every_way, graph.rows[rows], graph.resharding)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_all_assignments_of_all_pipelines_one_by_one(recompute):
    """Two layers: three options for each of seven groups, in stages of one and of two layers."""
    found, every = [], []
    for pipeline in ((1, 1, ScheduleKind.ONE_F_ONE_B), *PIPELINES[:1], PIPELINES[3]):
        spec = model(num_layers=2 if pipeline[0] > 1 else 1)
        graph = few_options(graph_of_pipeline(spec, pipeline, recompute=recompute), 3)
        found.append(assign(graph).assigned.total_s)
        every.append(every_choice_s(graph))
        assert found[-1] == pytest.approx(every[-1], rel=5e-3)
    assert min(found) == pytest.approx(min(every), rel=5e-3)


def test_weights_of_the_bubble_by_hand():
    """Four stages: a second of another stage is waited for once, and half as long in two chunks."""
    frame = graph_of_pipeline(SMALL, PIPELINES[1]).frame
    for (stages, chunks, kind), expected in zip(
        PIPELINES, [(1, 1, 2), (1, 1, 6), (0.5, 0.5, 2), (1, -1, 2), (1, -1, 6)], strict=True
    ):
        own = replace(frame.plan_options, schedule=kind)
        asked = replace(frame, plan_options=own, num_stages=stages, num_virtual_stages=chunks)
        fills = fills_of(asked, 8.0)
        assert (fills.forward, fills.weight, fills.sends) == pytest.approx(expected)


def test_equal_stages_choose_alike_and_unequal_ones_by_kind():
    """Two chunks of two stages: layers 0 and 1 of the model are equal, and 2 and 3."""
    even = graph_of_pipeline(SMALL, PIPELINES[2])
    assert even.layers.layer_of == (0, 0, 1, 1)
    assert even.layers.stage_of == (0, 1, 0, 1)
    assert len(even.places) == 2 + 2 * 5
    assert graph_of_pipeline(UNEVEN, PIPELINES[0]).layers.layer_of == (0,) * 5
