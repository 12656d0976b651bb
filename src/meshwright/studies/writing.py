"""Studies as files: Markdown and CSV of each table, a bar chart, and a document of all verdicts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from meshwright.studies.claims import Claim, Table, Verdict, shown
from meshwright.studies.registry import StudyResult

BAR_HEIGHT, BAR_STEP, LABEL_WIDTH, CHART_WIDTH = 14, 18, 120, 420
CHARACTER_WIDTH = 6.4
"""Of a label, at most on average, in the size of the charts."""


def table_csv(table: Table) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([shown(value) for value in row] for row in table.rows)
    return text.getvalue()


def table_markdown(table: Table) -> Iterator[str]:
    """Yield a table as lines of Markdown."""
    yield "| " + " | ".join(table.columns) + " |"
    yield "|" + "---|" * len(table.columns)
    for row in table.rows:
        yield "| " + " | ".join(shown(value).replace("|", "\\|") for value in row) + " |"


def claims_markdown(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield claims with their verdicts as lines of Markdown."""
    yield "| figure | claim | published | read in | ours | verdict | why |"
    yield "|---|---|---|---|---|---|---|"
    for c in claims:
        why = c.why if c.verdict is Verdict.DIFFERS else ""
        cells = (c.figure, c.what, c.published, c.status, c.ours, str(c.verdict), why)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def study_markdown(name: str, title: str, source: str, result: StudyResult) -> str:
    """Return one study as a section: its assumptions, verdicts and tables."""
    lines = [f"## {name}", "", f"{title}. Source: {source}.", ""]
    if result.assumptions:
        lines += [f"Assumptions: {result.assumptions}.", ""]
    if result.claims:
        lines += [*claims_markdown(result.claims), ""]
    for table in result.tables:
        lines += [*table_markdown(table), ""]
    if not result.tables:
        lines += ["```", *result.lines, "```", ""]
    return "\n".join(lines)


def document(studies: Mapping[str, tuple[str, str, StudyResult]]) -> str:
    """Return all studies as one document, the count of verdicts first."""
    claims = [claim for _, _, result in studies.values() for claim in result.claims]
    counts = {v: sum(claim.verdict is v for claim in claims) for v in Verdict}
    lines = [
        "# Studies: published figures, rebuilt",
        "",
        "Written by `meshwright study all --out docs`. A figure agrees when it lies within 15 % of",
        "the published one, a gain when what it has over nothing lies within half of it.",
        "",
        ", ".join(f"{counts[v]} {v}" for v in Verdict) + ".",
        "",
    ]
    parts = [study_markdown(name, *entry) for name, entry in studies.items()]
    return "\n".join([*lines, *parts])


def table_svg(table: Table) -> str:
    """Return a bar chart of the column that a table draws; empty where it holds no numbers.

    Rows without a value are left out. Bars of negative values go left of a common zero.
    """
    place = {column: index for index, column in enumerate(table.columns)}
    bars = [
        (" ".join(str(row[place[name]]) for name in table.named_by), float(row[place[table.drawn]]))
        for row in table.rows
        if isinstance(row[place[table.drawn]], int | float)
    ]
    if not bars:
        return ""
    left = max(LABEL_WIDTH, *(CHARACTER_WIDTH * len(name) + 12 for name, _ in bars))
    lowest = min(0.0, *(amount for _, amount in bars))
    scale = CHART_WIDTH / (max(0.0, *(amount for _, amount in bars)) - lowest or 1.0)
    height, width = BAR_STEP * len(bars) + 30, left + CHART_WIDTH + 80
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'font-family="sans-serif" font-size="11">',
        f'<text x="{left:.0f}" y="14">{escape(table.name)}: {escape(table.drawn)}</text>',
    ]
    for number, (name, amount) in enumerate(bars):
        top = 22 + BAR_STEP * number
        start, end = sorted((left - scale * lowest, left + scale * (amount - lowest)))
        parts += [
            f'<text x="{left - 6:.0f}" y="{top + 11}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{start:.1f}" y="{top}" width="{end - start:.1f}" height="{BAR_HEIGHT}" '
            f'fill="#4878a8"/>',
            f'<text x="{end + 4:.1f}" y="{top + 11}">{shown(amount)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
