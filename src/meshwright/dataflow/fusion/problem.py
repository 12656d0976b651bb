"""What is to be fused: kernels of one device as columns, with what the chip and the rules add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, ceil_div
from meshwright.dataflow.fusion.cores import CoreChoices, least_choices
from meshwright.dataflow.fusion.machine import CoreGrid
from meshwright.dataflow.fusion.rules import OWN, Rules
from meshwright.dataflow.fusion.shapes import passing_dims, tile_shape
from meshwright.dataflow.fusion.tensors import Sizes, Tensors, is_summed_over_tiles, tensors_of
from meshwright.dataflow.splits import local_sizes
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Kernel, Unit
from meshwright.graph.op import Phase

MOST_SEQUENCES = 65_536
"""In a micro-batch, where tensors take no DRAM."""


@dataclass(frozen=True)
class Share:
    """What one device does of a workload, and how sequences reach it."""

    tp: int = 1
    """Devices over which kernels are split."""
    splits: Mapping[str, str | None] = field(default_factory=dict)
    """The dim along which each kernel is split; None or no entry: done whole by all."""
    network_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of network of each kernel for one sequence."""
    tile: int = 64
    """Length of a tile of the tiled dim, over all devices."""
    repeats: float = 1.0
    """Times that the graph stands on the device, one behind the other: layers of a stage."""
    send_s: float = 0.0
    """Seconds in which a sequence moves on to the next stage."""
    micro_batches: tuple[int, ...] = ()
    """Sequences that pass at once; none given: the best."""
    runs_by_kernel: bool = False
    """Every kernel is a partition of its own, and no tensor stays on the chip."""
    open_splits: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """Dims of kernels whose split is open. Each column of a problem is then the least over them, so
    that no split has a faster fusion; the network apart."""

    def sizes(self, kernel: Kernel, sizes: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
        """Return the sizes on one device of the dims of a kernel, for each way to split it."""
        dims = self.open_splits.get(kernel.name) or (self.splits.get(kernel.name),)
        return tuple(local_sizes(sizes, dim, self.tp) for dim in dims)


@dataclass(frozen=True)
class FusionProblem:
    """Kernels in an order in which they can run, as columns of what one device does of them."""

    names: tuple[str, ...]
    reads: BoolArray
    """Shape (kernels, kernels): whether the first reads what the second writes."""
    phase: IntArray
    """A phase begins when the one before it is done; a partition lies within one."""
    choices: tuple[CoreChoices, ...]
    held_bytes: FloatArray
    """What stays in SRAM for a micro-batch: weights, and sums over all tiles [bytes]."""
    setup_bytes: FloatArray
    """What passes between DRAM and chip once a micro-batch [bytes]."""
    looked_up_bytes: FloatArray
    """Rows of tables that pass from DRAM for one sequence [bytes]."""
    network_s: FloatArray
    """Of one sequence [s]."""
    tensors: Tensors
    grid: CoreGrid
    num_tiles: int
    """Tiles of one sequence."""
    room_bytes: float
    """DRAM for the tensors between partitions, of one repetition [bytes]."""
    send_s: float = 0.0
    micro_batches: tuple[int, ...] = ()
    rules: Rules = OWN
    runs_by_kernel: bool = False

    @property
    def tried_micro_batches(self) -> tuple[tuple[int, int], ...]:
        """Ranges of sequences that pass at once, the largest first.

        A range of one number where they are given, or where filling partitions depends on them:
        then powers of two. Otherwise the largest that DRAM holds, since nothing speaks against it.
        """
        if self.micro_batches:
            return tuple((size, size) for size in sorted(self.micro_batches, reverse=True))
        if self.rules.counts_fill:
            powers = range(MOST_SEQUENCES.bit_length() - 1, -1, -1)
            return tuple((1 << power, 1 << power) for power in powers)
        return ((1, MOST_SEQUENCES),)

    @property
    def num_kernels(self) -> int:
        """How many kernels there are."""
        return len(self.names)

    def sets_of(self, partitions: Iterable[Iterable[str]]) -> BoolArray:
        """Return partitions of named kernels as rows, shape (partitions, kernels)."""
        rows = [[name in names for name in self.names] for names in map(frozenset, partitions)]
        return np.array(rows, bool)

    @cached_property
    def needs(self) -> BoolArray:
        """Whether the first kernel comes only after the second, like ``reads``."""
        found: BoolArray = self.reads | (self.phase[:, None] > self.phase)
        return found

    @cached_property
    def total_setup_s(self) -> float:
        """Reading what stays for a micro-batch, over all kernels [s]."""
        return float(self.setup_bytes.sum()) / self.grid.dram_bytes_per_s


def fusion_problem(
    graph: DataflowGraph, grid: CoreGrid, share: Share, rules: Rules = OWN
) -> FusionProblem:
    """Return the fusion problem of one device of a group of ``share.tp``."""
    passing, (tiles, one_tile) = passing_dims(graph), _one_tile(graph, share)
    padded = {**one_tile, **{dim: tiles * one_tile[dim] for dim in passing}}
    held = [share.sizes(kernel, padded) for kernel in graph.kernels]
    shapes = [
        tuple(tile_shape(kernel, sizes, passing) for sizes in share.sizes(kernel, one_tile))
        for kernel in graph.kernels
    ]
    weights, tables = _weight_bytes(graph, held)
    sums = _summed_bytes(graph, held, rules)
    buffers = 1 if share.runs_by_kernel else 2
    return FusionProblem(
        names=tuple(kernel.name for kernel in graph.kernels),
        reads=graph.reads,
        phase=np.array([k.phase is not Phase.FORWARD for k in graph.kernels], np.int64),
        choices=tuple(least_choices(several, grid) for several in shapes),
        held_bytes=weights + sums,
        setup_bytes=weights + 2.0 * sums,
        looked_up_bytes=_looked_up_bytes(graph, held),
        network_s=np.array([share.network_s.get(k.name, 0.0) for k in graph.kernels]),
        tensors=tensors_of(graph, held, tiles, rules, buffers=buffers),
        grid=grid,
        num_tiles=tiles,
        room_bytes=_room_bytes(graph, grid, share, float((weights + tables + sums).sum()), rules),
        send_s=share.send_s,
        micro_batches=share.micro_batches,
        rules=rules,
        runs_by_kernel=share.runs_by_kernel,
    )


def _one_tile(graph: DataflowGraph, share: Share) -> tuple[int, Mapping[str, int]]:
    """Return the number of tiles of a sequence, and the sizes of all dims in one tile."""
    tiles = int(ceil_div(graph.sizes[graph.tiled], share.tile))
    parts = {dim: -(-graph.sizes[dim] // tiles) for dim in passing_dims(graph)}
    return tiles, {**graph.sizes, **parts, graph.tiled: share.tile}


def least_work_s(graph: DataflowGraph, grid: CoreGrid, share: Share) -> FloatArray:
    """Return the least seconds of all cores that each kernel takes for a sequence.

    Cores and cycles under the best number of cores; no partition takes less than their sum.
    """
    passing, (tiles, sizes) = passing_dims(graph), _one_tile(graph, share)
    found = []
    for kernel in graph.kernels:
        shapes = [tile_shape(kernel, local, passing) for local in share.sizes(kernel, sizes)]
        cores, cycles = least_choices(tuple(shapes), grid)
        found.append(float((cores * cycles).min()))
    seconds: FloatArray = np.array(found) * (tiles / (grid.num_cores * grid.frequency_hz))
    return seconds


def _weight_bytes(graph: DataflowGraph, sizes: Sizes) -> tuple[FloatArray, FloatArray]:
    """Return the bytes of weights of each kernel, and those of tables that stay in DRAM."""
    held = np.array(
        [
            min(sum(_local(graph, size).weight_bytes(w) for w in kernel.weights) for size in ways)
            for kernel, ways in zip(graph.kernels, sizes, strict=True)
        ],
        np.float64,
    )
    is_table = np.array([kernel.unit is Unit.NONE for kernel in graph.kernels])
    return np.where(is_table, 0.0, held), np.where(is_table, held, 0.0)


def _local(graph: DataflowGraph, sizes: Mapping[str, int]) -> DataflowGraph:
    """Return a graph with the sizes on one device."""
    return replace(graph, sizes=sizes)


def _looked_up_bytes(graph: DataflowGraph, sizes: Sizes) -> FloatArray:
    """Return the bytes of the rows that each lookup reads."""
    return np.array(
        [
            graph.word_bytes * min(prod(float(size[dim]) for dim in kernel.points) for size in ways)
            if kernel.unit is Unit.NONE and kernel.weights
            else 0.0
            for kernel, ways in zip(graph.kernels, sizes, strict=True)
        ]
    )


def _summed_bytes(graph: DataflowGraph, sizes: Sizes, rules: Rules) -> FloatArray:
    """Return the bytes that each kernel sums up over all tiles and hands on outside."""
    counted = rules.counts_ends
    return np.array(
        [
            min(_local(graph, size).tensor_bytes(kernel) for size in ways)
            if counted and is_summed_over_tiles(graph, kernel)
            else 0.0
            for kernel, ways in zip(graph.kernels, sizes, strict=True)
        ]
    )


def _room_bytes(
    graph: DataflowGraph, grid: CoreGrid, share: Share, held_bytes: float, rules: Rules
) -> float:
    """Return the DRAM that is left for tensors, for one repetition of the graph.

    Forward alone, repetitions follow one another and their tensors are freed; what a backward
    pass reads stays for all of them.
    """
    has_backward = any(kernel.phase is not Phase.FORWARD for kernel in graph.kernels)
    if rules.frees_tensors and not has_backward:
        return grid.dram_bytes - share.repeats * held_bytes
    return grid.dram_bytes / share.repeats - held_bytes
