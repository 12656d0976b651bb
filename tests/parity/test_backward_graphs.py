"""The kernels of a backward pass, evaluated, are the derivatives of the forward ones."""

import numpy as np
import pytest

from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit, Weight, single_dims
from meshwright.graph.op import Phase

SIZES = {
    "tokens": 3, "keys": 3, "hidden": 4, "heads": 2, "head_dim": 2, "choices": 2, "out": 5,
}  # fmt: skip
STREAM, HEADS = ("tokens", "hidden"), ("tokens", "heads", "head_dim")
SCORES = ("tokens", "heads", "keys")


def product(name, dims, *reads, weight=None):
    held = () if weight is None else (Weight(f"{name}.weight", weight),)
    return Kernel(name, Unit.MATRIX, dims, reads, held, flops_per_point=2.0)


def attention():
    """Return attention without softmax: products, a residual sum, and a sum over choices."""
    keys = ("keys", "heads", "head_dim")
    x = Operand("x", STREAM)
    weight = ("hidden", "heads", "head_dim")
    kernels = (
        *(product(part, HEADS, x, weight=weight) for part in ("q", "k", "v")),
        product("qk", SCORES, Operand("q", HEADS), Operand("k", keys)),
        product("av", HEADS, Operand("qk", SCORES), Operand("v", keys)),
        product(
            "proj", STREAM, Operand("av", ("tokens", "heads", "head_dim")),
            weight=("heads*head_dim", "hidden"),
        ),
        Kernel("add", Unit.VECTOR, STREAM, (Operand("proj", STREAM), x), is_sum=True),
        product("wide", ("choices", "tokens", "out"), Operand("add", STREAM),
                weight=("choices", "hidden", "out")),
        Kernel("sum", Unit.VECTOR, ("tokens", "out"),
               (Operand("wide", ("choices", "tokens", "out")),), is_sum=True),
        product("square", ("tokens", "out"), Operand("sum", ("tokens", "out")),
                Operand("sum", ("tokens", "out"))),
    )  # fmt: skip
    return DataflowGraph("attention", kernels, SIZES, {"x": STREAM}, ("square",), "tokens")


def evaluated(graph, tensors):
    """Return all tensors of a graph: products as einsums, sums as sums."""
    letters = {dim: chr(ord("a") + n) for n, dim in enumerate(graph.sizes)}

    def seen(array, dims):
        names = single_dims(dims)
        return array.reshape([graph.sizes[n] for n in names]), "".join(letters[n] for n in names)

    tensors = dict(tensors)
    for kernel in graph.kernels:
        reads = [seen(tensors[read.source], read.dims) for read in kernel.inputs]
        reads += [seen(tensors[weight.name], weight.dims) for weight in kernel.weights]
        names = single_dims(kernel.dims)
        shape = [graph.sizes[name] for name in names]
        out = "".join(letters[name] for name in names)
        groups = [[read] for read in reads] if kernel.is_sum else [reads]
        tensors[kernel.name] = sum(reduced(group, out, shape) for group in groups)
    return tensors


def reduced(reads, out, shape):
    """Return a product of tensors summed to the dims of the output, repeated where it has more."""
    ones = np.ones(shape)
    equation = ",".join([text for _, text in reads] + [out]) + "->" + out
    return np.einsum(equation, *(array for array, _ in reads), ones)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_finite_differences(seed) -> None:
    random = np.random.default_rng(seed)
    forward = attention()
    given = {"x": random.normal(size=[SIZES[d] for d in STREAM])}
    for kernel in forward.kernels:
        for weight in kernel.weights:
            given[weight.name] = random.normal(size=[SIZES[d] for d in single_dims(weight.dims)])
    upstream = random.normal(size=[SIZES["tokens"], SIZES["out"]])
    graph = with_backward(forward)
    found = evaluated(graph, given | {"square.grad": upstream})
    wanted = {
        name: numerical(forward, given, name, upstream) for name in given
    }  # fmt: skip
    for name, derivative in wanted.items():
        made = found["x.grad" if name == "x" else name.replace(".weight", ".grad.weight")]
        np.testing.assert_allclose(made.reshape(-1), derivative.reshape(-1), rtol=2e-6, atol=2e-6)
    assert sum(k.phase is Phase.WEIGHT_GRADIENT for k in graph.kernels) == 5


def numerical(graph, given, name, upstream):
    """Return the derivative of the weighted sum of the output by central differences."""
    step, array = 1e-5, given[name]
    derivative = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        ends = []
        for sign in (1, -1):
            moved = array.copy()
            moved[index] += sign * step
            ends.append((evaluated(graph, given | {name: moved})["square"] * upstream).sum())
        derivative[index] = (ends[0] - ends[1]) / (2 * step)
    return derivative
