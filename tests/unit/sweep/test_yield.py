"""Wafers with drawn faults in a sweep: what is dead, spares, and the mean over wafers."""

import pytest

from meshwright.base.errors import SpecError
from meshwright.spec.sweep import SweepSpec
from meshwright.sweep.questions import checked
from meshwright.sweep.results import cells_of
from meshwright.sweep.run import Swept
from meshwright.sweep.systems import system_of

BASE = {"model": "gpt2-medium", "seq": 256, "global_batch": 16, "on": "wafer-4x8"}


def drawn(**fields):
    return system_of({**BASE, **fields})


def test_a_perfect_yield_leaves_the_system_as_it_is():
    assert drawn(die_yield=1.0, wafer=3) == drawn()


def test_the_same_wafer_at_a_lower_yield_keeps_what_is_dead():
    dead = [set(drawn(die_yield=share, wafer=7).dead_devices) for share in (0.95, 0.9, 0.7)]
    assert dead[0] <= dead[1] <= dead[2]
    assert dead[2]


def test_the_mean_number_of_dead_dies_is_that_of_the_yield():
    """200 wafers of 32 dies at 0.9: 640 dead of 6,400, a standard deviation of 24."""
    number = sum(len(drawn(die_yield=0.9, wafer=wafer).dead_devices) for wafer in range(200))
    assert abs(number - 640) < 5 * 24


def test_spares_take_the_places_of_the_first_dead_dies():
    dead = drawn(die_yield=0.8, wafer=1).dead_devices
    assert len(dead) > 2
    assert drawn(die_yield=0.8, wafer=1, spares=2).dead_devices == dead[2:]
    assert drawn(die_yield=0.8, wafer=1, spares=99).dead_devices == ()


def test_dead_cores_slow_a_die_and_dead_wires_have_no_links():
    system = drawn(core_yield=0.9, link_yield=0.8, wafer=2)
    assert all(0.0 < factor < 1.0 for factor in system.speed_factors.values())
    assert len(system.speed_factors) > 20
    assert all(max(wire) < 32 for wire in system.dead_links)
    assert system.dead_links


def sweep(better, **fixed):
    return SweepSpec(
        name="yield", ask="plan", fixed={**BASE, **fixed},
        vary={"die_yield": (1.0, 0.9), "spares": (0,), "wafer": tuple(range(10))},
        heat_map={"rows": "spares", "columns": "die_yield", "shows": "tokens_per_s",
                  "better": better},
    )  # fmt: skip


@pytest.mark.parametrize(("better", "shown"), [("mean", 40.5), ("p10", 1.0), ("highest", 90.0)])
def test_cells_show_the_mean_and_what_nine_of_ten_wafers_reach(better, shown):
    """Nine wafers reach 10 to 90 and one fits nothing: 0. The sorted second of ten is 1."""
    asked = sweep(better)
    points = checked(asked)
    values = [1.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 44.0, 90.0]
    found = [{"status": "found", "tokens_per_s": value} for value in values]
    found.append({"status": "nothing fits", "reason": "no"})
    swept = Swept(tuple(points), tuple(found[point["wafer"]] for point in points), 20)
    assert cells_of(asked, asked.heat_map, swept).values["0", "0.9"] == pytest.approx(shown)


@pytest.mark.parametrize(("field", "value", "told"), [
    ("link_yield", 1.5, "a share from 0 to 1"), ("core_yield", "most", "a share from 0 to 1"),
    ("global_batch", 0, "a whole number above 0"),
])  # fmt: skip
def test_what_is_no_yield_is_refused(field, value, told):
    with pytest.raises(SpecError, match=told):
        checked(sweep("mean", **{field: value}))
