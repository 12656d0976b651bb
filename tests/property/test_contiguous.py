"""Laws of contiguous cuts and of groups that go round a row of stages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.onchip.contiguous.balanced import balanced_stops
from meshwright.onchip.contiguous.greedy import greedy_stops, least_stages
from meshwright.onchip.contiguous.loads import LayerLoads
from meshwright.onchip.contiguous.loop import decode_schedule, measured_rates, round_s
from meshwright.onchip.contiguous.rooms import Rooms

SIZES = st.lists(st.integers(1, 10**9), min_size=1, max_size=60)


def row(sizes, transients=None):
    column = np.array(sizes, dtype=float)
    return LayerLoads(column, np.array(transients or [0] * len(sizes), dtype=float), 0 * column)


@given(SIZES, st.floats(1, 20), st.integers(2, 1000))
def test_what_is_scaled_is_cut_alike(sizes, room, factor):
    rooms = Rooms((room * max(sizes),))
    larger = Rooms((factor * rooms.capacity_bytes[0],))
    assert greedy_stops(row(sizes), rooms) == greedy_stops(
        row([factor * size for size in sizes]), larger
    )


@given(SIZES, st.floats(1, 5), st.floats(1, 3))
def test_more_room_never_needs_more_stages(sizes, room, more):
    capacity = room * max(sizes)
    small, large = (greedy_stops(row(sizes), Rooms((c,))) for c in (capacity, more * capacity))
    assert small[-1] == large[-1] == len(sizes)
    assert least_stages(row(sizes), Rooms((capacity,))) <= len(small) >= len(large)


@given(SIZES, st.data())
def test_greedy_is_maximal_whatever_the_transients(sizes, data):
    transients = data.draw(st.lists(st.integers(0, 10**9), min_size=len(sizes),
                                    max_size=len(sizes)))  # fmt: skip
    loads = row(sizes, transients)
    capacity = float(data.draw(st.integers(2 * 10**9, 10**10)))
    first = 0
    for stop in greedy_stops(loads, Rooms((capacity,))):
        assert loads.load_bytes(first, stop) <= capacity
        assert stop == len(sizes) or loads.load_bytes(first, stop + 1) > capacity
        first = stop


@given(SIZES, st.integers(1, 12))
def test_balance_lies_between_its_bounds(sizes, number):
    loads = row(sizes)
    stops = balanced_stops(loads, Rooms((float(sum(sizes)),)), number)
    runs = zip([0, *stops], stops, strict=False)
    fullest = max(float(loads.load_bytes(first, stop)) for first, stop in runs)
    assert max(sum(sizes) / number, max(sizes)) <= fullest * (1 + 1e-12)
    assert fullest <= sum(sizes) / number + max(sizes)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 64))
def test_littles_law_holds_in_every_schedule(occupied_s, num_groups, group_size):
    schedule = decode_schedule(occupied_s, num_groups, 60)
    tokens_per_s, token_s = measured_rates(schedule, group_size)
    assert token_s == pytest.approx(round_s(sum(occupied_s), max(occupied_s), num_groups))
    assert tokens_per_s * token_s == pytest.approx(num_groups * group_size)
