"""Send to the next member on an axis, as between pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.base.arrays import N, larger, where
from meshwright.collectives.gathers import crossed_level, message_s, shape_of
from meshwright.collectives.group import Group
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.spec.collective import CollectiveKind


@collective("neighbour_send")
class NeighbourSend(Algorithm):
    """Every member but the last sends its message to the next one at the same time.

    The slowest pair decides: the one that crosses the slowest spanned level.
    Assumes: on grids the members follow each other in a snake, so that one hop suffices.
    """

    kind = CollectiveKind.SEND

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return one message through the slowest spanned level."""
        fixed_s: Any = 0.0
        slope: Any = 0.0
        for span in group.spans:
            spanned = span.size > 1.0
            fixed_s = larger(fixed_s, where(spanned, message_s(span), 0.0))
            slope = larger(slope, where(spanned, 1.0 / span.bandwidth_bytes_per_s, 0.0))
        return where_it_applies(True, group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return 1: each member has one message."""
        return 1

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the message of each member to the next one."""
        shape = shape_of(group)
        size = 1
        for span_size in shape:
            size *= span_size
        for rank in range(size - 1):
            level = crossed_level(shape, rank, rank + 1)
            yield Transfer(0, rank, rank + 1, num_bytes, (rank,), level)
