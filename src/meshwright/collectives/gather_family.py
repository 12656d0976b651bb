"""All-gather, reduce-scatter and all-reduce of one pattern, from its all-gather alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, Num, where
from meshwright.collectives.gathers import (
    Stream,
    all_gather_traffic,
    all_gather_transfers,
    num_gather_chunks,
    reduce_then_gather,
    reversed_transfers,
)
from meshwright.collectives.group import Group
from meshwright.collectives.registry import Algorithm, Transfer, where_it_applies
from meshwright.collectives.spans import group_size
from meshwright.collectives.stages import gather_affine
from meshwright.spec.collective import CollectiveKind

GATHER_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
)


class GatherFamily(Algorithm):
    """An all-gather, its reverse (a reduce-scatter), or one after the other (an all-reduce).

    Source: Chan et al. 2007, section 3: a reduce-scatter is an all-gather run backwards.
    """

    def __init__(self, kind: CollectiveKind) -> None:
        self.kind = kind

    @abstractmethod
    def gather(self, group: Group[Num]) -> tuple[Any, Num, Num]:
        """Return where the all-gather applies, its fixed_s and its seconds_per_byte."""

    @abstractmethod
    def gather_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the all-gather."""

    def affine(self, group: Group[Num]) -> tuple[Num, Num]:
        """Return (fixed_s, seconds_per_byte); an all-reduce costs the all-gather twice."""
        applies, fixed_s, seconds_per_byte = self.gather(group)
        passes = 2.0 if self.kind is CollectiveKind.ALL_REDUCE else 1.0
        return where_it_applies(applies, group, fixed_s * passes, seconds_per_byte * passes)

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the gather, of its reverse, or of both."""
        gather = self.gather_transfers(num_bytes, group)
        if self.kind is CollectiveKind.ALL_GATHER:
            return gather
        if self.kind is CollectiveKind.REDUCE_SCATTER:
            return reversed_transfers(gather)
        return reduce_then_gather(gather)

    def gather_traffic(self, group: Group[float]) -> FloatArray:
        """Return what the messages of the all-gather carry, as in :meth:`traffic`."""
        listed = self.gather_transfers(1.0, group)
        return np.array([(t.source, t.destination, t.num_bytes, t.level) for t in listed])

    def traffic(self, group: Group[float]) -> FloatArray:
        """Return the traffic of the gather, of its reverse, or of both."""
        gather = self.gather_traffic(group).reshape(-1, 4)
        if self.kind is CollectiveKind.ALL_GATHER:
            return gather
        back = gather[:, [1, 0, 2, 3]]
        return back if self.kind is CollectiveKind.REDUCE_SCATTER else np.vstack([back, gather])


class StreamGather(GatherFamily):
    """A gather whose parts visit the spans one after the other."""

    @abstractmethod
    def streams(self, group: Group[float]) -> Sequence[Stream]:
        """Return the parts of the data and the order in which each visits the spans."""

    def num_chunks(self, group: Group[float]) -> int:
        """Return two halves of each stream of each member's shard."""
        return num_gather_chunks(group, len(self.streams(group)))

    def gather_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the stages of every stream."""
        return all_gather_transfers(num_bytes, group, self.streams(group))

    def gather_traffic(self, group: Group[float]) -> FloatArray:
        """Return the traffic of all stages, without listing chunks."""
        return all_gather_traffic(group, self.streams(group))


def outermost_first(group: Group[float]) -> tuple[int, ...]:
    """Return the order that moves each byte over an outer level once: outermost span first."""
    return tuple(reversed(range(len(group.spans))))


class OneSpanGather(StreamGather):
    """A gather pattern for groups that lie in one span of a fitting kind."""

    @abstractmethod
    def fits(self, span: Any) -> Any:
        """Return whether the pattern is made for this kind of span."""

    def gather(self, group: Group[Num]) -> tuple[Any, Num, Num]:
        """Return the stage of the one span that holds the whole group."""
        size = group_size(group)
        applies: Any = False
        fixed_s: Any = 0.0
        seconds_per_byte: Any = 0.0
        for span in group.spans:
            here = (span.size == size) & self.fits(span)
            stage_s, stage_slope = gather_affine(span)
            applies = applies | here
            fixed_s = where(here, stage_s, fixed_s)
            seconds_per_byte = where(here, stage_slope, seconds_per_byte)
        return applies, fixed_s, seconds_per_byte

    def streams(self, group: Group[float]) -> Sequence[Stream]:
        """Return one stream: only one span has anybody to talk to."""
        return (Stream(outermost_first(group)),)
