"""Exact parameter counts, key-value cache and states of a model.

Counts cover the parameters that the language model computes with: the text part only, a tied head
once, and prediction layers apart from the total. Scales of quantised weights are no parameters
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from meshwright.base.arrays import N, smaller
from meshwright.graph.common import EDGE, norm_weights
from meshwright.graph.op import LayerGraph, OpKind
from meshwright.graph.recurrence import STATE_WORD_BYTES, whole_kept_words
from meshwright.graph.transformer import TABLE, embedding_graph, head_graph, layer_graph
from meshwright.spec.model import AttentionSpec, LayerSpec, ModelSpec
from meshwright.spec.workload import Adapters

COUNT_CONVENTIONS: Final = (
    "num_active_params: embedding, head and all layers, with top_k of the routed experts",
    "scales of quantised weights are not counted",
)
"""Conventions of the counts of every model; ``ModelSpec.conventions`` adds those of one model."""


PARTS: Final = (
    "embedding", "attention", "recurrence", "feed_forward", "experts", "shared_experts", "router",
    "side", "norms", "head",
)  # fmt: skip
"""Parts of a model. Sinks and an index belong to attention, convolutions to the recurrence, learned
positions and a second token table to the embedding; side are products beside the branches; norms
are those over the hidden dim, on queries, keys and compressed factors, and of recurrences. The head
is zero where it is tied to the embedding and has no bias."""


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer, or of a model."""

    parts: Mapping[str, int]
    """Parameters by part, which sum to ``num_params``."""
    num_inactive_params: int
    """Parameters of the routed experts that one token does not visit."""

    @property
    def num_params(self) -> int:
        """All parameters, prediction layers left out."""
        return sum(self.parts.values())

    @property
    def num_active_params(self) -> int:
        """Parameters that one token uses: ``top_k`` of the routed experts of each layer."""
        return self.num_params - self.num_inactive_params


@dataclass(frozen=True)
class ParameterCounts(LayerParameters):
    """Parameters of a model."""

    prediction: int
    """Layers for multi-token prediction: in no total; embedding and head are shared."""
    repeated_head: int
    """Further parameters of a checkpoint that also stores a tied head; in no total."""
    layer_kinds: tuple[LayerParameters, ...]
    """Parameters of one layer of each kind, in the order of ``ModelSpec.layer_kinds``."""
    layer_counts: tuple[int, ...]
    """Number of layers of each kind."""


def count_parameters(model: ModelSpec) -> ParameterCounts:
    """Return the exact parameter counts of a model: those of its operators.

    Source: shapes of the modules in Hugging Face transformers; see each family for its own.
    """
    kinds = tuple(layer_parameters(kind, model) for kind in model.layer_kinds)
    total = Counter[str](dict.fromkeys(PARTS, 0))
    for kind, count in zip(kinds, model.layer_counts, strict=True):
        total.update({part: count * number for part, number in kind.parts.items()})
    model_once = model.model_copy(update={"prediction_depths": 0})
    ends = {"embedding": embedding_graph(model, dropout=False), "head": head_graph(model_once)}
    for end, graph in ends.items():
        is_tied = model.tied_embeddings and end == "head"
        total.update(_parts(graph, end, left_out=TABLE if is_tied else ""))
    table = model.vocab_size * model.hidden_size
    return ParameterCounts(
        parts=dict(total),
        num_inactive_params=sum(
            count * kind.num_inactive_params
            for kind, count in zip(kinds, model.layer_counts, strict=True)
        ),
        prediction=model.num_prediction_layers * _prediction_parameters(model, kinds),
        repeated_head=table if model.tied_embeddings else 0,
        layer_kinds=kinds,
        layer_counts=model.layer_counts,
    )


def layer_parameters(layer: LayerSpec, model: ModelSpec) -> LayerParameters:
    """Return the parameters of one layer of a kind."""
    parts, experts = _parts(layer_graph(model, layer)), layer.experts
    idle = experts.num_experts - experts.top_k if experts else 0
    each = parts["experts"] // experts.num_experts if experts else 0
    return LayerParameters(parts, idle * each)


def _parts(graph: LayerGraph, end: str = "", left_out: str = "") -> Counter[str]:
    """Return the parameters of some operators by part; of one end of the model, by its name."""
    found = Counter[str]()
    for op in graph.ops:
        part = end if op.region == EDGE else op.region
        part = "norms" if op.kind is OpKind.NORM else part
        part = "router" if op.name == "experts.router" else part
        for weight in op.weights:
            if weight.name != left_out:
                found[part] += prod(graph.sizes[dim] for dim in weight.dims)
    return found


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
            if not one.shares_cache:
                yield "k", hidden, one.num_kv_heads * one.head_size
            if not one.shares_cache and not one.value_is_key:
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


def _prediction_parameters(model: ModelSpec, kinds: tuple[LayerParameters, ...]) -> int:
    """Return the parameters of one prediction layer that it shares with nothing.

    One layer of the last kind, a projection from two hidden vectors to one, and three norms.

    Source: DeepSeek-V3 technical report (arXiv 2412.19437), section 2.2.
    """
    hidden = model.hidden_size
    extra = 2 * hidden * hidden + 3 * len(norm_weights("", "hidden", model.norm)) * hidden
    return kinds[model.layer_pattern[-1]].num_params + extra


def kv_words_per_token(attention: AttentionSpec | None) -> int:
    """Return the words that one layer keeps for one token: keys and values, or their latent.

    The key of an index, and entries of joined tokens, come to them.
    """
    if attention is None or attention.shares_cache:
        return 0
    if attention.kind == "mla":
        return (attention.kv_rank or 0) + attention.rope_head_size
    values = 0 if attention.caches_once else attention.value_head_size
    return attention.num_kv_heads * (attention.head_size + values)


def kv_cache_bytes_per_token(model: ModelSpec, word_bytes: float) -> float:
    """Return the KV cache that one more token adds while no window is full yet [bytes].

    Parameters
    ----------
    word_bytes
        Bytes of one cached word [bytes].
    """
    return kv_cache_bytes(model, word_bytes, 1.0)


def windowed_kv_cache_bytes_per_token(model: ModelSpec, word_bytes: float) -> float:
    """Return the part of ``kv_cache_bytes_per_token`` that layers with a window hold [bytes]."""
    return word_bytes * sum(
        count * kv_words_per_token(kind.attention)
        for kind, count in zip(model.layer_kinds, model.layer_counts, strict=True)
        if kind.attention is not None and kind.attention.window is not None
    )


def kv_cache_bytes(model: ModelSpec, word_bytes: float, num_tokens: N) -> N:
    """Return the cache of one sequence; a layer with a window keeps no more than it [bytes].

    With a stride r it keeps an entry for each r tokens as well, and an index has a key for each.

    Parameters
    ----------
    word_bytes
        Bytes of one cached word [bytes].
    num_tokens
        Length of the sequence so far [tokens].
    """
    total = 0.0 * num_tokens
    for kind, count in zip(model.layer_kinds, model.layer_counts, strict=True):
        if (attention := kind.attention) is None or attention.shares_cache:
            continue
        window = attention.window
        kept = num_tokens if window is None else smaller(num_tokens, float(window))
        entries = num_tokens / float(attention.stride or 1)
        kept = kept + (entries if attention.stride is not None else 0.0)
        words = kv_words_per_token(attention) * kept + attention.index_head_size * entries
        total = total + word_bytes * count * words
    return total


def recurrent_state_bytes(model: ModelSpec, word_bytes: float) -> float:
    """Return the state of all recurrent layers for one sequence of any length [bytes].

    States in FP32, and the last inputs of the convolutions.

    Parameters
    ----------
    word_bytes
        Bytes of an activation [bytes].
    """
    total = 0.0
    for kind, count in zip(model.layer_kinds, model.layer_counts, strict=True):
        if kind.recurrence is not None:
            states, inputs = map(float, whole_kept_words(kind.recurrence))
            total += count * (STATE_WORD_BYTES * states + word_bytes * inputs)
    return total
