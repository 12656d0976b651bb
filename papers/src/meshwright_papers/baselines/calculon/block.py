"""One transformer block as a list of layers, plain or with hidden tensor-parallel transfers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright_papers.baselines.calculon import layers
from meshwright_papers.baselines.calculon.declarations import Application
from meshwright_papers.baselines.calculon.executions import (
    ALL_REDUCE,
    ATTENTION_RECOMPUTE,
    FULL_RECOMPUTE,
    PIPE_OVERLAP,
    SEQUENCE_PARALLEL,
)
from meshwright_papers.baselines.calculon.hardware import Column, Links
from meshwright_papers.baselines.calculon.layers import Joint, Layer


@dataclass(frozen=True)
class BlockStructure:
    """Choices that change which layers a block has."""

    is_multiquery: bool = False
    is_tiled: bool = False
    """Tensor-parallel transfers hide behind the tiles of the matrix products."""
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
    """Also 1 where all is recomputed."""
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
    tokens: Any
    whole: Any
    """Activations of all tokens."""
    own: Any
    """Those outside the tensor-parallel part: split by sequence parallelism."""
    scores: Any
    """The attention matrix."""
    head_batch: Any


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
    yield replace(layers.fork(f"{part}_fork", word, sizes.own, 2), recomputed=full)
    norm = layers.layer_norm(f"{part}_norm", word, sizes.own, app.hidden_size)
    yield _sharing(norm, full)


def _exit(part: str, sizes: _Sizes, choices: BlockChoices) -> Iterator[Layer]:
    """Yield the dropout and the sum with the residual, which the fork keeps."""
    full, word = choices.recomputes_all, sizes.word
    yield replace(layers.dropout(f"{part}_dropout", word, sizes.own), recomputed=full)
    yield _sharing(layers.residual(f"{part}_residual", word, sizes.own), full)


def _sharing(layer: Layer, recomputed: Any) -> Layer:
    """Return a layer whose input is counted elsewhere."""
    return replace(layer, recomputed=recomputed, keeps_input=0.0, shares_input=True)


def _projections(
    app: Application, structure: BlockStructure, sizes: _Sizes, choices: BlockChoices, again: Any
) -> Iterator[Layer]:
    """Yield query, key and value: three plain products, or one tiled product."""
    full, word, tp = choices.recomputes_all, sizes.word, choices.tp
    width, joint = app.num_heads * app.head_size, Joint(True, again, structure.is_tiled)
    matrices: dict[str, Any] = {"query": width // tp, "key": width // tp, "value": width // tp}
    if structure.is_multiquery:
        matrices |= {"key": app.head_size, "value": app.head_size}
    if structure.is_tiled:
        tiled = width if structure.is_multiquery else 3 * width
        product = layers.tiled_matrix_layer(
            "projections", word, sizes.tokens, app.hidden_size, tiled,
            joint=joint, tp=tp, split=choices.is_split,
        )  # fmt: skip
        yield replace(product, recomputed=full)
        matrices = {name: matrices[name] for name in ("key", "value") if structure.is_multiquery}
    else:
        yield layers.exposed_joint(
            "attention_gather", word, sizes.whole, tp, joint, choices.is_split
        )
    if matrices:
        users = layers.fork("projections_fork", word, sizes.whole, len(matrices))
        yield replace(users, recomputed=again, keeps_input=1 - again)
    for name, outer in matrices.items():
        product = layers.matrix_layer(name, word, sizes.tokens, app.hidden_size, outer)
        yield _sharing(product, full)


def _attention(app: Application, sizes: _Sizes, choices: BlockChoices) -> Iterator[Layer]:
    """Yield scores, softmax, dropout and the weighted sum of the values."""
    word, attention = sizes.word, choices.recomputes_attention
    seq, head, batch = app.sequence_size, app.head_size, sizes.head_batch
    scores = layers.batched_product("attention_scores", word, batch, seq, head, seq)
    yield replace(scores, recomputed=attention, keeps_output=1 - attention)
    probabilities = layers.softmax("attention_softmax", word, sizes.scores)
    yield replace(probabilities, recomputed=attention, keeps_output=1 - attention)
    mask = layers.dropout("attention_mask", word, sizes.scores)
    yield replace(mask, recomputed=attention, keeps_input=1 - attention)
    mixed = layers.batched_product("attention_values", word, batch, seq, seq, head)
    yield replace(mixed, recomputed=choices.recomputes_all)


def _ffn_in(
    app: Application, structure: BlockStructure, sizes: _Sizes, choices: BlockChoices, again: Any
) -> Iterator[Layer]:
    """Yield the first product of the feed-forward part and its activation function."""
    full, word, tp = choices.recomputes_all, sizes.word, choices.tp
    joint = Joint(True, again, structure.is_tiled)
    hidden, ffn = app.hidden_size, app.feedforward_size
    if structure.is_tiled:
        product = layers.tiled_matrix_layer(
            "ffn_input", word, sizes.tokens, hidden, ffn,
            joint=joint, tp=tp, split=choices.is_split,
        )  # fmt: skip
        yield replace(product, recomputed=full)
    else:
        yield layers.exposed_joint("ffn_gather", word, sizes.whole, tp, joint, choices.is_split)
        product = layers.matrix_layer("ffn_input", word, sizes.tokens, hidden, ffn // tp)
        yield replace(product, recomputed=full, keeps_input=1 - again)
    size = ffn * sizes.tokens // tp
    yield replace(
        layers.gelu("ffn_activation", word, size, choices.fused_activation), recomputed=full
    )


def _out(
    name: str, inner: float, app: Application, structure: BlockStructure,
    sizes: _Sizes, choices: BlockChoices,
) -> Iterator[Layer]:  # fmt: skip
    """Yield the product that ends a tensor-parallel part, and its reduction."""
    full, word, tp = choices.recomputes_all, sizes.word, choices.tp
    joint = Joint(False, full, structure.is_tiled)
    if structure.is_tiled:
        product = layers.tiled_matrix_layer(
            name, word, sizes.tokens, inner, app.hidden_size,
            joint=joint, tp=tp, split=choices.is_split,
        )  # fmt: skip
        yield replace(product, recomputed=full)
        return
    product = layers.matrix_layer(name, word, sizes.tokens, inner // tp, app.hidden_size)
    yield replace(product, recomputed=full)
    reduction = layers.exposed_joint(
        f"{name}_reduce", word, sizes.whole, tp, joint, choices.is_split
    )
    yield replace(reduction, keeps_input=0.0)
