"""Parts of a view: tiles, rows, parts of a whole, plots, code and text.

Everything here is data: names, numbers and units, without glyphs of any medium. The ``view.py`` of
a room makes the page of an answer of them (:mod:`meshwright.view.registry`), and one file per
medium draws every page: ``terminal.py``, ``html.py``, ``notebook.py``. Text is text: nothing in a
part is markup, so that a name from an input can never become markup.

A name may end in its unit: ``"time [s]"``, ``"memory [bytes]"``, ``"faster [%]"``. Numbers under it
are SI values (a share is a fraction), and each medium writes them as its readers expect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

T = TypeVar("T")
Cell = str | int | float | None
Form = Literal["bars", "stacked", "points", "lines", "spans"]
"""Forms of a plot, each with its columns:

``bars``: name, amount. ``stacked``: name, then one column for each part. ``points``: name, kind, x,
y. ``lines``: series, x, y. ``spans``: name, low, middle, high.
"""


class Kind:
    """Name of each part in data: its class in lower case."""

    DERIVED: ClassVar[Mapping[str, str]] = {"kind": "kind"}

    @property
    def kind(self) -> str:
        """Name of the part for media."""
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
    """Rows of cells under names; a name with a unit, or one that ends in ``>``, is of numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


@dataclass(frozen=True)
class Whole(Kind):
    """Parts of a whole, the largest first; against a capacity where there is one."""

    title: str
    parts: Mapping[str, float]
    """Amount of each part, by its name; a field name such as ``tp_comm_s`` is put in words."""
    unit: str
    whole: float | None = None
    """Whole of the shares; None: the sum of the parts."""
    capacity: float | None = None
    """Amount that there is room for; None: no limit."""
    says: str = ""
    """Content in a sentence; empty: the largest parts and their shares."""


@dataclass(frozen=True)
class Plot(Kind):
    """Columns of numbers under a form that every medium can draw."""

    title: str
    says: str
    """Content of the plot in a sentence, for screen readers."""
    form: Form
    data: Table
    limit: float | None = None
    """Amount of a line across the plot: of the parts, or of x where there are points."""
    limit_name: str = "limit"
    is_brushed: bool = False
    """Whether a reader can select points by drawing an area."""


@dataclass(frozen=True)
class Chart(Kind):
    """A Vega-Lite chart of another form, with its content in words and in numbers."""

    title: str
    says: str
    """Content of the chart in a sentence, for screen readers."""
    spec: Mapping[str, Any]
    table: Table | None = None
    text: str = ""
    """Drawing in characters, for a terminal; empty: its content in words."""


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
    """Collapsed parts behind a summary line; a terminal shows the summary alone."""

    summary: str
    parts: Sequence[Part]


Part = Text | Code | Table | Whole | Plot | Chart | Player | Folded


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
    """Further lines, separated by line breaks."""
    section: str = ""
    mood: Literal["", "good", "bad"] = ""
    label: str = ""
    """Name at the left of a terminal, at most nine letters; empty: pages alone show the tile."""
    part: Whole | Table | None = None
    """Part that a terminal draws in place of the answer and the note (against a capacity: beside
    them); pages have it in the section."""
    spare: int = 0
    """Tiles of the largest number are left out first where a screen is too long; 0: never."""


@dataclass(frozen=True)
class Later(Generic[T]):
    """Entries that are made when they are first read: a default screen reads none of them."""

    make: Callable[[], Iterable[T]]

    @cached_property
    def entries(self) -> list[T]:
        """The entries, made once."""
        return list(self.make())

    def __iter__(self) -> Iterator[T]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> T:
        return self.entries[index]


@dataclass(frozen=True)
class Page:
    """A whole answer: its title, its first screen, and its sections."""

    title: str
    subtitle: str
    """The question, in a line."""
    tiles: Sequence[Tile]
    sections: Sequence[Section] | Later[Section] = field(default=())
    warnings: Sequence[str] = ()
    command: str = ""
    """Command that computed the answer."""
    version: str = ""
    page_tiles: Sequence[Tile] | Later[Tile] = ()
    """Further tiles of pages, which take time to make."""
