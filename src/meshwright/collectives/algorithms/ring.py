"""Rings and lines: every member passes on what it received last.

(d - 1) messages of S/d for a gather or a reduction, twice that for an all-reduce: on a switch at
the full bandwidth of a member, on a torus dimension both ways round, on a line from both sides.
Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
"""

from __future__ import annotations

from typing import Any

from meshwright.collectives.gathers import GATHER_KINDS, OneSpanGather
from meshwright.collectives.registry import collective_algorithms


class Ring(OneSpanGather):
    """A one-way ring over the members of one switch."""

    def fits(self, span: Any) -> Any:
        """Return whether the span is a switch."""
        return not span.is_grid


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"ring_{_kind}")(Ring(_kind))


class TwoWayRing(OneSpanGather):
    """A ring in both directions of a closed grid dimension."""

    def fits(self, span: Any) -> Any:
        """Return whether the span is a grid dimension with its wrap link."""
        return (span.closes == 1.0) & span.is_grid


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"two_way_ring_{_kind}")(TwoWayRing(_kind))


class Line(OneSpanGather):
    """A line of neighbours that pass on what comes from either side."""

    def fits(self, span: Any) -> Any:
        """Return whether the span is a grid dimension without a wrap link."""
        return (span.closes == 0.0) & span.is_grid


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"line_{_kind}")(Line(_kind))
