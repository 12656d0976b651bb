"""Products on arrays that a network feeds: figures by hand, limits, and chips that state it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_chip
from meshwright.cost.operator import CoreArray, blocked_product_s, device_rates, matmul_compute_s
from meshwright.spec.workload import Precision, SoftwareStack

CORES = CoreArray(num_cores=4, rows=8, columns=8, noc_bytes_per_s=1e12, sram_bytes=1e6)
PEAK = 2 * 4 * 8 * 8 * 1e9
"""At a clock of 1 GHz [FLOP/s]."""
SIZES = st.integers(1, 4000).map(float)


def test_one_block_takes_its_cycles_and_filling_the_array():
    seconds = blocked_product_s(1.0, 8.0, 100.0, 8.0, PEAK, 2.0, CORES)
    assert seconds == pytest.approx((100 + 8 + 8) * 1e-9)


def test_larger_blocks_fill_less_often():
    # 64 x 64 on four cores: one wave of 32 x 32 blocks is 16 arrays of 100 cycles, filled once
    seconds = blocked_product_s(1.0, 64.0, 100.0, 64.0, PEAK, 2.0, CORES)
    assert seconds == pytest.approx((16 * 100 + 16) * 1e-9)


def test_a_slow_network_sets_the_pace():
    slow = replace(CORES, noc_bytes_per_s=1e9)
    # the best block is the largest: (32 + 32) x 100 words of 2 bytes in one wave
    seconds = blocked_product_s(1.0, 64.0, 100.0, 64.0, PEAK, 2.0, slow)
    assert seconds == pytest.approx(64 * 100 * 2 / 1e9)


def test_little_memory_leaves_the_smallest_block():
    assert replace(CORES, sram_bytes=600.0).blocks == ((8, 8),)
    assert (32, 32) in CORES.blocks


@given(SIZES, SIZES, SIZES)
def test_no_product_beats_the_peak_and_a_faster_network_never_hurts(rows, inner, columns):
    seconds = blocked_product_s(1.0, rows, inner, columns, PEAK, 2.0, CORES)
    assert seconds >= 2.0 * rows * inner * columns / PEAK
    fast = replace(CORES, noc_bytes_per_s=2e12)
    assert blocked_product_s(1.0, rows, inner, columns, PEAK, 2.0, fast) <= seconds


def test_columns_are_priced_like_numbers():
    rows = np.array([5.0, 64.0, 900.0])
    column = blocked_product_s(1.0, rows, 70.0, 33.0, PEAK, 2.0, CORES)
    alone = [blocked_product_s(1.0, row, 70.0, 33.0, PEAK, 2.0, CORES) for row in rows]
    assert column.tolist() == alone


def engine_of(chip):
    precision = Precision(matmul="bf16", activation="bf16")
    return device_rates(chip, precision, SoftwareStack(), load_calibration(chip.family))


def test_a_chip_that_states_its_network_needs_no_constant():
    stated = load_chip("TEMP-die")
    chip = stated.model_copy(update={"noc_bytes_per_s": None})
    before, after = engine_of(chip), engine_of(stated)
    assert before.core_array is None
    assert after.matmul_flops_per_s == 1800e12
    shape = (1.0, 8192.0, 8192.0, 8192.0)
    ideal_s = 2.0 * 8192.0**3 / 1800e12
    large = ideal_s / matmul_compute_s(*shape, after.matmul_flops_per_s, after)
    assert 0.9 < large < 1.0
    narrow = (1.0, 128.0, 8192.0, 8192.0)
    share = ideal_s / 64 / matmul_compute_s(*narrow, after.matmul_flops_per_s, after)
    assert share < large
