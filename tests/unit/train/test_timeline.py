"""A step over time: it takes what it is priced at, and holds what is printed."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import experts, level, model, problem, system

from meshwright.base.arrays import number_at
from meshwright.cost.parts import TimePart
from meshwright.cost.step import price_one
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.sharding.strategy import PlanOptions, Recompute, ScheduleKind, make_strategy
from meshwright.train.timeline import TASKS, StepTask, step_timeline

PARTS = {
    StepTask.TP: TimePart.TP_COMM, StepTask.DP: TimePart.DP_COMM,
    StepTask.OPTIMIZER: TimePart.OPTIMIZER, StepTask.RECOMPUTE: TimePart.RECOMPUTE,
    StepTask.JITTER: TimePart.JITTER, StepTask.LAUNCH: TimePart.LAUNCH,
}  # fmt: skip


def timeline(asked, strategy, plan_options):
    """Return the timeline and the price of a strategy."""
    priced = price_one(asked, plan_options, strategy)
    network = asked.network(plan_options.axis_order, priced.strategy)
    return step_timeline(None, asked, priced, network, fidelity="closed_form"), priced


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_without_a_pipeline_a_step_takes_what_it_is_priced_at(zero, recompute):
    plan_options = PlanOptions(zero_stage=zero, recompute=recompute)
    line, priced = timeline(problem(), make_strategy(tp=2, dp_shard=4), plan_options)
    assert line.step_time_s == pytest.approx(line.priced_s, rel=1e-12)
    seconds = line.seconds_by_task()
    for task, part in PARTS.items():
        found = float(seconds.get(task, np.zeros(1))[0])
        assert found == pytest.approx(number_at(priced.step.time[part]), rel=1e-9, abs=1e-15)
    passes = seconds[StepTask.FORWARD] + seconds[StepTask.BACKWARD]
    assert float(passes[0]) == pytest.approx(
        number_at(sum(priced.step.time[part] for part in (TimePart.COMPUTE, TimePart.MAIN_MEMORY)))
    )


@pytest.mark.parametrize("name", schedules)
def test_equal_stages_take_what_they_are_priced_at(name):
    """Layers without edges are the same on all stages: played and closed form agree."""
    chunks = 2 if name == "interleaved" else 1
    bare = model(num_layers=8, vocab_size=1)
    asked = problem(bare, system(level(4)), global_batch_size=8)
    plan_options = PlanOptions(schedule=ScheduleKind(name), zero_stage=0)
    strategy = make_strategy(pp=4, num_virtual_stages=chunks)
    line, _ = timeline(asked, strategy, plan_options)
    # The head of a vocabulary of one is left: a chunk of the last stage takes a little longer.
    # Its launches are an eighth of a stage, which delayed weight gradients fill unevenly.
    slack = 0.01 if name == "zero_bubble" else 0.002
    assert line.difference == pytest.approx(0.0, abs=slack)


def test_a_slow_stage_is_played_at_its_own_pace():
    """1F1B of two stages, one micro-batch: the price and the play are the sum of both passes."""
    asked = problem(model(num_layers=3), system(level(2)), global_batch_size=1)
    line, _ = timeline(asked, make_strategy(pp=2), PlanOptions(schedule=ScheduleKind.ONE_F_ONE_B))
    assert line.step_time_s == pytest.approx(line.priced_s, rel=1e-9)
    busy = line.busy_s
    assert busy[0] != busy[1]
    assert line.bubble_s == pytest.approx(line.step_time_s - busy)


def test_weight_gradients_are_tasks_of_their_own_where_the_schedule_splits_them():
    asked = problem(on=system(level(4)))
    split = PlanOptions(schedule=ScheduleKind.ZERO_BUBBLE)
    line, _ = timeline(asked, make_strategy(pp=4), split)
    whole, _ = timeline(asked, make_strategy(pp=4), PlanOptions(schedule=ScheduleKind.ONE_F_ONE_B))
    ours, theirs = line.seconds_by_task(), whole.seconds_by_task()
    gradients = ours[StepTask.BACKWARD_INPUT] + ours[StepTask.BACKWARD_WEIGHT]
    assert gradients == pytest.approx(theirs[StepTask.BACKWARD])
    assert StepTask.BACKWARD not in ours


def test_experts_hidden_by_another_micro_batch_are_as_priced():
    asked = problem(model(experts(4, 2), num_layers=4), system(level(4)), global_batch_size=16)
    plan_options = PlanOptions(
        schedule=ScheduleKind.INTERLEAVED, overlap_expert_parallel=True, zero_stage=1
    )
    strategy = make_strategy(pp=2, dp_shard=2, ep=2, num_virtual_stages=2)
    line, priced = timeline(asked, strategy, plan_options)
    alone, _ = timeline(asked, strategy, replace(plan_options, overlap_expert_parallel=False))
    shown = line.seconds_by_task().get(StepTask.EP, np.zeros(2))
    before = alone.seconds_by_task()[StepTask.EP]
    assert (shown < before).all()
    assert shown.max() == pytest.approx(number_at(priced.step.time[TimePart.EP_COMM]), rel=1e-9)


def test_tasks_of_no_length_are_left_out():
    line, _ = timeline(problem(), make_strategy(dp_shard=8), PlanOptions())
    assert (line.end_s > line.start_s).all()
    assert StepTask.TP not in {TASKS[number] for number in line.task}
