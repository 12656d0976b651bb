"""Scans of recurrent layers token by token and chunk by chunk, in numbers.

The recurrence itself is the truth; the chunked algorithm must give the same output, and counts the
FLOPs of each of its products by their shapes.
"""

from __future__ import annotations

import numpy as np
from numpy.linalg import inv


class Count:
    """Products of matrices, and the FLOPs that they take."""

    def __init__(self):
        self.flops = 0.0

    def product(self, left, right):
        self.flops += 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
        return left @ right


def drawn(seed, tokens, spec):
    """Return values, keys, queries, decays and strengths of writing of one sequence."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(tokens, spec.num_heads, spec.head_size))
    keys, queries = rng.normal(size=(2, tokens, spec.num_groups, spec.state_size)) / 4.0
    decays, writes = rng.uniform(0.3, 1.0, size=(2, tokens, spec.num_heads))
    return values, keys, queries, decays, writes


def by_token(spec, values, keys, queries, decays, writes):
    """Return the output by the recurrence: decay, correct what is known (delta rule), write, read.

    S <- a S + b k (v - [delta] a S k)^T, o = S^T q.
    """
    output = np.zeros_like(values)
    shared = spec.num_heads // spec.num_groups
    for head in range(spec.num_heads):
        state = np.zeros((spec.state_size, spec.head_size))
        for token in range(len(values)):
            key, query = (part[token, head // shared] for part in (keys, queries))
            state = decays[token, head] * state
            known = key @ state if spec.kind == "gated_delta" else 0.0
            state = state + writes[token, head] * np.outer(key, values[token, head] - known)
            output[token, head] = query @ state
    return output


def by_chunk(spec, values, keys, queries, decays, writes):
    """Return the output of the chunked algorithm and the FLOPs of its products."""
    count, output = Count(), np.zeros_like(values)
    shared, size = spec.num_heads // spec.num_groups, spec.chunk_size
    states = np.zeros((spec.num_heads, spec.state_size, spec.head_size))
    for first in range(0, len(values), size):
        rows = slice(first, first + size)
        scores = {}
        for head in range(spec.num_heads):
            group = head // shared
            key, query = keys[rows, group], queries[rows, group]
            # decay from each earlier token (or the start) of the chunk to each token of it
            until = np.cumsum(np.log(decays[rows, head]))
            between = np.tril(np.exp(until[:, None] - until[None, :]))
            write, state = writes[rows, head, None], states[head]
            if spec.kind == "mamba2":
                if group not in scores:
                    scores[group] = count.product(query, key.T)
                new = write * values[rows, head]
            else:
                overlaps = write * np.tril(between * count.product(key, key.T), -1)
                inverse = inv(np.eye(size) + overlaps)
                count.flops += size**3 / 3.0
                written = count.product(inverse, write * values[rows, head])
                read = count.product(inverse, write * np.exp(until)[:, None] * key)
                new = written - count.product(read, state)
                scores[group] = count.product(query, key.T)
            output[rows, head] = count.product(between * scores[group], new)
            output[rows, head] += count.product(np.exp(until)[:, None] * query, state)
            kept = count.product((np.exp(until[-1] - until)[:, None] * key).T, new)
            count.flops += 2.0 * state.size
            states[head] = np.exp(until[-1]) * state + kept
    return output, count.flops
