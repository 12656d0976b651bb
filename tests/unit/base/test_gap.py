"""The gap between a cost and its lower bound."""

from math import inf

import pytest

from meshwright.base.arrays import gap_of


def test_a_gap_is_a_fraction_of_the_bound():
    """1.2 s over a bound of 1 s are 0.2; a bound that is met, or beaten by rounding, leaves 0."""
    assert gap_of(1.2, 1.0) == pytest.approx(0.2)
    assert gap_of(1.0, 1.0) == gap_of(1.0, 1.0 + 1e-16) == gap_of(0.0, 0.0) == 0.0
    assert gap_of(1.0 - 1e-16, 1.0) == 0.0
    assert gap_of(1.0, 0.0) == inf
