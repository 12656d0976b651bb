"""Helpers for columns."""

import numpy as np

from meshwright.base.arrays import groups_of


def test_groups_of_many_columns_are_those_of_whole_rows():
    """Forty columns of nine values: their combinations are more than 64 bits can number."""
    table = np.random.default_rng(3).integers(0, 9, (40, 500)).astype(float)
    table[:, 250:] = table[:, :250]
    first, groups = groups_of(table)
    assert len(first) == len(np.unique(table, axis=1).T) == 250
    assert (table[:, first[groups]] == table).all()
    assert all(first[group] == np.flatnonzero(groups == group)[0] for group in range(250))
