"""Cores for kernels: cycles by number of cores, and the best division of a chip among many sets.

A product is cut by ``lanes`` along its rows and by ``stages`` along its columns, and takes
ceil(rows / (lanes * array rows)) * ceil(columns / (stages * array columns)) * inner cycles on
lanes * stages cores. An elementwise kernel uses the rows of an array alone.
Source: Ko et al. 2024 (DFModel, arXiv 2412.16432).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, read_only
from meshwright.dataflow.fusion.machine import CoreGrid
from meshwright.dataflow.fusion.shapes import TileShape
from meshwright.graph.dataflow.kernel import Unit

CoreChoices = tuple[IntArray, FloatArray]
"""Numbers of cores, rising, and the cycles of one tile on so many, falling."""


@lru_cache(maxsize=4096)
def core_choices(shape: TileShape, grid: CoreGrid) -> CoreChoices:
    """Return every number of cores at which a kernel becomes faster, and its cycles there."""
    if shape.unit is Unit.NONE:
        return read_only(np.ones(1, np.int64)), read_only(np.zeros(1))
    rows = -(-shape.rows // grid.array_rows)
    is_matrix = shape.unit is Unit.MATRIX
    columns = -(-shape.columns // grid.array_columns) if is_matrix else 1
    depth = shape.inner if is_matrix else shape.inner * shape.columns
    lanes, stages = _useful_parts(rows, grid.num_cores), _useful_parts(columns, grid.num_cores)
    cores = np.multiply.outer(lanes, stages).ravel()
    cycles = np.multiply.outer(-(-rows // lanes), -(-columns // stages)).ravel() * float(depth)
    fits = cores <= grid.num_cores
    return _falling(cores[fits], cycles[fits])


@lru_cache(maxsize=4096)
def least_choices(shapes: tuple[TileShape, ...], grid: CoreGrid) -> CoreChoices:
    """Return the fewest cycles for each number of cores, over several shapes of a kernel."""
    found = [core_choices(shape, grid) for shape in shapes]
    if len(found) == 1:
        return found[0]
    cores, cycles = (np.concatenate(column) for column in zip(*found, strict=True))
    return _falling(cores, cycles)


def _falling(cores: IntArray, cycles: FloatArray) -> CoreChoices:
    """Return the numbers of cores, rising, at which cycles fall."""
    order = np.lexsort((cycles, cores))
    cores, cycles = cores[order], cycles[order]
    least = np.minimum.accumulate(cycles)
    is_better = np.append(True, least[1:] < least[:-1])
    return read_only(cores[is_better]), read_only(cycles[is_better])


def _useful_parts(length: int, most: int) -> IntArray:
    """Return the numbers of parts at which ceil(length / parts) falls: at most 2 sqrt(length)."""
    small = np.arange(1, int(length**0.5) + 2, dtype=np.int64)
    found = np.unique(np.concatenate((small, -(-length // small))))
    found = found[found <= min(length, most)]
    rounds = -(-length // found)
    useful: IntArray = found[np.append(True, rounds[1:] < rounds[:-1])]
    return useful


def least_cycles(choices: Sequence[CoreChoices], num_cores: int, members: BoolArray) -> FloatArray:
    """Return the cycles of one tile of each set under the best division of the cores.

    The slowest kernel of a set decides. Within c cycles, kernel k needs need_k(c) cores, the least
    of its choices that is as fast; a set fits into c cycles when the needs of its members sum to
    the cores of the chip or less. That falls with c, so bisection over the cycles of all choices
    finds the least: no integer program is needed.

    Parameters
    ----------
    choices
        One entry for each kernel, from :func:`core_choices`.
    members
        Sets of kernels, shape (sets, kernels).

    Returns
    -------
    FloatArray
        Shape (sets,) [cycles]; infinite where there are more kernels than cores.
    """
    kinds, kind_of = _kinds(choices)
    cycles = np.unique(np.concatenate([cycles for _, cycles in kinds]))
    need = np.stack([cores_needed(kind, cycles, num_cores) for kind in kinds], axis=1)
    counts = np.stack(
        [members[:, kind_of == kind].sum(axis=1) for kind in range(len(kinds))], axis=1
    ).astype(np.float64)
    low, high = np.zeros(len(members), np.int64), np.full(len(members), len(cycles))
    need = np.append(need, need[-1:], axis=0)
    while np.any(low < high):
        middle = (low + high) // 2
        fits = np.einsum("sk,sk->s", need[middle], counts) <= num_cores
        low = np.where(fits, low, np.minimum(middle + 1, high))
        high = np.where(fits, middle, high)
    return np.append(cycles, np.inf)[low]


def cores_needed(choices: CoreChoices, cycles: FloatArray, num_cores: int) -> FloatArray:
    """Return the least cores with which a kernel takes at most so many cycles.

    More than the chip has where it cannot.
    """
    cores, taken = choices
    place = np.searchsorted(-taken, -cycles, side="left")
    return np.append(cores, num_cores + 1)[place].astype(np.float64)


def _kinds(choices: Sequence[CoreChoices]) -> tuple[list[CoreChoices], IntArray]:
    """Return the different choices, and which of them each kernel has."""
    place: dict[int, int] = {}
    kinds: list[CoreChoices] = []
    for choice in choices:
        if id(choice) not in place:
            place[id(choice)] = len(kinds)
            kinds.append(choice)
    return kinds, np.array([place[id(choice)] for choice in choices])
