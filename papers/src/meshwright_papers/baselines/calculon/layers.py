"""The layers of a transformer block as the peer counts them: FLOPs, bytes touched, bytes kept.

Source: Calculon 0.1.0 (commit caa4b11), its layer definitions, stated here as formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright_papers.baselines.calculon.hardware import Column

DROPOUT_MASK_BYTES = 1.0


@dataclass(frozen=True)
class Work:
    """What one pass over a layer computes and touches."""

    flops: Any
    num_bytes: Any


NO_WORK = Work(0.0, 0.0)


@dataclass(frozen=True)
class Joint:
    """Where tensor-parallel shards meet.

    An opening joint gathers in the forward pass and reduces in the backward pass; a closing one
    does the opposite. Without sequence parallelism the gather is the identity and the reduction
    an all-reduce.
    """

    is_opening: bool
    again: Column
    """1 where the transfer is repeated for the backward pass."""
    is_tiled: bool = False
    """Hidden, tile by tile, behind the matrix product of its layer."""


@dataclass(frozen=True)
class Layer:
    """One layer of a block: its work, what it keeps, and how it takes part in recomputation."""

    name: str
    forward: Work
    input_gradient: Work
    weight_gradient: Work = NO_WORK
    num_weights: Any = 0.0
    activation_bytes: Any = 0.0
    output_bytes: Any = 0.0
    gradient_bytes: Any = 0.0
    """Gradient of the output, kept while the block runs backward [B]."""
    is_matrix: bool = False
    joint: Joint | None = None
    recomputed: Any = 0.0
    """1 where the layer runs forward a second time."""
    keeps_input: Any = 1.0
    """0 where the input is recomputed, or kept by another layer."""
    shares_input: bool = False
    """The input is a buffer that another layer counts."""
    keeps_output: Any = 1.0


def matrix_layer(name: str, word: float, tokens: Any, inner: Any, outer: Any) -> Layer:
    """Return ``tokens x inner`` times a weight of ``inner x outer``: 2 m n k FLOP each way."""
    return _weighted(
        name, word, tokens, inner, outer, kept=tokens * inner, gradients=tokens * outer
    )


def tiled_matrix_layer(
    name: str,
    word: float,
    tokens: Any,
    inner: Any,
    outer: Any,
    *,
    joint: Joint,
    tp: Any,
    split: Any,
) -> Layer:
    """Return a matrix product whose tensor-parallel transfer hides behind its tiles.

    ``inner`` and ``outer`` are those of the whole product. With sequence parallelism (``split``)
    one tile of the gathered side is kept; otherwise the identity side keeps nothing and the side
    of the all-reduce keeps a second buffer.
    """
    if joint.is_opening:
        outer = outer // tp
        kept = split * (tokens * inner // tp) + (1 - split) * (tokens * inner)
        gradients = split * (tokens * outer)
    else:
        inner = inner // tp
        kept = split * (tokens * inner)
        gradients = split * (2 * (tokens * outer // tp)) + (1 - split) * (2 * tokens * outer)
    return _weighted(
        name, word, tokens, inner, outer, kept=kept, gradients=gradients, joint=joint
    )  # fmt: skip


def _weighted(
    name: str, word: float, tokens: Any, inner: Any, outer: Any, *,
    kept: Any, gradients: Any, joint: Joint | None = None,
) -> Layer:  # fmt: skip
    """Return a matrix product with weights, given the elements that it keeps."""
    flops, weights = 2 * tokens * inner * outer, inner * outer
    touched = (weights + kept + gradients) * word
    return Layer(
        name,
        forward=Work(flops, (tokens * inner + tokens * outer + weights) * word),
        input_gradient=Work(flops, touched),
        weight_gradient=Work(flops, touched),
        num_weights=weights,
        activation_bytes=kept * word,
        output_bytes=tokens * outer * word,
        gradient_bytes=gradients * word,
        is_matrix=True,
        joint=joint,
    )


def batched_product(name: str, word: float, batch: Any, m: Any, n: Any, k: Any) -> Layer:
    """Return products of activations, ``m x n`` by ``n x k``; backward costs twice as much."""
    inputs, outputs = batch * (m * n + n * k), batch * m * k
    return Layer(
        name,
        forward=Work(2 * batch * m * n * k, (inputs + outputs) * word),
        input_gradient=Work(4 * batch * m * n * k, (inputs + outputs) * word),
        activation_bytes=inputs * word,
        output_bytes=outputs * word,
        gradient_bytes=outputs * word,
        is_matrix=True,
    )


def layer_norm(name: str, word: float, size: Any, hidden: float) -> Layer:
    """Return a normalisation with scale and shift: 9, 14 and 7 FLOP per element."""
    touched = (2 * hidden + 2 * size) * word
    return Layer(
        name,
        forward=Work(9 * size, touched),
        input_gradient=Work(14 * size, touched),
        weight_gradient=Work(7 * size, touched),
        num_weights=2 * hidden,
        activation_bytes=size * word,
        output_bytes=size * word,
        gradient_bytes=size * word,
    )


def dropout(name: str, word: float, size: Any) -> Layer:
    """Return a dropout: it keeps a mask of one byte per element, and no activation."""
    pass_ = Work(size, 2 * size * word + size * DROPOUT_MASK_BYTES)
    return Layer(
        name,
        forward=pass_,
        input_gradient=pass_,
        activation_bytes=size * DROPOUT_MASK_BYTES,
        output_bytes=size * word,
        gradient_bytes=size * DROPOUT_MASK_BYTES,
    )


def softmax(name: str, word: float, size: Any) -> Layer:
    """Return a softmax: 5 FLOP per element forward, 8 backward."""
    return _pointwise(name, word, size, 5, 8, kept=size)


def gelu(name: str, word: float, size: Any, fused: Any) -> Layer:
    """Return an activation function: 8 and 13 FLOP per element; fused, it keeps nothing."""
    return _pointwise(name, word, size, 8, 13, kept=size * (1 - fused))


def _pointwise(
    name: str, word: float, size: Any, forward_flops: int, backward_flops: int, *, kept: Any
) -> Layer:
    """Return a function of each element that reads and writes once, each way."""
    return Layer(
        name,
        forward=Work(forward_flops * size, 2 * size * word),
        input_gradient=Work(backward_flops * size, 2 * size * word),
        activation_bytes=kept * word,
        output_bytes=size * word,
        gradient_bytes=kept * word,
    )


def residual(name: str, word: float, size: Any) -> Layer:
    """Return the sum of two tensors."""
    return Layer(
        name,
        forward=Work(size, 3 * size * word),
        input_gradient=Work(2 * size, 3 * size * word),
        activation_bytes=2 * size * word,
        output_bytes=size * word,
        gradient_bytes=size * word,
    )


def fork(name: str, word: float, size: Any, num_users: int) -> Layer:
    """Return a tensor with several users: free forward, their gradients are summed backward."""
    return Layer(
        name,
        forward=NO_WORK,
        input_gradient=Work(num_users * size, size * word * (num_users + 1)),
        activation_bytes=size * word,
    )


def exposed_joint(name: str, word: float, size: Any, tp: Any, joint: Joint, split: Any) -> Layer:
    """Return a joint of its own: the transfer, and the additions of its reduction.

    Nothing at all without tensor parallelism. ``split``: sequence parallelism, where both sides
    move data; otherwise only the side of the all-reduce touches and keeps it.
    """
    size = size * (tp > 1)
    additions, touched = size * (tp - 1) / tp, 2 * size * word
    reduction, identity = Work(additions, touched), Work(0.0, split * touched)
    opens = joint.is_opening
    kept, whole = split * (size * word / tp), (1 - split) * (size * word)
    return Layer(
        name,
        forward=identity if opens else reduction,
        input_gradient=reduction if opens else identity,
        activation_bytes=kept + (0.0 if opens else whole),
        output_bytes=size * word,
        gradient_bytes=kept + (whole if opens else 0.0),
        joint=joint,
    )
