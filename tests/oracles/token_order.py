"""Which tokens a member owns, and how evenly a causal mask then spreads the work.

Under weight streaming tokens stay split. In zig-zag order member i of N owns chunks i and
2 N - 1 - i of 2 N, so that every query and key meet in the same number of visible pairs.
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np

from meshwright.base.arrays import IntArray, N, where


class RoundPairs(NamedTuple, Generic[N]):
    """Query-key pairs that the busiest member computes in a round under a causal mask [1]."""

    first: N
    """In the round of the member's own keys."""
    others: N
    """In each other round."""


def zigzag_tokens(num_tokens: int, num_members: int, num_parts: int = 1) -> list[IntArray]:
    """Return the tokens of each item, early ones first: a share of a member's two chunks.

    Each part takes its share of both chunks. Halves that are whole chunks would be as large, but
    uneven in a round where the parts of two members meet.
    """
    chunks = np.array_split(np.arange(num_tokens), 2 * num_members)
    cut = [np.array_split(chunk, num_parts) for chunk in chunks]
    return [
        np.concatenate([cut[member][part], cut[2 * num_members - 1 - member][part]])
        for member in range(num_members)
        for part in range(num_parts)
    ]


def contiguous_tokens(num_tokens: int, num_members: int, num_parts: int = 1) -> list[IntArray]:
    """Return the tokens of each item, in one run."""
    return np.array_split(np.arange(num_tokens), num_members * num_parts)


def visible_pairs(queries: IntArray, keys: IntArray) -> int:
    """Return how many of the pairs a causal mask leaves: keys no later than their query."""
    return int(np.searchsorted(np.sort(keys), queries, side="right").sum())


def zigzag_round_pairs(num_tokens: N, num_members: N) -> RoundPairs[N]:
    """Return 2 s^2 + s, and 2 s^2 in other rounds, with s = S / 2 N: every member the same.

    Valid for: chunks that divide evenly; items may come in parts.
    """
    chunk = num_tokens / (2 * num_members)
    return RoundPairs(2 * chunk * chunk + chunk, where(num_members > 1, 2 * chunk * chunk, 0.0))


def contiguous_round_pairs(num_tokens: N, num_members: N) -> RoundPairs[N]:
    """Return 2 s^2 + s, and 4 s^2 in other rounds: the last member sees all that arrives.

    Over all rounds 2 - 1 / N times the pairs of zig-zag order, up to the diagonal.
    """
    chunk = num_tokens / (2 * num_members)
    return RoundPairs(2 * chunk * chunk + chunk, where(num_members > 1, 4 * chunk * chunk, 0.0))
