"""Ring on a switch: every member sends to the next one at its full bandwidth.

(d - 1) messages of S/d for a gather or a reduction, twice that for an all-reduce.
Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
"""

from __future__ import annotations

from typing import Any

from meshwright.collectives.gather_family import GATHER_KINDS, OneSpanGather
from meshwright.collectives.registry import collective_algorithms


class Ring(OneSpanGather):
    """A one-way ring over the members of one switch."""

    def fits(self, span: Any) -> Any:
        """Return whether the span is a switch."""
        return not span.is_grid


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"ring_{_kind}")(Ring(_kind))
