"""The entry point: finds the command, parses, calls, and turns errors into messages and statuses.

Only the module of the command that was called is imported, so that ``--help`` stays instant.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from meshwright.base.errors import MeshwrightError, UnknownNameError, nearest
from meshwright.cli.commands import COMMANDS, Command, CommandTable, present
from meshwright.cli.failures import UsageError, exit_status, report_failure
from meshwright.cli.progress import wipe

BROKEN_PIPE = 141
INTERRUPTED = 130


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
        wipe()
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone: what is still buffered goes nowhere, without a complaint at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (MeshwrightError, OSError) as error:
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
    called = add_commands(parser, present(COMMANDS), words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        raise UsageError(about_unknown(unknown[0], called))
    if args.version:
        print(version())
        return 0
    if not hasattr(args, "run"):
        called.print_help()
        return 0
    status: int = args.run(args)
    return status


def add_commands(
    parser: argparse.ArgumentParser, table: CommandTable, words: Sequence[str], path: str = ""
) -> argparse.ArgumentParser:
    """Add the commands of a table, and the arguments of the one called; return its parser."""
    position = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    name = words[position] if position < len(words) else ""
    if name and name not in table:
        raise UnknownNameError(f"{path}command", name, table)
    choices = parser.add_subparsers(metavar="COMMAND", title="commands")
    parsers = {
        key: choices.add_parser(
            key, help=entry.help, description=_sentence(entry.help), allow_abbrev=False
        )
        for key, entry in table.items()
    }
    if not name:
        return parser
    entry = table[name]
    if isinstance(entry, Command):
        add_options(parsers[name], entry)
        return parsers[name]
    return add_commands(parsers[name], present(entry.members), words[position + 1 :], f"{name} ")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def add_options(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add the arguments of a command, and ``--json``."""
    module = command.load()
    module.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=module.run)


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a parser."""
    return [name for name in parser._option_string_actions if name.startswith("--")]


def about_unknown(word: str, parser: argparse.ArgumentParser) -> str:
    """Return what to say of a word that no option or argument takes."""
    if word.startswith("-"):
        return f"unknown option {word!r}; {nearest(word.split('=')[0], option_names(parser))}"
    return f"unexpected argument {word!r}"


def version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("meshwright")
    except PackageNotFoundError:
        return "run from its source folder, without an install"
