"""Pareto fronts of rows of objectives, all to be minimised."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray


def dominated_by(values: FloatArray, others: FloatArray) -> BoolArray:
    """Return which rows some other row equals or beats in every objective."""
    mask = np.zeros(len(values), dtype=bool)
    left = np.arange(len(values))
    for other in others:
        beaten = (values[left] >= other).all(axis=1)
        mask[left[beaten]] = True
        left = left[~beaten]
        if not len(left):
            break
    return mask


def front_of(values: FloatArray) -> list[int]:
    """Return the rows that no other row equals or beats, in order of the first objective."""
    kept: list[int] = []
    order = np.lexsort(values.T[::-1])
    left = list(order)
    while left:
        first, rest = left[0], np.array(left[1:], dtype=np.int64)
        kept.append(int(first))
        beaten = dominated_by(values[rest], values[first : first + 1])
        left = list(rest[~beaten])
    return kept
