"""A decoder-only transformer as a graph of operators with named dims.

Before the layers stands the embedding, behind them the final norm, the logits and the loss.
"""

from __future__ import annotations

from meshwright.base.errors import Fault, SpecError
from meshwright.graph.attention import attention_ops, attention_sizes
from meshwright.graph.elementwise import (
    MASK_WORD_BYTES,
    MASK_WORDS,
    hidden_activation,
    norm_op,
    residual_add_op,
)
from meshwright.graph.feed_forward import (
    expert_ops,
    expert_sizes,
    feed_forward_ops,
    ffn_sizes,
    joined,
)
from meshwright.graph.op import LayerGraph, Op, OpGraph, OpKind, Tensor
from meshwright.spec.model import LayerSpec, ModelSpec

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


def build_graph(
    model: ModelSpec, *, dropout: bool = False, flash_attention: bool = True,
    fp32_logit_copies: float = 1.0,
) -> OpGraph:  # fmt: skip
    """Return the operators of one step: each kind of layer once, and both ends.

    Parameters
    ----------
    dropout
        Dropout on the branches of each layer, on attention probabilities and on the embedding.
    flash_attention
        The score matrix never reaches memory; otherwise it is materialised and kept.
    fp32_logit_copies
        FP32 copies of the logits that the loss holds at its worst moment.
    """
    layers = tuple(
        LayerGraph(
            _layer_ops(model, spec, dropout=dropout, flash_attention=flash_attention),
            count,
            _layer_sizes(model, spec),
        )
        for spec, count in zip(model.layer_kinds, model.layer_counts, strict=True)
        if count
    )
    return OpGraph(
        layers=layers,
        embedding=embedding_graph(model, dropout=dropout),
        head=head_graph(model, fp32_logit_copies=fp32_logit_copies),
        tied=model.tied_embeddings,
    )


def _layer_sizes(model: ModelSpec, spec: LayerSpec) -> dict[str, int]:
    """Return the sizes of all dims of one kind of layer."""
    sizes = {"hidden": model.hidden_size} | attention_sizes(spec.attention)
    if spec.feed_forward is not None:
        network = spec.feed_forward
        return sizes | ffn_sizes("", network.ffn_size, gated=network.gated)
    assert spec.experts is not None
    return sizes | expert_sizes(spec.experts)


def _layer_ops(
    model: ModelSpec, spec: LayerSpec, *, dropout: bool, flash_attention: bool
) -> tuple[Op, ...]:
    """Return the operators of a layer in order, for either form of the residual stream."""
    _check_norms(spec)
    stream = hidden_activation("layer_input")
    first = norm_op("attention.norm", stream, "hidden", model.norm, "attention")
    attention, branch = attention_ops(
        spec.attention,
        first.output,
        rotary=model.learned_positions == 0,
        dropout=dropout,
        flash_attention=flash_attention,
    )
    ops = [first, *attention]
    if spec.parallel_residual:
        network_norm, source = _parallel_norm(model, spec, stream, first.output)
        network, branches = _network_ops(spec, source)
        add = residual_add_op("residual", stream, (branch, *branches), dropout=dropout)
        return (*ops, *network_norm, *network, add)
    ops += _second_norm(model, spec, "attention", (branch,))
    branch = ops[-1].output
    ops.append(residual_add_op("residual.attention", stream, (branch,), dropout=dropout))
    stream = ops[-1].output
    region = _network_region(spec)
    ops.append(norm_op(f"{region}.norm", stream, "hidden", model.norm, region))
    network, branches = _network_ops(spec, ops[-1].output)
    after = _second_norm(model, spec, region, branches)
    branches = (after[-1].output,) if after else branches
    ops += [*network, *after]
    ops.append(residual_add_op("residual.network", stream, branches, dropout=dropout))
    return tuple(ops)


def _network_region(spec: LayerSpec) -> str:
    return "feed_forward" if spec.feed_forward is not None else "experts"


def _network_ops(spec: LayerSpec, source: Tensor) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return the dense network or the experts, and the branches that they add."""
    if spec.feed_forward is not None:
        network = spec.feed_forward
        ops, output = feed_forward_ops(source, gated=network.gated, bias=network.bias)
        return ops, (output,)
    assert spec.experts is not None
    return expert_ops(spec.experts, source)


def _parallel_norm(
    model: ModelSpec, spec: LayerSpec, stream: Tensor, shared: Tensor
) -> tuple[list[Op], Tensor]:
    """Return the norm before the network of a parallel block: its own, or that of attention."""
    if spec.num_norms == 1:
        return [], shared
    region = _network_region(spec)
    own = norm_op(f"{region}.norm", stream, "hidden", model.norm, region)
    return [own], own.output


def _second_norm(
    model: ModelSpec, spec: LayerSpec, region: str, branches: tuple[Tensor, ...]
) -> list[Op]:
    """Return the norm on a branch before it is added, in models that have four norms."""
    if spec.num_norms != 4:
        return []
    ops, branch = joined(branches)
    return [*ops, norm_op(f"{region}.post_norm", branch, "hidden", model.norm, region)]


def _check_norms(spec: LayerSpec) -> None:
    allowed = (1, 2) if spec.parallel_residual else (2, 4)
    if spec.num_norms not in allowed:
        kind = "parallel" if spec.parallel_residual else "sequential"
        message = f"{spec.num_norms} norms in a layer with {kind} residual"
        raise SpecError(
            Fault("layer.num_norms", message, f"{allowed[0]} or {allowed[1]} are known")
        )
