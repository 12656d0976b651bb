"""What a collective algorithm is, the registry of all, and the best one for a group and a size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, N, where
from meshwright.base.registry import Registry
from meshwright.collectives.group import Group, group_size
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Transfer:
    """One message from one member of a group to another.

    It may start when the sender holds all of its chunks, that is when every transfer of an earlier
    step that brings one of them to the sender has arrived. Each lane of a sender is a link that
    sends one message at a time. The messages of a channel leave in the order of their steps (and
    within a step as listed); among the channels of a link the earliest step that is ready goes
    first. Members are numbered with the innermost span running fastest; a number of
    ``group_size`` is the switch.
    """

    step: int
    source: int
    destination: int
    num_bytes: float
    chunks: tuple[int, ...]
    """Equal pieces of the data, ``num_chunks`` in all."""
    level: int = 0
    """Index of the span that the message crosses."""
    lane: int = 0
    """Which way out of the sender into that level: the direction on a grid, a share of a port."""
    share: float = 1.0
    """Part of the bandwidth of the span that the lane has."""
    channel: int = 0
    reduces: bool = False
    """The receiver adds what arrives to what it has, instead of keeping it."""
    kept: tuple[int, ...] = ()
    """Those of the chunks that are final: the receiver keeps them though the message reduces."""


class Algorithm(ABC):
    """One way to do one kind of collective.

    Bytes are those of the full tensor on one rank (see :class:`CollectiveKind`). A message of m
    bytes occupies its sender for (m + message_half_bytes) / bandwidth and arrives a latency later,
    so every time is affine in the bytes.
    """

    kind: CollectiveKind
    replay_slack: float = 0.0
    """How far the closed form may lie above the replay of the transfers, relative to it [1].

    0 for lock-step algorithms; more where messages overlap that the form charges one by one.
    """

    def may_apply(self, group: Group[Any]) -> bool:
        """Return whether some group on spans of these kinds could use it, whatever its sizes."""
        return True

    @abstractmethod
    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return (fixed_s, seconds_per_byte); (infinity, 0) where it does not apply."""

    @abstractmethod
    def num_chunks(self, group: Group[float]) -> int:
        """Return the number of equal pieces into which ``transfers`` cuts the data.

        Chunks are numbered by owner: the k-th n-th part of them belongs to member k (in an
        all-reduce, which leaves all with everything, their order says nothing). In an
        all-to-all they are those that one member sends, numbered by destination, and the chunk c
        of member i is called i * num_chunks + c.
        """

    @abstractmethod
    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield every message; only for a group where the algorithm applies."""

    def traffic(self, group: Group[float]) -> FloatArray:
        """Return what the messages carry in all, in any order: (messages, 4).

        Source, destination, share of the bytes of the full tensor on one rank, and level.
        """
        listed = self.transfers(1.0, group)
        return np.array([(t.source, t.destination, t.num_bytes, t.level) for t in listed])

    def time_s(self, num_bytes: N, group: Group[N]) -> N:
        """Return the time of the collective [s]; infinity where it does not apply."""
        fixed_s, seconds_per_byte = self.affine(group)
        return fixed_s + num_bytes * seconds_per_byte

    def applies(self, group: Group[float]) -> bool:
        """Return whether the algorithm can run on this group."""
        return bool(np.isfinite(self.affine(group)[0]))


collective_algorithms: Registry[Algorithm] = Registry("collective algorithm")


def where_it_applies(applies: Any, group: Group[N], fixed_s: N, seconds_per_byte: N) -> tuple[N, N]:
    """Return the affine form with (infinity, 0) where it does not apply and 0 for one member."""
    alone = group_size(group) == 1.0
    return (
        where(alone, 0.0, where(applies, fixed_s, np.inf)),
        where(alone | np.logical_not(applies), 0.0, seconds_per_byte),
    )


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
