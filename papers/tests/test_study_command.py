"""``meshwright study``: screens, files, JSON, and what is wrong."""

import json
from types import SimpleNamespace

import pytest

from meshwright.base.cluster import LocalProcesses, every_answer
from meshwright.cli.main import main
from meshwright.cli.study import run_study
from meshwright_papers.studies import study
from meshwright_papers.studies.study import Claim, StudyResult, Table, Verdict


def test_studies_are_listed(capsys):
    assert main(["study"]) == 0
    out = capsys.readouterr().out
    assert "tensor-parallel" in out
    assert "temp-throughput" in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_study_writes_its_section_into_a_folder_that_it_makes(capsys, tmp_path):
    folder = tmp_path / "not" / "yet"
    assert main(["study", "tensor-parallel", "--out", str(folder)]) == 0
    text = (folder / "tensor-parallel.md").read_text(encoding="utf-8")
    assert text.startswith("## tensor-parallel")
    assert capsys.readouterr().out.splitlines()[0] in text


def test_json_of_a_study(capsys):
    assert main(["study", "tensor-parallel", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["study", "tensor-paralel"], "did you mean tensor-parallel"),
        (["study", "tensor-parallel", "--out", __file__], "--out"),
    ],
)
def test_what_is_wrong_is_named(capsys, words, expected):
    assert main(words) == 2
    assert expected in capsys.readouterr().err


def test_studies_over_processes_are_the_same_as_here():
    asked = [{"name": "tensor-parallel", "folder": None}] * 2
    with LocalProcesses(2) as cluster:
        assert [*every_answer(cluster, run_study, asked)] == [run_study(one) for one in asked]


CLAIMS = (
    Claim("1", "speed", "2x", "seed", "2.1x", Verdict.AGREES, ""),
    Claim("2", "power", "1 W", "seed", "9 W", Verdict.DIFFERS, "heat"),
)


@pytest.fixture
def three(monkeypatch):
    """Return the names of the studies that ran, of three; the second one ends the command once."""
    ran = []

    def of(name):
        def run():
            ran.append(name)
            if ran == ["a", "b"]:
                raise KeyboardInterrupt
            table = Table(f"{name}-times", ("n", "time_s"), ((1, 0.1 + 0.2), (2, float("inf"))))
            return StudyResult((f"{name} ran",), {"n": {1: 0.1 + 0.2}}, (table,), CLAIMS)

        return SimpleNamespace(title=f"About {name}", source="a paper", run=run)

    monkeypatch.setattr(study, "studies", {name: of(name) for name in "cab"})
    return ran


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}  # fmt: skip


def test_all_studies_go_on_where_they_were_stopped(three, tmp_path, capsys):
    words = ["study", "all", "--out", str(tmp_path / "found")]
    assert main(words) == 130
    assert "2 of 3 studies not asked yet: the same command goes on" in capsys.readouterr().err
    assert contents(tmp_path / "found").keys() == {"studies.db", "studies/a-times.csv"}
    assert main(words) == 0
    assert three == ["a", "b", "b", "c"]
    stopped = capsys.readouterr().out
    assert main(["study", "all", "--out", str(tmp_path / "whole")]) == 0
    assert three[4:] == ["a", "b", "c"]
    assert capsys.readouterr().out == stopped
    found = contents(tmp_path / "found")
    assert found == contents(tmp_path / "whole")
    assert found.keys() == {"studies.md", *(f"studies/{name}-times.csv" for name in "abc")}
    assert found["studies/a-times.csv"] == b"n,time_s\n1,0.3\n2,inf\n"
    text = found["studies.md"].decode()
    assert "3 agrees, 0 agrees under a setting, 3 differs, 0 not rebuilt" in text
    assert text.index("## a") < text.index("## b") < text.index("## c")


def test_a_study_that_fails_is_named_and_the_others_are_kept(three, tmp_path, capsys, monkeypatch):
    three.append("not the first time")
    fails = SimpleNamespace(title="", source="", run=lambda: 1 / 0)
    words = ["study", "all", "--json", "--out", str(tmp_path)]
    with monkeypatch.context() as wrong:
        wrong.setitem(study.studies, "b", fails)
        assert main(words) == 2
    assert "b: ZeroDivisionError: division by zero" in capsys.readouterr().out
    assert three[1:] == ["a", "c"]
    assert main(words) == 0
    assert three[1:] == ["a", "c", "b"]
    assert json.loads(capsys.readouterr().out)["c"] == {"n": {"1": 0.1 + 0.2}}


def test_a_file_in_the_way_loses_no_study(three, tmp_path, capsys):
    three.append("not the first time")
    (tmp_path / "studies.md").write_text("mine")
    words = ["study", "all", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert three[1:] == ["a", "b", "c"]
