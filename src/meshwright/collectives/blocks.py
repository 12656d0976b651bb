"""A group that spans two grid dimensions: a block of columns (inner) and rows (outer)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from meshwright.base.arrays import larger, smaller, where
from meshwright.collectives.gathers import GatherFamily
from meshwright.collectives.group import Group, group_size
from meshwright.collectives.registry import Transfer
from meshwright.collectives.stages import message_s, shape_of
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Block:
    """The two grid dimensions of each group of a column, and the slower of their links."""

    applies: Any
    """Whether the group spans two grid dimensions and nothing else."""
    inner: Any
    outer: Any
    message_s: Any
    """What each message costs on top of its bytes [s]."""
    bandwidth_bytes_per_s: Any

    @property
    def size(self) -> Any:
        """Members."""
        return self.inner * self.outer


def may_span_a_block(group: Group[Any]) -> bool:
    """Return whether the network has two grid dimensions at all."""
    return sum(span.is_grid for span in group.spans) >= 2


def block_of(group: Group[Any]) -> Block:
    """Return the block of each group; where it is none, ``applies`` is false."""
    size = group_size(group)
    applies: Any = False
    inner: Any = 2.0
    outer: Any = 2.0
    each_s: Any = 0.0
    rate: Any = 1.0
    for first, second in combinations([span for span in group.spans if span.is_grid], 2):
        both = (first.size > 1.0) & (second.size > 1.0)
        here = both & (first.size * second.size == size)
        slower = smaller(first.bandwidth_bytes_per_s, second.bandwidth_bytes_per_s)
        applies = applies | here
        inner, outer = where(here, first.size, inner), where(here, second.size, outer)
        each_s = where(here, larger(message_s(first), message_s(second)), each_s)
        rate = where(here, slower, rate)
    return Block(applies, inner, outer, each_s, rate)


def levels_of(group: Group[float]) -> tuple[int, int]:
    """Return the levels that are the inner and the outer dimension of a block."""
    inner, outer = [level for level, size in enumerate(shape_of(group)) if size > 1]
    return inner, outer


def sides_of(group: Group[float]) -> tuple[int, int]:
    """Return the columns (inner) and the rows (outer) of a block."""
    shape = shape_of(group)
    inner, outer = levels_of(group)
    return shape[inner], shape[outer]


class BlockGather(GatherFamily):
    """A gather for groups that span two grid dimensions and nothing else."""

    def __init__(self, kind: CollectiveKind) -> None:
        super().__init__(kind)
        self.replay_slack = 0.5
        """All messages of a phase are charged the busiest and the slowest link."""

    def may_apply(self, group: Group[Any]) -> bool:
        """Return whether there are two grid dimensions."""
        return may_span_a_block(group)

    @abstractmethod
    def pieces_per_shard(self, inner: int, outer: int) -> int:
        """Return the pieces of each shard."""

    @abstractmethod
    def block_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the all-gather on a block."""

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces of all shards."""
        size = round(float(group_size(group)))
        return 1 if size == 1 else size * self.pieces_per_shard(*sides_of(group))

    def gather_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the all-gather; none for a group of one."""
        if float(group_size(group)) > 1.0:
            yield from self.block_transfers(num_bytes, group)
