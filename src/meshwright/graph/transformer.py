"""A decoder-only transformer as a graph of operators with named dims.

Before the layers is the embedding; after them the final norm, the logits and the loss. A layer is
attention (multi-head, grouped-query or latent) or a recurrence, and a feed-forward network, dense
or a mixture of experts: a router, the dispatch of tokens, the networks of the experts, and shared
experts. A layer may also be one of the two branches alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from meshwright.base.errors import Fault, SpecError
from meshwright.graph.common import (
    EDGE,
    MASK_WORD_BYTES,
    MASK_WORDS,
    NormKind,
    activation_op,
    hidden_activation,
    norm_op,
    product_op,
    residual_add_op,
    sum_op,
    with_kept_gate,
    with_norm_in_steps,
)
from meshwright.graph.op import LayerGraph, Op, OpGraph, OpKind, Tensor
from meshwright.graph.recurrence import RECURRENCE, recurrence_ops, recurrence_sizes
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    LayerSpec,
    ModelSpec,
    RecurrenceSpec,
    SideSpec,
)
from meshwright.spec.workload import LossKernel

ATTENTION, EXPERTS, SHARED, SIDE = "attention", "experts", "shared_experts", "side"
"""Regions of the graph."""
TABLE = "embedding.table"
"""Name of the token embedding; tied logits name the same weight."""


def attention_sizes(spec: AttentionSpec) -> dict[str, int]:
    """Return the sizes of the dims of one attention."""
    score_size = spec.head_size + spec.rope_head_size
    sizes = {
        "query_heads": spec.num_heads,
        "kv_heads": spec.num_kv_heads,
        "query": spec.num_heads * score_size,
        "key": spec.num_kv_heads * score_size,
        "value": spec.num_kv_heads * spec.value_head_size,
        "heads": spec.num_heads * spec.value_head_size,
        "head_size": spec.head_size,
    }
    if spec.kv_rank is not None:
        sizes |= {"kv_rank": spec.kv_rank, "rotary": max(spec.rope_head_size, 1)}
        sizes |= {"key_content": spec.num_heads * spec.head_size}
    if spec.query_rank is not None:
        sizes["query_rank"] = spec.query_rank
    if spec.output_rank is not None:
        sizes |= {"output_rank": spec.output_rank}
        sizes |= {"output_ranks": spec.output_rank * spec.output_groups}
    if spec.index_heads:
        sizes |= {"index_query": spec.index_heads * spec.index_head_size}
        sizes |= {"index_key": spec.index_head_size, "index_heads": spec.index_heads}
    return sizes


def attention_ops(
    spec: AttentionSpec, source: Tensor, *, rotary: bool, dropout: bool, flash_attention: bool
) -> tuple[list[Op], tuple[Tensor]]:
    """Return the operators from the normalised input to the output projection, and its output."""
    if spec.kind == "mla":
        ops, parts = _latent_projections(spec, source)
    else:
        ops, parts = _plain_projections(spec, source, rotary=rotary and spec.rotary)
    core = _core(spec, parts, dropout=dropout, flash_attention=flash_attention)
    ops.append(core)
    if spec.output_gate:
        ops.append(_gated_heads(core.output))
    output = Tensor("attention.output", ("tokens", "hidden"))
    heads, bias = ops[-1].output, spec.output_bias
    if spec.output_rank is not None:
        # A group of heads meets its own factor: rows of all of them make one product.
        low = Tensor("attention.output_down", ("tokens", "output_rank"))
        ops.append(product_op(low.name, heads, (low,), ATTENTION))
        heads = Tensor("attention.output_factors", ("tokens", "output_ranks"))
    ops.append(product_op("attention.output", heads, (output,), ATTENTION, bias=bias))
    return ops, (output,)


_GATE = Tensor("attention.gate", ("tokens", "heads"))


def _gated_heads(heads: Tensor) -> Op:
    """Return the product of the heads and their gate: both are read, and their gradients written.

    Source: Qiu et al. 2025 (arXiv 2505.06708), gated attention.
    """
    return Op(
        name="attention.gated_heads",
        kind=OpKind.ELEMENTWISE,
        inputs=(heads, _GATE),
        output=Tensor("attention.gated_heads", heads.dims),
        saved=(heads, _GATE),
        words_per_element=(3.0, 5.0),
        region=ATTENTION,
    )


def _plain_projections(
    spec: AttentionSpec, source: Tensor, *, rotary: bool
) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return the fused projection, the norms on queries and keys, and the rotary embedding."""
    query, key, value = (
        Tensor(f"attention.{part}", ("tokens", part)) for part in ("query", "key", "value")
    )
    projected = () if spec.shares_cache else (key,) if spec.value_is_key else (key, value)
    gate = (_GATE,) if spec.output_gate else ()
    ops, latent = _compressed_query(spec, source)
    outputs = (*projected, *gate) if ops else (query, *projected, *gate)
    ops.append(product_op("attention.qkv", source, outputs, ATTENTION, bias=spec.qkv_bias))
    if spec.query_rank is not None:
        ops.append(product_op("attention.query_up", latent, (query,), ATTENTION))
    if spec.index_heads:
        ops += _index_projections(latent, source)
    own: tuple[Tensor, ...] = (query,) if spec.shares_cache else (query, key)
    if spec.qk_norm != "none":
        ops.append(_query_key_norm(spec, own))
        own = ops[-1].outputs
    if rotary:
        ops.append(_rotary(own, ("query", "key")[: len(own)]))
        own = ops[-1].outputs
    return ops, (*own, key, value) if spec.shares_cache else (*own, value)


def _query_key_norm(spec: AttentionSpec, sources: tuple[Tensor, ...]) -> Op:
    """Return the norms on queries and own keys: over each head, or over all heads at once."""
    name, parts = "attention.qk_norm", ("query", "key")[: len(sources)]
    over_all = spec.qk_norm == "full"
    weights = tuple(
        Tensor(f"{name}.{part}.weight", (part if over_all else "head_size",)) for part in parts
    )
    first, *others = (
        Tensor(f"{name}.{part}", source.dims) for part, source in zip(parts, sources, strict=True)
    )
    return Op(
        name=name,
        kind=OpKind.NORM,
        inputs=sources,
        output=first,
        other_outputs=tuple(others),
        weights=() if spec.qk_norm == "unweighted" else weights,
        contracted=parts if over_all else (),
        saved=sources,
        words_per_element=(2.0, 3.0),
        region=ATTENTION,
    )


def _rotary(sources: tuple[Tensor, ...], parts: tuple[str, ...]) -> Op:
    """Return the rotary embedding: read and write once in each pass, nothing is kept."""
    first, *others = (Tensor(f"attention.rotary.{part}", ("tokens", part)) for part in parts)
    return Op(
        name="attention.rotary",
        kind=OpKind.ELEMENTWISE,
        inputs=sources,
        output=first,
        other_outputs=tuple(others),
        words_per_element=(2.0, 2.0),
        region=ATTENTION,
    )


def _latent_projections(spec: AttentionSpec, source: Tensor) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return the down and up projections of latent attention with the norms between them.

    The rotary step joins the shared rotary key to the key heads, so that the core sees whole keys.
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1; an index of DeepSeek-V3.2:
    ``DeepseekV32Indexer`` of Hugging Face transformers.
    """
    norm: NormKind = "rms"
    ops, query_source = _compressed_query(spec, source)
    query = Tensor("attention.query", ("tokens", "query"))
    ops.append(product_op("attention.query_up", query_source, (query,), ATTENTION))
    if spec.index_heads:
        ops += _index_projections(query_source, source)
    latent = Tensor("attention.kv_down", ("tokens", "kv_rank"))
    shared = (Tensor("attention.rotary_key", ("tokens", "rotary")),) if spec.rope_head_size else ()
    bias = spec.qkv_bias
    ops.append(product_op("attention.kv_down", source, (latent, *shared), ATTENTION, bias=bias))
    ops.append(norm_op("attention.kv_norm", latent, "kv_rank", norm, ATTENTION))
    content = Tensor("attention.key_content", ("tokens", "key_content"))
    value = Tensor("attention.value", ("tokens", "value"))
    ops.append(product_op("attention.kv_up", ops[-1].output, (content, value), ATTENTION))
    ops.append(_rotary((query, content, *shared), ("query", "key")))
    return ops, (*ops[-1].outputs, value)


def _compressed_query(spec: AttentionSpec, source: Tensor) -> tuple[list[Op], Tensor]:
    """Return the factor that compresses the queries, its norm, and the output; none: no rank."""
    if spec.query_rank is None:
        return [], source
    latent = Tensor("attention.query_down", ("tokens", "query_rank"))
    down = product_op(latent.name, source, (latent,), ATTENTION, bias=spec.qkv_bias)
    norm = norm_op("attention.query_norm", latent, "query_rank", "rms", ATTENTION)
    return [down, norm], norm.output


def _index_projections(query_source: Tensor, source: Tensor) -> list[Op]:
    """Return the queries of an index, its key with a norm, and the weights of its heads.

    Every rank of tp makes all of them; the core prices the scores.
    """
    index = "attention.index"
    query, key, heads = (
        Tensor(f"{index}_{part}", ("tokens", f"index_{part}")) for part in ("query", "key", "heads")
    )
    return [
        product_op(query.name, query_source, (query,), ATTENTION),
        product_op(key.name, source, (key, heads), ATTENTION),
        norm_op(f"{index}_norm", key, "index_key", "layer", ATTENTION),
    ]


def _core(
    spec: AttentionSpec, parts: tuple[Tensor, ...], *, dropout: bool, flash_attention: bool
) -> Op:
    """Return the attention core: it reads queries, keys and values and writes the heads.

    Materialised, it keeps the probabilities, and with dropout also mask and dropped probabilities
    (5 bytes for each score, Korthikanti et al. 2022, section 4.1); flash attention keeps its
    output and one FP32 log-sum-exp for each row and head (Dao et al. 2022, section 3.1).
    """
    name = "attention.core"
    output = Tensor("attention.heads", ("tokens", "heads"))
    row, scores = ("tokens", "query_heads"), ("tokens", "query_heads", "keys")
    probabilities = Tensor(f"{name}.probabilities", scores)
    words = (0.0, 0.0)
    if flash_attention:
        saved: tuple[Tensor, ...] = (output, Tensor(f"{name}.log_sum_exp", row, 4.0))
    elif dropout:
        mask = Tensor(f"{name}.mask", scores, MASK_WORD_BYTES)
        saved = (probabilities, mask, Tensor(f"{name}.dropped", scores))
        words = (6.0 + MASK_WORDS, 9.0 + MASK_WORDS)
    else:
        saved, words = (probabilities,), (4.0, 7.0)
    return Op(
        name=name,
        kind=OpKind.ATTENTION,
        inputs=parts,
        output=output,
        weights=(Tensor(f"{name}.sinks", ("query_heads",)),) if spec.sinks else (),
        saved=(*(parts[:1] if spec.shares_cache else parts), *saved),
        words_per_element=words,
        moved=None if flash_attention else probabilities,
        attention=spec,
        region=ATTENTION,
    )


def ffn_sizes(prefix: str, ffn_size: int, *, gated: bool) -> dict[str, int]:
    """Return the inner widths; ``ffn_in`` counts gate and up together."""
    return {f"{prefix}ffn": ffn_size, f"{prefix}ffn_in": ffn_size * (2 if gated else 1)}


def feed_forward_ops(
    source: Tensor,
    *,
    gated: bool,
    bias: bool,
    region: str = "feed_forward",
    prefix: str = "",
    rows: str = "tokens",
    experts: tuple[str, ...] = (),
) -> tuple[list[Op], tuple[Tensor]]:
    """Return up (and gate), activation and down of a network, and its output.

    ``prefix`` goes before the names of the inner dims, ``experts`` before the dims of the weights,
    where there are many such networks.
    """
    up = Tensor(f"{region}.up", (rows, f"{prefix}ffn_in"))
    middle = Tensor(f"{region}.activation", (rows, f"{prefix}ffn"))
    down = Tensor(f"{region}.down", (rows, "hidden"))
    return [
        product_op(up.name, source, (up,), region, bias=bias, batch=experts),
        activation_op(middle.name, up, middle, gated=gated, region=region),
        product_op(down.name, middle, (down,), region, bias=bias, batch=experts),
    ], (down,)


def expert_sizes(spec: ExpertSpec) -> dict[str, int]:
    """Return the sizes of the dims of a mixture of experts."""
    sizes = {"experts": spec.num_experts, "expert_scores": spec.num_experts, "top_k": spec.top_k}
    sizes |= ffn_sizes("expert_", spec.ffn_size, gated=spec.gated)
    if spec.shared_ffn_size:
        sizes |= ffn_sizes("shared_", spec.shared_ffn_size, gated=spec.gated)
    return sizes | ({"shared_gate": 1} if spec.shared_gate else {})


def expert_ops(spec: ExpertSpec, source: Tensor) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return the operators from the normalised input on, and the branches to be added.

    The weight of an expert is multiplied in with its activation function, so that the rows that
    leave the experts need not be kept; one FP32 score for each row is.
    """
    scores = Tensor("experts.scores", ("tokens", "expert_scores"))
    router = product_op(
        "experts.router", source, (scores,), EXPERTS, weight="experts.router.weight"
    )
    if spec.router_bias:
        bias = Tensor("experts.router.bias", ("expert_scores",))
        router = replace(router, weights=(*router.weights, bias))
    dispatch = Op(
        name="experts.dispatch",
        kind=OpKind.ROUTE,
        inputs=(source, router.output),
        output=Tensor("experts.rows", ("routed_tokens", "hidden")),
        saved=(Tensor("experts.row_scores", ("routed_tokens",), 4.0),),
        words_per_element=(2.0, 2.0),
        region=EXPERTS,
    )
    inner, (rows,) = feed_forward_ops(
        dispatch.output,
        gated=spec.gated,
        bias=spec.bias,
        region=EXPERTS,
        prefix="expert_",
        rows="routed_tokens",
        experts=("experts",),
    )
    share = 1.0 + 1.0 / spec.top_k
    combine = Op(
        name="experts.combine",
        kind=OpKind.ROUTE,
        inputs=(rows,),
        output=Tensor("experts.combined", ("tokens", "hidden")),
        words_per_element=(share, share),
        moved=rows,
        region=EXPERTS,
    )
    shared_ops, shared = _shared_experts(spec, source)
    return [router, dispatch, *inner, combine, *shared_ops], (combine.output, *shared)


def _shared_experts(spec: ExpertSpec, source: Tensor) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return the network that every token visits, with its learned gate where there is one."""
    if not spec.shared_ffn_size:
        return [], ()
    ops, (output,) = feed_forward_ops(
        source, gated=spec.gated, bias=spec.bias, region=SHARED, prefix="shared_"
    )
    if not spec.shared_gate:
        return ops, (output,)
    gate = Tensor("shared_experts.gate", ("tokens", "shared_gate"))
    ops.append(product_op(gate.name, source, (gate,), SHARED))
    scaled = sum_op("shared_experts.scaled", (output, gate), SHARED)
    ops.append(replace(scaled, saved=(output, gate), words_per_element=(2.0, 3.0)))
    return ops, (ops[-1].output,)


def edge_sizes(model: ModelSpec) -> dict[str, int]:
    """Return the sizes of the dims at both ends."""
    sizes = {"hidden": model.hidden_size, "vocab": model.vocab_size} | side_sizes(model.side)
    if model.side_table is not None:
        sizes |= dict(zip(_SIDE_TABLE, model.side_table, strict=True))
    return sizes | ({"positions": model.learned_positions} if model.learned_positions else {})


_SIDE_TABLE = ("side_vocab", "side_columns")


def side_sizes(spec: SideSpec | None) -> dict[str, int]:
    """Return the sizes of the dims of products beside the branches."""
    if spec is None:
        return {}
    sizes = {"side_vectors": spec.num_vector_params} if spec.num_vector_params else {}
    for number, pair in enumerate(spec.products):
        sizes |= dict(zip(_side_dims(number), pair, strict=True))
    return sizes


def _side_dims(number: int) -> tuple[str, str]:
    return f"side_{number}_in", f"side_{number}_out"


def side_ops(spec: SideSpec | None, stream: Tensor, hidden: int, place: str = SIDE) -> list[Op]:
    """Return the products beside the branches, and one pass over the stream for their vectors.

    A product as wide as the stream reads it; the others read tensors of their own.
    """
    if spec is None:
        return []
    ops = []
    for number, (width, _) in enumerate(spec.products):
        rows, columns = _side_dims(number)
        name = f"{place}.{number}"
        source = stream if width == hidden else Tensor(f"{name}.input", ("tokens", rows))
        made = Tensor(name, ("tokens", columns))
        ops.append(product_op(name, source, (made,), SIDE))
    if spec.num_vector_params:
        ops.append(
            Op(
                name=f"{place}.vectors",
                kind=OpKind.ELEMENTWISE,
                inputs=(stream,),
                output=hidden_activation(f"{place}.vectors"),
                weights=(Tensor(f"{place}.vectors.weight", ("side_vectors",)),),
                saved=(stream,),
                words_per_element=(2.0, 3.0),
                region=SIDE,
            )
        )
    return ops


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
        region=EDGE,
    )
    ops = [lookup]
    if model.learned_positions:
        ops.append(_added_positions(lookup.output))
    if model.embedding_norm:
        ops.append(norm_op("embedding.norm", ops[-1].output, "hidden", model.norm, EDGE))
    if dropout:
        ops.append(_dropout(ops[-1].output))
    if model.side_table is not None:
        table = Tensor("embedding.side_table", _SIDE_TABLE)
        rows, found = _SIDE_TABLE[:1], Tensor("embedding.side_lookup", ("tokens", "side_columns"))
        second = replace(lookup, name=found.name, output=found, weights=(table,), contracted=rows)
        ops.insert(0, second)
    ops += side_ops(model.side, lookup.output, model.hidden_size, "embedding.side")
    return LayerGraph(tuple(ops), 1, edge_sizes(model))


def _added_positions(source: Tensor) -> Op:
    """Return the addition of the learned positions."""
    return Op(
        name="embedding.positions",
        kind=OpKind.ELEMENTWISE,
        inputs=(source,),
        output=hidden_activation("embedding.positions"),
        weights=(Tensor("embedding.positions.table", ("positions", "hidden")),),
        words_per_element=(3.0, 3.0),
        region=EDGE,
    )


def _dropout(source: Tensor) -> Op:
    """Return the dropout on the input of the first layer."""
    return Op(
        name="embedding.dropout",
        kind=OpKind.ELEMENTWISE,
        inputs=(source,),
        output=hidden_activation("embedding.dropout"),
        saved=(Tensor("embedding.dropout.mask", source.dims, MASK_WORD_BYTES),),
        words_per_element=(2.0 + MASK_WORDS, 2.0 + MASK_WORDS),
        region=EDGE,
    )


def head_graph(
    model: ModelSpec, *, loss: LossKernel = "plain",
    fp32_logit_copies: tuple[float, float] = (1.0, 1.0), deferred_logit_gradients: int = 0,
) -> LayerGraph:  # fmt: skip
    """Return the final norm, the logits, and the cross-entropy over the vocabulary.

    For the next token, and once more for each further one that layers are trained to predict.

    Source: DeepSeek-AI 2024 (arXiv 2412.19437), section 2.2; megatron-core 0.19.2,
    ``transformer/multi_token_prediction.py``.
    """
    weight = TABLE if model.tied_embeddings else "head.logits.weight"
    ops: list[Op] = []
    for depth in range(1 + model.prediction_depths):
        at = f"_{depth}" if depth else ""
        stream = hidden_activation("head.input")
        if model.final_norm:
            ops.append(norm_op(f"head.norm{at}", stream, "hidden", model.norm, EDGE))
            stream = ops[-1].output
        scores = Tensor(f"head.logits{at}", ("tokens", "vocab"))
        bias = model.head_bias
        ops.append(product_op(scores.name, stream, (scores,), EDGE, bias=bias, weight=weight))
        waiting = [
            Tensor(f"head.deferred_gradient{at}_{number}", scores.dims)
            for number in range(deferred_logit_gradients)
        ]
        entropy = _loss(f"head.loss{at}", scores, loss, *fp32_logit_copies)
        ops.append(replace(entropy, saved=(*entropy.saved, *waiting)))
    return LayerGraph(tuple(ops), 1, edge_sizes(model))


def _loss(
    name: str, logits: Tensor, kernel: LossKernel, fp32_copies: float, fp32_split_copies: float
) -> Op:
    """Return the cross-entropy: it keeps FP32 copies, each 4 bytes for each token and word.

    One copy is that of the probabilities. Traffic is 10 bytes for each logit: forward reads 2 and
    writes 4, backward reads 4 and turns them into the gradient in place. Where the last product is
    fused with it, the forward pass reads 2 and writes the gradient of 2; of tiles that stay on the
    chip nothing moves.
    """
    probabilities = Tensor(f"{name}.probabilities", logits.dims, 4.0)
    copies = Tensor(f"{name}.fp32_copies", logits.dims, 4.0 * fp32_copies, 4.0 * fp32_split_copies)
    return Op(
        name=name,
        kind=OpKind.LOSS,
        inputs=(logits,),
        output=Tensor(name, ("tokens",), 4.0),
        contracted=("vocab",),
        saved=(copies,),
        words_per_element=_LOSS_WORDS.get(kernel, (1.5, 1.0)),
        moved=probabilities,
        region=EDGE,
    )


_LOSS_WORDS: dict[str, tuple[float, float]] = {"linear": (1.0, 0.0), "cut": (0.0, 0.0)}
"""FP32 words that a fused loss moves for each logit: forward, backward [1]."""


def build_graph(
    model: ModelSpec, *, dropout: bool = False, flash_attention: bool = True,
    keeps_gates: bool = False, norms_in_steps: bool = False,
    loss: LossKernel = "plain", fp32_logit_copies: tuple[float, float] = (1.0, 1.0),
    deferred_logit_gradients: int = 0,
) -> OpGraph:  # fmt: skip
    """Return the operators of one step: each kind of layer once, and both ends.

    Parameters
    ----------
    dropout
        Dropout on the branches of each layer, on attention probabilities and on the embedding.
    flash_attention
        The score matrix never reaches memory; otherwise it is materialised and kept.
    keeps_gates
        A gated network also keeps the output of its gate's activation.
    norms_in_steps
        Norms by root mean squares are written out, and keep two of their steps.
    fp32_logit_copies
        FP32 copies of the logits that the loss holds at its worst moment: of whole ones, and of
        those that tp splits.
    deferred_logit_gradients
        Micro-batches with gradients of logits that wait for the weight gradient of the last
        product.
    """
    layers = []
    for spec, count in zip(model.layer_kinds, model.layer_counts, strict=True):
        layer = layer_graph(model, spec, count, dropout=dropout, flash_attention=flash_attention)
        ops = layer.ops
        if keeps_gates:
            ops = tuple(map(with_kept_gate, ops))
        if norms_in_steps and model.norm == "rms":
            ops = tuple(map(with_norm_in_steps, ops))
        if count:
            layers.append(replace(layer, ops=ops))
    return OpGraph(
        layers=tuple(layers),
        embedding=embedding_graph(model, dropout=dropout),
        head=head_graph(
            model,
            loss=loss,
            fp32_logit_copies=fp32_logit_copies,
            deferred_logit_gradients=deferred_logit_gradients,
        ),
        tied=model.tied_embeddings,
    )


def _layer_sizes(model: ModelSpec, spec: LayerSpec) -> dict[str, int]:
    """Return the sizes of all dims of one kind of layer."""
    sizes = {"hidden": model.hidden_size} | side_sizes(spec.side)
    if spec.attention is not None:
        sizes |= attention_sizes(spec.attention)
    if spec.recurrence is not None:
        sizes |= recurrence_sizes(spec.recurrence)
    if spec.feed_forward is not None:
        sizes |= ffn_sizes("", spec.feed_forward.ffn_size, gated=spec.feed_forward.gated)
    if spec.experts is not None:
        sizes |= expert_sizes(spec.experts)
    return sizes


def layer_graph(
    model: ModelSpec,
    spec: LayerSpec,
    count: int = 1,
    *,
    dropout: bool = False,
    flash_attention: bool = True,
) -> LayerGraph:
    """Return the operators of one kind of layer, and the number of such layers."""
    ops = _layer_ops(model, spec, dropout=dropout, flash_attention=flash_attention)
    return LayerGraph(ops, count, _layer_sizes(model, spec))


def _layer_ops(
    model: ModelSpec, spec: LayerSpec, *, dropout: bool, flash_attention: bool
) -> tuple[Op, ...]:
    """Return the operators of a layer in order: branches one after another, or both at once.

    A branch has a norm before it, and one on it, in models that have them there; two branches at
    once may share the norm before them.
    """
    _check_norms(spec)
    branches = _branches(model, spec, dropout=dropout, flash_attention=flash_attention)
    is_parallel = spec.parallel_residual and len(branches) == 2
    has_norm_after = not is_parallel and (spec.num_norms == 4 or not spec.norms_before)
    ops: list[Op] = []
    waiting: list[Tensor] = []
    source = stream = hidden_activation("layer_input")
    for number, (name, region, make) in enumerate(branches):
        if spec.norms_before and not (is_parallel and number and spec.num_norms == 1):
            ops.append(norm_op(f"{region}.norm", stream, "hidden", model.norm, region))
            source = ops[-1].output
        made, outputs = make(source)
        ops += made
        if not number:
            ops += side_ops(spec.side, source, model.hidden_size)
        if has_norm_after:
            if len(outputs) > 1:
                ops.append(sum_op("experts.sum", outputs, EXPERTS))
                outputs = ops[-1].outputs
            ops.append(norm_op(f"{region}.post_norm", outputs[0], "hidden", model.norm, region))
            outputs = ops[-1].outputs
        waiting += outputs
        if not is_parallel or number:
            add = "residual" if is_parallel else f"residual.{name}"
            ops.append(residual_add_op(add, stream, tuple(waiting), dropout=dropout))
            source = stream = ops[-1].output
            waiting = []
    return tuple(ops)


Branch = Callable[[Tensor], tuple[list[Op], tuple[Tensor, ...]]]
"""The operators of a branch from its input on, and the tensors that it adds."""


def _branches(
    model: ModelSpec, spec: LayerSpec, *, dropout: bool, flash_attention: bool
) -> list[tuple[str, str, Branch]]:
    """Return the branches of a layer, each with the name of its sum and its region."""
    found: list[tuple[str, str, Branch]] = []
    attention, recurrence = spec.attention, spec.recurrence
    network, experts = spec.feed_forward, spec.experts
    if attention is not None:
        is_rotary = model.learned_positions == 0
        make: Branch = partial(
            attention_ops, attention, rotary=is_rotary, dropout=dropout,
            flash_attention=flash_attention,
        )  # fmt: skip
        if recurrence is not None:
            make = partial(_both, make, recurrence)
        found.append((ATTENTION, ATTENTION, make))
    elif recurrence is not None:
        found.append((RECURRENCE, RECURRENCE, partial(recurrence_ops, recurrence)))
    if network is not None:
        make_network = partial(feed_forward_ops, gated=network.gated, bias=network.bias)
        found.append(("network", "feed_forward", make_network))
    elif experts is not None:
        found.append(("network", EXPERTS, partial(expert_ops, experts)))
    return found


def _both(
    attention: Branch, recurrence: RecurrenceSpec, source: Tensor
) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return attention and a recurrence on the same input, and both outputs."""
    (ops, outputs), (others, more) = attention(source), recurrence_ops(recurrence, source)
    return [*ops, *others], (*outputs, *more)


def _check_norms(spec: LayerSpec) -> None:
    allowed = (1, 2) if spec.parallel_residual else (2, 4)
    if spec.num_branches == 2 and spec.num_norms not in allowed:
        kind = "parallel" if spec.parallel_residual else "sequential"
        message = f"{spec.num_norms} norms in a layer with {kind} residual"
        raise SpecError(
            Fault("layer.num_norms", message, f"{allowed[0]} or {allowed[1]} are known")
        )
