"""Snakes and cycles of whole blocks."""

import numpy as np
import pytest

from meshwright.network.visiting_orders import (
    cycle,
    has_cycle,
    snake,
    snake_down,
)

BLOCKS = [(rows, columns) for rows in range(1, 9) for columns in range(1, 10)]


def steps(cells, *, closes=False):
    ahead = np.roll(cells, -1, axis=0) - cells
    return np.abs(ahead if closes else ahead[:-1]).sum(axis=1)


def visits_all(cells, rows, columns):
    return sorted(map(tuple, cells.tolist())) == [
        (r, c) for r in range(rows) for c in range(columns)
    ]


@pytest.mark.parametrize(("rows", "columns"), BLOCKS)
def test_snakes_are_hamiltonian_paths(rows, columns):
    for order in (snake, snake_down):
        cells = order(rows, columns)
        assert visits_all(cells, rows, columns)
        assert (steps(cells) == 1).all()


@pytest.mark.parametrize(("rows", "columns"), [block for block in BLOCKS if has_cycle(*block)])
def test_cycles_are_hamiltonian(rows, columns):
    cells = cycle(rows, columns)
    assert visits_all(cells, rows, columns)
    assert (steps(cells, closes=True) == 1).all()


def test_cycle_by_hand():
    assert cycle(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 2], [1, 1], [1, 0]]


def test_snake_by_hand():
    assert snake(2, 2).tolist() == [[0, 0], [0, 1], [1, 1], [1, 0]]
    assert snake_down(2, 2).tolist() == [[0, 0], [1, 0], [1, 1], [0, 1]]


def test_only_an_even_side_of_a_thick_block_closes():
    assert [block for block in BLOCKS if max(block) <= 3 and has_cycle(*block)] == [
        (2, 2), (2, 3), (3, 2),
    ]  # fmt: skip
