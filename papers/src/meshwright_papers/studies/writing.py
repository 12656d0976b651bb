"""Studies as files: Markdown and CSV of each table, a bar chart, and a document of all verdicts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from meshwright.report.chart import bar_chart
from meshwright.report.markdown import markdown_table
from meshwright_papers.studies.claims import Claim, Table, Verdict, shown
from meshwright_papers.studies.registry import StudyResult


def table_csv(table: Table) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([shown(value) for value in row] for row in table.rows)
    return text.getvalue()


def table_markdown(table: Table) -> Iterator[str]:
    """Yield a table as lines of Markdown."""
    yield from markdown_table(
        table.columns, ([shown(value) for value in row] for row in table.rows)
    )


def claims_markdown(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield claims with their verdicts as lines of Markdown."""
    head = ("figure", "claim", "published", "read in", "ours", "verdict", "why")
    rows = (
        (c.figure, c.what, c.published, c.status, c.ours, str(c.verdict),
         c.why if c.verdict is Verdict.DIFFERS else "")
        for c in claims
    )  # fmt: skip
    yield from markdown_table(head, rows)


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
    title = f"{table.name}: {table.drawn}"
    return bar_chart(title, [(name, amount, shown(amount)) for name, amount in bars])
