"""All-to-all: direct on switches, or in stages, one for each level of the network.

Direct: each member sends every other one its part, back to back. Bytes for members outside a domain
leave through the member's own link into the next level: S (n - members inside) / n. The links into
different levels work at the same time. In stages: within one span at a time, on grids by shifts.
Source: Thakur, Rabenseifner and Gropp 2005, section 4 (pairwise exchange order).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from meshwright.base.arrays import Num, larger, where
from meshwright.collectives.group import (
    Group,
    Span,
    coordinates_of,
    crossed_level,
    group_size,
    members_inside,
    message_s,
    moved,
    rank_of,
    shape_of,
    spans_only,
)
from meshwright.collectives.registry import Affine, Algorithm, Transfer, where_it_applies
from meshwright.spec.collective import CollectiveKind


class DirectAllToAll(Algorithm):
    """One message from each member to each other member.

    Assumes: messages across an outer level also load the links of the levels between, except those
    of the innermost one (a member has its own link out of its host).
    """

    kind = CollectiveKind.ALL_TO_ALL
    replay_slack = 0.5

    def affine(self, group: Group[Num]) -> Affine:
        """Return the slowest level: its latency, its messages' m_half and its bytes."""
        members = group_size(group)
        fixed_s: Num = 0.0
        slope: Num = 0.0
        for index, (span, inside) in enumerate(
            zip(group.spans, members_inside(group), strict=True)
        ):
            peers = (span.size if index == 0 else members) - inside
            half_s = span.message_half_bytes / span.bandwidth_bytes_per_s
            spanned = span.size > 1.0
            level_s = span.latency_s + peers * half_s
            level_slope = peers / members / span.bandwidth_bytes_per_s
            fixed_s = larger(fixed_s, where(spanned, level_s, 0.0))
            slope = larger(slope, where(spanned, level_slope, 0.0))
        return where_it_applies(spans_only(group, grids=False), group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return one chunk for each member."""
        return prod(shape_of(group))

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages in steps that load all ports alike."""
        shape, size = shape_of(group), self.num_chunks(group)
        for step in range(1, size):
            for rank in range(size):
                target = (rank + step) % size
                level = crossed_level(shape, rank, target)
                chunk = (rank * size + target,)
                yield Transfer(step - 1, rank, target, num_bytes / size, chunk, level)


@dataclass(frozen=True)
class Shift:
    """One message of a stage; each parcel is (origin, target, half or None for both)."""

    step: int
    source: int
    destination: int
    parcels: tuple[tuple[int, int, int | None], ...]
    lane: int = 0


def exchange_affine(span: Span[Num], *, relays: bool) -> Affine:
    """Return (fixed_s, seconds_per_byte) of an all-to-all of S bytes per member along one span.

    On a switch d - 1 messages leave back to back with S (d - 1)/d bytes. On a torus dimension the
    hops of all parcels load each link with S floor(d^2/4) / (2 d), in floor(d/2) messages; on a
    line the middle link carries floor(d^2/4) parcels of S/d, each a message, over d - 1 hops. With
    ``relays`` a line forwards all parcels of one origin together: d - 1 messages, the longest in
    step t with d - t parcels, d (d - 1)/2 in all.
    """
    size, rate = span.size, span.bandwidth_bytes_per_s
    half_s = span.message_half_bytes / rate
    if not span.is_grid:
        messages_s = span.latency_s + (size - 1.0) * half_s
        return where(size == 1.0, 0.0, messages_s), (size - 1.0) / size / rate
    cut = np.floor(size * size / 4.0)
    ring_s = np.floor(size / 2.0) * message_s(span)
    messages = size - 1.0 if relays else cut
    parcels = size * (size - 1.0) / 2.0 if relays else cut
    line_s = (size - 1.0) * span.latency_s + messages * half_s
    closes = span.closes == 1.0
    return where(closes, ring_s, line_s), where(closes, cut / 2.0, parcels) / size / rate


def exchange_shifts(span: Span[float], *, relays: bool) -> Iterator[Shift]:
    """Yield the messages of a stage."""
    size = round(float(span.size))
    ranks = range(size)
    directions = list(enumerate((1, -1)))
    if not span.is_grid:
        # One message from each member to each other, in steps that load all ports alike.
        for step, rank in product(range(1, size), ranks):
            target = (rank + step) % size
            yield Shift(step - 1, rank, target, ((rank, target, None),))
    elif span.closes:
        # A two-way ring: parcels with farther to go move on together, the farthest in halves.
        for step, rank, (lane, direction) in product(range(size // 2), ranks, directions):
            origin = (rank - direction * step) % size
            parcels: list[tuple[int, int, int | None]] = [
                (origin, (origin + direction * distance) % size, None)
                for distance in range(step + 1, (size - 1) // 2 + 1)
            ]
            if size % 2 == 0:
                parcels.append((origin, (origin + size // 2) % size, lane))
            yield Shift(step, rank, (rank + direction) % size, tuple(parcels), lane)
    elif relays:
        # A line: parcels from one origin move on together.
        for step, rank, (lane, direction) in product(range(size - 1), ranks, directions):
            origin = rank - direction * step
            beyond = range(rank + 1, size) if direction > 0 else range(rank)
            if 0 <= origin < size and beyond:
                together = tuple((origin, target, None) for target in beyond)
                yield Shift(step, rank, rank + direction, together, lane)
    else:
        # A line: every hop of every parcel, those with the longest path first.
        for origin, target in product(ranks, ranks):
            direction = 1 if target > origin else -1
            for hop in range(abs(target - origin)):
                rank = origin + direction * hop
                step = hop * size + size - abs(target - rank)
                lane = 0 if direction > 0 else 1
                yield Shift(step, rank, rank + direction, ((origin, target, None),), lane)


@dataclass(frozen=True)
class StagedAllToAll(Algorithm):
    """One stage for each level, innermost first; or rotated, on grid dimensions only.

    Rotated, equal parts of the data begin with different dimensions, so that all links work in
    every phase.
    """

    is_rotated: bool = False
    relays: bool = False
    """Whether a line forwards all parcels of one member together."""
    min_grid_dims: int = 0
    kind = CollectiveKind.ALL_TO_ALL
    replay_slack = 0.5

    def affine(self, group: Group[Num]) -> Affine:
        """Return the sum of the stages; rotated, as many phases as dimensions.

        A phase is as long as its slowest stage.
        """
        phases: Num = 0.0
        fixed_s: Num = 0.0
        slope: Num = 0.0
        combined = larger if self.is_rotated else np.add
        for span in group.spans:
            stage_s, stage_slope = exchange_affine(span, relays=self.relays)
            phases = phases + (span.size > 1.0)
            fixed_s, slope = combined(fixed_s, stage_s), combined(slope, stage_slope)
        if not self.is_rotated:
            return where_it_applies(True, group, fixed_s, slope)
        applies = spans_only(group, grids=True) & (phases > 1.0)
        return where_it_applies(applies, group, fixed_s * phases, slope)

    def _orders(self, group: Group[float]) -> list[tuple[int, ...]]:
        """Return the levels in the order in which each equal part of the data visits them."""
        if not self.is_rotated:
            return [tuple(range(len(group.spans)))]
        spanned = [level for level, size in enumerate(shape_of(group)) if size > 1] or [0]
        return [(*spanned[k:], *spanned[:k]) for k in range(len(spanned))]

    def num_chunks(self, group: Group[float]) -> int:
        """Return two halves of each part for each member."""
        return prod(shape_of(group)) * len(self._orders(group)) * 2

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of all parts and stages."""
        shape, orders = shape_of(group), self._orders(group)
        size, chunk_bytes = prod(shape), num_bytes / self.num_chunks(group)
        stages = [list(exchange_shifts(span, relays=self.relays)) for span in group.spans]
        phase_steps = max((shift.step for listed in stages for shift in listed), default=0) + 1
        for part, order in enumerate(orders):
            for phase, level in enumerate(order):
                done = order[:phase]
                elsewhere = [range(n if k != level else 1) for k, n in enumerate(shape)]
                for shift, place in product(stages[level], list(coordinates_of(shape))):
                    if place[level] != shift.source:
                        continue
                    chunks: list[int] = []
                    for (origin, target, half), other in product(
                        shift.parcels, list(product(*elsewhere))
                    ):
                        # Along levels that are done the destination of a parcel is where it is, and
                        # its sender anywhere; along the others it is the reverse.
                        sender = [(other if k in done else place)[k] for k in range(len(shape))]
                        receiver = [(place if k in done else other)[k] for k in range(len(shape))]
                        sender[level], receiver[level] = origin, target
                        pair = rank_of(shape, sender) * size + rank_of(shape, receiver)
                        first = (pair * len(orders) + part) * 2
                        chunks += [first, first + 1] if half is None else [first + half]
                    step = phase * phase_steps + shift.step
                    there = rank_of(shape, moved(place, level, shift.destination))
                    sent = (step, rank_of(shape, place), there, chunk_bytes * len(chunks))
                    yield Transfer(*sent, tuple(chunks), level, shift.lane)
