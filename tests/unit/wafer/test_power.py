"""Power and temperature of the dies of a wafer, and caps by region: by hand and conserved."""

import numpy as np
import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.catalog.systems import load_system
from meshwright.spec.system import Cooling
from meshwright.wafer.power import DieEnergy, least_regional_s, temperature_celsius

COOLED = Cooling(coolant_celsius=25.0, to_coolant_k_per_w=0.1, between_dies_k_per_w=0.1)


def wafer(tmp_path, text="", like="wafer-4x8"):
    path = tmp_path / "warm.yaml"
    path.write_text(f"like: {like}\n{text}")
    return load_system(str(path))


def priced(system):
    """Return a plan on 16 of the 32 dies."""
    return mw.estimate("gpt3-6.7b", on=system, seq=2048, global_batch=64, tatp=4, dp=4, mbs=4)


def test_two_dies_by_hand():
    """10 + 10 W/K at each: 20 a - 10 b = 100 and 20 b - 10 a = 0, so a = 20/3 and b = 10/3 K."""
    system = load_system("mesh-1x2")
    found = temperature_celsius(system, COOLED, np.array([100.0, 0.0]))
    assert found == pytest.approx([25.0 + 20 / 3, 25.0 + 10 / 3])


@pytest.mark.parametrize("sideways", [None, 0.01, 10.0])
def test_equal_dies_are_equally_warm(sideways):
    cooling = COOLED.model_copy(update={"between_dies_k_per_w": sideways})
    found = temperature_celsius(load_system("wafer-4x8"), cooling, np.full(32, 500.0))
    assert found == pytest.approx([75.0] * 32)


def test_all_heat_reaches_the_coolant():
    """The mean rise over R is the mean power, wherever the heat is made."""
    power_w = np.random.default_rng(3).uniform(0.0, 900.0, 96)
    found = temperature_celsius(load_system("2xwafer-6x8"), COOLED, power_w)
    assert ((found - 25.0) / 0.1).sum() == pytest.approx(power_w.sum())
    # No heat crosses the seam between wafers: each is as warm as alone.
    alone = temperature_celsius(load_system("wafer-6x8"), COOLED, power_w[:48])
    assert found[:48] == pytest.approx(alone)


def test_the_least_step_of_a_region_by_hand(tmp_path):
    """Two dies with 300 J and 10 W each: 600 J / (420 - 20) W = 1.5 s; the other cap is looser."""
    system = wafer(tmp_path, "power_regions:\n  - {devices: [0, 1], max_power: 420 W}\n"
                   "  - {devices: [1, 9], max_power: 900 W}", "mesh-2x8")  # fmt: skip
    energy = DieEnergy(np.full(16, 300.0), np.full(16, 10.0))
    assert least_regional_s(system, energy) == pytest.approx(1.5)
    assert energy.power_w(1.5)[:2].sum() == pytest.approx(420.0)


def test_the_least_step_of_a_temperature_by_hand(tmp_path):
    """0.1 K/W and 10 W idle leave 75 - 25 - 1 = 49 K for 300 J: 30 K s / 49 K."""
    text = "cooling: {coolant: 25 C, to_coolant: 0.1 K/W, max: 75 C}"
    energy = DieEnergy(np.full(8, 300.0), np.full(8, 10.0))
    assert least_regional_s(wafer(tmp_path, text, "mesh-2x4"), energy) == pytest.approx(30 / 49)


def test_the_dies_of_a_plan_draw_its_power(tmp_path):
    text = "cooling: {coolant: 25 C, to_coolant: 0.05 K/W, between_dies: 0.2 K/W}"
    cooled = priced(wafer(tmp_path, text)).best
    power_w = np.array(cooled.placement.die_power_w)
    assert 1.1 * power_w.sum() == pytest.approx(cooled.estimate.power_w)
    assert (power_w > 90.0).sum() == 16
    assert (power_w == 0.0).sum() == 16
    celsius = np.array(cooled.placement.die_celsius)
    assert ((celsius - 25.0) / 0.05).sum() == pytest.approx(power_w.sum())
    plain = priced(load_system("wafer-4x8")).best
    assert plain.estimate == cooled.estimate
    assert plain.placement.die_celsius == ()


@pytest.mark.slow
def test_a_region_slows_a_plan_down_to_its_cap(tmp_path):
    free = priced(load_system("wafer-4x8")).best
    drawn_w = sum(free.placement.die_power_w[die] for die in (0, 1, 8, 9))
    text = f"power_regions: [{{devices: [0, 1, 8, 9], max_power: {0.75 * drawn_w} W}}]"
    capped = priced(wafer(tmp_path, text)).best
    assert capped.estimate.step_time_s > free.estimate.step_time_s
    found_w = sum(capped.placement.die_power_w[die] for die in (0, 1, 8, 9))
    assert found_w == pytest.approx(0.75 * drawn_w) or found_w == 0.0
    assert capped.estimate.time_parts_s["throttle_s"] > 0.0


@pytest.mark.parametrize(
    ("like", "text", "message"),
    [
        ("wafer-4x8", "power_regions: [{devices: [0, 40], max_power: 1 kW}]", "no device 40 of 32"),
        ("wafer-4x8", "power_regions: [{devices: [0, 0], max_power: 1 kW}]", "each die of it once"),
        ("wafer-4x8", "power_regions: [{devices: [0, 1], max_power: 180 W}]", "draw 180 W idle"),
        ("8xH100", "cooling: {coolant: 25 C, to_coolant: 0.1 K/W}", "for dies of a grid"),
        ("wafer-4x8", "cooling: {coolant: 25 C, to_coolant: 0.1 K/W, max: 30 C}", "reaches 34 C"),
        ("wafer-4x8", "cooling: {coolant: 25, to_coolant: 0.1 K/W}", "no unit"),
    ],
)
def test_caps_that_cannot_be_are_refused(tmp_path, like, text, message):
    with pytest.raises(SpecError, match=message):
        wafer(tmp_path, text, like)
