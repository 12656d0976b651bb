"""The layer of a GPT in 18 kernels, as DFModel cuts it (Ko et al. 2024, arXiv 2412.16432)."""

from __future__ import annotations

from meshwright.graph.dataflow.backward import with_backward
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Dims, Kernel, Operand, Unit, Weight

STREAM: Dims = ("tokens", "hidden")
HEADS: Dims = ("tokens", "heads", "head_dim")
SCORES: Dims = ("tokens", "heads", "keys")
INNER: Dims = ("tokens", "ffn")


def gpt_layer(
    hidden: int, heads: int, head_dim: int, tokens: int, *, repeats: int = 1, ffn: int | None = None
) -> DataflowGraph:
    """Return the forward pass of a layer: attention and network, each with norm and residual.

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
