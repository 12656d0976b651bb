"""Helpers that treat a number and a column of numbers alike.

Formulas use arithmetic and these; they never branch on a candidate's number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

Num = TypeVar("Num", float, FloatArray)
"""A number or a column of numbers: each formula is written once for both."""


MOST_CODES = 2**62
"""Whole numbers below this are exact in 64 bits."""


def larger(a: Any, b: Any) -> Any:
    """Return the elementwise larger of two numbers or columns."""
    return np.maximum(a, b)


def smaller(a: Any, b: Any) -> Any:
    """Return the elementwise smaller of two numbers or columns."""
    return np.minimum(a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return ``a`` where the condition holds and ``b`` elsewhere."""
    return np.where(condition, a, b)[()]


def ceil_div(a: Any, b: Any) -> Any:
    """Return the number of parts of size ``b`` that cover ``a`` (a float, or a column of them)."""
    return np.ceil(a / b)


def positive_part(a: Any) -> Any:
    """Return ``max(0, a)``: what is left after something has been hidden."""
    return np.maximum(a, 0.0)


def read_only(column: NDArray[Any]) -> NDArray[Any]:
    """Return the column after forbidding changes to it."""
    column.setflags(write=False)
    return column


def groups_of(columns: Iterable[NDArray[Any]]) -> tuple[IntArray, IntArray]:
    """Return the first of each group of rows that are equal in all columns, and the groups.

    Columns with few different values cost least: rows are looked up among them, not sorted.
    """
    groups: IntArray = np.zeros(1, dtype=np.int64)
    number = 1
    for column in columns:
        values = np.unique(column)
        if number * len(values) > MOST_CODES:
            number, groups = _numbered(groups)
        groups = groups * len(values) + np.searchsorted(values, column)
        number *= len(values)
    number, groups = _numbered(groups)
    first: IntArray = np.empty(number, dtype=np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    return first, groups


def _numbered(code: IntArray) -> tuple[int, IntArray]:
    """Return how many different values there are, and the number of each one."""
    values = np.unique(code)
    return len(values), np.searchsorted(values, code)
