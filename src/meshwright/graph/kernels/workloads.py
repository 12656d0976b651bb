"""Graphs by their sizes: Linpack and a Fourier transform."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log2

from meshwright.base.errors import Fault, SpecError
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import (
    Dims,
    Kernel,
    KernelMessage,
    MessageKind,
    Operand,
    Unit,
)

MOST_STEPS = 65_536
"""More iterations than any run has; each is four kernels."""


def hpl(
    size: int,
    block: int,
    *,
    grid_rows: int = 1,
    grid_columns: int = 1,
    word_bytes: float = 8.0,
) -> DataflowGraph:
    """Return all iterations of Linpack, LU factorisation of a matrix: four kernels for each block.

    The factors take the place of the matrix: memory is that of one matrix and of the panels.

    An iteration factors its panel, sends it along the rows of the grid of devices, swaps the rows
    that were chosen, and updates the remaining matrix by a product. FLOPs approach ``2 size^3 / 3``
    as the block gets small against the matrix. Source: Petitet et al., "HPL - a portable
    implementation of the high-performance Linpack benchmark"; counted as in Ko et al. 2024 (arXiv
    2412.16432): the panel as a product with itself, and the update with its panel.

    Parameters
    ----------
    grid_rows, grid_columns
        The grid of devices, which gives the size on one device of a panel (broadcast along a row of
        the grid) and of the swapped rows (sent along a column).
    """
    least = -(-size // MOST_STEPS)
    if not max(1, least) <= block <= size:
        allowed = f"from {max(1, least)} to the size of the matrix, {size}"
        raise SpecError(Fault("block", f"found {block}", allowed), origin="hpl")
    kernels: list[Kernel] = []
    sizes = {"rows": size, "columns": size, "block": block, "pivots": block}
    last = "matrix"
    for step in range(-(-size // block)):
        side = size - step * block
        sizes |= {f"rows{step}": side, f"columns{step}": side}
        rows, columns = -(-side // grid_rows), -(-side // grid_columns)
        made = _iteration(
            step,
            last,
            pivots=word_bytes * block * block,
            panel=word_bytes * rows * block,
            swapped=word_bytes * columns * block,
        )
        # the first iteration holds the matrix and its panels; all others write over them
        kernels += (replace(kernel, in_place=step > 0) for kernel in made)
        last = kernels[-1].name
    return DataflowGraph(
        name=f"hpl-{size}",
        kernels=tuple(kernels),
        sizes=sizes,
        inputs={"matrix": ("rows", "columns")},
        outputs=(last,),
        tiled="block",
        word_bytes=word_bytes,
    )


def _iteration(
    step: int, source: str, *, pivots: float, panel: float, swapped: float
) -> Iterator[Kernel]:
    """Yield the four kernels of one iteration; sizes of messages in bytes."""
    rows, columns = f"rows{step}", f"columns{step}"
    left: Dims = (rows, "pivots")
    right: Dims = ("pivots", columns)
    yield Kernel(
        f"factor{step}",
        Unit.MATRIX,
        (rows, "block"),
        (Operand(source, left),),
        flops_per_point=2.0,
        messages=(KernelMessage(MessageKind.SEND, pivots),),
    )
    yield Kernel(
        f"broadcast{step}",
        Unit.NONE,
        left,
        (Operand(f"factor{step}", left),),
        messages=(KernelMessage(MessageKind.BROADCAST, panel),),
    )
    yield Kernel(
        f"swap{step}",
        Unit.NONE,
        right,
        (Operand(source, right),),
        messages=(KernelMessage(MessageKind.SEND, swapped),),
    )
    reads = (
        Operand(f"broadcast{step}", left),
        Operand(f"swap{step}", right),
        Operand(source, (rows, columns)),
    )
    yield Kernel(f"update{step}", Unit.MATRIX, (rows, columns), reads, flops_per_point=2.0)


POINTS: Dims = ("rows", "columns")
TWIDDLE_FLOPS = 6.0
"""A product of two complex numbers: four multiplications and two additions."""


def fft(
    rows: int, columns: int, *, ordered: bool = True, word_bytes: float = 16.0, repeats: int = 1
) -> DataflowGraph:
    """Return the Fourier transform of ``rows x columns`` points, row after row.

    It is made of transforms along the two sides of a matrix. A transform needs its length whole, so
    it is split over the other side; between the two sides the layouts meet in an all-to-all. One of
    length n takes ``5 n log2(n)`` FLOPs, by the convention of the field. Source: Bailey 1990,
    "FFTs in external or hierarchical memory".

    Parameters
    ----------
    ordered
        Points come and leave in their natural order, each device with a stretch of them: split
        over rows before, over columns behind (the result is transposed). Makes three all-to-alls
        of one; without, the points stay where the transforms need and leave them.
    word_bytes
        Bytes of one complex number; 16 in double precision.
    """
    steps = [
        _transform("transform-columns", "rows", rows),
        Kernel("twiddle", Unit.VECTOR, POINTS, flops_per_point=TWIDDLE_FLOPS),
        _transform("transform-rows", "columns", columns),
    ]
    if ordered:
        steps.insert(0, _kept("load", "columns"))
        steps.append(_kept("store", "rows"))
    sources = ["points", *(step.name for step in steps)]
    chain = (
        Kernel(
            step.name, step.unit, POINTS, (Operand(source, POINTS),),
            whole=step.whole, flops_per_point=step.flops_per_point,
        )
        for step, source in zip(steps, sources, strict=False)
    )  # fmt: skip
    return DataflowGraph(
        name=f"fft-{rows}x{columns}",
        kernels=tuple(chain),
        sizes={"rows": rows, "columns": columns},
        inputs={"points": POINTS},
        outputs=(steps[-1].name,),
        tiled="columns",
        word_bytes=word_bytes,
        numbers_per_word=2,
        repeats=repeats,
    )


def _transform(name: str, along: str, length: int) -> Kernel:
    whole = frozenset({along})
    return Kernel(name, Unit.VECTOR, POINTS, whole=whole, flops_per_point=5.0 * log2(length))


def _kept(name: str, whole: str) -> Kernel:
    return Kernel(name, Unit.NONE, POINTS, whole=frozenset({whole}))
