"""Where a number comes from: each value of the catalog carries one of these."""

from __future__ import annotations

from typing import Literal

from meshwright.spec.declaration import Declaration


class Source(Declaration):
    """A public document: its title, and where it stands."""

    title: str
    url: str | None = None
    repo: str | None = None
    path: str | None = None
    commit: str | None = None
    date: str | None = None


class Provenance(Declaration):
    """The origin of one value.

    ``cited`` and ``derived`` name their source; ``assumed`` states the range within which the
    value may lie, as text with its unit, and the reason.
    """

    kind: Literal["cited", "derived", "assumed"] = "cited"
    source: str | None = None
    note: str = ""
    low: float | None = None
    high: float | None = None
