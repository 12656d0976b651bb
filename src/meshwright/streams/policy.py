"""Which tensor each operator of a block streams: the cheapest chain, changes of layout included.

Activations lie split by tokens or by columns (heads, inner columns). A linear layer that streams
its weights keeps tokens; one that streams its inputs turns tokens into columns; one whose output
sums stream turns columns into tokens. Attention is local in columns, and streams keys and values in
tokens. So streaming inputs pays only in pairs, or with a reshard between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from meshwright.base.arrays import Num, where
from meshwright.streams.volumes import (
    attention_backward_bytes,
    attention_forward_bytes,
    received_bytes,
    training_bytes_per_element,
)


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


@dataclass(frozen=True)
class OperatorPrices:
    """What an operator costs under each transfer, in bytes or seconds; infinite where impossible.

    Numbers, or columns of one length.
    """

    weights: Any = np.inf
    inputs: Any = np.inf
    sums: Any = np.inf
    nothing: Any = np.inf
    reshard: Any = np.inf
    """Of changing the layout of its output."""


class TransferPolicy(NamedTuple):
    """The cheapest transfers of a chain."""

    total: Any
    transfers: list[Any]
    """Of each operator, values of :class:`Transfer`."""
    reshards: list[Any]
    """Whether the output of each operator changes its layout."""


class _Way(NamedTuple):
    """The cheapest way to one layout: its price so far, and what was chosen on it."""

    price: Any
    transfers: list[Any]
    reshards: list[Any]


def cheapest_transfers(operators: Sequence[OperatorPrices]) -> TransferPolicy:
    """Return the cheapest transfer of each operator of a chain that begins and ends in tokens.

    Exact: dynamic programming over the two layouts. Chains end where a residual is added; join
    blocks by adding their totals.

    Source: derived; the selective transfer policy of TEMP (arXiv 2512.14256) with the layouts that
    its two streams leave behind.
    """
    tokens, columns = _Way(0.0, [], []), _Way(np.inf, [], [])
    for prices in operators:
        to_tokens = _cheaper(
            _after(tokens, Transfer.WEIGHTS, prices.weights),
            _after(columns, Transfer.SUMS, prices.sums),
        )
        to_columns = _cheaper(
            _after(tokens, Transfer.INPUTS, prices.inputs),
            _after(columns, Transfer.NOTHING, prices.nothing),
        )
        tokens = _cheaper(to_tokens, _resharded(to_columns, prices.reshard))
        columns = _cheaper(to_columns, _resharded(to_tokens, prices.reshard))
    return TransferPolicy(*tokens)


def _after(way: _Way, transfer: Transfer, price: Any) -> _Way:
    """Return a way with one more operator."""
    return _Way(way.price + price, [*way.transfers, int(transfer)], [*way.reshards, False])


def _resharded(way: _Way, price: Any) -> _Way:
    """Return a way whose last output changes its layout."""
    return _Way(way.price + price, way.transfers, [*way.reshards[:-1], True])


def _cheaper(one: _Way, other: _Way) -> _Way:
    """Return the cheaper of two ways of equal length, row by row; of equals the first."""
    is_first = one.price <= other.price
    pairs = zip((one.transfers, one.reshards), (other.transfers, other.reshards), strict=True)
    chosen = [[where(is_first, a, b) for a, b in zip(*pair, strict=True)] for pair in pairs]
    return _Way(where(is_first, one.price, other.price), *chosen)


def linear_bytes(
    num_tokens: Num,
    in_size: Num,
    out_size: Num,
    num_members: Num,
    word_bytes: Any = 2.0,
    accumulator_bytes: Any = 2.0,
) -> OperatorPrices:
    """Bytes that a member receives for a linear layer in a training step, by transfer [bytes].

    rho H F (2 e + e_acc) with weights, rho S H (2 e + e_acc) with inputs, rho S F (e + e_acc) with
    output sums, whose gradient comes back once. A reshard is an all-to-all in both passes:
    2 rho e S F / N.

    Parameters
    ----------
    num_tokens
        Tokens of the whole group, S [tokens].
    in_size, out_size
        H and F of the whole layer; layers that share an input count as one.
    """
    each = training_bytes_per_element(word_bytes, accumulator_bytes)
    outputs = num_tokens * out_size
    return OperatorPrices(
        weights=received_bytes(in_size * out_size * each, num_members),
        inputs=received_bytes(num_tokens * in_size * each, num_members),
        sums=received_bytes(outputs * (word_bytes + accumulator_bytes), num_members),
        reshard=received_bytes(2 * word_bytes * outputs / num_members, num_members),
    )


def attention_bytes(
    num_tokens: Num,
    query_size: Num,
    key_value_size: Num,
    num_members: Num,
    word_bytes: Any = 2.0,
    accumulator_bytes: Any = 2.0,
) -> OperatorPrices:
    """Bytes that a member receives for attention in a training step, by transfer [bytes].

    Keys and values stream where tokens are split; nothing travels where heads are.

    Parameters
    ----------
    query_size, key_value_size
        Width of the queries, and of the keys, of a token.
    """
    sizes = (num_tokens, key_value_size, word_bytes)
    forward = attention_forward_bytes(*sizes, num_members)
    backward = attention_backward_bytes(*sizes, accumulator_bytes, num_members)
    outputs = num_tokens * query_size
    return OperatorPrices(
        weights=forward + backward,
        nothing=0.0 * outputs,
        reshard=received_bytes(2 * word_bytes * outputs / num_members, num_members),
    )
