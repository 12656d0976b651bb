"""Cuts of small rows, by hand."""

import numpy as np
import pytest
from tests.oracles.decode_groups import decode_schedule, measured_rates

from meshwright.sram.contiguous import (
    LayerLoads,
    LayerTimes,
    StageCapacities,
    StageRuns,
    balanced_stops,
    greedy_stops,
    least_stages,
    too_large,
)
from meshwright.sram.price import round_s


def row(resident, transient=0, kept=0):
    ones = np.ones(len(resident))
    return LayerLoads(np.array(resident, dtype=float), transient * ones, kept * ones)


def times(layer_s, exit_s=0.0, entry_s=0.0):
    ones = np.ones(len(layer_s))
    return [LayerTimes(np.array(layer_s, dtype=float), entry_s * ones, exit_s * ones)]


def test_weights_add_up_and_the_largest_transient_counts():
    loads = LayerLoads(np.array([3.0, 4, 5]), np.array([1.0, 7, 2]), np.array([10.0, 0, 0]))
    assert loads.load_bytes(0, 3) == 3 + 4 + 5 + 10 + 7
    assert loads.load_bytes(0, 1, 2) == 3 + 20 + 1
    assert loads.load_bytes(2, 2) == 0
    assert loads.load_bytes(np.array([0, 1, 2]), np.array([2, 3, 3])).tolist() == [24, 16, 7]
    assert loads.reversed().load_bytes(0, 2) == 5 + 4 + 7


def test_greedy_takes_the_longest_run_that_fits():
    # 3 + 4 fill 7; 5 and 1 do not take 6 beside them; 6 + 2 is above 7
    assert greedy_stops(row([3, 4, 5, 1, 6, 2]), StageCapacities((7.0,))) == [2, 4, 5, 6]
    assert least_stages(row([3, 4, 5, 1, 6, 2]), StageCapacities((7.0,))) == 3
    assert greedy_stops(row([3, 4], transient=1), StageCapacities((7.0,))) == [1, 2]


def test_a_layer_that_is_too_large_is_named_and_stops_the_cut():
    loads = row([3, 9, 2])
    assert too_large(loads, StageCapacities((7.0,))).tolist() == [1]
    assert greedy_stops(loads, StageCapacities((7.0,))) == [1]
    assert balanced_stops(loads, StageCapacities((7.0,)), 3) is None


def test_stages_of_different_room_keep_their_order():
    loads = row([4, 4, 4])
    assert greedy_stops(loads, StageCapacities((3.0, 8.0))) == [
        0,
        2,
        3,
    ]  # the first one stays empty
    assert greedy_stops(loads, StageCapacities((8.0, 3.0))) == [2]  # nothing is left that holds 4
    assert least_stages(loads, StageCapacities((3.0, 8.0))) == 3  # 3 + 8 < 12
    assert least_stages(row([4, 4]), StageCapacities((3.0, 8.0))) == 2


def test_a_stage_with_less_room_than_a_transient_stays_empty():
    # a layer alone needs 8 or 9, both together 12
    assert greedy_stops(row([3, 4], transient=5), StageCapacities((4.0, 10.0))) == [0, 1, 2]
    assert balanced_stops(row([3, 4], transient=5), StageCapacities((4.0, 10.0)), 3) == [0, 1, 2]
    assert greedy_stops(row([3, 4], transient=5), StageCapacities((9.0, 4.0, 9.0))) == [1, 1, 2]


def test_balance_evens_the_loads():
    # greedy fills 10 + 1; the even cut of the same two stages is 6 + 5
    loads = row([4, 2, 3, 1, 1])
    assert greedy_stops(loads, StageCapacities((10.0,))) == [4, 5]
    assert balanced_stops(loads, StageCapacities((10.0,)), 2) == [2, 5]
    assert balanced_stops(row([4, 4, 4]), StageCapacities((4.0, 8.0)), 2) == [1, 3]


@pytest.mark.parametrize(
    ("sizes", "room", "number"), [([0.7, 0.7, 0.7], 1.4, 2), ([0.2, 0.3, 0.3], 0.66, 4)]
)
def test_balance_ends_between_neighbouring_floats(sizes, room, number):
    """Halfway between two of them is one of them: the search must not try it for ever."""
    stops = balanced_stops(row(sizes), StageCapacities((room,)), number)
    assert stops[-1] == 3
    assert len(set(stops)) == min(number, 3)


def test_in_training_early_stages_keep_more_micro_batches():
    # from the end: 1 micro-batch of 3 beside 2 of weights, then 2 of them
    loads = row([2, 2, 2, 2], kept=3)
    assert greedy_stops(loads, StageCapacities((10.0,), most_in_flight=4)) == [
        2,
        3,
    ]  # 2 + 3 x 3 = 11 > 10
    assert greedy_stops(loads, StageCapacities((10.0,), most_in_flight=2)) == [
        2,
        3,
        4,
    ]  # 2 + 2 x 3 = 8


def test_the_slowest_stage_counts_its_send():
    loads = row([1, 1, 1])
    free = times([3, 1, 2])
    assert StageRuns(loads, StageCapacities((9.0,)), free, 3).best(np.maximum).seconds.tolist() == [
        6,
        3,
        3,
    ]
    sends = [LayerTimes(np.array([3.0, 1, 2]), np.zeros(3), np.array([4.0, 0.5, 0]))]
    cuts = StageRuns(loads, StageCapacities((9.0,)), sends, 3).best(np.maximum)
    assert cuts.seconds.tolist() == [6, 4.5, 4.5]  # one layer each takes 3 + 4
    assert cuts.stops(2) == [2, 3]
    assert sorted(set(cuts.stops(3))) in ([2, 3], [0, 2, 3])


def test_a_stage_that_is_too_full_is_no_way():
    cuts = StageRuns(row([4, 4, 4]), StageCapacities((8.0,)), times([1, 1, 1]), 3).best(np.maximum)
    assert cuts.seconds.tolist() == [np.inf, 2, 1]
    none = StageRuns(row([4, 9, 4]), StageCapacities((8.0,)), times([1, 1, 1]), 3).best(np.maximum)
    assert np.isinf(none.seconds).all()


def test_a_stage_that_is_too_small_stays_empty():
    cuts = StageRuns(row([4, 4]), StageCapacities((3.0, 9.0)), times([1, 1]), 2).best(np.maximum)
    assert cuts.seconds.tolist() == [np.inf, 2]
    assert cuts.stops(2) == [0, 2]


def test_stages_may_differ_in_speed():
    slow, fast = times([2, 2, 2])[0], times([1, 1, 1])[0]
    cuts = StageRuns(row([1, 1, 1]), StageCapacities((9.0,)), [slow, fast], 2).best(np.maximum)
    assert cuts.seconds.tolist() == [6, 2]
    assert cuts.stops(2) == [1, 3]


@pytest.mark.parametrize(("groups", "expected_s"), [(1, 6), (2, 6), (3, 9)])
def test_a_round_takes_a_pass_or_all_turns_of_the_slowest_stage(groups, expected_s):
    assert round_s(1 + 3 + 2, 3, groups) == expected_s
    tokens_per_s, token_s = measured_rates(decode_schedule([1, 3, 2], groups, 40), 5)
    assert token_s == pytest.approx(expected_s)
    assert tokens_per_s * token_s == pytest.approx(5 * groups)
