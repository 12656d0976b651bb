"""``meshwright study``: screens, files, JSON, and what is wrong."""

import json

import pytest

from meshwright.base.cluster import LocalProcesses, every_answer
from meshwright.cli.main import main
from meshwright.cli.study import run_study
from meshwright_papers.studies.study import collection


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


def test_all_studies_share_a_document():
    result = collection.run("tensor-parallel")
    files = collection.files({"tensor-parallel": result}, one_document=True)
    assert "## tensor-parallel" in files["studies.md"]
    assert all(name == "studies.md" or name.startswith("studies/") for name in files)


def test_studies_over_processes_are_the_same_as_here():
    names = ["tensor-parallel", "tensor-parallel"]
    with LocalProcesses(2) as cluster:
        over = [*every_answer(cluster, run_study, names)]
    assert [found.data for found in over] == [run_study(name).data for name in names]
