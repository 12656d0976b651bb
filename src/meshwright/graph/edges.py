"""What stands before and after the layers: embedding, final norm, logits and loss."""

from __future__ import annotations

from meshwright.graph.elementwise import (
    MASK_WORD_BYTES,
    MASK_WORDS,
    hidden_activation,
    norm_op,
)
from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor
from meshwright.spec.model import ModelSpec

REGION = "edge"
TABLE = "embedding.table"
"""Name of the token embedding; tied logits name the same weight."""


def edge_sizes(model: ModelSpec) -> dict[str, int]:
    """Return the sizes of the dims at both ends."""
    sizes = {"hidden": model.hidden_size, "vocab": model.vocab_size}
    return sizes | ({"positions": model.learned_positions} if model.learned_positions else {})


def embedding_graph(model: ModelSpec, *, dropout: bool) -> LayerGraph:
    """Return the lookup of tokens (and positions), the norm behind it, and its dropout."""
    tokens = Tensor("token_ids", ("tokens",), 4.0)
    lookup = Op(
        name="embedding.lookup",
        kind=OpKind.EMBEDDING,
        inputs=(tokens,),
        output=hidden_activation("embedding.lookup"),
        weights=(Tensor(TABLE, ("vocab", "hidden")),),
        contracted=("vocab",),
        words_per_element=(2.0, 3.0),
        region=REGION,
    )
    ops = [lookup]
    if model.learned_positions:
        ops.append(_added_positions(lookup.output))
    if model.embedding_norm:
        ops.append(norm_op("embedding.norm", ops[-1].output, "hidden", model.norm, REGION))
    if dropout:
        ops.append(_dropout(ops[-1].output))
    return LayerGraph(tuple(ops), 1, edge_sizes(model))


def head_graph(model: ModelSpec, *, fp32_logit_copies: float = 1.0) -> LayerGraph:
    """Return the final norm, the logits, and the cross-entropy over the vocabulary."""
    stream = hidden_activation("head.input")
    ops: list[Op] = []
    if model.final_norm:
        ops.append(norm_op("head.norm", stream, "hidden", model.norm, REGION))
        stream = ops[-1].output
    name = TABLE if model.tied_embeddings else "head.logits.weight"
    bias = (Tensor("head.logits.bias", ("vocab",)),) if model.head_bias else ()
    logits = Op(
        name="head.logits",
        kind=OpKind.MATMUL,
        inputs=(stream,),
        output=Tensor("head.logits", ("tokens", "vocab")),
        weights=(Tensor(name, ("hidden", "vocab")), *bias),
        contracted=("hidden",),
        saved=(stream,),
        region=REGION,
    )
    loss = _loss(logits.output, fp32_logit_copies)
    return LayerGraph((*ops, logits, loss), 1, edge_sizes(model))


def _added_positions(source: Tensor) -> Op:
    """Return the addition of the learned positions."""
    return Op(
        name="embedding.positions",
        kind=OpKind.ELEMENTWISE,
        inputs=(source,),
        output=hidden_activation("embedding.positions"),
        weights=(Tensor("embedding.positions.table", ("positions", "hidden")),),
        words_per_element=(3.0, 3.0),
        region=REGION,
    )


def _dropout(source: Tensor) -> Op:
    """Return the dropout on what enters the first layer."""
    return Op(
        name="embedding.dropout",
        kind=OpKind.ELEMENTWISE,
        inputs=(source,),
        output=hidden_activation("embedding.dropout"),
        saved=(Tensor("embedding.dropout.mask", source.dims, MASK_WORD_BYTES),),
        words_per_element=(2.0 + MASK_WORDS, 2.0 + MASK_WORDS),
        region=REGION,
    )


def _loss(logits: Tensor, fp32_copies: float) -> Op:
    """Return the cross-entropy: it keeps FP32 copies, each 4 bytes for each token and word.

    One copy is that of the probabilities. Traffic is 10 bytes for each logit: forward reads 2 and
    writes 4, backward reads 4 and turns them into the gradient in place.
    """
    probabilities = Tensor("head.probabilities", logits.dims, 4.0)
    return Op(
        name="head.loss",
        kind=OpKind.LOSS,
        inputs=(logits,),
        output=Tensor("head.loss", ("tokens",), 4.0),
        contracted=("vocab",),
        saved=(Tensor("head.fp32_copies", logits.dims, 4.0 * fp32_copies),),
        words_per_element=(1.5, 1.0),
        moved=probabilities,
        region=REGION,
    )
