"""Placements that a user states: priced, simulated, written and read again."""

import json
from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
from meshwright.base.errors import InfeasibleError, SpecError, UnsupportedError
from meshwright.base.units import format_seconds
from meshwright.catalog.answer_file import plain_data
from meshwright.cli.main import main
from meshwright.spec.flows import PlacementFile
from meshwright.train import plan_file
from meshwright.wafer.price import physical_network
from meshwright.wafer.question import compared, place_on, placed
from meshwright.wafer.search import price_as_placed
from meshwright.wafer.simulation import simulate

QUESTION = {"seq": 2048, "global_batch": 128}


@pytest.fixture(scope="module")
def plan():
    return mw.estimate("gpt3-6.7b", on="wafer-4x8", tatp=8, **QUESTION)


def mirrored(devices, columns=8):
    """Return devices mirrored from left to right."""
    return tuple(d - d % columns + columns - 1 - d % columns for d in devices)


def test_the_placement_of_a_plan_is_priced_as_the_plan(plan):
    same = place_on(plan, PlacementFile(plan.best.placement.devices, None))
    assert same.best.estimate == plan.best.estimate
    assert same.best.placement.slowdown == plan.best.placement.slowdown
    assert same.best.placement.devices == plan.best.placement.devices


def test_a_mirrored_placement_is_as_fast_on_mirrored_links(plan):
    devices = mirrored(plan.best.placement.devices)
    moved = place_on(plan, PlacementFile(devices, dict(plan.best.placement.shapes)))
    assert moved.best.placement.devices == devices
    assert moved.best.estimate.step_time_s == pytest.approx(plan.best.estimate.step_time_s)
    assert simulate(moved).step.step_time_s == pytest.approx(simulate(plan).step.step_time_s)


def test_groups_keep_their_order_and_links_are_loaded_where_the_devices_are(plan):
    """Members of a group stay in the order of the blocks; loads equal those of their messages."""
    random = np.random.default_rng(5)
    devices = tuple(random.permutation(32).tolist())
    moved = place_on(plan, PlacementFile(devices, None))
    problem = plan.problem
    physical = physical_network(problem)
    before = price_as_placed(problem, plan.best, physical).ranks
    after = price_as_placed(problem, moved.best, physical).ranks
    new = dict(zip(plan.best.placement.devices, devices, strict=True))
    for axis in plan.best.placement.axes:
        there = np.vectorize(new.__getitem__)(before.groups(axis))
        assert sorted(there.tolist()) == sorted(after.groups(axis).tolist())
    assert moved.best.estimate.step_time_s >= plan.best.placement.closed_form_s
    assert moved.best.placement.lower_bound_s <= moved.best.estimate.step_time_s
    slowdown = moved.best.placement.slowdown["tatp"]
    assert slowdown > plan.best.placement.slowdown["tatp"]


@pytest.mark.slow
def test_two_placements_stand_side_by_side(plan):
    """A mirrored placement has the same times: the verdict and each row say so."""
    devices = mirrored(plan.best.placement.devices)
    found = compared(plan, place_on(plan, PlacementFile(devices, dict(plan.best.placement.shapes))))
    page = found.page()
    assert "as fast as planned" in page.tiles[0].answer
    (times,) = page.sections[0].parts
    assert all(row[1] == row[2] for row in times.rows)
    assert times.rows[0][1] == format_seconds(found.planned.simulated_s)
    assert [row["devices"] if "devices" in row else row["simulated_s"] for row in found.rows()] == [
        found.planned.simulated_s, found.stated.simulated_s
    ]  # fmt: skip


def test_a_placement_lists_the_device_of_each_rank(plan):
    found = placed(plan)
    assert [tile.answer for tile in found.page().tiles] == [
        ", ".join(f"{axis} {'x'.join(map(str, shape))}" for axis, shape in found.axes.items()),
        ", ".join(map(str, plan.best.placement.devices)),
    ]


@pytest.mark.slow
def test_a_written_plan_is_simulated_where_it_was_placed(plan, tmp_path, capsys):
    source, file, target = (tmp_path / name for name in ("plan.json", "mine.json", "new.json"))
    plan_file.save(plan, source)
    assert main(["place", str(source), "--out", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record == plain_data(placed(plan))
    record["devices"] = list(mirrored(record["devices"]))
    file.write_text(json.dumps(record))
    capsys.readouterr()
    assert main(["place", str(source), str(file), "--out", str(target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"as planned", "as stated"}
    assert found["as stated"]["devices"] == record["devices"]
    again = plan_file.load(target)
    assert list(again.best.placement.devices) == record["devices"]
    assert simulate(again).step.step_time_s == pytest.approx(found["as stated"]["simulated_s"])
    assert main(["place", str(source), str(file)]) == 0
    text = capsys.readouterr().out
    assert "contended" in text
    assert "simulated" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("devices", "axes", "path"),
    [
        (range(31), None, "devices"),
        ([*range(31), 32], None, "devices[31]"),
        (range(32), {"tp": (1, 8)}, "axes"),
        (range(32), {"tatp": (1, 4), "dp_shard": (4, 1)}, "axes.tatp"),
        (range(32), {"tatp": (8,), "dp_shard": (4, 1)}, "axes.tatp"),
    ],
)
def test_what_does_not_fit_the_plan_is_told(plan, devices, axes, path):
    with pytest.raises(SpecError) as caught:
        place_on(plan, PlacementFile(tuple(devices), axes))
    assert path in [fault.path for fault in caught.value.faults]


def test_dead_devices_hold_no_rank_and_switches_no_placement():
    plan = mw.estimate("gpt3-6.7b", on="wafer-4x8", tatp=4, dp=4, **QUESTION)
    broken = plan.system.model_copy(update={"dead_devices": (5,)})
    with pytest.raises(InfeasibleError, match="dead"):
        place_on(
            replace(plan, system=broken),
            PlacementFile(tuple(range(16)), None),
        )
    switched = mw.estimate("llama3-8b", on="8xH100", seq=2048, global_batch=8, tp=8)
    with pytest.raises(UnsupportedError, match="not placed"):
        placed(switched)
