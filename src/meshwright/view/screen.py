"""Output of a terminal: a screen that leads with the answer, and plain lines for the detail.

A :class:`Screen` is a list of labelled rows (a sentence, bars, a table). ``rich`` draws it at the
width of the terminal, in colour on a terminal only; it is imported when a screen is drawn. Rows of
least importance are left out until the screen has at most ``MOST_LINES`` lines.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING

from meshwright.base.units import format_bytes, format_seconds, printable
from meshwright.view.words import words

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


LEAST_WIDTH, WIDTH, MOST_WIDTH = 80, 100, 160
"""Columns of a screen: the least, the default outside of terminals, and the most."""
MOST_LINES = 24
"""Lines of a default screen."""
LABEL = 10
"""Columns of the labels at the left."""
BAR = 40
"""Columns of the longest bar."""
LEAST_SHARE, SMALL_SHARE = 0.001, 0.02
"""Least share of the whole with a separate bar, and that where room is short."""
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
"""Segments of a stacked bar, in turn."""


def screen_width(file: IO[str] | None = None) -> int:
    """Return the columns of a screen: ``COLUMNS``, else those of the terminal, else 100."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isdigit() and int(stated):
        columns = int(stated)
    else:
        try:
            columns = os.get_terminal_size((file or sys.stdout).fileno()).columns
        except (OSError, ValueError, AttributeError):
            return WIDTH
    return min(max(columns, LEAST_WIDTH), MOST_WIDTH)


@dataclass(frozen=True)
class Row:
    """One labelled row of a screen."""

    label: str
    content: str | Bars | Table | Stacked
    style: str = ""
    """Colour of a sentence on a terminal, in the words of rich."""
    spare: int = 0
    """Rows of the largest number are left out first where a screen is too long; 0: never."""

    def shorter(self) -> tuple[int, Row | None]:
        """Return its turn to be shortened, as ``spare``, and the shorter row; None: no row."""
        if isinstance(self.content, Bars) and self.content.spare > self.spare:
            joined = replace(self.content, least=SMALL_SHARE)
            if len(joined.shown()) < len(self.content.shown()):
                return self.content.spare, replace(self, content=joined)
        return self.spare, None


@dataclass(frozen=True)
class Bars:
    """Parts of a whole: name, amount, share and a bar each; the small ones together."""

    parts: Mapping[str, float]
    show: Callable[[float], str]
    most: int = 4
    """Most bars; the rest is one line more."""
    whole: float | None = None
    """Whole of the shares; None: the sum of the parts."""
    least: float = LEAST_SHARE
    """Share of the whole below which parts are joined with the rest."""
    spare: int = 0
    """When bars below ``SMALL_SHARE`` are joined where a screen is too long, as of rows."""

    @property
    def total(self) -> float:
        """Whole of the shares."""
        return sum(self.parts.values()) if self.whole is None else self.whole

    def shown(self) -> list[tuple[str, float]]:
        """Return name and amount of each bar, the longest first and the rest at the end."""
        ranked = sorted(self.parts.items(), key=lambda item: -item[1])
        shown = [entry for entry in ranked[: self.most] if entry[1] >= self.least * self.total]
        rest = sum(self.parts.values()) - sum(amount for _, amount in shown)
        return [*shown, ("other", rest)] if rest > LEAST_SHARE * self.total else shown


@dataclass(frozen=True)
class Stacked:
    """A bar of segments within a capacity, and its segments in words."""

    head: str
    parts: Mapping[str, float]
    capacity: float
    show: Callable[[float], str]
    most: int = 5
    """Most named segments; the rest is called other; 0: the bar alone."""


@dataclass(frozen=True)
class Table:
    """A table; a heading that ends in ``>`` aligns its column to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Screen:
    """Rows under a title; at most ``MOST_LINES`` lines when drawn, unless ``is_whole``."""

    title: str
    rows: list[Row] = field(default_factory=list)
    is_whole: bool = False

    def add(
        self, label: str, content: str | Bars | Table | Stacked, *, style: str = "", spare: int = 0
    ) -> None:
        """Add a row."""
        self.rows.append(Row(label, content, style, spare))

    def gap(self) -> None:
        """Add an empty line, which is left out first."""
        self.rows.append(Row("", "", spare=9))

    @property
    def lead(self) -> str:
        """The title and the sentences set in bold: the answer, without the next command."""
        bold = [row for row in self.rows if "bold" in row.style and row.label != "next"]
        return "\n".join([self.title, *(f"{row.label}: {row.content}" for row in bold)])

    def draw(self, file: IO[str] | None = None) -> None:
        """Print the screen."""
        console = _console(file)
        rows = list(self.rows)
        while True:
            lines = console.render_lines(_grid(self.title, rows, console), pad=False)
            turns = [row.shorter() for row in rows]
            first = max((turn for turn, _ in turns), default=0)
            if self.is_whole or len(lines) <= MOST_LINES or not first:
                break
            last = max(index for index, (turn, _) in enumerate(turns) if turn == first)
            left = turns[last][1]
            rows[last : last + 1] = [] if left is None else [left]
        console.print(_grid(self.title, rows, console))

    def text(self, width: int = WIDTH) -> str:
        """Return the screen as plain text of a width."""
        from io import StringIO

        file, before = StringIO(), os.environ.get("COLUMNS")
        os.environ["COLUMNS"] = str(width)
        try:
            self.draw(file)
        finally:
            if before is None:
                del os.environ["COLUMNS"]
            else:
                os.environ["COLUMNS"] = before
        return file.getvalue()


def _console(file: IO[str] | None) -> Console:
    """Return the console of screens: without colour outside of terminals, or under NO_COLOR."""
    from rich.console import Console

    return Console(file=file, width=screen_width(file), highlight=False, markup=False, emoji=False)


def _grid(title: str, rows: Sequence[Row], console: Console) -> RenderableType:
    """Return the rows with their labels, under the title."""
    from rich.console import Group
    from rich.table import Table as Grid

    grid = Grid.grid(padding=(0, 1))
    grid.add_column(width=LABEL - 1, no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(_words(row.label, style="bold"), _drawn(row, console))
    return _Stripped(Group(_words(title), grid))


class _Stripped:
    """Lines of something drawn without the blanks at their ends, which copies would carry."""

    def __init__(self, drawn: RenderableType) -> None:
        self.drawn = drawn

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        from rich.segment import Segment, Segments

        for line in console.render_lines(self.drawn, pad=False):
            kept = list(line)
            while kept and not kept[-1].text.strip():
                kept.pop()
            if kept:
                last = kept[-1]
                kept[-1] = Segment(last.text.rstrip(), last.style, last.control)
            yield Segments([*kept, Segment.line()])


def _words(text: str, *, style: str = "", is_whole: bool = False) -> Text:
    """Return words as rich draws them, a command whole."""
    from rich.text import Text

    return Text(printable(text, is_whole=is_whole), style=style)


def _drawn(row: Row, console: Console) -> RenderableType:
    """Return the content of a row as rich draws it."""
    if isinstance(row.content, str):
        return _words(row.content, style=row.style, is_whole=row.label == "next")
    if isinstance(row.content, Bars):
        return _bars(row.content, console)
    if isinstance(row.content, Stacked):
        return _stacked(row.content, console)
    return _table(row.content)


def _block(console: Console) -> str:
    """Return the character of bars: a block where the output can carry it."""
    try:
        "█".encode(console.encoding)
    except (UnicodeError, LookupError):
        return "#"
    return "█"


def _bars(bars: Bars, console: Console) -> RenderableType:
    from rich.table import Table as Grid
    from rich.text import Text

    grid, block = Grid.grid(padding=(0, 2)), _block(console)
    longest = min(BAR, console.width - LABEL - 44)
    grid.add_column(min_width=16)
    grid.add_column(justify="right")
    grid.add_column(justify="right")
    grid.add_column()
    for name, amount in bars.shown():
        share = amount / bars.total if bars.total else 0.0
        bar = block * min(max(round(share * longest), 1), longest)
        grid.add_row(_words(name), bars.show(amount), f"{share:.1%}", Text(bar, style="cyan"))
    return grid


def _stacked(stack: Stacked, console: Console) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    used = sum(stack.parts.values())
    ranked = sorted(stack.parts.items(), key=lambda item: -item[1])
    least = stack.capacity / 1000
    named = [(name, amount) for name, amount in ranked[: stack.most or None] if amount > least]
    rest = used - sum(amount for _, amount in named)
    if rest > least:
        named.append(("other", rest))
    width = max(min(BAR, console.width - LABEL - len(stack.head) - 10), 10)
    bar = _words(f"{stack.head}  ")
    block, filled, run = _block(console), 0, 0.0
    legend = Text()
    for index, (name, amount) in enumerate(named):
        run += amount
        colour = COLOURS[index % len(COLOURS)]
        cells = min(round(run / stack.capacity * width), width) - filled
        bar.append(block * cells, style=colour)
        filled += cells
        legend.append(", " if index else "").append(_words(name, style=colour))
        legend.append(f" {stack.show(amount)}")
    bar.append("·" * (width - filled) if block != "#" else "." * (width - filled), style="dim")
    bar.append(f"  {used / stack.capacity:.0%}", style="red" if used > stack.capacity else "")
    return Group(bar, legend) if stack.most else bar


def _table(table: Table) -> RenderableType:
    from rich.table import Table as Drawn

    has_head = any(name.strip(">") for name in table.head)
    drawn = Drawn(
        box=None, padding=(0, 2, 0, 0), show_header=has_head, header_style="dim", pad_edge=False
    )
    for name in table.head:
        is_number = name.endswith(">")
        drawn.add_column(
            name.rstrip(">"), justify="right" if is_number else "left", no_wrap=is_number
        )
    for cells in table.rows:
        drawn.add_row(*map(_words, cells))
    return drawn


def bar_lines(
    parts: Mapping[str, float], show: Callable[[float], str], *, whole: float | None = None
) -> Iterator[str]:
    """Yield a line for each part: name, amount, share of the whole, bar.

    Parts below a thousandth of the whole are joined in one line. A part beyond the whole has a
    bar of full length that ends in ``>``.
    """
    total = sum(parts.values()) if whole is None else whole
    small = 0.0
    for name, amount in sorted(parts.items(), key=lambda item: -item[1]):
        if amount < total / 1000:
            small += amount
            continue
        yield _line(name, show(amount), amount / total)
    if small > 0:
        yield _line("smaller parts", show(small), small / total)


def _line(name: str, amount: str, share: float) -> str:
    bar = "#" * min(max(round(share * BAR), 1 if share > 0 else 0), BAR)
    bar += ">" * (share > 1)
    return f"  {name:<20} {amount:>10} {share:>7.1%}  {bar}".rstrip()


def memory_lines(
    parts: Mapping[str, float], needed_bytes: float, capacity_bytes: float, where: str
) -> Iterator[str]:
    """Yield the memory of the fullest device, part by part."""
    used, room = format_bytes(needed_bytes), format_bytes(capacity_bytes)
    yield f"memory of the fullest device ({where}): {used} of {room}"
    named = {words(name): size for name, size in parts.items() if size}
    yield from bar_lines(named, format_bytes, whole=capacity_bytes)


def time_lines(what: str, parts: Mapping[str, float], total_s: float) -> Iterator[str]:
    """Yield a time, part by part."""
    yield f"{what}: {format_seconds(total_s)}"
    named = {words(name): seconds for name, seconds in parts.items() if seconds}
    yield from bar_lines(named, format_seconds)


def wrapped(head: str, text: str, *, hang: int = 24) -> Iterator[str]:
    """Yield a text behind a head, wrapped under it at the width of the screen."""
    yield from textwrap.wrap(
        text, screen_width(), initial_indent=head, subsequent_indent=" " * min(len(head), hang),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
