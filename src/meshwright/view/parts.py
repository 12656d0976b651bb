"""Parts of a report: questions with short answers, sections of facts, tables and charts.

Everything here is data. Each room builds the pages of its answers (``train/page.py`` and siblings);
``page/html.py`` draws them. Text is text: nothing in a part is HTML, so that a name from an input
can never become markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal


class Kind:
    """Name of each part in data: its class in lower case."""

    DERIVED: ClassVar[Mapping[str, str]] = {"kind": "kind"}

    @property
    def kind(self) -> str:
        """Name of the part for renderers."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Text(Kind):
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code(Kind):
    """Text for a user to copy: a command, or a file under its name."""

    text: str
    name: str = ""


@dataclass(frozen=True)
class Table(Kind):
    """Rows of cells under headings; a heading that ends in ``>`` marks a column of numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Chart(Kind):
    """A Vega-Lite chart, with its content in words and in numbers for those who cannot see it."""

    title: str
    says: str
    """Content of the chart in a sentence, for screen readers."""
    spec: Mapping[str, Any]
    table: Table | None = None


@dataclass(frozen=True)
class Picture(Kind):
    """A separate drawing: a whole SVG file."""

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
    """Frames of the walk in the format of ``player.js``."""
    steps: Sequence[Step]


@dataclass(frozen=True)
class Folded(Kind):
    """Collapsed parts behind a summary line."""

    summary: str
    parts: Sequence[Part]


Part = Text | Code | Table | Chart | Picture | Player | Folded


@dataclass(frozen=True)
class Section:
    """Full answer to one question."""

    key: str
    """Anchor of links to it, such as ``memory``."""
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
    """The question, in a line."""
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    command: str = ""
    """Command that computed the answer."""
    version: str = ""
