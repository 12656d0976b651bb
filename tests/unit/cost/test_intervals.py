"""Ends of intervals by hand: slower than predicted is a longer time and a lower rate."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from small_problems import problem

from meshwright.calibration.errors import interval_score, intervals_of
from meshwright.search.intervals import (
    Distances,
    distance_of,
    interval,
    interval_of,
    rates_of,
    surely,
)
from meshwright.search.robustness import DrawnTimes
from meshwright.spec.calibration import Spread, Tail

ENDS = Distances(slower=math.log(1.25), faster=math.log(1.1))
"""A measured time is at most 25 % longer and at least 1.1 times shorter than the prediction."""


def test_a_time_has_its_fast_end_first():
    assert interval_of(11.0, ENDS) == pytest.approx((10.0, 13.75))
    assert interval_of(11.0, None) is None


def test_a_rate_has_its_slow_end_first():
    assert rates_of(100.0, ENDS) == pytest.approx((80.0, 110.0))


def test_a_limit_holds_for_the_slow_end():
    assert surely(0.050, ENDS) == pytest.approx(0.040)
    assert surely(0.050, None) == 0.050


def test_the_interval_of_a_step_is_that_of_its_spread():
    asked = problem()
    spread = Spread(slower=Tail(distance=ENDS.slower, factors={}),
                    faster=Tail(distance=ENDS.faster, factors={}))  # fmt: skip
    known = replace(asked, calibration=replace(asked.calibration, spread=spread))
    assert interval(known, 11.0) == pytest.approx((10.0, 13.75))
    assert (
        interval(replace(asked, calibration=replace(asked.calibration, spread=None)), 1.0) is None
    )


def test_traits_widen_an_end_by_their_degree():
    """0.2 x 1.5^2 x 3^0 = 0.45."""
    tail = Tail(distance=0.2, factors={"far": 1.5, "unseen": 3.0})
    assert distance_of(tail, {"far": 2.0}) == pytest.approx(0.45)


def test_draws_have_their_low_end_first():
    """Of 0, 1, ..., 100 the 5th percentile is 5 and the 95th is 95."""
    assert DrawnTimes(np.arange(101.0)[None]).interval_s(0) == pytest.approx((5.0, 95.0))


def test_rows_inside_and_outside_of_their_intervals():
    """Of 100 tokens/s within 80 and 110: 81 and 109 are covered, 79 and 111 are not."""
    rows = [
        SimpleNamespace(interval=(80.0, 110.0), predicted_tokens_per_s=100.0,
                        log_error=math.log(100.0 / measured))
        for measured in (79.0, 81.0, 109.0, 111.0)
    ]  # fmt: skip
    assert [intervals_of([row]).covered for row in rows] == [0.0, 1.0, 1.0, 0.0]
    assert intervals_of(rows).covered == 0.5


def test_an_interval_score_is_its_width_and_ten_times_what_is_outside():
    """Slower by 0.3 than predicted, 0.1 beyond the slow end: 0.2 + 0.1 + 10 x 0.1."""
    slower, faster = np.full(3, 0.2), np.full(3, 0.1)
    found = interval_score(np.array([0.3, 0.0, -0.15]), slower, faster)
    assert found == pytest.approx([1.3, 0.3, 0.8])
