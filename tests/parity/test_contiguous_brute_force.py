"""Cuts into contiguous stages against all cuts, on small random rows; no mismatch is allowed."""

from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from sampled import sampled

from meshwright.sram.contiguous import (
    LayerLoads,
    LayerTimes,
    StageCapacities,
    StageRuns,
    balanced_stops,
    fastest_cut,
    greedy_stops,
    least_stages,
    too_large,
)

INSTANCES = 500
BATCHES = sampled(range(0, INSTANCES, 50), 1)


def instance(seed):
    """Return a row of up to 8 layers, stage_capacities, and the times of the stages."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    kinds = rng.integers(0, 2, 3).tolist()
    loads = LayerLoads(
        rng.integers(1, 12, n).astype(float),
        kinds[0] * rng.integers(0, 6, n).astype(float),
        kinds[1] * rng.integers(0, 4, n).astype(float),
    )
    most = int(rng.integers(1, 5)) if kinds[1] else 1
    stage_capacities = rng.integers(4, 30, 4 if kinds[2] else 1).astype(float)
    times = [
        LayerTimes(rng.integers(1, 9, n) / 1.0, rng.integers(0, 3, n) / 1.0,
                   rng.integers(0, 9, n) / 1.0)
        for _ in range(int(rng.integers(1, 4)))
    ]  # fmt: skip
    return loads, StageCapacities(tuple(stage_capacities.tolist()), most), times


def plain_load(loads, first, stop, in_flight):
    """Return the load of a run from its definition."""
    if first == stop:
        return 0
    run = slice(first, stop)
    kept = in_flight * loads.kept_bytes[run].sum()
    return loads.resident_bytes[run].sum() + kept + loads.transient_bytes[run].max()


def runs(stops):
    return list(pairwise([0, *stops]))


def all_cuts(num_layers, num_stages):
    """Yield the stops of every cut, empty stages included."""
    for inner in combinations_with_replacement(range(num_layers + 1), num_stages - 1):
        yield [*inner, num_layers]


def shares(loads, stage_capacities, stops):
    """Return the load of each stage over its room."""
    capacities, counts = (
        stage_capacities.capacities(len(stops)),
        stage_capacities.in_flight(len(stops)),
    )
    return [
        plain_load(loads, first, stop, count) / room
        for (first, stop), room, count in zip(runs(stops), capacities, counts, strict=True)
    ]


def fewest(loads, stage_capacities, most):
    """Return the least number of stages that some cut fits, or None: all places reached by any."""
    capacities, counts, reached = (
        stage_capacities.capacities(most),
        stage_capacities.in_flight(most),
        {0},
    )
    for stage, (room, count) in enumerate(zip(capacities, counts, strict=True), start=1):
        reached = {
            stop
            for first in reached
            for stop in range(first, len(loads) + 1)
            if plain_load(loads, first, stop, count) <= room
        }
        if len(loads) in reached:
            return stage
    return None


@pytest.mark.parametrize("start", BATCHES)
def test_greedy_needs_the_fewest_stages(start):
    fitting = 0
    for seed in range(start, start + 50):
        loads, stage_capacities, _ = instance(seed)
        stops = greedy_stops(loads, stage_capacities)
        needed = fewest(loads, stage_capacities, len(loads) + len(stage_capacities.capacity_bytes))
        assert needed == (len(stops) if stops[-1] == len(loads) else None)
        if needed is not None:
            fitting += 1
            assert max(shares(loads, stage_capacities, stops)) <= 1
            assert least_stages(loads, stage_capacities) <= needed
            assert not len(too_large(loads, stage_capacities))
    assert fitting >= 10


@pytest.mark.parametrize("start", BATCHES)
def test_balance_is_the_least_largest_share(start):
    found = 0
    for seed in range(start, start + 50):
        loads, stage_capacities, _ = instance(seed)
        for number in range(1, min(len(loads), 4) + 1):
            best = min(
                max(shares(loads, stage_capacities, cut)) for cut in all_cuts(len(loads), number)
            )
            stops = balanced_stops(loads, stage_capacities, number)
            assert (stops is None) == (best > 1)
            if stops is not None:
                found += 1
                assert max(shares(loads, stage_capacities, stops)) == pytest.approx(best, rel=1e-12)
    assert found >= 10


def seconds_of(loads, stage_capacities, times, cut):
    """Return the seconds of each stage of a cut that is not empty; infinite without room."""
    if max(shares(loads, stage_capacities, cut)) > 1:
        return [np.inf]
    return [
        float(own.layer_s[first:stop].sum() + own.entry_s[first] + own.exit_s[stop - 1])
        for stage, (first, stop) in enumerate(runs(cut))
        if first < stop
        for own in [times[min(stage, len(times) - 1)]]
    ]


@pytest.mark.parametrize("start", BATCHES)
def test_the_slowest_stage_and_the_sum_are_the_least_of_all_cuts(start):
    for seed in range(start, start + 50):
        loads, stage_capacities, times = instance(seed)
        stage_runs = StageRuns(loads, stage_capacities, times, 4)
        for total, whole in ((np.maximum, max), (np.add, sum)):
            cuts = stage_runs.best(total)
            for number, found in enumerate(cuts.seconds.tolist(), start=1):
                every = [
                    whole(seconds_of(loads, stage_capacities, times, cut))
                    for cut in all_cuts(len(loads), number)
                ]
                assert found == min(every)
                if np.isfinite(found):
                    own = seconds_of(loads, stage_capacities, times, cuts.stops(number))
                    assert whole(own) == found


@pytest.mark.parametrize("groups", [1, 2, 5, None])
@pytest.mark.parametrize("start", BATCHES)
def test_the_fastest_cut_is_the_fastest_of_all_cuts_and_replicas(start, groups):
    """A round of some groups, of groups without end, and a training step; each replicated."""
    most, found = 5, 0
    for seed in range(start, start + 50):
        loads, stage_capacities, times = instance(seed)

        def speed(number, pass_s, slowest_s, is_step=bool(seed % 2)):
            if groups is None:
                whole = slowest_s
            elif is_step:
                whole = pass_s + (groups - 1) * slowest_s
            else:
                whole = max(pass_s, groups * slowest_s)
            return (most // number) / whole

        stops = fastest_cut(StageRuns(loads, stage_capacities, times, most), speed)

        def speed_of(cut, inputs=(loads, stage_capacities, times), speed=speed):
            seconds = seconds_of(*inputs, cut)
            has_room = np.isfinite(max(seconds))
            return speed(len(cut), sum(seconds), max(seconds)) if has_room else 0.0

        best = max(
            speed_of(cut)
            for number in range(1, min(most, len(loads)) + 1)
            for cut in all_cuts(len(loads), number)
        )
        assert (stops is None) == (best == 0.0)
        if stops is not None:
            found += 1
            assert speed_of(stops) == pytest.approx(best, rel=1e-12)
    assert found >= 10


@pytest.mark.parametrize("seed", range(4))
def test_both_ways_to_balance_agree_on_long_rows(seed):
    """The search over levels, and dynamic programming with loads as times."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 1000, 150).astype(float)
    zeros = np.zeros(150)
    loads, stage_capacities = LayerLoads(sizes, zeros, zeros), StageCapacities((sizes.sum(),))
    slowest = (
        StageRuns(loads, stage_capacities, [LayerTimes(sizes, zeros, zeros)], 20)
        .best(np.maximum)
        .seconds
    )
    for number in range(1, 21):
        stops = balanced_stops(loads, stage_capacities, number)
        assert max(sizes[a:b].sum() for a, b in runs(stops)) == slowest[number - 1]
