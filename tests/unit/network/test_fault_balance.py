"""Rows by speed: the least possible time, proven by trying every split."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InfeasibleError
from meshwright.network.faults import balanced_rows

SPEEDS = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.6, 0.9, 1.0]), min_size=1, max_size=4)


def finish(rows, speed):
    return max((r / s for r, s in zip(rows, speed, strict=True) if r), default=0.0)


def splits(num_rows, speed):
    most = [num_rows if s > 0 else 0 for s in speed]
    every = itertools.product(*(range(m + 1) for m in most))
    return [rows for rows in every if sum(rows) == num_rows]


def test_by_hand():
    """75 % of the cores in all: 300 rows by 1, 1, 0.5, 0.5 take as long as 100 on a whole one."""
    speed = np.array([1.0, 1.0, 0.5, 0.5])
    rows = balanced_rows(300, speed)
    assert rows.tolist() == [100, 100, 50, 50]


def test_what_is_left_goes_to_who_finishes_first():
    assert balanced_rows(4, np.array([1.0, 0.9, 0.4])).tolist() == [2, 2, 0]


def test_dead_devices_get_nothing():
    assert balanced_rows(10, np.array([0.0, 1.0])).tolist() == [0, 10]
    with pytest.raises(InfeasibleError):
        balanced_rows(10, np.zeros(2))


@given(SPEEDS, st.integers(0, 9))
def test_no_split_is_faster(speed, num_rows):
    possible = splits(num_rows, speed)
    if not possible:
        with pytest.raises(InfeasibleError):
            balanced_rows(num_rows, np.array(speed))
        return
    rows = balanced_rows(num_rows, np.array(speed))
    assert tuple(rows.tolist()) in possible
    assert finish(rows, speed) <= min(finish(split, speed) for split in possible) * (1 + 1e-12)


@pytest.mark.slow
@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=16), st.integers(1, 10))
def test_many_rows_reach_the_mean_speed(speed, scale):
    speed = np.array(speed)
    rows = balanced_rows(1000 * scale * len(speed), speed)
    assert rows.sum() == 1000 * scale * len(speed)
    rate = rows.mean() / finish(rows, speed)
    assert rate <= speed.mean() * (1 + 1e-12)
    assert rate == pytest.approx(speed.mean(), rel=0.05)
    assert rate >= speed.min() * (1 - 1e-12)
