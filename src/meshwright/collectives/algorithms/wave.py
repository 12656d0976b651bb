"""Waves along the rows and columns of a block at once, part of each shard in either order.

The parts and the phases in which they go on are such that, on a mesh, an all-gather takes no more
than its lower bound and R + C - 1 messages (even sides are not needed); or R + C - 2 messages, as
many as the farthest member has hops, at somewhat more bytes where the sides differ.
Derived here, see :mod:`meshwright.collectives.mesh.waves`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from meshwright.base.arrays import Num, larger, smaller
from meshwright.collectives.gather_family import GATHER_KINDS
from meshwright.collectives.group import Group
from meshwright.collectives.mesh.block_gather import BlockGather
from meshwright.collectives.mesh.blocks import Block, block_of, levels_of, sides_of
from meshwright.collectives.mesh.waves import WavePlan, corner_plan, even_plan, gather_messages
from meshwright.collectives.registry import Transfer, collective_algorithms


class Wave(BlockGather):
    """A gather of waves: as many messages as phases, each as long as the busiest link needs."""

    def gather(self, group: Group[Num]) -> tuple[Any, Num, Num]:
        """Return the phases times the cost of a message, and the share of the busiest links."""
        block = block_of(group)
        applies, phases, share = self.phases_and_share(block)
        return applies, phases * block.message_s, share / block.bandwidth_bytes_per_s

    @abstractmethod
    def phases_and_share(self, block: Block) -> tuple[Any, Any, Any]:
        """Return where it applies, the phases, and the part of S that the busiest links carry."""

    @abstractmethod
    def plan(self, inner: int, outer: int) -> WavePlan:
        """Return the waves on a block of these sides."""

    def pieces_per_shard(self, inner: int, outer: int) -> int:
        """Return the pieces that the plan cuts."""
        return self.plan(inner, outer).num_pieces

    def block_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield one message for each link and phase."""
        inner, outer = levels_of(group)
        sides = sides_of(group)
        plan = self.plan(*sides)
        chunk_bytes = num_bytes / self.num_chunks(group)
        for message in gather_messages(plan, *sides):
            yield Transfer(
                message.phase,
                message.source,
                message.destination,
                chunk_bytes * len(message.pieces),
                tuple(owner * plan.num_pieces + piece for owner, piece in message.pieces),
                inner if message.is_inner else outer,
                0 if message.destination > message.source else 1,
            )


class EvenWave(Wave):
    """T = (R + C - 2)(latency + m_half/B) + short (long - 1)(N - 1)/(N E) S/B.

    The least messages; at the bound for squares, 97.6 % of it at 6x8 and 92.9 % at 4x8.
    """

    def phases_and_share(self, block: Block) -> tuple[Any, Any, Any]:
        """Return the form on blocks of any sides."""
        return block.applies, block.inner + block.outer - 2.0, even_share(block)

    def plan(self, inner: int, outer: int) -> WavePlan:
        """Return equal waves."""
        return even_plan(inner, outer)


class CornerWave(Wave):
    """T = (R + C - 1)(latency + m_half/B) + (N - 1)/N S/(2 B): the bytes of the lower bound."""

    def phases_and_share(self, block: Block) -> tuple[Any, Any, Any]:
        """Return the form on blocks of at least three rows and columns that differ."""
        short = smaller(block.inner, block.outer)
        applies = block.applies & (short >= 3.0) & (block.inner != block.outer)
        share = (block.size - 1.0) / block.size / 2.0
        return applies, block.inner + block.outer - 1.0, share

    def plan(self, inner: int, outer: int) -> WavePlan:
        """Return waves that load both links of a corner alike."""
        return corner_plan(inner, outer)


def tree_share(block: Block) -> Any:
    """Return (N - 1)/E: the part of each byte's way down all trees that one link carries [1]."""
    edges = 2.0 * block.size - block.inner - block.outer
    return (block.size - 1.0) / edges


def even_share(block: Block) -> Any:
    """Return the part of S that the busiest link of an even wave carries in all phases [1]."""
    short, long = smaller(block.inner, block.outer), larger(block.inner, block.outer)
    return short * (long - 1.0) / block.size * tree_share(block)


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"even_wave_{_kind}")(EvenWave(_kind))
    collective_algorithms.register(f"corner_wave_{_kind}")(CornerWave(_kind))
