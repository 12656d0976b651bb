"""Orders in which the cells of a whole block of a grid can be visited."""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from meshwright.base.arrays import IntArray, read_only


def snake(rows: int, columns: int) -> IntArray:
    """Return a Hamiltonian path: row after row, every other one from the right; (cells, 2)."""
    cells = np.stack(np.divmod(np.arange(rows * columns), columns), axis=1)
    turns_back = cells[:, 0] % 2 == 1
    cells[turns_back, 1] = columns - 1 - cells[turns_back, 1]
    return cells


def snake_down(rows: int, columns: int) -> IntArray:
    """Return a Hamiltonian path: column after column, every other one upwards; (cells, 2)."""
    return snake(columns, rows)[:, ::-1].copy()


def has_cycle(rows: int, columns: int) -> bool:
    """Tell whether a block has a Hamiltonian cycle.

    A cycle takes cells of both colours of the chessboard in turn, so their number is even.
    """
    return min(rows, columns) >= 2 and rows * columns % 2 == 0


def cycle(rows: int, columns: int) -> IntArray:
    """Return a Hamiltonian cycle: a snake right of the first column, and up that column again.

    Valid for: blocks with ``has_cycle``. An odd number of rows: mirrored at the diagonal.
    """
    if rows % 2 == 1 or (columns == 2 and rows > 2):
        return _cycle(columns, rows)[:, ::-1].copy()
    return _cycle(rows, columns)


def _cycle(rows: int, columns: int) -> IntArray:
    """Return the cycle of a block with an even number of rows."""
    inside = snake(rows, columns - 1) + np.array((0, 1))
    back = np.stack((np.arange(rows - 1, 0, -1), np.zeros(rows - 1, dtype=np.int64)), axis=1)
    return np.concatenate((np.zeros((1, 2), dtype=np.int64), inside, back))


@cache
def chain(
    sizes: tuple[int, ...], *, closes: bool = False, is_side_by_side: bool = False
) -> IntArray:
    """Return the cells of a block along neighbours, as numbers; (cells,).

    Cells count along the first size first: columns, then rows, then planes. They are visited in a
    snake, or in a cycle where it is requested and there is one.

    Parameters
    ----------
    is_side_by_side
        The last size counts blocks that are side by side, as wafers do: each is visited column
        after column, from its left to its right, where the next one begins.
    """
    if is_side_by_side and sizes[-1] > 1:
        columns, *others = sizes[:-1]
        cells = snake_down(prod(others), columns)
        first = np.arange(sizes[-1]) * prod(sizes[:-1])
        numbers: IntArray = first[:, None] + (cells[:, 0] * columns + cells[:, 1])[None, :]
        return read_only(numbers.reshape(-1))
    order = np.arange(sizes[0])
    for index, size in enumerate(sizes[1:], start=1):
        is_last = prod(sizes[index + 1 :]) == 1
        turns = closes and is_last and has_cycle(size, len(order))
        cells = (cycle if turns else snake)(size, len(order))
        order = order[cells[:, 1]] + cells[:, 0] * len(order)
        if is_last:
            break
    return read_only(order)


def closes_in(sizes: tuple[int, ...]) -> bool:
    """Tell whether a block of several long sides has a Hamiltonian cycle of neighbours."""
    long_sides = [size for size in sizes if size > 1]
    return len(long_sides) > 1 and prod(long_sides) % 2 == 0
