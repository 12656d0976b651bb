"""The simulated step of a plan with a strategy for each operator."""

from dataclasses import replace

import pytest
from placed_problems import grid_problem, placed, simulated
from small_problems import experts, model

from meshwright.base.arrays import number_at
from meshwright.network.simulation.tasks import critical_path, seconds_by_track
from meshwright.sharding.strategy import (
    PlanOptions,
    Recompute,
    ScheduleKind,
    Streamed,
    make_strategy,
)
from meshwright.train.answer import OperatorOption, OperatorPlan
from meshwright.wafer.operators.prices import places_of
from meshwright.wafer.operators.simulation import simulate_operators
from meshwright.wafer.price import physical_network
from meshwright.wafer.simulation import RESHARD

ONE = PlanOptions(streamed=Streamed.WEIGHTS)
WAITS = replace(ONE, overlap_data_parallel=False)


def option_of(price):
    """Return a placed strategy as an option of operators."""
    nesting = price.nesting
    used = [(a, s) for a, s in zip(nesting.axes, nesting.shapes, strict=True) if max(s) > 1]
    return OperatorOption(
        text="",
        strategy=price.strategy,
        plan_options=replace(price.plan_options, axis_order=nesting.axes),
        axes=tuple(axis for axis, _ in used),
        shapes={axis: shape[::-1] for axis, shape in used},
    )


def operators_of(asked, prices, assignment, reshard_s=0.0):
    """Return a plan whose parts are those of the first placed strategy."""
    parts = {**prices[0].contended.step.time.row(), "reshard_s": reshard_s}
    strategy = prices[0].strategy
    return OperatorPlan(
        options=tuple(option_of(price) for price in prices), runs=(), assignment=assignment,
        num_sequences=int(strategy.dp * strategy.micro_batch_size), fidelity="contended",
        step_time_s=sum(parts.values()), time_parts_s=parts, memory_bytes=0.0, closed_form_s=0.0,
        closed_form_bound_s=0.0, lower_bound_s=0.0, num_options=len(prices), search_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("degrees", "plan_options"),
    [
        ({"tp": 8}, replace(ONE, sequence_parallel=False)),
        ({"dp_shard": 8}, replace(WAITS, zero_stage=1)),
        ({"dp_shard": 8}, replace(WAITS, zero_stage=3, recompute=Recompute.FULL)),
        ({"tatp": 8}, PlanOptions(streamed=Streamed.INPUTS)),
        ({"tatp": 4, "dp_shard": 2}, ONE),
        ({"tp": 4, "cp": 2}, ONE),
        ({"pp": 2, "dp_shard": 4}, replace(WAITS, zero_stage=1)),
        ({"pp": 4, "tatp": 2}, replace(ONE, schedule=ScheduleKind.ZERO_BUBBLE)),
        (
            {"pp": 2, "num_virtual_stages": 2, "tp": 4},
            replace(ONE, schedule=ScheduleKind.INTERLEAVED),
        ),
    ],
)
def test_one_option_for_all_takes_what_its_strategy_takes(degrees, plan_options):
    """Operators that send nothing join the one before them, here within a group alone."""
    asked, strategy = grid_problem(4, 2), make_strategy(**degrees)
    price = placed(asked, strategy, plan_options)
    expected = simulated(asked, strategy, plan_options, price)[1]
    plan = operators_of(asked, [price], (0,) * len(places_of(asked)))
    found = simulate_operators(asked, plan, physical_network(asked))
    assert found.step_time_s == pytest.approx(expected.step_time_s, rel=2e-2)
    assert found.time_parts_s["reshard_s"] == 0.0


def test_one_option_for_all_of_a_model_with_experts():
    asked = grid_problem(4, 2, spec=model(experts(4, 2, 64), num_layers=4))
    strategy = make_strategy(dp_shard=8, ep=4)
    price = placed(asked, strategy, WAITS)
    expected = simulated(asked, strategy, WAITS, price)[1]
    plan = operators_of(asked, [price], (0,) * len(places_of(asked)))
    found = simulate_operators(asked, plan, physical_network(asked))
    assert found.step_time_s == pytest.approx(expected.step_time_s, rel=2e-2)


def test_passing_the_residual_stream_by_hand():
    """Two sequences: each device has one, then half of each: a quarter of the tensor goes each way,
    and its gradient comes back."""
    asked = grid_problem(2, 1, spec=model(num_layers=4), global_batch_size=4)
    apart, within = (
        placed(asked, make_strategy(**degrees), replace(WAITS, zero_stage=1))
        for degrees in ({"dp_shard": 2}, {"cp": 2, "micro_batch_size": 2})
    )
    places = places_of(asked)
    half = len(places) // 2
    assert places[half][1] == 0  # the third layer begins
    assignment = (0,) * half + (1,) * (len(places) - half)
    plan = operators_of(asked, [apart, within], assignment)
    step = simulate_operators(asked, plan, physical_network(asked))
    tokens = 2 * asked.workload.sequence_length
    num_bytes = tokens * asked.model.hidden_size * asked.rates.activation_bytes
    passes = number_at(apart.contended.pipeline.num_micro_batches)
    assert passes == 2
    expected_s = passes * 2 * num_bytes / 4 / 1e11
    path = critical_path(step.graph, step.timeline)
    assert seconds_by_track(step.graph, step.timeline, path)[RESHARD] == pytest.approx(expected_s)
    assert step.time_parts_s["reshard_s"] == pytest.approx(expected_s, rel=0.05)
