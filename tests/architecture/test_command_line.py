"""The command line is frozen: a changed option is a decision, made in ``command_line.txt``."""

import argparse
import inspect
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import api, cli
from meshwright.ask.questions import COMMANDS
from meshwright.cli.main import Parser, function_of

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
        f"{name}: {described(action)}\n" for name in COMMANDS for action in actions_of(name)
    )


def test_command_line_is_as_agreed():
    assert command_line() == GOLDEN.read_text(encoding="utf-8"), (
        f"{GOLDEN.name} should now hold:\n{command_line()}"
    )


def test_every_command_takes_json():
    lines = command_line().splitlines()
    assert set(COMMANDS) == {
        line.partition(":")[0] for line in lines if line.endswith(": --json [0]")
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_function(name):
    assert callable(function_of(name))


def test_every_module_of_the_folder_serves_the_commands():
    modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    assert modules == {
        "__init__",
        "main",
        "answers",
        "completion",
        "explore",
        "show",
        "study",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_at_most_forty_options(name):
    assert len(actions_of(name)) <= 40


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_takes_the_options_of_its_command(name):
    """Those of ``--with`` too; the types and defaults of the signature are those of the record."""
    function = getattr(mw, name)
    assert isinstance(function, api.Verb)
    actions = {
        (action.option_strings or [action.dest])[0].removeprefix("--").replace("-", "_"): action
        for action in actions_of(name)
        if not {"--json", "--detail", "--with"} & set(action.option_strings)
    }
    options = COMMANDS[name].options
    found = inspect.signature(function).parameters
    assert {one.rstrip("_") for one in found} == actions.keys() | COMMANDS[name].rare().keys()
    for parameter in found.values():
        option = options[parameter.name]
        assert parameter.default == option.default or option.is_needed
        assert repr(parameter.annotation) == option.kind.name
        assert (parameter.kind is parameter.KEYWORD_ONLY) != option.is_positional


def test_every_verb_is_a_command():
    public = {name for name in mw.__all__ if isinstance(getattr(mw, name), api.Verb)}
    assert public == set(VERBS)
