"""The entry point: finds the command, parses, calls, and turns errors into messages and statuses.

Only the module of the command that was called is imported, so that ``--help`` stays instant.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn, cast

from meshwright.base.errors import MeshwrightError, UnknownNameError, UsageError, nearest
from meshwright.options.table import COMMANDS, FAMILIES, PYTHON_ONLY, Command

BROKEN_PIPE, INTERRUPTED = 141, 130


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are raised, so that ``--json`` can carry them as well."""

    def error(self, message: str) -> NoReturn:
        """Raise the complaint."""
        raise UsageError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0 fine, 2 bad input, 3 nothing fits."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = run(words)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        from meshwright.cli.output import wipe

        wipe()
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone: what is still buffered goes nowhere, without a complaint at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (MeshwrightError, OSError) as error:
        from meshwright.cli.output import exit_status, report_failure

        report_failure(error, as_json="--json" in words)
        return exit_status(error)


def run(words: Sequence[str]) -> int:
    """Parse the words and run the command they call."""
    parser = Parser(
        prog="meshwright",
        description="Plan a large model on a real cluster or wafer.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    name, called = add_commands(parser, words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        raise UsageError(about_unknown(unknown[0], called))
    if args.version:
        from meshwright import __version__

        print(__version__)
        return 0
    if name not in COMMANDS:
        called.print_help()
        return 0
    return function_of(name)(args)


def function_of(name: str) -> Callable[[argparse.Namespace], int]:
    """Return what runs a command: ``plan`` is ``plan`` of ``cli.answers``."""
    module = {"show": "show", "study": "study"}.get(name.split()[0], "answers")
    found = getattr(import_module(f"meshwright.cli.{module}"), name.replace(" ", "_"))
    return cast(Callable[[argparse.Namespace], int], found)


def add_commands(
    parser: argparse.ArgumentParser, words: Sequence[str], family: str = ""
) -> tuple[str, argparse.ArgumentParser]:
    """Add the commands, and the options of the one called; return its name and its parser."""
    position = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    name = words[position] if position < len(words) else ""
    table = members(family)
    if name and name not in table:
        raise UnknownNameError(f"{family} command".strip(), name, table)
    choices = parser.add_subparsers(metavar="COMMAND", title="commands")
    parsers = {
        key: choices.add_parser(
            key, help=text, description=f"{text[:1].upper()}{text[1:]}.", allow_abbrev=False
        )
        for key, text in table.items()
    }
    if not name:
        return family, parser
    if name in FAMILIES and not family:
        return add_commands(parsers[name], words[position + 1 :], name)
    whole = f"{family} {name}".strip()
    COMMANDS[whole].add_to(parsers[name])
    return whole, parsers[name]


def members(family: str) -> dict[str, str]:
    """Return the commands under a first word with their help; without one, all first words."""
    found: dict[str, str] = {}
    for whole, command in command_table().items():
        first, _, second = whole.partition(" ")
        if family:
            if first == family:
                found[second] = command.help
        else:
            found[first] = FAMILIES.get(first, command.help)
    return found


def command_table() -> dict[str, Command]:
    """Return the commands of the command line."""
    return {name: entry for name, entry in COMMANDS.items() if name not in PYTHON_ONLY}


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a parser."""
    return [name for name in parser._option_string_actions if name.startswith("--")]


def about_unknown(word: str, parser: argparse.ArgumentParser) -> str:
    """Return what to say of a word that no option or argument takes."""
    if word.startswith("-"):
        return f"unknown option {word!r}; {nearest(word.split('=')[0], option_names(parser))}"
    return f"unexpected argument {word!r}"
