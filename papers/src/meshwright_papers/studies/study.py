"""Studies: claims with verdicts, tables and files; and the list of all studies."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from meshwright.base.registry import Registry
from meshwright.catalog.answer_file import json_text
from meshwright.spec.system import SystemSpec
from meshwright.view.declared_values import declared_values, origin_text, value_text
from meshwright.view.markdown import markdown_table
from meshwright.view.terminal import screen_width
from meshwright_papers.studies.drawing import Drawing, drawing_spec, drawing_svg

AGREE_WITHIN = 0.15
"""Share by which a figure of ours may differ from a published one and still agree."""
GAIN_WITHIN = 0.5
"""Share of a published gain by which ours may differ and still agree."""


class Verdict(StrEnum):
    """Verdict on a claim."""

    AGREES = "agrees"
    UNDER_A_SETTING = "agrees under a setting"
    """Agrees under one of many declared settings: possibly by chance, so it is counted apart."""
    DIFFERS = "differs"
    NOT_REBUILT = "not rebuilt"
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
    described: str | None = None
    """Our result where all systems are limited to the description in the publication."""
    described_verdict: Verdict | None = None

    @property
    def differs(self) -> bool:
        """Whether a reading differs from the published value."""
        return Verdict.DIFFERS in (self.verdict, self.described_verdict)


def read_twice(searched: Iterable[Claim], described: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return claims with both readings of a publication: all searched, and as it describes."""
    found = []
    for ours, theirs in zip(searched, described, strict=True):
        if ours.what != theirs.what:
            raise ValueError(f"{ours.what!r} is not {theirs.what!r}")
        reasons = [c.why for c in (ours, theirs) if c.verdict is Verdict.DIFFERS and c.why]
        why = "; as described: ".join(dict.fromkeys(reasons))
        if ours.verdict is not Verdict.DIFFERS and reasons:
            why = f"as described: {why}"
        found.append(
            replace(ours, why=why, described=theirs.ours, described_verdict=theirs.verdict)
        )
    return tuple(found)


def judged(ours: float | None, published: float | None) -> Verdict:
    """Return whether a figure agrees with a published one within ``AGREE_WITHIN``."""
    if published is None:
        return Verdict.NOT_PUBLISHED
    if ours is None:
        return Verdict.DIFFERS
    is_close = abs(ours - published) <= AGREE_WITHIN * abs(published)
    return Verdict.AGREES if is_close else Verdict.DIFFERS


def judged_gain(ours: float | None, published: float, neutral: float = 1.0) -> Verdict:
    """Return whether a gain agrees: as a figure, and in its excess over no gain within half of it.

    Parameters
    ----------
    neutral
        The value of no gain: 1, or 100 for percentages.
    """
    if ours is None:
        return Verdict.DIFFERS
    is_close = abs(ours - published) <= GAIN_WITHIN * abs(published - neutral)
    return judged(ours, published) if is_close else Verdict.DIFFERS


def judged_range(low: float, high: float, published: tuple[float, float]) -> Verdict:
    """Return whether all of our figures lie in a published range."""
    return Verdict.AGREES if published[0] <= low <= high <= published[1] else Verdict.DIFFERS


def records(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return rows with the names of their columns."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


@dataclass(frozen=True)
class Table:
    """Rows of a study, as they go into CSV and Markdown."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    drawing: Drawing | None = None
    """Chart of the table, if any."""

    @property
    def is_drawn(self) -> bool:
        """Whether it has a chart, and numbers for it."""
        return bool(self.drawing and drawing_spec(self.columns, self.rows, self.drawing))

    @property
    def records(self) -> list[dict[str, Any]]:
        """Rows with the names of their columns."""
        return records(self.columns, self.rows)


def claim_lines(claims: Iterable[Claim]) -> Iterator[str]:
    """Yield each claim with its verdict, at most 100 columns wide."""
    for claim in claims:
        published = f" (published {claim.published})" if claim.published else ""
        if claim.described_verdict is not None:
            published += f"; as described {claim.described}: {claim.described_verdict}"
        yield from wrapped(f"{claim.verdict:<14} ", f"{claim.what}: {claim.ours}{published}")


def wrapped(head: str, text: str, *, hang: int = 24) -> Iterator[str]:
    """Yield a text behind a head, wrapped under it at the width of the screen."""
    yield from textwrap.wrap(
        text, screen_width(), initial_indent=head, subsequent_indent=" " * min(len(head), hang),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def shown(value: Any) -> str:
    """Return an entry of a table as text: four figures, nothing for a missing one."""
    if value is None:
        return ""
    return f"{value + 0.0:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class StudyResult:
    """Findings of a study: lines for a reader, and data with units in the names."""

    lines: tuple[str, ...]
    data: Mapping[str, Any]
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()
    assumptions: str = ""
    machine: SystemSpec | None = None
    """System with assumed values that are reported."""


class Study(Protocol):
    """One published figure or question."""

    title: str
    source: str
    """Publication of the figure or question."""

    @staticmethod
    def run() -> StudyResult:
        """Compute the study."""


studies: Registry[type[Study]] = Registry("study")
"""Studies by the name on the command line."""


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
    are_two = any(claim.described_verdict is not None for claim in claims)
    ours = (
        ("all searched", "verdict", "as described", "verdict") if are_two else ("ours", "verdict")
    )
    head = ("figure", "claim", "published", "read in", *ours, "why")
    rows = (
        (c.figure, c.what, c.published, c.status, c.ours, str(c.verdict),
         *((c.described or "", str(c.described_verdict or "")) if are_two else ()),
         c.why if c.differs or c.verdict is Verdict.NOT_REBUILT else "")
        for c in claims
    )  # fmt: skip
    yield from markdown_table(head, rows)


def assumed(system: SystemSpec) -> Iterator[str]:
    """Yield each value of a system and its chip that no source states: with range and reason."""
    for declared in (system.chip, system):
        for entry in declared_values(declared, declared.provenance):
            if entry.origin is not None and entry.origin.kind == "assumed":
                yield f"{entry.path} {value_text(entry.value, entry.unit)} ({origin_text(entry)})"


def study_markdown(
    name: str, title: str, source: str, result: StudyResult, folder: str = ""
) -> str:
    """Return one study as a section: its assumptions, verdicts, charts and tables.

    Parameters
    ----------
    folder
        Of the charts, as the document links to them.
    """
    lines = [f"## {name}", "", f"{title}. Source: {source}.", ""]
    if result.assumptions:
        lines += [f"Assumptions: {result.assumptions}.", ""]
    if result.machine is not None:
        lines += [f"Assumed of {result.machine.name}: {'; '.join(assumed(result.machine))}.", ""]
    if result.claims:
        lines += [*claims_markdown(result.claims), ""]
    for table in result.tables:
        if table.drawing is not None and table.is_drawn:
            lines += [f"![{table.drawing.title}]({folder}{table.name}.svg)", ""]
        lines += [*table_markdown(table), ""]
    if not result.tables:
        lines += ["```", *result.lines, "```", ""]
    return "\n".join(lines)


def document(sections: Iterable[str], verdicts: Sequence[Sequence[Verdict | None]]) -> str:
    """Return the sections of all studies as one document, the count of verdicts first.

    Parameters
    ----------
    verdicts
        Verdicts of each claim: all searched, and as described or None.
    """
    twice = [pair for pair in verdicts if pair[1] is not None]
    lines = [
        "# Studies: published figures, rebuilt",
        "",
        "Written by `meshwright study all --out docs/results`. A figure agrees within 15 % of what",
        "is published; a gain if besides what it has over nothing lies within half of it; a range",
        "if all ours lie in it; what is `at most` or `up to` by our largest figure. A claim that",
        "holds under one of several declared settings is counted apart. Figures 13 and 16 to 19 of",
        "TEMP are read twice: with all that a plan may do searched for every system, and with what",
        "the paper describes: no pipeline inside a wafer (its section II-A), nothing recomputed,",
        "state replicated or fully sharded (FSDP).",
        "",
        _counts(pair[0] for pair in verdicts),
        "",
        f"Of the {len(twice)} read twice: all searched {_counts(pair[0] for pair in twice)}",
        f"As described {_counts(pair[1] for pair in twice)}",
        "",
    ]
    return "\n".join([*lines, *sections])


def _counts(verdicts: Iterable[Verdict | None]) -> str:
    """Return the number of claims of each verdict, as a sentence."""
    found = list(verdicts)
    return ", ".join(f"{found.count(v)} {v}" for v in Verdict) + "."


def table_svg(table: Table) -> str:
    """Return the chart of a table; empty where it has none, or no numbers."""
    if table.drawing is None:
        return ""
    return drawing_svg(table.columns, table.rows, table.drawing)


class Collection:
    """All studies of this distribution: their titles, their answers, and these as files."""

    @property
    def titles(self) -> Mapping[str, str]:
        """Titles by the names on the command line."""
        return {name: studies[name].title for name in sorted(studies)}

    def run(self, name: str, folder: str | None) -> dict[str, Any]:
        """Return a study as JSON: ``lines``, ``data``, ``files``, ``section`` and ``verdicts``.

        Parameters
        ----------
        folder
            Folder of the tables and charts, as the section links to them; None: no files.
        """
        study = studies[name]
        result = study.run()
        files = {}
        for table in result.tables if folder is not None else ():
            files[f"{folder}{table.name}.csv"] = table_csv(table)
            if chart := table_svg(table):
                files[f"{folder}{table.name}.svg"] = chart
        return {
            "lines": result.lines,
            "data": json.loads(json_text(result.data, with_defaults=True)),
            "files": files,
            "section": study_markdown(name, study.title, study.source, result, folder or ""),
            "verdicts": [(claim.verdict, claim.described_verdict) for claim in result.claims],
        }

    def documents(self, found: Mapping[str, Mapping[str, Any]], *, is_one: bool) -> dict[str, str]:
        """Return all sections as ``studies.md``, or each as a document with its name."""
        if not is_one:
            return {f"{name}.md": result["section"] for name, result in found.items()}
        verdicts = [pair for result in found.values() for pair in result["verdicts"]]
        sections = (result["section"] for result in found.values())
        return {"studies.md": document(sections, verdicts)}


collection = Collection()
