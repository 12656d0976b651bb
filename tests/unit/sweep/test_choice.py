"""The best points under limits: against looking at each, with ties, and the other way round."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.cli.main import main
from meshwright.spec.sweep import Objective, SweepReport, SweepSpec
from meshwright.sweep.answer import SweepAnswer
from meshwright.sweep.choice import choices, objective_of
from meshwright.sweep.run import Swept
from meshwright.view.terminal import text_of

NAMES = ("price_units", "utilisation")
SWEEP = SweepSpec(name="designs", ask="graph", vary={"number": tuple(range(40))})
POINTS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=40)


def records(points):
    """Return points of a price and a utilisation; those of utilisation 0 do not fit."""
    return [
        {"number": n, "status": "found", "plan": "tp1", "price_units": 10.0 * p,
         "utilisation": u / 10}
        if u
        else {"number": n, "status": "nothing fits"}
        for n, (p, u) in enumerate(points)
    ]  # fmt: skip


@given(POINTS, st.integers(0, 6))
def test_least_price_above_a_floor_is_that_of_looking_at_each(points, floor):
    (found,) = choices(Objective(least="price_units", at_least={"utilisation": floor / 10}), SWEEP,
                       records(points))  # fmt: skip
    allowed = [(p, n) for n, (p, u) in enumerate(points) if u and u >= floor]
    least = min((p for p, _ in allowed), default=None)
    assert [one["number"] for one in found.best] == [n for p, n in allowed if p == least]
    assert found.num_within == len(allowed)
    assert found.num_found == sum(u > 0 for _, u in points)


@given(POINTS, st.integers(1, 5))
def test_the_best_below_the_least_price_reaches_the_floor(points, floor):
    """The dual: for no less than the least price is the floor reached, for that price it is."""
    (least,) = choices(Objective(least="price_units", at_least={"utilisation": floor / 10}), SWEEP,
                       records(points))  # fmt: skip
    if not least.best:
        return
    price = least.best[0]["price_units"]
    (most,) = choices(Objective(most="utilisation", at_most={"price_units": price}), SWEEP,
                      records(points))  # fmt: skip
    assert most.best[0]["utilisation"] >= floor / 10
    (below,) = choices(Objective(most="utilisation", at_most={"price_units": price - 1.0}), SWEEP,
                       records(points))  # fmt: skip
    assert all(one["utilisation"] < floor / 10 for one in below.best)


def screen(found, points):
    """The screen of a sweep with a choice, as one line."""
    swept = Swept(
        tuple({"number": one["number"]} for one in points),
        tuple({key: one[key] for key in one if key != "number"} for one in points), 0,
    )  # fmt: skip
    sweep = SWEEP.model_copy(update={"vary": {"number": tuple(range(len(points)))}})
    return " ".join(text_of(SweepAnswer(sweep, swept, (found,)).page()).split())


def test_ties_are_told_and_nothing_within_limits_too():
    objective = Objective(least="price_units", at_least={"utilisation": 0.4})
    points = records([(2, 5), (1, 3), (2, 4), (3, 5)])
    (found,) = choices(objective, SWEEP, points)
    shown = screen(found, points)
    assert "best number 0 (tp1); number 2 (tp1)" in shown
    limits = "least price_units with utilisation 0.4 or more: 3 of 4 points within the limits"
    assert f"{limits}, 2 tie" in shown
    few = records([(2, 1)])
    (none,) = choices(objective, SWEEP, few)
    assert "best no point" in screen(none, few)
    assert ": 0 of 1 point within the limits" in screen(none, few)


def test_each_section_of_a_report_has_its_own_choice():
    sweep = SweepSpec(name="designs", ask="graph", vary={"chip": ("A", "B"), "number": (0, 1)},
                      report=SweepReport(each="chip", shows=NAMES))  # fmt: skip
    rows = [{**one, "chip": chip} for chip, one in zip("AABB", records([(3, 5), (4, 5), (2, 5),
            (1, 1)]), strict=True)]  # fmt: skip
    found = list(
        choices(Objective(least="price_units", at_least={"utilisation": 0.5}), sweep, rows)
    )
    assert [(one.group, one.best[0]["price_units"]) for one in found] == [("A", 30.0), ("B", 20.0)]


def test_options_that_say_nothing_are_refused_together():
    assert objective_of(NAMES, None, None, (), ()) is None
    with pytest.raises(SpecError) as error:
        objective_of(NAMES, "price", "utilisation", ("utilisation=half",), ("watts=3",))
    told = str(error.value)
    assert "both are given" in told
    assert "'price' is not a result" in told
    assert "'utilisation=half'" in told
    assert "'watts' is not a result" in told
    with pytest.raises(SpecError, match="limits without an objective"):
        objective_of(NAMES, None, None, ("utilisation=0.5",), ())


def test_command_finds_the_cheapest_design_above_a_floor(tmp_path, capsys):
    path = tmp_path / "designs.yaml"
    path.write_text(
        "name: designs\nask: graph\nfixed: {graph: fft-4096x4096, devices: 8, chip: A100, "
        "network: fat-tree}\nvary:\n  memory: [DDR5, HBM3]\n  links: [PCIe4, PCIe5, NVLink4]\n"
    )
    words = ["sweep", str(path), "--json", "--least", "price_units"]
    assert main([*words, "--at-least", "utilisation=0.01"]) == 0
    data = json.loads(capsys.readouterr().out)
    within = [one for one in data["points"] if one["utilisation"] >= 0.01]
    assert 0 < len(within) < len(data["points"])
    least = min(one["price_units"] for one in within)
    assert [one["price_units"] for one in data["chosen"][0]["best"]] == [least]
    assert {"memory_power_w", "links_power_w", "chips_power_w"} <= data["points"][0].keys()
    assert main([*words, "--at-least", "utilisation=1.5"]) == 3
