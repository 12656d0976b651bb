"""The Linpack benchmark: LU factorisation of an n x n matrix, a block of columns at a time.

An iteration factors its panel, sends it along the rows of the grid of devices, swaps the rows that
were chosen, and updates what is left by a product. Source: Petitet et al., "HPL - a portable
implementation of the high-performance Linpack benchmark"; counted as in Ko et al. 2024
(arXiv 2412.16432): the panel as a product with itself, and the update with its panel.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.errors import Fault, SpecError
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Dims, Kernel, Message, MessageKind, Operand, Unit

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
    """Return all iterations: four kernels for each block of columns.

    FLOPs approach ``2 size^3 / 3`` as the block gets small beside the matrix.

    Parameters
    ----------
    grid_rows, grid_columns
        The grid of devices, which decides how much a panel (broadcast along a row of the grid) and
        the swapped rows (sent along a column) hold on one device.
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
        kernels += _iteration(
            step,
            last,
            pivots=word_bytes * block * block,
            panel=word_bytes * rows * block,
            swapped=word_bytes * columns * block,
        )
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
        messages=(Message(MessageKind.SEND, pivots),),
    )
    yield Kernel(
        f"broadcast{step}",
        Unit.NONE,
        left,
        (Operand(f"factor{step}", left),),
        messages=(Message(MessageKind.BROADCAST, panel),),
    )
    yield Kernel(
        f"swap{step}",
        Unit.NONE,
        right,
        (Operand(source, right),),
        messages=(Message(MessageKind.SEND, swapped),),
    )
    reads = (
        Operand(f"broadcast{step}", left),
        Operand(f"swap{step}", right),
        Operand(source, (rows, columns)),
    )
    yield Kernel(f"update{step}", Unit.MATRIX, (rows, columns), reads, flops_per_point=2.0)
