"""Bounds on all partitions of a problem, whatever their order: for pruning and for wide graphs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.dataflow.fusion.prices import price_partitions
from meshwright.dataflow.fusion.problem import FusionProblem


def bound_s(problem: FusionProblem) -> float:
    """Return seconds that no partitions undercut, for one sequence.

    A kernel that holds more than the SRAM is a partition of its own, so its time is known. All
    others of a phase take their shares. Weights are read once for the largest micro-batch.
    """
    shares = shares_of(problem)
    busy = float(shares.alone_s.sum() + shares.least_s(shares.alone_s[None] == 0.0)[0])
    setup = problem.total_setup_s / problem.tried_micro_batches[0][1]
    return max(busy + setup, problem.send_s)


@dataclass(frozen=True)
class Shares:
    """What each kernel takes at least of cores, DRAM and network, in whatever partition."""

    alone_s: FloatArray
    """Of kernels that hold more than the SRAM: their whole time; 0 of others, (kernels,) [s]."""
    resources_s: FloatArray
    """Of all others, cores, DRAM and network; 0 of those alone, shape (kernels, 3) [s]."""
    phase: FloatArray
    """Kernels of each phase, shape (phases, kernels): ones and zeros."""

    def least_s(self, sets: BoolArray) -> FloatArray:
        """Return seconds that no partitions of each set undercut, shape (sets, kernels).

        A partition lies within a phase, and takes the sums of its kernels of each resource.
        """
        total = sets @ self.alone_s
        for members in self.phase:
            total = total + (sets @ (members[:, None] * self.resources_s)).max(axis=1)
        seconds: FloatArray = total
        return seconds


def shares_of(problem: FusionProblem) -> Shares:
    """Return the shares of all kernels: least cores x cycles, forced DRAM traffic, network."""
    grid = problem.grid
    is_alone = problem.held_bytes > grid.sram_bytes
    alone = np.zeros(problem.num_kernels)
    alone[is_alone] = price_partitions(
        problem, np.eye(problem.num_kernels, dtype=bool)[is_alone]
    ).busy_s
    area = np.array([float((cores * cycles).min()) for cores, cycles in problem.choices])
    cores_s = area * problem.num_tiles / (grid.num_cores * grid.frequency_hz)
    dram_s = _forced_bytes(problem, is_alone) / grid.dram_bytes_per_s
    resources = np.stack([cores_s, dram_s, problem.network_s], axis=1)
    resources[is_alone] = 0.0
    phases = np.unique(problem.phase)
    return Shares(alone, resources, (problem.phase == phases[:, None]).astype(float))


def _forced_bytes(problem: FusionProblem, is_alone: BoolArray) -> FloatArray:
    """Return the bytes that each kernel moves at least, those alone apart, shape (kernels,).

    Rows of tables, and tensors that no partition can hold: they come from outside or go there,
    belong to two phases, or have an end that is alone. Each is written once, and read once by the
    kernels of a phase together, which share it out.
    """
    tensors, n = problem.tensors, problem.num_kernels
    found = np.append(problem.looked_up_bytes, 0.0)
    place = np.append(np.where(is_alone, -1, problem.phase), -1)
    writer, readers = place[tensors.writer], place[tensors.readers]
    is_written = np.any(readers != writer[:, None], axis=1)
    np.add.at(found, tensors.writer, np.where(is_written, tensors.sequence_bytes, 0.0))
    for phase in np.unique(problem.phase):
        reads = tensors.is_slot & (readers == phase) & (writer[:, None] != phase)
        each = tensors.sequence_bytes / np.maximum(reads.sum(axis=1), 1)
        np.add.at(found, tensors.readers, reads * each[:, None])
    return found[:n]
