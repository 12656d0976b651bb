"""The shape of what one device computes of a kernel while one tile passes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from meshwright.graph.dataflow.kernel import Kernel, Unit, single_dims


class TileShape(NamedTuple):
    """A product (rows x inner) by (inner x columns), or an elementwise kernel of inner size 1."""

    rows: int
    inner: int
    columns: int
    unit: Unit


def tile_shape(kernel: Kernel, sizes: Mapping[str, int], tiled: str) -> TileShape:
    """Return the shape of one tile of a kernel.

    Parameters
    ----------
    kernel
        What is computed.
    sizes
        Of the dims on one device; that of ``tiled`` is the length of a tile.
    tiled
        The dim that passes in tiles. Where the kernel writes it, it makes the columns; where the
        kernel sums over it, the columns are what only its first operand has.
    """
    written = single_dims(kernel.dims)
    columns = (tiled,) if tiled in written else _first_only(kernel)
    if kernel.unit is not Unit.MATRIX:
        columns = tuple(dim for dim in columns if dim == tiled)
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
