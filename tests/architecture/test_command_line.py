"""The command line is frozen: a changed option is a decision, made in ``command_line.txt``."""

import argparse
from pathlib import Path

from meshwright import cli
from meshwright.cli.commands import COMMANDS, Command, present
from meshwright.cli.main import Parser, add_options

FOLDER = Path(cli.__file__).parent
GOLDEN = Path(__file__).with_name("command_line.txt")


def leaves(table=COMMANDS, prefix=""):
    """Return each present command with its full name."""
    for name, entry in present(table).items():
        if isinstance(entry, Command):
            yield f"{prefix}{name}", entry
        else:
            yield from leaves(entry.members, f"{prefix}{name} ")


def described(action: argparse.Action) -> str:
    """Return an option with what it takes, as ``--on SYSTEM`` or ``--order {a,b}``."""
    name = "/".join(action.option_strings) or (action.metavar or action.dest)
    choices = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
    count = f" [{action.nargs}]" if action.nargs is not None else ""
    return f"{name}{choices}{count}"


def command_line() -> str:
    """Return one line for each option of each command."""
    lines = []
    for name, command in leaves():
        parser = Parser(prog=name, add_help=False)
        add_options(parser, command)
        lines += [f"{name}: {described(action)}" for action in parser._actions]
    return "\n".join(lines) + "\n"


def test_command_line_is_as_agreed():
    assert command_line() == GOLDEN.read_text(encoding="utf-8"), (
        f"{GOLDEN.name} should now hold:\n{command_line()}"
    )


def test_every_command_takes_json():
    lines = command_line().splitlines()
    assert {name for name, _ in leaves()} == {
        line.partition(":")[0] for line in lines if line.endswith(": --json [0]")
    }


def test_every_module_of_the_folder_is_a_command_or_serves_them():
    modules = {path.stem for path in FOLDER.glob("*.py")}
    shared = {
        "__init__",
        "main",
        "commands",
        "failures",
        "progress",
        "output",
        "question",
        "reading",
        "serving",
        "graph_plan",
        "launched",
        "measuring",
    }
    assert modules - shared == {command.module for _, command in leaves()}
