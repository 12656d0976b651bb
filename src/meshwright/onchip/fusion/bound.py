"""A bound on all partitions of a problem, whatever their order: for pruning and for wide graphs."""

from __future__ import annotations

import numpy as np

from meshwright.onchip.fusion.problem import FusionProblem


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
    return max(busy + problem.total_setup_s / problem.tried_micro_batches[0][1], problem.send_s)


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
