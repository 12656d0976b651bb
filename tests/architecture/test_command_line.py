"""The command line is frozen: a changed option is a decision, made in ``command_line.txt``."""

import argparse
import inspect
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import api, cli
from meshwright.cli.main import Parser, command_table, function_of
from meshwright.options.table import COMMANDS, PYTHON_ONLY

GOLDEN = Path(__file__).with_name("command_line.txt")
ONLY_SCREENS = {"explore", "study", *(name for name in COMMANDS if name.startswith("show "))}
"""Commands that print or serve a page, and have no verb in Python."""
VERBS = sorted(COMMANDS.keys() - ONLY_SCREENS)


def described(action: argparse.Action) -> str:
    """Return an option with what it takes, as ``--on SYSTEM`` or ``--order {a,b}``."""
    name = "/".join(action.option_strings) or (action.metavar or action.dest)
    choices = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
    count = f" [{action.nargs}]" if action.nargs is not None else ""
    return f"{name}{choices}{count}"


def actions_of(name: str) -> list[argparse.Action]:
    """Return what a command takes."""
    parser = Parser(prog=name, add_help=False)
    COMMANDS[name].add_to(parser)
    return parser._actions


def command_line() -> str:
    """Return one line for each option of each command."""
    return "".join(
        f"{name}: {described(action)}\n" for name in command_table() for action in actions_of(name)
    )


def test_command_line_is_as_agreed():
    assert command_line() == GOLDEN.read_text(encoding="utf-8"), (
        f"{GOLDEN.name} should now hold:\n{command_line()}"
    )


def test_every_command_takes_json():
    lines = command_line().splitlines()
    assert set(command_table()) == {
        line.partition(":")[0] for line in lines if line.endswith(": --json [0]")
    }


@pytest.mark.parametrize("name", command_table())
def test_every_command_has_a_function(name):
    assert callable(function_of(name))


def test_every_module_of_the_folder_serves_the_commands():
    modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    assert modules == {"__init__", "main", "answers", "completion", "explore", "show", "study"}


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_takes_the_options_of_its_command(name):
    """Names and defaults of the Python signature are those that argparse reads."""
    function = getattr(mw, name)
    assert isinstance(function, api.Verb)
    actions = {
        (action.option_strings or [action.dest])[0].removeprefix("--").replace("-", "_"): action
        for action in actions_of(name)
        if not {"--json", "--detail"} & set(action.option_strings)
    }
    found = inspect.signature(function).parameters
    assert {parameter.rstrip("_") for parameter in found} == set(actions)
    for parameter in found.values():
        action = actions[parameter.name.rstrip("_")]
        if parameter.default is not inspect.Parameter.empty:
            assert parameter.default == action.default
        assert (parameter.kind is parameter.KEYWORD_ONLY) == bool(action.option_strings)


def test_every_verb_is_a_command_or_stands_for_one():
    public = {name for name in mw.__all__ if isinstance(getattr(mw, name), api.Verb)}
    assert public == set(VERBS)
    assert set(PYTHON_ONLY) == {"serve"}
