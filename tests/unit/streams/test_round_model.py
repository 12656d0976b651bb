"""Hand-derived prices of tensor streams, and the table of the best number of members."""

import numpy as np
import pytest
from oracles.stream_transfers import bandwidth_fraction, forward_prefetched_s

from meshwright.streams.round_model import (
    backward_s,
    forward_s,
    num_chunks_to_fit,
    product_forward_s,
    relay_bytes,
    round_link_s,
    stream_buffer_bytes,
)

# the evaluation die of TEMP (arXiv 2512.14256): 1800 TFLOP/s at 70 %, 200 ns a hop
FLOPS_PER_S, LATENCY_S = 0.7 * 1.8e15, 200e-9
HIDDEN = 12288.0


@pytest.mark.parametrize(
    ("hops", "stores", "expected_us"),
    [
        (7, True, 7 * (8 + 0.2)),  # the wrap of a ring in a line of 8, each relay stores first
        (7, False, 8 + 7 * 0.2),
        (2, False, 8 + 2 * 0.2),  # folded ring
        (2, True, 2 * (8 + 0.2)),
        (1, True, 8 + 0.2),  # neighbours on the line
    ],
)
def test_sixteen_megabytes_at_two_terabytes_per_second(hops, stores, expected_us):
    # 16 MB / 2 TB/s = 8 us
    time_s = round_link_s(16e6, 2e12, LATENCY_S, 0.0, num_hops=hops, store_and_forward=stores)
    assert time_s == pytest.approx(expected_us * 1e-6)


def test_halves_both_ways_take_half_the_bytes():
    # 8 MB / 2 TB/s = 4 us, and one latency
    assert round_link_s(16e6, 2e12, LATENCY_S, 0.0, num_parts=2) == pytest.approx(4.2e-6)


def test_each_chunk_pays_its_overhead_and_the_last_one_the_latency():
    # two messages of (8 MB + 4 MB) / 2 TB/s, then 0.2 us
    time_s = round_link_s(16e6, 2e12, LATENCY_S, 4e6, num_chunks=2)
    assert time_s == pytest.approx(12.2e-6)


def test_chunks_pass_relays_side_by_side():
    # 7 hops of 16 MB in 8 chunks: 14 messages of 1 us in place of 7 of 8 us, and 7 latencies
    time_s = round_link_s(16e6, 2e12, LATENCY_S, 0.0, num_hops=7, num_chunks=8)
    assert time_s == pytest.approx(14e-6 + 7 * 0.2e-6)


def best_members(out_size, num_tokens, bandwidth_bytes_per_s, message_half_bytes):
    """Return the fastest of 1 .. 64 members for one forward layer, the smaller tensor streamed."""
    members = np.arange(1, 65.0)
    streamed = 2 * HIDDEN * min(out_size, num_tokens) / members
    compute_s = 2 * num_tokens * HIDDEN * out_size / (members * members * FLOPS_PER_S)
    link_s = round_link_s(streamed, bandwidth_bytes_per_s, LATENCY_S, message_half_bytes)
    return members[forward_s(members, compute_s, link_s, 0 * members).total_s.argmin()]


@pytest.mark.parametrize(
    ("out_size", "num_tokens", "rows"),
    [
        (12288.0, 2048.0, ((28, 16, 10), (18, 11, 7), (12, 7, 4), (9, 4, 3))),
        (12288.0, 8192.0, ((35, 25, 17), (21, 15, 11), (16, 9, 7), (9, 6, 4))),
        (12288.0, 32768.0, ((64, 56, 35), (49, 35, 23), (31, 21, 15), (22, 12, 9))),
        (49152.0, 2048.0, ((64, 36, 20), (55, 25, 14), (35, 17, 10), (21, 11, 7))),
    ],
)
def test_best_number_of_members_of_a_175b_layer(out_size, num_tokens, rows):
    """Links of 4, 2, 1, 0.5 TB/s, messages at half speed at 0, 4, 16 MB.

    Computed independently from T(N) = (N - 1) max(t_c, t_m) + t_c with
    t_c = 2 S H F / (N^2 P), t_m = (2 H min(F, S) / N + m_half) / B + alpha.
    """
    found = tuple(
        tuple(best_members(out_size, num_tokens, rate, half) for half in (0.0, 4e6, 16e6))
        for rate in (4e12, 2e12, 1e12, 0.5e12)
    )
    assert found == rows


def test_forward_rounds_by_hand():
    # 4 rounds; three are bound by the link (3 s), the last by memory (2 s): 11 s
    time = forward_s(4.0, 1.0, 3.0, 2.0)
    assert (time.compute_s, time.exposed_hbm_s, time.exposed_stream_s) == (4, 4, 3)
    assert time.total_s == 11


def test_prefetched_forward_by_hand():
    # max(4 * 2, 3 * 3) = 9 s: the link is busy all the time
    assert forward_prefetched_s(4.0, 1.0, 3.0, 2.0).total_s == 9
    # max(4 * 3, 3 * 3) = 12 s: all hidden
    assert forward_prefetched_s(4.0, 3.0, 3.0, 2.0).exposed_stream_s == 0


def test_backward_rounds_by_hand():
    # max(2, 3) + 2 max(2, 3 + 4) + max(2, 4) = 3 + 14 + 4
    time = backward_s(4.0, 2.0, 3.0, 4.0, 1.0)
    assert time.total_s == 21
    assert time.compute_s == 8
    # two members: no round has both directions: max(2, 3) + max(2, 4)
    assert backward_s(2.0, 2.0, 3.0, 4.0, 1.0).total_s == 7


def test_backward_rounds_that_share_no_link_by_hand():
    # max(2, 3) + 2 max(2, 3, 4) + max(2, 4) = 3 + 8 + 4, and with one shared round 3 + 7 + 4 + 4
    assert backward_s(4.0, 2.0, 3.0, 4.0, 1.0, num_shared_rounds=0.0).total_s == 15
    assert backward_s(4.0, 2.0, 3.0, 4.0, 1.0, num_shared_rounds=1.0).total_s == 18


@pytest.mark.parametrize("hbm_s", [0.5, 2.0])
def test_one_member_streams_nothing(hbm_s):
    expected = max(1.0, hbm_s)
    assert forward_s(1.0, 1.0, 9.0, hbm_s).total_s == expected
    assert forward_prefetched_s(1.0, 1.0, 9.0, hbm_s).total_s == expected
    assert backward_s(1.0, 1.0, 9.0, 9.0, hbm_s).total_s == expected


def test_sram_of_a_square_175b_layer_on_eight_dies():
    # W = 2 * 12288^2 = 302 MB, m = 37.7 MB; X_i 2 * 1024 * 12288 = 25.2 MB, Y_ij 2 * 1024 * 1536
    sub_tensor = 2 * HIDDEN * HIDDEN / 8
    input_bytes, tile_bytes = 2 * 1024 * HIDDEN, 2 * 1024 * 1536
    forward = stream_buffer_bytes(sub_tensor, 4.0)
    assert forward + input_bytes == pytest.approx(176e6, rel=5e-3)
    assert forward + input_bytes + tile_bytes == pytest.approx(179e6, rel=5e-3)
    # backward with 4-byte accumulators of 2-byte weights: 4 m (1 + 2) = 12 m
    backward = stream_buffer_bytes(sub_tensor, 4.0, 4 / 2)
    assert backward == 12 * sub_tensor
    assert backward == pytest.approx(453e6, rel=1e-3)
    # eight chunks of 4.7 MB hold 57 MB of an 80 MB memory, and reach 54 % of the bandwidth
    assert stream_buffer_bytes(sub_tensor, 4.0, 2.0, 8.0) == backward / 8
    assert bandwidth_fraction(sub_tensor / 8, 4e6) == pytest.approx(0.54, abs=5e-3)
    assert num_chunks_to_fit(backward, 80e6, 0.0) == 6  # 453 / 80 = 5.7
    assert num_chunks_to_fit(backward, 80e6, input_bytes) == 9  # 453 / 54.8 = 8.3


def test_chunks_are_at_least_one_and_infinite_where_nothing_fits():
    chunks = num_chunks_to_fit(np.array([10.0, 10.0, 100.0]), 80.0, np.array([0.0, 80.0, 40.0]))
    assert chunks.tolist() == [1, np.inf, 3]


def test_relay_through_the_main_memory():
    # two enter, are written and read, and one is used; on a cycle two halves enter
    assert relay_bytes(3.0, 8.0) == 15
    assert relay_bytes(3.0, 8.0, 2.0) == 9
    assert relay_bytes(3.0, 2.0) == 9
    # 1 TB/s of memory: a round of 37.7 MB lasts 189 us, so 0.2 TB/s of each direction
    assert 37.7e6 / (relay_bytes(37.7e6, 8.0) / 1e12) == pytest.approx(0.2e12)


def test_product_stream_by_hand():
    # 2 x 3: max(2 * max(1, 2) + 1, 7) = 7, then 3 rounds of compute
    time = product_forward_s(2.0, 3.0, 1.0, 2.0, 7.0, 0.0)
    assert (time.compute_s, time.exposed_stream_s, time.total_s) == (6, 4, 10)
    # 3 x 3, all hidden
    assert product_forward_s(3.0, 3.0, 1.0, 1.0, 3.0, 0.0).total_s == 9
    # one row: input streaming alone
    alone = forward_s(4.0, 1.0, 3.0, 0.0).total_s
    assert product_forward_s(1.0, 4.0, 1.0, 3.0, 9.0, 0.0).total_s == alone
    assert product_forward_s(4.0, 1.0, 1.0, 9.0, 3.0, 0.0).total_s == alone
