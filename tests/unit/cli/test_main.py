"""The entry point: statuses, messages, JSON errors, interrupts and closed pipes."""

import json
import os
import subprocess
import sys

import pytest

from meshwright.ask.kinds import Count
from meshwright.ask.record import Question, option
from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.cli import main as entry
from meshwright.cli.main import main
from meshwright.show.failure import failure


class Demo(Question):
    """A demonstration."""

    depth: Count | None = option("how deep", "N")


@pytest.fixture
def command(monkeypatch):
    """Return a way to make ``meshwright demo`` do something."""

    def install(action):
        monkeypatch.setattr(entry, "COMMANDS", {"demo": Demo, "show thing": Demo})
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
    assert failure(InfeasibleError("no")).error.kind == "infeasible"


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
        (["train", "llama3-8b"], "unknown command 'train'; did you mean plan?"),
        (["demo", "extra"], "unexpected argument 'extra'"),
        (
            ["demo", "--depth", "x"],
            "--depth: found 'x', expected a whole number above 0 (such as 8)",
        ),
    ],
)
def test_wrong_words_get_a_suggestion(command, capsys, words, message):
    command(lambda args: 0)
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(f"error: {message}\n")
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == message


def test_memory_that_is_short_is_told(command, capsys):
    command(failing(MemoryError()))
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == "error: memory is too small for this question\n"


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
    told = "Cut layers or kernels into stages that fit SRAM, a cache or HBM."
    assert told in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip()


COMMAND = [sys.executable, "-m", "meshwright"]


def in_shell(line):
    """Return status, standard output and standard error of a shell line with ``$@`` a command."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}", "-", *COMMAND], capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ('"$@" show model >&-', 0, ""),
        ('"$@" show model <&- >&- 2>&-', 0, ""),
        ('"$@" bad >&-', 2, "error: unknown command 'bad'; did you mean read?\n"),
        ('"$@" show model > /dev/full', 2, "error: standard output: No space left on device\n"),
    ],
)
def test_streams_that_take_nothing_end_without_a_traceback(line, status, told):
    assert in_shell(line) == (status, "", told)


@pytest.mark.parametrize("words", [["study"], ["show", "model", "--json"], ["bad", "--json"]])
def test_a_reader_who_left_gets_no_complaint(words):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, *words], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_reader_of_errors_who_left(tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "bad"], stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    assert (done.returncode, done.stdout) == (141, b"")


@pytest.mark.slow
def test_a_closed_stream_lends_its_number_to_no_file(tmp_path):
    """What is printed while standard output is closed does not land in a file that is written."""
    plan = tmp_path / "plan.json"
    words = f"estimate gpt2-355m --on 8xH100 --seq 1024 --global-batch 64 --out {plan}"
    assert in_shell(f'"$@" {words} >&- 2>&-') == (0, "", "")
    assert json.loads(plan.read_text())["model"]["name"] == "gpt2-355m"


@pytest.mark.slow
def test_a_locale_without_the_letters_gets_them_escaped(tmp_path, capsys):
    ascii_only = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii"
    assert main(["show", "graph", "gpt3-175b-layer", "--yaml"]) == 0
    graph = tmp_path / "g.yaml"
    text = capsys.readouterr().out
    graph.write_text(text.replace("name: gpt3-175b-layer", "name: gr\u00e4ph"), "utf-8")
    status, out, _ = in_shell(f'{ascii_only} "$@" show graph {graph}')
    assert (status, out.partition(":")[0]) == (0, "gr\\xe4ph")
    for word in ("m\u00f6", r"$'m\xff'"):
        status, out, err = in_shell(f'{ascii_only} "$@" {word}')
        assert (status, out) == (2, "")
        assert err.startswith("error: unknown command 'm\\")
    status, out, _ = in_shell(f'{ascii_only} "$@" estimate gpt2-medium --on 8xH100 --seq 1024 '
                              "--global-batch 64 --detail")  # fmt: skip
    assert status == 0
    assert out.isascii()
