"""The import door on StableHLO texts: products of programs that JAX lowers, beside its jaxpr.

    python benchmarks/import_stablehlo.py --rows ROWS.tsv

Writes a row for each program; ``import_campaign.py --rows ROWS.tsv --out PAGE.md`` makes the page.
FLOPs of products are counted in the jaxpr, before it is lowered: 2 times the elements of the result
times those that are summed over, in loops as often as they run. Needs jax.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from jax import Array, lax
from jax import numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from meshwright.catalog.graphs.programs import read_program
from meshwright.graph.kernels.declared import to_graph
from meshwright.graph.kernels.kernel import Unit

TOKENS, HIDDEN, HEADS, FFN, WORDS = 32, 64, 4, 160, 300


def linear(x: Array, w: Array) -> Array:
    """Return a product with the last dim."""
    return jnp.einsum("...i,io->...o", x, w)


def norm(x: Array) -> Array:
    """Return rows of length one."""
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(p: Any, x: Array, *, causal: bool = True) -> Array:
    """Return attention with several heads."""
    q, k, v = (linear(x, w).reshape(*x.shape[:-1], HEADS, -1) for w in p["qkv"])
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4.0
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return linear(out.reshape(x.shape), p["out"])


def block(p: Any, x: Array) -> Array:
    """Return a layer of a transformer with a gated feed-forward network."""
    x = x + attention(p, norm(x))
    y = norm(x)
    return x + linear(jax.nn.silu(linear(y, p["gate"])) * linear(y, p["up"]), p["down"])


def layers(p: Any, x: Array) -> Array:
    """Return several layers, as a loop."""
    return lax.scan(lambda x, one: (block(one, x), None), x, p)[0]


def language_model(p: Any, words: Array) -> Array:
    """Return the scores of the next words."""
    return linear(norm(layers(p["layers"], p["table"][words])), p["table"].T)


def train_step(p: Any, words: Array) -> Any:
    """Return weights after a step of gradient descent."""

    def loss(p: Any) -> Array:
        return -jnp.mean(jnp.take_along_axis(
            jax.nn.log_softmax(language_model(p, words)), words[..., None], axis=-1))  # fmt: skip

    return jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p))


def convolution(x: Array, w: Array, stride: int = 1, groups: int = 1) -> Array:
    """Return a convolution of images."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


def residual_network(p: Any, x: Array) -> Array:
    """Return classes by a small residual network with depthwise convolutions."""
    x = jax.nn.relu(convolution(x, p["stem"], 2))
    y = convolution(jax.nn.relu(convolution(x, p["deep"], groups=16)), p["point"])
    return jnp.mean(x + y, axis=(1, 2)) @ p["head"]


def upscaling_network(p: Any, x: Array) -> Array:
    """Return an image by a convolution down and a transposed one up."""
    small = jax.nn.relu(convolution(x, p["down"], 2))
    return lax.conv_transpose(small, p["up"], (2, 2), "SAME")


def vision_transformer(p: Any, x: Array) -> Array:
    """Return classes by patches and a layer of attention."""
    patches = lax.conv_general_dilated(
        x, p["patch"], (8, 8), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = patches.reshape(x.shape[0], -1, HIDDEN)
    return jnp.mean(x + attention(p, x, causal=False), axis=1) @ p["head"]


def recurrent_network(p: Any, x: Array) -> Array:
    """Return the states of an LSTM."""

    def cell(state: Any, x: Array) -> Any:
        hidden, memory = state
        i, f, g, o = jnp.split(x @ p["x"] + hidden @ p["h"], 4, axis=-1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
        return (hidden, memory), hidden

    start = jnp.zeros((x.shape[1], HIDDEN))
    return lax.scan(cell, (start, start), x)[1]


def experts(p: Any, x: Array) -> Array:
    """Return two of six experts for each token, all of them computed."""
    chosen, which = lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
    weights = jnp.sum(jax.nn.one_hot(which, 6) * chosen[..., None], axis=1)
    inner = jax.nn.gelu(jnp.einsum("th,ehf->tef", x, p["up"]))
    return jnp.einsum("tef,efh,te->th", inner, p["down"], weights)


def state_space(p: Any, x: Array) -> Array:
    """Return a linear recurrence by an associative scan."""
    decay, inner = jax.nn.sigmoid(x @ p["decay"]), x @ p["inner"]
    _, states = lax.associative_scan(
        lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, inner), axis=1
    )
    return states @ p["out"]


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return the shape of an argument."""
    return jax.ShapeDtypeStruct(shape, dtype)


def layer(*outer: int) -> dict[str, Any]:
    """Return the weights of one or several layers."""
    return {
        "qkv": [array(*outer, HIDDEN, HIDDEN)] * 3, "out": array(*outer, HIDDEN, HIDDEN),
        "gate": array(*outer, HIDDEN, FFN), "up": array(*outer, HIDDEN, FFN),
        "down": array(*outer, FFN, HIDDEN),
    }  # fmt: skip


X = array(2, TOKENS, HIDDEN)
IMAGE = array(2, 32, 32, 3)
MODEL = {"layers": layer(3), "table": array(WORDS, HIDDEN)}
WORDS_OF = array(2, TOKENS, dtype=jnp.int32)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (attention, (layer(), X)),
    "transformer layer": (block, (layer(), X)),
    "language model, layers in a loop": (language_model, (MODEL, WORDS_OF)),
    "language model, a step of training": (train_step, (MODEL, WORDS_OF)),
    "residual network": (residual_network, (
        {"stem": array(3, 3, 3, 16), "deep": array(3, 3, 1, 16), "point": array(1, 1, 16, 16),
         "head": array(16, 10)}, IMAGE)),
    "down and up": (upscaling_network, (
        {"down": array(3, 3, 3, 8), "up": array(2, 2, 8, 3)}, IMAGE)),
    "vision transformer": (vision_transformer, (
        {"patch": array(8, 8, 3, HIDDEN), "head": array(HIDDEN, 10), **layer()}, IMAGE)),
    "LSTM": (recurrent_network, (
        {"x": array(48, 4 * HIDDEN), "h": array(HIDDEN, 4 * HIDDEN)}, array(TOKENS, 2, 48))),
    "experts": (experts, (
        {"router": array(HIDDEN, 6), "up": array(6, HIDDEN, FFN), "down": array(6, FFN, HIDDEN)},
        array(TOKENS, HIDDEN))),
    "state space": (state_space, (
        {name: array(HIDDEN, HIDDEN) for name in ("decay", "inner", "out")}, X)),
}  # fmt: skip


def counted(jaxpr: Any) -> int:
    """Return the FLOPs of the products of a jaxpr, and of those inside it."""
    total = 0
    for step in jaxpr.eqns:
        out = prod(step.outvars[0].aval.shape) if step.outvars else 0
        if step.primitive.name == "dot_general":
            (summed, _), _ = step.params["dimension_numbers"]
            total += 2 * out * prod(step.invars[0].aval.shape[dim] for dim in summed)
        elif step.primitive.name == "conv_general_dilated":
            kernel, dims = step.invars[1].aval.shape, step.params["dimension_numbers"].rhs_spec
            dilated = prod(step.params["lhs_dilation"])  # zeros between the elements
            total += 2 * out * prod(kernel[dim] for dim in dims[1:]) // dilated
        times = step.params.get("length", 1) if step.primitive.name == "scan" else 1
        total += times * sum(map(counted, inside(step.params)))
    return total


def inside(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among parameters."""
    for value in jax.tree.leaves(list(params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
        if hasattr(value, "eqns"):
            yield getattr(value, "jaxpr", value)


def row(name: str) -> tuple[str, str, str, str, str]:
    """Return a row of the table: name, kernels, FLOPs read and counted, verdict."""
    program, arguments = PROGRAMS[name]
    expected = counted(jax.make_jaxpr(program)(*arguments).jaxpr)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "program.mlir"
        path.write_text(jax.jit(program).lower(*arguments).as_text(debug_info=True))
        try:
            graph = to_graph(read_program(str(path)))
        except Exception as error:
            return f"stablehlo {name}", "", "", "", " ".join(f"not read: {error}".split())[:150]
    flops = sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)
    verdict = "equal" if flops == expected else f"{flops / max(expected, 1):.4f}"
    count = str(len(graph.kernels))
    return f"stablehlo {name}", count, f"{flops:,.0f}", f"{expected:,}", verdict


def main() -> None:
    """Read all programs and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, help="rows of the campaign, to which these are added")
    asked = parser.parse_args()
    found = [row(name) for name in PROGRAMS]
    for cells in found:
        print(*cells, sep="  ")
    if asked.rows:
        with asked.rows.open("a") as kept:
            kept.writelines("\t".join(cells) + "\n" for cells in found)


if __name__ == "__main__":
    main()
