"""Imports go one way, and start-up stays light."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "pydantic", "yaml", "scipy", "rich"}
HELP_CPU_S = 0.3
LIST_MODULES = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after running the code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LIST_MODULES}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_import_contract_holds():
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [tool, "--no-cache"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_listing_sees_a_heavy_module():
    assert "yaml" in modules_after("import yaml")


def test_importing_the_package_is_light():
    assert not HEAVY & modules_after("import meshwright")


def test_planning_imports_no_torch():
    code = 'import meshwright as mw; mw.plan("gpt2-medium", on="8xH100", seq=512, global_batch=8)'
    assert "torch" not in modules_after(code)


@pytest.mark.parametrize("words", [["--help"], ["show", "--help"], ["study", "--help"]])
def test_help_is_light(words):
    code = (
        "from meshwright.cli.main import main\n"
        f"try: main({words!r})\n"
        "except SystemExit as stop: assert stop.code == 0"
    )
    assert not HEAVY & modules_after(code)


def test_help_takes_little_cpu():
    def children_cpu_s():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before_s = children_cpu_s()
    subprocess.run(
        [sys.executable, "-m", "meshwright", "--help"], capture_output=True, check=True, cwd=ROOT
    )
    assert children_cpu_s() - before_s <= HELP_CPU_S
