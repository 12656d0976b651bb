"""Accesses and energy of a step by level."""

import numpy as np
import pytest

import meshwright as mw
from meshwright.dataflow.energy import product_access_bytes


def test_a_product_by_hand():
    """Four tiles across, two down: 64 (128 x 4 + 256 x 2) words read, 128 x 256 written."""
    assert product_access_bytes((1.0, 128.0, 64.0, 256.0), 64.0, 64.0, 2.0) == 196_608
    shapes = (1.0, np.array([128.0, 64.0]), 64.0, np.array([256.0, 64.0]))
    both = product_access_bytes(shapes, 64.0, 64.0, 2.0)
    assert both.tolist() == [196_608, 2 * (64 * 128 + 64 * 64)]


def test_one_tile_reads_each_operand_once():
    """No dataflow moves less than every tensor once."""
    drawn = np.random.default_rng(5)
    for rows, inner, columns in drawn.integers(1, 500, (200, 3)).astype(float):
        once = inner * (rows + columns) + rows * columns
        assert product_access_bytes((1.0, rows, inner, columns), 512.0, 512.0, 1.0) == once
        assert product_access_bytes((1.0, rows, inner, columns), 32.0, 16.0, 1.0) >= once


def test_levels_of_a_plan_sum_to_its_traffic():
    found = mw.map("gpt3-175b-layer", on="wafer-4x8")
    levels = {level.name: level for level in found.best.energy}
    assert list(levels) == ["arithmetic", "sram", "hbm", "links"]
    assert levels["arithmetic"].accesses == found.flops
    assert levels["arithmetic"].energy_j == pytest.approx(found.flops * 0.5e-12)
    assert levels["hbm"].accesses == found.best.moved.memory_bytes
    assert levels["links"].accesses == found.best.moved.link_bytes
    assert levels["sram"].accesses > levels["hbm"].accesses
    assert levels["sram"].energy_j is None  # not stated is not zero
    hbm_w = found.best.power_w["memory_w"] * found.best.step_s
    assert levels["hbm"].energy_j == pytest.approx(hbm_w)
