"""The shape of what one device computes of a kernel while one tile passes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Kernel, Unit, single_dims


class TileShape(NamedTuple):
    """A product (rows x inner) by (inner x columns), or an elementwise kernel of inner size 1."""

    rows: int
    inner: int
    columns: int
    unit: Unit


def passing_dims(graph: DataflowGraph) -> frozenset[str]:
    """Return the dims that pass in tiles: that of the graph, and those that moves turn it into.

    A move may read what passes under another name, as rows of tokens become slots of experts.
    """
    made = {**graph.inputs, **{kernel.name: kernel.dims for kernel in graph.kernels}}
    found = {graph.tiled}
    for kernel in graph.kernels:
        if kernel.unit is Unit.NONE:
            for operand in kernel.inputs:
                there = zip(made[operand.source], operand.dims, strict=False)
                found |= {dim for original, dim in there if original in found}
    return frozenset(found)


def tile_shape(kernel: Kernel, sizes: Mapping[str, int], passing: frozenset[str]) -> TileShape:
    """Return the shape of one tile of a kernel.

    Parameters
    ----------
    kernel
        What is computed.
    sizes
        Of the dims on one device; of those that pass in tiles, the part in one tile.
    passing
        The dims that pass in tiles. Where the kernel writes one, it makes the columns; where it
        sums over one, the columns are what only its first operand has.
    """
    written = single_dims(kernel.dims)
    columns = tuple(dim for dim in written if dim in passing)
    if not columns and kernel.unit is Unit.MATRIX:
        columns = _first_only(kernel)
    size = {dim: sizes[dim] for dim in kernel.points}
    return TileShape(
        rows=prod(size[dim] for dim in written if dim not in columns),
        inner=prod(size[dim] for dim in kernel.contracted),
        columns=prod(size[dim] for dim in columns),
        unit=kernel.unit,
    )


def _first_only(kernel: Kernel) -> tuple[str, ...]:
    """Return the written dims that the first operand has and no other operand."""
    read = [operand.dims for operand in kernel.inputs]
    operands = [*read, *(weight.dims for weight in kernel.weights)]
    first = {dim for dims in operands[:1] for dim in single_dims(dims)}
    shared = {dim for dims in operands[1:] for dim in single_dims(dims)}
    return tuple(dim for dim in single_dims(kernel.dims) if dim in first - shared)
