"""The files shown in the docs load, and the commands shown there run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sampled import slow_where

from meshwright.calibration.rows import (
    Measured,
    ModelFields,
    OptimizerFields,
    PrecisionFields,
    Row,
    SystemFields,
)
from meshwright.cli.main import main, members

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))

from generators import console  # noqa: E402

pytestmark = pytest.mark.usefixtures("kept_answers")

README = ROOT / "README.md"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")])
LONG = (
    "for_architects", "for_training", "dataflow", "simulation", "onchip", "graphs", "partition",
    "from_my_job", "kernels", "recurrences", "first_plan", "run_a_plan", "README",
)  # fmt: skip
"""Pages whose commands take seconds."""
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHECKED = ("explanation/dataflow.md", "tutorials/first_plan.md")
"""Pages whose times, sizes and rates all come from commands."""
MEASURE = re.compile(r"\d[\d,.]* (?:ms|us|s|GiB|TFLOP/s|PFLOP/s|sequences/s|samples/s)\b(?!\^)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
WRITTEN = re.compile(r"<!-- benchmarks/\w+\.py -->.*?<!-- end -->", re.DOTALL)
BLOCK = re.compile(r"\n\s*\n(?!\||```)|\n(?=#)|\n(?=\* |\d+\. )")
"""Borders of blocks: a table belongs to the paragraph before it."""
ORIGIN = re.compile(
    r"`[\w*./-]+/[\w./-]+`|\]\([\w./-]*results|\]\([\w./-]*benchmarks|arXiv|`[a-z-]+/\d|[Bb]y hand"
)
"""A script, a test, a table, a publication or a row that a number comes from."""
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\(([^)#:]+)\)")
IN_REPOSITORY = re.compile(r"`((?:src|tests|docs|benchmarks|catalog|papers)/[\w./-]+)`")


def shown_calls(page):
    """Return the commands that a page shows as words, each with the lines shown below it."""
    return list(console.shown_calls(page.read_text(encoding="utf-8")))


def processes(words):
    """Run a command of torchrun with the Python of the tests, a thread each; return its status."""
    assert words[0] == "torchrun"
    command = [sys.executable, "-P", "-W", "ignore", "-m", "torch.distributed.run", *words[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, check=False).returncode


@pytest.fixture
def shown_files(request, tmp_path, monkeypatch):
    """Write the files that a page shows into an empty folder, and go there."""
    for name, text in console.SHOWN_FILE.findall(
        request.getfixturevalue("page").read_text("utf-8")
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "page", slow_where([README, *PAGES], lambda page: page.stem in LONG), ids=lambda page: page.name
)
@pytest.mark.usefixtures("shown_files")
def test_commands_run_and_print_what_is_shown(page, capsys):
    for (program, *words), shown in shown_calls(page):
        if program == "OMP_NUM_THREADS=1":
            assert processes(words) == 0
            continue
        assert program == "./mw"
        assert main(words) == 0, capsys.readouterr().err
        printed = capsys.readouterr().out
        assert printed.strip()
        assert console.absent(shown, printed) == [], " ".join(words)


def test_there_are_commands_to_run():
    assert sum(len(shown_calls(page)) for page in PAGES) >= 4


def test_measures_in_the_text_are_among_the_lines_shown():
    """So none of them outlives a change of a price: the lines are what the commands print."""
    for page in (ROOT / "docs" / name for name in CHECKED):
        text = page.read_text(encoding="utf-8")
        shown = "".join(block.group() for block in FENCED.finditer(text))
        shown += "".join(WRITTEN.findall(text))
        told = MEASURE.findall(WRITTEN.sub("", FENCED.sub("", text)).replace("\n", " "))
        assert [measure for measure in told if measure not in shown] == [], page.name


@pytest.mark.parametrize(
    "page",
    [README, *(page for page in PAGES if page.parent.name != "results")],
    ids=lambda page: page.name,
)
def test_measures_are_shown_by_a_command_or_name_their_origin(page):
    text = page.read_text(encoding="utf-8")
    shown = "".join(block.group() for block in FENCED.finditer(text)) + "".join(
        WRITTEN.findall(text)
    )
    lost = {
        block: measures
        for block in BLOCK.split(WRITTEN.sub("", FENCED.sub("", text)))
        if not ORIGIN.search(block)
        and (measures := [one for one in MEASURE.findall(CODE.sub("", block)) if one not in shown])
    }
    assert lost == {}


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_links_and_paths_exist(page):
    text = page.read_text(encoding="utf-8")
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []
    places = [ROOT, ROOT / "src" / "meshwright"]
    assert [
        path
        for path in IN_REPOSITORY.findall(text)
        if "NAME" not in path and not any((place / path).exists() for place in places)
    ] == []


def test_readme_python_runs(capsys):
    for block in PYTHON.findall(README.read_text(encoding="utf-8")):
        exec(block, {})
    assert "num_priced" in capsys.readouterr().out


def test_readme_leads_to_every_page():
    reached, waiting = set(), [README]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = LINK.findall(page.read_text(encoding="utf-8"))
        found = {(page.parent / link).resolve() for link in links if link.endswith(".md")}
        waiting += [other for other in found - reached - set(waiting) if other.is_file()]
    assert [page.name for page in PAGES if page not in reached] == []


def test_fields_of_measured_rows_are_listed():
    text = (ROOT / "docs" / "explanation" / "calibration.md").read_text(encoding="utf-8")
    parts = (Row, ModelFields, SystemFields, PrecisionFields, OptimizerFields, Measured)
    names = [name for part in parts for name in part.model_fields]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_a_page_lists_the_commands():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    table = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert table == list(members(""))
