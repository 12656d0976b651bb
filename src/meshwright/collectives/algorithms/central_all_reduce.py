"""All-reduce of whole vectors that meet in the middle: one hop after the other, no more than that.

Along each grid dimension in turn the partial sums run from both ends to the middle and the sum
runs back, d - 1 messages in all: over an even number of members the two in the middle exchange
what they have. For few bytes nothing can be faster, because no member may wait for fewer hops
than there are to the farthest one.
Source: Luczynski et al. 2024, "Near-optimal wafer-scale reduce" (chains to a root); the exchange in
the middle is that of recursive doubling (Thakur, Rabenseifner and Gropp 2005).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.base.arrays import N
from meshwright.collectives.gathers import coordinates_of, message_s, rank_of, shape_of
from meshwright.collectives.group import Group
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.spec.collective import CollectiveKind


@collective("central_all_reduce")
class CentralAllReduce(Algorithm):
    """T = sum over the grid dimensions of (d - 1)(latency + (S + m_half)/B)."""

    kind = CollectiveKind.ALL_REDUCE

    def may_apply(self, group: Group[Any]) -> bool:
        """Return whether there is a grid dimension."""
        return any(span.is_grid for span in group.spans)

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return the sum over the dimensions."""
        applies: Any = True
        fixed_s: Any = 0.0
        slope: Any = 0.0
        for span in group.spans:
            applies = applies & ((span.size == 1.0) | span.is_grid)
            fixed_s = fixed_s + (span.size - 1.0) * message_s(span)
            slope = slope + (span.size - 1.0) / span.bandwidth_bytes_per_s
        return where_it_applies(applies, group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return one: everything is sent at once."""
        return 1

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield both ways of every line, one dimension after the other."""
        shape, first_step = shape_of(group), 0
        for level, size in enumerate(shape):
            for place in coordinates_of(shape):
                for step, way, reduces in _sends(place[level], size):
                    there = (*place[:level], place[level] + way, *place[level + 1 :])
                    yield Transfer(
                        first_step + step,
                        rank_of(shape, place),
                        rank_of(shape, there),
                        num_bytes,
                        (0,),
                        level,
                        0 if way > 0 else 1,
                        reduces=reduces,
                    )
            first_step += size - 1


def _sends(at: int, size: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (step, way, reduces) of what one position of a line sends: to the middle, and back."""
    low, high = (size - 1) // 2, size // 2
    if at < high:
        yield at, 1, True
    if at > low:
        yield size - 1 - at, -1, True
    if 0 < at <= low:
        yield size - 1 - at, -1, False
    if high <= at < size - 1:
        yield at, 1, False
