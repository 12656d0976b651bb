"""Bytes that a tensor stream moves, and which tensor of an operator travels.

A linear layer is Y (S x F) = X (S x H) W (H x F): S tokens of the whole group, H in, F out. Each
member of N receives (N - 1) / N of the streamed tensor.
"""

from __future__ import annotations

from enum import IntEnum

from meshwright.base.arrays import N


def received_bytes(tensor_bytes: N, num_members: N) -> N:
    """Bytes that one member receives when a tensor streams once: rho * size, rho = (N - 1) / N."""
    return tensor_bytes * (num_members - 1) / num_members


def training_bytes_per_element(word_bytes: N, accumulator_bytes: N) -> N:
    """Bytes that one streamed element costs in a training step: 2 e + e_acc [bytes].

    It streams in the forward and again in the backward pass, and its gradient accumulator once.

    Parameters
    ----------
    word_bytes
        Of the streamed element, e [bytes].
    accumulator_bytes
        Of its travelling gradient, 2 or 4 [bytes].
    """
    return 2 * word_bytes + accumulator_bytes


def attention_forward_bytes(num_tokens: N, key_value_size: N, word_bytes: N, num_members: N) -> N:
    """Bytes of keys and values that a member receives: 2 rho e S h_kv [bytes].

    Streaming the weights leaves the tokens split, so keys and values stream on the same schedule.
    (Streaming the inputs leaves the heads split, and attention local.)

    Parameters
    ----------
    num_tokens
        Tokens of the whole group, S [tokens].
    key_value_size
        Width of the keys of a token: key-value heads times head size, h_kv.
    """
    return received_bytes(2 * word_bytes * num_tokens * key_value_size, num_members)


def attention_backward_bytes(
    num_tokens: N,
    key_value_size: N,
    word_bytes: N,
    accumulator_bytes: N,
    num_members: N,
) -> N:
    """Bytes of K, V and of dK, dV that a member receives: 2 rho (e + e_acc) S h_kv [bytes].

    Parameters as :func:`attention_forward_bytes`; ``accumulator_bytes`` of dK and dV [bytes].
    """
    moved_bytes = 2 * (word_bytes + accumulator_bytes) * num_tokens * key_value_size
    return received_bytes(moved_bytes, num_members)


class Transfer(IntEnum):
    """What travels for an operator."""

    WEIGHTS = 0
    """Or keys and values: tokens stay split."""
    INPUTS = 1
    """From tokens to columns."""
    SUMS = 2
    """Accumulators of the output: from columns to tokens."""
    NOTHING = 3
    """Columns stay split."""
