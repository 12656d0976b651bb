"""Ring on a Hamiltonian cycle of a block, both ways at once.

Every member has two neighbours on the cycle, so both links of a corner are at work all the time.
Whole shards go half way round from both sides, in N/2 messages. Half of every shard going all the
way round each way would move the same bytes in N - 1 messages.
Source: Chan et al. 2007, section 4 (both directions of a ring); a cycle of neighbours needs an
even side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.base.arrays import Num
from meshwright.collectives.gather_family import GATHER_KINDS
from meshwright.collectives.group import Group
from meshwright.collectives.mesh.block_gather import BlockGather
from meshwright.collectives.mesh.blocks import block_of
from meshwright.collectives.mesh.cycles import cycle_gather
from meshwright.collectives.registry import Transfer, collective_algorithms


class Cycle(BlockGather):
    """T = N/2 (latency + m_half/B) + (N - 1)/N S/(2 B) for a gather; one side is even."""

    def gather(self, group: Group[Num]) -> tuple[Any, Num, Num]:
        """Return the form on blocks with an even side."""
        block = block_of(group)
        half = block.size / 2.0
        slope = (block.size - 1.0) / block.size / 2.0 / block.bandwidth_bytes_per_s
        return block.applies & (half == np.floor(half)), half * block.message_s, slope

    def pieces_per_shard(self, inner: int, outer: int) -> int:
        """Return two halves."""
        return 2

    def block_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of both directions."""
        return cycle_gather(num_bytes, group)


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"cycle_{_kind}")(Cycle(_kind))
