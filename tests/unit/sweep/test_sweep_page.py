"""The report of a sweep: its cells, its best points, and why others have none."""

import pytest
from report_pages import EVIL, charts_of, check_names_are_text, check_page, values_of

from meshwright.api import sweep
from meshwright.spec.sweep import HeatMap, Objective, SweepReport, SweepSpec
from meshwright.sweep.answer import SweepAnswer
from meshwright.sweep.quantities import QUANTITIES
from meshwright.sweep.questions import QUESTIONS
from meshwright.sweep.run import points_of, run
from meshwright.sweep.stores import SqliteStore
from meshwright.view import charts
from meshwright.view.terminal import text_of

SWEEP = SweepSpec(
    name="sizes",
    ask="plan",
    fixed={"model": "gpt2-medium", "seq": 512},
    vary={"on": ("8xA100", "8xH100", "none"), "global_batch": (8, 16)},
    heat_map=HeatMap(rows="on", columns="global_batch", shows="step_time_s", better="lowest"),
)
SPEED = {"8xA100": 1.0, "8xH100": 2.0}


def answer(point):
    if point["on"] == "none":
        return {"status": "nothing fits", "reason": f"{point['on']} is too small"}
    return {"status": "found", "plan": "tp1", "step_time_s": point["global_batch"] / SPEED[
        point["on"]], "mfu": 0.1 * SPEED[point["on"]]}  # fmt: skip


def page_of(spec, swept):
    return SweepAnswer(spec, swept).page()


def asked(spec):
    with SqliteStore(None) as store:
        return run("plan", answer, points_of(spec), store, version="1")


@pytest.fixture(scope="module")
def swept():
    return asked(SWEEP)


def test_cells_are_the_results(swept) -> None:
    page = page_of(SWEEP, swept)
    check_page(page)
    (cells,) = [chart for title, chart in charts_of(page).items() if "Time of a step" in title]
    found = {(row["row"], row["column"]): row["amount"] for row in values_of(cells)}
    assert found == {("8xA100", "8"): 8.0, ("8xA100", "16"): 16.0,
                     ("8xH100", "8"): 4.0, ("8xH100", "16"): 8.0}  # fmt: skip
    assert page.tiles[1].question == "Which point has the least time of a step?"
    assert page.tiles[1].answer == "4 s"
    assert page.tiles[1].note == "on 8xH100, global_batch 8"
    ends = values_of(charts_of(page)["How the points ended"])
    assert {row["label"]: row["amount"] for row in ends} == {"found": 4, "nothing fits": 2}
    why = values_of(charts_of(page)["Why points have no result"])
    assert [row["label"] for row in why] == ["none is too small"]


def test_a_result_that_no_point_has_is_not_drawn(swept) -> None:
    single = SweepSpec(name="x", ask="plan", fixed={"on": "8xA100"}, vary={"global_batch": (8, 16)})
    power = SWEEP.model_copy(update={"heat_map": HeatMap(rows="on", columns="global_batch",
                                                          shows="power_w")})  # fmt: skip
    assert list(charts_of(page_of(single, asked(single)))) == [
        "Time of a step by global batch", "How the points ended",
    ]  # fmt: skip
    assert not [name for name in charts_of(page_of(power, swept)) if "ower" in name]


def test_what_does_not_fit_is_a_cross(swept) -> None:
    page = page_of(SWEEP, swept)
    (cells,) = [chart for title, chart in charts_of(page).items() if "Time of a step" in title]
    *_, crosses = cells.spec["layer"]
    assert [tuple(row.values()) for row in crosses["data"]["values"]] == [
        ("none", "16"), ("none", "8"),
    ]  # fmt: skip
    assert crosses["transform"] == charts.kind_of("nothing fits")


def test_every_result_of_every_question_is_known() -> None:
    named = {name for question in QUESTIONS.values() for name in question.values}
    assert named == QUANTITIES.keys()
    assert not [one for one in QUANTITIES.values() if "_" in one.words]


def test_sections_of_a_file_have_their_own_maps_and_choices(swept) -> None:
    report = SweepReport(
        each="on", shows=("mfu",), choose=(Objective(least="step_time_s", at_least={"mfu": 0.2}),),
        heat_maps=(HeatMap(rows="on", columns="global_batch", shows="mfu"),), remarks=("Fast.",),
    )  # fmt: skip
    page = page_of(SWEEP.model_copy(update={"report": report}), swept)
    check_page(page)
    chosen = [tile for tile in page.tiles if tile.section == "best" and "8xH100" in tile.question]
    assert [tile.answer for tile in chosen] == ["on 8xH100, global_batch 8 (tp1)"]
    assert page.sections[-1].key == "says"


def test_one_field_has_bars() -> None:
    alone = SWEEP.model_copy(
        update={"vary": {"on": ("8xA100",), "global_batch": (8, 16)}, "heat_map": None}
    )
    page = page_of(alone, asked(alone))
    check_page(page)
    single = SweepSpec(name="x", ask="plan", fixed={"on": "8xA100"}, vary={"global_batch": (8, 16)})
    bars = charts_of(page_of(single, asked(single)))["Time of a step by global batch"]
    assert [row["amount"] for row in values_of(bars)] == [8.0, 16.0]


def test_a_report_without_maps_has_the_usual_one(swept) -> None:
    told = {"heat_map": None, "report": SweepReport(each="on", shows=("mfu",))}
    assert "Utilisation by system and global batch (sizes)" in charts_of(
        page_of(SWEEP.model_copy(update=told), swept)
    )


def test_a_screen_has_the_counts_the_reason_and_the_map(swept) -> None:
    shown = text_of(page_of(SWEEP, swept))
    assert "4 found, 2 nothing fits" in shown
    assert "6 points, 6 of them new" in shown
    assert "none is too small (2)" in shown
    (line,) = [line for line in shown.splitlines() if line.split()[:1] == ["8xH100"]]
    assert line.split()[1:] == ["4", "8"]


def test_names_are_text(swept) -> None:
    evil = SWEEP.model_copy(update={"name": EVIL})
    check_names_are_text(page_of(SWEEP, swept), page_of(evil, swept))


@pytest.mark.slow
def test_a_file_is_swept_into_a_page(tmp_path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("name: x\nask: plan\nfixed: {model: gpt2-medium, seq: 512, on: 8xA100}\n"
                    "vary:\n  global_batch: [8, 16]\n")  # fmt: skip
    target = tmp_path / "sweep.html"
    sweep(str(path), report=str(target), most="mfu")
    assert "Which point has the most mfu?" in target.read_text("utf-8")
