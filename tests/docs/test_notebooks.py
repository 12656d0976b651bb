"""The notebooks run, their outputs are those of this version, and the docs lead to each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def cells(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))["cells"]


def test_the_page_lists_every_notebook():
    page = (DOCS / "how_to" / "notebooks.md").read_text("utf-8")
    assert NAMES == ["calibrate", "dataflow", "fine_tune", "serve", "train", "wafer"]
    assert [name for name in NAMES if f"(../notebooks/{name}.ipynb)" not in page] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_small_and_names_no_machine(name):
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size <= 150_000
    text = json.dumps([cell.get("outputs") for cell in cells(name)])
    assert not any(word in text for word in ("/tmp", "/home", "/root", "/Users", "Traceback"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_was_run_from_its_first_cell_to_its_last(name):
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_has_the_outputs_of_this_version(name):
    done = subprocess.run(
        [sys.executable, FOLDER / "execute.py", "--check", name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
