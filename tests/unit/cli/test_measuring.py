"""Measured steps on the command line: figures, files of jobs, and what is wrong with them."""

import json
import re

import pytest
from sampled import sampled

from meshwright.cli.main import main

pytestmark = pytest.mark.usefixtures("kept_answers")

QUESTION = ["gpt2-medium", "--on", "8xH100", "--seq", "1024", "--global-batch", "64"]
EXPLAINED = ["explain", *QUESTION, "--tp", "2"]
JOBS = """\
jobs:
  - {model: gpt2-medium, on: 8xH100, seq: 1k, global-batch: 64, tp: 2, mbs: 8, measured: 270 ms}
  - {model: gpt2-medium, on: 8xH100, seq: 1k, global_batch: 64, mbs: 8, measured: 500k tokens/s}
  - {model: gpt2-medium, on: 8xH100, seq: 1k, global-batch: 64, cuda-graphs: true,
     mbs: 8, measured: 130k tokens/s/device}
"""
ROW = {
    "id": "mine", "group": "mine", "framework": "megatron-bridge",
    "model": {"like": "gpt2-medium", "vocab_size": 50304}, "system": "8xH100",
    "strategy": {"tp": 2, "micro_batch_size": 4}, "sequence_length": 1024,
    "global_batch_size": 64, "precision": "bf16",
    "measured": {"iteration_time_s": 0.13},
}  # fmt: skip


def printed(capsys, status, *words):
    """Return what a command prints, after checking its status."""
    assert main(list(words)) == status, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert err == ""
    return out


def faults(capsys, *words):
    """Return paths and messages of a command that fails with exit status 2."""
    found = json.loads(printed(capsys, 2, *words, "--json"))["error"]["faults"]
    return {fault["path"]: fault["message"] for fault in found}


@pytest.fixture
def jobs_file(tmp_path):
    """Return a file of three jobs."""
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS, encoding="utf-8")
    return path


def test_screen_of_a_diagnosis(capsys):
    out = printed(capsys, 0, *EXPLAINED, "--measured", "130ms", "--measured-memory", "12GB")
    assert max(len(line) for line in out.splitlines()) <= 100
    plain = " ".join(out.split())
    for words in ("measured 130 ms a step", "matrix units", "measured - predicted", "memory 11.2"):
        assert words in plain


@pytest.mark.parametrize(
    "figure",
    sampled(["81.92k tokens/s/device", "100ms", "0.1 s", "655.36k tokens/s", "655360 tok/s"], 2),
)
def test_figures_of_one_step_are_the_same(capsys, figure):
    data = json.loads(printed(capsys, 0, *EXPLAINED, "--measured", figure, "--json"))
    assert data["measured_s"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("", "mfu_causal"),
        (" mfu_full", "mfu_full"),
        pytest.param(" mfu_causal", "mfu_causal", marks=pytest.mark.slow),
        pytest.param(" MFU", "mfu_causal", marks=pytest.mark.slow),
    ],
)
def test_an_mfu_is_a_time(capsys, words, name):
    """A share alone is an MFU as it is shown, with causal scores."""
    price = json.loads(printed(capsys, 0, "estimate", *EXPLAINED[1:], "--json"))["best"]["estimate"]
    data = json.loads(printed(capsys, 0, *EXPLAINED, "--measured", f"10%{words}", "--json"))
    assert data["measured_s"] == pytest.approx(price["step_time_s"] * price[name] / 0.1)


@pytest.mark.parametrize(
    "figure", ["8.1", "8.1 GB", "soon", "0 s", "-1 s", "40% MBU", "140% mfu_full", "0% mfu_full",
               ". mfu_full", "nan s", "0 tokens/s"]
)  # fmt: skip
def test_what_is_no_figure_is_refused(capsys, figure):
    found = faults(capsys, *EXPLAINED, f"--measured={figure}")
    assert list(found) == ["--measured"]
    assert repr(figure) in found["--measured"]


def test_what_no_device_can_do_is_refused(capsys):
    """Products alone take longer at the peak of 8 H100, and no device holds 900 GB."""
    found = faults(capsys, *EXPLAINED, "--measured", "1ms", "--measured-memory", "900GB")
    assert "an MFU of" in found["--measured"]
    assert "a device has 80.0 GiB" in found["--measured-memory"]


def test_columns_of_a_short_step_stay_apart(capsys, monkeypatch):
    """Each time has a unit of its own; a rest of rounding is none, and differences have a sign."""
    monkeypatch.setenv("COLUMNS", "80")
    out = printed(capsys, 0, *EXPLAINED, "--measured", "20ms")
    assert max(map(len, out.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "100")
    out = printed(capsys, 0, *EXPLAINED, "--measured", "20ms")
    columns = r" {2,}matrix units {2,}-399 us {2,}-686 us to \+1\.91 us {2,}0\.85$"
    assert re.search(columns, out, re.MULTILINE)
    assert re.search(r" {2,}network between hosts {2,}\+0 s {2,}\+0 s to \+0 s ", out)
    out = printed(capsys, 0, *EXPLAINED, "--measured", "20ms", "--detail")
    rows = [line for line in out.splitlines() if re.match(r"  matrix units {2,}", line)]
    assert rows[0].split()[2:] == ["-686", "us", "-399", "us", "1.91", "us"]
    assert len(re.split(" {2,}", rows[1].strip())) == 6


def test_faults_of_jobs_name_fields_without_dashes(capsys, tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(
        "jobs:\n"
        "  - {model: gpt2-medium, on: 8xH100, seq: 1k, global-batch: 64, measured: 130}\n"
        "  - {model: gpt2-medium, on: 8xH100, seq: 1k, global-batch: 8, tp: [1, 2], measured: 1s}\n"
    )
    found = faults(capsys, "plan", *QUESTION, "--measured", str(path))
    assert list(found) == ["jobs[0].measured", "jobs[1].tp"]
    assert "found 2" in found["jobs[1].tp"]


def test_options_that_do_not_go_together(capsys, tmp_path):
    path = tmp_path / "plan.json"
    printed(capsys, 0, "estimate", *EXPLAINED[1:], "--out", str(path))
    assert set(faults(capsys, "explain", str(path), "--tp", "2", "--measured-memory", "1GB")) == {
        "--tp", "--measured-memory",
    }  # fmt: skip
    assert set(faults(capsys, *EXPLAINED, "--measured", "1s", "--picture", "x.svg")) == {
        "--picture"
    }
    assert "--measured-memory" in faults(
        capsys, *EXPLAINED, "--measured", "1s", "--measured-memory", "-1 GB"
    )
    assert faults(capsys, *EXPLAINED[:-1], "3", "--measured", "1s")


@pytest.mark.slow
def test_a_plan_file_and_its_options_are_diagnosed_alike(capsys, tmp_path):
    path = tmp_path / "plan.json"
    printed(capsys, 0, "estimate", *EXPLAINED[1:], "--out", str(path))
    by_file = printed(capsys, 0, "explain", str(path), "--measured", "130ms", "--json")
    assert by_file == printed(capsys, 0, *EXPLAINED, "--measured", "130ms", "--json")


def test_a_strategy_is_explained_without_a_measurement(capsys):
    assert "why not" in printed(capsys, 0, *EXPLAINED)


@pytest.mark.parametrize(
    "words",
    sampled([["estimate"], ["plan"], ["plan", "--pareto"], ["compare", "--against", "fsdp"]], 2),
    ids=" ".join,
)
def test_measured_jobs_make_all_slower(capsys, jobs_file, words):
    question = [words[0], *QUESTION, *words[1:], "--json"]
    slow = json.loads(printed(capsys, 0, *question, "--measured", str(jobs_file)))
    plain = json.loads(printed(capsys, 0, *question))

    def step_s(data):
        first = data["entries"][0] if "entries" in data else data
        best = first["best"] if "best" in first else first["front"][0]
        return best["estimate"]["step_time_s"]

    assert step_s(slow) > 1.1 * step_s(plain)


def test_the_plan_tells_of_its_measurements(capsys, jobs_file):
    out = printed(capsys, 0, "plan", *QUESTION, "--measured", str(jobs_file))
    assert "adjusted by 3 measured jobs" in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_rows_of_measurements_are_jobs_too(capsys, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([ROW]), encoding="utf-8")
    words = ["plan", *QUESTION, "--json", "--measured", str(path)]
    assert json.loads(printed(capsys, 0, *words))["factors"]["num_measurements"] == 1
    out_of_memory = {**ROW, "id": "burst", "task": "oom", "measured": {}}
    path.write_text(json.dumps([ROW, {**ROW, "id": "odd", "strategy": {"tp": 3}}, out_of_memory]))
    assert set(faults(capsys, *words[:-3], "--measured", str(path))) == {"odd", "burst"}
    path.write_text("[]")
    assert faults(capsys, *words[:-3], "--measured", str(path)) == {
        "": "expected an array of rows, found an empty one"
    }


def test_all_faults_of_a_file_are_told_at_once(capsys, tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(
        "jobs:\n"
        "  - {model: gpt2-medium, on: 8xH100, seq: 1k, global-batch: 64}\n"
        "  - {model: gpt2-medium, on: 8xH100, seq: 1k, global-batch: 64, tp: 3, measured: 1 s}\n"
        "  - {model: gpt2-medium, on: 8xH100, seq: 1k, tpp: 4, cuda-graphs: 3, measured: 1 s}\n"
        "  - {model: gpt2-medium, on: 8xH100, seq: 1k, global-batch: 64, measured: 1 GB}\n"
        "  - soon\n"
    )
    found = faults(capsys, "plan", *QUESTION, "--measured", str(path))
    assert [path.split(".")[0] for path in found] == [
        "jobs[0]", *["jobs[1]"] * sum(p.startswith("jobs[1]") for p in found),
        "jobs[2]", "jobs[2]", "jobs[3]", "jobs[4]",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["jobs: []", "jobs: 3", "job: [{a: 1}]", "nothing"])
def test_what_is_no_file_of_jobs_is_refused(capsys, tmp_path, text):
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    assert main(["plan", *QUESTION, "--measured", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_jobs_on_other_chips_are_refused(capsys, jobs_file):
    other = [word.replace("H100", "A100") for word in QUESTION]
    found = faults(capsys, "plan", *other, "--measured", str(jobs_file))
    assert set(found) == {"jobs[0]", "jobs[1]", "jobs[2]"}
    assert main(["plan", *QUESTION, "--measured", "nowhere.yaml"]) == 2
