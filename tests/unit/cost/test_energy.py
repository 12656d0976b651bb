"""Energy, power caps, money and goodput; what is not known stays unknown."""

import math

import numpy as np
import pytest
from small_problems import chip, level, system

from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.energy import (
    dynamic_parts_j,
    idle_power_w,
    least_step_s,
    link_energy_j,
    synced_bytes,
    system_parts_j,
    total_energy_j,
)
from meshwright.cost.money import goodput_fraction, step_cost_usd
from meshwright.cost.pipeline import sync_counts
from meshwright.schedule.pipeline_schedules import Gathers
from meshwright.sharding.strategy import PlanOptions
from meshwright.spec.system import MemoryLevel
from meshwright.spec.workload import SoftwareStack

MEMORY = MemoryLevel(
    name="hbm", capacity_bytes=1e9, bandwidth_bytes_per_s=1e12, energy_j_per_byte=5e-11
)
COUNTED = {"idle_power_w": 100.0, "energy_j_per_flop": 1e-12, "memories": (MEMORY,)}


def cluster(device, size=1, link_j_per_byte=None, **fields):
    """Return a system of so many devices."""
    levels = [level(size, energy_j_per_byte=link_j_per_byte)] if size > 1 else [level(1)]
    found = system(*levels, chip=device).model_copy(update=fields)
    return found if size > 1 else found.model_copy(update={"levels": ()})


def parts_of(device, size=1, link_j_per_byte=None, **fields):
    """A step of 10 s, 6 s of it busy: 1e12 FLOPs, 1e9 bytes of memory, 1e6 bytes of links."""
    on = cluster(device, size, link_j_per_byte, **fields)
    dynamic = dynamic_parts_j(on.chip, 6.0, 1e12, 1e9, link_energy_j(on, 1e6))
    return system_parts_j(on, dynamic, 10.0, float(size))


def energy_j(*args, **fields):
    return total_energy_j(parts_of(*args, **fields), 10.0)


def test_without_powers_energy_is_unknown_not_zero():
    assert math.isnan(energy_j(chip()))
    assert math.isnan(energy_j(chip(idle_power_w=100.0)))
    assert math.isnan(energy_j(chip(peak_power_w=700.0)))
    assert math.isnan(idle_power_w(cluster(chip()), 1.0))
    assert parts_of(chip(idle_power_w=100.0)) == {}


@pytest.mark.parametrize(("zero", "gathers", "scatters"), [(1, 1, 1), (2, 1, 3), (3, 6, 3)])
def test_bytes_of_a_synchronisation(zero, gathers, scatters):
    """100 parameters over 4 ranks: a gradient of 4 bytes sends 300 each time, a weight of 2 150."""
    plan_options = PlanOptions(zero_stage=zero)
    counts = sync_counts(plan_options, SoftwareStack(), 1.0, Gathers(0.0, 0.0), 3.0)
    sent = synced_bytes(100.0, 4.0, 1.0, counts, plan_options, load_optimizer("fsdp-mixed"))
    assert sent == scatters * 300 + gathers * 150


def test_sums_of_the_last_pass_are_sent_once():
    plan_options, software = PlanOptions(zero_stage=3), SoftwareStack(sums_in_last_pass=True)
    counts = sync_counts(plan_options, software, 1.0, Gathers(0.0, 0.0), 3.0)
    sent = synced_bytes(100.0, 4.0, 1.0, counts, plan_options, load_optimizer("fsdp-mixed"))
    assert sent == 1 * 300 + 6 * 150


def test_idle_power_runs_all_the_time_and_the_rest_while_busy():
    parts = parts_of(chip(idle_power_w=100.0, peak_power_w=700.0))
    assert parts == {"busy_j": 600 * 6, "idle_j": 100 * 10, "overhead_j": 0.0}


def test_known_energies_of_operations_are_added_to_idle_power():
    """One device, 1e12 FLOPs of 1 pJ, 1e9 bytes of 50 pJ, 100 W for 10 s; links are none."""
    parts = parts_of(chip(**COUNTED))
    assert parts == pytest.approx(
        {"compute_j": 1.0, "memory_j": 0.05, "links_j": 0.0, "idle_j": 1000.0, "overhead_j": 0.0}
    )


def test_each_device_pays_for_the_bytes_of_its_links():
    parts = parts_of(chip(**COUNTED), 4, 1e-8, overhead_power_fraction=0.5)
    assert parts == pytest.approx(
        {"compute_j": 4.0, "memory_j": 0.2, "links_j": 0.04, "idle_j": 4000.0,
         "overhead_j": 0.5 * 4004.24}
    )  # fmt: skip


def test_links_of_unknown_energy_are_not_free():
    """Neither a sum without them, nor zero: the peak power stands in where it is known."""
    assert math.isnan(energy_j(chip(**COUNTED), 4))
    assert "busy_j" in parts_of(chip(**COUNTED, peak_power_w=700.0), 4)


def test_without_idle_power_only_operations_count():
    parts = parts_of(chip(**(COUNTED | {"idle_power_w": 0.0})), 4, 1e-8)
    assert parts["idle_j"] == 0.0
    assert sum(parts.values()) == pytest.approx(4.24)


def test_hosts_and_fans_draw_power_too():
    device = chip(idle_power_w=10.0, peak_power_w=10.0)
    assert energy_j(device, 4, overhead_power_fraction=0.5) == 4 * 100 * 1.5


def test_a_cap_stretches_a_step_until_the_mean_power_is_below_it():
    """2 devices of 100 W idle with 1000 J of work each, half as much for hosts: 3000 J beside
    300 W. At 900 W that takes 3000 / 600 = 5 s, whatever the step takes without the cap."""
    on = cluster(chip(**COUNTED), 2, 1e-8, overhead_power_fraction=0.5, max_power_w=900.0)
    least_s = least_step_s(on, 1000.0, 1200.0, 2.0)
    assert least_s == 5.0
    assert (2 * (1000 + 100 * least_s) * 1.5) / least_s == pytest.approx(900.0)


def test_a_cap_for_each_device_holds_for_the_busiest_without_overhead():
    """1200 J beside 100 W at 400 W: 4 s."""
    on = cluster(chip(**COUNTED), 2, 1e-8, overhead_power_fraction=0.5, max_device_power_w=400.0)
    assert least_step_s(on, 1000.0, 1200.0, 2.0) == 4.0


def test_no_step_is_long_enough_where_idle_power_is_above_the_cap():
    on = cluster(chip(**COUNTED), 4, 1e-8, max_power_w=300.0)
    column = least_step_s(on, np.array([1.0, 1.0]), np.array([1.0, 1.0]), np.array([2.0, 3.0]))
    assert column.tolist() == [0.02, math.inf]


def test_without_caps_nothing_is_slowed_down():
    assert least_step_s(cluster(chip(**COUNTED), 4, 1e-8), 1000.0, 1000.0, 4.0) == 0.0


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
