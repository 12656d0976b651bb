"""The textbook's formulas against its printed figures and against sums by hand."""

from dataclasses import replace

import pytest

from meshwright.sharding.space import factorizations
from meshwright_papers.studies.textbook_grids import (
    StateSharding,
    TextbookSetting,
    price,
    ranked_grids,
)

BOOK = TextbookSetting()
MS = 1e-3


def test_parts_of_the_winner_by_hand():
    row = price(1.0, 8.0, 8.0, BOOK, StateSharding.OVER_DATA)
    # One layer's state is 16 * 70e9 / 80 = 14e9 bytes; 7/8 of it at 600 GB/s.
    assert row.tensor_s == pytest.approx(7 / 8 * 14e9 / 600e9)
    assert row.tensor_s == pytest.approx(20.416667 * MS, rel=1e-6)
    # 7/8 of 3e9 bytes at 100 GB/s, and 7/16 of 8 ms.
    assert row.pipeline_s == pytest.approx(26.25 * MS)
    assert row.bubble_s == pytest.approx(3.5 * MS)
    assert row.gradient_s == 0
    assert row.overhead_s == pytest.approx(50.166667 * MS, rel=1e-6)
    # (16 * 70e9 + 3e9) / 64 bytes.
    assert row.memory_bytes == pytest.approx(17.546875e9)


def test_a_group_beyond_the_host_uses_the_slow_link():
    inside = price(8.0, 1.0, 8.0, BOOK, StateSharding.OVER_DATA).tensor_s
    beyond = price(4.0, 1.0, 16.0, BOOK, StateSharding.OVER_DATA).tensor_s
    assert inside == pytest.approx(7 / 8 * 14e9 / 600e9)
    assert beyond == pytest.approx(15 / 16 * 14e9 / 100e9)


@pytest.mark.parametrize(
    ("rank", "grid", "overhead_ms", "memory_gb"),
    [
        (0, (1, 8, 8), 50.166667, 17.546875),
        (1, (1, 16, 4), 53.125, 17.546875),
        (2, (1, 32, 2), 56.229167, 17.546875),
        (3, (1, 64, 1), 61.03125, 17.546875),
        (4, (1, 1, 64), 137.8125, 17.546875),
        (7, (2, 4, 8), 744.416667, 17.59375),
        (13, (4, 16, 1), 2135.625, 17.6875),
        (18, (8, 1, 8), 4920.416667, 17.875),
        (27, (64, 1, 1), 44100.0, 20.5),
    ],
)
def test_ranking_of_the_book(rank, grid, overhead_ms, memory_gb):
    row = ranked_grids(BOOK)[rank]
    assert row.grid == grid
    assert row.overhead_s == pytest.approx(overhead_ms * MS, rel=1e-6)
    assert row.memory_bytes == pytest.approx(memory_gb * 1e9)


def test_the_memory_filter_removes_nothing_in_the_book():
    assert len(ranked_grids(BOOK)) == len(factorizations(64, 3)) == 28


def test_stages_without_a_layer_are_illegal():
    ranked = ranked_grids(replace(BOOK, num_layers=16))
    assert max(row.pp for row in ranked) == 16


def test_memory_rule_decides_what_fits():
    large = replace(BOOK, num_params=200e9)
    # 16 * 200e9 / 80e9 = 40 shards of the state are needed; 64 is the next divisor of 64.
    whole = ranked_grids(large, StateSharding.NOT_OVER_DATA)
    assert {(row.pp * row.tp, row.dp) for row in whole} == {(64, 1)}
    assert len(whole) == 7
    assert len(ranked_grids(large, StateSharding.OVER_DATA)) == 28


def test_columns_equal_numbers_bit_for_bit():
    grids = factorizations(64, 3).astype(float)
    columns = price(*grids.T, BOOK, StateSharding.OVER_DATA)
    for index, (dp, pp, tp) in enumerate(grids.tolist()):
        one = price(dp, pp, tp, BOOK, StateSharding.OVER_DATA)
        assert one.overhead_s == columns.overhead_s[index]
        assert one.memory_bytes == columns.memory_bytes[index]
