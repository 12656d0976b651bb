"""The tensors of a graph as columns: who writes and reads them, and the buffers that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Kernel, factors, single_dims
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
class _Read:
    """A reader, how many tiles of the tensor are under way to it, and whether it needs all."""

    kernel: int
    depth: int
    is_whole: bool


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
    level, outside = levels(graph), len(graph.kernels)
    found: list[tuple[int, list[_Read], float, float]] = []
    for writer, kernel in enumerate(graph.kernels):
        whole, tile = _bytes(kernel, graph, sizes[writer], num_tiles)
        reads = [
            _Read(
                edge.consumer,
                level[edge.consumer] - level[writer] + 1,
                rules.holds_whole_reads and _reads_whole(graph, edge.consumer, edge.place, kernel),
            )
            for edge in graph.edges
            if edge.producer == writer
        ]
        leaves = rules.counts_ends and kernel.name in graph.outputs
        if leaves and not is_summed_over_tiles(graph, kernel):
            reads.append(_Read(outside, 1, False))
        if reads:
            groups = [reads] if rules.writes_once else [[read] for read in reads]
            found += [(writer, group, whole, tile) for group in groups]
    if rules.counts_ends:
        found += _inputs(graph, sizes, num_tiles)
    return _columns(found, buffers)


def is_summed_over_tiles(graph: DataflowGraph, kernel: Kernel) -> bool:
    """Tell whether a kernel hands one sum over all tiles to the outside: a weight gradient."""
    return kernel.name in graph.outputs and graph.tiled in kernel.contracted


def _reads_whole(graph: DataflowGraph, reader: int, place: int, writer: Kernel) -> bool:
    """Tell whether a kernel reads a tensor that passes in tiles under another dim, so all of it."""
    if graph.tiled not in single_dims(writer.dims):
        return False
    return graph.tiled not in single_dims(graph.kernels[reader].inputs[place].dims)


def _bytes(
    kernel: Kernel, graph: DataflowGraph, sizes: Mapping[str, int], num_tiles: int
) -> tuple[float, float]:
    """Return the bytes of what a kernel writes, for a sequence and for a tile."""
    word = graph.word_bytes if kernel.word_bytes is None else kernel.word_bytes
    whole = word * prod(float(sizes[dim]) for dim in single_dims(kernel.dims))
    is_tiled = graph.tiled in single_dims(kernel.dims)
    return whole, whole / num_tiles if is_tiled else whole


def _inputs(
    graph: DataflowGraph, sizes: Sizes, num_tiles: int
) -> list[tuple[int, list[_Read], float, float]]:
    """Return what comes from outside, once for each input."""
    found = []
    for name, dims in graph.inputs.items():
        readers = [
            (number, operand.dims)
            for number, kernel in enumerate(graph.kernels)
            for operand in kernel.inputs
            if operand.source == name
        ]
        if readers:
            first, read_dims = readers[0]
            size = prod(float(sizes[first][dim]) for dim in single_dims(read_dims))
            whole = graph.word_bytes * size
            is_tiled = any(graph.tiled in factors(dim) for dim in dims)
            tile = whole / num_tiles if is_tiled else whole
            reads = [_Read(number, 1, False) for number, _ in readers]
            found.append((len(graph.kernels), reads, whole, tile))
    return found


def _columns(found: Sequence[tuple[int, list[_Read], float, float]], buffers: int) -> Tensors:
    """Return tensors as columns."""
    most = max((len(reads) for _, reads, _, _ in found), default=1)
    padded = [[*reads, *[reads[0]] * (most - len(reads))] for _, reads, _, _ in found]
    shape = (len(found), most)
    whole = np.array([entry[2] for entry in found], np.float64)
    tile = np.array([entry[3] for entry in found], np.float64)
    depth = np.array([[r.depth for r in row] for row in padded], np.float64).reshape(shape)
    is_whole = np.array([[r.is_whole for r in row] for row in padded], bool).reshape(shape)
    readers = np.array([[r.kernel for r in row] for row in padded], np.int64).reshape(shape)
    return Tensors(
        writer=np.array([entry[0] for entry in found], np.int64),
        readers=readers,
        sequence_bytes=whole,
        inside_bytes=np.where(is_whole, 2.0 * whole[:, None], depth * tile[:, None]),
        written_bytes=buffers * tile,
        read_bytes=np.where(is_whole, 2.0 * whole[:, None], buffers * tile[:, None]),
    )
