"""Pages on a terminal: the tiles that lead with the answer, and on request every section.

``rich`` draws at the width of the terminal, in colour on a terminal only; it is imported when a
page is drawn. Rows of least importance are left out until the tiles have at most ``MOST_LINES``
lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import IO, TYPE_CHECKING

from meshwright.base.units import printable
from meshwright.view.drawn import ranked, told
from meshwright.view.parts import (
    Cell,
    Chart,
    Code,
    Folded,
    Page,
    Part,
    Player,
    Plot,
    Section,
    Table,
    Text,
    Tile,
    Whole,
)
from meshwright.view.values import named, shown, written

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text as Words

LEAST_WIDTH, WIDTH, MOST_WIDTH = 80, 100, 160
"""Columns of a screen: the least, the default outside of terminals, and the most."""
MOST_LINES = 24
"""Lines of a default screen."""
LABEL = 10
"""Columns of the labels at the left."""
BAR = 40
"""Columns of the longest bar."""
LEAST_ROWS, ELLIPSIS = 5, "..."
"""Rows that a table keeps on the first screen, and the mark of those that are left out."""
MOST_BARS, MOST_SEGMENTS = 4, 8
"""Bars and segments on the first screen; the rest is joined."""
MOST_POINTS = 12
"""Rows of a plot of points or lines; the report has all."""
LEAST_SHARE, SMALL_SHARE = 0.001, 0.02
"""Least share of the whole with a separate bar, and that where room is short."""
GAP, FOLDED = 2, 12
"""Columns between those of a table, and the least width of a column of words."""
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
"""Segments of a stacked bar, in turn."""
MOODS = {"good": "bold green", "bad": "bold red", "": ""}
NEVER, OF_NOTE, OF_ROWS, OF_BARS, OF_GAP = 0, 3, 7, 8, 9
"""Turn of a row to be left out where a screen is too long; the largest goes first."""


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


def draw(
    page: Page, *, detail: bool = False, after: str = "", file: IO[str] | None = None
) -> None:  # fmt: skip
    """Print the first screen of a page.

    Parameters
    ----------
    detail
        Whether the sections follow, and nothing is left out.
    after
        Command that a user may ask next.
    """
    console = console_of(file)
    rows = list(_rows(page, detail=detail, after=after))
    if not detail:
        rows = _cut(page.subtitle, rows, console)
    console.print(_screen(page.subtitle, rows, console))
    if detail:
        for section in page.sections:
            console.print(_Stripped(_section(section, console)))
        for warning in page.warnings[1:]:
            console.print(_Stripped(_words(f"warning: {warning}", style="yellow")))


def text_of(page: Page, *, detail: bool = False, after: str = "", width: int = WIDTH) -> str:
    """Return a page as plain text of a width."""
    from io import StringIO

    file, before = StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        draw(page, detail=detail, after=after, file=file)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return file.getvalue()


def lead_of(page: Page) -> str:
    """Return the question and the first two answers: the record at a prompt."""
    told = [f"{tile.label or tile.question}: {tile.answer}" for tile in page.tiles[:2]]
    return "\n".join([page.subtitle, *told])


def console_of(file: IO[str] | None = None) -> Console:
    """Return the console of screens: without colour outside of terminals, or under NO_COLOR."""
    from rich.console import Console

    return Console(file=file, width=screen_width(file), highlight=False, markup=False, emoji=False)


@dataclass(frozen=True)
class _Row:
    """One labelled row of a screen."""

    label: str
    content: str | Whole | Table
    style: str = ""
    spare: int = NEVER
    least: float = LEAST_SHARE
    """Share of the whole below which bars are joined."""
    head: str = ""
    """Words before a bar against a capacity."""

    def shorter(self) -> tuple[int, _Row | None]:
        """Return its turn to be shortened, and the shorter row; None: no row."""
        content = self.content
        if isinstance(content, Whole) and content.capacity is None and self.least != SMALL_SHARE:
            joined = replace(self, least=SMALL_SHARE)
            if len(_bars_of(content, SMALL_SHARE)) < len(_bars_of(content, self.least)):
                return OF_BARS, joined
        if isinstance(content, Table) and len(content.rows) > LEAST_ROWS:
            return OF_ROWS, replace(self, content=_without_last(content))
        return self.spare, None


def _without_last(table: Table) -> Table:
    """Return a table without its last row; a row at its end counts those that are left out."""
    rows, told, at = list(table.rows), 0, min(1, len(table.head) - 1)
    if rows[-1][0] == ELLIPSIS:
        counted = rows.pop()
        at = next(n for n, cell in enumerate(counted) if str(cell).endswith(" more"))
        told = int(str(counted[at]).split()[0].replace(",", ""))
    left: list[Cell] = [ELLIPSIS, *[None] * (len(table.head) - 1)]
    left[at] = f"{told + 1} more"
    return replace(table, rows=[*rows[:-1], left])


def _rows(page: Page, *, detail: bool, after: str) -> Iterator[_Row]:
    """Yield the rows of the tiles that a terminal shows, of the warnings and the next command."""
    tiles = [tile for tile in page.tiles if tile.label]
    for number, tile in enumerate(tiles):
        if number == 0 or tile.part is not None:
            yield _Row("", "", spare=OF_GAP)
        yield from _tile(tile, is_first=number == 0)
    if page.warnings:
        left = len(page.warnings) - 1
        more = f" ({left} more with --detail)" if left and not detail else ""
        yield _Row("warning", page.warnings[0] + more, "yellow")
    if after:
        yield _Row("next", after, "bold")


def _tile(tile: Tile, *, is_first: bool) -> Iterator[_Row]:
    style = MOODS[tile.mood] or ("bold" if is_first else "")
    if isinstance(tile.part, Whole) and tile.part.capacity is not None:
        yield _Row(tile.label, tile.part, spare=tile.spare, head=tile.answer)
    elif tile.part is not None:
        label = tile.label
        if isinstance(tile.part, Table) and tile.part.caption:
            yield _Row(label, tile.part.caption, spare=tile.spare)
            label = ""
        yield _Row(label, tile.part, spare=tile.spare)
        return
    else:
        yield _Row(tile.label, tile.answer, style, tile.spare)
    for number, line in enumerate(tile.note.splitlines()):
        yield _Row("", line, spare=max(tile.spare, OF_NOTE + min(number, 3)))


def _cut(title: str, rows: list[_Row], console: Console) -> list[_Row]:
    """Return the rows that fit the screen, the least important left out."""
    while len(console.render_lines(_screen(title, rows, console), pad=False)) > MOST_LINES:
        turns = [row.shorter() for row in rows]
        first = max(turn for turn, _ in turns)
        if first == NEVER:
            break
        last = max(index for index, (turn, _) in enumerate(turns) if turn == first)
        left = turns[last][1]
        rows[last : last + 1] = [] if left is None else [left]
    return rows


def _screen(title: str, rows: Sequence[_Row], console: Console) -> RenderableType:
    """Return the rows with their labels, under the title."""
    from rich.console import Group
    from rich.table import Table as Grid

    grid = Grid.grid(padding=(0, 1))
    grid.add_column(width=LABEL - 1, no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(_words(row.label, style="bold"), _row(row, console))
    return _Stripped(Group(_words(title), grid))


def _row(row: _Row, console: Console) -> RenderableType:
    if isinstance(row.content, Whole):
        room = console.width - LABEL
        if row.content.capacity is None:
            return _bars(_bars_of(row.content, row.least), row.content, room, console)
        return _stacked(row.content, row.head, room, console)
    if isinstance(row.content, Table):
        return _table(row.content, console.width - LABEL)
    return _words(row.content, style=row.style, is_whole=row.label == "next")


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


# -------------------------------------------------------------------------------- parts, one by one


def _section(section: Section, console: Console) -> RenderableType:
    """Return a section below its title."""
    from rich.console import Group

    parts = [found for part in section.parts for found in _part(part, console)]
    return Group(_words(""), _words(section.title, style="bold underline"), *parts)


def _part(part: Part, console: Console) -> Iterator[RenderableType]:
    """Yield a part of a section below its name."""
    yield from DRAWN[type(part)](part, console)


def _whole_part(part: Whole, console: Console) -> Iterator[RenderableType]:
    yield _words(f"{part.title}: {told(part)}")
    whole = part if part.capacity is None else replace(part, whole=part.capacity)
    yield _indented(_bars(_bars_of(whole, LEAST_SHARE, most=99), whole, console.width, console))


def _plot_part(part: Plot, console: Console) -> Iterator[RenderableType]:
    yield _words(f"{part.title}: {part.says}")
    if part.form == "bars":
        unit = named(part.data.head[1])[1]
        amounts = {str(row[0]): row[1] for row in part.data.rows if isinstance(row[1], int | float)}
        whole = Whole(part.title, amounts, unit, max(amounts.values(), default=0.0))
        yield _indented(_bars(list(amounts.items()), whole, console.width, console, shares=False))
    else:
        data, most = part.data, MOST_POINTS if part.form in ("points", "lines") else 10**9
        yield _indented(_table(replace(data, rows=_spread(data.rows, most)), console.width - 2))


def _spread(rows: Sequence[Sequence[Cell]], most: int) -> Sequence[Sequence[Cell]]:
    """Return at most some rows, evenly taken, both ends among them."""
    if len(rows) <= most:
        return rows
    return [rows[round(k * (len(rows) - 1) / (most - 1))] for k in range(most)]


def _chart_part(part: Chart, console: Console) -> Iterator[RenderableType]:
    yield _words(part.text or f"{part.title}: {part.says}", is_whole=bool(part.text))
    if part.table is not None:
        yield _indented(_table(part.table, console.width - 2))


def _table_part(part: Table, console: Console) -> Iterator[RenderableType]:
    if part.caption:
        yield _words(part.caption)
    yield _indented(_table(part, console.width - 2))


def _player_part(part: Player, console: Console) -> Iterator[RenderableType]:
    for number, step in enumerate(part.steps, start=1):
        yield _words(f"{number:>3}  {step.title}", style="bold")
        for text in filter(None, (step.text, step.sent)):
            yield _indented(_words(text), 5)


DRAWN: dict[type, Callable[..., Iterator[RenderableType]]] = {
    Text: lambda part, console: iter([_words(part.text)]),
    Code: lambda part, console: iter([_indented(_words(part.text, is_whole=True))]),
    Table: _table_part,
    Whole: _whole_part,
    Plot: _plot_part,
    Chart: _chart_part,
    Player: _player_part,
    Folded: lambda part, console: iter([_words(f"{part.summary}: in the report", style="dim")]),
}
"""Function of each kind of part."""


def _indented(drawn: RenderableType, columns: int = 2) -> RenderableType:
    from rich.padding import Padding

    return Padding(drawn, (0, 0, 0, columns))


def _words(text: str, *, style: str = "", is_whole: bool = False) -> Words:
    """Return words as rich draws them, a command whole."""
    from rich.text import Text as Words

    return Words(printable(text, is_whole=is_whole), style=style)


def _block(encoding: str) -> str:
    """Return the character of bars: a block where the output can carry it."""
    try:
        "█".encode(encoding)
    except (UnicodeError, LookupError):
        return "#"
    return "█"


def _bars_of(part: Whole, least: float, *, most: int = MOST_BARS) -> list[tuple[str, float]]:
    """Return name and amount of each bar, the longest first and the rest at the end."""
    total = part.whole or sum(part.parts.values())
    shown = [entry for entry in list(ranked(part.parts).items())[:most]
             if entry[1] >= least * total]  # fmt: skip
    rest = sum(part.parts.values()) - sum(amount for _, amount in shown)
    return [*shown, ("other", rest)] if rest > LEAST_SHARE * total else shown


def _bars(
    bars: Sequence[tuple[str, float]], part: Whole, room: int, console: Console, *,
    shares: bool = True,
) -> RenderableType:  # fmt: skip
    """Return a row for each bar: name, amount, share of the whole, bar."""
    from rich.table import Table as Grid
    from rich.text import Text as Words

    grid, block = Grid.grid(padding=(0, 2)), _block(console.encoding)
    longest = min(BAR, room - 44)
    total = part.whole or sum(part.parts.values())
    grid.add_column(min_width=16)
    for _ in range(1 + shares):
        grid.add_column(justify="right")
    grid.add_column()
    for name, amount in bars:
        share = amount / total if total else 0.0
        bar = Words(block * min(max(round(share * longest), 1), longest), style="cyan")
        told_share = [f"{share:.1%}"] if shares else []
        grid.add_row(_words(name), shown(amount, part.unit), *told_share, bar)
    return grid


def _stacked(part: Whole, head: str, room: int, console: Console) -> RenderableType:
    """Return one bar of segments within a capacity, and its segments in words.

    Segments that show in the unit of the capacity are written without it: the head names it.
    """
    from rich.console import Group
    from rich.text import Text as Words

    assert part.capacity is not None
    used, least = sum(part.parts.values()), part.capacity / 1000
    entries = [entry for entry in list(ranked(part.parts).items())[:MOST_SEGMENTS]
               if entry[1] > least]  # fmt: skip
    rest = used - sum(amount for _, amount in entries)
    if rest > least:
        entries.append(("other", rest))
    width = max(min(BAR, room - len(head) - 10), 10)
    unit = 1024.0 ** (log2(part.capacity) // 10)
    bar, legend = _words(f"{head}  "), Words()
    block, filled, run = _block(console.encoding), 0, 0.0
    for index, (name, amount) in enumerate(entries):
        run += amount
        colour = COLOURS[index % len(COLOURS)]
        cells = min(round(run / part.capacity * width), width) - filled
        bar.append(block * cells, style=colour)
        filled += cells
        told_amount = f"{amount / unit:,.1f}" if amount >= 0.05 * unit else shown(amount, part.unit)
        legend.append(", " if index else "").append(_words(name, style=colour))
        legend.append(f" {told_amount}")
    bar.append(("·" if block != "#" else ".") * (width - filled), style="dim")
    bar.append(f"  {used / part.capacity:.0%}", style="red" if used > part.capacity else "")
    return Group(bar, legend)


def _table(table: Table, room: int) -> RenderableType:
    """Return a table; columns beyond the room follow below, beside the first one again."""
    from rich.console import Group

    told_table = written(table)
    columns = [[str(cell) for cell in column]
               for column in zip(told_table.head, *told_table.rows, strict=True)]  # fmt: skip
    blocks, width = [[0]], _least_width(columns[0])
    for number, column in enumerate(columns[1:], 1):
        needed = _least_width(column) + GAP
        if width + needed > room and len(blocks[-1]) > 1:
            blocks.append([0])
            width = _least_width(columns[0])
        blocks[-1].append(number)
        width += needed
    return Group(*(_block_of_table([columns[number] for number in block]) for block in blocks))


def _least_width(column: Sequence[str]) -> int:
    """Return the columns of the screen that a column needs; words are folded between each other."""
    cells = [column[0].removesuffix(">"), *column[1:]]
    widest = max(map(len, cells))
    if column[0].endswith(">"):
        return widest
    longest = max((len(word) for cell in cells for word in cell.split()), default=0)
    return min(widest, max(FOLDED, min(longest, 2 * FOLDED)))


def _block_of_table(columns: Sequence[Sequence[str]]) -> RenderableType:
    from rich.table import Table as Grid

    has_head = any(column[0].strip(">") for column in columns)
    grid = Grid(
        box=None, padding=(0, GAP, 0, 0), show_header=has_head, header_style="dim", pad_edge=False
    )
    for name, *_ in columns:
        is_number = name.endswith(">")
        grid.add_column(
            name.removesuffix(">"), justify="right" if is_number else "left", no_wrap=is_number,
            overflow="fold",
        )  # fmt: skip
    for cells in zip(*(column[1:] for column in columns), strict=True):
        grid.add_row(*map(_words, cells))
    return grid
