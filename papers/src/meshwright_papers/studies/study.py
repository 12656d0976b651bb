"""What a study is: its claims with verdicts, its tables, its files; and the list of all studies."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from meshwright.base.registry import Registry
from meshwright.report.chart import bar_chart
from meshwright.report.markdown import markdown_table
from meshwright.report.screen import wrapped

AGREE_WITHIN = 0.15
"""Share by which a figure of ours may differ from a published one and still agree."""
GAIN_WITHIN = 0.5
"""Share of a published gain by which ours may differ and still agree."""


class Verdict(StrEnum):
    """How a claim stands."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_PUBLISHED = "not published"


@dataclass(frozen=True)
class Claim:
    """One claim of a figure, with our own result under the stated assumptions."""

    figure: str
    what: str
    published: str
    status: str
    """Where the published value was read: ``seed``, ``second-hand``, ``derived`` or ``missing``."""
    ours: str
    verdict: Verdict
    why: str
    """The mechanism, where the two differ."""


def judged(ours: float | None, published: float | None) -> Verdict:
    """Return whether a figure agrees with a published one within ``AGREE_WITHIN``."""
    if published is None:
        return Verdict.NOT_PUBLISHED
    if ours is None:
        return Verdict.DIFFERS
    is_close = abs(ours - published) <= AGREE_WITHIN * abs(published)
    return Verdict.AGREES if is_close else Verdict.DIFFERS


def judged_gain(ours: float | None, published: float, neutral: float = 1.0) -> Verdict:
    """Return whether a gain agrees: what it has over nothing at all, within half of it.

    Parameters
    ----------
    neutral
        The value of no gain: 1, or 100 for percentages.
    """
    if ours is None:
        return Verdict.DIFFERS
    is_close = abs(ours - published) <= GAIN_WITHIN * abs(published - neutral)
    return Verdict.AGREES if is_close else Verdict.DIFFERS


def judged_range(low: float, high: float, published: tuple[float, float]) -> Verdict:
    """Return whether all of our figures lie in a published range, widened by ``AGREE_WITHIN``."""
    inside = low >= published[0] * (1.0 - AGREE_WITHIN) and high <= published[1] * (
        1.0 + AGREE_WITHIN
    )
    return Verdict.AGREES if inside else Verdict.DIFFERS


def records(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return rows with the names of their columns."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


@dataclass(frozen=True)
class Table:
    """Rows of a study, as they go into CSV and Markdown."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    named_by: tuple[str, ...]
    """Columns that name a bar of its chart."""
    drawn: str
    """Column that the chart draws."""

    @property
    def records(self) -> list[dict[str, Any]]:
        """Rows with the names of their columns."""
        return records(self.columns, self.rows)


def claim_lines(claims: Iterable[Claim]) -> Iterator[str]:
    """Yield each claim with its verdict, at most 100 columns wide."""
    for claim in claims:
        published = f" (published {claim.published})" if claim.published else ""
        yield from wrapped(f"{claim.verdict:<14} ", f"{claim.what}: {claim.ours}{published}")


def shown(value: Any) -> str:
    """Return an entry of a table as text: four figures, nothing for what is not there."""
    if value is None:
        return ""
    return f"{value + 0.0:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class StudyResult:
    """What a study found: lines for a reader, and the same as data with units in the names."""

    lines: tuple[str, ...]
    data: Mapping[str, Any]
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()
    assumptions: str = ""


class Study(Protocol):
    """One published figure or question."""

    title: str
    source: str
    """The publication whose figure or question it is."""

    @staticmethod
    def run() -> StudyResult:
        """Compute it."""


studies: Registry[type[Study]] = Registry("study")
"""Keyed by the name on the command line."""


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


class Collection:
    """All studies of this distribution: their titles, their answers, and these as files."""

    @property
    def titles(self) -> Mapping[str, str]:
        """Titles by the names on the command line."""
        return {name: studies[name].title for name in sorted(studies)}

    def run(self, name: str) -> StudyResult:
        """Return what a study finds."""
        return studies[name].run()

    def files(self, results: Mapping[str, StudyResult], *, one_document: bool) -> dict[str, str]:
        """Return the tables, charts and verdicts of studies: the text of each file by its path.

        Parameters
        ----------
        one_document
            Whether all verdicts go into ``studies.md`` and tables into a folder ``studies``, rather
            than each study into a document of its own name.
        """
        found: dict[str, str] = {}
        folder = "studies/" if one_document else ""
        for result in results.values():
            for table in result.tables:
                found[f"{folder}{table.name}.csv"] = table_csv(table)
                if chart := table_svg(table):
                    found[f"{folder}{table.name}.svg"] = chart
        entries = {
            name: (studies[name].title, studies[name].source, result)
            for name, result in results.items()
        }
        if one_document:
            return {**found, "studies.md": document(entries)}
        sections = {f"{name}.md": study_markdown(name, *entry) for name, entry in entries.items()}
        return {**found, **sections}


collection = Collection()
