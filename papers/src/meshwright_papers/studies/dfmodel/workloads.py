"""Graphs of published studies by their sizes: a layer of a GPT, a recommendation model."""

from __future__ import annotations

from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Dims, Kernel, Operand, Unit, Weight

STREAM: Dims = ("tokens", "hidden")
HEADS: Dims = ("tokens", "heads", "head_dim")
SCORES: Dims = ("tokens", "heads", "keys")
INNER: Dims = ("tokens", "ffn")


def gpt_layer(
    hidden: int, heads: int, head_dim: int, tokens: int, *, repeats: int = 1, ffn: int | None = None
) -> DataflowGraph:
    """Return the forward pass of a GPT layer: attention and network, each with norm and residual.

    18 kernels, as DFModel cuts it (Ko et al. 2024, arXiv 2412.16432).
    The addition that ends the layer before is its first kernel: its two summands come from there.
    """
    sizes = {
        "tokens": tokens, "keys": tokens, "hidden": hidden,
        "heads": heads, "head_dim": head_dim, "ffn": ffn or 4 * hidden,
    }  # fmt: skip
    return DataflowGraph(
        name="gpt-layer",
        kernels=(*_attention(), *_network()),
        sizes=sizes,
        inputs={"stream": STREAM, "branch": STREAM},
        outputs=("add2",),
        tiled="tokens",
        repeats=repeats,
    )


def gpt_training_layer(
    hidden: int, heads: int, head_dim: int, tokens: int, *, repeats: int = 1, ffn: int | None = None
) -> DataflowGraph:
    """Return forward and backward pass of a layer, counted as DFModel counts: 41 kernels, 53 edges.

    Its first addition and norm get no gradient here: the layer before has them. Its elementwise
    kernels read no saved tensors in the backward pass. The 17 input gradients are 16 of kernels
    and the sum where the branch of the network joins the residual stream.
    """
    layer = gpt_layer(hidden, heads, head_dim, tokens, repeats=repeats, ffn=ffn)
    return with_backward(layer, prologue=("add0", "ln1"), vector_saves=False)


def _attention() -> tuple[Kernel, ...]:
    key_value: Dims = ("keys", "heads", "head_dim")
    return (
        _sum("add0", "stream", "branch"),
        _norm("ln1", "add0"),
        *(_projection(name) for name in ("q", "k", "v")),
        _product("qk", SCORES, Operand("q", HEADS), Operand("k", key_value)),
        Kernel("softmax", Unit.VECTOR, SCORES, (Operand("qk", SCORES),), whole=frozenset({"keys"})),
        _pointwise("drop1", SCORES, "softmax"),
        _product("av", HEADS, Operand("drop1", SCORES), Operand("v", key_value)),
        _layer("proj", STREAM, Operand("av", HEADS), ("heads", "head_dim", "hidden")),
        _pointwise("drop2", STREAM, "proj"),
        _sum("add1", "drop2", "add0"),
    )


def _network() -> tuple[Kernel, ...]:
    return (
        _norm("ln2", "add1"),
        _layer("ffn0", INNER, Operand("ln2", STREAM), ("hidden", "ffn")),
        _pointwise("gelu", INNER, "ffn0"),
        _layer("ffn1", STREAM, Operand("gelu", INNER), ("ffn", "hidden")),
        _pointwise("drop3", STREAM, "ffn1"),
        _sum("add2", "drop3", "add1"),
    )


def _pointwise(name: str, dims: Dims, source: str) -> Kernel:
    return Kernel(name, Unit.VECTOR, dims, (Operand(source, dims),))


def _sum(name: str, *sources: str) -> Kernel:
    reads = tuple(Operand(source, STREAM) for source in sources)
    return Kernel(name, Unit.VECTOR, STREAM, reads, is_sum=True)


def _norm(name: str, source: str) -> Kernel:
    reads = (Operand(source, STREAM),)
    return Kernel(name, Unit.VECTOR, STREAM, reads, whole=frozenset({"hidden"}))


def _projection(name: str) -> Kernel:
    return _layer(name, HEADS, Operand("ln1", STREAM), ("hidden", "heads", "head_dim"))


def _layer(name: str, dims: Dims, read: Operand, weight: Dims) -> Kernel:
    held = (Weight(f"{name}.weight", weight),)
    return Kernel(name, Unit.MATRIX, dims, (read,), held, flops_per_point=2.0)


def _product(name: str, dims: Dims, *reads: Operand) -> Kernel:
    return Kernel(name, Unit.MATRIX, dims, reads, flops_per_point=2.0)


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
    """Return the forward pass of a recommendation model; all layers have the same width.

    The tables are split over ``tables``, the layers over ``samples``; where the pooled rows join
    the dense features, the two layouts meet in an all-to-all. Source: Naumov et al. 2019
    (arXiv 1906.00091); Mudigere et al. 2021 (arXiv 2104.05158).

    Rows are pooled as they are read: the additions, a few FLOPs for each element, are not counted.
    The interaction of pooled and dense features is not published for the large models; it is
    counted as a move of both to the width of the top layers.
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
