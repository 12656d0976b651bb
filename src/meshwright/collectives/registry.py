"""Collective algorithms: their interface, their registry, the best one for a group and a size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, Mask, Num, groups_of, where
from meshwright.base.registry import Registry
from meshwright.collectives.group import SPAN_COLUMNS, Group, Span, group_size
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
    """Equal pieces of the data, ``num_chunks`` together."""
    level: int = 0
    """Index of the span that the message crosses."""
    lane: int = 0
    """Link of the sender into that level: the direction on a grid, a share of a port."""
    share: float = 1.0
    """Part of the bandwidth of the span that the lane has."""
    channel: int = 0
    reduces: bool = False
    """The receiver adds arriving data to its own, instead of keeping it."""
    kept: tuple[int, ...] = ()
    """Chunks of these that are final: the receiver keeps them though the message reduces."""


Affine: TypeAlias = tuple[Num, Num]
"""A time as a function of the bytes, (fixed_s, seconds_per_byte): numbers, or columns (rows,)."""
Candidate: TypeAlias = tuple[str, Num, Num]
"""Name, fixed_s and seconds_per_byte of an algorithm."""


class Algorithm(ABC):
    """One way to do one kind of collective.

    Bytes are those of the full tensor on one rank (see :class:`CollectiveKind`). A message of m
    bytes occupies its sender for (m + message_half_bytes) / bandwidth and arrives a latency later,
    so every time is affine in the bytes.
    """

    kind: CollectiveKind
    num_pieces: int = 1
    """Pieces of the data that follow one another."""
    min_grid_dims: int = 0
    """Grid dimensions that a network needs, or no group on it can use the algorithm."""

    @property
    def replay_slack(self) -> float:
        """Largest excess of the closed form over the replay of the transfers, relative to it [1].

        0 for lock-step algorithms; more where messages overlap that the form charges one by one.
        """
        return 0.0

    @abstractmethod
    def affine(self, group: Group[Num]) -> Affine:
        """Return (fixed_s, seconds_per_byte); (infinity, 0) where it does not apply."""

    def num_chunks(self, group: Group[float]) -> int:
        """Return the number of equal chunks into which ``transfers`` cuts the data.

        Chunks are numbered by owner: the k-th n-th part of them belongs to member k (in an
        all-reduce, which leaves all with everything, their order says nothing). In an
        all-to-all they are those that one member sends, numbered by destination, and the chunk c
        of member i is called i * num_chunks + c. Where nothing else is said, a chunk is a piece.
        """
        return self.num_pieces

    @abstractmethod
    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield every message; only for a group where the algorithm applies."""

    def traffic(self, group: Group[float]) -> FloatArray:
        """Return the traffic of all messages, in any order: (messages, 4).

        Source, destination, share of the bytes of the full tensor on one rank, and level.
        """
        return traffic_of(self.transfers(1.0, group))

    def time_s(self, num_bytes: Num, group: Group[Num]) -> Num:
        """Return the time of the collective [s]; infinity where it does not apply."""
        fixed_s, seconds_per_byte = self.affine(group)
        return fixed_s + num_bytes * seconds_per_byte

    def applies(self, group: Group[float]) -> bool:
        """Return whether the algorithm can run on this group."""
        return bool(np.isfinite(self.affine(group)[0]))


def traffic_of(transfers: Iterator[Transfer]) -> FloatArray:
    """Return source, destination, bytes and level of each message: (messages, 4)."""
    return np.array([(t.source, t.destination, t.num_bytes, t.level) for t in transfers])


def where_it_applies(
    applies: Mask, group: Group[Num], fixed_s: Num, seconds_per_byte: Num
) -> Affine:
    """Return the affine form with (infinity, 0) where it does not apply and 0 for one member."""
    alone = group_size(group) == 1.0
    return (
        where(alone, 0.0, where(applies, fixed_s, np.inf)),
        where(alone | np.logical_not(applies), 0.0, seconds_per_byte),
    )


def least_sent_bytes(kind: CollectiveKind, num_bytes: Num, size: Num) -> Num:
    """Return the least bytes each rank sends in a collective, on average [bytes].

    Every rank needs the n - 1 parts of the others, or passes on its own n - 1; a sum of whole
    tensors gathers n - 1 of them and returns n - 1 results. Each byte crosses one link at least.

    Parameters
    ----------
    num_bytes
        Bytes of the full tensor on one rank.
    size
        Members of the group, n.

    Source: Chan et al. 2007, section 2.
    """
    others = (size - 1.0) / size
    if kind is CollectiveKind.SEND:
        return num_bytes * (size > 1)
    return num_bytes * others * (2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0)


collective_algorithms: Registry[Algorithm] = Registry("collective algorithm")


def affine_forms(kind: CollectiveKind, group: Group[Num]) -> list[Candidate]:
    """Return the form of every algorithm that spans of these kinds allow, infinite or not.

    Groups on the same levels have forms of the same algorithms, so that tables of equal shape
    arise.
    """
    num_grid_dims = sum(span.is_grid for span in group.spans)
    forms: list[Candidate] = []
    for name, algorithm in collective_algorithms.items():
        if algorithm.kind is kind and num_grid_dims >= algorithm.min_grid_dims:
            forms.append((name, *algorithm.affine(group)))
    return forms


def affine_candidates(kind: CollectiveKind, group: Group[Num]) -> list[Candidate]:
    """Return (name, fixed_s, seconds_per_byte) of every algorithm that applies to any row."""
    return [form for form in affine_forms(kind, group) if np.any(np.isfinite(form[1]))]


def best_affine_candidates(kind: CollectiveKind, group: Group[Num]) -> list[Candidate]:
    """Return the algorithms that are best for some row at some size.

    An algorithm that another one beats or equals in every row at every size is left out; the
    minimum over the rest is the minimum over all. Rows of equal numbers have equal forms, and
    those of a few groups come again and again: they are worked out once.
    """
    columns = [np.asarray(getattr(span, name)) for span in group.spans for name in SPAN_COLUMNS]
    shape = np.broadcast_shapes(*(column.shape for column in columns))
    if len(shape) != 1:
        forms = affine_forms(kind, group)
        each = [[np.broadcast_to(part, shape).ravel() for part in form] for _, *form in forms]
        rows = np.array(each, dtype=float).reshape(len(forms), 2, -1).transpose(1, 2, 0)
        return [forms[number] for number in _undominated(rows[0], rows[1])]
    kinds = tuple((span.is_grid, span.in_network_reduction) for span in group.spans)
    key = kind, kinds, tuple(collective_algorithms)
    if key not in _TABLES or len(_TABLES[key].row_of) > _MOST_ROWS:
        _TABLES[key] = _FormTable(kind, kinds)
    first, number = groups_of(np.atleast_1d(column) for column in columns)
    distinct = [column.reshape(-1)[first % column.size] for column in columns]
    names, fixed_s, slope = _TABLES[key].forms_of(np.stack(distinct, axis=1))
    kept = _undominated(fixed_s, slope)
    return [(names[form], fixed_s[number, form], slope[number, form]) for form in kept]


_MOST_ROWS = 65_536
"""Distinct groups whose forms are kept, about."""


class _FormTable:
    """Forms of every algorithm of a kind for the groups that were asked for, a row for each."""

    def __init__(self, kind: CollectiveKind, kinds: Sequence[tuple[bool, bool]]) -> None:
        self.kind, self.kinds = kind, kinds
        self.row_of: dict[bytes, int] = {}
        self._names: list[str] = []
        self._forms = np.zeros((0, 0, 2))

    def forms_of(self, groups: FloatArray) -> tuple[list[str], FloatArray, FloatArray]:
        """Return the names of the algorithms, their fixed seconds and seconds for each byte.

        Parameters
        ----------
        groups
            The numbers of the spans of each group, (groups, numbers).

        Returns
        -------
        list of (algorithms,), and two arrays of (groups, algorithms)
        """
        keys = [row.tobytes() for row in groups]
        new = [number for number, key in enumerate(keys) if key not in self.row_of]
        if new:
            numbers = groups[new].T.reshape(len(self.kinds), len(SPAN_COLUMNS), len(new))
            spans = (
                Span(of[0], of[1], of[2], of[3], of[4], *kind)
                for of, kind in zip(numbers, self.kinds, strict=True)
            )
            forms = affine_forms(self.kind, Group(tuple(spans)))
            self._names = [name for name, *_ in forms]
            found = [[np.broadcast_to(part, len(new)) for part in form] for _, *form in forms]
            added = np.array(found).reshape(len(forms), 2, len(new)).transpose(2, 0, 1)
            known = self._forms.reshape(-1, len(forms), 2)
            self._forms = np.concatenate([known, added])
            self.row_of |= {keys[n]: len(known) + place for place, n in enumerate(new)}
        rows = self._forms[[self.row_of[key] for key in keys]]
        return self._names, rows[..., 0], rows[..., 1]


_TABLES: dict[object, _FormTable] = {}
"""By kind of collective, kinds of spans and registered algorithms."""


def _undominated(fixed_s: FloatArray, slope: FloatArray) -> list[int]:
    """Return the forms, of (rows, forms), that no single other one equals or beats in all rows."""
    is_as_fast = (slope[:, :, None] <= slope[:, None]) | np.isinf(fixed_s[:, None])
    is_first = fixed_s[:, :, None] <= fixed_s[:, None]
    beats: BoolArray = np.all(np.logical_and(is_first, is_as_fast), axis=0)
    kept: list[int] = []
    for number in np.flatnonzero(np.isfinite(fixed_s).any(axis=0)).tolist():
        if not (beats[kept, number].any() or beats[number + 1 :, number].any()):
            kept.append(number)
    return kept


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
