"""Graphs on systems by name: with the roofline of a GPU, and fused on a chip with an array."""

from dataclasses import replace

import pytest
from dataflow_graphs import mlp

from meshwright.base.errors import SpecError
from meshwright.dataflow.fusion.cores import grid_of
from meshwright.dataflow.fusion.fuse import fused_stage_time
from meshwright.dataflow.search import calibrated_system, plan_dataflow
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

SMALL = gpt_layer(2048, 16, 128, 512, repeats=8)


def test_chips_without_an_array_take_the_roofline():
    machine = calibrated_system("8xA100")
    assert fused_stage_time(machine) is None
    found = plan_dataflow(SMALL, machine, num_passes=8)
    assert found.gap < 1e-6


@pytest.mark.parametrize("graph", [
    pytest.param(SMALL, id="layer", marks=pytest.mark.slow),
    pytest.param(replace(mlp(8192), repeats=2), id="two products"),
])  # fmt: skip
def test_a_chip_with_an_array_fuses_and_stays_above_the_work_at_its_peak(graph):
    machine = calibrated_system("8xSN10")
    peak = grid_of(machine.spec.chip, 0.0).flops_per_s
    found = plan_dataflow(graph, machine, num_passes=8, allowed={"tp": (4,), "dp": (1, 2)})
    assert {plan.degrees for plan in found.plans} == {(4, 2, 1), (4, 1, 2)}
    for plan in found.plans:
        least_s = graph.flops / graph.repeats * plan.layers_per_stage / (plan.tp * peak)
        assert plan.stage_s >= least_s
    assert found.best.step_s >= found.lower_bound_s > 0.0


@pytest.mark.slow
def test_a_layer_on_eight_sn10_is_close_to_the_work_at_their_peak():
    """The published mapping reaches 85 % of the peak with its rules, where nothing has latency."""
    graph = gpt_layer(12288, 96, 128, 2048, repeats=96)
    allowed = {"tp": (4,), "pp": (2,)}
    found = plan_dataflow(graph, calibrated_system("8xSN10"), num_passes=512, allowed=allowed)
    assert found.best.degrees == (4, 2, 1)
    assert 0.0 < found.gap < 0.25


@pytest.mark.slow
@pytest.mark.parametrize("system", ["8xSN10", "8xSN30"])
def test_fused_stages_that_are_left_out_for_their_bound_were_not_the_best(system):
    machine = calibrated_system(system)
    whole = plan_dataflow(SMALL, machine, num_passes=8)
    short = plan_dataflow(SMALL, machine, num_passes=8, only_best=True)
    assert short.best.step_s == whole.best.step_s
    assert short.lower_bound_s <= short.best.step_s


def test_an_optimizer_for_a_graph_without_gradients_is_refused():
    with pytest.raises(SpecError, match="makes no gradients"):
        plan_dataflow(SMALL, calibrated_system("8xA100"), optimizer="megatron-adam")
