"""Pieces of the generated pages, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

SPECIAL = re.compile(r"([\\`*_\[\]<>|~$#{}])")


class Source(Protocol):
    """Where a number was published."""

    title: str
    url: str | None
    repo: str | None
    path: str | None
    commit: str | None


def escaped(text: str) -> str:
    """Return text that Markdown leaves as it is."""
    return _escaped(" ".join(text.split()))


def prose(docstring: str) -> str:
    """Return a docstring as Markdown: its paragraphs, titles of its sections, literals."""
    titled = re.sub(r"^(\w[\w ]+)\n-+$", r"**\1**\n", docstring, flags=re.MULTILINE)
    return "\n\n".join(map(_paragraph, titled.split("\n\n")))


def _paragraph(text: str) -> str:
    """Escape all but titles and literals."""
    pieces = re.split(r"(``.+?``|\*\*\w[\w ]+\*\*)", " ".join(text.split()))
    return "".join(piece if i % 2 else _escaped(piece) for i, piece in enumerate(pieces))


def _escaped(text: str) -> str:
    """Return text that Markdown leaves as it is, spaces included."""
    return SPECIAL.sub(r"\\\1", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def block(lines: Iterable[str], language: str = "text") -> str:
    """Return lines as they stand."""
    return "\n".join((f"```{language}", *lines, "```")) + "\n"


def page(title: str, *parts: str) -> str:
    """Return a page."""
    return "\n\n".join((f"# {title}", *(part.rstrip("\n") for part in parts if part))) + "\n"


def source_text(source: Source) -> str:
    """Return the title of a source, with a link or the place in its repository."""
    if source.url:
        return f"[{escaped(source.title)}](<{source.url}>)"
    at = f" at {source.commit[:8]}" if source.commit else ""
    place = "/".join(filter(None, (source.repo, source.path)))
    return f"{escaped(source.title)} (`{place}`{at})" if place else escaped(source.title)
