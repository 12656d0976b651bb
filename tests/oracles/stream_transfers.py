"""Which transfers of a chain of operators move the fewest bytes, and where streams break even.

The product decides by seconds (``cost``); these byte counts of the paper check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.base.arrays import N, larger, positive_part, where
from meshwright.streams.round_model import StreamedTensor, StreamTime, stream_time


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


def weights_are_cheaper(
    num_tokens: N, in_size: N, out_size: N, weight_bytes: N, input_bytes: N
) -> Any:
    """Return whether (or for which rows) streaming the weights moves less than the inputs.

    H F w < S H x. With equal bytes for both: F < S.

    Parameters
    ----------
    num_tokens
        Tokens of the whole group, S [tokens].
    in_size, out_size
        Contracted and output size of the layer, H and F.
    weight_bytes, input_bytes
        Bytes moved for each element of either: the word in inference,
        :func:`training_bytes_per_element` in training [bytes].

    Source: selective transfer policy of TEMP (arXiv 2512.14256), with the accumulators counted.
    """
    return in_size * out_size * weight_bytes < num_tokens * in_size * input_bytes


def crossing_members(
    stationary_size: N, bandwidth_bytes_per_s: N, word_bytes: N, flops_per_s: N
) -> N:
    """Members beyond which one forward layer is bound by its links: 2 S B / (e P eta).

    2 S H F / (N^2 P eta) = e H F / (N B) for streamed weights; streamed inputs: F for S.

    Parameters
    ----------
    stationary_size
        Tokens S when weights stream, output size F when inputs stream.
    bandwidth_bytes_per_s
        Of one link in one direction [bytes/s].
    flops_per_s
        Achieved matrix rate of one device, P eta [FLOP/s].

    Assumes: no latency and no message overhead.
    """
    return 2 * stationary_size * bandwidth_bytes_per_s / (word_bytes * flops_per_s)


def tokens_to_hide_weights(
    word_bytes: N, gradient_bytes: N, bandwidth_bytes_per_s: N, flops_per_s: N
) -> N:
    """Tokens per device and micro-batch from which weight streaming hides [tokens].

    (2 e + e_g) P eta / (6 B), whatever the number of members: with s tokens per device a training
    step takes 6 s H F / (P eta) on a device and moves (2 e + e_g) H F on its links.
    """
    moved_bytes = training_bytes_per_element(word_bytes, gradient_bytes)
    return moved_bytes * flops_per_s / (6 * bandwidth_bytes_per_s)


def input_streaming_bytes_per_token(hidden_size: N, word_bytes: N, accumulator_bytes: N) -> N:
    """Bytes that stream for each token of a transformer block in a training step [bytes].

    h (2 (2 e + e_acc) + 2 (e + e_acc)) = h (6 e + 4 e_acc). The inputs of the two column layers
    stream in both passes and their gradients as accumulators; of the two row layers the output
    accumulators stream forward and the gradient once backward, which serves both products.

    Parameters
    ----------
    hidden_size
        Width of the residual stream, h.
    word_bytes, accumulator_bytes
        Of a streamed word and of a travelling sum [bytes].

    Source: derived; counted by the replay of a block. As the gathers and reduce-scatters of
    Megatron sequence parallelism: three for a column layer, two for a row layer.
    """
    return hidden_size * (6 * word_bytes + 4 * accumulator_bytes)


def members_to_hide_inputs(
    hidden_size: N, bandwidth_bytes_per_s: N, flops_per_s: N, accumulator_bytes: Any = 2.0
) -> N:
    """Members up to which input streaming hides on a transformer block.

    72 h B / ((6 e + 4 e_acc) P eta) with two-byte words, 3.6 h B / (P eta) with accumulators of
    two bytes as well: the four layers of a block have 12 h^2 weights, so a token takes
    72 h^2 / N FLOPs of each member in a training step.
    """
    moved_bytes = input_streaming_bytes_per_token(hidden_size, 2.0, accumulator_bytes)
    work_flops = 72 * hidden_size * hidden_size
    members: N = work_flops * bandwidth_bytes_per_s / (moved_bytes * flops_per_s)
    return members


def product_received_bytes(input_bytes: N, weight_bytes: N, num_rows: N, num_columns: N) -> N:
    """Bytes that a member of an r x c block receives: ((c - 1) X + (r - 1) W) / (r c) [bytes].

    On a square block (sqrt N - 1) (X + W) / N, which tends to (X + W) / sqrt N.

    Parameters
    ----------
    input_bytes, weight_bytes
        Of the whole tensors X and W [bytes].
    num_rows, num_columns
        Weights stream along the columns, among r members; inputs along the rows, among c.

    Source: derived; counted by the replay of the product stream.
    """
    moved_bytes = (num_columns - 1) * input_bytes + (num_rows - 1) * weight_bytes
    return moved_bytes / (num_rows * num_columns)


def square_break_even(num_members: N) -> N:
    """Return by how much X + W may exceed the smaller of both so that a square block moves less.

    (sqrt N - 1) (X + W) < (N - 1) min(X, W) exactly when X + W < (sqrt N + 1) min(X, W).
    """
    ratio: N = np.sqrt(num_members) + 1
    return ratio


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
    """Of each operator, values of :class:`StreamedTensor`."""
    reshards: list[Any]
    """Whether the output of each operator changes its layout."""


class _Chain(NamedTuple):
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
    tokens, columns = _Chain(0.0, [], []), _Chain(np.inf, [], [])
    for prices in operators:
        to_tokens = _cheaper(
            _after(tokens, StreamedTensor.WEIGHTS, prices.weights),
            _after(columns, StreamedTensor.SUMS, prices.sums),
        )
        to_columns = _cheaper(
            _after(tokens, StreamedTensor.INPUTS, prices.inputs),
            _after(columns, StreamedTensor.NOTHING, prices.nothing),
        )
        tokens = _cheaper(to_tokens, _resharded(to_columns, prices.reshard))
        columns = _cheaper(to_columns, _resharded(to_tokens, prices.reshard))
    return TransferPolicy(*tokens)


def _after(way: _Chain, transfer: StreamedTensor, price: Any) -> _Chain:
    """Return a way with one more operator."""
    return _Chain(way.price + price, [*way.transfers, int(transfer)], [*way.reshards, False])


def _resharded(way: _Chain, price: Any) -> _Chain:
    """Return a way whose last output changes its layout."""
    return _Chain(way.price + price, way.transfers, [*way.reshards[:-1], True])


def _cheaper(one: _Chain, other: _Chain) -> _Chain:
    """Return the cheaper of two ways of equal length, row by row; of equals the first."""
    is_first = one.price <= other.price
    pairs = zip((one.transfers, one.reshards), (other.transfers, other.reshards), strict=True)
    chosen = [[where(is_first, a, b) for a, b in zip(*pair, strict=True)] for pair in pairs]
    return _Chain(where(is_first, one.price, other.price), *chosen)


def linear_bytes(
    num_tokens: N,
    in_size: N,
    out_size: N,
    num_members: N,
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
    num_tokens: N,
    query_size: N,
    key_value_size: N,
    num_members: N,
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


def forward_prefetched_s(
    num_members: N, round_compute_s: N, round_link_s: N, round_hbm_s: N
) -> StreamTime:
    """Forward pass whose first sub-tensors left early: max(N max(t_c, t_h), (N - 1) t_m) [s].

    A tensor that exists beforehand (weights, not activations) may start in the last round of the
    operator before, and links then run beside all N rounds. Parameters as :func:`forward_s`.

    Source: derived; the fully pipelined bound of the same schedule.
    Assumes: two streamed operators in a row, or an unstreamed one of at least one round before.
    """
    local_s = larger(round_compute_s, round_hbm_s)
    exposed_s = positive_part((num_members - 1) * round_link_s - num_members * local_s)
    return stream_time(num_members, round_compute_s, local_s, exposed_s)


def bandwidth_fraction(message_bytes: N, message_half_bytes: N) -> N:
    """Share of the bandwidth that a message reaches: m / (m + m_half).

    Source: Hockney 1994 (Parallel Computing 20(3)), half-performance length.
    """
    return message_bytes / (message_bytes + message_half_bytes)
