"""Line: a mesh dimension, or a part of a torus dimension, that has no wrap link.

The member at the end has one link, so a gather takes d - 1 messages of S/d however it is done:
half of the bandwidth of a two-way ring.
Source: Chan et al. 2007, section 4.1 (linear arrays).
"""

from __future__ import annotations

from typing import Any

from meshwright.collectives.gather_family import GATHER_KINDS, OneSpanGather
from meshwright.collectives.registry import collective_algorithms


class Line(OneSpanGather):
    """A line of neighbours that pass on what comes from either side."""

    def fits(self, span: Any) -> Any:
        """Return whether the span is a grid dimension without a wrap link."""
        return (span.closes == 0.0) & span.is_grid


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"line_{_kind}")(Line(_kind))
