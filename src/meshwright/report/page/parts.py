"""What a report consists of: questions with short answers, sections of facts, tables and charts.

Everything here is data. Each room says what its answers show (``train/page.py`` and its siblings);
``page/html.py`` draws it. Text is text: nothing in a part is HTML, so that a name from an input can
never become markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal


class Kind:
    """What each part is called where it is data: its class in lower case."""

    DERIVED: ClassVar[Mapping[str, str]] = {"kind": "kind"}

    @property
    def kind(self) -> str:
        """The name that drawers go by."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Text(Kind):
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code(Kind):
    """What a user copies: a command, or a file under its name."""

    text: str
    name: str = ""


@dataclass(frozen=True)
class Table(Kind):
    """Rows of cells under headings; columns whose heading ends in ``>`` are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Chart(Kind):
    """A Vega-Lite chart, and the same in words and in numbers for those who cannot see it."""

    title: str
    says: str
    """What it shows, in a sentence: the text that a screen reader reads."""
    spec: Mapping[str, Any]
    table: Table | None = None


@dataclass(frozen=True)
class Picture(Kind):
    """A drawing of its own: a whole SVG file."""

    title: str
    says: str
    svg: str


@dataclass(frozen=True)
class Step:
    """One frame of a player in words."""

    title: str
    text: str
    sent: str = ""


@dataclass(frozen=True)
class Player(Kind):
    """A walk to play, to step through and to scrub, and every frame of it in words."""

    title: str
    says: str
    legend: str
    data: Mapping[str, Any]
    """As ``player.js`` reads it."""
    steps: Sequence[Step]


@dataclass(frozen=True)
class Folded(Kind):
    """Parts behind a line that opens them."""

    summary: str
    parts: Sequence[Part]


Part = Text | Code | Table | Chart | Picture | Player | Folded


@dataclass(frozen=True)
class Section:
    """What answers one question at length."""

    key: str
    """By which links find it, such as ``memory``."""
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Tile:
    """A question on the first screen, its answer, and the section that tells more."""

    question: str
    answer: str
    note: str = ""
    section: str = ""
    mood: Literal["", "good", "bad"] = ""


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    """What was asked, in a line."""
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    command: str = ""
    """How the answer was made."""
    version: str = ""
