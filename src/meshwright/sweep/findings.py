"""What the results of a sweep say: best points, groups compared, and two results side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from statistics import fmean, median
from typing import Any

from meshwright.spec.sweep import Compared

Record = Mapping[str, Any]
CLOSE = 1e-3
"""Values that differ by less are equal in an order."""


def of(records: Sequence[Record], field: str, value: object) -> list[Record]:
    """Return the records of one value of a field."""
    return [record for record in records if record[field] == value]


def has_value(record: Record, name: str) -> bool:
    """Tell whether a point has a number of that name."""
    return isinstance(record.get(name), int | float)


def best_of(records: Sequence[Record], name: str) -> Record | None:
    """Return the point of the highest value; None where none has one."""
    found = [record for record in records if has_value(record, name)]
    return max(found, key=lambda record: float(record[name]), default=None)


def reasons(records: Sequence[Record]) -> Mapping[str, int]:
    """Return why points have no result, the most frequent first."""
    told = Counter(str(one["reason"]) for one in records if one["status"] != "found"
                   and "reason" in one)  # fmt: skip
    return dict(told.most_common())


@dataclass(frozen=True)
class Gain:
    """One group over another, over all designs that are alike but for the chip."""

    best: float | None
    """The best member of one over the best of the other, each with its best design."""
    mean: float | None
    """Geometric mean over designs of the geometric means of the groups."""
    num_designs: int


def gain(records: Sequence[Record], name: str, compared: Compared, sides: Sequence[str]) -> Gain:
    """Return what the first group has over the second in a result.

    Parameters
    ----------
    sides
        Fields that vary beside the compared one: points that agree in them are one design.
    """
    first, second = (
        [one for one in records if one[compared.field] in names and has_value(one, name)]
        for names in compared.groups.values()
    )
    tops = [max((float(one[name]) for one in group), default=0.0) for group in (first, second)]
    logs = [_mean_logs(group, name, sides) for group in (first, second)]
    common = logs[0].keys() & logs[1].keys()
    ratios = [logs[0][design] - logs[1][design] for design in common]
    return Gain(
        best=tops[0] / tops[1] if tops[0] and tops[1] else None,
        mean=exp(fmean(ratios)) if ratios else None,
        num_designs=len(common),
    )


def _mean_logs(
    records: Sequence[Record], name: str, sides: Sequence[str]
) -> dict[tuple[Any, ...], float]:
    """Return the mean logarithm of a result for each design."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for one in records:
        found.setdefault(tuple(one[side] for side in sides), []).append(log(float(one[name])))
    return {design: fmean(values) for design, values in found.items()}


@dataclass(frozen=True)
class Ratios:
    """A result of ours over the same by other rules."""

    least: float
    middle: float
    most: float
    num_points: int


def ratios(records: Sequence[Record], names: tuple[str, str]) -> Ratios | None:
    """Return the first result over the second; None where no point has both."""
    found = [ours / other for ours, other in _pairs(records, names)]
    return Ratios(min(found), median(found), max(found), len(found)) if found else None


@dataclass(frozen=True)
class Orders:
    """How two results order points that differ in one field alone."""

    num_pairs: int
    """That ours tells apart."""
    alike: float
    """Share of them that the other puts in the same order."""
    ties: float
    """Share of them that the other cannot tell apart."""


def orders(
    records: Sequence[Record], names: tuple[str, str], side: str, sides: Sequence[str]
) -> Orders | None:
    """Return how two results order pairs that agree in all sides but one; None without a pair."""
    alike: dict[tuple[Any, ...], list[Record]] = {}
    for one in records:
        alike.setdefault(tuple(one[name] for name in sides if name != side), []).append(one)
    told = [
        (order, _order(first[1], second[1]))
        for group in alike.values()
        for first, second in combinations(_pairs(group, names), 2)
        if (order := _order(first[0], second[0]))
    ]
    if not told:
        return None
    same = fmean(ours == other for ours, other in told)
    return Orders(len(told), same, fmean(not other for _, other in told))


def _pairs(records: Sequence[Record], names: tuple[str, str]) -> list[tuple[float, float]]:
    return [
        (float(one[names[0]]), float(one[names[1]]))
        for one in records
        if has_value(one, names[0]) and has_value(one, names[1])
    ]


def _order(first: float, second: float) -> int:
    """Return 1 where the first is larger, -1 where it is smaller, 0 where they are equal."""
    if abs(first - second) <= CLOSE * max(abs(first), abs(second)):
        return 0
    return 1 if first > second else -1


def by_value(records: Sequence[Record], field: str) -> Iterator[tuple[Any, list[Record]]]:
    """Yield the values of a field in the order of the points, each with its records."""
    for value in dict.fromkeys(record[field] for record in records):
        yield value, of(records, field, value)
