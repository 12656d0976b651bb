"""A bound on all partitions of a problem, whatever their order: for pruning and for wide graphs."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import BoolArray
from meshwright.onchip.fusion.prices import price_partitions
from meshwright.onchip.fusion.problem import FusionProblem


def bound_s(problem: FusionProblem) -> float:
    """Return seconds that no partitions undercut, for one sequence.

    A kernel that holds more than the SRAM is a partition of its own, so its time is known. For all
    others together, cores, DRAM and network each take at least their sum: kernels at their least
    cores x cycles, tensors that cannot stay on the chip, and all partial sums. Weights are read
    once for the largest micro-batch.
    """
    grid = problem.grid
    is_alone = problem.held_bytes > grid.sram_bytes
    alone = price_partitions(problem, np.eye(problem.num_kernels, dtype=bool)[is_alone])
    area = np.array([float((cores * cycles).min()) for cores, cycles in problem.choices])
    compute = area[~is_alone].sum() * problem.num_tiles / (grid.num_cores * grid.frequency_hz)
    moved = _forced_bytes(problem, is_alone) + problem.looked_up_bytes[~is_alone].sum()
    network = problem.network_s[~is_alone].sum()
    busy = float(alone.busy_s.sum()) + max(compute, moved / grid.dram_bytes_per_s, network)
    setup = problem.total_setup_s / problem.tried_micro_batches[0][1]
    return max(float(busy + setup), problem.send_s)


def _forced_bytes(problem: FusionProblem, is_alone: BoolArray) -> float:
    """Return what kernels that are not alone move: tensors that no partition can hold.

    They come from outside or go there, belong to two phases, or have an end that is alone. Each is
    written once and read once, as far as its ends are such kernels.
    """
    tensors = problem.tensors
    place = np.append(np.where(is_alone, -1, problem.phase), -1)
    writer, readers = place[tensors.writer], place[tensors.readers]
    is_written = (writer >= 0) & np.any(readers != writer[:, None], axis=1)
    is_read = np.any((readers >= 0) & (readers != writer[:, None]), axis=1)
    return float((is_written.astype(float) + is_read) @ tensors.sequence_bytes)
