"""The best algorithm for a group and a size, and all that are registered side by side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from meshwright.base.arrays import N, smaller
from meshwright.collectives.bounds import lower_bound_s
from meshwright.collectives.group import Group, group_size
from meshwright.collectives.registry import Algorithm, collective_algorithms
from meshwright.spec.collective import CollectiveKind

_SHORT = 128
"""Rows of a column whose forms are kept."""
_NUMBERS = ("size", "bandwidth_bytes_per_s", "latency_s", "message_half_bytes", "closes")
Candidate = tuple[str, Any, Any]
"""Name, fixed_s and seconds_per_byte of an algorithm: numbers or columns."""


def algorithms_of(kind: CollectiveKind) -> list[tuple[str, Algorithm]]:
    """Return the algorithms of one kind by name, in the order of registration."""
    entries = [(name, collective_algorithms[name]) for name in collective_algorithms]
    return [(name, algorithm) for name, algorithm in entries if algorithm.kind is kind]


def affine_candidates(kind: CollectiveKind, group: Group[N]) -> list[Candidate]:
    """Return (name, fixed_s, seconds_per_byte) of every algorithm that applies to any row."""
    return [form for form in affine_forms(kind, group) if np.any(np.isfinite(form[1]))]


def affine_forms(kind: CollectiveKind, group: Group[N]) -> list[Candidate]:
    """Return the form of every algorithm that spans of these kinds allow, infinite or not.

    Groups on the same levels have forms of the same algorithms, so that tables of equal shape
    arise.
    """
    forms: list[Candidate] = []
    for name, algorithm in algorithms_of(kind):
        if algorithm.may_apply(group):
            fixed_s, seconds_per_byte = algorithm.affine(group)
            forms.append((name, fixed_s, seconds_per_byte))
    return forms


def best_affine_candidates(kind: CollectiveKind, group: Group[N]) -> list[Candidate]:
    """Return the algorithms that are best for some row at some size.

    Those that another one beats or equals in every row at every size are left out; the minimum
    over the rest is the minimum over all. What was found for short columns is kept: the same
    groups come again and again when a few plans are priced in detail.
    """
    content = _Content(group)
    return _known_candidates(kind, content) if content.is_short else _candidates(kind, group)


class _Content:
    """A group that equals others of the same numbers, while the same algorithms are known."""

    def __init__(self, group: Group[Any]) -> None:
        self.group = group
        columns = [np.asarray(getattr(s, name)) for s in group.spans for name in _NUMBERS]
        self.is_short = all(column.size <= _SHORT for column in columns)
        kinds = tuple((span.is_grid, span.in_network_reduction) for span in group.spans)
        shapes = tuple((column.shape, column.dtype.char) for column in columns)
        values = b"".join(column.tobytes() for column in columns) if self.is_short else b""
        self.key = (tuple(collective_algorithms), kinds, shapes, values)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self.key == other.key


@lru_cache(maxsize=2048)
def _known_candidates(kind: CollectiveKind, content: _Content) -> list[Candidate]:
    return _candidates(kind, content.group)


def _candidates(kind: CollectiveKind, group: Group[Any]) -> list[Candidate]:
    kept: list[Candidate] = []
    candidates = affine_candidates(kind, group)
    for index, candidate in enumerate(candidates):
        rivals = kept + candidates[index + 1 :]
        if not any(_never_slower(rival, candidate) for rival in rivals):
            kept.append(candidate)
    return kept


def _never_slower(rival: Candidate, candidate: Candidate) -> bool:
    """Return whether the rival is at most as slow in every row, whatever the bytes."""
    (_, rival_s, rival_slope), (_, fixed_s, slope) = rival, candidate
    beats = (rival_s <= fixed_s) & ((rival_slope <= slope) | np.isinf(fixed_s))
    return bool(np.all(beats))


def best_time_s(kind: CollectiveKind, num_bytes: N, group: Group[N]) -> N:
    """Return the time of the fastest algorithm [s]; a column chooses in each row."""
    candidates = best_affine_candidates(kind, group)
    times = [fixed_s + num_bytes * slope for _, fixed_s, slope in candidates]
    fastest_s: N = reduce(smaller, times)
    return fastest_s


def best_algorithm(kind: CollectiveKind, num_bytes: float, group: Group[float]) -> str:
    """Return the name of the fastest algorithm for one size and one group."""
    forms = _forms_of_one(kind, group, tuple(collective_algorithms))
    return min(forms, key=lambda form: form[1] + num_bytes * form[2])[0]


@lru_cache(maxsize=4096)
def _forms_of_one(
    kind: CollectiveKind, group: Group[float], known: tuple[str, ...]
) -> list[tuple[str, float, float]]:
    """Return the algorithms that apply to one group, with numbers, among those that are known."""
    forms = affine_candidates(kind, group)
    return [(name, float(fixed_s), float(slope)) for name, fixed_s, slope in forms]


@dataclass(frozen=True)
class TimedAlgorithm:
    """What one algorithm needs for one collective."""

    name: str
    time_s: float
    bus_bandwidth_bytes_per_s: float
    bound_fraction: float
    """Lower bound over time: 1 where nothing can be faster."""


def bus_bytes(kind: CollectiveKind, num_bytes: N, size: N) -> N:
    """Return the bytes that a member must send, for a bandwidth that compares with a link [bytes].

    2 (n - 1)/n for an all-reduce, (n - 1)/n for gathers, reductions and all-to-all, 1 otherwise.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md (definition of bus bandwidth).
    """
    share = (size - 1.0) / size
    if kind is CollectiveKind.ALL_REDUCE:
        return 2.0 * share * num_bytes
    if kind in (CollectiveKind.BROADCAST, CollectiveKind.SEND):
        return num_bytes
    return share * num_bytes


def timed_algorithms(
    kind: CollectiveKind, num_bytes: float, group: Group[float]
) -> list[TimedAlgorithm]:
    """Return every algorithm that applies to a group of two or more, fastest first."""
    bound_s = float(lower_bound_s(kind, num_bytes, group))
    moved = float(bus_bytes(kind, num_bytes, group_size(group)))
    rows = []
    for name, fixed_s, seconds_per_byte in affine_candidates(kind, group):
        time_s = float(fixed_s + num_bytes * seconds_per_byte)
        rows.append(TimedAlgorithm(name, time_s, moved / time_s, bound_s / time_s))
    return sorted(rows, key=lambda row: row.time_s)
