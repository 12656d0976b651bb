"""Reports of sweeps: shares of the best, groups compared, two results side by side, documents."""

import math

import pytest

from meshwright.base.errors import SpecError
from meshwright.cli.main import main
from meshwright.spec.sweep import Compared, HeatMap, SweepReport, SweepSpec
from meshwright.sweep import questions
from meshwright.sweep.answer import SweepAnswer
from meshwright.sweep.questions import checked
from meshwright.sweep.results import Gain, best_of, cells_of, gain, orders, ratios
from meshwright.sweep.run import Swept, points_of, run
from meshwright.sweep.stores import SqliteStore
from meshwright.view.markdown import markdown_of

RATES = {"fast": 8.0, "slow": 2.0, "old": 1.0}
SWEEP = SweepSpec(
    name="three chips",
    ask="graph",
    cases={"work": {"small": {"graph": "a"}, "large": {"graph": "b"}, "none": {"graph": "c"}}},
    vary={"chip": ("fast", "slow", "old"), "links": (1, 2)},
    report=SweepReport(
        each="work",
        shows=("passes_per_s",),
        heat_maps=(
            HeatMap(rows="chip", columns="work", shows="passes_per_s", relative=True),
            HeatMap(rows="chip", columns="links", shows="passes_per_s"),
        ),
        compare=Compared(field="chip", groups={"new": ("fast", "slow"), "others": ("old",)}),
        beside=("passes_per_s", "peer_passes_per_s"),
        remarks=("Links matter little.",),
    ),
)


def answer(point):
    """Answer: rates follow the chip, links help a little, and one workload fits nowhere."""
    if point["work"] == "none":
        return {"status": "refused", "reason": f"{point['chip']} lacks it"}
    rate = RATES[point["chip"]] * (10.0 if point["work"] == "small" else 1.0)
    return {
        "status": "found", "plan": "tp1", "passes_per_s": rate * (1.0 + 0.1 * point["links"]),
        "peer_passes_per_s": rate * 1.5,
    }  # fmt: skip


@pytest.fixture(scope="module")
def swept():
    with SqliteStore(None) as store:
        return run("graph", answer, points_of(SWEEP), store, version="1")


def rows(swept):
    return [{**point, **result} for point, result in zip(swept.points, swept.results, strict=True)]


def test_shares_are_those_of_the_best_of_a_column(swept):
    cells = cells_of(SWEEP, SWEEP.report.heat_maps[0], swept)
    assert cells.values["fast", "small"] == cells.values["fast", "large"] == 1.0
    assert cells.values["old", "small"] == pytest.approx(0.125)
    assert ("fast", "none") not in cells.values


def test_shares_of_what_should_be_low_are_the_least_over_the_value(swept):
    low = SWEEP.report.heat_maps[0].model_copy(update={"better": "lowest"})
    cells = cells_of(SWEEP, low, swept)
    assert cells.values["old", "small"] == 1.0
    assert cells.values["fast", "small"] == pytest.approx(0.125)


def test_a_gain_is_that_of_the_best_and_the_geometric_mean(swept):
    here = [row for row in rows(swept) if row["work"] == "small"]
    found = gain(here, "passes_per_s", SWEEP.report.compare, ["links"])
    assert found.best == pytest.approx(8.0)
    assert found.mean == pytest.approx(math.sqrt(8.0 * 2.0))
    assert found.num_designs == 2
    empty = [row for row in rows(swept) if row["work"] == "none"]
    assert gain(empty, "passes_per_s", SWEEP.report.compare, ["links"]).best is None


NAMES = ("passes_per_s", "peer_passes_per_s")


def test_ratios_are_those_of_points_that_have_both(swept):
    found = ratios(rows(swept), NAMES)
    assert (found.least, found.most) == (pytest.approx(1.1 / 1.5), pytest.approx(1.2 / 1.5))
    assert found.num_points == 12
    assert ratios([], NAMES) is None


def test_orders_compare_points_that_differ_in_one_field(swept):
    sides = list(SWEEP.sides)
    links = orders(rows(swept), NAMES, "links", sides)
    # Two workloads and three chips: the other rules see no difference between the links.
    assert (links.num_pairs, links.alike, links.ties) == (6, 0.0, 1.0)
    chips = orders(rows(swept), NAMES, "chip", sides)
    # Two workloads, two links, three pairs of chips.
    assert (chips.num_pairs, chips.alike, chips.ties) == (12, 1.0, 0.0)
    assert orders([], NAMES, "chip", sides) is None


def test_the_best_point_is_the_highest_that_has_a_value(swept):
    assert best_of(rows(swept), "passes_per_s")["passes_per_s"] == pytest.approx(96.0)
    assert best_of(rows(swept), "unheard_of") is None


@pytest.mark.parametrize("name", ["dead_devices", "power_w", "lower_bound_s", "mfu"])
def test_which_value_is_best_is_said_of_the_quantity(name):
    points = [{"status": "found", name: value} for value in (2.0, 1.0, 3.0)]
    assert best_of(points, name)[name] == (3.0 if name == "mfu" else 1.0)


def test_of_times_the_least_is_best_in_a_document_and_in_what_is_compared():
    compared = Compared(field="chip", groups={"new": ("a", "b"), "old": ("c",)})
    sweep = SweepSpec(
        name="times", ask="graph", vary={"graph": ("small",), "chip": ("a", "b", "c")},
        report=SweepReport(each="graph", shows=("step_time_s",), compare=compared),
    )  # fmt: skip
    points = tuple({"graph": "small", "chip": chip} for chip in "abc")
    times = tuple({"status": "found", "plan": "", "step_time_s": time} for time in (4.0, 2.0, 8.0))
    page = SweepAnswer(sweep, Swept(points, times, 0)).page()
    text = markdown_of(page, "times")["times.md"]
    assert "| small | least time of a step | small | b |" in text
    assert "| small | step_time_s | 0.25x |" in text
    assert "of equal ." not in text


def test_a_group_with_nothing_of_a_result_is_not_compared():
    records = [
        {"chip": chip, "dead_devices": number}
        for chip, number in zip("abc", (2, 0, 0), strict=True)
    ]
    groups = Compared(field="chip", groups={"new": ("a",), "old": ("b", "c")})
    assert gain(records, "dead_devices", groups, []) == Gain(None, None, 0)


def test_a_document_has_a_section_for_each_value_and_says_why_cells_are_empty(swept):
    page = SweepAnswer(SWEEP, swept, command="meshwright sweep x.yaml").page()
    files = markdown_of(page, "three", without=("points",))
    text = files.pop("three.md")
    for part in ("# Sweep: three chips", "| small |", "| large |", "slow lacks it",
                 "Links matter little.", "New over others", "meshwright sweep x.yaml",
                 "](three_map.svg)"):  # fmt: skip
        assert part in text
    assert "## All points" not in text
    assert {"three_map.svg", "three_map2.svg", "three_map3.svg"} <= set(files)
    assert all(picture.startswith("<svg") for picture in files.values())


def test_the_command_writes_the_document_and_its_pictures(tmp_path, capsys):
    path, out = tmp_path / "sweep.yaml", tmp_path / "found.md"
    path.write_text(
        "name: transforms\nask: graph\nfixed: {passes: 1}\n"
        "vary:\n  graph: [fft-64x64, fft-128x128]\n  on: [2xA100, 2xH100]\n"
        "report:\n  each: graph\n  shows: [passes_per_s]\n"
        "  heat_maps: [{rows: on, columns: graph, shows: passes_per_s}]\n"
    )
    assert main(["sweep", str(path), "--report", str(out)]) == 0
    assert "| fft-64x64 |" in out.read_text()
    assert (tmp_path / "found_map.svg").exists()
    path.write_text(path.read_text().replace("shows: [passes_per_s]", "shows: [speed]"))
    assert main(["sweep", str(path), "--report", str(out), "--force"]) == 2
    path.write_text(path.read_text().partition("report:")[0])
    capsys.readouterr()
    assert main(["sweep", str(path), "--report", str(out), "--force"]) == 2
    assert "states no report" in capsys.readouterr().err


def test_a_result_of_a_peer_needs_its_rules(monkeypatch):
    fields = {
        "fixed": {"graph": "dlrm-a", "on": "8xA100"}, "vary": {"passes": (1, 2)}, "cases": {},
        "report": SweepReport(each="passes", shows=("peer_passes_per_s",)),
    }  # fmt: skip
    sweep = SWEEP.model_copy(update=fields)
    assert checked(sweep)
    monkeypatch.setattr(questions, "load_entry_points", lambda group: {})
    with pytest.raises(SpecError, match="pip install meshwright-papers"):
        checked(sweep)
