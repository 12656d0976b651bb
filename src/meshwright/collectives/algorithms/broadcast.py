"""Broadcast from the first member: a chain in pieces, or a binomial tree for short messages.

Source: Chan et al. 2007, sections 3 and 5 (binomial tree, pipelined chain).
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.arrays import N
from meshwright.collectives.gathers import (
    coordinates_of,
    pipeline_affine,
    shape_of,
    spans_switches_only,
)
from meshwright.collectives.group import Group
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.collectives.trees import ceil_log2, chain, nested_tree
from meshwright.spec.collective import CollectiveKind


@collective("chain_broadcast", num_pieces=1)
@collective("pipelined_chain_broadcast", num_pieces=32)
class ChainBroadcast(Algorithm):
    """Each member passes the pieces on to the next: along the outer level, then inside."""

    kind = CollectiveKind.BROADCAST

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return the pipeline of d - 1 hops per level."""
        hops = [span.size - 1.0 for span in group.spans]
        fixed_s, slope = pipeline_affine(group, hops, self.num_pieces, 1.0, 1.0)
        return where_it_applies(True, group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces."""
        return self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield each piece along every edge of the nested chains."""
        shape = shape_of(group)
        for edge in nested_tree(shape, list(coordinates_of(shape)), chain):
            for piece in range(self.num_pieces):
                size = num_bytes / self.num_pieces
                step = edge.depth - 1 + piece
                yield Transfer(step, edge.parent, edge.child, size, (piece,), edge.level)


@collective("binomial_broadcast")
class BinomialBroadcast(Algorithm):
    """In each round every member that has the message sends it to one that has not."""

    kind = CollectiveKind.BROADCAST
    replay_slack = 1.0

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return ceil(log2 d) rounds per level of one message each."""
        hops = [ceil_log2(span.size) for span in group.spans]
        fixed_s, slope = pipeline_affine(group, hops, 1, 1.0, 1.0)
        return where_it_applies(spans_switches_only(group), group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return 1: the message goes as a whole."""
        return 1

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the rounds of the outermost level, then those inside each domain."""
        members, first_step, stride = 1, 0, 1
        shape = shape_of(group)
        for size in shape:
            stride *= size
        for level in reversed(range(len(shape))):
            stride //= shape[level]
            reached = 1
            while reached < shape[level]:
                for position in range(min(reached, shape[level] - reached)):
                    for domain in range(members):
                        source = (domain * shape[level] + position) * stride
                        yield Transfer(first_step, source, source + reached * stride,
                                       num_bytes, (0,), level)  # fmt: skip
                first_step, reached = first_step + 1, reached * 2
            members *= shape[level]
