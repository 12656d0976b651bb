"""A Fourier transform of n1 x n2 points as transforms along the two sides of a matrix.

A transform needs its length whole, so it is split over the other side; between the two sides the
layouts meet in an all-to-all. Source: Bailey 1990, "FFTs in external or hierarchical memory".
"""

from __future__ import annotations

from math import log2

from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Dims, Kernel, Operand, Unit

POINTS: Dims = ("rows", "columns")
TWIDDLE_FLOPS = 6.0
"""A product of two complex numbers: four multiplications and two additions."""


def fft(
    rows: int, columns: int, *, ordered: bool = True, word_bytes: float = 16.0, repeats: int = 1
) -> DataflowGraph:
    """Return the transform of ``rows x columns`` points that lie row after row.

    A transform of length n takes ``5 n log2(n)`` FLOPs, by the convention of the field.

    Parameters
    ----------
    ordered
        Points come and leave in their natural order, each device with a stretch of them: split
        over rows before, over columns behind (the result is transposed). Makes three all-to-alls
        of one; without, the points stay where the transforms need and leave them.
    word_bytes
        Of one complex number; 16 in double precision.
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
