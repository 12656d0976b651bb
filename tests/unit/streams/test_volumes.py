"""Hand-derived stream volumes and hiding limits."""

import pytest
from oracles.stream_transfers import (
    attention_backward_bytes,
    attention_forward_bytes,
    crossing_members,
    members_to_hide_inputs,
    received_bytes,
    tokens_to_hide_weights,
    training_bytes_per_element,
    weights_are_cheaper,
)

FLOPS_PER_S = 0.7 * 1.8e15


def test_received_share():
    assert received_bytes(800.0, 8.0) == 700
    assert received_bytes(800.0, 1.0) == 0


def test_training_moves_an_element_twice_and_its_gradient_once():
    assert training_bytes_per_element(2.0, 4.0) == 8


def test_the_smaller_tensor_streams():
    # equal bytes: weights iff F < S; Llama2-7B at 14k tokens, F = 4096 and 11008
    assert weights_are_cheaper(14336.0, 4096.0, 4096.0, 2.0, 2.0)
    assert weights_are_cheaper(14336.0, 4096.0, 11008.0, 2.0, 2.0)
    assert not weights_are_cheaper(8192.0, 4096.0, 11008.0, 2.0, 2.0)
    # 4-byte gradients against 2-byte accumulators: 11008 * 8 > 14336 * 6
    assert not weights_are_cheaper(14336.0, 4096.0, 11008.0, 8.0, 6.0)


def test_attention_volumes():
    # 8 members, S = 1000, h_kv = 100, two-byte words: 7/8 * 2 * 2 * 1e5 = 350 kB
    assert attention_forward_bytes(1000.0, 100.0, 2.0, 8.0) == pytest.approx(350e3)
    # K, V again (350 kB) and dK, dV in four bytes (700 kB)
    assert attention_backward_bytes(1000.0, 100.0, 2.0, 4.0, 8.0) == pytest.approx(1050e3)


@pytest.mark.parametrize(
    ("hidden_size", "num_tokens", "share"), [(12288.0, 2048.0, 0.028), (4096.0, 16384.0, 0.667)]
)
def test_keys_and_values_against_the_weights_of_a_gpt_block(hidden_size, num_tokens, share):
    # 2 S h over 12 h^2 = S / (6 h)
    keys_and_values = attention_forward_bytes(num_tokens, hidden_size, 2.0, 8.0)
    weights = received_bytes(2 * 12 * hidden_size * hidden_size, 8.0)
    assert keys_and_values / weights == pytest.approx(num_tokens / (6 * hidden_size))
    assert keys_and_values / weights == pytest.approx(share, abs=5e-4)


def test_crossing_point():
    # weights at S = 2048: 2 * 2048 * 2e12 / (2 * 1.26e15) = 3.25
    assert crossing_members(2048.0, 2e12, 2.0, FLOPS_PER_S) == pytest.approx(3.2508, abs=1e-4)


def test_hiding_limits_of_a_full_wafer():
    # (4 + 2) * 1.26e15 / (6 * 2e12) = 630, with four-byte gradients (4 + 4) / 6 of it
    assert tokens_to_hide_weights(2.0, 2.0, 2e12, FLOPS_PER_S) == pytest.approx(630)
    assert tokens_to_hide_weights(2.0, 4.0, 2e12, FLOPS_PER_S) == pytest.approx(840)
    # 3.6 * 4096 * 2e12 / 1.26e15 = 23.4; h = 12288: three times that
    assert members_to_hide_inputs(4096.0, 2e12, FLOPS_PER_S) == pytest.approx(23.4, abs=0.01)
    assert members_to_hide_inputs(12288.0, 2e12, FLOPS_PER_S) == pytest.approx(70.2, abs=0.02)
    # four-byte accumulators: 72 / (12 + 16) = 2.57 in place of 3.6
    assert members_to_hide_inputs(4096.0, 2e12, FLOPS_PER_S, 4.0) == pytest.approx(16.7, abs=0.02)
