"""Least work of a model, counted from its matrices alone: no norms, biases or padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import Any

from meshwright.audit.laws import Facts
from meshwright.spec.model import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec, RecurrenceSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import BYTES_OF, Workload


@dataclass(frozen=True)
class LayerWork:
    """Counts of one layer."""

    dense_params: float
    """Elements of the matrices that every token meets."""
    expert_params: float
    """Elements of the matrices of all routed experts."""
    routed_share: float
    """Share of ``expert_params`` that one token meets."""
    score_flops: float
    """FLOPs of the scores of one token with one other, forward."""
    window: float
    """Most tokens of the cache of a sequence."""
    most_keys: float
    """Most tokens that a token attends to."""
    is_chunked: bool
    stride: float
    """Tokens of one joined entry beside the window; infinite: there is none."""
    chosen: float
    """Most of the joined entries that a token attends to."""
    cache_elements: float
    """Elements of the cache of one token."""
    cache_heads: float
    """Most ranks of tp that can divide the cache."""
    product_inputs: float
    """Elements that products of one token read, and the parts of attention: kept for gradients."""
    summed_outputs: float
    """Outputs of the hidden size that ranks of tp sum: those of dense branches."""

    @property
    def active_params(self) -> float:
        """Matrix elements that one token meets."""
        return self.dense_params + self.routed_share * self.expert_params

    def attended(self, length: float) -> float:
        """Return the mean number of tokens that a token of a sequence attends to."""
        seen = min(self.most_keys, length)
        entries = length / self.stride
        joined = min(self.chosen, entries)
        beside = joined - joined * joined / (2.0 * entries) if entries else 0.0
        return (seen / 2.0 if self.is_chunked else seen - seen * seen / (2.0 * length)) + beside


def _attention(spec: AttentionSpec, hidden: float) -> tuple[float, float, float, float, float]:
    """Return parameters, score FLOPs, cached elements, their heads, and inputs of products."""
    heads, size, value = spec.num_heads, spec.head_size, spec.value_head_size
    wide = heads * (size + spec.rope_head_size) if spec.kind == "mla" else heads * size
    out = heads * value * hidden * (2.0 if spec.output_gate else 1.0)
    if spec.output_rank is not None:
        out = spec.output_rank * (heads * value + spec.output_groups * hidden)
    ranks = spec.query_rank
    query = hidden * wide if ranks is None else ranks * (hidden + wide)
    index = spec.index_heads * ((ranks or 0) * spec.index_head_size + hidden)
    query += index + hidden * spec.index_head_size
    scores = 2.0 * (wide + heads * value)
    if spec.kind == "mla":
        rank = spec.kv_rank or 0
        latent = float(rank + spec.rope_head_size)
        cached = latent + spec.index_head_size
        params = query + hidden * latent + rank * heads * (size + value) + out
        return params, scores, cached, 1.0, hidden + latent + heads * value
    made = 0.0 if spec.shares_cache else 1.0 if spec.value_is_key else 2.0
    params = query + hidden * made / 2.0 * spec.num_kv_heads * (size + value) + out
    cached = float(spec.num_kv_heads * (size + value * (not spec.caches_once)))
    cached *= not spec.shares_cache
    return params, scores, cached, spec.num_kv_heads, hidden + wide + cached + heads * value


def _recurrence(spec: RecurrenceSpec, hidden: float) -> float:
    """Return the parameters of the projections before and after a recurrence."""
    inner, keys = spec.num_heads * spec.head_size, spec.num_groups * spec.state_size
    if spec.kind == "kda":
        return hidden * (2.0 * inner + 2.0 * keys + 2.0 * spec.gate_rank) + spec.gate_rank * (
            inner + keys
        )
    return hidden * (3.0 * inner + (1.0 if spec.kind == "short_conv" else 2.0) * keys)


def _experts(spec: ExpertSpec, hidden: float) -> tuple[float, float]:
    """Return the parameters of shared experts and router, and of routed experts."""
    matrices = 3.0 if spec.gated else 2.0
    shared = hidden * (matrices * spec.shared_ffn_size + spec.num_experts)
    return shared, spec.num_experts * matrices * hidden * spec.ffn_size


def layer_work(layer: LayerSpec, hidden: float) -> LayerWork:
    """Return the counts of a layer of a model with that hidden size."""
    dense = expert = share = scores = cached = inputs = summed = 0.0
    heads, window, most, chunked, stride, chosen = 1.0, inf, inf, False, inf, inf
    if (attention := layer.attention) is not None:
        dense, scores, cached, heads, inputs = _attention(attention, hidden)
        window, most = attention.window or inf, attention.most_keys or inf
        chunked = attention.window_kind == "chunked"
        stride, chosen = attention.stride or inf, attention.chosen_keys or inf
        summed = 1.0
    if layer.recurrence is not None:
        dense += _recurrence(layer.recurrence, hidden)
        inputs, summed = inputs or hidden, 1.0
    if layer.side is not None:
        dense += sum(float(rows * columns) for rows, columns in layer.side.products)
    if (network := layer.feed_forward) is not None:
        dense += hidden * network.ffn_size * (3.0 if network.gated else 2.0)
        inputs += hidden + network.ffn_size
        summed = 1.0 if layer.parallel_residual else summed + 1.0
    elif (experts := layer.experts) is not None:
        shared, expert = _experts(experts, hidden)
        dense, share = dense + shared, experts.top_k / experts.num_experts
        inputs += hidden + experts.top_k * experts.ffn_size
    return LayerWork(
        dense, expert, share, scores, window, most, chunked, stride, chosen, cached, heads, inputs,
        summed,
    )  # fmt: skip


@dataclass(frozen=True)
class ModelWork:
    """Counts of a model."""

    model: ModelSpec

    @cached_property
    def layers(self) -> tuple[LayerWork, ...]:
        """The counts of each layer, first to last."""
        hidden = float(self.model.hidden_size)
        kinds = [layer_work(layer, hidden) for layer in self.model.layer_kinds]
        return tuple(kinds[kind] for kind in self.model.layer_pattern)

    @property
    def table_params(self) -> float:
        """Elements of the token table, and of the last product."""
        return float(self.model.vocab_size * self.model.hidden_size)

    @property
    def num_tables(self) -> float:
        """Number of separate tables: of tokens, and of the last product where it differs."""
        return 1.0 if self.model.tied_embeddings else 2.0

    @cached_property
    def layer_flops(self) -> float:
        """FLOPs of the products of one token in all layers, forward."""
        return 2.0 * sum(layer.active_params for layer in self.layers)

    @property
    def head_flops(self) -> float:
        """FLOPs of the last product of one token, for each token that it predicts, forward.

        Products beside the embedding are counted here, too.
        """
        beside = self.model.side.products if self.model.side is not None else ()
        products = sum(float(rows * columns) for rows, columns in beside)
        return 2.0 * (self.table_params * (1.0 + self.model.prediction_depths) + products)

    def score_flops(self, length: float) -> float:
        """Return the attention FLOPs of a mean token of causal sequences of a length, forward."""
        return sum(layer.score_flops * layer.attended(length) for layer in self.layers)

    def cache_elements(self, tokens: float, tp: float = 1.0) -> float:
        """Return the elements of a cache of a number of tokens, on one of ``tp`` ranks.

        A layer with a window keeps only the tokens in it.
        """
        return sum(
            layer.cache_elements * min(tokens, layer.window) / min(tp, layer.cache_heads)
            for layer in self.layers
        )

    def least(self, count: Callable[[LayerWork], float], num_layers: float) -> float:
        """Return a count of a number of layers: those with the least of it."""
        return sum(sorted(map(count, self.layers))[: max(0, int(num_layers))])

    def least_in_row(
        self, count: Callable[[LayerWork], float], num_layers: float, place: str
    ) -> float:
        """Return a count of a number of layers in a row: the first, the last, or any between."""
        counts, number = [count(layer) for layer in self.layers], max(0, int(num_layers))
        starts = {"first": [0], "last": [len(counts) - number]}.get(
            place, range(number, max(number + 1, len(counts) - 2 * number + 1))
        )
        return min(sum(counts[start : start + number]) for start in starts)


@dataclass(frozen=True)
class ModelFacts(Facts):
    """Facts of a plan of a model."""

    model: ModelSpec
    system: SystemSpec
    workload: Workload
    degrees: Mapping[str, float]
    choices: Mapping[str, Any]

    @cached_property
    def work(self) -> ModelWork:
        """Counts of the model."""
        return ModelWork(self.model)

    def degree(self, *axes: str) -> float:
        """Return the product of degrees."""
        return float(prod(self.degrees[axis] for axis in axes))

    @property
    def word_bytes(self) -> float:
        """Bytes of the narrowest number that represents an activation."""
        types = self.workload.precision
        return min(BYTES_OF[types.activation], BYTES_OF[types.matmul])
