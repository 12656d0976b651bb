"""One type for a number and a column of numbers, and the helpers that treat both alike.

How to type a formula (``mypy --strict``, no ``Any``):

* a quantity is a :data:`Num`, a truth about it a :data:`Mask`: ``def time_s(n: Num) -> Num``;
* a sum that starts at zero is annotated where it starts: ``total: Num = 0.0``;
* a record of quantities holds ``Num`` fields; only where callers must tell one candidate from a
  column of them is it generic, ``class StrategyOf(Generic[N])``, and formulas take
  ``StrategyOf[Num]``: all three instances fit in there;
* a number for people is taken out at the end: ``float(column[row])``.

Formulas use arithmetic and these helpers; they never branch on a candidate's number.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

Num: TypeAlias = float | NDArray[np.floating]
"""A number, or a column of numbers with one row for each candidate: shape (rows,)."""

Mask: TypeAlias = bool | BoolArray
"""Truth value of a number, or of each row of a column: shape (rows,)."""

N = TypeVar("N", float, FloatArray, Num, covariant=True)
"""Type parameter of a generic record: numbers of one candidate, columns of many, or either."""

MOST_CODES = 2**62
"""Whole numbers below this are exact in 64 bits."""


class OfTwo(Protocol):
    """A function of two numbers, of two columns, or of a number and a column."""

    @overload
    def __call__(self, a: float, b: float, /) -> float: ...
    @overload
    def __call__(self, a: FloatArray, b: Num, /) -> FloatArray: ...
    @overload
    def __call__(self, a: Num, b: FloatArray, /) -> FloatArray: ...
    @overload
    def __call__(self, a: Num, b: Num, /) -> Num: ...
    def __call__(self, a: Num, b: Num, /) -> Num:
        """Return the result, row by row."""
        ...


larger = cast(OfTwo, np.maximum)
"""The elementwise larger of two numbers or columns."""

smaller = cast(OfTwo, np.minimum)
"""The elementwise smaller of two numbers or columns."""


@overload
def where(condition: bool, a: float, b: float) -> float: ...
@overload
def where(condition: BoolArray, a: Num, b: Num) -> FloatArray: ...
@overload
def where(condition: Mask, a: FloatArray, b: Num) -> FloatArray: ...
@overload
def where(condition: Mask, a: Num, b: Num) -> Num: ...
def where(condition: Mask, a: Num, b: Num) -> Num:
    """Return ``a`` where the condition holds and ``b`` elsewhere."""
    chosen: Num = np.where(condition, a, b)[()]
    return chosen


ceil_div = cast(OfTwo, lambda a, b: np.ceil(a / b))
"""The number of parts of size ``b`` that cover ``a``: a float, or a column of them."""


def positive_part(a: N) -> N:
    """Return ``max(0, a)``: the part left after something has been hidden."""
    part: N = np.maximum(a, 0.0)
    return part


def column(value: Num) -> FloatArray:
    """Return a quantity as a column: itself, or one row for a number."""
    return np.atleast_1d(value)


def number_at(column: object, index: int = 0) -> float:
    """Return one entry of a column; a number, or a column of one row, stands for all rows."""
    values = np.asarray(column, dtype=float).reshape(-1)
    return float(values[index if len(values) > 1 else 0])


def known_at(column: object, index: int = 0) -> float | None:
    """Return one entry of a column; None where it is not a number: not known."""
    number = number_at(column, index)
    return None if math.isnan(number) else number


def gap_of(found: float, lower_bound: float) -> float:
    """Return the largest possible distance of a cost from the least one, as a fraction of a bound.

    found / bound - 1, and 0 where the bound is met: 1.2 s over a bound of 1 s are 0.2.
    """
    if found <= lower_bound:
        return 0.0
    return found / lower_bound - 1.0 if lower_bound > 0.0 else math.inf


def weighted_quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """Return the smallest value up to which a share of the weight lies.

    Of 1, 2 and 3 with weights 1, 1 and 2 half of the weight lies up to 2.
    """
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, share * below[-1])])


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
        values = _values(column)
        if number * len(values) > MOST_CODES:
            number, groups = _numbered(groups)
        groups = groups * len(values) + np.searchsorted(values, column)
        number *= len(values)
    number, groups = _numbered(groups)
    first: IntArray = np.empty(number, dtype=np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    return first, groups


def _values(column: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values of a column, ascending."""
    return column if len(column) == 1 else np.unique(column)


def _numbered(code: IntArray) -> tuple[int, IntArray]:
    """Return the number of distinct values, and the index of the value of each entry."""
    values = _values(code)
    return len(values), np.searchsorted(values, code)


Record = TypeVar("Record")


@cache
def names_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields that a record is made of."""
    return tuple(entry.name for entry in fields(kind) if entry.init)


def take_rows(record: Record, rows: IntArray | BoolArray | list[int] | slice) -> Record:
    """Return the named rows of a record of columns; numbers stay as they are."""
    result: Any = record
    if isinstance(record, np.ndarray):
        result = record[rows]
    elif isinstance(record, tuple):
        result = tuple(take_rows(entry, rows) for entry in record)
    elif isinstance(record, dict):
        result = {name: take_rows(entry, rows) for name, entry in record.items()}
    elif is_dataclass(record) and not isinstance(record, type):
        parts = {name: take_rows(getattr(record, name), rows) for name in names_of(type(record))}
        result = type(record)(**parts)
    return cast(Record, result)


def joined(records: Sequence[Record]) -> Record:
    """Return records of columns concatenated."""
    first: Any = records[0]
    result: Any = first
    every = cast(Sequence[Any], records)
    if isinstance(first, np.ndarray):
        result = np.concatenate(every)
    elif isinstance(first, tuple):
        result = tuple(joined(list(entry)) for entry in zip(*every, strict=True))
    elif isinstance(first, dict):
        result = {name: joined([record[name] for record in every]) for name in first}
    elif is_dataclass(first) and not isinstance(first, type):
        names = names_of(type(first))
        parts = {name: joined([getattr(record, name) for record in records]) for name in names}
        result = type(first)(**parts)
    return cast(Record, result)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep freed columns instead of returning each to the system.

    A search makes thousands of columns of a megabyte; a fresh one costs a page fault every 4 KiB,
    a tenth of the time of a search. Only glibc has this; elsewhere nothing happens.
    Source: mallopt(3), ``M_TRIM_THRESHOLD`` (-1) and ``M_MMAP_THRESHOLD`` (-3, at most 32 MiB).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, 2**30)
        mallopt(-3, 2**25)
