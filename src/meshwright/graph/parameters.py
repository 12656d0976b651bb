"""Exact parameter counts, key-value cache and states of a model, in closed form from its dims.

Counts cover the parameters that the language model computes with: the text part only, a tied head
once, and prediction layers apart from the total. Scales of quantised weights are no parameters
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from meshwright.base.arrays import N, smaller
from meshwright.graph.recurrence import (
    STATE_WORD_BYTES,
    conv_words,
    num_steps,
    num_vectors,
    recurrence_sizes,
    state_words,
)
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    RecurrenceSpec,
)
from meshwright.spec.workload import Adapters

COUNT_CONVENTIONS: Final = (
    "num_active_params: embedding, head and all layers, with top_k of the routed experts",
    "scales of quantised weights are not counted",
)
"""Conventions of the counts of every model; ``ModelSpec.conventions`` adds those of one model."""


_PARTS: Final = (
    "embedding", "attention", "recurrence", "feed_forward", "experts", "shared_experts", "router",
    "norms", "head",
)  # fmt: skip


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer by part; the parts sum to ``num_params``."""

    attention: int
    """Projections with their biases, and sinks."""
    recurrence: int
    """Projections, convolution and the numbers of each head."""
    feed_forward: int
    experts: int
    """All routed experts."""
    shared_experts: int
    """Shared experts and their gate."""
    router: int
    norms: int
    """Norms over the hidden dim, on queries, keys and compressed factors, and of recurrences."""
    num_inactive_params: int
    """Parameters of the routed experts that one token does not visit."""

    @property
    def num_params(self) -> int:
        """All parameters of the layer."""
        whole = self.attention + self.recurrence + self.feed_forward + self.norms
        return whole + self.experts + self.shared_experts + self.router

    @property
    def num_active_params(self) -> int:
        """Parameters that one token uses."""
        return self.num_params - self.num_inactive_params


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a model by part; the parts sum to ``num_params``."""

    embedding: int
    """Token embedding and learned positions."""
    attention: int
    recurrence: int
    feed_forward: int
    experts: int
    shared_experts: int
    router: int
    norms: int
    head: int
    """Zero where it is tied to the embedding and has no bias."""
    num_inactive_params: int
    prediction: int
    """Layers for multi-token prediction: in no total; embedding and head are shared."""
    repeated_head: int
    """Further parameters of a checkpoint that also stores a tied head; in no total."""
    layer_kinds: tuple[LayerParameters, ...]
    """Parameters of one layer of each kind, in the order of ``ModelSpec.layer_kinds``."""
    layer_counts: tuple[int, ...]
    """Number of layers of each kind."""

    def parts(self) -> dict[str, int]:
        """Return the parts that sum to ``num_params``."""
        return {part: getattr(self, part) for part in _PARTS}

    @property
    def num_params(self) -> int:
        """All parameters, prediction layers left out."""
        return sum(self.parts().values())

    @property
    def num_active_params(self) -> int:
        """Parameters that one token uses: ``top_k`` of the routed experts of each layer."""
        return self.num_params - self.num_inactive_params


def count_parameters(model: ModelSpec) -> ParameterCounts:
    """Return the exact parameter counts of a model.

    Source: shapes of the modules in Hugging Face transformers; see each family for its own.
    """
    hidden = model.hidden_size
    kinds = tuple(layer_parameters(kind, model) for kind in model.layer_kinds)
    counts = model.layer_counts

    def total(part: str) -> int:
        return sum(n * int(getattr(kind, part)) for n, kind in zip(counts, kinds, strict=True))

    outer_norms = int(model.final_norm) + int(model.embedding_norm)
    head = 0 if model.tied_embeddings else model.vocab_size * hidden
    return ParameterCounts(
        embedding=(model.vocab_size + model.learned_positions) * hidden,
        attention=total("attention"),
        recurrence=total("recurrence"),
        feed_forward=total("feed_forward"),
        experts=total("experts"),
        shared_experts=total("shared_experts"),
        router=total("router"),
        norms=total("norms") + outer_norms * norm_parameters(model, hidden),
        head=head + (model.vocab_size if model.head_bias else 0),
        num_inactive_params=total("num_inactive_params"),
        repeated_head=model.vocab_size * hidden if model.tied_embeddings else 0,
        prediction=model.num_prediction_layers * _prediction_parameters(model, kinds),
        layer_kinds=kinds,
        layer_counts=counts,
    )


def layer_parameters(layer: LayerSpec, model: ModelSpec) -> LayerParameters:
    """Return the parameters of one layer of a kind."""
    hidden, experts = model.hidden_size, layer.experts
    feed_forward = layer.feed_forward
    attention, recurrence = layer.attention, layer.recurrence
    inner_norms = _attention_norm_parameters(attention, model) if attention else 0
    inner_norms += _gated_norm_parameters(recurrence) if recurrence else 0
    return LayerParameters(
        attention=attention_parameters(attention, hidden) if attention else 0,
        recurrence=recurrence_parameters(recurrence, hidden) if recurrence else 0,
        feed_forward=feed_forward_parameters(feed_forward, hidden) if feed_forward else 0,
        experts=experts.num_experts * _expert_parameters(experts, hidden) if experts else 0,
        shared_experts=_shared_parameters(experts, hidden) if experts else 0,
        router=experts.num_experts * (hidden + int(experts.router_bias)) if experts else 0,
        norms=layer.num_norms * norm_parameters(model, hidden) + inner_norms,
        num_inactive_params=(
            (experts.num_experts - experts.top_k) * _expert_parameters(experts, hidden)
            if experts
            else 0
        ),
    )


def adapter_parameters(rank: N, rows: N, columns: N) -> N:
    """Return the parameters of an adapter beside a product: rank x (rows + columns).

    Two factors of low rank, rows x rank and rank x columns. A rank of 16 beside a product of 4096
    x 1024 has 16 x 5120 = 81,920. Source: Hu et al. 2021, section 4.1.
    """
    return rank * (rows + columns)


def num_adapter_params(model: ModelSpec, adapters: Adapters) -> int:
    """Return the parameters of all adapters of a model.

    Of latent attention ``q`` are both factors of the queries, ``k`` the factor that compresses keys
    and values, and ``v`` the one that widens them. Recurrent layers have none.
    """
    return sum(
        count * int(adapter_parameters(adapters.rank, rows, columns))
        for kind, count in zip(model.layer_kinds, model.layer_counts, strict=True)
        for target, rows, columns in _products(kind, model.hidden_size)
        if target in adapters.targets
    )


def _products(kind: LayerSpec, hidden: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, rows and columns of every product of a layer that may have an adapter."""
    if (one := kind.attention) is not None:
        query = one.num_heads * (one.head_size + one.rope_head_size)
        if one.kind == "mla":
            if one.query_rank is not None:
                yield "q", hidden, one.query_rank
            yield "q", one.query_rank or hidden, query
            rank = one.kv_rank or 0
            yield "k", hidden, rank + one.rope_head_size
            yield "v", rank, one.num_heads * (one.head_size + one.value_head_size)
        else:
            yield "q", hidden, one.num_heads * one.head_size * (1 + one.output_gate)
            yield "k", hidden, one.num_kv_heads * one.head_size
            yield "v", hidden, one.num_kv_heads * one.value_head_size
        yield "o", one.num_heads * one.value_head_size, hidden
    networks = [(kind.feed_forward.ffn_size, kind.feed_forward.gated)] if kind.feed_forward else []
    if (experts := kind.experts) is not None:
        networks += [(experts.ffn_size, experts.gated)] * experts.num_experts
        if experts.shared_ffn_size:
            networks.append((experts.shared_ffn_size, experts.gated))
    for size, is_gated in networks:
        if is_gated:
            yield "gate", hidden, size
        yield "up", hidden, size
        yield "down", size, hidden


def norm_parameters(model: ModelSpec, size: int) -> int:
    """Return the parameters of one norm over a dim of ``size``."""
    return {"rms": 1, "layer_no_bias": 1, "layer": 2, "layer_unweighted": 0}[model.norm] * size


def attention_parameters(attention: AttentionSpec, hidden: int) -> int:
    """Return the parameters of the projections of one attention, and of its sinks."""
    sinks = attention.num_heads if attention.sinks else 0
    value_width = attention.num_heads * attention.value_head_size
    output = value_width * hidden + (hidden if attention.output_bias else 0)
    if attention.kind == "mla":
        return _latent_parameters(attention, hidden) + output + sinks
    # A gate is projected as wide as the queries.
    query_width = attention.num_heads * attention.head_size * (1 + attention.output_gate)
    kv_width = attention.num_kv_heads * (attention.head_size + attention.value_head_size)
    rows = hidden + (1 if attention.qkv_bias else 0)
    return (query_width + kv_width) * rows + output + sinks


def _latent_parameters(attention: AttentionSpec, hidden: int) -> int:
    """Return the parameters of the query, key and value factors of latent attention.

    hidden (r_q + r_kv + d_rope) + n (r_q (d + d_rope) + r_kv (d + d_v)); without a query rank the
    queries take hidden n (d + d_rope). A bias is on the two factors that read the hidden dim.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1; ``DeepseekV3Attention``.
    """
    kv_rank, query_rank = attention.kv_rank or 0, attention.query_rank
    query_width = attention.num_heads * (attention.head_size + attention.rope_head_size)
    key_value_width = attention.num_heads * (attention.head_size + attention.value_head_size)
    rows = hidden + (1 if attention.qkv_bias else 0)
    queries = hidden * query_width
    if query_rank is not None:
        queries = rows * query_rank + query_rank * query_width
    return queries + rows * (kv_rank + attention.rope_head_size) + kv_rank * key_value_width


def _attention_norm_parameters(attention: AttentionSpec, model: ModelSpec) -> int:
    """Return the parameters of norms on queries, keys and the factors of latent attention."""
    size = (attention.query_rank or 0) + (attention.kv_rank or 0)
    if attention.qk_norm == "head":
        size += 2 * attention.head_size
    elif attention.qk_norm == "full":
        size += (attention.num_heads + attention.num_kv_heads) * attention.head_size
    return norm_parameters(model, size)


def recurrence_parameters(recurrence: RecurrenceSpec, hidden: int) -> int:
    """Return the parameters of a recurrence, its norm left out.

    (h + b) (2 d + 2 G N + m H) of the input, with m numbers for each head, (k + b_c) (d + 2 G N) of
    the convolution, the vectors of each head, and d h + b h of the output; d = H P.

    Source: ``Mamba2Mixer``, ``Qwen3NextGatedDeltaNet``.
    """
    sizes = recurrence_sizes(recurrence)
    inner, heads = sizes["inner"], sizes["inner_heads"]
    channels = inner + 2 * sizes["state_key"]
    columns = inner + channels + num_steps(recurrence) * heads
    convolution = channels * (recurrence.conv_size + recurrence.conv_bias)
    output = inner * hidden + hidden * recurrence.bias
    vectors = num_vectors(recurrence) * heads
    return columns * (hidden + recurrence.bias) + convolution + vectors + output


def _gated_norm_parameters(recurrence: RecurrenceSpec) -> int:
    """Return the parameters of the norm of a recurrence: of all heads, or shared by them."""
    sizes = recurrence_sizes(recurrence)
    return sizes["inner" if recurrence.kind == "mamba2" else "inner_head_size"]


def feed_forward_parameters(feed_forward: FeedForwardSpec, hidden: int) -> int:
    """Return the parameters of a dense network: up (and gate) and down, with biases."""
    return _network(hidden, feed_forward.ffn_size, feed_forward.gated, feed_forward.bias)


def _network(hidden: int, ffn_size: int, gated: bool, bias: bool) -> int:
    columns = (2 if gated else 1) * ffn_size
    return hidden * (columns + ffn_size) + (columns + hidden if bias else 0)


def _expert_parameters(experts: ExpertSpec, hidden: int) -> int:
    """Return the parameters of one routed expert."""
    return _network(hidden, experts.ffn_size, experts.gated, experts.bias)


def _shared_parameters(experts: ExpertSpec, hidden: int) -> int:
    """Return the parameters of the shared experts together, and of their gate."""
    if not experts.shared_ffn_size:
        return 0
    gate = hidden if experts.shared_gate else 0
    return _network(hidden, experts.shared_ffn_size, experts.gated, experts.bias) + gate


def _prediction_parameters(model: ModelSpec, kinds: tuple[LayerParameters, ...]) -> int:
    """Return the parameters of one prediction layer that it shares with nothing.

    One layer of the last kind, a projection from two hidden vectors to one, and three norms.

    Source: DeepSeek-V3 technical report (arXiv 2412.19437), section 2.2.
    """
    hidden = model.hidden_size
    extra = 2 * hidden * hidden + 3 * norm_parameters(model, hidden)
    return kinds[model.layer_pattern[-1]].num_params + extra


def kv_words_per_token(attention: AttentionSpec | None) -> int:
    """Return the words that one layer keeps for one token: keys and values, or their latent."""
    if attention is None:
        return 0
    if attention.kind == "mla":
        return (attention.kv_rank or 0) + attention.rope_head_size
    return attention.num_kv_heads * (attention.head_size + attention.value_head_size)


def kv_cache_bytes_per_token(model: ModelSpec, word_bytes: float) -> float:
    """Return the KV cache that one more token adds while no window is full yet [bytes].

    Parameters
    ----------
    word_bytes
        Bytes of one cached word [bytes].
    """
    return word_bytes * sum(
        count * kv_words_per_token(kind.attention)
        for kind, count in zip(model.layer_kinds, model.layer_counts, strict=True)
    )


def windowed_kv_cache_bytes_per_token(model: ModelSpec, word_bytes: float) -> float:
    """Return the part of ``kv_cache_bytes_per_token`` that layers with a window hold [bytes]."""
    return word_bytes * sum(
        count * kv_words_per_token(kind.attention)
        for kind, count in zip(model.layer_kinds, model.layer_counts, strict=True)
        if kind.attention is not None and kind.attention.window is not None
    )


def kv_cache_bytes(model: ModelSpec, word_bytes: float, num_tokens: N) -> N:
    """Return the cache of one sequence; a layer with a window keeps no more than it [bytes].

    Parameters
    ----------
    word_bytes
        Bytes of one cached word [bytes].
    num_tokens
        Length of the sequence so far [tokens].
    """
    total = 0.0 * num_tokens
    for kind, count in zip(model.layer_kinds, model.layer_counts, strict=True):
        window = kind.attention.window if kind.attention is not None else None
        kept = num_tokens if window is None else smaller(num_tokens, float(window))
        total = total + word_bytes * count * kv_words_per_token(kind.attention) * kept
    return total


def recurrent_state_bytes(model: ModelSpec, word_bytes: float) -> float:
    """Return the state of all recurrent layers for one sequence of any length [bytes].

    States in FP32, and the last inputs of the convolutions.

    Parameters
    ----------
    word_bytes
        Bytes of an activation [bytes].
    """
    return sum(
        count * (STATE_WORD_BYTES * state_words(spec) + word_bytes * conv_words(spec))
        for kind, count in zip(model.layer_kinds, model.layer_counts, strict=True)
        if (spec := kind.recurrence) is not None
    )
