"""All-reduce by pipelined trees: the reduction of one piece runs while another one is gathered.

The way of each piece of a shard in an even wave is a spanning tree of the block, rooted at the
owner of the shard; a reduction runs up the trees, a gather down. All trees together use every link
alike, in every phase, if the reduction of a piece starts R + C phases before that of the next one
and a gather one phase after its reduction: a link then carries (N - 1)/E of the bytes, the least
that spanning trees allow. What runs over one link in one phase is one message.
Source: Nash-Williams 1961 (edge-disjoint spanning trees); pipelined trees on a mesh: Laskar et al.
2024, "Enhancing collective communication in MCM accelerators" (TTO). This packing derived here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.base.arrays import Num
from meshwright.collectives.algorithms.wave import even_share, tree_share
from meshwright.collectives.group import Group
from meshwright.collectives.mesh.blocks import block_of, levels_of, may_span_a_block, sides_of
from meshwright.collectives.mesh.waves import even_plan, gather_messages
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.collectives.spans import group_size
from meshwright.spec.collective import CollectiveKind


@collective("pipelined_wave_16_all_reduce", num_pieces=16)
@collective("pipelined_wave_8_all_reduce", num_pieces=8)
@collective("pipelined_wave_4_all_reduce", num_pieces=4)
@collective("pipelined_wave_2_all_reduce", num_pieces=2)
class PipelinedWaveAllReduce(Algorithm):
    """T = M (latency + m_half/B) + [2 w + (P - 1)(N - 1)/E] S/(P B).

    P pieces make M = 2 (R + C - 2) + (P - 1)(R + C - 1) messages on each link; w is what the
    busiest links carry of the first reduction and of the last gather, which run alone.
    """

    kind = CollectiveKind.ALL_REDUCE
    replay_slack = 0.5

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces

    def may_apply(self, group: Group[Any]) -> bool:
        """Return whether there are two grid dimensions."""
        return may_span_a_block(group)

    def affine(self, group: Group[Num]) -> tuple[Num, Num]:
        """Return the form on blocks of any sides."""
        block = block_of(group)
        both, further = block.inner + block.outer, self.num_pieces - 1.0
        messages = 2.0 * (both - 2.0) + further * (both - 1.0)
        share = (2.0 * even_share(block) + further * tree_share(block)) / self.num_pieces
        return where_it_applies(
            block.applies, group, messages * block.message_s, share / block.bandwidth_bytes_per_s
        )

    def num_chunks(self, group: Group[float]) -> int:
        """Return as many chunks for each piece as an even wave has."""
        size = round(float(group_size(group)))
        return 1 if size == 1 else size * even_plan(*sides_of(group)).num_pieces * self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield one message for each link and phase: what it reduces, then what is final."""
        if float(group_size(group)) == 1.0:
            return
        levels, chunk_bytes = levels_of(group), num_bytes / self.num_chunks(group)
        added, kept = self._chunks(*sides_of(group))
        for place in sorted(added.keys() | kept.keys()):
            step, source, destination, dimension = place
            final = tuple(kept.get(place, ()))
            chunks = tuple(added.get(place, ())) + final
            yield Transfer(
                step,
                source,
                destination,
                chunk_bytes * len(chunks),
                chunks,
                levels[dimension],
                0 if destination > source else 1,
                reduces=place in added,
                kept=final,
            )

    def _chunks(self, inner: int, outer: int) -> tuple[_Chunks, _Chunks]:
        """Return what is added and what is kept, by (step, source, destination, dimension)."""
        plan, period = even_plan(inner, outer), inner + outer
        per_piece = inner * outer * plan.num_pieces
        added: _Chunks = defaultdict(list)
        kept: _Chunks = defaultdict(list)
        for message in gather_messages(plan, inner, outer):
            source, destination = message.source, message.destination
            dimension = 0 if message.is_inner else 1
            ways = np.array(message.pieces) @ (plan.num_pieces, 1)
            for piece in range(self.num_pieces):
                chunks = (ways + piece * per_piece).tolist()
                start = piece * period
                up, down = start + period - 3 - message.phase, start + period - 1 + message.phase
                added[up, destination, source, dimension] += chunks
                kept[down, source, destination, dimension] += chunks
        return added, kept


_Chunks = dict[tuple[int, int, int, int], list[int]]
"""Chunks by step, source, destination and dimension."""
