"""The problem of fusion: kernels of one device as columns, with the limits of chip and rules.

The tensors of the graph are columns too: who writes and reads them, and the buffers that they need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from meshwright.graph.kernels.kernel import Dims, Kernel, Unit, Weight, num_elements, single_dims
from meshwright.graph.op import Phase

SplitOfRules = tuple[Mapping[str, str | None], Mapping[str, float], float]
"""Dim and seconds of network of each kernel, and the largest distance from the best split [1]."""


@dataclass(frozen=True)
class Rules:
    """Rules by which fused kernels are priced; a study states those of another model."""

    writes_once: bool
    """A tensor with several readers is one tensor; else each reader has a copy of its own."""
    counts_ends: bool
    """Inputs and outputs of the graph pass through DRAM too. Sums over all tiles (weight gradients)
    are held like a weight, and read and written once a micro-batch."""
    holds_reads: bool
    """SRAM holds a tensor as its reader needs it: gathered from all devices, and all tiles of
    tensors that are read at once (keys, values); else as its writer leaves it."""
    frees_tensors: bool
    """DRAM holds a tensor from its writing to its last reading, not all tensors at once."""
    counts_fill: bool
    """A partition of several kernels in a row fills and drains once for each micro-batch."""
    rereads: bool
    """A kernel with weights in parts reads its inputs once for each part."""
    loads_ahead: bool
    """Weights of the next partition come while one runs, as far as its SRAM and DRAM are free."""
    most_sequences: int
    """Most sequences of a micro-batch where none is given: weights are read once for all of
    them."""
    uses_all_lanes: bool
    """Results of an elementwise kernel lie on lanes in any order, and sums are cut over lanes; else
    a tile passes them column by column."""
    has_one_tile: bool
    """All partitions have one tile, and the last one of a sequence counts as a whole one; else each
    has its own."""
    split: Callable[[DataflowGraph, int, float], SplitOfRules] | None = None
    """Split of a graph over a number of chips with links of such a rate; None: the likely ones of
    least means."""


OWN = Rules(
    writes_once=True, counts_ends=True, holds_reads=True, frees_tensors=True,
    counts_fill=True, rereads=True, loads_ahead=True, most_sequences=64, uses_all_lanes=True,
    has_one_tile=False,
)  # fmt: skip
"""Rules with every cost of a running chip."""


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

    def rows(self, chosen: BoolArray) -> Tensors:
        """Return some of the tensors."""
        return Tensors(
            self.writer[chosen], self.readers[chosen], self.sequence_bytes[chosen],
            self.inside_bytes[chosen], self.written_bytes[chosen], self.read_bytes[chosen],
        )  # fmt: skip

    def within(self, first: int, last: int) -> Tensors:
        """Return the tensors of some kernels in a row; all others are the outside."""

        def renumbered(kernels: IntArray) -> IntArray:
            is_in = (first <= kernels) & (kernels < last)
            return np.where(is_in, kernels - first, last - first)

        touches = (first <= self.readers) & (self.readers < last)
        writes = (first <= self.writer) & (self.writer < last)
        found = self.rows(writes | touches.any(axis=1))
        return replace(found, writer=renumbered(found.writer), readers=renumbered(found.readers))

    @cached_property
    def is_slot(self) -> BoolArray:
        """Which readers are no padding, like ``readers``."""
        found: BoolArray = self.readers != self.readers[:, :1]
        found[:, :1] = True
        return found


@dataclass(frozen=True)
class DeviceShare:
    """Share of a workload on one device, and the arrival of sequences."""

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
    """Sizes of a micro-batch that may be used [sequences]; none given: the best."""
    runs_by_kernel: bool = False
    """Every kernel is a partition of its own, and no tensor stays on the chip."""
    keeps_weights: bool = False
    """Weights of all repetitions stay in the SRAM."""
    for_latency: bool = False
    """One pass is alone, and its latency counts; else a stream of passes."""
    num_passes: int | None = None
    """Passes of the stream; None: without end."""
    num_stages: int = 1
    """Stages through which the stream passes."""
    open_splits: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """Dims of kernels with an open split. Each column of a problem is then the least over them, so
    that no split has a faster fusion; the network apart."""

    def sizes(self, kernel: Kernel, sizes: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
        """Return the sizes on one device of the dims of a kernel, for each way to split it."""
        dims = self.open_splits.get(kernel.name) or (self.splits.get(kernel.name),)
        return tuple(local_sizes(sizes, dim, self.tp) for dim in dims)


@dataclass(frozen=True)
class FusionProblem:
    """Kernels in an order in which they can run, as columns of their shards on one device."""

    names: tuple[str, ...]
    reads: BoolArray
    """Shape (kernels, kernels): whether the first reads the output of the second."""
    phase: IntArray
    """A phase begins when the one before it is done; a partition lies within one."""
    choices: tuple[CoreChoices, ...]
    held_bytes: FloatArray
    """Bytes that stay in SRAM for a micro-batch: weights, and sums over all tiles [bytes]."""
    setup_bytes: FloatArray
    """Traffic between DRAM and chip once a micro-batch [bytes]."""
    looked_up_bytes: FloatArray
    """Rows of tables that pass from DRAM for one sequence [bytes]."""
    network_s: FloatArray
    """Time of the network for one sequence [s]."""
    tensors: Tensors
    grid: CoreGrid
    num_tiles: int
    """Tiles of one sequence."""
    spare_dram_bytes: float
    """DRAM for the tensors between partitions, of one repetition [bytes]."""
    waits: BoolArray
    """Whether the first kernel needs all tiles of the second one, like ``reads``."""
    weight_bytes: float = 0.0
    """Weights and sums of all repetitions in the memories outside [bytes]."""
    dram_shares: float = 1.0
    """Repetitions that keep their tensors at the same time; the spare DRAM is that of one."""
    resident_bytes: float = 0.0
    """Weights and sums of all repetitions that stay in the SRAM [bytes]."""
    send_s: float = 0.0
    micro_batches: tuple[int, ...] = ()
    rules: Rules = OWN
    runs_by_kernel: bool = False
    for_latency: bool = False
    num_passes: int | None = None
    num_stages: int = 1
    tile: int = 0
    tiled: str = ""
    """The dim that passes in tiles."""
    other_tiles: tuple[FusionProblem, ...] = ()
    """Problems of the same kernels in other tiles; each partition has one tile of all these."""

    @property
    def tiles(self) -> tuple[FusionProblem, ...]:
        """The problem in each tile that a partition may have, its own first."""
        return replace(self, other_tiles=()), *self.other_tiles

    def under(self, for_latency: bool, send_s: float) -> FusionProblem:
        """Return the problem under another objective."""
        others = tuple(one.under(for_latency, send_s) for one in self.other_tiles)
        return replace(self, for_latency=for_latency, send_s=send_s, other_tiles=others)

    @property
    def core_cycles(self) -> FloatArray:
        """Least cores times cycles of each kernel for a sequence, in this tile."""
        area = [float((cores * cycles).min()) for cores, cycles in self.choices]
        found: FloatArray = self.num_tiles * np.array(area)
        return found

    @property
    def tensors_in_sram(self) -> bool:
        """Whether tensors between partitions share the SRAM: there is no other memory."""
        return not self.grid.outside

    def ramp(self, micro_batch: int) -> float:
        """Return the time of a stream over that of its passes at the steady pace [1].

        (ceil(N / u) + stages - 1) u / N: its micro-batches are whole, and pass the first and the
        last stage too. 100 passes, 16 at once through 2 stages: (7 + 1) 16 / 100 = 1.28.
        """
        if self.num_passes is None or self.for_latency:
            return 1.0
        rounds = -(-self.num_passes // micro_batch) + self.num_stages - 1
        return rounds * micro_batch / self.num_passes

    @property
    def least_ramp(self) -> float:
        """The least ramp of all micro-batches."""
        return min(self.ramp(high) for _, high in self.tried_micro_batches)

    def whole_s(self, seconds: float, ramp: float) -> float:
        """Return the time that counts, of the seconds of all partitions for one sequence.

        In a stream a sequence moves on while others run; the latency of one holds all moves.
        """
        return seconds + self.send_s if self.for_latency else ramp * max(seconds, self.send_s)

    def steady_s(self, whole_s: float, ramp: float) -> float:
        """Return the seconds of all partitions for a sequence that make up a time that counts."""
        return whole_s - self.send_s if self.for_latency else whole_s / ramp

    @property
    def tried_micro_batches(self) -> tuple[tuple[int, int], ...]:
        """Ranges of micro-batch sizes to try, the largest first [sequences].

        A range holds one number where they are given, or where the fill time depends on them: then
        powers of two. Otherwise one range holds all sizes, and the largest that fits DRAM is taken.
        """
        if self.for_latency:
            return ((1, 1),)
        if self.micro_batches:
            return tuple((size, size) for size in sorted(self.micro_batches, reverse=True))
        if self.rules.counts_fill:
            powers = {1 << power for power in range(self.rules.most_sequences.bit_length())}
            if (total := self.num_passes) is not None:  # and even parts of the stream
                powers = {-(-total // -(-total // power)) for power in powers}
            return tuple((size, size) for size in sorted(powers, reverse=True))
        return ((1, self.rules.most_sequences),)

    @property
    def num_kernels(self) -> int:
        """Number of kernels."""
        return len(self.names)

    def sets_of(self, partitions: Iterable[Iterable[str]]) -> BoolArray:
        """Return partitions of named kernels as rows, shape (partitions, kernels)."""
        rows = [[name in names for name in self.names] for names in map(frozenset, partitions)]
        return np.array(rows, bool)

    def within(self, first: int, last: int) -> FusionProblem:
        """Return the problem of some kernels in a row, with the prices that their sets have."""
        inside = slice(first, last)
        return replace(
            self,
            names=self.names[inside],
            reads=self.reads[inside, inside],
            phase=self.phase[inside],
            choices=self.choices[inside],
            held_bytes=self.held_bytes[inside],
            setup_bytes=self.setup_bytes[inside],
            looked_up_bytes=self.looked_up_bytes[inside],
            network_s=self.network_s[inside],
            tensors=self.tensors.within(first, last),
            waits=self.waits[inside, inside],
            other_tiles=tuple(one.within(first, last) for one in self.other_tiles),
        )

    @property
    def columns_key(self) -> tuple[object, ...]:
        """A value that problems with equal kernels and tensors share."""
        tensors, others = self.tensors, (one.columns_key for one in self.other_tiles)
        columns = (self.waits, tensors.inside_bytes, tensors.written_bytes, tensors.read_bytes)
        return (
            self.shared_key,
            self.num_tiles,
            tuple(map(id, self.choices)),
            _key_of(columns),
            *others,
        )

    @property
    def shared_key(self) -> tuple[object, ...]:
        """A value that problems share which differ in their tiles alone."""
        tensors = self.tensors
        columns = (
            self.reads, self.phase, self.held_bytes, self.setup_bytes, self.looked_up_bytes,
            self.network_s, tensors.writer, tensors.readers, tensors.sequence_bytes,
        )  # fmt: skip
        limits = self.grid, self.spare_dram_bytes, self.weight_bytes, self.resident_bytes
        return *limits, _key_of(columns)

    @cached_property
    def needs(self) -> BoolArray:
        """Whether the first kernel comes only after the second, like ``reads``."""
        found: BoolArray = self.reads | (self.phase[:, None] > self.phase)
        return found

    @cached_property
    def stored_bytes(self) -> FloatArray:
        """Sums that go to DRAM once they are done; all setup comes first where none is hidden."""
        after = self.setup_bytes - self.held_bytes
        return after if self.rules.loads_ahead else np.zeros(len(after))

    @cached_property
    def total_setup_s(self) -> float:
        """Time to read all held weights and sums of a micro-batch, over all kernels [s]."""
        return float(self.setup_bytes.sum()) / self.grid.dram_bytes_per_s

    @property
    def most_tensor_bytes(self) -> float:
        """DRAM of tensors where all weights that may wait behind it do [bytes]."""
        far = min(self.grid.far_bytes, self.weight_bytes)
        return self.spare_dram_bytes + far / self.dram_shares

    def weight_byte_s(self, tensor_bytes: float = 0.0) -> float:
        """Return the seconds of a byte of weights, where tensors take so many bytes of DRAM."""
        far = max(tensor_bytes - self.spare_dram_bytes, 0.0) * self.dram_shares
        return self.grid.weight_byte_s(min(far, self.weight_bytes), max(self.weight_bytes, 1.0))


def _key_of(columns: Iterable[NDArray[Any]]) -> tuple[object, ...]:
    """Return a value that equal columns share."""
    return tuple((column.shape, column.tobytes()) for column in columns)


MOST_TILES = 32
"""Most tiles from which a partition chooses its own."""


def in_their_tiles(problems: Iterable[FusionProblem]) -> list[FusionProblem]:
    """Return problems whose partitions have one of several tiles each.

    Those of one problem hold equal sums: where a dim that passes in tiles is summed over, the sums
    wait in the SRAM.
    """
    alike = defaultdict[tuple[object, ...], list[FusionProblem]](list)
    for problem in problems:
        alike[problem.shared_key].append(problem)
    return [
        replace(first, other_tiles=tuple(others))
        for group in alike.values()
        for start in range(0, len(group), MOST_TILES)
        for first, *others in [group[start : start + MOST_TILES]]
    ]


def fusion_problem(
    graph: DataflowGraph, grid: CoreGrid, share: DeviceShare, rules: Rules = OWN
) -> FusionProblem:
    """Return the fusion problem of one device of a group of ``share.tp``."""
    tiles, passing, one_tile = _one_tile(graph, share)
    padded = {**one_tile, **{dim: parts * one_tile[dim] for dim, parts in passing.items()}}
    whole, in_tiles = (
        tuple(share.sizes(kernel, sizes) for kernel in graph.kernels)
        for sizes in (padded if rules.has_one_tile else graph.sizes, padded)
    )
    device = _Device(graph, whole, in_tiles, tiles, frozenset(passing))
    shapes = [
        tuple(
            tile_shape(
                kernel,
                sizes,
                passing,
                is_spread=rules.uses_all_lanes,
                slowdown=grid.slowdown(graph.product_bytes(kernel)),
            )
            for sizes in share.sizes(kernel, one_tile)
        )
        for kernel in graph.kernels
    ]
    numbered = list(enumerate(graph.kernels))
    held = np.array([device.least_bytes(n, k.weights) for n, k in numbered], np.float64)
    # tables of lookups stay in DRAM, and only the rows that are read pass from there
    is_table = np.array([kernel.unit is Unit.NONE for kernel in graph.kernels])
    weights, tables = np.where(is_table, 0.0, held), np.where(is_table, held, 0.0)
    looked_up = [
        graph.word_bytes * device.least_elements(n, k.points)
        if k.unit is Unit.NONE and k.weights
        else 0.0
        for n, k in numbered
    ]
    # what a kernel sums up over all tiles and hands on outside
    sums = np.array(
        [
            device.least_bytes(n, (k,))
            if rules.counts_ends and device.is_summed_over_tiles(k)
            else 0.0
            for n, k in numbered
        ]
    )
    held_bytes = share.repeats * float((weights + tables + sums).sum())
    held, setup = weights + sums, weights + 2.0 * sums
    resident, shares = (
        0.0,
        1.0 if rules.frees_tensors and not _has_backward(graph) else share.repeats,
    )
    if share.keeps_weights or not grid.outside:
        resident = share.repeats * float(held.sum())
        held_bytes -= resident
        if not grid.outside:
            resident, held_bytes = resident + held_bytes, 0.0
        held, setup = np.zeros((2, len(held)))
        grid = replace(grid, sram_bytes=grid.sram_bytes - resident)
    return FusionProblem(
        names=tuple(kernel.name for kernel in graph.kernels),
        reads=graph.reads,
        phase=np.array([k.phase is not Phase.FORWARD for k in graph.kernels], np.int64),
        choices=tuple(least_choices(several, grid) for several in shapes),
        held_bytes=held,
        setup_bytes=setup,
        looked_up_bytes=np.array(looked_up),
        network_s=np.array([share.network_s.get(k.name, 0.0) for k in graph.kernels]),
        tensors=_tensors(device, rules, buffers=1 if share.runs_by_kernel else 2),
        grid=grid,
        num_tiles=tiles,
        spare_dram_bytes=(grid.dram_bytes - held_bytes) / shares,
        waits=device.waits,
        weight_bytes=held_bytes,
        dram_shares=shares,
        resident_bytes=resident,
        send_s=share.send_s,
        micro_batches=share.micro_batches,
        rules=rules,
        runs_by_kernel=share.runs_by_kernel,
        for_latency=share.for_latency,
        num_passes=share.num_passes,
        num_stages=share.num_stages,
        tile=share.tile,
        tiled=graph.tiled,
    )


def _one_tile(
    graph: DataflowGraph, share: DeviceShare
) -> tuple[int, Mapping[str, int], Mapping[str, int]]:
    """Return the tiles of a sequence, the parts of the passing dims, and the sizes in one tile."""
    tiles = int(ceil_div(graph.sizes[graph.tiled], share.tile))
    passing = passing_dims(graph, tiles)
    parts = {dim: -(-graph.sizes[dim] // number) for dim, number in passing.items()}
    return tiles, passing, {**graph.sizes, **parts, graph.tiled: share.tile}


def least_work_s(graph: DataflowGraph, grid: CoreGrid, share: DeviceShare) -> FloatArray:
    """Return the least seconds of all cores that each kernel takes for a sequence.

    Cores and cycles under the best number of cores, all lanes used; no partition takes less than
    their sum.
    """
    tiles, passing, sizes = _one_tile(graph, share)
    found = []
    for kernel in graph.kernels:
        shapes = [
            tile_shape(
                kernel,
                local,
                passing,
                is_spread=True,
                slowdown=grid.slowdown(graph.product_bytes(kernel)),
            )
            for local in share.sizes(kernel, sizes)
        ]
        cores, cycles = least_choices(tuple(shapes), grid)
        found.append(float((cores * cycles).min()))
    seconds: FloatArray = np.array(found) * (tiles / (grid.num_cores * grid.frequency_hz))
    return seconds


def _has_backward(graph: DataflowGraph) -> bool:
    """Return whether tensors stay for a backward pass; else repetitions free them in turn."""
    return any(kernel.phase is not Phase.FORWARD for kernel in graph.kernels)


@dataclass(frozen=True)
class _Size:
    """Bytes of a tensor on one device: for a sequence, and for a tile where it passes in tiles."""

    whole: float
    tile: float


@dataclass(frozen=True)
class _Read:
    """A reader, the part of the tensor that it needs, and the number of tiles on the way to it."""

    kernel: int
    size: _Size
    depth: int = 1
    is_whole: bool = False
    """Whether the reader needs all tiles at once."""

    def buffer_bytes(self, num_tiles: int) -> float:
        """Return the buffers of ``num_tiles`` tiles; of a tensor that is read whole, two of it."""
        return 2.0 * self.size.whole if self.is_whole else num_tiles * self.size.tile


@dataclass(frozen=True)
class _BufferedTensor:
    """A tensor as its writer leaves it."""

    writer: int
    size: _Size
    reads: Sequence[_Read]


@dataclass(frozen=True)
class _Device:
    """Shard of a graph on one device."""

    graph: DataflowGraph
    sizes: Sequence[Sequence[Mapping[str, int]]]
    """Sizes of the dims on the device for each kernel and each way to split it, for a sequence. Of
    several ways the least counts."""
    padded: Sequence[Sequence[Mapping[str, int]]]
    """These sizes, where those that pass in tiles are rounded up to whole tiles."""
    num_tiles: int
    passing: frozenset[str]
    """Dims that pass in tiles."""

    def passes(self, dims: Dims) -> bool:
        """Return whether a tensor of these dims passes in tiles."""
        return not self.passing.isdisjoint(single_dims(dims))

    def least_elements(self, number: int, dims: Dims) -> float:
        """Return the elements of a tensor of these dims, as the kernel of a number sees it."""
        return min(num_elements(dims, sizes) for sizes in self.sizes[number])

    def least_bytes(self, number: int, tensors: Sequence[Kernel | Weight]) -> float:
        """Return the least bytes of the tensors that a kernel writes or holds."""
        every = (
            sum(self.graph.tensor_bytes(tensor, sizes) for tensor in tensors)
            for sizes in self.sizes[number]
        )
        return min(every)

    def size(self, number: int, dims: Dims, word_bytes: float) -> _Size:
        """Return the bytes of a tensor of these dims, as the kernel of a number sees it."""
        whole = word_bytes * self.least_elements(number, dims)
        if not self.passes(dims):
            return _Size(whole, whole)
        padded = min(num_elements(dims, sizes) for sizes in self.padded[number])
        return _Size(whole, word_bytes * padded / self.num_tiles)

    def is_summed_over_tiles(self, kernel: Kernel) -> bool:
        """Return whether a kernel sums over all tiles for the outside: a weight gradient."""
        is_sum = not self.passes(kernel.dims) and self.passes(kernel.contracted)
        is_move = kernel.unit is Unit.NONE and kernel.phase is not Phase.WEIGHT_GRADIENT
        return is_sum and not is_move and kernel.name in self.graph.outputs

    @property
    def waits(self) -> BoolArray:
        """Whether each kernel needs all tiles of each other one, shape (kernels, kernels)."""
        kernels = self.graph.kernels
        found = np.zeros((len(kernels), len(kernels)), bool)
        for edge in self.graph.edges:
            read = kernels[edge.consumer].inputs[edge.place].dims
            is_whole = self.passes(kernels[edge.producer].dims) and not self.passes(read)
            found[edge.consumer, edge.producer] |= is_whole
        return found

    def written(self, rules: Rules) -> list[_BufferedTensor]:
        """Return the outputs of the kernels, each with its readers."""
        graph, level = self.graph, [0] * len(self.graph.kernels)
        # the longest path to each kernel, in kernels before it
        for edge in graph.edges:
            level[edge.consumer] = max(level[edge.consumer], level[edge.producer] + 1)
        leaving = defaultdict[int, list[Edge]](list)
        for edge in graph.edges:
            leaving[edge.producer].append(edge)
        found: list[_BufferedTensor] = []
        for writer, kernel in enumerate(graph.kernels):
            size = self.size(writer, kernel.dims, graph.word_of(kernel))
            reads = [
                self._read(edge, size, level[edge.consumer] - level[writer] + 1, rules)
                for edge in leaving[writer]
            ]
            leaves = rules.counts_ends and kernel.name in graph.outputs
            if leaves and not self.is_summed_over_tiles(kernel):
                reads.append(_Read(len(graph.kernels), size))
            if reads:
                groups = [reads] if rules.writes_once else [[read] for read in reads]
                found += [_BufferedTensor(writer, size, group) for group in groups]
        return found

    def _read(self, edge: Edge, left: _Size, depth: int, rules: Rules) -> _Read:
        """Return one read of a tensor that its writer leaves in some size."""
        if not rules.holds_reads:
            return _Read(edge.consumer, left, depth)
        kernels = self.graph.kernels
        writer, dims = kernels[edge.producer], kernels[edge.consumer].inputs[edge.place].dims
        asked = self.size(edge.consumer, dims, self.graph.word_of(writer))
        full = self.graph.tensor_bytes(writer)
        most = full / self.num_tiles if self.passes(writer.dims) else full
        return _Read(
            edge.consumer,
            _Size(max(left.whole, min(asked.whole, full)), max(left.tile, min(asked.tile, most))),
            depth,
            is_whole=self.passes(writer.dims) and not self.passes(dims),
        )

    def inputs(self) -> Iterable[_BufferedTensor]:
        """Yield the inputs of the graph, each once."""
        graph = self.graph
        for name in graph.inputs:
            reads = [
                _Read(number, self.size(number, operand.dims, graph.word_bytes))
                for number, kernel in enumerate(graph.kernels)
                for operand in kernel.inputs
                if operand.source == name
            ]
            if reads:
                yield _BufferedTensor(len(graph.kernels), reads[0].size, reads)


def _tensors(device: _Device, rules: Rules, *, buffers: int) -> Tensors:
    """Return the tensors of a graph as a device holds them.

    A tensor inside a partition has level(reader) - level(writer) + 1 buffers of one tile: this many
    tiles are between the two in a full pipeline. One that crosses has ``buffers`` at both ends.
    Source: Ko et al. 2024 (DFModel, arXiv 2412.16432).
    """
    found = [*device.written(rules), *(device.inputs() if rules.counts_ends else ())]
    most = max((len(tensor.reads) for tensor in found), default=1)
    shape = (len(found), most)
    padded = [
        read for tensor in found
        for read in [*tensor.reads, *[tensor.reads[0]] * (most - len(tensor.reads))]
    ]  # fmt: skip
    inside = [read.buffer_bytes(read.depth) for read in padded]
    outside = [read.buffer_bytes(buffers) for read in padded]
    return Tensors(
        writer=np.array([tensor.writer for tensor in found], np.int64),
        readers=np.array([read.kernel for read in padded], np.int64).reshape(shape),
        sequence_bytes=np.array([tensor.size.whole for tensor in found], np.float64),
        inside_bytes=np.array(inside, np.float64).reshape(shape),
        written_bytes=np.array([buffers * tensor.size.tile for tensor in found], np.float64),
        read_bytes=np.array(outside, np.float64).reshape(shape),
    )
