"""Energy, money and goodput; what is not known stays unknown."""

import math

import pytest
from small_problems import chip, level, system

from meshwright.cost.energy import (
    device_energy_j,
    goodput_fraction,
    step_cost_usd,
    system_energy_j,
)
from meshwright.spec.chip import MemoryLevel


def energy_j(device, link_j_per_byte=None):
    """A step of 10 s, 6 s of it busy: 1e12 FLOPs, 1e9 bytes of memory, 1e6 bytes of links."""
    return device_energy_j(device, 10.0, 6.0, 1e12, 1e9, 1e6, link_j_per_byte)


def test_without_powers_energy_is_unknown_not_zero():
    assert math.isnan(energy_j(chip()))
    assert math.isnan(energy_j(chip(idle_power_w=100.0)))
    assert math.isnan(energy_j(chip(peak_power_w=700.0)))


def test_idle_power_runs_all_the_time_and_the_rest_while_busy():
    assert energy_j(chip(idle_power_w=100.0, peak_power_w=700.0)) == 100 * 10 + 600 * 6


def test_known_energies_of_operations_are_added_to_idle_power():
    memory = MemoryLevel(
        name="hbm", capacity_bytes=1e9, bandwidth_bytes_per_s=1e12, energy_j_per_byte=5e-11
    )
    device = chip(idle_power_w=100.0, energy_j_per_flop=1e-12, memories=(memory,))
    assert energy_j(device) == pytest.approx(1.0 + 0.05 + 1000)
    assert energy_j(device, 1e-8) == pytest.approx(1.0 + 0.05 + 0.01 + 1000)


def test_hosts_and_fans_draw_power_too():
    cluster = system(level(4)).model_copy(update={"overhead_power_fraction": 0.5})
    assert system_energy_j(cluster, 100.0, 4.0) == 600


def test_rent_is_by_the_hour_and_unknown_without_a_price():
    assert step_cost_usd(chip(rent_usd_per_hour=3.6), 10.0, 8.0) == pytest.approx(0.08)
    assert math.isnan(step_cost_usd(chip(), 10.0, 8.0))


def test_goodput_loses_checkpoints_and_half_an_interval_for_each_failure():
    """1000 devices of 50,000 h fail every 50 h = 180,000 s; a checkpoint of 90 s every 5692.1 s.

    sqrt(2 x 90 x 180000) = 5692.1; lost: 90 / 5692.1 = 1.581 % and
    (2846.05 + 600) / 180000 = 1.9145 %.
    """
    assert goodput_fraction(1000, 50_000, 90, 600) == pytest.approx(0.965044, abs=1e-6)


def test_goodput_without_checkpoints_and_with_hopeless_failures():
    assert goodput_fraction(1000, 50_000, 0, 1800) == pytest.approx(0.99)
    assert goodput_fraction(1_000_000, 10, 90, 600) == 0
