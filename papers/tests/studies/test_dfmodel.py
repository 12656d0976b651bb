"""DFModel rebuilt: the search against trying everything, and what its logs print."""

import pytest

from meshwright.graph.kernels.workloads import gpt_training_layer
from meshwright_papers.studies.dfmodel import trillion
from meshwright_papers.studies.dfmodel.published_runs import (
    RUNS,
    best_fused,
    by_kernel,
    predicted,
    vendor,
)
from meshwright_papers.studies.dfmodel.stored_runs import stored_runs


@pytest.mark.parametrize("network", ["2D torus", "3D torus"])
def test_the_search_finds_what_trying_everything_finds(monkeypatch, network):
    monkeypatch.setattr(trillion, "TILES", (256, 1024))
    monkeypatch.setattr(trillion, "MICRO_BATCHES", (1, 4))
    monkeypatch.setattr(trillion, "POWERS", (4, 8, 64, 128))
    layers = trillion._Layers(by_kernel=True, dram_bytes_per_s=None)
    every = list(trillion.cases(network, by_kernel=True))
    seconds = {case: case.weight * layers.price_s(case) for case in every}
    found = trillion.search(network, by_kernel=True)
    assert found.num_cases == len(every)
    assert 1.0 / found.samples_per_s == pytest.approx(min(seconds.values()), rel=1e-12)
    assert seconds[found.case] == min(seconds.values())


def test_bounds_are_below_prices():
    layers = trillion._Layers(by_kernel=True, dram_bytes_per_s=2e11)
    for case in list(trillion.cases("3D torus", by_kernel=True))[::97]:
        least, with_tp, price = layers.least_s(case), layers.with_tp_s(case), layers.price_s(case)
        assert least <= with_tp * (1 + 1e-9)
        assert with_tp <= price * (1 + 1e-9)


@pytest.mark.slow
def test_eight_chips_give_what_the_logs_print():
    assert best_fused().samples_per_s == pytest.approx(2.844818860986619, rel=1e-12)
    assert vendor(32).samples_per_s == pytest.approx(1.694414040885861, rel=1e-12)
    assert by_kernel(8).samples_per_s == pytest.approx(0.4593939691928717, rel=1e-12)


def test_predictions_of_the_runs_are_near_those_of_the_peer_and_far_above_what_was_measured():
    for run in RUNS:
        found = predicted(run)
        assert found.over_peer == pytest.approx(1.0, abs=0.04)
        assert found.over_measured > 1.5


def test_all_stored_runs_stand_beside_ours_or_a_reason():
    runs = {run.name: run for run in stored_runs()}
    assert len(runs) == 29
    assert all(run.ours or run.note for run in runs.values())
    assert all(run.price == run.peer_price for run in runs.values() if run.price and run.peer_price)
    assert sum(run.price is not None and run.peer_price is not None for run in runs.values()) == 8


def test_topologies_have_the_work_of_their_logs():
    """Utilisation x chips x peak / samples each second, as printed, is the work of our graph."""
    graph = gpt_training_layer(25600, 160, 160, 2048, repeats=128)
    assert graph.flops == pytest.approx(0.57945 * 640 * 614.4e12 / 18.177, rel=1e-3)


@pytest.mark.slow
def test_topologies_are_ordered_as_published():
    """Three tie, the dragonfly leads, and all are within 6 % of what was stopped by hand."""
    runs = {run.name.rpartition(", ")[2]: run for run in stored_runs() if "640" in run.name}
    ours = {name: run.ours() for name, run in runs.items()}
    assert ours["2D torus"] == ours["DGX-1"] == ours["DGX-2"]
    assert max(ours, key=ours.get) == "dragonfly"
    assert all(0.94 < ours[name] / runs[name].peer < 1.1 for name in ours)
