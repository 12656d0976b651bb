"""Wide graphs: too many orders to look at all, so some of them, and a bound on the rest.

Kernels may leave a fixed order by fewer than so many places; the more places, the more orders. The
best partitions among those are an answer, and no answer at all is faster than the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.onchip.fusion.lattice import Lattice, Limits, TooWideError, lattice_of
from meshwright.onchip.fusion.problem import FusionProblem
from meshwright.onchip.fusion.symmetry import Branches


@dataclass(frozen=True)
class Window:
    """Orders that differ from a fixed one by fewer than so many places."""

    lattice: Lattice
    places: int


def windows(limits: Limits) -> Iterator[Window]:
    """Yield the widest window that can be looked at, for two orders of the kernels."""
    numbered = np.arange(len(limits.phase))
    for position in (numbered, _depth_first(limits.needs)):
        found = None
        for places in 2 ** np.arange(len(numbered).bit_length()):
            is_far = position[:, None] - position >= places
            narrowed = replace(limits, needs=limits.needs | is_far, branches=Branches(()))
            try:
                found = Window(lattice_of(narrowed), int(places))
            except TooWideError:
                break
        if found is not None:
            yield found


def _depth_first(needs: BoolArray) -> IntArray:
    """Return the position of each kernel in an order that follows each branch to its end."""
    position = np.full(len(needs), -1)
    ready = list(np.flatnonzero(~needs.any(axis=1))[::-1])
    for place in range(len(needs)):
        kernel = ready.pop()
        position[kernel] = place
        done = position >= 0
        next_ones = needs[:, kernel] & ~done & ~np.any(needs & ~done, axis=1)
        ready += list(np.flatnonzero(next_ones)[::-1])
    return position


def bound_s(problem: FusionProblem) -> float:
    """Return seconds that no partitions undercut, for one sequence.

    Cores, DRAM and network each take at least their sum over all partitions: kernels at their
    least cores x cycles, tensors that cannot stay on the chip, and all partial sums. Weights are
    read once for the largest micro-batch.
    """
    grid = problem.grid
    area = sum(float((cores * cycles).min()) for cores, cycles in problem.choices)
    compute = area * problem.num_tiles / (grid.num_cores * grid.frequency_hz)
    moved = _forced_bytes(problem)
    busy = max(compute, moved / grid.dram_bytes_per_s, float(problem.network_s.sum()))
    setup = problem.total_weight_bytes / grid.dram_bytes_per_s
    return max(busy + setup / problem.tried_micro_batches[0][1], problem.send_s)


def _forced_bytes(problem: FusionProblem) -> float:
    """Return the bytes of tensors that no partition can hold: from outside, or into a new phase.

    Each is written once and read once, as far as its ends are kernels.
    """
    tensors, outside = problem.tensors, problem.num_kernels
    phase = np.append(problem.phase, -1)
    writer, reader = phase[tensors.writer][:, None], phase[tensors.readers]
    crosses = np.any(writer != reader, axis=1)
    is_written = crosses & (tensors.writer != outside)
    is_read = crosses & np.any((reader != writer) & (tensors.readers != outside), axis=1)
    return float((is_written.astype(float) + is_read) @ tensors.sequence_bytes)
