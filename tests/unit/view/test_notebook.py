"""Answers in a notebook: short, with a table, and with the charts of their report."""

import inspect
import json
import sys
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
from report_pages import charts_of
from sampled import slow_where

import meshwright as mw
from meshwright.base.errors import UnknownNameError, UnsupportedError
from meshwright.base.records import Listed, Shown
from meshwright.catalog.answer_file import plain_data
from meshwright.view import charts
from meshwright.view.notebook import WIDTH, figure
from meshwright.view.parts import Chart

pytestmark = pytest.mark.usefixtures("kept_answers")

ASKED = {"on": "8xH100", "seq": "1k", "global_batch": 16}
REQUESTS = {"batch": 64, "prompt": "2k", "answer": 128,
            "max_ttft": "2 s"}  # fmt: skip
ROWS = [
    {"id": f"run {seconds}", "group": "ours", "framework": "megatron-bridge",
     "model": "llama3-8b", "system": "8xH100", "sequence_length": 8192, "global_batch_size": 128,
     "strategy": {"tp": 2, "zero_stage": 1}, "precision": "bf16",
     "measured": {"iteration_time_s": seconds}}
    for seconds in (16.9, 17.2)
]  # fmt: skip
SWEPT = """
name: small
ask: plan
fixed: {model: gpt2-medium, seq: 1024}
vary: {on: [1xH100, 2xH100], global_batch: [4, 8]}
"""


FLOWS = {
    "name": "two flows",
    "links": [{"id": name, "src": name[0], "dst": name[1], "bw_Bps": 2e9, "lat_s": 1e-6}
              for name in ("ab", "bc", "ac")],
    "flows": [{"id": name, "src": "a", "dst": "c", "bytes": 1e6, "start_s": 0, "route": ["ac"]}
              for name in ("one", "other")],
}  # fmt: skip
SCRIPT = """torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 \\
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 \\
    --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16 --bf16
"""


@dataclass(frozen=True)
class Files:
    """Where files of the answers lie."""

    rows: str
    sweep: str
    flows: str
    script: str


MADE = {
    "plan": lambda files: mw.plan("gpt2-medium", **ASKED),
    "pipeline": lambda files: mw.estimate("gpt2-medium", **ASKED, tp=2, pp=4),
    "fit": lambda files: mw.fit("llama3-70b", **ASKED, tp=2),
    "front": lambda files: mw.plan("gpt2-medium", **ASKED, pareto=True),
    "deadline": lambda files: mw.plan(
        "llama3-8b", on="H100", seq="8k", global_batch=64, tokens="10B", within="30d"
    ),
    "comparison": lambda files: mw.compare("gpt2-medium", **ASKED, against="fsdp,megatron-1"),
    "explanation": lambda files: mw.explain(mw.plan("gpt2-medium", **ASKED, tp=2, zero=1)),
    "diagnosis": lambda files: mw.explain(
        mw.estimate("gpt2-medium", **ASKED, tp=2), measured="10 s"
    ),
    "serving": lambda files: mw.serve("llama3-8b", on="8xH100", **REQUESTS),
    "apart": lambda files: mw.serve("llama3-8b", on="8xH100", **REQUESTS, disaggregated=True),
    "traffic": lambda files: mw.serve("llama3-8b", on="8xH100", rate=2, prompt="1k", answer=128),
    "graph": lambda files: mw.map("gpt3-175b-layer", on="8xH100"),
    "linpack": lambda files: mw.map("hpl-20000x512", on="8xH100", process_grid="any"),
    "fusion": lambda files: mw.fuse("gpt3-175b-layer", on="SN10"),
    "partition": lambda files: mw.partition("llama3-8b", on="8xH100", level="hbm", seq=4096),
    "timeline": lambda files: mw.timeline(mw.estimate("gpt2-medium", **ASKED, tp=2, pp=4)),
    "sweep": lambda files: mw.sweep(files.sweep),
    "validation": lambda files: mw.validate(measurements=files.rows),
    "kernels": lambda files: mw.validate(kernels=True),
    "fitted": lambda files: mw.calibrate(files.rows),
    "job": lambda files: mw.read([files.script]),
    "routed": lambda files: mw.route(files.flows)[0],
    "played flows": lambda files: mw.simulate("flows", files.flows)[0][1],
}
IN_QUICK_RUN = ("plan", "pipeline", "serving", "graph", "fusion", "partition", "timeline", "sweep",
                "job", "routed")  # fmt: skip


def of(names):
    """Return names for ``parametrize``, those that take long for the full run."""
    return slow_where(names, lambda name: name not in IN_QUICK_RUN)


PLAIN = ("plan", "pipeline", "fit", "front", "serving", "partition")
"""Answers whose JSON is made of their fields."""
WITHOUT_PLOTS = ("fitted", "job", "routed", "played flows")
BESIDE = {"fits"}
"""Columns that JSON has elsewhere."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    texts = {"rows.json": json.dumps(ROWS), "sweep.yaml": SWEPT, "flows.json": json.dumps(FLOWS),
             "train.sh": SCRIPT}  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    return Files(*(str(folder / name) for name in texts))


@pytest.fixture(scope="module")
def made(files):
    """Return an answer by its name, the same one to all who ask."""
    return cache(lambda name: MADE[name](files))


@pytest.fixture(params=of(MADE))
def answer(request, made):
    return made(request.param)


def plots_of(answer):
    """The charts of an answer: those of its view by their titles, and methods that draw one."""
    found = {
        name: method
        for name, method in inspect.getmembers(answer, inspect.ismethod)
        if name.startswith("plot_")
    }
    if not found and isinstance(answer, Shown):
        found = {title: partial(answer.plot, title) for title in charts_of(answer.page())}
    return found


def test_an_answer_is_a_few_lines(answer):
    shown = repr(answer)
    assert shown.startswith(f"<{type(answer).__name__} ")
    assert len(shown) < 450  # the question and two answers
    assert shown.count("\n") <= 3


def test_an_answer_has_a_view_for_notebooks(answer):
    view = answer._repr_html_()
    assert view.startswith("<")
    assert len(view) < 10_000


def test_an_answer_has_a_table(answer):
    table = answer.to_dataframe()
    assert len(table) == len(answer.rows()) > 0
    assert table.to_dict("list").keys() == set(answer.to_dataframe("polars").columns)


def keys_in(data):
    """All names in data, at any depth."""
    if isinstance(data, dict):
        return set(data).union(*map(keys_in, data.values()))
    return set().union(*map(keys_in, data)) if isinstance(data, list) else set()


@pytest.mark.parametrize("name", of(PLAIN))
def test_columns_have_the_names_of_json(name, made):
    plain = made(name)
    known = keys_in(plain_data(plain, with_defaults=True)) | BESIDE
    known |= {
        key.replace("interval", f"interval_{end}") for key in known for end in ("low", "high")
    }
    assert {name for row in plain.rows() for name in row} <= known


@pytest.mark.parametrize("name", of(name for name in MADE if name not in WITHOUT_PLOTS))
def test_plots_are_the_charts_of_the_report(name, made):
    """Drawn once: a plot has the title and the data of a chart of the report."""
    answer = made(name)
    drawn, refused = {}, {}
    for plot_name, plot in plots_of(answer).items():
        assert inspect.getdoc(getattr(plot, "func", plot))
        try:
            drawn[plot_name] = plot().to_dict(validate=False)
        except UnsupportedError as error:
            refused[plot_name] = str(error)
    assert all(text.startswith("there is nothing to draw: ") for text in refused.values())
    shown = charts_of(answer.page())
    for spec in drawn.values():
        assert shown[spec["title"]["text"]].spec["data"]["values"] in spec["datasets"].values()


@pytest.mark.parametrize("name", of(MADE))
def test_most_answers_have_plots(name, made):
    assert bool(plots_of(made(name))) == (name not in WITHOUT_PLOTS)


def test_every_kind_of_chart_is_valid_vega_lite():
    """Altair checks against the schema of Vega-Lite."""
    one, two = ["a", "b"], [1.0, 200.0]
    kinds = {
        "bars": charts.bars(one, two, one, "time [s]", limit=3.0),
        "stacked": charts.stacked(
            one, {"x": two, "y": two}, "time [s]", row_title="row", limit=3.0
        ),
        "lines": charts.lines(
            one, two, two, "x [s]", "y [s]", series_title="s", limit=3.0, is_stepped=True
        ),
        "points": charts.points(one, two, two, one, "x [s]", "y [s]", limit=3.0, is_brushed=True),
        "agreement": charts.agreement(one, two, two, one, "x [s]", "y [s]"),
        "heat": charts.heat(
            one, one, two, one, one, one, one, "row", "column", "amount", misfits=[("a", "b")]
        ),
        "spans": charts.spans(one, two, two, two, "time [s]"),
        "strips": charts.strips(one, two, one, one, "ratio"),
        "spreads": charts.spreads(one, one, two, two, ("median", "p90"), "error [%]"),
        "boxes": charts.boxes(
            two, [2.0, 3.0], two, [2.0, 3.0], one, one, one, "time [s]", "cores", 100, "of"
        ),
        "timeline": charts.timeline(
            one, two, two, one, one, {"a": "#000000", "b": "#ffffff"}, "time [s]", "row", "of"
        ),
    }
    known = inspect.getmembers(charts, inspect.isfunction)
    drawn = {name for name, kind in known if "return chart(" in inspect.getsource(kind)}
    assert drawn <= kinds.keys()
    for spec in kinds.values():
        drawn = figure(Chart("title", "what it shows", spec)).to_dict()
        assert drawn["width"] == WIDTH
        assert drawn["title"]["subtitle"] == ["what it shows"]


def test_without_altair_the_error_says_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    spec = charts.bars(["a"], [1.0], ["1"], "time [s]")
    with pytest.raises(UnsupportedError, match=r"pip install 'meshwright\[plot\]'"):
        figure(Chart("title", "", spec))


def test_what_cannot_be_drawn_says_why(made):
    with pytest.raises(UnknownNameError, match="chart of this answer 'space'"):
        made("pipeline").plot("space")
    with pytest.raises(UnknownNameError, match="'tim'; did you mean time"):
        made("serving").plot("tim")
    with pytest.raises(UnknownNameError, match="'cuonts'; did you mean counts"):
        made("sweep").plot("cuonts")


def test_drawing_leaves_the_chart_of_the_report_as_it_is():
    spec = charts.bars(["a"], [1.0], ["1"], "time [s]")
    before = json.dumps(spec)
    figure(Chart("title", "", spec))
    assert json.dumps(spec) == before


def test_charts_stand_side_by_side_and_alone_have_their_colours():
    one, other = (
        figure(Chart(name, "", charts.bars(["a"], [1.0], ["1"], "time [s]"))) for name in "xy"
    )
    beside = (one | other).to_dict()
    assert [part["title"]["text"] for part in beside["hconcat"]] == ["x", "y"]
    assert one.to_dict()["config"]["background"] == "transparent"
    assert one.to_dict()["autosize"]["type"] == "fit-x"
    assert one.configure_axis(labelFontSize=20).to_dict()["config"]["axis"] == {"labelFontSize": 20}


@pytest.mark.slow
def test_a_plan_on_a_wafer_is_played_with_the_links_that_it_shares():
    found = mw.plan("gpt3-6.7b", on="wafer-4x8", seq="2k", global_batch=128)
    played = mw.simulate(found)
    assert len(played.to_dataframe()) == len(played.step.graph)
    assert "step: " in repr(played)
    assert mw.timeline(found).plot("time").to_dict()["title"]["text"] == "The step over time"
    assert played.plot("links").to_dict()
    (whole,) = played.page().sections[0].parts
    assert sum(whole.parts.values()) == pytest.approx(whole.whole) == played.step.step_time_s


@pytest.mark.slow
def test_a_diagnosis_leads_with_a_change_that_gains_or_with_none(made):
    found = made("diagnosis")
    best = max(found.changes, key=lambda change: change.faster_by_fraction)
    assert f"{best.what}: {best.faster_by_fraction:.1%} faster" in found.brief().splitlines()[-1]
    slower = tuple(replace(change, faster_by_fraction=-0.1) for change in found.changes)
    assert "faster" not in replace(found, changes=slower).brief()


def test_inner_records_are_short_too(made):
    found = made("plan")
    inner = (found.best, found.best.estimate, found.coverage, found.robustness, found.model,
             found.system, found.workload, found.best.plan_options)  # fmt: skip
    assert [type(one).__name__ for one in inner if len(repr(one)) > 330] == []


def test_every_listed_answer_is_known_here():
    """A new answer is added to the tests above, or here with its reason."""

    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    elsewhere = {
        "Replan", "MeasuredMachine", "ProfiledStep", "DataflowGraph", "SimulatedPlan",
        "ServingFront", "Factors", "GraphSummary", "PlacedPlan", "PlayedPlacement", "Placements",
        "FittedCurves", "Listed", "Shown", "Told", "DryRun", "Executed",
    }  # fmt: skip
    tested = {
        "Plan", "Fit", "Check", "Front", "Deadline", "Comparison", "Explanation", "Diagnosis",
        "ServingPlan", "TrafficPlan", "LoopPlan",
        "DisaggregatedPlan", "GraphAnswer", "GridRuns", "FusionAnswer", "PartitionPlan",
        "StepTimeline", "SweepAnswer", "Validation", "KernelValidation", "Fitted", "ReadJob",
        "RoutedFlows", "Timeline",
    }  # fmt: skip
    assert {kind.__name__ for kind in below(Listed)} <= elsewhere | tested
