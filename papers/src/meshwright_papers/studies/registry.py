"""What every study offers: a title, and a run that returns text and data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from meshwright.base.registry import Registry
from meshwright_papers.studies.claims import Claim, Table


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
