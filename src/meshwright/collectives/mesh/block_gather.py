"""What the gathers on blocks have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from meshwright.collectives.gather_family import GatherFamily
from meshwright.collectives.group import Group
from meshwright.collectives.mesh.blocks import may_span_a_block, sides_of
from meshwright.collectives.registry import Transfer
from meshwright.collectives.spans import group_size
from meshwright.spec.collective import CollectiveKind


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
