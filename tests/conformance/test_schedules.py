"""Every pipeline schedule: its closed forms equal the replay of its own order."""

from collections import Counter
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

import meshwright.schedule as package
from meshwright.base.errors import MeshwrightError
from meshwright.schedule.pipeline_schedules import OrderedPass, TaskKind, gathers_of, schedules
from meshwright.schedule.tasks import KINDS, StageTimes, build_timeline

STAGES, CHUNKS, MICRO_BATCHES = (1, 2, 3, 4, 6), (1, 2, 3, 4), (1, 2, 3, 4, 6, 8, 12)
# forward, input gradient, weight gradient: equal, long and short weight gradients
DURATIONS = ((1.0, 1.0, 1.0), (1.0, 1.5, 0.5), (2.0, 1.0, 0.4), (0.3, 2.0, 1.9), (1.0, 0.5, 2.0))
RELEASES = {TaskKind.BACKWARD, TaskKind.BACKWARD_WEIGHT}


def shapes(name):
    """Return the legal (stages, chunks, micro-batches) of the grid."""
    return [s for s in product(STAGES, CHUNKS, MICRO_BATCHES) if schedules[name].is_legal(*s)]


def counted_in_flight(order, num_virtual_stages):
    """Return the peak of forward passes whose activations are still needed, in whole stages."""
    alive = peak = 0
    for task in order:
        alive += task.kind is TaskKind.FORWARD
        peak = max(peak, alive)
        alive -= task.kind in RELEASES
    return peak / num_virtual_stages


@pytest.mark.parametrize("name", schedules)
def test_each_task_runs_once(name):
    for p, v, m in shapes(name):
        for stage in range(p):
            order = schedules[name].order(stage, p, v, m)
            assert max(Counter(order).values()) == 1
            kinds = {task.kind for task in order}
            assert kinds in (
                {TaskKind.FORWARD, TaskKind.BACKWARD},
                {TaskKind.FORWARD, TaskKind.BACKWARD_INPUT, TaskKind.BACKWARD_WEIGHT},
            )
            assert set(order) == {
                OrderedPass(k, i, c) for k in kinds for i in range(m) for c in range(v)
            }


@pytest.mark.parametrize("name", schedules)
def test_closed_form_equals_timeline(name):
    """m (t_f + t_b) + bubble, and with blocking sends 2 m v of them as well."""
    entry = schedules[name]
    for (p, v, m), (tf, ti, tw), send_s in product(shapes(name), DURATIONS, (0.0, 0.25)):
        send_s *= p > 1
        line = build_timeline(entry, p, v, m, StageTimes(tf, ti, tw, send_s, blocking_sends=True))
        expected = m * (tf + ti + tw) + entry.bubble_s(tf, ti, tw, send_s, p, v, m)
        expected += m * entry.sends_per_micro_batch(v) * send_s
        assert line.makespan_s == pytest.approx(expected, abs=1e-9), (p, v, m, tf, ti, tw, send_s)


@pytest.mark.parametrize("name", schedules)
def test_asynchronous_sends_expose_what_the_form_says(name):
    entry = schedules[name]
    for (p, v, m), (tf, ti, tw) in product(shapes(name), DURATIONS[:3]):
        send_s = 0.01 * (p > 1)
        line = build_timeline(entry, p, v, m, StageTimes(tf, ti, tw, send_s))
        expected = m * (tf + ti + tw) + entry.bubble_s(tf, ti, tw, send_s, p, v, m)
        expected += entry.num_exposed_sends(p, v, m) * send_s
        assert line.makespan_s == pytest.approx(expected, abs=1e-9), (p, v, m, tf, ti, tw)


@pytest.mark.parametrize("name", schedules)
def test_dependencies_hold_and_stages_do_one_thing_at_a_time(name):
    p, v, m = [s for s in shapes(name) if s[0] == 4][-1]
    times = StageTimes(1.0, 1.5, 0.5, send_s=0.25)
    line = build_timeline(schedules[name], p, v, m, times)
    kinds = [KINDS[kind] for kind in line.kind]
    rows = list(zip(line.stage, kinds, line.micro_batch, line.chunk, strict=True))
    start = dict(zip(rows, line.start_s, strict=True))
    end = dict(zip(rows, line.end_s, strict=True))
    for stage, kind, i, chunk in rows:
        position = chunk * p + stage
        if kind == "F" and position:
            before = ((position - 1) % p, "F", i, (position - 1) // p)
            assert start[stage, kind, i, chunk] >= end[before] + 0.25
        if kind in ("B", "BI"):
            assert start[stage, kind, i, chunk] >= end[stage, "F", i, chunk]
            if position < p * v - 1:
                behind = ((position + 1) % p, kind, i, (position + 1) // p)
                assert start[stage, kind, i, chunk] >= end[behind] + 0.25
        if kind == "BW":
            assert start[stage, kind, i, chunk] >= end[stage, "BI", i, chunk]
    for stage in range(p):
        mine = np.flatnonzero(line.stage == stage)
        assert all(line.start_s[b] >= line.end_s[a] for a, b in pairwise(mine))


@pytest.mark.parametrize("name", schedules)
def test_counted_in_flight_equals_formula(name):
    entry = schedules[name]
    for p, v, m in shapes(name):
        for stage in range(p):
            counted = counted_in_flight(entry.order(stage, p, v, m), v)
            assert counted == pytest.approx(entry.peak_in_flight(stage, p, v, m), abs=1e-12)


@pytest.mark.parametrize("name", schedules)
def test_scalar_equals_column(name):
    entry = schedules[name]
    p, v, m = (np.array(c, dtype=float) for c in zip(*shapes(name), strict=True))
    fill = np.linspace(0.1, 2.0, len(p))
    columns = (
        entry.bubble_s(fill, fill * 1.3, fill * 0.7, fill * 0.1, p, v, m),
        entry.peak_in_flight(p - 1, p, v, m),
        entry.num_exposed_sends(p, v, m),
        entry.is_legal(p, v, m),
    )
    for row in range(len(p)):
        a, s = (float(p[row]), float(v[row]), float(m[row])), float(fill[row])
        assert columns[0][row] == entry.bubble_s(s, s * 1.3, s * 0.7, s * 0.1, *a)
        assert columns[1][row] == entry.peak_in_flight(a[0] - 1, *a)
        assert columns[2][row] == entry.num_exposed_sends(*a)
        assert columns[3][row] == entry.is_legal(*a)


@pytest.mark.parametrize("name", schedules)
def test_twice_the_durations_is_twice_the_bubble(name):
    entry = schedules[name]
    for shape in shapes(name):
        assert 2 * entry.bubble_s(1.0, 1.5, 0.5, 0.1, *shape) == entry.bubble_s(
            2.0, 3.0, 1.0, 0.2, *shape
        )


@pytest.mark.parametrize("name", schedules)
def test_one_stage_has_no_bubble(name):
    assert schedules[name].bubble_s(1.0, 1.0, 1.0, 0.0, 1, 1, 8) == 0


def test_a_wrong_order_is_a_deadlock():
    class Backwards(schedules["gpipe"]):
        @staticmethod
        def order(stage, num_stages, num_virtual_stages, num_micro_batches):
            """Gradient before forward pass."""
            return [OrderedPass(TaskKind.BACKWARD, 0, 0), OrderedPass(TaskKind.FORWARD, 0, 0)]

    with pytest.raises(MeshwrightError, match="stage 0 cannot start B of micro-batch 0"):
        build_timeline(Backwards, 2, 1, 1, StageTimes(1.0, 1.0, 1.0))


def test_every_module_registers_a_schedule():
    modules = {path.stem for path in Path(package.__path__[0]).glob("*.py")}
    shared = {"__init__", "registry", "tasks", "timeline"}
    registered = {
        entry.__module__.rpartition(".")[2] for entry in map(schedules.__getitem__, schedules)
    }
    assert modules - shared == registered


@pytest.mark.parametrize("name", schedules)
def test_the_most_counted_gathers_of_a_stage_equal_the_formula(name):
    entry = schedules[name]
    for p, v, m in [*shapes(name), *[(4, v, m) for v in (5, 7, 8) for m in (4, 12, 32)]]:
        if not entry.is_legal(p, v, m):
            continue
        orders = [entry.order(stage, p, v, m) for stage in range(p)]
        counted = max(sum(sum(one) for one in gathers_of(order, v)) for order in orders)
        assert counted == pytest.approx(v * sum(entry.num_gathers(p, v, m)), rel=1e-12)
