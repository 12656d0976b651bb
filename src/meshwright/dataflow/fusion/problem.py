"""What fusion counts: the rules of DFModel, and the stricter ones of a chip that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, ceil_div
from meshwright.dataflow.fusion.cores import (
    CoreChoices,
    CoreGrid,
    least_choices,
    passing_dims,
    tile_shape,
)
from meshwright.dataflow.layouts import local_sizes
from meshwright.graph.kernels.graph import DataflowGraph, Edge
from meshwright.graph.kernels.kernel import Dims, Kernel, Unit, single_dims
from meshwright.graph.op import Phase


@dataclass(frozen=True)
class Rules:
    """Where the two sets of rules differ."""

    writes_once: bool
    """A tensor with several readers is one tensor; else each reader has a copy of its own."""
    counts_ends: bool
    """What enters and leaves the graph passes through DRAM too. What a kernel sums up over all
    tiles (weight gradients) is held like a weight, and read and written once a micro-batch."""
    holds_reads: bool
    """SRAM holds a tensor as its reader needs it: gathered from all devices, and all tiles of what
    is read at once (keys, values); else as its writer leaves it."""
    frees_tensors: bool
    """DRAM holds a tensor from its writing to its last reading, not all tensors at once."""
    counts_fill: bool
    """A partition of several kernels in a row fills and drains once for each micro-batch."""
    rereads: bool
    """A kernel whose weights come in parts reads its inputs once for each part."""


OWN = Rules(
    writes_once=True, counts_ends=True, holds_reads=True, frees_tensors=True,
    counts_fill=True, rereads=True,
)  # fmt: skip
"""Everything that a running chip pays."""

DFMODEL = Rules(
    writes_once=False, counts_ends=False, holds_reads=False, frees_tensors=False,
    counts_fill=False, rereads=False,
)  # fmt: skip
"""The rules of the public implementation of DFModel (Ko et al. 2024, arXiv 2412.16432)."""

RULES = {"own": OWN, "dfmodel": DFMODEL}


Sizes = Sequence[Sequence[Mapping[str, int]]]
"""For each kernel and each way to split it the sizes of its dims on one device, that of the tiled
dim for a sequence. Of several ways the least counts."""


@dataclass(frozen=True)
class Tensors:
    """Columns, one entry for each tensor; a kernel number of ``num_kernels`` is the outside.

    Readers are padded with the first one to a common number.
    """

    writer: IntArray
    readers: IntArray
    """Shape (tensors, most readers)."""
    sequence_bytes: FloatArray
    """All tiles of one sequence [bytes]."""
    inside_bytes: FloatArray
    """Buffers where writer and reader share a partition, like ``readers`` [bytes]."""
    written_bytes: FloatArray
    """Buffers where it leaves the partition [bytes]."""
    read_bytes: FloatArray
    """Buffers where it comes from another partition, like ``readers`` [bytes]."""

    @cached_property
    def is_slot(self) -> BoolArray:
        """Which readers are no padding, like ``readers``."""
        found: BoolArray = self.readers != self.readers[:, :1]
        found[:, :1] = True
        return found


@dataclass(frozen=True)
class _Size:
    """Bytes of a tensor on one device: of a sequence, and of a tile where it passes in tiles."""

    whole: float
    tile: float


@dataclass(frozen=True)
class _Read:
    """A reader, what it needs of the tensor, and how many tiles are under way to it."""

    kernel: int
    size: _Size
    depth: int = 1
    is_whole: bool = False
    """It needs all tiles at once."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor as its writer leaves it."""

    writer: int
    size: _Size
    reads: list[_Read]


def levels(graph: DataflowGraph) -> list[int]:
    """Return the longest path to each kernel, in kernels before it."""
    found = [0] * len(graph.kernels)
    for edge in graph.edges:
        found[edge.consumer] = max(found[edge.consumer], found[edge.producer] + 1)
    return found


def tensors_of(
    graph: DataflowGraph, sizes: Sizes, num_tiles: int, rules: Rules, *, buffers: int = 2
) -> Tensors:
    """Return the tensors of a graph as a device holds them.

    A tensor inside a partition has level(reader) - level(writer) + 1 buffers of one tile: so many
    tiles are between the two in a pipeline that is full. One that crosses has ``buffers`` at both
    ends. Source: Ko et al. 2024 (DFModel, arXiv 2412.16432).
    """
    level, layout = levels(graph), _Layout(graph, sizes, num_tiles, passing_dims(graph))
    found: list[_Tensor] = []
    for writer, kernel in enumerate(graph.kernels):
        size = layout.size(writer, kernel.dims, kernel.word_bytes)
        reads = []
        for edge in graph.edges:
            if edge.producer == writer:
                depth = level[edge.consumer] - level[writer] + 1
                reads.append(_read(layout, edge, size, depth, rules))
        leaves = rules.counts_ends and kernel.name in graph.outputs
        if leaves and not is_summed_over_tiles(graph, kernel):
            reads.append(_Read(len(graph.kernels), size))
        if reads:
            groups = [reads] if rules.writes_once else [[read] for read in reads]
            found += [_Tensor(writer, size, group) for group in groups]
    if rules.counts_ends:
        found += _inputs(layout)
    return _columns(found, buffers)


@dataclass(frozen=True)
class _Layout:
    """How the tensors of a graph lie on a device."""

    graph: DataflowGraph
    sizes: Sizes
    num_tiles: int
    passing: frozenset[str]

    def passes(self, dims: Dims) -> bool:
        """Tell whether a tensor of these dims passes in tiles."""
        return not self.passing.isdisjoint(single_dims(dims))

    def size(self, kernel: int, dims: Dims, word_bytes: float | None) -> _Size:
        """Return the bytes of a tensor of these dims on the device of a kernel."""
        word = self.graph.word_bytes if word_bytes is None else word_bytes
        parts = single_dims(dims)
        whole = word * min(prod(float(size[dim]) for dim in parts) for size in self.sizes[kernel])
        return _Size(whole, whole / self.num_tiles if self.passes(dims) else whole)


def _read(layout: _Layout, edge: Edge, left: _Size, depth: int, rules: Rules) -> _Read:
    """Return one read of a tensor that its writer leaves in some size."""
    if not rules.holds_reads:
        return _Read(edge.consumer, left, depth)
    kernels = layout.graph.kernels
    writer, dims = kernels[edge.producer], kernels[edge.consumer].inputs[edge.place].dims
    asked = layout.size(edge.consumer, dims, writer.word_bytes)
    full = layout.graph.tensor_bytes(writer)
    most = full / layout.num_tiles if layout.passes(writer.dims) else full
    needed = _Size(min(asked.whole, full), min(asked.tile, most))
    return _Read(
        edge.consumer,
        _Size(max(left.whole, needed.whole), max(left.tile, needed.tile)),
        depth,
        is_whole=layout.passes(writer.dims) and not layout.passes(dims),
    )


def is_summed_over_tiles(graph: DataflowGraph, kernel: Kernel) -> bool:
    """Tell whether a kernel hands one sum over all tiles to the outside: a weight gradient."""
    passing = passing_dims(graph)
    is_sum = passing.isdisjoint(single_dims(kernel.dims)) and not passing.isdisjoint(
        kernel.contracted
    )
    return is_sum and kernel.name in graph.outputs


def _inputs(layout: _Layout) -> list[_Tensor]:
    """Return what comes from outside, once for each input."""
    graph = layout.graph
    found = []
    for name in graph.inputs:
        reads = [
            _Read(number, layout.size(number, operand.dims, None))
            for number, kernel in enumerate(graph.kernels)
            for operand in kernel.inputs
            if operand.source == name
        ]
        if reads:
            found.append(_Tensor(len(graph.kernels), reads[0].size, reads))
    return found


def _columns(found: Sequence[_Tensor], buffers: int) -> Tensors:
    """Return tensors as columns."""
    most = max((len(tensor.reads) for tensor in found), default=1)
    padded = [[*t.reads, *[t.reads[0]] * (most - len(t.reads))] for t in found]
    shape = (len(found), most)

    def column(of: Callable[[_Read], float]) -> FloatArray:
        values = [[of(read) for read in reads] for reads in padded]
        return np.array(values, np.float64).reshape(shape)

    return Tensors(
        writer=np.array([tensor.writer for tensor in found], np.int64),
        readers=column(lambda read: read.kernel).astype(np.int64),
        sequence_bytes=np.array([tensor.size.whole for tensor in found], np.float64),
        inside_bytes=column(
            lambda read: 2.0 * read.size.whole if read.is_whole else read.depth * read.size.tile
        ),
        written_bytes=np.array([buffers * tensor.size.tile for tensor in found], np.float64),
        read_bytes=column(
            lambda read: 2.0 * read.size.whole if read.is_whole else buffers * read.size.tile
        ),
    )


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
