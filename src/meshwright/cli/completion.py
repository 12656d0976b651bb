"""Scripts for shells that complete commands, options and names of the catalog.

Written by shtab from the same table of options that is parsed. A script is static, so that a shell
waits for nothing: names are those of the catalog at the time when it is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from meshwright.ask.questions import COMMANDS, FAMILIES
from meshwright.ask.record import Option
from meshwright.base.errors import UnknownNameError
from meshwright.cli.main import show
from meshwright.cli.show import SCHEMAS

INSTALL = {
    "bash": "~/.local/share/bash-completion/completions/meshwright",
    "zsh": "a folder of $fpath, as _meshwright",
    "fish": "~/.config/fish/completions/meshwright.fish",
    "tcsh": "a file that ~/.cshrc sources",
}
"""Place of the script in each shell."""
FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f",
         "fish": "(__fish_complete_path (commandline -ct))"}  # fmt: skip


def show_completion(args: Any) -> int:
    """Print the script of a shell, or the shells with the place of their script."""
    if args.shell is None:
        show([f"{shell:<6}{place}" for shell, place in INSTALL.items()], INSTALL, args.json)
        return 0
    if args.shell not in INSTALL:
        raise UnknownNameError("shell", args.shell, INSTALL)
    show([script(args.shell).rstrip()], {"script": script(args.shell)}, args.json, is_file=True)
    return 0


def script(shell: str) -> str:
    """Return the script of a shell."""
    import shtab

    text: str = shtab.complete(whole_parser(), shell=shell)
    return text


def whole_parser() -> argparse.ArgumentParser:
    """Return a parser of all commands with all their options."""
    parser = argparse.ArgumentParser(prog="meshwright")
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    first = parser.add_subparsers()
    second = {
        name: first.add_parser(name, help=about).add_subparsers()
        for name, about in FAMILIES.items()
    }
    for whole, question in COMMANDS.items():
        family, _, name = whole.rpartition(" ")
        place = second[family] if family else first
        called = place.add_parser(name, help=question.about())
        question.add_to(called)
        for option in question.options.values():
            if not (option.is_rare or option.is_hidden):
                _complete(called, option)
    return parser


def _complete(parser: argparse.ArgumentParser, option: Option) -> None:
    """Set the completion of an option."""
    from meshwright.ask.names import LISTS, list_of

    (action,) = (action for action in parser._actions if action.dest == option.name)
    listed = list_of(option)
    names = option.choices or OWN.get(option.name) or (tuple(LISTS[listed]()) if listed else ())
    if names and option.name not in OR_FILES:
        action.choices = names
    elif names:
        action.complete = names_or_files(listed, names)  # type: ignore[attr-defined]
    elif any(word in option.metavar for word in ("FILE", "FOLDER", ".json")):
        action.complete = FILES  # type: ignore[attr-defined]


OWN = {"schema": tuple(SCHEMAS), "shell": tuple(INSTALL)}
"""Names that only the command line takes."""
OR_FILES = ("model", "speculative_model", "chip", "system", "on", "graph")
"""Options that take a file in place of a name."""


def names_or_files(listed: str, names: Sequence[str]) -> dict[str, object]:
    """Return the completion of a name of the catalog, or of a file in its place, in each shell."""
    words, function = " ".join(names), f"_meshwright_{listed}"
    bash = f'compgen -W "{words}" -- "$1"; compgen -f -- "$1"'
    zsh = f"_alternative 'names:{listed}:({words})' 'files:file:_files'"
    return {
        "bash": function, "zsh": function, "tcsh": f"({words})", "fish": f"{words} {FILES['fish']}",
        "preamble": {"bash": f"{function}() {{ {bash}; }}", "zsh": f"{function}() {{ {zsh} }}"},
    }  # fmt: skip
