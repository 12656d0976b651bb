"""Fault maps: seeded, monotone in the rate, and what they do to a network."""

import numpy as np
import pytest
from grid_networks import grid, star

from meshwright.network.blocks import connected_parts
from meshwright.network.faults import FaultRates, random_faults, wires

MANY = 500


def test_the_same_seed_gives_the_same_map():
    rates = FaultRates(link=0.2, device=0.1, row=0.1, core=0.3)
    first, again = (random_faults(grid(4, 8), rates, 7) for _ in range(2))
    assert first.dead_links == again.dead_links
    assert np.array_equal(first.dead_devices, again.dead_devices)
    assert np.array_equal(first.core_fraction, again.core_fraction)


def test_a_higher_rate_keeps_what_is_dead():
    few = random_faults(grid(6, 8), FaultRates(link=0.1, device=0.1), 3)
    more = random_faults(grid(6, 8), FaultRates(link=0.3, device=0.3), 3)
    assert set(few.dead_links) < set(more.dead_links)
    assert set(few.dead_devices.tolist()) < set(more.dead_devices.tolist())


def test_rates_are_reached():
    network = grid(4, 8)
    maps = [
        random_faults(network, FaultRates(0.2, 0.1, 0.0, 0.25, num_cores=16), seed)
        for seed in range(300)
    ]
    assert len(wires(network)) == 52
    assert np.mean([len(m.dead_links) for m in maps]) / 52 == pytest.approx(0.2, abs=0.01)
    assert np.mean([len(m.dead_devices) for m in maps]) / 32 == pytest.approx(0.1, abs=0.01)
    assert np.mean([m.core_fraction.mean() for m in maps]) == pytest.approx(0.75, abs=0.005)


def test_rows_die_as_a_whole():
    faults = random_faults(grid(6, 8), FaultRates(row=0.5), 1)
    rows = np.bincount(faults.dead_devices // 8, minlength=6)
    assert set(rows.tolist()) == {0, 8}


def test_devices_without_cores_are_dead():
    broken = random_faults(grid(2, 2), FaultRates(core=1.0), 0).applied(grid(2, 2))
    assert len(broken.alive) == 0
    assert broken.num_links == 0
    assert connected_parts(broken) == ()


def test_connected_parts_by_hand():
    network = grid(2, 3).without([4], [(0, 3), (0, 1)])
    assert [part.tolist() for part in connected_parts(network)] == [[1, 2, 5], [0], [3]]


def test_devices_on_a_switch_reach_each_other():
    assert len(connected_parts(star(4))) == 1
    assert len(connected_parts(star(4).without((), [(0, 4)]))) == 2


@pytest.mark.parametrize(
    ("shape", "rate", "expected"),
    [
        ((4, 8), 0.20, 0.66), ((4, 8), 0.35, 0.13), ((6, 8), 0.20, 0.64), ((6, 8), 0.35, 0.10),
    ],
)  # fmt: skip
def test_meshes_stay_connected_as_often_as_known(shape, rate, expected):
    """Source: Monte Carlo of our own notes on TEMP; tolerance four standard errors and rounding."""
    network = grid(*shape)
    whole = [
        len(connected_parts(random_faults(network, FaultRates(link=rate), seed).applied(network)))
        == 1
        for seed in range(MANY)
    ]
    error = np.sqrt(expected * (1 - expected) / MANY)
    assert np.mean(whole) == pytest.approx(expected, abs=4 * error + 0.005)
