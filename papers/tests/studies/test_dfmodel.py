"""DFModel rebuilt: the search against trying everything, and what its logs print."""

import pytest

from meshwright_papers.studies.dfmodel import trillion
from meshwright_papers.studies.dfmodel.published_runs import (
    RUNS,
    best_fused,
    by_kernel,
    predicted,
    vendor,
)


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
