"""One way to write down collectives and streams: who computes and sends what in which round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.collectives.registry import Transfer
from meshwright.network.traffic import Demands, joined_demands
from meshwright.streams.forms import StreamRounds


@dataclass(frozen=True)
class MemberSends:
    """What the members of one group send and compute, as columns: one row for each send."""

    round: IntArray
    source: IntArray
    destination: IntArray
    item: IntArray
    """What travels: chunks of a collective that always go together, or an item of a stream."""
    num_bytes: FloatArray
    payload: IntArray
    """Equal numbers: the same data, that may be sourced from whoever has it."""
    uses: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """``uses[round][member]``: the items that a member multiplies; empty for collectives."""

    @property
    def num_rounds(self) -> int:
        """Rounds in which something is sent or computed."""
        return max(int(self.round.max(initial=-1)) + 1, len(self.uses))


def collective_sends(transfers: Iterable[Transfer]) -> MemberSends:
    """Return the transfers of a collective by rounds (its steps).

    A copy of a chunk is the same data wherever it comes from; a partial sum is data of its own.
    """
    listed = list(transfers)
    seen: dict[int, list[int]] = {}
    for index, transfer in enumerate(listed):
        for chunk in transfer.chunks:
            seen.setdefault(chunk, []).append(index)
    names: dict[tuple[int, ...], int] = {}
    item_of = {chunk: names.setdefault(tuple(at), len(names)) for chunk, at in seen.items()}
    rows = [
        (t.step, t.source, t.destination, item, t.num_bytes * count / len(t.chunks), t.reduces)
        for t in listed
        for item, count in _counted(item_of[chunk] for chunk in t.chunks)
    ]
    columns = np.array(rows, dtype=np.float64).reshape(-1, 6).T
    turn, source, destination, item = columns[:4].astype(np.int64)
    own = len(names) + np.arange(len(rows))
    payload = np.where(columns[5] > 0, own, item)
    return MemberSends(turn, source, destination, item, columns[4], payload)


def _counted(items: Iterable[int]) -> list[tuple[int, int]]:
    """Return each item and how often it comes."""
    counts: dict[int, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return list(counts.items())


def stream_sends(rounds: StreamRounds, num_bytes: float, *, adds: bool = False) -> MemberSends:
    """Return the sends of a stream whose tensor has so many bytes.

    A round does not wait for another source, and what is sent again was dropped on purpose: the
    same data is only what one member sends in one round.

    Parameters
    ----------
    adds
        Accumulators travel, as in a reversed stream: each send is data of its own.
    """
    sends = np.array(rounds.sends, dtype=np.int64).reshape(-1, 4)
    keys = np.arange(len(sends))[:, None] if adds else sends[:, [0, 1, 3]]
    payload = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    turn, source, destination, item = sends.T
    size = np.full(len(sends), num_bytes / rounds.num_items)
    uses = tuple(tuple(members) for members in rounds.uses)
    return MemberSends(turn, source, destination, item, size, payload, uses)


class Activity(NamedTuple):
    """What one device does in one round for one operation."""

    round: int
    operation: str
    device: int
    computes: tuple[int, ...]
    """Items that it multiplies."""
    sends: tuple[tuple[int, int], ...]
    """(destination device, item)."""


@dataclass(frozen=True)
class Operation:
    """What all groups of an axis do side by side."""

    name: str
    """The axis, and its collective or stream."""
    groups: IntArray
    """Device of each member: (groups, members)."""
    sends: MemberSends

    @property
    def num_rounds(self) -> int:
        """Rounds that the operation takes."""
        return self.sends.num_rounds

    def demands(self, turn: int | None = None) -> Demands:
        """Return what is sent in one round, or in all rounds together."""
        sends = self.sends
        rows = np.arange(len(sends.round)) if turn is None else np.flatnonzero(sends.round == turn)
        num_groups = len(self.groups)
        keys = np.arange(num_groups)[:, None] * (sends.payload.max(initial=-1) + 1)
        keys = (keys + sends.payload[rows]).reshape(-1)
        return Demands(
            source=self.groups[:, sends.source[rows]].reshape(-1),
            destination=self.groups[:, sends.destination[rows]].reshape(-1),
            num_bytes=np.tile(sends.num_bytes[rows], num_groups),
            payload=np.unique(keys, return_inverse=True)[1].reshape(-1),
            operation=np.zeros(len(keys), dtype=np.int64),
            operation_names=(self.name,),
        )

    def activities(self, turn: int) -> Iterator[Activity]:
        """Yield what each device does in one round, group by group."""
        rows = np.flatnonzero(self.sends.round == turn).tolist()
        uses = self.sends.uses[turn] if turn < len(self.sends.uses) else ()
        for group in self.groups.tolist():
            for member, device in enumerate(group):
                sent = tuple(
                    (group[self.sends.destination[row]], int(self.sends.item[row]))
                    for row in rows
                    if self.sends.source[row] == member
                )
                yield Activity(turn, self.name, device, uses[member] if uses else (), sent)


@dataclass(frozen=True)
class ConcurrencyClass:
    """Operations that can be in flight together, such as a stream and a prefetch beside it."""

    operations: tuple[Operation, ...]

    @property
    def num_rounds(self) -> int:
        """Rounds of the longest operation; all begin together."""
        return max((operation.num_rounds for operation in self.operations), default=0)

    def demands(self, turn: int | None = None) -> Demands:
        """Return what all operations send in one round, or in all rounds together."""
        return joined_demands([operation.demands(turn) for operation in self.operations])

    def schedule(self) -> Iterator[Activity]:
        """Yield what each device does, round by round and operation by operation."""
        for turn in range(self.num_rounds):
            for operation in self.operations:
                yield from operation.activities(turn)
