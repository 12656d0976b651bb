"""How a result reaches the user: lines for a reader, or JSON for a program."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from meshwright.cli.progress import wipe

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.report.screen import Screen


def show(lines: Iterable[str], data: object, as_json: bool) -> None:
    """Print lines for a reader, or data for a program."""
    wipe()
    if as_json:
        import json

        print(json.dumps(data, indent=2))
    else:
        print("\n".join(lines))


def add_detail(parser: argparse.ArgumentParser) -> None:
    """Declare whether the whole answer is shown."""
    parser.add_argument("--detail", action="store_true", help="all parts, the ranking, the proof")


def show_screen(
    screen: Callable[[], Screen], detail: Callable[[], Iterable[str]],
    data: Callable[[], object], args: argparse.Namespace,
) -> None:  # fmt: skip
    """Print a screen, with ``--detail`` all that it leaves out; or data for a program."""
    wipe()
    if args.json:
        show((), data(), as_json=True)
        return
    drawn = screen()
    drawn.is_whole = args.detail
    drawn.draw()
    if args.detail:
        print()
        print("\n".join(detail()))


def next_command(args: argparse.Namespace) -> str:
    """Return what to run after a plan: export and explain its file, or write that first."""
    if args.out is not None:
        return f"meshwright export {args.out} megatron; meshwright explain {args.out}"
    return command_line() + " --out plan.json"


def question_line(args: argparse.Namespace) -> str:
    """Return the plan command of the same question, without the strategy that was given."""
    from meshwright.cli.question import FIXED, option_of

    fixed = {option_of(name) for name in FIXED}
    words, kept = shlex.split(command_line()), []
    for before, word in zip(["", *words], words, strict=False):
        if word.split("=")[0] not in fixed and before not in fixed:
            kept.append(word)
    kept[1:2] = ["plan"]
    return " ".join(map(shlex.quote, kept))


def command_line() -> str:
    """Return the command as it was given."""
    words = [word for word in sys.argv[1:] if word not in ("--detail", "--json")]
    return " ".join(["meshwright", *map(shlex.quote, words)])


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
