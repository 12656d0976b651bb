"""What a publication claims, what we find, and whether the two agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


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
