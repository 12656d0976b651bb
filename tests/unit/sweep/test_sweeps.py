"""Sweeps: all combinations once, kept as they come, gone on with, and shown."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.cluster import LocalProcesses, state_of_code
from meshwright.base.errors import SpecError
from meshwright.cli.main import main
from meshwright.spec.sweep import HeatMap, SweepSpec
from meshwright.sweep.answer import way_on
from meshwright.sweep.questions import QUESTIONS, checked
from meshwright.sweep.results import cells_of, counts_of, sweep_csv
from meshwright.sweep.run import far_apart, key_of, points_of, run
from meshwright.sweep.stores import SqliteStore
from meshwright.view.heat_map import heat_spec, heat_svg

FIXED = {"model": "gpt2-medium", "seq": 512, "on": "8xA100"}
SWEEP = SweepSpec(
    name="batches",
    ask="plan",
    fixed=FIXED,
    vary={"global_batch": (8, 16), "seq_name": ("a", "b", "c")},
    heat_map=HeatMap(rows="global_batch", columns="seq_name", shows="step_time_s"),
)


def answer(point):
    """Answer at once: what a point is worth follows from its fields."""
    if point["seq_name"] == "c":
        return {"status": "nothing fits", "reason": "c is too large"}
    return {"status": "found", "step_time_s": point["global_batch"] + ord(point["seq_name"])}


def test_points_are_all_combinations_and_have_keys_of_their_own():
    points = points_of(SWEEP)
    assert [(p["global_batch"], p["seq_name"]) for p in points] == [
        (8, "a"), (8, "b"), (8, "c"), (16, "a"), (16, "b"), (16, "c")
    ]  # fmt: skip
    assert len({key_of("plan", point, "1") for point in points}) == 6
    turned = dict(reversed(points[0].items()))
    assert key_of("plan", turned, "1") == key_of("plan", points[0], "1")
    assert key_of("plan", turned, "2") != key_of("plan", points[0], "1")


def test_what_is_known_is_not_asked_again(tmp_path):
    path, points, asked = tmp_path / "sweep.db", points_of(SWEEP), []

    def stubborn(point):
        if len(asked) == 4:
            raise KeyboardInterrupt
        asked.append(point)
        return answer(point)

    with SqliteStore(path) as store:
        first = run("plan", stubborn, points, store, version="1")
    assert (first.is_complete, first.num_new) == (False, 4)
    assert counts_of(first) == {"found": 3, "nothing fits": 1, "not asked yet": 2}
    with SqliteStore(path) as store:
        whole = run("plan", answer, points, store, version="1")
    assert (whole.is_complete, whole.num_new) == (True, 2)
    assert whole.records[4]["step_time_s"] == 16 + ord("b")
    with SqliteStore(path) as store:
        assert run("plan", answer, points, store, version="2").num_new == 6


def test_an_interrupt_leaves_what_is_there_and_ends_with_130(tmp_path, capsys, monkeypatch):
    path, base = tmp_path / "sweep.yaml", tmp_path / "sweep.db"
    path.write_text("name: batches\nask: plan\nfixed: {model: gpt2-medium, seq: 512, on: 8xA100}\n"
                    "vary:\n  global_batch: [8, 16]\n")  # fmt: skip
    question, asked = QUESTIONS["plan"], []

    def stubborn(point):
        if asked:
            raise KeyboardInterrupt
        asked.append(point)
        return {"status": "found", "step_time_s": 1.0, "plan": "tp1"}

    monkeypatch.setitem(QUESTIONS, "plan", replace(question, answer=stubborn))
    words = ["sweep", str(path), "--out", str(base)]
    assert main(words) == 130
    assert "1 found, 1 not asked yet" in capsys.readouterr().out
    monkeypatch.setitem(QUESTIONS, "plan", replace(question, answer=prompt))
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_new"] == 1


def prompt(point):
    """Answer anything."""
    return {"status": "found", "step_time_s": float(point["global_batch"]), "plan": "tp1"}


def test_several_processes_find_the_same():
    points = points_of(SWEEP)
    with SqliteStore(None) as one, SqliteStore(None) as other, LocalProcesses(2) as cluster:
        alone = run("plan", answer, points, one, version="1")
        together = run("plan", answer, points, other, version="1", cluster=cluster)
    assert alone.records == together.records


def test_cells_hold_the_better_value_and_what_gave_it():
    sweep = SWEEP.model_copy(
        update={
            "vary": {**SWEEP.vary, "extra": (1, 2)},
            "heat_map": SWEEP.heat_map.model_copy(update={"better": "lowest"}),
        }
    )
    with SqliteStore(None) as store:
        swept = run(
            "plan", lambda p: answer(p) | {"step_time_s": p["extra"]}, points_of(sweep), store,
            version="1",
        )  # fmt: skip
    cells = cells_of(sweep, sweep.heat_map, swept)
    assert cells.values["8", "a"] == 1
    assert cells.notes["8", "a"] == "extra 1"
    assert len(heat_spec(cells)["data"]["values"]) == len(cells.values) == 6
    assert "1 to 1 s" in heat_svg(cells)


def test_text_from_files_is_escaped_in_pictures():
    sweep = SWEEP.model_copy(update={"name": "<b>&"})
    with SqliteStore(None) as store:
        swept = run("plan", answer, points_of(sweep), store, version="1")
    assert "<b>" not in heat_svg(cells_of(sweep, sweep.heat_map, swept))


def test_a_csv_has_a_column_for_each_field():
    with SqliteStore(None) as store:
        swept = run("plan", answer, points_of(SWEEP), store, version="1")
    head, *rows = sweep_csv(swept).splitlines()
    assert head == "model,seq,on,global_batch,seq_name,status,step_time_s,reason"
    assert len(rows) == 6


def test_all_faults_of_fields_and_names_are_told_at_once():
    vary = {"global_batch": (8,), "chipp": ("H100",)}
    with pytest.raises(SpecError) as told:
        checked(SweepSpec(name="s", ask="plan", fixed={"seq": 512}, vary=vary))
    assert {fault.path for fault in told.value.faults} == {"model", "on", "chipp"}
    vary = {"global_batch": (8,), "on": ("8xA101", "8xA100"), "model": ("gpt2-medum",)}
    with pytest.raises(SpecError) as told:
        checked(SweepSpec(name="s", ask="plan", fixed={"seq": 512}, vary=vary))
    assert {fault.path for fault in told.value.faults} == {"model", "system"}


def test_numbers_and_shown_results_are_checked_before_a_system_is_built():
    """No number of devices below 1 has sides of a torus."""
    fixed = {"chip": "A100", "network": "torus-2d", "links": "NVLink4", "passes": "many"}
    vary = {"devices": (-64, 64), "graph": ("fft-8x8",)}
    heat_map = HeatMap(rows="devices", columns="graph", shows="passes")
    with pytest.raises(SpecError) as told:
        checked(SweepSpec(name="s", ask="graph", fixed=fixed, vary=vary, heat_map=heat_map))
    assert {fault.path for fault in told.value.faults} == {"devices", "passes", "heat_map.shows"}


def test_all_parts_of_a_design_that_are_unknown_are_told_at_once():
    fixed = {"chip": "A101", "network": "tors-2d", "links": "NVLink4+PCIe9", "devices": 8}
    cases = {"of": {"layer": {"graph": "gpt3-175b-layr"}, "points": {"graph": "fft-8x8"}}}
    sweep = SweepSpec(name="s", ask="graph", fixed=fixed, cases=cases, vary={"memory": ("HBM33",)})
    with pytest.raises(SpecError) as told:
        checked(sweep)
    paths = [fault.path for fault in told.value.faults]
    assert sorted(paths) == ["chip", "graph", "links", "memory", "network"]


def test_shapes_are_checked_once_the_parts_are_known():
    fixed = {"chip": "A100", "links": "NVLink4", "devices": 8, "graph": "fft-8x8"}
    vary = {"network": ("ring", "torus-2d"), "shape": ("8", "3x3")}
    with pytest.raises(SpecError) as told:
        checked(SweepSpec(name="s", ask="graph", fixed=fixed, vary=vary))
    assert {fault.path for fault in told.value.faults} == {"system"}
    assert len(told.value.faults) == 3


def test_cases_set_several_fields_at_once():
    cases = {"work": {"one": {"graph": "a", "passes": 1}, "two": {"graph": "b", "passes": 2}}}
    sweep = SweepSpec(name="s", ask="graph", cases=cases, vary={"on": ("x", "y")})
    assert [(p["work"], p["graph"], p["passes"], p["on"]) for p in points_of(sweep)] == [
        ("one", "a", 1, "x"), ("one", "a", 1, "y"), ("two", "b", 2, "x"), ("two", "b", 2, "y")
    ]  # fmt: skip


def test_a_case_that_lacks_a_needed_field_is_told():
    cases = {"work": {"one": {"graph": "fft-8x8"}, "two": {"passes": 2}}}
    with pytest.raises(SpecError, match="lacks graph"):
        checked(SweepSpec(name="s", ask="graph", cases=cases, vary={"on": ("2xA100",)}))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"fixed": {**FIXED, "global_batch": 8}}, "fixed as well"),
        ({"cases": {"seq": {"one": {}}}}, "fixed or varies"),
        ({"cases": {"work": {"one": {"on": "8xA100"}}}}, "fixed or varies"),
        ({"vary": {"global_batch": (8, 8)}}, "twice"),
        ({"vary": {"global_batch": ()}}, "no values"),
        ({"vary": {"global_batch": ((1, 2),)}}, "number, a word"),
        ({"heat_map": {"rows": "on", "columns": "on", "shows": "step_time_s"}}, "rows as well"),
    ],
)
def test_files_that_say_two_things_are_refused(change, word):
    fields = {"name": "s", "ask": "plan", "fixed": FIXED, "vary": SWEEP.vary} | change
    with pytest.raises(ValueError, match=word):
        SweepSpec(**fields)


def test_a_file_with_something_else_is_no_store(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no database\n" * 200)
    with pytest.raises(SpecError, match="not a file of results"):
        SqliteStore(path)
    assert path.read_text() == "no database\n" * 200


STUBBORN = r"""
import os, sys, time
from pathlib import Path
from meshwright.base.cluster import open_cluster
from meshwright.sweep.run import run
from meshwright.sweep.stores import SqliteStore

def evaluate(point):
    if point["x"] == 1:
        return {"status": "found"}
    os.write(1, b"asked\n")
    while True:  # as a search does, which keeps what it has and goes on
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            pass

if __name__ == "__main__":
    with SqliteStore(Path(sys.argv[2])) as store, open_cluster("local:" + sys.argv[1]) as cluster:
        points = [{"x": x} for x in (1, 2, 3, 4)]
        swept = run("plan", evaluate, points, store, version="0", cluster=cluster,
                    progress=lambda done, number: os.write(1, b"kept\n"))
    print([result and result["status"] for result in swept.results])
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_sweep_inside_a_point_and_keeps_the_others(tmp_path, workers):
    """The process gets a real signal; a point that catches interrupts cannot hold it."""
    path = tmp_path / "stubborn.py"
    path.write_text(STUBBORN)
    with subprocess.Popen(
        [sys.executable, "-u", path, str(workers), tmp_path / "kept.db"],
        stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        try:
            lines = [process.stdout.readline() for _ in range(workers + 1)]
            assert sorted(lines) == ["asked\n"] * workers + ["kept\n"]
            process.send_signal(signal.SIGINT)
            sent_s = time.monotonic()
            told, _ = process.communicate(timeout=100)
            took_s = time.monotonic() - sent_s
        finally:
            process.kill()
    assert process.returncode == 0
    assert told == "['found', None, None, None]\n"
    assert took_s < 20  # 2 s on a machine with a core to spare
    with closing(sqlite3.connect(tmp_path / "kept.db")) as base:
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert base.execute("SELECT count(*) FROM results").fetchone() == (1,)


def test_a_point_that_ends_its_worker_fails_and_the_others_go_on(tmp_path):
    points = [{"x": x} for x in range(8)]
    for _ in range(2):  # a failed point is asked again
        with SqliteStore(tmp_path / "kept.db") as store, LocalProcesses(2) as cluster:
            swept = run("plan", killed, points, store, version="0", cluster=cluster)
        assert swept.is_complete
        statuses = [result["status"] for result in swept.results]
        assert statuses == ["found"] * 3 + ["failed"] + ["found"] * 4
        assert "ended 3 times" in swept.results[3]["reason"]
    assert swept.num_new == 1


def killed(point):
    if point["x"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"status": "found"}


@pytest.mark.slow
def test_lengths_are_written_as_for_the_command(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    text = "name: x\nask: plan\nfixed: {model: gpt2-medium, on: 8xA100, global_batch: 8}\nvary: "
    path.write_text(text + "{seq: [1024, 1k]}\n")
    assert main(["sweep", str(path), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["points"]
    assert first["step_time_s"] == second["step_time_s"]
    path.write_text(text + "{seq: [1kk, 0, -1, 0.3k]}\n")
    assert main(["sweep", str(path)]) == 2
    assert capsys.readouterr().err.count("expected a whole number above 0") == 4


def test_a_point_that_is_refused_does_not_end_the_sweep(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text("name: x\nask: plan\nfixed: {seq: 4096, on: 64xH100, global_batch: 64}\n"
                    "vary:\n  model: [gpt3-175b, llama3-8b]\n")  # fmt: skip
    assert main(["sweep", str(path), "--json"]) == 0
    refused, found = json.loads(capsys.readouterr().out)["points"]
    assert (refused["status"], found["status"]) == ("refused", "found")
    assert "learned positions" in refused["reason"]


def test_a_database_of_something_else_stays_as_it_is(tmp_path):
    path = tmp_path / "mine.db"
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE addresses (name TEXT)")
        base.commit()
    before = path.read_bytes()
    with pytest.raises(SpecError, match="not a file of results: it holds other tables"):
        SqliteStore(path)
    assert path.read_bytes() == before
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE results (name TEXT)")
        base.commit()
    with pytest.raises(SpecError, match="not a file of results: no such column"):
        SqliteStore(path)


def test_a_full_disk_is_told_and_what_is_there_stays(tmp_path):
    path = tmp_path / "some.db"
    with SqliteStore(path) as store:
        store.add([("a", {}, {"x": 1})])
        store._base.execute("PRAGMA max_page_count = 4")
        with pytest.raises(SpecError, match=r"--out: .*takes no more, .*full"):
            store.add([("b", {}, {"x": "long" * 10_000})])
    with SqliteStore(path) as store:
        assert store.known(["a", "b"]) == {"a": {"x": 1}}


@pytest.mark.slow
def test_the_command_answers_writes_and_goes_on(tmp_path, capsys):
    path, base = tmp_path / "sweep.yaml", tmp_path / "sweep.db"
    path.write_text(
        "name: batches\nask: plan\n"
        "fixed: {model: gpt2-medium, seq: 512, on: 8xA100}\n"
        "vary:\n  global_batch: [8, 16]\n"
    )
    words = ["sweep", str(path), "--out", str(base), "--csv", str(tmp_path / "all.csv")]
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["num_points"], data["num_new"], data["is_complete"]) == (2, 2, True)
    names = set(QUESTIONS["plan"].values)
    assert all(names <= set(point) for point in data["points"])
    assert main([*words, "--force"]) == 0
    assert "2 points, 0 of them new and 2 reused" in capsys.readouterr().out
    assert sqlite3.connect(base).execute("SELECT count(*) FROM results").fetchone() == (2,)
    assert (tmp_path / "all.csv").read_text().count("\n") == 3
    assert main([*words, "--force", "--picture", str(tmp_path / "x.svg")]) == 2
    assert "heat_map" in capsys.readouterr().err
    for wrong in ("local:many", "local:0", "4", "dask://"):
        assert main([*words, "--on-cluster", wrong]) == 2
    assert "found 'dask://' (local:N (such as local:4)" in (capsys.readouterr().err)


def test_files_that_cannot_be_written_are_told_before_the_first_point(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text("name: x\nask: plan\nfixed: {model: gpt2-medium, seq: 512, on: 8xA100}\n"
                    "vary:\n  global_batch: [8]\n")  # fmt: skip
    nowhere = [str(tmp_path / "no" / name) for name in ("a.db", "b.csv", "c.svg")]
    words = ["--out", nowhere[0], "--csv", nowhere[1], "--picture", nowhere[2]]
    assert main(["sweep", str(path), *words]) == 2
    told = capsys.readouterr().err
    assert [option for option in ("--out", "--csv", "--picture") if option not in told] == []


def test_pictures_and_reports_end_as_they_should(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text("name: x\nask: plan\nfixed: {model: gpt2-medium, seq: 512, on: 8xA100}\n"
                    "vary:\n  global_batch: [8]\n")  # fmt: skip
    words = ["--picture", str(tmp_path / "map.png"), "--report", str(tmp_path / "designs")]
    assert main(["sweep", str(path), *words]) == 2
    told = capsys.readouterr().err
    assert "does not end in .svg (map.svg)" in told
    assert "does not end in .md (designs.md)" in told


def test_graphs_on_designs(tmp_path, capsys):
    path = tmp_path / "designs.yaml"
    path.write_text(
        "name: designs\nask: graph\n"
        "fixed: {devices: 8, network: torus-2d, passes: 8, chip: A100, training: no}\n"
        "vary:\n  graph: [gpt3-175b-layer, fft-256x256]\n  memory: [DDR4, HBM3]\n"
        "  links: [PCIe4, NVLink4]\n"
        "heat_map: {rows: graph, columns: links, shows: passes_per_s_per_price}\n"
    )
    picture = tmp_path / "designs.svg"
    assert main(["sweep", str(path), "--picture", str(picture), "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert all(set(QUESTIONS["graph"].values) <= set(point) for point in points)
    prices = {(p["memory"], p["links"]): p["price_units"] for p in points}
    ring = 8 * 2 * (2 * 31.5) + 24 * 2 * (2 + 4) * 31.5
    assert prices["DDR4", "PCIe4"] == pytest.approx(8 * 204.8 + ring)
    for point in points:
        assert point["lower_bound_s"] <= point["step_time_s"] * (1 + 1e-9)
        assert 0 < point["utilisation"] < 1
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize("graph", ["hpl-2048x256", "fft-256x256"])
def test_8_byte_numbers_run_where_a_chip_has_them_and_are_refused_elsewhere(
    graph, tmp_path, capsys
):
    path = tmp_path / "linpack.yaml"
    path.write_text(
        f"name: linpack\nask: graph\nfixed: {{graph: {graph}}}\n"
        "vary:\n  on: [2xA100, 8xSN10, 4xTPU-v4]\n"
    )
    assert main(["sweep", str(path), "--json"]) == 0
    points = {point["on"]: point for point in json.loads(capsys.readouterr().out)["points"]}
    assert 0 < points["2xA100"]["utilisation"] < 1
    for name in ("8xSN10", "4xTPU-v4"):
        assert points[name]["status"] == "refused"
        assert name.split("x")[1] in points[name]["reason"]


def test_what_a_graph_needs_is_checked_before(tmp_path, capsys):
    path = tmp_path / "designs.yaml"
    path.write_text(
        "name: designs\nask: graph\nfixed: {on: 8xA100}\nvary:\n  graph: [gpt3-175b-layerr]\n"
    )
    assert main(["sweep", str(path)]) == 2
    told = capsys.readouterr().err
    assert "gpt3-175b-layer" in told
    text = path.read_text().replace("layerr", "layer").replace("8xA100", "8xA100, training: maybe")
    path.write_text(text)
    assert main(["sweep", str(path)]) == 2
    assert "yes or no" in capsys.readouterr().err


def test_nothing_that_fits_anywhere_ends_with_3(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "name: too large\nask: plan\nfixed: {model: gpt3-175b, seq: 2048, global_batch: 1}\n"
        "vary:\n  on: [1xA100]\n"
    )
    assert main(["sweep", str(path)]) == 3
    assert "nothing fits" in capsys.readouterr().out


def test_what_does_not_fit_is_crossed_and_what_has_no_value_is_left_out():
    with SqliteStore(None) as store:
        swept = run("plan", answer, points_of(SWEEP), store, version="1")
    whole = cells_of(SWEEP, SWEEP.heat_map, swept)
    assert whole.misfits == {("8", "c"), ("16", "c")}
    assert whole.columns == ("a", "b", "c")
    assert [whole.text("8", name) for name in ("c", "d")] == ["\N{MULTIPLICATION SIGN}", "-"]
    assert heat_svg(whole).count(">nothing fits<") == 1
    vary = {**SWEEP.vary, SWEEP.heat_map.rows: (*SWEEP.sides[SWEEP.heat_map.rows], "none")}
    more = cells_of(SWEEP.model_copy(update={"vary": vary}), SWEEP.heat_map, swept)
    assert more.rows == whole.rows


def test_pictures_say_what_is_shown_of_what():
    with SqliteStore(None) as store:
        swept = run("plan", answer, points_of(SWEEP), store, version="1")
    whole = cells_of(SWEEP, SWEEP.heat_map, swept)
    assert whole.title == "Time of a step by global batch and seq name"
    assert whole.subtitle == "batches: highest of each cell"
    priced = SWEEP.heat_map.model_copy(update={"shows": "passes_per_s_per_price"})
    assert "network and memory alone" in cells_of(SWEEP, priced, swept).title


def test_a_file_that_changes_is_another_question(tmp_path):
    files = {
        "chip.yaml": "name: X\nsource: my.yaml", "my.yaml": "chip: chip.yaml",
        "other.py": "WIDTH = 1", "net.py": "import other\n", "net.pt2": "\xff\xfe",
        "model/config.json": "{}", "not-named.yaml": "name: X",
    }  # fmt: skip
    (tmp_path / "model").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="latin-1")
    points = [{"on": "my.yaml"}, {"graph": "net.py:f"}, {"graph": "net.pt2"}, {"model": "model"}]

    def keys():
        return [
            key_of("plan", {name: str(tmp_path / value) for name, value in point.items()}, "1")
            for point in points
        ]

    first = keys()
    assert keys() == first
    changed = {}
    for name in files:
        (tmp_path / name).write_text("name: something else")
        now = keys()
        changed[name] = [point for point, old, new in zip(points, first, now, strict=True)
                         if old != new]  # fmt: skip
        first = now
    on, program, saved, model = ([point] for point in points)
    assert changed == {
        "chip.yaml": on, "my.yaml": on, "other.py": program, "net.py": program, "net.pt2": saved,
        "model/config.json": model, "not-named.yaml": [],
    }  # fmt: skip
    assert state_of_code() == state_of_code() != ""


SYSTEM = """
name: mine
chip: {}
num_devices: 8
levels:
  - {{name: l, size: 8, kind: switch, bandwidth: 300 GB/s, latency: 1 us}}
"""


def test_a_sweep_asks_again_where_a_file_behind_a_name_changed(tmp_path, capsys, monkeypatch):
    """Of two systems one changes between two runs: its row is new, the other one is reused."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(SYSTEM.format("H100"))
    (tmp_path / "sweep.yaml").write_text(
        "name: systems\nask: plan\nfixed: {model: gpt2-medium, seq: 1k, global_batch: 1024}\n"
        "vary:\n  on: [a.yaml, b.yaml]\n"
    )
    words = ["sweep", "sweep.yaml", "--out", "kept.db"]

    def asked():
        assert main([*words, "--force"]) == 0
        line = capsys.readouterr().out
        assert main([*words, "--force", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["points"]
        return line, [row["step_time_s"] for row in rows]

    line, (first, same) = asked()
    assert "2 points, 2 of them new" in line
    assert first == same
    assert "2 points, 0 of them new and 2 reused" in asked()[0]
    (tmp_path / "a.yaml").write_text(SYSTEM.format("A100"))
    line, (slower, kept) = asked()
    assert "2 points, 1 of them new and 1 reused" in line
    assert slower > first == kept


ORPHANS = """
import os, sys, time
from meshwright.base.cluster import LocalProcesses, state_of_code
from meshwright.sweep.run import run
from meshwright.sweep.stores import SqliteStore

def evaluate(point):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(1000)

if __name__ == "__main__":
    with SqliteStore(None) as store, LocalProcesses(2) as cluster:
        run("plan", evaluate, [{"x": 1}, {"x": 2}], store, version="0", cluster=cluster)
"""


def test_workers_end_with_the_process_that_asks(tmp_path):
    """That is killed, so that it can tell nobody; its workers are inside a point."""
    path = tmp_path / "orphans.py"
    path.write_text(ORPHANS)
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        workers = [int(process.stdout.readline()) for _ in range(2)]
        assert process.pid not in workers
        process.kill()
        assert process.communicate(timeout=60)[0] == ""  # the pipe ends with the last of them


def test_a_sweep_that_has_time_left_for_some_points_goes_on_later(tmp_path, capsys):
    asked = []

    def slow(point):
        asked.append(point["x"])
        time.sleep(0.05)
        return {"status": "found"}

    points = [{"x": x} for x in range(100)]
    with SqliteStore(tmp_path / "kept.db") as store:
        first = run("plan", slow, points, store, version="0", seconds=0.5)
        assert asked[:3] == [0, 99, 49]
        assert 0 < first.num_new < 100
        assert not first.is_complete
        assert way_on(first, store.place)[0].startswith(f"{100 - first.num_new} of 100 points not")
        idle = run("plan", slow, points, store, version="0", seconds=0.0)
        assert (idle.num_new, idle.results) == (0, first.results)
        rest = run("plan", slow, points, store, version="0")
    assert rest.is_complete
    assert first.num_new + rest.num_new == 100
    assert sorted(asked) == list(range(100))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_points_far_apart_are_all_points_with_the_corners_first(sizes):
    points = [dict(enumerate(map(str, at))) for at in product(*map(range, sizes))]
    order = far_apart(points)
    assert sorted(order) == list(range(len(points)))
    corners = {tuple(str(at) for at in one) for one in product(*({0, n - 1} for n in sizes))}
    first = {tuple(points[at].values()) for at in order[: len(corners)]}
    assert first == corners
