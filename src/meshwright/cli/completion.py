"""Scripts for shells that complete commands, options and names of the catalog.

Written by shtab from the same table of options that is parsed. A script is static, so that a shell
waits for nothing: names are those of the catalog at the time when it is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.ask.questions import COMMANDS, FAMILIES
from meshwright.ask.record import Option
from meshwright.base.errors import UnknownNameError
from meshwright.cli.main import show

INSTALL = {
    "bash": "~/.local/share/bash-completion/completions/meshwright",
    "zsh": "a folder of $fpath, as _meshwright",
    "fish": "~/.config/fish/completions/meshwright.fish",
    "tcsh": "a file that ~/.cshrc sources",
}
"""Place of the script in each shell."""
USUAL_SIZES = (8, 64, 512)
"""Proposed numbers of devices."""
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
    (action,) = (action for action in parser._actions if action.dest == option.name)
    kind = kind_of(option)
    if option.choices or kind in LISTED:
        action.choices = option.choices or names_of(kind)
    elif kind:
        action.complete = names_or_files(kind)  # type: ignore[attr-defined]
    elif any(word in option.metavar for word in ("FILE", "FOLDER", ".json")):
        action.complete = FILES  # type: ignore[attr-defined]


def names_or_files(kind: str) -> dict[str, object]:
    """Return the completion of a name of the catalog, or of a file in its place, in each shell."""
    words, function = " ".join(names_of(kind)), f"_meshwright_{kind}"
    bash = f'compgen -W "{words}" -- "$1"; compgen -f -- "$1"'
    zsh = f"_alternative 'names:{kind}:({words})' 'files:file:_files'"
    return {
        "bash": function, "zsh": function, "tcsh": f"({words})", "fish": f"{words} {FILES['fish']}",
        "preamble": {"bash": f"{function}() {{ {bash}; }}", "zsh": f"{function}() {{ {zsh} }}"},
    }  # fmt: skip


KINDS = {
    "model": "model", "speculative_model": "model", "chip": "chip", "system": "system",
    "framework": "framework", "server": "server", "optimizer": "optimizer", "graph": "graph",
    "schema": "schema", "shell": "shell", "target": "target", "walk": "walk", "form": "form",
}  # fmt: skip
"""Kinds of names of options with files of the catalog, or a registry, behind them."""
LISTED = ("framework", "server", "optimizer", "schema", "shell", "target", "walk", "form")
"""Kinds with names only; other kinds take a file as well."""


def kind_of(option: Option) -> str:
    """Return the kind of names that an option takes; empty where nothing lists its values."""
    if option.name == "on":
        return "chip" if option.metavar == "CHIP" else "system"
    return KINDS.get(option.name, "")


def names_of(kind: str) -> Sequence[str]:
    """Return the names of one kind."""
    from meshwright.catalog.frameworks import framework_names
    from meshwright.catalog.graphs.files import graph_names
    from meshwright.catalog.models import model_names
    from meshwright.catalog.systems import chip_names, system_names
    from meshwright.catalog.workloads import optimizer_names, server_names
    from meshwright.cli.show import SCHEMAS
    from meshwright.frameworks.programs.servers import SERVERS
    from meshwright.frameworks.registry import exporters
    from meshwright.show.walks.named import walk_names
    from meshwright.streams.forms import streams

    if kind == "system":
        sized = [f"{size}x{chip}" for chip in chip_names() for size in USUAL_SIZES]
        return [*system_names(), *sized]
    listed: Mapping[str, Callable[[], Sequence[str]]] = {
        "model": model_names, "chip": chip_names, "framework": framework_names,
        "server": server_names, "optimizer": optimizer_names, "graph": graph_names,
        "schema": lambda: tuple(SCHEMAS), "shell": lambda: tuple(INSTALL),
        "target": lambda: (*exporters, *SERVERS), "walk": lambda: tuple(walk_names()),
        "form": lambda: tuple(streams),
    }  # fmt: skip
    return listed[kind]()
