"""Every pipeline schedule as the timeline of a step: order, dependencies, sums, and memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import MODELS, level, problem, system

from meshwright.base.arrays import number_at
from meshwright.cost.pipeline import POSITIONS
from meshwright.cost.step import price_one
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.sharding.strategy import PlanOptions, Recompute, ScheduleKind, make_strategy
from meshwright.train.timeline import TASKS, StepTask, step_timeline

FORWARD, BACKWARD, INPUT, WEIGHT = (
    TASKS.index(task)
    for task in (
        StepTask.FORWARD, StepTask.BACKWARD, StepTask.BACKWARD_INPUT, StepTask.BACKWARD_WEIGHT,
    )
)  # fmt: skip


@st.composite
def played(draw, name):
    """Draw a priced strategy under a schedule, with its timeline."""
    stages = draw(st.sampled_from((1, 2, 4)))
    chunks = draw(st.sampled_from((2, 3))) if name == "interleaved" else 1
    multiple = stages if name == "interleaved" else 1
    count = multiple * draw(st.integers(1, 6))
    if not schedules[name].is_legal(stages, chunks, count):
        stages, count = 2, 2 * count
    strategy = make_strategy(
        pp=stages, num_virtual_stages=chunks, tp=draw(st.sampled_from((1, 2))), dp_shard=2
    )
    plan_options = PlanOptions(
        schedule=ScheduleKind(name),
        zero_stage=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(Recompute)),
        embedding_layers=draw(st.integers(0, 1)),
        head_layers=draw(st.integers(0, 1)),
    )
    layers = 3 * stages * chunks - plan_options.embedding_layers - plan_options.head_layers
    spec = draw(st.sampled_from(MODELS))(layers)
    asked = problem(spec, system(level(4), level(4, bandwidth=1e10)), global_batch_size=2 * count)
    priced = price_one(asked, plan_options, strategy)
    network = asked.network(plan_options.axis_order, priced.strategy)
    return (
        step_timeline(None, asked, priced, network, fidelity="closed_form"),
        priced,
        chunks,
        count,
    )


def check_one_at_a_time(line):
    """Tasks of a stage come one after the other; with what is idle they fill the step."""
    step_s = line.step_time_s
    for stage in range(line.num_stages):
        mine = line.stage == stage
        start_s, end_s = line.start_s[mine], line.end_s[mine]
        assert (end_s > start_s).all()
        assert (start_s[1:] >= end_s[:-1] - 1e-9 * step_s).all()
        assert start_s[0] >= 0
        edges_s = np.concatenate(([0.0], np.stack([start_s, end_s], axis=1).ravel(), [step_s]))
        gaps_s = np.diff(edges_s)[::2]
        assert gaps_s.sum() == pytest.approx(line.bubble_s[stage], abs=1e-9 * step_s)


def check_order(line, chunks, count):
    """All passes are there once, and each comes after what it needs."""
    stages = line.num_stages
    last = stages * chunks - 1
    splits = INPUT in line.task
    shape = (stages * chunks, count)
    begin, end = {}, {}
    for kind in (FORWARD, INPUT, WEIGHT) if splits else (FORWARD, BACKWARD):
        rows = line.task == kind
        at = (line.chunk[rows] * stages + line.stage[rows], line.micro_batch[rows])
        assert len(set(zip(*map(np.ndarray.tolist, at), strict=True))) == rows.sum()
        begin[kind], end[kind] = np.full(shape, np.nan), np.full(shape, np.nan)
        begin[kind][at], end[kind][at] = line.start_s[rows], line.end_s[rows]
        assert not np.isnan(begin[kind]).any()
    step_s, back = line.step_time_s, INPUT if splits else BACKWARD
    slack = 1e-9 * step_s
    assert (begin[FORWARD][1:] >= end[FORWARD][:-1] - slack).all()
    assert (begin[back][:-1] >= end[back][1:] - slack).all()
    assert (begin[back][last] >= end[FORWARD][last] - slack).all()
    if splits:
        assert (begin[WEIGHT] >= end[INPUT] - slack).all()
    # The sums of gradients and the update come last.
    after = np.isin(line.task, [TASKS.index(StepTask.OPTIMIZER), TASKS.index(StepTask.JITTER)])
    passes = line.micro_batch >= 0
    assert line.start_s[after].min() >= line.end_s[passes].max() - slack


def check_memory(line, priced):
    """The most that any stage ever holds is the printed memory, to the last digit."""
    peaks = [memory.peak_bytes for memory in line.memory]
    assert max(peaks) == number_at(priced.step.memory_bytes)
    of_position = dict(zip(POSITIONS, priced.step.memory, strict=True))
    assert peaks[0] == number_at(of_position["first"].total_bytes)
    if len(peaks) > 1:
        assert peaks[-1] == number_at(of_position["last"].total_bytes)
    for memory in line.memory:
        assert (np.diff(memory.at_s) >= 0).all()
        assert memory.total_bytes[0] == pytest.approx(memory.resident_bytes)
        assert memory.total_bytes[-1] == pytest.approx(memory.resident_bytes)
        assert (memory.total_bytes >= memory.resident_bytes * (1 - 1e-12)).all()


@pytest.mark.parametrize("name", schedules)
@settings(max_examples=25)
@given(st.data())
def test_a_step_over_time(name, data):
    line, priced, chunks, count = data.draw(played(name))
    check_one_at_a_time(line)
    check_order(line, chunks, count)
    check_memory(line, priced)
    assert line.num_micro_batches == count
    assert line.priced_s == number_at(priced.step.time.total_s)
    if line.num_stages == 1:
        assert line.step_time_s == pytest.approx(line.priced_s, rel=1e-12)
