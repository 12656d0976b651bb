"""Fronts by hand: rows that another one equals or beats in every objective are left out."""

import numpy as np

from meshwright.search.leading import dominated_by, front_of


def test_a_row_that_is_no_better_anywhere_is_not_on_the_front():
    """Equal in one objective and worse in the other: weakly dominated."""
    rows = np.array([[2.0, 1.0], [1.0, 3.0], [1.0, 2.0], [3.0, 1.0], [2.0, 1.5]])
    assert front_of(rows) == [2, 0]


def test_of_equal_rows_one_stays():
    assert front_of(np.array([[1.0, 1.0], [1.0, 1.0]])) == [0]


def test_a_row_is_dominated_by_its_equal_and_by_a_better_one_alone():
    others = np.array([[1.0, 2.0], [5.0, 0.0]])
    rows = np.array([[1.0, 2.0], [1.0, 1.9], [0.9, 9.0], [6.0, 0.0], [1.0, 2.1]])
    assert dominated_by(rows, others).tolist() == [True, False, False, True, True]
