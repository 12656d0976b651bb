"""A Hamiltonian cycle over the members of a block, and the gather around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.base.arrays import N
from meshwright.collectives.gathers import (
    GATHER_KINDS,
    BlockGather,
    block_of,
    levels_of,
    sides_of,
    two_way_ring_moves,
)
from meshwright.collectives.group import Group
from meshwright.collectives.registry import Transfer, collective_algorithms


def hamiltonian_cycle(num_rows: int, num_columns: int) -> list[tuple[int, int]]:
    """Return the cells (row, column) of a block in the order of a cycle of neighbours.

    A snake right of the first column, and up that column again. Range: both sides at least 2, one
    of them even.
    """
    if num_rows % 2:
        return [(row, column) for column, row in hamiltonian_cycle(num_columns, num_rows)]
    snake = []
    for row in range(num_rows):
        columns = range(1, num_columns)
        snake += [(row, column) for column in (columns if row % 2 == 0 else reversed(columns))]
    return [(0, 0), *snake, *[(row, 0) for row in range(num_rows - 1, 0, -1)]]


def cycle_gather(num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
    """Yield an all-gather in which whole shards go half way around the cycle from both sides.

    The shard of the member opposite comes half from each side.
    """
    inner, outer = levels_of(group)
    num_columns, num_rows = sides_of(group)
    cells = hamiltonian_cycle(num_rows, num_columns)
    ranks = [row * num_columns + column for row, column in cells]
    half_bytes = num_bytes / len(ranks) / 2
    for move in two_way_ring_moves(len(ranks)):
        (row, column), (next_row, next_column) = cells[move.source], cells[move.destination]
        owner = ranks[move.origin]
        halves = (0, 1) if move.half is None else (move.half,)
        yield Transfer(
            move.step,
            ranks[move.source],
            ranks[move.destination],
            half_bytes * len(halves),
            tuple(2 * owner + half for half in halves),
            inner if row == next_row else outer,
            0 if (next_row, next_column) > (row, column) else 1,
        )


class Cycle(BlockGather):
    """T = N/2 (latency + m_half/B) + (N - 1)/N S/(2 B) for a gather; one side is even."""

    def gather(self, group: Group[N]) -> tuple[Any, N, N]:
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
