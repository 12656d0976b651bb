"""The cost of a stream of sub-tensors for one operator: rounds of compute, link and memory.

N members run N rounds; a sub-tensor of each round comes from a neighbour while the round before
computes. All functions take numbers or columns. No collectives and no pipeline live here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from meshwright.base.arrays import Num, ceil_div, larger, positive_part, smaller, where


@dataclass(frozen=True)
class StreamTime:
    """Time of one operator under a stream [s], in parts that sum to the total."""

    compute_s: Num
    """Time of the matrix products alone."""
    exposed_hbm_s: Num
    """Time of the device memory beyond the products [s]."""
    exposed_stream_s: Num
    """Time of the links beyond products and device memory [s]."""

    @property
    def total_s(self) -> Num:
        """Time of the operator [s]: the sum of the parts."""
        return self.compute_s + self.exposed_hbm_s + self.exposed_stream_s


def round_link_s(
    sub_tensor_bytes: Num,
    bandwidth_bytes_per_s: Num,
    latency_s: Num,
    message_half_bytes: Num,
    *,
    num_hops: Num = 1,
    num_parts: Num = 1,
    num_chunks: Num = 1,
    store_and_forward: bool = True,
) -> Num:
    """Return the seconds in which the slowest link of a round passes its sub-tensor on.

    A message of m bytes occupies a link for o = (m + m_half) / B and arrives a latency later.
    c messages that follow one another over k links take c o + k alpha where relays cut through, and
    (c + k - 1) o + k alpha where each relay stores a message whole: relays work side by side.

    Parameters
    ----------
    sub_tensor_bytes
        Part of one member in the stream: 1 / N of the streamed tensor [bytes].
    bandwidth_bytes_per_s
        Bandwidth of one link in one direction [bytes/s].
    latency_s
        Latency of one hop [s].
    message_half_bytes
        Message size that reaches half of the bandwidth [bytes].
    num_hops
        Links between neighbours of the stream: 1 on a line, N - 1 at the wrap of a ring in a line.
    num_parts, num_chunks
        Pieces of a sub-tensor: sent at once in several directions; messages one after the other.
    store_and_forward
        A device between two neighbours receives a message whole before it passes it on; otherwise
        (cut-through) only the latency counts once for each hop.

    Source: alpha-beta model with the half-performance message length of Hockney 1994 (Parallel
    Computing 20(3)); messages and hops derived, equal to a replay of their events.
    """
    occupied_s = (sub_tensor_bytes / (num_parts * num_chunks) + message_half_bytes) / (
        bandwidth_bytes_per_s
    )
    num_stores = num_hops - 1 if store_and_forward else 0
    return (num_chunks + num_stores) * occupied_s + num_hops * latency_s


def forward_s(
    num_members: Num, round_compute_s: Num, round_link_s: Num, round_hbm_s: Num
) -> StreamTime:
    """Return the time of a forward pass [s]: (N - 1) max(t_c, t_m, t_h) + max(t_c, t_h).

    The last round computes only: nothing needs to arrive after it.

    Parameters
    ----------
    num_members
        Members of the stream, N; one member streams nothing.
    round_compute_s
        Matrix product of one member in one round: 1 / N of its share of the operator [s].
    round_link_s
        Seconds from :func:`round_link_s`.
    round_hbm_s
        Device-memory traffic of one member in one round [s].

    Source: derived from the schedule, one sub-tensor per directed link and round; the round
    model of TATP in TEMP (arXiv 2512.14256) with the memory bound added.
    """
    local_s = larger(round_compute_s, round_hbm_s)
    exposed_s = (num_members - 1) * positive_part(round_link_s - local_s)
    return stream_time(num_members, round_compute_s, local_s, exposed_s)


def backward_s(
    num_members: Num,
    round_compute_s: Num,
    round_link_s: Num,
    round_accumulator_s: Num,
    round_hbm_s: Num,
    num_shared_rounds: Num = np.inf,
) -> StreamTime:
    """Return the time of a backward pass [s]: input and weight gradient in one stream.

    max(t_c, t_m) + (N - 2) max(t_c, t_m + t_g) + max(t_c, t_g), each also bounded by t_h: the
    tensor streams again in rounds 0 .. N - 2, gradient accumulators in rounds 1 .. N - 1. Rounds in
    which they use different links cost max(t_c, t_m, t_g) instead of t_m + t_g.

    Parameters
    ----------
    num_members
        Members of the stream, N; one member streams nothing.
    round_compute_s
        Both matrix products of one member in one round: twice that of a forward round [s].
    round_link_s
        Time of the streamed sub-tensor on its link [s].
    round_accumulator_s
        Time of the gradient accumulator on the same link [s].
    round_hbm_s
        Device-memory traffic of one member in one backward round [s].
    num_shared_rounds
        Rounds in which both meet on a link, from the stream's ``num_shared_rounds(N)``; all but
        the first and the last when not given.

    Source: derived: the gradient stream is the forward schedule run backwards in time.
    """
    local_s = larger(round_compute_s, round_hbm_s)
    outer = smaller(num_members - 1, 1.0)
    inner = positive_part(num_members - 2)
    shared = smaller(inner, num_shared_rounds)
    longer_s = larger(round_link_s, round_accumulator_s)
    exposed_s = (
        outer * positive_part(round_link_s - local_s)
        + shared * positive_part(round_link_s + round_accumulator_s - local_s)
        + (inner - shared) * positive_part(longer_s - local_s)
        + outer * positive_part(round_accumulator_s - local_s)
    )
    return stream_time(num_members, round_compute_s, local_s, exposed_s)


def exchange_s(
    num_members: Num,
    round_compute_s: Num,
    round_link_s: Num,
    round_accumulator_s: Num,
    round_hbm_s: Num,
    num_rounds: Num,
) -> StreamTime:
    """Return the time of backward attention [s]: items stream past, and sums of partials return.

    Of R rounds the first N compute; items move in rounds 0 .. N - 2, accumulators in the last
    N - 1 rounds, those after the computation alone. Rounds with both cost max(t_c, t_m + t_g).

    Parameters
    ----------
    round_compute_s
        Computation of one member with one item [s].
    num_rounds
        R, from the stream's ``num_exchange_rounds(N)``.

    Others as :func:`backward_s`.

    Source: derived; equal to a replay of the rounds.
    """
    local_s = larger(round_compute_s, round_hbm_s)
    shared = positive_part(2 * num_members - 2 - num_rounds)
    under_compute = positive_part(2 * num_members - 1 - num_rounds)
    exposed_s = (
        (num_members - 1 - shared) * positive_part(round_link_s - local_s)
        + shared * positive_part(round_link_s + round_accumulator_s - local_s)
        + (under_compute - shared) * positive_part(round_accumulator_s - local_s)
        + (num_rounds - num_members) * round_accumulator_s
    )
    return stream_time(num_members, round_compute_s, local_s, exposed_s)


def product_forward_s(
    num_rows: Num,
    num_columns: Num,
    round_compute_s: Num,
    round_input_s: Num,
    round_weight_s: Num,
    round_hbm_s: Num,
    round_sum_s: Num = 0.0,
) -> StreamTime:
    """Return the time of the forward pass of a product stream on r x c devices [s].

    With t_l = max(t_c, t_h): the first c rounds end after max((c - 1) max(t_l, t_x) + t_l, t_w),
    the next r - 2 times c rounds each after max(c t_l, t_w), the last c rounds compute only. In a
    row layer no inputs travel; accumulators of its output do in the last c rounds, which then take
    (c - 1) max(t_l, t_y) + t_l.

    Parameters
    ----------
    num_rows, num_columns
        Weights stream along the columns, among r members; inputs along the rows, among c.
    round_compute_s
        One of the r c products of a member [s].
    round_input_s, round_weight_s
        Time of a sub-input and of a sub-weight on its link, :func:`round_link_s` [s].
    round_hbm_s
        Device-memory traffic of one member in one round [s].
    round_sum_s
        Time t_y of an accumulator of the output on its link; 0 where inputs travel [s].

    Source: derived; equal to a replay of the rounds.
    """
    local_s = larger(round_compute_s, round_hbm_s)
    input_s = (num_columns - 1) * positive_part(round_input_s - local_s)
    sum_s = (num_columns - 1) * positive_part(round_sum_s - local_s)
    outer_s = num_columns * local_s
    weight_s = smaller(num_rows - 1, 1.0) * positive_part(round_weight_s - outer_s - input_s)
    more_s = positive_part(num_rows - 2) * positive_part(round_weight_s - outer_s)
    members = num_rows * num_columns
    return stream_time(members, round_compute_s, local_s, input_s + weight_s + more_s + sum_s)


def product_backward_s(
    num_rows: Num,
    num_columns: Num,
    round_compute_s: Num,
    round_input_s: Num,
    round_weight_s: Num,
    round_input_sum_s: Num,
    round_weight_sum_s: Num,
    round_hbm_s: Num,
    num_shared_rounds: Num = np.inf,
) -> StreamTime:
    """Return the time of the backward pass of a product stream on r x c devices [s].

    In units of c rounds: max(c t_l + (c - 1) (t_x - t_l)+, t_w), then r - 2 times
    max(c t_l, t_w + t_gw), then max(c t_l + (c - 1) (t_gx - t_l)+, t_gw). Both tensors stream
    again, accumulators of dW in all but the first c rounds, those of dX in the last c. One row is
    :func:`backward_s` of the inputs. In a row layer gradients of the output take the place of the
    inputs, and nothing that of dX.

    Parameters
    ----------
    round_compute_s
        Both products of one round [s].
    round_input_sum_s, round_weight_sum_s
        Times t_gx and t_gw of an accumulator of dX and of dW on its link [s].
    num_shared_rounds
        Shared rounds of the columns, as in :func:`backward_s`.

    Others as :func:`product_forward_s`.

    Source: derived; equal to a replay of the rounds.
    """
    local_s = larger(round_compute_s, round_hbm_s)
    outer_s = num_columns * local_s
    later_columns = num_columns - 1
    input_s = later_columns * positive_part(round_input_s - local_s)
    input_sum_s = later_columns * positive_part(round_input_sum_s - local_s)
    first_s = larger(input_s, round_weight_s - outer_s)
    inner = positive_part(num_rows - 2)
    shared = smaller(inner, num_shared_rounds)
    longer_s = larger(round_weight_s, round_weight_sum_s)
    middle_s = shared * positive_part(round_weight_s + round_weight_sum_s - outer_s)
    middle_s = middle_s + (inner - shared) * positive_part(longer_s - outer_s)
    last_s = larger(input_sum_s, round_weight_sum_s - outer_s)
    exposed_s = first_s + middle_s + last_s
    one_row = backward_s(
        num_columns, round_compute_s, round_input_s, round_input_sum_s, round_hbm_s
    )
    exposed_s = where(num_rows > 1, exposed_s, one_row.exposed_stream_s)
    return stream_time(num_rows * num_columns, round_compute_s, local_s, exposed_s)


def stream_time(num_members: Num, round_compute_s: Num, local_s: Num, exposed_s: Num) -> StreamTime:
    """Return the parts: N rounds of compute, the time memory adds, the time the links add."""
    return StreamTime(
        compute_s=num_members * round_compute_s,
        exposed_hbm_s=num_members * (local_s - round_compute_s),
        exposed_stream_s=exposed_s,
    )


def stream_buffer_bytes(
    sub_tensor_bytes: Num, num_buffers: Num, accumulator_ratio: Num = 0.0, num_chunks: Num = 1
) -> Num:
    """Return the on-chip bytes of sub-tensors in flight: (4 + h) m (1 + e_g / e) / c.

    Parameters
    ----------
    sub_tensor_bytes
        1 / N of the streamed tensor [bytes].
    num_buffers
        Sub-tensors held and arriving, from the stream's ``buffers(N).with_incoming``: 4 + h.
    accumulator_ratio
        Bytes of an accumulator over those of the streamed word: 0 forward, e_g / e backward.
    num_chunks
        Chunks a sub-tensor is cut into; one chunk of each is on chip at a time.

    Source: derived; counted by the replay of the schedule.
    """
    return num_buffers * sub_tensor_bytes * (1 + accumulator_ratio) / num_chunks


def round_traffic_bytes(tensor_bytes: Num, kept_share: Num, num_rounds: Num) -> Num:
    """Return the main-memory bytes of one round of a tensor that all rounds use.

    T (1 - f + f / N): what stays on chip is moved once in N rounds, the rest in each round. Of
    70 MB in 12 rounds with 4/7 on chip, 30 + 40 / 12 = 33.3 MB move in a round.

    Parameters
    ----------
    tensor_bytes
        What one round moves where nothing stays, T [bytes].
    kept_share
        Share that stays on chip, f, in [0, 1] [1].
    num_rounds
        Rounds that use the tensor, N [1].

    Source: derived; bytes that do not fit cross the memory again.
    """
    return tensor_bytes * (1.0 - kept_share + kept_share / num_rounds)


def relay_bytes(sub_tensor_bytes: Num, num_members: Num, num_parts: Num = 1) -> Num:
    """Return the main-memory bytes of a round that relays sub-tensors through it: (2 n + 1) m.

    Each of the n sub-tensors that enter a device in a round is written and read to be sent on,
    and the one in use is read. n = min(N - 1, 2) / parts: two on a line, and on a ring laid into
    one, since sends of several hops pass through; one (two halves) on a cycle. So memory of rate M
    caps the stream at M / 5 in each direction of a line, at M / 3 on a cycle.

    Parameters
    ----------
    sub_tensor_bytes
        1 / N of the streamed tensor, accumulators included where they travel too [bytes].
    num_members, num_parts
        Members of the stream, and pieces that travel in several directions.

    Source: derived; equal to the most that the enumerated rounds ask of a device.
    """
    entering = smaller(num_members - 1, 2.0) / num_parts
    return (2 * entering + 1) * sub_tensor_bytes


def num_chunks_to_fit(buffer_bytes: Num, sram_bytes: Num, resident_bytes: Num) -> Num:
    """Return the fewest chunks for which the buffers of a stream fit on chip; inf without any.

    ceil(buffers / (SRAM - resident)), at least one.

    Parameters
    ----------
    buffer_bytes
        Bytes from :func:`stream_buffer_bytes` with one chunk.
    sram_bytes
        On-chip memory of a device [bytes].
    resident_bytes
        Resident bytes next to the stream: input rows and output tile [bytes].
    """
    free_bytes = sram_bytes - resident_bytes
    chunks = larger(ceil_div(buffer_bytes, larger(free_bytes, 1.0)), 1.0)
    return where(free_bytes > 0, chunks, np.inf)


class StreamedTensor(IntEnum):
    """Tensor that travels for an operator."""

    WEIGHTS = 0
    """Or keys and values: tokens stay split."""
    INPUTS = 1
    """Inputs, from tokens to columns."""
    SUMS = 2
    """Accumulators of the output: from columns to tokens."""
    NOTHING = 3
    """Columns stay split."""
