"""The tensors of a graph as columns: who writes and reads them, and the buffers that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.graph.dataflow.graph import DataflowGraph, Edge
from meshwright.graph.dataflow.kernel import Dims, Kernel, single_dims
from meshwright.onchip.fusion.rules import Rules

Sizes = Sequence[Mapping[str, int]]
"""For each kernel the sizes of its dims on one device, that of the tiled dim for a sequence."""


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
    level = levels(graph)
    found: list[_Tensor] = []
    for writer, kernel in enumerate(graph.kernels):
        size = _size(graph, kernel.dims, kernel.word_bytes, sizes[writer], num_tiles)
        reads = []
        for edge in graph.edges:
            if edge.producer == writer:
                depth = level[edge.consumer] - level[writer] + 1
                reads.append(_read(graph, edge, size, sizes, num_tiles, depth, rules))
        leaves = rules.counts_ends and kernel.name in graph.outputs
        if leaves and not is_summed_over_tiles(graph, kernel):
            reads.append(_Read(len(graph.kernels), size))
        if reads:
            groups = [reads] if rules.writes_once else [[read] for read in reads]
            found += [_Tensor(writer, size, group) for group in groups]
    if rules.counts_ends:
        found += _inputs(graph, sizes, num_tiles)
    return _columns(found, buffers)


def _size(
    graph: DataflowGraph, dims: Dims, word_bytes: float | None, sizes: Mapping[str, int],
    num_tiles: int,
) -> _Size:  # fmt: skip
    """Return the bytes of a tensor of these dims."""
    names = single_dims(dims)
    word = graph.word_bytes if word_bytes is None else word_bytes
    whole = word * prod(float(sizes[dim]) for dim in names)
    return _Size(whole, whole / num_tiles if graph.tiled in names else whole)


def _read(
    graph: DataflowGraph, edge: Edge, left: _Size, sizes: Sizes, num_tiles: int, depth: int,
    rules: Rules,
) -> _Read:  # fmt: skip
    """Return one read of a tensor that its writer leaves in some size."""
    if not rules.holds_reads:
        return _Read(edge.consumer, left, depth)
    writer, reader = graph.kernels[edge.producer], graph.kernels[edge.consumer]
    dims = reader.inputs[edge.place].dims
    needed = _size(graph, dims, writer.word_bytes, sizes[edge.consumer], num_tiles)
    passes_in_tiles = graph.tiled in single_dims(writer.dims)
    return _Read(
        edge.consumer,
        _Size(max(left.whole, needed.whole), max(left.tile, needed.tile)),
        depth,
        is_whole=passes_in_tiles and graph.tiled not in single_dims(dims),
    )


def is_summed_over_tiles(graph: DataflowGraph, kernel: Kernel) -> bool:
    """Tell whether a kernel hands one sum over all tiles to the outside: a weight gradient."""
    return kernel.name in graph.outputs and graph.tiled in kernel.contracted


def _inputs(graph: DataflowGraph, sizes: Sizes, num_tiles: int) -> list[_Tensor]:
    """Return what comes from outside, once for each input."""
    found = []
    for name in graph.inputs:
        reads = [
            _Read(number, _size(graph, operand.dims, None, sizes[number], num_tiles))
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
