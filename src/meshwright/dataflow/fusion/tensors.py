"""The tensors of a graph as columns: who writes and reads them, and the buffers that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.dataflow.fusion.rules import Rules
from meshwright.dataflow.fusion.shapes import passing_dims
from meshwright.graph.dataflow.graph import DataflowGraph, Edge
from meshwright.graph.dataflow.kernel import Dims, Kernel, single_dims

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
