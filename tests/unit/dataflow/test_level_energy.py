"""Accesses and energy of a step by level."""

import numpy as np
import pytest
from dataflow_graphs import mlp

from meshwright.dataflow.energy import level_energies, power_parts_w, product_access_bytes
from meshwright.dataflow.question import load_graph
from meshwright.dataflow.search import calibrated_system, plan_dataflow


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


@pytest.mark.parametrize("graph", [
    pytest.param(lambda: load_graph("gpt3-175b-layer"), id="layer", marks=pytest.mark.slow),
    pytest.param(lambda: mlp(8192), id="two products"),
])  # fmt: skip
def test_levels_of_a_plan_sum_to_its_traffic(graph):
    graph, machine = graph(), calibrated_system("wafer-4x8")
    plans = plan_dataflow(graph, machine, allowed={"tp": (32,)})
    levels = {
        level.name: level for level in level_energies(graph, machine, plans.best, plans.moved)
    }
    assert list(levels) == ["arithmetic", "sram", "hbm", "links"]
    assert levels["arithmetic"].accesses == graph.flops
    assert levels["arithmetic"].energy_j == pytest.approx(graph.flops * 0.5e-12)
    assert levels["hbm"].accesses == plans.moved.memory_bytes
    assert levels["links"].accesses == plans.moved.link_bytes
    assert levels["sram"].accesses > levels["hbm"].accesses
    assert levels["sram"].energy_j is None  # not stated is not zero
    power_w = power_parts_w(graph, machine, plans.best, plans.moved)
    assert levels["hbm"].energy_j == pytest.approx(power_w["memory_w"] * plans.best.step_s)
