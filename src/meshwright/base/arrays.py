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
    code: IntArray = np.zeros(1, dtype=np.int64)
    for column in columns:
        values = np.unique(column)
        code = code * len(values) + np.searchsorted(values, column)
    values = np.unique(code)
    groups: IntArray = np.searchsorted(values, code)
    first: IntArray = np.empty(len(values), dtype=np.int64)
    first[groups[::-1]] = np.arange(len(code))[::-1]
    return first, groups
