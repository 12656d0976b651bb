"""A graph with some kernels left out: no partitions of the whole are faster than its best ones.

Graphs are wide because light kernels stand beside others: index arithmetic, masks, slices, biases.
Without them few ideals remain. These are all searched, for a bound; and with the others put back,
as late or as early as they can run, they are partitions of the whole.

A kernel that is left out takes no cores, weights or buffers. Its output is joined to one of the
tensors that it read: its readers read that one, in the fewer of both bytes and in no larger
buffers. In any partition of the kernel, one of the two tensors crossed wherever the joined one
does, so no partition moves or holds more than before; and its readers now depend on its sources. A
partition also holds all kernels that stand between two of its own: they take their cores and
buffers after all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.dataflow.fusion.lattice import (
    Branches,
    Lattice,
    Window,
    lattice_of,
    limits_of,
    row_keys,
)
from meshwright.dataflow.fusion.price import (
    PartitionPrices,
    bound_s,
    in_best_tiles,
    least_of_larger,
    price_partitions,
)
from meshwright.dataflow.fusion.problem import FusionProblem, Tensors
from meshwright.dataflow.ideals import TooWideError, all_needs

MOST_IDEALS = 10_000
"""Most ideals of the kernels that are kept."""
MOST_STEPS = 100_000
"""Most steps between these ideals: about a second of pricing for 400 kernels."""


@dataclass(frozen=True)
class FewerKernels:
    """A problem without some kernels, and every order of the rest."""

    problem: FusionProblem
    kept: IntArray
    """Indices in the whole graph of the kernels that are kept."""
    lattice: Lattice
    """The steps that may fit."""
    prices: PartitionPrices
    """Prices no higher than those of any partition of the whole that holds the kernels of a set."""


def fewer_kernels(problem: FusionProblem) -> FewerKernels:
    """Return a problem without the fewest kernels that leave all orders of the rest to be searched.

    The more are left out, the fewer ideals remain: their number is bisected.
    """
    leaving = _leaving(problem)
    found = _kept(problem, leaving)
    fewest, most = 0, len(leaving)
    while fewest < most:
        number = (fewest + most) // 2
        try:
            found, most = _kept(problem, leaving[:number]), number
        except TooWideError:
            fewest = number + 1
    rest, lattice = found
    kept = np.setdiff1d(np.arange(problem.num_kernels), leaving[:most])
    prices = least_prices(problem, rest, kept, lattice.sets)
    chosen = np.isin(np.arange(lattice.num_sets), prices.number)
    prices = replace(prices, number=np.cumsum(chosen)[prices.number] - 1)
    return FewerKernels(rest, kept, lattice.of_sets(chosen), prices)


def _kept(problem: FusionProblem, left_out: Sequence[int]) -> tuple[FusionProblem, Lattice]:
    """Return a problem without some kernels, its equal branches kept distinct."""
    rest = without(problem, left_out)
    limits = replace(limits_of(rest), branches=Branches(()))
    return rest, lattice_of(limits, MOST_STEPS, MOST_IDEALS)


def least_prices(
    problem: FusionProblem, rest: FusionProblem, kept: IntArray, sets: BoolArray
) -> PartitionPrices:
    """Return prices that no partition of the whole undercuts, for sets of the kept kernels.

    Those of the rest; and where a set fits, those of the set together with the kernels between its
    own. A set has an entry for each tile that no other one beats.
    """
    after = all_needs(problem.needs).astype(np.float32)
    members = sets.astype(np.float32)
    whole = (members @ after[kept] > 0.0) & (members @ after[:, kept].T > 0.0)
    whole[:, kept] = sets
    found = []
    for tile, rest_tile in zip(problem.tiles, rest.tiles, strict=True):
        prices = price_partitions(rest_tile, sets)
        rows = np.flatnonzero(prices.fits)
        prices.fits[rows], together = least_of_larger(tile, whole[rows])
        prices.compute_s[rows] = np.maximum(prices.compute_s[rows], together)
        found.append(prices)
    return in_best_tiles(found)


LEAST_SHARE = 1e-4
"""Added to the share of a kernel, and to the number of kernels beside it: neither is zero."""


def _leaving(problem: FusionProblem) -> list[int]:
    """Return kernels in the order in which they are left out, except the largest of each phase.

    First come those with many kernels beside them and a small share: their least seconds of
    computation, DRAM and network over those of the graph, and their weights and buffers over the
    SRAM.
    """
    grid, tensors = problem.grid, problem.tensors
    buffers, written = np.zeros((2, problem.num_kernels + 1))
    np.maximum.at(buffers, tensors.writer, tensors.inside_bytes.max(axis=1, initial=0.0))
    np.maximum.at(written, tensors.writer, tensors.sequence_bytes)
    cycles = np.array([cycles[-1] for _, cycles in problem.choices])
    seconds = (
        cycles * (problem.num_tiles / grid.frequency_hz)
        + (problem.looked_up_bytes + written[:-1]) / grid.dram_bytes_per_s
        + problem.network_s
    )
    share = seconds / bound_s(problem) + (problem.held_bytes + buffers[:-1]) / grid.sram_bytes
    after = all_needs(problem.needs)
    is_beside = ~(after | after.T | np.eye(len(after), dtype=bool))
    beside = LEAST_SHARE + is_beside.sum(axis=1)
    for phase in np.unique(problem.phase):
        of_phase = np.flatnonzero(problem.phase == phase)
        beside[of_phase[np.argmax(share[of_phase])]] = -np.inf
    # what is next to a kernel that must be alone cannot be put back beside it
    is_alone = problem.held_bytes > grid.sram_bytes
    near = (problem.reads | problem.reads.T)[is_alone].any(axis=0)
    worth = np.where(near, 1e9, 1.0) * (share + LEAST_SHARE)
    found: list[int] = []
    while np.any(beside > 0.0):
        found.append(int(np.argmax(beside / worth)))
        beside -= is_beside[found[-1]]
        beside[found] = -np.inf
    return found


@dataclass
class _Joined:
    """A tensor while kernels are left out; a reader has its buffers inside and from outside."""

    writer: int
    readers: dict[int, tuple[float, float]]
    sequence_bytes: float
    written_bytes: float

    def add(self, reader: int, inside_bytes: float, read_bytes: float) -> None:
        """Add a reader; of one that reads already, the larger buffers."""
        here, there = self.readers.get(reader, (0.0, 0.0))
        self.readers[reader] = (max(here, inside_bytes), max(there, read_bytes))


def without(problem: FusionProblem, left_out: Sequence[int]) -> FusionProblem:
    """Return a problem without some kernels that no partitions of the whole undercut.

    Setup bytes of the kernels left out remain, where no partition hides them.
    """
    tensors, reads = _listed(problem.tensors), problem.reads.copy()
    for kernel in left_out:
        tensors = _joined(tensors, kernel)
        reads[reads[:, kernel]] |= reads[kernel]
    is_kept = np.ones(problem.num_kernels, bool)
    is_kept[list(left_out)] = False
    kept = np.flatnonzero(is_kept)
    number = np.append(np.cumsum(is_kept) - 1, len(kept))
    setup = problem.setup_bytes[kept]
    if not problem.rules.loads_ahead:
        setup[:1] += problem.setup_bytes[~is_kept].sum()
    return replace(
        problem,
        names=tuple(problem.names[kernel] for kernel in kept.tolist()),
        reads=reads[np.ix_(kept, kept)],
        phase=problem.phase[kept],
        choices=tuple(problem.choices[kernel] for kernel in kept.tolist()),
        held_bytes=problem.held_bytes[kept],
        setup_bytes=setup,
        looked_up_bytes=problem.looked_up_bytes[kept],
        network_s=problem.network_s[kept],
        waits=problem.waits[np.ix_(kept, kept)],
        tensors=_columns(tensors, number),
        other_tiles=tuple(without(tile, left_out) for tile in problem.other_tiles),
    )


def _listed(tensors: Tensors) -> list[_Joined]:
    """Return the rows of tensors."""
    columns = (tensors.writer, tensors.sequence_bytes, tensors.written_bytes)
    found = [
        _Joined(writer, {}, whole, written)
        for writer, whole, written in zip(*(column.tolist() for column in columns), strict=True)
    ]
    for row, slot in np.argwhere(tensors.is_slot).tolist():
        here, there = tensors.inside_bytes[row, slot], tensors.read_bytes[row, slot]
        found[row].add(int(tensors.readers[row, slot]), float(here), float(there))
    return found


def _columns(tensors: Sequence[_Joined], number: IntArray) -> Tensors:
    """Return tensors as columns, their kernels renumbered."""
    most = max((len(tensor.readers) for tensor in tensors), default=1)
    readers = np.zeros((len(tensors), most), np.int64)
    inside, outside = np.zeros((2, len(tensors), most))
    for row, tensor in enumerate(tensors):
        entries = list(tensor.readers.items())
        for slot in range(most):
            reader, buffers = entries[slot if slot < len(entries) else 0]
            readers[row, slot] = reader
            inside[row, slot], outside[row, slot] = buffers
    return Tensors(
        writer=number[np.array([tensor.writer for tensor in tensors], np.int64)],
        readers=number[readers],
        sequence_bytes=np.array([tensor.sequence_bytes for tensor in tensors], np.float64),
        inside_bytes=inside,
        written_bytes=np.array([tensor.written_bytes for tensor in tensors], np.float64),
        read_bytes=outside,
    )


def _joined(tensors: Sequence[_Joined], kernel: int) -> list[_Joined]:
    """Return the tensors without a kernel: its output is joined to an input.

    To one that all its readers read already, which loses nothing; else to one that is no larger, or
    that no other kernel reads. If there is none, its readers read nothing instead.
    """
    given = [tensor for tensor in tensors if kernel in tensor.readers]
    made = [tensor for tensor in tensors if tensor.writer == kernel]
    found = [tensor for tensor in tensors if tensor.writer != kernel]
    if given and made:
        whole = min(tensor.sequence_bytes for tensor in made)
        readers = {reader for tensor in made for reader in tensor.readers}

        def rank(tensor: _Joined) -> tuple[int, float]:
            others = tensor.readers.keys() - {kernel}
            if readers <= others:
                return 2, tensor.sequence_bytes
            is_free = tensor.sequence_bytes <= whole or not others
            return int(is_free), min(tensor.sequence_bytes, whole)

        best = max(given, key=rank)
        if kind := rank(best)[0]:
            here, there = best.readers[kernel]
            for tensor in made:
                for reader, (inside, outside) in tensor.readers.items():
                    best.add(reader, here + inside, min(there + inside, outside))
            if kind == 1:
                best.sequence_bytes = min(best.sequence_bytes, whole)
                written = min(tensor.written_bytes for tensor in made)
                best.written_bytes = min(best.written_bytes, written)
    for tensor in given:
        del tensor.readers[kernel]
    return [tensor for tensor in found if tensor.readers]


def put_back(problem: FusionProblem, fewer: FewerKernels, *, late: bool) -> Lattice:
    """Return ideals of the whole graph: those of the kept kernels, with the others put back.

    Late, a kernel runs with the first that needs it; early, with the last that it needs. A kernel
    with none of them in its phase runs at the other end of its range.
    """
    kept, lattice = fewer.kept, fewer.lattice
    after, phase = all_needs(problem.needs), problem.phase
    is_same = phase[:, None] == phase
    is_needed = (after & is_same)[kept].any(axis=0)
    # a kernel is ready when the kept ones that it needs have run, and its phase has begun
    ready = ~lattice.ideals @ after[:, kept].T.astype(np.float32) == 0.0
    ready &= lattice.ideals @ is_same[kept].astype(np.float32) > 0.0
    ideals = ready & ~is_needed if late else ready
    ideals[:, kept] = lattice.ideals
    ideals |= ideals @ after.astype(np.float32) > 0.0
    beyond = ideals[lattice.target] & ~ideals[lattice.source]
    _, first, partition = np.unique(row_keys(beyond), return_index=True, return_inverse=True)
    return replace(lattice, ideals=ideals, partition=partition, windows=(Window(0, beyond[first]),))
