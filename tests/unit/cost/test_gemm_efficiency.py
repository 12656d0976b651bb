"""Single operators on one device: tile waves, traffic, masks, launches; numbers by hand."""

import pytest

from meshwright.cost.operator import (
    DeviceRates,
    attended_fraction,
    attention_s,
    exposed_launch_s,
    matmul_compute_s,
    matmul_traffic_bytes,
    traffic_s,
)

ENGINE = DeviceRates(
    matmul_flops_per_s=1e12,
    logits_flops_per_s=1e12,
    attention_forward_flops_per_s=5e11,
    attention_backward_flops_per_s=4e11,
    memory_bytes_per_s=1e9,
    elementwise_bytes_per_s=5e8,
    launch_s=1e-5,
    host_s=1e-5,
    room_bytes=0.0,
    tile_rows=128.0,
    tile_columns=64.0,
    num_cores=4.0,
    activation_bytes=2.0,
    matmul_word_bytes=1.0,
)
TILE_FLOPS = 2 * 128 * 64


def test_full_waves_run_at_the_rate_of_large_products():
    # 512 x 128 outputs are 4 x 2 tiles, two waves of four: all FLOPs count, 2 * 512 * 100 * 128.
    time_s = matmul_compute_s(1.0, 512.0, 100.0, 128.0, 1e12, ENGINE)
    assert time_s == pytest.approx(2 * 512 * 100 * 128 / 1e12, rel=1e-15)


@pytest.mark.parametrize(
    ("count", "rows", "columns", "waves"),
    [
        (1.0, 1.0, 1.0, 1),  # one output pays a whole wave
        (1.0, 512.0, 64.0, 1),  # four tiles, one wave
        (1.0, 513.0, 64.0, 2),  # a fifth tile opens a second wave
        (1.0, 128.0, 65.0, 1),  # two tiles on four cores
        (3.0, 129.0, 64.0, 2),  # experts: 3 x 2 tiles in one kernel
    ],
)
def test_partial_tiles_and_waves_pay_whole_ones(count, rows, columns, waves):
    time_s = matmul_compute_s(count, rows, 100.0, columns, 1e12, ENGINE)
    assert time_s == pytest.approx(waves * 4 * TILE_FLOPS * 100 / 1e12, rel=1e-15)


def test_traffic_reads_both_operands_and_writes_the_result_once():
    # (3 x 5) @ (5 x 7), twice: 1 byte x (15 + 35) read, 2 bytes x 21 written.
    assert matmul_traffic_bytes(2.0, 3.0, 5.0, 7.0, 1.0, ENGINE) == 2 * (50 + 42)


@pytest.mark.parametrize(
    ("length", "window", "causal", "scores"),
    [
        (4.0, None, False, 16),
        (4.0, None, True, 1 + 2 + 3 + 4),
        (4.0, 2, True, 1 + 2 + 2 + 2),
        (4.0, 1, True, 4),
        (4.0, 9, True, 10),  # a window beyond the sequence hides nothing
    ],
)
def test_attended_fraction_counts_the_scores_that_are_computed(length, window, causal, scores):
    assert attended_fraction(length, window, causal) == pytest.approx(scores / 16, rel=1e-15)


def test_attention_takes_the_slower_of_arithmetic_and_traffic():
    assert attention_s(5e11, ENGINE.attention_forward_flops_per_s, 1e8, ENGINE).time_s == 1.0
    assert attention_s(5e10, ENGINE.attention_forward_flops_per_s, 1e9, ENGINE).time_s == 1.0
    assert attention_s(8e11, ENGINE.attention_backward_flops_per_s, 1e8, ENGINE).time_s == 2.0
    assert attention_s(8e10, ENGINE.attention_backward_flops_per_s, 3e9, ENGINE).time_s == 3.0


def test_memory_bound_work_and_launches():
    assert traffic_s(1e9, ENGINE) == 2.0
    # 30 kernels of 10 us need 300 us: 100 us beyond 200 us of work, nothing beyond 400 us.
    assert exposed_launch_s(2e-4, 30.0, ENGINE) == pytest.approx(1e-4)
    assert exposed_launch_s(4e-4, 30.0, ENGINE) == 0.0
