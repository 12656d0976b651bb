"""Two-way ring on a torus dimension that the group owns whole.

Blocks travel both ways at once, so floor(d / 2) messages suffice and each link carries half of the
bytes; where d is even the farthest block comes half from each side.
Source: Chan et al. 2007, section 4 (both directions of a link at once).
"""

from __future__ import annotations

from typing import Any

from meshwright.collectives.gather_family import GATHER_KINDS, OneSpanGather
from meshwright.collectives.registry import collective_algorithms


class TwoWayRing(OneSpanGather):
    """A ring in both directions of a closed grid dimension."""

    def fits(self, span: Any) -> Any:
        """Return whether the span is a grid dimension with its wrap link."""
        return (span.closes == 1.0) & span.is_grid


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"two_way_ring_{_kind}")(TwoWayRing(_kind))
