"""Cores for kernels: cycles that can be counted by hand, and the best division of a chip."""

from math import ceil

import numpy as np
import pytest
from fusion_problems import GRID, least_cycles_by_hand, random_problem
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog.systems import load_chip
from meshwright.dataflow.fusion.cores import (
    CoreGrid,
    TileShape,
    core_choices,
    cores_needed,
    grid_of,
    least_cycles,
)
from meshwright.graph.kernels.kernel import Unit

WIDE = CoreGrid(640, 32, 6, 1.25e9, 1.0)


def test_peak_counts_two_flops_for_each_multiply_add():
    assert WIDE.flops_per_s == 2 * 640 * 32 * 6 * 1.25e9


def test_products_of_other_numbers_take_the_ratio_of_the_rates():
    """989 TFLOP/s of bf16 against 1,979 of fp8 and 66.9 of fp64."""
    grid = grid_of(load_chip("H100"), 0.0)
    assert grid.slowdown(1.0) == pytest.approx(989 / 1979)
    assert grid.slowdown(8.0) == pytest.approx(989 / 66.9)
    assert grid.slowdown(2.0) == 1.0


def test_a_product_is_cut_by_rows_and_by_columns():
    # 64 x 12 outputs on arrays of 32 x 6: two by two blocks of 100 cycles
    cores, cycles = core_choices(TileShape(64, 100, 12, Unit.MATRIX), WIDE)
    assert list(zip(cores, cycles, strict=True)) == [(1, 400.0), (2, 200.0), (4, 100.0)]


def test_an_elementwise_kernel_has_no_stages():
    cores, cycles = core_choices(TileShape(64, 1, 12, Unit.VECTOR), WIDE)
    assert list(zip(cores, cycles, strict=True)) == [(1, 24.0), (2, 12.0)]


def test_results_that_are_spread_fill_all_lanes():
    # 64 x 12 results on 32 lanes a core: 24 rounds, shared out among cores
    cores, cycles = core_choices(TileShape(64, 1, 12, Unit.VECTOR, is_spread=True), WIDE)
    rounds = [(1, 24.0), (2, 12.0), (3, 8.0), (4, 6.0), (5, 5.0), (6, 4.0), (8, 3.0), (12, 2.0)]
    assert list(zip(cores, cycles, strict=True)) == [*rounds, (24, 1.0)]


def test_a_sum_of_each_token_is_cut_over_lanes_and_added_in_a_tree():
    # 32 sums of 8 on 32 lanes; twice the lanes: halves and one addition; four times: two more
    cores, cycles = core_choices(TileShape(1, 8, 32, Unit.VECTOR, is_spread=True), WIDE)
    assert list(zip(cores, cycles, strict=True)) == [(1, 8.0), (2, 5.0), (4, 4.0)]
    # column by column one lane works, 32 tokens one after the other
    assert core_choices(TileShape(1, 8, 32, Unit.VECTOR), WIDE)[1].tolist() == [256.0]


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 20), st.integers(1, 30))
def test_spread_choices_are_all_that_lanes_and_parts_reach(rows, inner, columns, num_cores):
    grid = CoreGrid(num_cores, 4, 3, 1.0, 1.0)
    cores, cycles = core_choices(TileShape(rows, inner, columns, Unit.VECTOR, True), grid)
    assert np.all(np.diff(cores) > 0)
    assert np.all(np.diff(cycles) < 0)
    by_column = core_choices(TileShape(rows, inner, columns, Unit.VECTOR), grid)
    results = rows * columns
    for count in range(1, num_cores + 1):
        whole = ceil(ceil(results / 4) / count) * inner
        cut = [
            -(-inner // parts) + np.ceil(np.log2(parts))
            for parts in range(1, inner + 1)
            if parts * results <= 4 * count
        ]
        found = cycles[np.searchsorted(cores, count, side="right") - 1]
        assert found == min([whole, *cut])
        assert found <= by_column[1][np.searchsorted(by_column[0], count, side="right") - 1]


def test_a_move_takes_one_core_and_no_cycles():
    cores, cycles = core_choices(TileShape(64, 1, 12, Unit.NONE), WIDE)
    assert (cores.tolist(), cycles.tolist()) == ([1], [0.0])


@given(st.integers(1, 400), st.integers(1, 9), st.integers(1, 90), st.integers(1, 60))
def test_choices_are_all_that_any_lanes_and_stages_reach(rows, inner, columns, num_cores):
    grid = CoreGrid(num_cores, 4, 3, 1.0, 1.0)
    cores, cycles = core_choices(TileShape(rows, inner, columns, Unit.MATRIX), grid)
    assert np.all(np.diff(cores) > 0)
    assert np.all(np.diff(cycles) < 0)
    for count in range(1, num_cores + 1):
        best = min(
            -(-rows // (4 * lanes)) * -(-columns // (3 * (count // lanes))) * inner
            for lanes in range(1, count + 1)
        )
        assert cycles[np.searchsorted(cores, count, side="right") - 1] == best


@pytest.mark.parametrize("seed", range(20))
def test_the_division_of_cores_is_the_best_of_all(seed):
    problem = random_problem(seed, 5)
    members = np.random.default_rng(seed).random((8, 5)) < 0.5
    members[0] = True
    members[:, 0] = True
    found = least_cycles(problem.choices, GRID.num_cores, members)
    by_hand = [
        least_cycles_by_hand(problem, frozenset(np.flatnonzero(row).tolist())) for row in members
    ]
    assert found.tolist() == by_hand


@pytest.mark.parametrize("seed", range(10))
def test_kernels_of_equal_shape_are_divided_alike_with_and_without_sharing(seed):
    random = np.random.default_rng(seed)
    problem = random_problem(seed, 5)
    shared = [problem.choices[kind] for kind in random.integers(0, 3, 40)]
    apart = [(cores.copy(), cycles.copy()) for cores, cycles in shared]
    members = random.random((300, 40)) < random.choice([0.02, 0.05, 0.2], (300, 1))
    found = least_cycles(shared, GRID.num_cores, members)
    assert found.tolist() == least_cycles(apart, GRID.num_cores, members).tolist()
    # many at once, and each by itself
    each = [least_cycles(shared, GRID.num_cores, row[None])[0] for row in members[:40]]
    assert found[:40].tolist() == each


def test_more_kernels_than_cores_fit_nowhere():
    choices = core_choices(TileShape(4, 1, 4, Unit.VECTOR), GRID)
    cycles = least_cycles([choices] * 3, 2, np.array([[True, True, True], [True, True, False]]))
    assert np.isinf(cycles[0])
    assert np.isfinite(cycles[1])


def test_fewer_cycles_need_more_cores_and_too_few_cannot_be_had():
    choices = core_choices(TileShape(64, 100, 12, Unit.MATRIX), WIDE)
    needed = cores_needed(choices, np.array([400.0, 399.0, 200.0, 100.0, 99.0]), 640)
    assert needed.tolist() == [1, 2, 2, 4, 641]


def test_products_of_other_widths_take_the_time_of_their_rates():
    """A grid runs at its BF16 rate of 400 TFLOP/s: FP32 takes four times as long, FP8 half."""
    rates = {"bf16": 4e14, "fp32": 1e14, "fp8": 8e14}
    chip = load_chip("SN10").model_copy(update={"matmul_flops_per_s": rates})
    assert grid_of(chip, 0.0).slowdowns == ((1.0, 0.5), (4.0, 4.0))
