"""A recommendation model: embedding tables beside a network of dense layers.

The tables are split over ``tables``, the layers over ``samples``; where the pooled rows join the
dense features, the two layouts meet in an all-to-all. Source: Naumov et al. 2019
(arXiv 1906.00091); Mudigere et al. 2021 (arXiv 2104.05158).
"""

from __future__ import annotations

from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Dims, Kernel, Operand, Unit, Weight

ROW: Dims = ("samples", "in")
OUT: Dims = ("samples", "out")
POOLED: Dims = ("samples", "tables", "embedding")


def dlrm(
    samples: int,
    *,
    tables: int,
    table_rows: int,
    embedding: int,
    pooling: int,
    width: int,
    bottom_layers: int,
    top_layers: int,
    word_bytes: float = 2.0,
    name: str = "dlrm",
) -> DataflowGraph:
    """Return the forward pass over this many samples; all layers have the same width.

    Rows are pooled as they are read: the additions, a few FLOPs for each element, are not counted.
    How pooled and dense features interact is not published for the large models; it is counted as
    a move of both to the width of the top layers.
    """
    bottom = _layers("bottom", bottom_layers, "dense")
    top = _layers("top", top_layers, "interaction")
    table = Weight("tables", ("tables", "table_rows", "embedding"))
    ids: Dims = ("samples", "tables", "pooling")
    pooled = Kernel("pooled", Unit.NONE, POOLED, (Operand("ids", ids),), (table,))
    reads = (Operand(bottom[-1].name, ROW), Operand("pooled", POOLED))
    return DataflowGraph(
        name=name,
        kernels=(*bottom, pooled, Kernel("interaction", Unit.NONE, ROW, reads), *top),
        sizes={
            "samples": samples, "in": width, "out": width, "tables": tables,
            "table_rows": table_rows, "embedding": embedding, "pooling": pooling,
        },
        inputs={"dense": ROW, "ids": ids},
        outputs=(top[-1].name,),
        tiled="samples",
        word_bytes=word_bytes,
        constants=("dense", "ids"),
    )  # fmt: skip


def dlrm_a(samples: int = 128 * 512) -> DataflowGraph:
    """Return the model with 793 billion parameters, on 128 devices with 512 samples each.

    Means of tables and layers stand for each of them; the number of tables is that of Ko et al.
    2024 (arXiv 2412.16432), the rows of a table follow from the number of parameters.
    """
    return dlrm(
        samples, tables=600, table_rows=14_211_469, embedding=93, pooling=15,
        width=3375, bottom_layers=5, top_layers=15, name="dlrm-a",
    )  # fmt: skip


def _layers(part: str, count: int, source: str) -> list[Kernel]:
    """Return dense layers with their activation functions, one behind the other."""
    kernels: list[Kernel] = []
    for number in range(count):
        name = f"{part}{number}"
        held = (Weight(f"{name}.weight", ("in", "out")),)
        read = (Operand(source, ROW),)
        kernels.append(Kernel(name, Unit.MATRIX, OUT, read, held, flops_per_point=2.0))
        source = f"{name}.relu"
        kernels.append(Kernel(source, Unit.VECTOR, OUT, (Operand(name, OUT),)))
    return kernels
