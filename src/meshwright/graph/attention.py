"""The operators of self-attention: multi-head, grouped-query, and latent (MLA)."""

from __future__ import annotations

from meshwright.graph.elementwise import MASK_WORD_BYTES, MASK_WORDS, NormKind, norm_op
from meshwright.graph.op import Op, OpKind, Tensor
from meshwright.spec.model import AttentionSpec

REGION = "attention"


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
    return sizes


def attention_ops(
    spec: AttentionSpec, source: Tensor, *, rotary: bool, dropout: bool, flash_attention: bool
) -> tuple[list[Op], Tensor]:
    """Return the operators from the normalised input to the output projection, and its output."""
    if spec.kind == "mla":
        ops, parts = _latent_projections(spec, source)
    else:
        ops, parts = _plain_projections(spec, source, rotary=rotary)
    core = _core(spec, parts, dropout=dropout, flash_attention=flash_attention)
    output = Tensor("attention.output", ("tokens", "hidden"))
    bias = (Tensor("attention.output.bias", ("hidden",)),) if spec.output_bias else ()
    projection = Op(
        name="attention.output",
        kind=OpKind.MATMUL,
        inputs=(core.output,),
        output=output,
        weights=(Tensor("attention.output.weight", ("heads", "hidden")), *bias),
        contracted=("heads",),
        saved=(core.output,),
        region=REGION,
    )
    return [*ops, core, projection], output


def projection_op(name: str, source: Tensor, outputs: tuple[Tensor, ...], *, bias: bool) -> Op:
    """Return one matrix product with an input and one weight for each of its outputs."""
    inner = source.dims[-1]
    weights = [Tensor(f"{out.name}.weight", (inner, out.dims[-1])) for out in outputs]
    biases = [Tensor(f"{out.name}.bias", (out.dims[-1],)) for out in outputs] if bias else []
    return Op(
        name=name,
        kind=OpKind.MATMUL,
        inputs=(source,),
        output=outputs[0],
        other_outputs=outputs[1:],
        weights=(*weights, *biases),
        contracted=(inner,),
        saved=(source,),
        region=REGION,
    )


def _plain_projections(
    spec: AttentionSpec, source: Tensor, *, rotary: bool
) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return the fused projection, the norms on queries and keys, and the rotary embedding."""
    query, key, value = (
        Tensor(f"attention.{part}", ("tokens", part)) for part in ("query", "key", "value")
    )
    ops = [projection_op("attention.qkv", source, (query, key, value), bias=spec.qkv_bias)]
    if spec.qk_norm != "none":
        ops.append(_query_key_norm(spec, query, key))
        query, key = ops[-1].outputs
    if rotary:
        ops.append(_rotary((query, key), ("query", "key")))
        query, key = ops[-1].outputs
    return ops, (query, key, value)


def _query_key_norm(spec: AttentionSpec, query: Tensor, key: Tensor) -> Op:
    """Return the norms on queries and keys: over each head, or over all heads at once."""
    name = "attention.qk_norm"
    over_all = spec.qk_norm == "full"
    dims = ("query", "key") if over_all else ("head_size", "head_size")
    pairs = zip(("query", "key"), dims, strict=True)
    weights = tuple(Tensor(f"{name}.{part}.weight", (dim,)) for part, dim in pairs)
    return Op(
        name=name,
        kind=OpKind.NORM,
        inputs=(query, key),
        output=Tensor(f"{name}.query", query.dims),
        other_outputs=(Tensor(f"{name}.key", key.dims),),
        weights=() if spec.qk_norm == "unweighted" else weights,
        contracted=("query", "key") if over_all else (),
        saved=(query, key),
        words_per_element=(2.0, 3.0),
        region=REGION,
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
        region=REGION,
    )


def _latent_projections(spec: AttentionSpec, source: Tensor) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return the down and up projections of latent attention with the norms between them.

    The rotary step joins the shared rotary key to the key heads, so that the core sees whole keys.
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.
    """
    norm: NormKind = "rms"
    ops: list[Op] = []
    query_source = source
    if spec.query_rank is not None:
        latent = Tensor("attention.query_down", ("tokens", "query_rank"))
        bias = spec.qkv_bias
        ops.append(projection_op("attention.query_down", source, (latent,), bias=bias))
        ops.append(norm_op("attention.query_norm", latent, "query_rank", norm, REGION))
        query_source = ops[-1].output
    query = Tensor("attention.query", ("tokens", "query"))
    ops.append(projection_op("attention.query_up", query_source, (query,), bias=False))
    latent = Tensor("attention.kv_down", ("tokens", "kv_rank"))
    shared = (Tensor("attention.rotary_key", ("tokens", "rotary")),) if spec.rope_head_size else ()
    bias = spec.qkv_bias
    ops.append(projection_op("attention.kv_down", source, (latent, *shared), bias=bias))
    ops.append(norm_op("attention.kv_norm", latent, "kv_rank", norm, REGION))
    content = Tensor("attention.key_content", ("tokens", "key_content"))
    value = Tensor("attention.value", ("tokens", "value"))
    ops.append(projection_op("attention.kv_up", ops[-1].output, (content, value), bias=False))
    ops.append(_rotary((query, content, *shared), ("query", "key")))
    return ops, (*ops[-1].outputs, value)


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
        saved=(*parts, *saved),
        words_per_element=words,
        moved=None if flash_attention else probabilities,
        attention=spec,
        region=REGION,
    )
