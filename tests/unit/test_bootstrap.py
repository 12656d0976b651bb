"""The bootstrap script: what is stamped, what an interrupted install leaves, what is run."""

import importlib.util
import shutil
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "mw"
ALL_CORES = ["-n", "auto", "--dist", "worksteal"]
FEW = ["tests/architecture", "tests/conformance"]
BY_NIGHT = ["-m", "slow or hypothesis", "--hypothesis-profile", "nightly"]


@pytest.fixture
def mw(tmp_path):
    """Return the script as a module, in a project of its own where no command really runs."""
    shutil.copy(SCRIPT, tmp_path / "mw")
    for folder in (tmp_path, tmp_path / "papers"):
        folder.mkdir(exist_ok=True)
        (folder / "pyproject.toml").write_text("[project]\n")
    spec = importlib.util.spec_from_loader("mw", SourceFileLoader("mw", str(tmp_path / "mw")))
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    spec.loader.exec_module(module)
    sys.dont_write_bytecode = kept
    module.commands = []

    def succeed(command, quiet=False):
        module.commands.append(command)
        if "venv" in command:
            folder = Path(command[-1])
            python = folder / "bin" / "python"
            shutil.rmtree(folder, ignore_errors=True)
            python.parent.mkdir(parents=True)
            python.touch(mode=0o755)
        return True

    module.succeeds = succeed
    return module


def installs(mw):
    """Return what was installed: the product with its extras, and the papers with it."""
    found = [
        [word for word in command if word.startswith(".")]
        for command in mw.commands
        if "install" in command
    ]
    assert all(words[1:] == ["./papers"] for words in found if words)
    return [words[0] for words in found if words]


def test_first_run_installs_and_later_runs_do_not(mw):
    mw.prepare("run")
    mw.prepare("run")
    assert installs(mw) == [".[fast,plot]"]
    assert not Path(mw.in_environment("run", mw.INCOMPLETE)).exists()


def test_an_install_compiles_byte_code(mw):
    mw.prepare("run")
    python = mw.in_environment("run", "bin", "python")
    compiled = [command for command in mw.commands if command[0] == python]
    assert [command[1:3] for command in compiled] == [["-m", "compileall"]]


def test_tests_bring_their_extra_and_serve_the_run_as_well(mw):
    mw.prepare("test")
    mw.prepare("run")
    assert installs(mw) == [".[fast,test]"]


@pytest.mark.parametrize("changed", ["pyproject.toml", "papers/pyproject.toml"])
def test_a_changed_project_file_installs_again_into_the_same_environment(mw, changed):
    mw.prepare("test")
    Path(mw.ROOT, changed).write_text("[project]\nname = 'changed'\n")
    mw.prepare("run")
    assert installs(mw) == [".[fast,test]", ".[fast,plot]"]
    assert sum("venv" in command for command in mw.commands) == 1
    assert not mw.is_stamped("test")


def test_a_failed_install_leaves_no_stamp_and_the_next_run_starts_afresh(mw):
    succeed = mw.succeeds
    mw.succeeds = lambda command, quiet=False: (
        "--editable" not in command and succeed(command, quiet)
    )
    with pytest.raises(SystemExit, match="install failed"):
        mw.prepare("run")
    assert not mw.is_stamped("run")
    mw.succeeds = succeed
    mw.prepare("run")
    assert mw.is_stamped("run")
    assert sum("venv" in command for command in mw.commands) == 2


def test_an_interrupted_install_leaves_no_stamp(mw):
    succeed = mw.succeeds

    def interrupt(command, quiet=False):
        if "--editable" in command:
            raise KeyboardInterrupt
        return succeed(command, quiet)

    mw.prepare("run")
    mw.succeeds = interrupt
    with pytest.raises(KeyboardInterrupt):
        mw.prepare("test")
    assert not mw.is_stamped("test")
    assert not mw.is_stamped("run")
    assert Path(mw.in_environment("run", mw.INCOMPLETE)).exists()


def test_without_pip_and_uv_the_message_says_what_to_install(mw, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    mw.succeeds = lambda command, quiet=False: False
    with pytest.raises(SystemExit, match="has no pip, and there is no uv"):
        mw.prepare("run")


def test_an_older_python_is_refused(mw, monkeypatch):
    monkeypatch.setattr(mw.sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer; .* is 3\.10\.4"):
        mw.main(["plan"])


def test_any_other_word_becomes_the_meshwright_command(mw, monkeypatch):
    called = []
    monkeypatch.setattr(mw.os, "execv", lambda path, words: called.append(words))
    mw.main(["plan", "llama3-70b"])
    assert called == [
        [mw.in_environment("run", "bin", "python"), "-P", "-m", "meshwright", "plan", "llama3-70b"]
    ]


@pytest.mark.parametrize(
    ("words", "tools", "pytest_words"),
    [
        ([], ["ruff", "ruff", "mypy"], ALL_CORES),
        (["--quick"], ["ruff", "ruff"], [*ALL_CORES, *FEW]),
        (["--nightly"], [], [*BY_NIGHT, *ALL_CORES]),
        (["tests/unit", "-k", "bubble"], [], ["tests/unit", "-k", "bubble"]),
    ],
)
def test_tests_run_the_checks_then_pytest(mw, monkeypatch, words, tools, pytest_words):
    import subprocess

    called = []
    monkeypatch.setattr(subprocess, "call", lambda words, env=None: called.append(words) or 0)
    monkeypatch.setattr(mw.os, "chdir", lambda path: None)
    assert mw.run_tests(words) == 0
    assert [Path(command[0]).name for command in called[:-1]] == tools
    assert called[-1] == [mw.in_environment("test", "bin", "python"), "-m", "pytest", *pytest_words]


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("src/meshwright/cost/layer.py", "tests/unit/cost"),
        ("src/meshwright/spec/model.py", None),
        ("src/meshwright/api.py", None),
        ("papers/src/meshwright_papers/studies/crossover.py", "papers/tests"),
        ("docs/index.md", "tests/docs"),
        ("tests/unit/test_bootstrap.py", "tests/unit/test_bootstrap.py"),
        ("tests/unit/test_removed.py", None),
        ("tests/sampled.py", None),
        ("tests/browser/test_page.py", None),
        ("mw", None),
    ],
)
def test_a_quick_run_has_the_tests_of_the_room_of_a_file(mw, path, tests):
    assert mw.tests_of(path) == tests


def test_workers_have_a_thread_each_and_keep_what_they_compile(mw, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = mw.test_environment()
    assert found["OMP_NUM_THREADS"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in found
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert mw.test_environment()["OMP_NUM_THREADS"] == "4"


def test_a_failed_check_fails_the_run_though_the_tests_pass(mw, monkeypatch):
    import subprocess

    monkeypatch.setattr(subprocess, "call", lambda words, env=None: int(words[0].endswith("ruff")))
    monkeypatch.setattr(mw.os, "chdir", lambda path: None)
    assert mw.run_tests([]) == 1


def test_the_browser_has_an_environment_of_its_own_with_what_reads_pages(mw):
    mw.prepare("browser")
    assert installs(mw) == [".[fast,browser]"]
    npm, *_, folder, package = mw.commands[-1]
    assert (npm, folder, package) == ("npm", mw.in_environment("browser"), mw.AXE)


def test_without_a_browser_the_message_says_what_to_install(mw, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "chromium" else name)
    with pytest.raises(SystemExit, match=r"chromium is not on the PATH.*\n.*apt install chromium"):
        mw.run_tests(["--browser"])


def test_tests_with_a_browser_run_alone(mw, monkeypatch):
    import subprocess

    called = []
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "call", lambda words, env=None: called.append(words) or 0)
    monkeypatch.setattr(mw.os, "chdir", lambda path: None)
    assert mw.run_tests(["--browser"]) == 0
    python = mw.in_environment("browser", "bin", "python")
    assert called == [[python, "-m", "pytest", "tests/browser"]]
