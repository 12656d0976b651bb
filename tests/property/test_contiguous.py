"""Laws of contiguous cuts and of groups that go round a row of stages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.decode_groups import decode_schedule, measured_rates

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.workloads import load_optimizer
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.schedule.tasks import StageTimes as PassTimes
from meshwright.schedule.tasks import build_timeline
from meshwright.spec.workload import Training
from meshwright.sram.contiguous import (
    LayerLoads,
    LayerTimes,
    StageCapacities,
    StageRuns,
    balanced_stops,
    greedy_stops,
    least_stages,
)
from meshwright.sram.price import StageSeconds, rates, round_s

SIZES = st.lists(st.integers(1, 10**9), min_size=1, max_size=60)


def row(sizes, transients=None):
    column = np.array(sizes, dtype=float)
    return LayerLoads(column, np.array(transients or [0] * len(sizes), dtype=float), 0 * column)


@given(SIZES, st.floats(1, 20), st.integers(2, 1000))
def test_what_is_scaled_is_cut_alike(sizes, room, factor):
    stage_capacities = StageCapacities((room * max(sizes),))
    larger = StageCapacities((factor * stage_capacities.capacity_bytes[0],))
    assert greedy_stops(row(sizes), stage_capacities) == greedy_stops(
        row([factor * size for size in sizes]), larger
    )


@given(SIZES, st.floats(1, 5), st.floats(1, 3))
def test_more_room_never_needs_more_stages(sizes, room, more):
    capacity = room * max(sizes)
    small, large = (
        greedy_stops(row(sizes), StageCapacities((c,))) for c in (capacity, more * capacity)
    )
    assert small[-1] == large[-1] == len(sizes)
    assert least_stages(row(sizes), StageCapacities((capacity,))) <= len(small) >= len(large)


@given(SIZES, st.data())
def test_greedy_is_maximal_whatever_the_transients(sizes, data):
    transients = data.draw(st.lists(st.integers(0, 10**9), min_size=len(sizes),
                                    max_size=len(sizes)))  # fmt: skip
    loads = row(sizes, transients)
    capacity = float(data.draw(st.integers(2 * 10**9, 10**10)))
    first = 0
    for stop in greedy_stops(loads, StageCapacities((capacity,))):
        assert loads.load_bytes(first, stop) <= capacity
        assert stop == len(sizes) or loads.load_bytes(first, stop + 1) > capacity
        first = stop


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40), st.floats(1, 4))
def test_what_the_greedy_cut_fits_fits_the_others_too(sizes, room):
    """Also where sums of fractions are rounded."""
    loads, column = row(sizes, sizes), np.array(sizes)
    stage_capacities = StageCapacities((room * 2 * max(sizes), room * 3 * max(sizes)))
    stops = greedy_stops(loads, stage_capacities)
    times = [LayerTimes(column, 0 * column, 0 * column)]
    assert balanced_stops(loads, stage_capacities, len(stops)) is not None
    assert np.isfinite(
        StageRuns(loads, stage_capacities, times, len(sizes)).best(np.maximum).seconds[-1]
    )


@given(SIZES, st.integers(1, 12))
def test_balance_lies_between_its_bounds(sizes, number):
    loads = row(sizes)
    stops = balanced_stops(loads, StageCapacities((float(sum(sizes)),)), number)
    runs = zip([0, *stops], stops, strict=False)
    fullest = max(float(loads.load_bytes(first, stop)) for first, stop in runs)
    assert max(sum(sizes) / number, max(sizes)) <= fullest * (1 + 1e-12)
    assert fullest <= sum(sizes) / number + max(sizes)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 64))
def test_littles_law_holds_in_every_schedule(occupied_s, num_groups, group_size):
    schedule = decode_schedule(occupied_s, num_groups, 60)
    tokens_per_s, token_s = measured_rates(schedule, group_size)
    assert token_s == pytest.approx(round_s(sum(occupied_s), max(occupied_s), num_groups))
    assert tokens_per_s * token_s == pytest.approx(num_groups * group_size)


SECONDS = st.floats(0.5, 3.0)


@given(st.lists(SECONDS, min_size=1, max_size=6), st.floats(0.5, 3.0), st.integers(1, 16))
def test_a_step_is_never_shorter_than_its_replay(forward_s, ratio, num_groups):
    """Where backward takes the same multiple of forward on all stages."""
    backward_s = [ratio * seconds for seconds in forward_s]
    stages = list(zip(forward_s, backward_s, strict=True))
    work = Training(global_batch_size=num_groups, sequence_length=8,
                    optimizer=load_optimizer("megatron-adam"))  # fmt: skip
    constants = load_calibration("hopper", "uncalibrated")
    seconds = [StageSeconds(sum(stage), 0.0, 0.0) for stage in stages]
    price = rates(work, constants, seconds, {"work_s": sum(map(sum, stages))},
                  num_groups=num_groups, group_devices=1, replicas=1)  # fmt: skip
    step_s = price.latency_s - price.time_parts_s["jitter_s"]
    times = PassTimes(forward_s, backward_s, [0.0] * len(stages))
    replayed = build_timeline(schedules["1f1b"], len(stages), 1, num_groups, times).makespan_s
    slowest_s = max(map(sum, stages))
    assert num_groups * slowest_s * (1 - 1e-9) <= replayed <= step_s * (1 + 1e-9)
    if len(set(stages)) == 1:
        assert replayed == pytest.approx(step_s)
