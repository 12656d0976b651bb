"""The entry point: statuses, messages, JSON errors, interrupts and closed pipes."""

import json
import subprocess
import sys

import pytest

from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.cli import main as entry
from meshwright.cli.main import failure_record, main
from meshwright.options.table import Command, Option


@pytest.fixture
def command(monkeypatch):
    """Return a way to make ``meshwright demo`` do something."""

    def install(action):
        demo = Command("a demonstration", (Option("depth", "how deep", kind="number"),))
        monkeypatch.setattr(entry, "COMMANDS", {"demo": demo, "show thing": demo})
        monkeypatch.setattr(entry, "function_of", lambda name: action)

    return install


def failing(error):
    def action(args):
        raise error

    return action


def test_status_of_the_command_is_returned(command):
    command(lambda args: args.depth)
    assert main(["demo", "--depth", "7"]) == 7
    assert main(["show", "thing", "--depth", "8"]) == 8


def test_bad_input_is_two_and_nothing_fits_is_three(command, capsys):
    command(failing(SpecError(Fault("model.hidden", "must be larger than 0", "try 4096"))))
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == "error: model.hidden: must be larger than 0 (try 4096)\n"
    command(failing(InfeasibleError("no plan fits")))
    assert main(["demo"]) == 3


def test_errors_as_json(command, capsys):
    faults = [Fault("a", "wrong"), Fault("b", "missing", "add it")]
    command(failing(SpecError(faults, origin="x.yaml")))
    assert main(["demo", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "spec"
    assert error["message"].startswith("x.yaml: 2 faults")
    assert error["faults"] == [
        {"path": "a", "message": "wrong", "fix": ""},
        {"path": "b", "message": "missing", "fix": "add it"},
    ]


def test_kind_of_an_infeasible_problem():
    assert failure_record(InfeasibleError("no"))["kind"] == "infeasible"


def test_missing_file_is_bad_input(command, capsys, tmp_path):
    missing = tmp_path / "plan.json"
    command(lambda args: missing.read_text())
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == f"error: {missing}: No such file or directory\n"


def test_interrupt_is_130(command, capsys):
    command(failing(KeyboardInterrupt()))
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dmo"], "unknown command 'dmo'; did you mean demo?"),
        (["show", "thin"], "unknown show command 'thin'; did you mean thing?"),
        (["demo", "--dpeth", "1"], "unknown option '--dpeth'; did you mean --depth?"),
        (["demo", "extra"], "unexpected argument 'extra'"),
        (["demo", "--depth", "x"], "argument --depth: invalid int value: 'x'"),
    ],
)
def test_wrong_words_get_a_suggestion(command, capsys, words, message):
    command(lambda args: 0)
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(f"error: {message}\n")
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == message


def test_options_are_not_abbreviated(command, capsys):
    command(lambda args: 0)
    assert main(["demo", "--dep", "1"]) == 2
    assert "unknown option '--dep'; did you mean --depth" in capsys.readouterr().err


def test_without_a_command_the_help_is_printed(command, capsys):
    command(lambda args: 0)
    assert main([]) == 0
    assert "a demonstration" in capsys.readouterr().out
    assert main(["show"]) == 0
    assert "thing" in capsys.readouterr().out


def test_help_keeps_the_letters_of_names(capsys):
    with pytest.raises(SystemExit):
        main(["partition", "--help"])
    assert "Cut layers into stages that fit SRAM, a cache or HBM." in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_closed_pipe_is_quiet():
    code = "from meshwright.cli.main import main; raise SystemExit(main(['study']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141
