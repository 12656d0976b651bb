"""The layers of a transformer block as the peer counts them: FLOPs, bytes touched, bytes kept.

Source: Calculon 0.1.0 (commit caa4b11), its layer definitions, stated here as formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, Num
from meshwright_papers.calculon.executions import (
    ALL_REDUCE,
    ATTENTION_RECOMPUTE,
    FULL_RECOMPUTE,
    PIPE_OVERLAP,
    SEQUENCE_PARALLEL,
)
from meshwright_papers.calculon.machine import Application, Column, Links

DROPOUT_MASK_BYTES = 1.0


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of memory traffic of one pass over a layer."""

    flops: Num
    num_bytes: Num


NO_WORK = Work(0.0, 0.0)


@dataclass(frozen=True)
class Joint:
    """Where tensor-parallel shards meet.

    An opening joint gathers in the forward pass and reduces in the backward pass; a closing one
    does the opposite. Without sequence parallelism the gather is the identity and the reduction
    an all-reduce.
    """

    is_opening: bool
    again: Num
    """1 where the transfer is repeated for the backward pass."""
    is_tiled: bool = False
    """Whether it hides, tile by tile, behind the matrix product of its layer."""


@dataclass(frozen=True)
class Layer:
    """One layer of a block: its work, the tensors that it keeps, and its part in recomputation."""

    name: str
    forward: Work
    input_gradient: Work
    weight_gradient: Work = NO_WORK
    num_weights: Num = 0.0
    activation_bytes: Num = 0.0
    output_bytes: Num = 0.0
    gradient_bytes: Num = 0.0
    """Gradient of the output, kept while the block runs backward [B]."""
    is_matrix: bool = False
    joint: Joint | None = None
    recomputed: Num = 0.0
    """1 where the layer runs forward a second time."""
    keeps_input: Num = 1.0
    """0 where the input is recomputed, or kept by another layer."""
    shares_input: bool = False
    """Whether the input is a buffer that another layer counts."""
    keeps_output: Num = 1.0


def matrix_layer(name: str, word: float, tokens: Num, inner: Num, outer: Num) -> Layer:
    """Return ``tokens x inner`` times a weight of ``inner x outer``: 2 m n k FLOP each way."""
    return _weighted(
        name, word, tokens, inner, outer, kept=tokens * inner, gradients=tokens * outer
    )


def tiled_matrix_layer(
    name: str,
    word: float,
    tokens: Num,
    inner: Num,
    outer: Num,
    *,
    joint: Joint,
    tp: Num,
    split: Num,
) -> Layer:
    """Return a matrix product that hides its tensor-parallel transfer behind its tiles.

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
    name: str, word: float, tokens: Num, inner: Num, outer: Num, *,
    kept: Num, gradients: Num, joint: Joint | None = None,
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


def batched_product(name: str, word: float, batch: Num, m: Num, n: Num, k: Num) -> Layer:
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


def layer_norm(name: str, word: float, size: Num, hidden: float) -> Layer:
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


def dropout(name: str, word: float, size: Num) -> Layer:
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


def softmax(name: str, word: float, size: Num) -> Layer:
    """Return a softmax: 5 FLOP per element forward, 8 backward."""
    return _pointwise(name, word, size, 5, 8, kept=size)


def gelu(name: str, word: float, size: Num, fused: Num) -> Layer:
    """Return an activation function: 8 and 13 FLOP per element; fused, it keeps nothing."""
    return _pointwise(name, word, size, 8, 13, kept=size * (1 - fused))


def _pointwise(
    name: str, word: float, size: Num, forward_flops: int, backward_flops: int, *, kept: Num
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


def residual(name: str, word: float, size: Num) -> Layer:
    """Return the sum of two tensors."""
    return Layer(
        name,
        forward=Work(size, 3 * size * word),
        input_gradient=Work(2 * size, 3 * size * word),
        activation_bytes=2 * size * word,
        output_bytes=size * word,
        gradient_bytes=size * word,
    )


def fork(name: str, word: float, size: Num, num_users: int) -> Layer:
    """Return a tensor with several users: free forward, their gradients are summed backward."""
    return Layer(
        name,
        forward=NO_WORK,
        input_gradient=Work(num_users * size, size * word * (num_users + 1)),
        activation_bytes=size * word,
    )


def exposed_joint(name: str, word: float, size: Num, tp: Num, joint: Joint, split: Num) -> Layer:
    """Return a separate joint: the transfer, and the additions of its reduction.

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


@dataclass(frozen=True)
class BlockStructure:
    """Choices that change which layers a block has."""

    is_multiquery: bool = False
    is_tiled: bool = False
    """Whether tensor-parallel transfers hide behind the tiles of the matrix products."""
    is_training: bool = True


@dataclass(frozen=True)
class BlockChoices:
    """The columns on which the cost of a block depends; flags are 0 or 1."""

    tp: Column
    micro_batch_size: Column
    links: Links
    """The network of the tensor axis."""
    recomputes_all: Column
    recomputes_attention: Column
    """1 where attention or the whole block is recomputed."""
    gather_again: Column
    is_split: Column
    """Sequence parallelism: reduce-scatter and all-gather in place of all-reduce."""
    is_split_at_ends: Column
    """Also in the last block of a chunk; 1 wherever ``is_split`` is."""
    fused_activation: Column
    waits_for_tile: Column
    """1 where a tiled transfer leaves its first tile exposed (pipe), 0 where not (ring)."""


class ChosenColumns(Protocol):
    """Columns of plans, or of a table of blocks, that say how a block is run."""

    @property
    def micro_batch_size(self) -> FloatArray:
        """Samples of a micro-batch."""

    @property
    def recompute(self) -> IntArray:
        """Index in ``RECOMPUTES``."""

    @property
    def communication(self) -> IntArray:
        """Index in ``COMMUNICATIONS``."""

    @property
    def overlap(self) -> IntArray:
        """Index in ``OVERLAPS``."""

    @property
    def gather_again(self) -> BoolArray:
        """Whether gathered activations are gathered a second time."""


def block_choices(
    columns: ChosenColumns, tp: Column, links: Links, fused_activation: BoolArray
) -> BlockChoices:
    """Return the columns on which the cost of a block depends."""
    return BlockChoices(
        tp=tp,
        micro_batch_size=columns.micro_batch_size,
        links=links,
        recomputes_all=_flag(columns.recompute == FULL_RECOMPUTE),
        recomputes_attention=_flag(columns.recompute >= ATTENTION_RECOMPUTE),
        gather_again=_flag(columns.gather_again),
        is_split=_flag(columns.communication == SEQUENCE_PARALLEL),
        is_split_at_ends=_flag(columns.communication != ALL_REDUCE),
        fused_activation=_flag(fused_activation),
        waits_for_tile=_flag(columns.overlap == PIPE_OVERLAP),
    )


def _flag(condition: BoolArray) -> FloatArray:
    return condition.astype(np.float64)


@dataclass(frozen=True)
class _Sizes:
    """Tensor sizes of one micro-batch on one processor [elements], and the word [B]."""

    word: float
    tokens: Num
    whole: Num
    """Activations of all tokens."""
    own: Num
    """Those outside the tensor-parallel part: split by sequence parallelism."""
    scores: Num
    """The attention matrix."""
    head_batch: Num


def _sizes(app: Application, choices: BlockChoices, word: float) -> _Sizes:
    tp, split = choices.tp, choices.is_split
    tokens = choices.micro_batch_size * app.sequence_size
    whole, part = tokens * app.hidden_size, tokens // tp * app.hidden_size
    heads = app.num_heads // tp
    return _Sizes(
        word=word,
        tokens=tokens,
        whole=whole,
        own=split * part + (1 - split) * whole,
        scores=heads * app.sequence_size * app.sequence_size * choices.micro_batch_size,
        head_batch=choices.micro_batch_size * app.num_heads // tp,
    )


def block_layers(
    app: Application, structure: BlockStructure, choices: BlockChoices, word: float
) -> list[Layer]:
    """Return the layers of one block in their order; ``word`` is the element size [B]."""
    sizes = _sizes(app, choices, word)
    gathers_attention = 1 - (1 - choices.recomputes_attention) * (1 - choices.gather_again)
    gathers_ffn = 1 - (1 - choices.recomputes_all) * (1 - choices.gather_again)
    return [
        *_entry("attention", app, sizes, choices),
        *_projections(app, structure, sizes, choices, gathers_attention),
        *_attention(app, sizes, choices),
        *_out("attention_output", app.num_heads * app.head_size, app, structure, sizes, choices),
        *_exit("attention", sizes, choices),
        *_entry("ffn", app, sizes, choices),
        *_ffn_in(app, structure, sizes, choices, gathers_ffn),
        *_out("ffn_output", app.feedforward_size, app, structure, sizes, choices),
        *_exit("ffn", sizes, choices),
    ]


def _entry(part: str, app: Application, sizes: _Sizes, choices: BlockChoices) -> Iterator[Layer]:
    """Yield the branch to the residual and the normalisation, which share one input."""
    full, word = choices.recomputes_all, sizes.word
    yield replace(fork(f"{part}_fork", word, sizes.own, 2), recomputed=full)
    norm = layer_norm(f"{part}_norm", word, sizes.own, app.hidden_size)
    yield _sharing(norm, full)


def _exit(part: str, sizes: _Sizes, choices: BlockChoices) -> Iterator[Layer]:
    """Yield the dropout and the sum with the residual, which the fork keeps."""
    full, word = choices.recomputes_all, sizes.word
    yield replace(dropout(f"{part}_dropout", word, sizes.own), recomputed=full)
    yield _sharing(residual(f"{part}_residual", word, sizes.own), full)


def _sharing(layer: Layer, recomputed: Num) -> Layer:
    """Return a layer with an input that is counted elsewhere."""
    return replace(layer, recomputed=recomputed, keeps_input=0.0, shares_input=True)


def _projections(
    app: Application, structure: BlockStructure, sizes: _Sizes, choices: BlockChoices, again: Num
) -> Iterator[Layer]:
    """Yield query, key and value: three plain products, or one tiled product."""
    full, word, tp = choices.recomputes_all, sizes.word, choices.tp
    width, joint = app.num_heads * app.head_size, Joint(True, again, structure.is_tiled)
    matrices: dict[str, Num] = {"query": width // tp, "key": width // tp, "value": width // tp}
    if structure.is_multiquery:
        matrices |= {"key": app.head_size, "value": app.head_size}
    if structure.is_tiled:
        tiled = width if structure.is_multiquery else 3 * width
        product = tiled_matrix_layer(
            "projections", word, sizes.tokens, app.hidden_size, tiled,
            joint=joint, tp=tp, split=choices.is_split,
        )  # fmt: skip
        yield replace(product, recomputed=full)
        matrices = {name: matrices[name] for name in ("key", "value") if structure.is_multiquery}
    else:
        yield exposed_joint("attention_gather", word, sizes.whole, tp, joint, choices.is_split)
    if matrices:
        users = fork("projections_fork", word, sizes.whole, len(matrices))
        yield replace(users, recomputed=again, keeps_input=1 - again)
    for name, outer in matrices.items():
        product = matrix_layer(name, word, sizes.tokens, app.hidden_size, outer)
        yield _sharing(product, full)


def _attention(app: Application, sizes: _Sizes, choices: BlockChoices) -> Iterator[Layer]:
    """Yield scores, softmax, dropout and the weighted sum of the values."""
    word, attention = sizes.word, choices.recomputes_attention
    seq, head, batch = app.sequence_size, app.head_size, sizes.head_batch
    scores = batched_product("attention_scores", word, batch, seq, head, seq)
    yield replace(scores, recomputed=attention, keeps_output=1 - attention)
    probabilities = softmax("attention_softmax", word, sizes.scores)
    yield replace(probabilities, recomputed=attention, keeps_output=1 - attention)
    mask = dropout("attention_mask", word, sizes.scores)
    yield replace(mask, recomputed=attention, keeps_input=1 - attention)
    mixed = batched_product("attention_values", word, batch, seq, seq, head)
    yield replace(mixed, recomputed=choices.recomputes_all)


def _ffn_in(
    app: Application, structure: BlockStructure, sizes: _Sizes, choices: BlockChoices, again: Num
) -> Iterator[Layer]:
    """Yield the first product of the feed-forward part and its activation function."""
    full, word, tp = choices.recomputes_all, sizes.word, choices.tp
    joint = Joint(True, again, structure.is_tiled)
    hidden, ffn = app.hidden_size, app.feedforward_size
    if structure.is_tiled:
        product = tiled_matrix_layer(
            "ffn_input", word, sizes.tokens, hidden, ffn,
            joint=joint, tp=tp, split=choices.is_split,
        )  # fmt: skip
        yield replace(product, recomputed=full)
    else:
        yield exposed_joint("ffn_gather", word, sizes.whole, tp, joint, choices.is_split)
        product = matrix_layer("ffn_input", word, sizes.tokens, hidden, ffn // tp)
        yield replace(product, recomputed=full, keeps_input=1 - again)
    size = ffn * sizes.tokens // tp
    yield replace(gelu("ffn_activation", word, size, choices.fused_activation), recomputed=full)


def _out(
    name: str, inner: float, app: Application, structure: BlockStructure,
    sizes: _Sizes, choices: BlockChoices,
) -> Iterator[Layer]:  # fmt: skip
    """Yield the product that ends a tensor-parallel part, and its reduction."""
    full, word, tp = choices.recomputes_all, sizes.word, choices.tp
    joint = Joint(False, full, structure.is_tiled)
    if structure.is_tiled:
        product = tiled_matrix_layer(
            name, word, sizes.tokens, inner, app.hidden_size,
            joint=joint, tp=tp, split=choices.is_split,
        )  # fmt: skip
        yield replace(product, recomputed=full)
        return
    product = matrix_layer(name, word, sizes.tokens, inner // tp, app.hidden_size)
    yield replace(product, recomputed=full)
    reduction = exposed_joint(f"{name}_reduce", word, sizes.whole, tp, joint, choices.is_split)
    yield replace(reduction, keeps_input=0.0)
