"""Bytes that a stream moves, and from where on they hide behind the computation.

A linear layer is Y (S x F) = X (S x H) W (H x F): S tokens of the whole group, H in, F out. Each
member of N receives (N - 1) / N of the streamed tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.base.arrays import Num


def received_bytes(tensor_bytes: Num, num_members: Num) -> Num:
    """Bytes that one member receives when a tensor streams once: rho * size, rho = (N - 1) / N."""
    return tensor_bytes * (num_members - 1) / num_members


def training_bytes_per_element(word_bytes: Num, accumulator_bytes: Num) -> Num:
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


def weights_are_cheaper(
    num_tokens: Num, in_size: Num, out_size: Num, weight_bytes: Num, input_bytes: Num
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


def attention_forward_bytes(
    num_tokens: Num, key_value_size: Num, word_bytes: Num, num_members: Num
) -> Num:
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
    num_tokens: Num,
    key_value_size: Num,
    word_bytes: Num,
    accumulator_bytes: Num,
    num_members: Num,
) -> Num:
    """Bytes of K, V and of dK, dV that a member receives: 2 rho (e + e_acc) S h_kv [bytes].

    Parameters as :func:`attention_forward_bytes`; ``accumulator_bytes`` of dK and dV [bytes].
    """
    moved_bytes = 2 * (word_bytes + accumulator_bytes) * num_tokens * key_value_size
    return received_bytes(moved_bytes, num_members)


def crossing_members(
    stationary_size: Num, bandwidth_bytes_per_s: Num, word_bytes: Num, flops_per_s: Num
) -> Num:
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
    word_bytes: Num, gradient_bytes: Num, bandwidth_bytes_per_s: Num, flops_per_s: Num
) -> Num:
    """Tokens per device and micro-batch from which weight streaming hides [tokens].

    (2 e + e_g) P eta / (6 B), whatever the number of members: with s tokens per device a training
    step takes 6 s H F / (P eta) on a device and moves (2 e + e_g) H F on its links.
    """
    moved_bytes = training_bytes_per_element(word_bytes, gradient_bytes)
    return moved_bytes * flops_per_s / (6 * bandwidth_bytes_per_s)


def input_streaming_bytes_per_token(
    hidden_size: Num, word_bytes: Num, accumulator_bytes: Num
) -> Num:
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
    hidden_size: Num, bandwidth_bytes_per_s: Num, flops_per_s: Num, accumulator_bytes: Any = 2.0
) -> Num:
    """Members up to which input streaming hides on a transformer block.

    72 h B / ((6 e + 4 e_acc) P eta) with two-byte words, 3.6 h B / (P eta) with accumulators of
    two bytes as well: the four layers of a block have 12 h^2 weights, so a token takes
    72 h^2 / N FLOPs of each member in a training step.
    """
    moved_bytes = input_streaming_bytes_per_token(hidden_size, 2.0, accumulator_bytes)
    work_flops = 72 * hidden_size * hidden_size
    members: Num = work_flops * bandwidth_bytes_per_s / (moved_bytes * flops_per_s)
    return members


def product_received_bytes(
    input_bytes: Num, weight_bytes: Num, num_rows: Num, num_columns: Num
) -> Num:
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


def square_break_even(num_members: Num) -> Num:
    """Return by how much X + W may exceed the smaller of both so that a square block moves less.

    (sqrt N - 1) (X + W) < (N - 1) min(X, W) exactly when X + W < (sqrt N + 1) min(X, W).
    """
    ratio: Num = np.sqrt(num_members) + 1
    return ratio
