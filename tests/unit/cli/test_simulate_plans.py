"""``simulate PLAN.json`` and ``explain --picture``: screens, data, files, and bad input."""

import gzip
import json
from xml.etree import ElementTree

import pytest

import meshwright as mw
from meshwright.cli.main import main

QUESTION = ["gpt2-medium", "--seq", "128", "--global-batch", "16", "--zero", "1"]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    """Return the path of a placed plan."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    words = ["estimate", *QUESTION, "--on", "wafer-2x2", "--tp", "2", "--out", str(path)]
    assert main(words) == 0
    return path


@pytest.fixture(scope="module")
def flat_file(tmp_path_factory):
    """Return the path of a plan on no grid."""
    path = tmp_path_factory.mktemp("plans") / "flat.json"
    words = ["estimate", *QUESTION, "--on", "4xH100", "--tp", "2", "--out", str(path)]
    assert main(words) == 0
    return path


def refused(capsys, status, *words):
    """Return what a command says of bad input."""
    capsys.readouterr()
    assert main(list(words)) == status
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_the_screen_is_narrow_and_says_three_times(capsys, plan_file):
    capsys.readouterr()
    assert main(["simulate", str(plan_file)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 100
    assert len(out.splitlines()) <= 24
    for words in ("simulated", "contended", "closed form", "compute", "micro-batches",
                  "busy on average", "in tenths"):  # fmt: skip
        assert words in out


def test_the_data_hold_parts_that_sum(capsys, plan_file):
    capsys.readouterr()
    assert main(["simulate", str(plan_file), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {
        "plan", "fidelity", "step_time_s", "time_parts_s", "contended_s", "closed_form_s",
        "num_tasks", "num_micro_batches", "num_micro_batches_played", "link_utilisation",
        "busiest_links", "operators_s", "operators_time_parts_s",
    }  # fmt: skip
    assert data["fidelity"] == "simulated"
    assert sum(data["time_parts_s"].values()) == pytest.approx(data["step_time_s"])
    assert data["closed_form_s"] <= data["contended_s"] * (1 + 1e-12)
    assert data["step_time_s"] == pytest.approx(data["contended_s"], rel=0.1)
    used = data["link_utilisation"]
    assert 0 < used["mean"] <= used["largest"] <= 1
    assert len(used["over_time"]) == 10
    assert sum(used["over_time"]) / 10 == pytest.approx(used["mean"], rel=1e-6)
    assert data["busiest_links"][0]["utilisation"] == used["largest"]


def test_the_page_holds_the_parts_of_the_step_and_the_load_of_the_links(plan_file):
    played = mw.simulate(str(plan_file))
    time, links = played.page().sections
    assert sum(time.parts[0].parts.values()) == pytest.approx(time.parts[0].whole)
    load, busiest = links.parts
    assert [row[1] for row in load.data.rows] == list(played.link_utilisation.over_time)
    assert sum(row[1] for row in load.data.rows) / 10 == pytest.approx(
        played.link_utilisation.mean, rel=1e-6
    )
    assert busiest.rows[0][1] == played.link_utilisation.largest


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_json_with_devices_and_axes(capsys, plan_file, tmp_path, name):
    path = tmp_path / name
    assert main(["simulate", str(plan_file), "--trace", str(path)]) == 0
    raw = path.read_bytes()
    trace = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
    events = trace["traceEvents"]
    named = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert any(name.startswith("compute") for name in named)
    assert any(name.startswith("tp") for name in named)
    assert {e["pid"] for e in events if e["ph"] == "X"} == {1, 2, 3, 4}  # device + 1
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    assert any(e["ph"] == "C" for e in events)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [None, "dp_shard"])
def test_a_picture_is_svg_with_a_colour_for_each_group(capsys, plan_file, tmp_path, axis):
    path = tmp_path / "wafer.svg"
    words = ["explain", str(plan_file), "--picture", str(path)]
    assert main([*words, "--colors", axis] if axis else words) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = " ".join("".join(entry.itertext()) for entry in root.iter())
    assert f"{axis or 'tp'} group 1" in text
    assert "gpt2-355m on wafer-2x2" in text


def test_a_plan_on_no_grid_is_its_stages_over_time(capsys, flat_file, tmp_path):
    trace, picture = tmp_path / "flat.json", tmp_path / "flat.svg"
    capsys.readouterr()
    words = ["simulate", str(flat_file), "--trace", str(trace), "--picture", str(picture)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 100
    assert "with the schedule played (+0.0%)" in out
    assert json.loads(trace.read_text())["otherData"]["fidelity"] == "closed_form"
    drawn = picture.read_text(encoding="utf-8")
    assert "gpt2-355m on 4xH100" in "".join(ElementTree.fromstring(drawn).itertext())
    other = tmp_path / "other.svg"
    assert main(["explain", str(flat_file), "--picture", str(other)]) == 0
    assert other.read_text(encoding="utf-8") == drawn
    capsys.readouterr()
    assert main(["simulate", str(flat_file), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {
        "plan", "fidelity", "step_time_s", "priced_s", "num_micro_batches", "num_tasks", "stages"
    }  # fmt: skip
    plan = json.loads(flat_file.read_text())["best"]["estimate"]
    assert data["priced_s"] == plan["step_time_s"]
    assert data["step_time_s"] == pytest.approx(plan["step_time_s"], rel=1e-12)
    (stage,) = data["stages"]
    assert stage["memory_peak_bytes"] == plan["memory_bytes"]
    assert sum(stage["by_task_s"].values()) == pytest.approx(stage["busy_s"])


def test_a_placed_plan_has_a_pipeline_chart_too(plan_file, tmp_path):
    picture = tmp_path / "stages.svg"
    assert main(["simulate", str(plan_file), "--picture", str(picture)]) == 0
    text = "".join(ElementTree.fromstring(picture.read_text(encoding="utf-8")).itertext())
    assert "passes and links contended" in text


def test_what_has_no_grid_has_no_groups_and_flows_have_no_stages(capsys, flat_file, tmp_path):
    picture = tmp_path / "flat.svg"
    words = ["explain", str(flat_file), "--picture", str(picture), "--colors", "tp"]
    assert "only on grids of devices" in refused(capsys, 2, *words)
    words = ["simulate", "flows", str(flat_file), "--picture", str(picture)]
    assert "applies only with a plan" in refused(capsys, 2, *words)
    assert not picture.exists()


def test_an_unknown_axis_is_told_with_those_that_are_there(capsys, plan_file, tmp_path):
    picture = tmp_path / "wafer.svg"
    words = ["explain", str(plan_file), "--picture", str(picture), "--colors", "width"]
    err = refused(capsys, 2, *words)
    assert "width" in err
    assert "tp, dp_shard" in err
    assert not picture.exists()


def test_colors_without_a_picture_are_idle(capsys, plan_file):
    assert "--picture" in refused(capsys, 2, "explain", str(plan_file), "--colors", "tp")


def test_missing_and_broken_files_are_told(capsys, plan_file, tmp_path):
    missing = tmp_path / "none.json"
    assert "cannot be read" in refused(capsys, 2, "simulate", str(missing))
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    assert "not JSON" in refused(capsys, 2, "simulate", str(broken))
    data = json.loads(plan_file.read_text(encoding="utf-8"))
    data["best"]["placement"]["devices"] = [0, 0, 1, 2]
    broken.write_text(json.dumps(data), encoding="utf-8")
    for words in (["simulate", str(broken)], ["explain", str(broken)]):
        assert "best.placement.devices" in refused(capsys, 2, *words)
    data = json.loads(plan_file.read_text(encoding="utf-8"))
    for level in data["system"]["levels"]:
        level["kind"] = "switch"
    broken.write_text(json.dumps(data), encoding="utf-8")
    assert "best.placement: is on a grid, which" in refused(capsys, 2, "simulate", str(broken))
    for degree, word in (
        (1e300, "at most 1e+30"),
        (1e12, "from 1 to 1000000000"),
        (1e6, "1000000 chunks"),
    ):
        data = json.loads(plan_file.read_text(encoding="utf-8"))
        data["best"]["strategy"]["num_virtual_stages"] = degree
        broken.write_text(json.dumps(data), encoding="utf-8")
        assert word in refused(capsys, 2, "simulate", str(broken))


def test_words_that_do_not_belong_are_told(capsys, plan_file, tmp_path):
    assert "unexpected argument" in refused(capsys, 2, "simulate", str(plan_file), "more.json")
    nowhere = str(tmp_path / "no" / "trace.json")
    assert "--trace" in refused(capsys, 2, "simulate", str(plan_file), "--trace", nowhere)
    one = {"links": [], "flows": [{"id": 1, "bytes": 0, "route": []}]}
    two = tmp_path / "two.json"
    two.write_text(json.dumps({"scenarios": [one | {"name": "a"}, one | {"name": "b"}]}))
    words = ["simulate", "flows", str(two), "--trace", str(tmp_path / "t.json")]
    assert "a trace holds one scenario" in refused(capsys, 2, *words)
    assert not (tmp_path / "t.json").exists()


def test_a_placed_plan_of_a_file_is_explained_without_a_search(monkeypatch, plan_file):
    def refuse(*arguments, **options):
        raise AssertionError("a search")

    monkeypatch.setattr("meshwright.train.explain.priced_families", refuse)
    found = mw.explain(str(plan_file))
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.why_not == ()
    assert found.not_possible == {}
    with pytest.raises(AssertionError, match="a search"):
        mw.explain("gpt2-medium", on="wafer-2x2", seq=128, global_batch=16, zero=1, tp=2)
