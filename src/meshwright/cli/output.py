"""How a result reaches the user: lines for a reader, or JSON for a program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshwright.cli.progress import LINE

if TYPE_CHECKING:
    from pathlib import Path


def show(lines: Iterable[str], data: object, as_json: bool) -> None:
    """Print lines for a reader, or data for a program."""
    LINE.wipe()
    if as_json:
        import json

        print(json.dumps(data, indent=2))
    else:
        print("\n".join(lines))


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
