"""Sums of large tables in slices are those of small ones."""

import numpy as np
import pytest

from meshwright.search.choices import elimination


@pytest.mark.parametrize("most_entries", [1, 24, 50, 10**6])
def test_the_least_sum_is_the_same_in_slices(monkeypatch, most_entries):
    """Tables of 7 x 4 x 6 in slices of one, one, two and all of their rows; one has one row."""
    draw = np.random.default_rng(0)
    spread = [draw.random(shape) for shape in ((7, 1, 6), (1, 4, 6), (7, 4, 6))]
    monkeypatch.setattr(elimination, "MOST_ENTRIES", most_entries)
    found = elimination._least(spread)
    for row in range(7):
        for column in range(4):
            sums = spread[0][row, 0] + spread[1][0, column] + spread[2][row, column]
            assert found[row, column] == sums.min()
