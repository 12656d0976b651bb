"""Attention with tokens split: keys and values stream past the queries, exactly.

Weight streaming leaves the tokens split, so keys and values travel as items on the schedule of the
weights, and a running maximum and sum keep the softmax exact. Backward they travel again, and the
accumulators of dK and dV come home. (Input streaming leaves the heads split, and attention local.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.streams.carriage import Exchanged, deliver, exchange
from meshwright.streams.rounds import StreamRounds


class AttentionOutput(NamedTuple):
    """What attention leaves at each member."""

    outputs: list[FloatArray]
    """(heads, tokens of the member, head size)."""
    log_sums: list[FloatArray]
    """Logarithm of the softmax denominator of each head and token, for the backward pass."""
    num_received: int
    """Elements that all members together received [1]."""


class AttentionGradients(NamedTuple):
    """Gradients of the queries at each member, and of keys and values at the home of each item."""

    queries: list[FloatArray]
    keys_values: Exchanged


@dataclass(frozen=True)
class SplitAttention:
    """Causal attention over tokens that are split, grouped queries included.

    Attributes
    ----------
    queries
        Of each member: (heads, tokens, head size).
    keys_values
        Of each item: (2, key-value heads, tokens, head size). A whole number of query heads
        shares each key-value head.
    query_tokens, key_tokens
        Position of each token in the sequence, for each member and each item.
    """

    rounds: StreamRounds
    queries: Sequence[FloatArray]
    keys_values: Sequence[FloatArray]
    query_tokens: Sequence[IntArray]
    key_tokens: Sequence[IntArray]

    def forward(self) -> AttentionOutput:
        """Return softmax(Q K^T / sqrt d + mask) V, its softmax taken item after item.

        Source: online softmax of Milakov and Gimelshein 2018 (arXiv 1805.02867).
        """
        largest = [np.full(block.shape[:2], -np.inf) for block in self.queries]
        sums = [np.zeros(block.shape[:2]) for block in self.queries]
        outputs = [np.zeros_like(block) for block in self.queries]

        def absorb(member: int, item: int, block: FloatArray) -> None:
            scores = self._scores(member, item, block[0])
            seen = np.maximum(largest[member], scores.max(axis=-1))
            shift = np.where(np.isfinite(seen), seen, 0.0)
            kept = np.exp(largest[member] - shift)
            weights = np.exp(scores - shift[..., None])
            largest[member] = seen
            sums[member] = kept * sums[member] + weights.sum(axis=-1)
            added = weights @ self._for_each_head(block[1])
            outputs[member] = kept[..., None] * outputs[member] + added

        received = deliver(self.rounds, self.keys_values, absorb)
        scaled = [out / total[..., None] for out, total in zip(outputs, sums, strict=True)]
        logs = [top + np.log(total) for top, total in zip(largest, sums, strict=True)]
        return AttentionOutput(scaled, logs, received)

    def backward(
        self, result: AttentionOutput, output_gradient: Sequence[FloatArray]
    ) -> AttentionGradients:
        """Return dQ, summed in place, and dK and dV, their accumulators brought home.

        The probabilities are formed again from the scores, so a partial of dK and dV needs the
        keys and values themselves.
        """
        to_queries = [np.zeros_like(block) for block in self.queries]
        pairs = zip(output_gradient, result.outputs, strict=True)
        removed = [(gradient * out).sum(axis=-1, keepdims=True) for gradient, out in pairs]

        def form(member: int, item: int, block: FloatArray) -> FloatArray:
            keys, values = (self._for_each_head(part) for part in block)
            scores = self._scores(member, item, block[0])
            weights = np.exp(scores - result.log_sums[member][..., None])
            gradient = output_gradient[member]
            to_weights = gradient @ values.swapaxes(-1, -2) - removed[member]
            to_scores = weights * to_weights / np.sqrt(keys.shape[-1])
            to_queries[member] += to_scores @ keys
            to_keys = to_scores.swapaxes(-1, -2) @ self.queries[member]
            to_values = weights.swapaxes(-1, -2) @ gradient
            heads = (block.shape[1], -1, *block.shape[2:])
            return np.stack([part.reshape(heads).sum(axis=1) for part in (to_keys, to_values)])

        return AttentionGradients(to_queries, exchange(self.rounds, self.keys_values, form))

    def _scores(self, member: int, item: int, keys: FloatArray) -> FloatArray:
        """Return Q K^T / sqrt d, minus infinity for keys later than their query."""
        scores = self.queries[member] @ self._for_each_head(keys).swapaxes(-1, -2)
        is_seen = self.query_tokens[member][:, None] >= self.key_tokens[item][None, :]
        masked: FloatArray = np.where(is_seen, scores / np.sqrt(keys.shape[-1]), -np.inf)
        return masked

    def _for_each_head(self, block: FloatArray) -> FloatArray:
        """Return keys or values repeated for the query heads that share them."""
        return np.repeat(block, len(self.queries[0]) // len(block), axis=0)
