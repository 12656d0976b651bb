"""Messages to be sent during a phase: one row for each source and destination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, read_only
from meshwright.collectives.group import Group, Span, group_size
from meshwright.collectives.registry import collective_algorithms
from meshwright.network.visiting_orders import chain, closes_in
from meshwright.streams.forms import enumerate_rounds, reverse, streams


@dataclass(frozen=True)
class Demands:
    """Messages that are in flight together, as columns.

    Rows with the same payload and source carry the same data to several destinations, and may
    share a multicast tree. A device that receives a payload may pass it on, so a row may be served
    from any device that holds or receives it.
    """

    source: IntArray
    destination: IntArray
    num_bytes: FloatArray
    payload: IntArray
    """Number of the data; equal numbers: the same data."""
    operation: IntArray
    """Index in ``operation_names`` of the sender: an axis and its collective or stream."""
    operation_names: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False)
class Pattern:
    """Pairs of members that exchange bytes; members count along the innermost level first."""

    source: IntArray
    destination: IntArray
    share: FloatArray
    """Share of the bytes of the full tensor on one rank [1]."""
    level: IntArray
    """Level of the network that the message crosses."""


def collective_pattern(algorithm: str, group: Group[float]) -> Pattern:
    """Return the messages of the members of one group in a collective, per byte of it."""
    spans = (
        Span(float(s.size), 1.0, 0.0, 0.0, float(s.closes), s.is_grid, s.in_network_reduction)
        for s in group.spans
    )
    return _collective_pattern(algorithm, Group(tuple(spans)))


@cache
def _collective_pattern(algorithm: str, group: Group[float]) -> Pattern:
    """Return the pattern of an algorithm on a group, for any speed of its links."""
    size = round(float(group_size(group)))
    table = collective_algorithms[algorithm].traffic(group).reshape(-1, 4)
    table[:, :2] = np.minimum(table[:, :2], size)
    return _summed(table)


def _summed(listed: Sequence[tuple[int, int, float, int]] | FloatArray) -> Pattern:
    """Return the messages of equal ends added up."""
    table = np.array(listed, dtype=float).reshape(-1, 4)
    ends = table[:, [0, 1, 3]].astype(np.int64)
    pairs, row_of = np.unique(ends, axis=0, return_inverse=True)
    share = np.bincount(row_of.reshape(-1), table[:, 2], len(pairs)).astype(np.float64)
    columns = [read_only(pairs[:, i].copy()) for i in range(3)]
    return Pattern(columns[0], columns[1], read_only(share), columns[2])


def stream_name(form: str, sizes: tuple[int, ...], *, closes: bool) -> str:
    """Return the name of the stream for a form on a block.

    ``auto`` is a cycle where there is one, else the line that sends early copies again. A
    cycle where there is none is a ring laid into the line.

    Parameters
    ----------
    sizes
        Members on each level, innermost first.
    closes
        A block of one long side is a ring.
    """
    if form not in ("auto", "cycle"):
        return form
    is_ring = closes and prod(sizes) == max(sizes)
    other = "stream" if form == "auto" else "ring"
    return "cycle" if is_ring or closes_in(sizes) else other


@cache
def stream_pattern(name: str, sizes: tuple[int, ...], *, is_reversed: bool = False) -> Pattern:
    """Return the messages of neighbours in a stream on a block, per byte of the tensor.

    Parameters
    ----------
    sizes
        Members on each level, innermost first.
    is_reversed
        Sums travel to their homes: every send of the stream turned round. Rings with neighbours
        several hops apart stay unchanged: their links have equal loads either way.
    """
    member = chain(sizes, closes=streams[name].needs_cycle).tolist()
    rounds = enumerate_rounds(streams[name], len(member))
    rounds = reverse(rounds) if is_reversed and rounds.num_hops == 1 else rounds
    ends = [(member[send.source], member[send.destination]) for send in rounds.sends]
    return _summed([(a, b, 1.0 / rounds.num_items, _level(a, b, sizes)) for a, b in ends])


@cache
def chain_pattern(
    sizes: tuple[int, ...], *, closes: bool, is_side_by_side: bool = False
) -> Pattern:
    """Return the messages of neighbours in a chain, both ways, per byte of one message.

    Parameters
    ----------
    sizes
        Members on each level, innermost first.
    closes
        The last member also sends to the first one, over a cycle where the block has one.
    is_side_by_side
        As in :func:`chain`.
    """
    member = chain(sizes, closes=closes, is_side_by_side=is_side_by_side).tolist()
    pairs = list(pairwise(member))
    if closes and len(member) > 2:
        pairs.append((member[-1], member[0]))
    both = pairs + [(b, a) for a, b in pairs]
    return _summed([(a, b, 1.0, _level(a, b, sizes)) for a, b in both])


def _level(source: int, destination: int, sizes: tuple[int, ...]) -> int:
    """Return the outermost level on which two members differ."""
    level = 0
    for index, size in enumerate(sizes):
        if source % size != destination % size:
            level = index
        source, destination = source // size, destination // size
    return level


def placed(pattern: Pattern, groups: IntArray, num_bytes: float, name: str = "") -> Demands:
    """Return the demands of all groups that follow one pattern at the same time.

    Parameters
    ----------
    groups
        Devices of each group, (groups, levels outermost first ...): from ``Ranks.groups``.
    num_bytes
        Bytes of the full tensor on one rank.
    """
    members = groups.reshape(len(groups), -1)
    source = members[:, pattern.source].reshape(-1)
    return Demands(
        source=source,
        destination=members[:, pattern.destination].reshape(-1),
        num_bytes=np.tile(pattern.share * num_bytes, len(groups)),
        payload=np.arange(len(source)),
        operation=np.zeros(len(source), dtype=np.int64),
        operation_names=(name,),
    )


def joined_demands(parts: Sequence[Demands]) -> Demands:
    """Return demands that are in flight together; operations keep their names."""
    names = tuple(name for part in parts for name in part.operation_names)
    first_name = np.cumsum([0, *(len(part.operation_names) for part in parts)])
    first_row = np.cumsum([0, *(len(part) for part in parts)])
    shifted = list(zip(parts, first_name, first_row, strict=False))
    return Demands(
        source=np.concatenate([part.source for part in parts]),
        destination=np.concatenate([part.destination for part in parts]),
        num_bytes=np.concatenate([part.num_bytes for part in parts]),
        payload=np.concatenate([part.payload + row for part, _, row in shifted]),
        operation=np.concatenate([part.operation + name for part, name, _ in shifted]),
        operation_names=names,
    )
