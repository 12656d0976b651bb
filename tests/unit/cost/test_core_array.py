"""Products on a mesh of cores: figures by hand, every link counted, limits, chips that state it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_chip
from meshwright.cost.operator import (
    BLOCKS_SHARE,
    CoreArray,
    blocked_product_s,
    device_rates,
    matmul_compute_s,
    matmul_traffic_bytes,
)
from meshwright.spec.system import ChipSpec
from meshwright.spec.workload import Precision, SoftwareStack

CORES = CoreArray(num_cores=6, rows=8, columns=8, noc_bytes_per_s=1e12, sums_bytes=4.0 * 32 * 32)
PEAK = 2 * 6 * 8 * 8 * 1e9
"""At a clock of 1 GHz [FLOP/s]."""
SIZES = st.integers(1, 4000).map(float)
DIE = load_chip("TEMP-die")


@pytest.mark.parametrize(
    ("number", "mesh"), [(1, (1, 1)), (2, (1, 2)), (64, (8, 8)), (89, (8, 11)), (110, (10, 11))]
)
def test_cores_stand_in_a_mesh_near_a_square(number, mesh):
    assert replace(CORES, num_cores=number).mesh == mesh


def test_one_tile_a_core_takes_its_cycles_and_filling_the_array():
    """2 x 3 cores, 16 x 100 by 100 x 24: one tile each, 100 cycles, 16 to fill and drain."""
    seconds = blocked_product_s(1.0, 16.0, 100.0, 24.0, PEAK, 2.0, CORES)
    assert seconds == pytest.approx((100 + 8 + 8) * 1e-9)


def test_few_outputs_split_the_inner_size():
    """8 x 1200 by 1200 x 24 has three tiles: two bands take 600 each and add 4 x 8 x 8 bytes."""
    seconds = blocked_product_s(1.0, 8.0, 1200.0, 24.0, PEAK, 2.0, CORES)
    assert seconds == pytest.approx((600 + 16) * 1e-9 + 4 * 8 * 8 / 1e12)


def test_a_slow_network_sets_the_pace():
    """64 x 100 by 100 x 96 on 2 x 3 cores: pieces of 32, so a link carries 32 x 100 words."""
    slow = replace(CORES, noc_bytes_per_s=1e9)
    seconds = blocked_product_s(1.0, 64.0, 100.0, 96.0, PEAK, 2.0, slow)
    assert seconds == pytest.approx(32 * 100 * 2 / 1e9)


def test_experts_take_a_band_each_or_turns():
    """Two products of 8 x 100 by 100 x 24: side by side in bands of three cores, 116 cycles."""
    seconds = blocked_product_s(2.0, 8.0, 100.0, 24.0, PEAK, 2.0, CORES)
    assert seconds == pytest.approx((100 + 16) * 1e-9)


def test_the_layer_of_the_paper_on_one_of_eight_dies():
    """256 x 12288 by 12288 x 1536 on 10 x 11 cores, by hand.

    Bands of 2 x 11, five parts of the inner size (2458): pieces of 128 x 140. The left operand
    stays: 2 x 39 tiles, 140 cycles each, and 128 for filling at 1800e12 / (2 * 110 * 64^2) Hz.
    Sums of the five bands: 4 x 2 x 128 x 140 bytes at 256 GB/s.
    """
    clock_hz = 1800e12 / (2 * 110 * 64 * 64)
    expected = (2 * 39 * 140 + 128) / clock_hz + 4 * 2 * 128 * 140 / 256e9
    rates = engine_of(DIE)
    seconds = matmul_compute_s(1.0, 256.0, 12288.0, 1536.0, rates.matmul_flops_per_s, rates)
    assert seconds == pytest.approx(expected)
    assert expected == pytest.approx(6.09e-6, rel=1e-3)


def test_a_slow_sram_sets_the_pace():
    """256 x 12288 by 12288 x 1536 in BF16 are 44.8 MB: 11.2 us at 4 TB/s, above 6.09 us of cores.

    At the 16 TB/s of the die they take 2.8 us, which the cores hide.
    """
    slow = replace(engine_of(DIE).core_array, sram_bytes_per_s=4e12)
    size = 256.0, 12288.0, 1536.0
    moved_bytes = 2.0 * (256 * 12288 + 12288 * 1536 + 256 * 1536)
    assert blocked_product_s(1.0, *size, 1800e12, 2.0, slow) == moved_bytes / 4e12
    assert moved_bytes / 4e12 == pytest.approx(11.2e-6, rel=1e-2)
    assert blocked_product_s(3.0, *size, 1800e12, 2.0, slow) == 3.0 * moved_bytes / 4e12


def most_on_a_link(sides, m, n, k, sums):
    """Return the most words that a link carries, each multicast sent along its links.

    The left operand of a row is spread over its cores, m k words; each sends its share to both
    ends. Columns alike. Bands above each other pass their sums down, core to core.
    """
    rows, columns, parts = sides
    load = dict.fromkeys(product(range(rows * parts), range(columns), "EWSN"), 0.0)
    for row, column in product(range(rows * parts), range(columns)):
        for there in range(columns):
            if there < column:
                load[row, there + 1, "W"] += m * k / columns
            if there > column:
                load[row, there - 1, "E"] += m * k / columns
        first = row // rows * rows
        for there in range(first, first + rows):
            if there < row:
                load[there + 1, column, "N"] += k * n / rows
            if there > row:
                load[there - 1, column, "S"] += k * n / rows
    operands = max(load.values())
    added = dict.fromkeys(load, 0.0)
    for row, column in product(range(rows * (parts - 1)), range(columns)):
        for hop in range(rows):
            added[row + hop, column, "S"] += m * n
    return operands, sums * max(added.values())


@pytest.mark.parametrize("band", [1, 2, 5, 10])
def test_a_link_carries_no_more_than_is_charged(band):
    """Every link of the 10 x 11 mesh, one by one, in each layout that has columns along rows."""
    die = engine_of(DIE).core_array
    m, n, k = 128.0, 100.0, 640.0
    operands, added = most_on_a_link((band, 11, 10 // band), m, n, k, sums=4.0)
    charged = k * max(m, n)
    assert 10 / 11 * charged >= operands >= 0.5 * charged if band == 1 else operands <= charged
    assert added == (4.0 * band * m * n if band < 10 else 0.0)
    assert [band, 11, 10 // band, band] in die.layouts.T.tolist()


@given(SIZES, SIZES, SIZES)
def test_no_product_beats_the_peak_and_a_faster_network_never_hurts(rows, inner, columns):
    seconds = blocked_product_s(1.0, rows, inner, columns, PEAK, 2.0, CORES)
    assert seconds >= 2.0 * rows * inner * columns / PEAK
    fast = replace(CORES, noc_bytes_per_s=2e12)
    assert blocked_product_s(1.0, rows, inner, columns, PEAK, 2.0, fast) <= seconds
    roomy = replace(CORES, sums_bytes=1e6)
    assert blocked_product_s(1.0, rows, inner, columns, PEAK, 2.0, roomy) <= seconds


def test_columns_are_priced_like_numbers():
    rows = np.array([5.0, 64.0, 900.0])
    column = blocked_product_s(1.0, rows, 70.0, 33.0, PEAK, 2.0, CORES)
    alone = [blocked_product_s(1.0, row, 70.0, 33.0, PEAK, 2.0, CORES) for row in rows]
    assert column.tolist() == alone
    counts = blocked_product_s(np.array([1.0, 3.0]), 9.0, 70.0, 33.0, PEAK, 2.0, CORES)
    alone = [blocked_product_s(count, 9.0, 70.0, 33.0, PEAK, 2.0, CORES) for count in (1.0, 3.0)]
    assert counts.tolist() == alone


def engine_of(chip):
    precision = Precision(matmul="bf16", activation="bf16")
    return device_rates(chip, precision, SoftwareStack(), load_calibration(chip.family))


def test_a_chip_that_states_its_network_needs_no_constant():
    chip = DIE.model_copy(update={"noc_bytes_per_s": None})
    before, after = engine_of(chip), engine_of(DIE)
    assert before.core_array is None
    assert after.matmul_flops_per_s == 1800e12
    shape = (1.0, 8192.0, 8192.0, 8192.0)
    ideal_s = 2.0 * 8192.0**3 / 1800e12
    large = ideal_s / matmul_compute_s(*shape, after.matmul_flops_per_s, after)
    assert 0.9 < large < 1.0
    narrow = (1.0, 128.0, 8192.0, 8192.0)
    share = ideal_s / 64 / matmul_compute_s(*narrow, after.matmul_flops_per_s, after)
    assert share < large


def test_arrays_of_another_rate_than_the_stated_one_are_refused():
    """64 cores of 128 x 128 at 2 GHz are 4194 TFLOP/s, not 1800; 110 of 64 x 64 are."""
    stated = DIE.model_dump()
    assert ChipSpec.model_validate(stated) == DIE
    too_many = stated | {"num_cores": 64, "array_rows": 128, "array_columns": 128}
    with pytest.raises(ValueError, match=r"4194.3 TFLOP/s, matmul_rate says 1800"):
        ChipSpec.model_validate(too_many)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        # X fits the 60 MB that blocks leave: everything once
        (2048.0, 1024.0, 2.0 * 12288 * (2048 + 1024) + 2.0 * 2048 * 1024),
        # neither fits: X of 100.7 MB in parts of 60 MB, and the weight is read once for each
        (4096.0, 12288.0, 2.0 * 12288 * (4096 + 12288 * 100.663296 / 60.0)
         + 2.0 * 4096 * 12288),
    ],
)  # fmt: skip
def test_operands_that_do_not_stay_are_read_once_for_each_block(rows, columns, expected):
    rates = engine_of(DIE)
    assert rates.room_bytes == (1 - BLOCKS_SHARE) * 80e6 == 60e6
    moved = matmul_traffic_bytes(1.0, rows, 12288.0, columns, 2.0, rates)
    assert moved == pytest.approx(expected, rel=1e-5)
    without = replace(rates, core_array=None)
    assert matmul_traffic_bytes(1.0, rows, 12288.0, columns, 2.0, without) <= moved


def test_operands_of_a_die_with_its_first_memory_alone_are_read_once():
    """Layers that are cut into stages of SRAM are priced on a die that has no other memory."""
    alone = engine_of(DIE.model_copy(update={"memories": DIE.memories[:1]}))
    assert alone.room_bytes == 0.0
    moved = matmul_traffic_bytes(1.0, 4096.0, 3072.0, 5120.0, 2.0, alone)
    assert moved == 2.0 * 3072 * (4096 + 5120) + 2.0 * 4096 * 5120  # 98.6 MB
