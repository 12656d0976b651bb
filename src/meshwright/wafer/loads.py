"""Messages of a placed plan as loads of the links: of each axis, all its groups at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, read_only
from meshwright.collectives.group import SPAN_COLUMNS, Group, Span, group_size
from meshwright.collectives.registry import best_algorithm, collective_algorithms
from meshwright.cost.communication import AxisNetwork
from meshwright.network.placement import AxisPlace, Ranks
from meshwright.network.traffic import (
    Demands,
    Pattern,
    chain_pattern,
    collective_pattern,
    joined_demands,
    placed,
    stream_name,
    stream_pattern,
)
from meshwright.sharding.strategy import PlanOptions
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import NetworkLevel
from meshwright.streams.forms import TensorStream, streams
from meshwright.wafer.messages import Message


@dataclass(frozen=True)
class Sending:
    """One message of an axis, sent by all its groups at once."""

    demands: Demands
    """For one byte of the full tensor on one rank."""
    num_bytes: float
    """Bytes of all its copies: one for each layer, say."""
    private_s: FloatArray
    """Seconds of each pair of members for a byte, on the links that the closed form gives it."""
    rounds: str = ""
    """Name of the operator that sends it in its rounds; empty: it travels alone."""
    since: float = 0.0
    until: float = 1.0
    """Shares of the computation of the operator between which it travels [1]."""
    beside_s: float = 0.0
    """Computation of that operator, as often as the message is sent [s]."""
    is_forward: bool = False
    """It belongs to the forward pass."""
    start_bytes: float = 0.0
    """Bytes that starts of messages and latencies keep a link for."""
    start_s: float = 0.0
    """Seconds of these on a private link."""
    wait_s: float = 0.0
    """Seconds of the algorithm in which links are idle."""
    is_stream: bool = False
    """It travels piece by piece round the group."""

    @property
    def longest_s(self) -> float:
        """Seconds on private links, starts left out [s]."""
        return self.num_bytes * float(self.private_s.max(initial=0.0))


@dataclass(frozen=True)
class AxisLoad:
    """Messages of one axis in both passes of a micro-batch, over all its groups at once."""

    axis: str
    messages: Sequence[Sending]
    overlaps: bool
    """It overlaps with computation, and so with other axes."""
    yields: bool = False
    """It overlaps with the computation of a whole pass, not with that of one operator."""

    @property
    def private_s(self) -> float:
        """Seconds of the busiest pair, if each pair had the links that the closed form gives it."""
        seconds = [sent.private_s * sent.num_bytes for sent in self.messages]
        return one_after_the_other_s(self.rounds, seconds)

    @property
    def rounds(self) -> Sequence[str]:
        """Rounds of each message, those of both passes apart."""
        return [f"{sent.is_forward} {sent.rounds}" * bool(sent.rounds) for sent in self.messages]

    @property
    def backward(self) -> Sequence[Sending]:
        """Messages of the backward pass: the window whose links are looked at."""
        return [message for message in self.messages if not message.is_forward]

    @property
    def demands(self) -> Demands:
        """All that is sent in the backward pass."""
        parts = [
            replace(sent.demands, num_bytes=sent.demands.num_bytes * sent.num_bytes)
            for sent in self.backward
        ]
        return replace(joined_demands(parts), operation_names=(self.axis,) * len(parts))


def one_after_the_other_s(rounds: Sequence[str], busy_s: Sequence[FloatArray]) -> float:
    """Return the seconds of messages that keep links, or pairs of devices, busy so long.

    Those in the same rounds travel at the same time; all others go one after the other.
    """
    found: dict[object, FloatArray] = {}
    for number, (name, busy) in enumerate(zip(rounds, busy_s, strict=True)):
        key = name or number
        found[key] = found[key] + busy if key in found else busy
    return sum(float(busy.max(initial=0.0)) for busy in found.values())


def axis_loads(
    messages: Sequence[tuple[Message, float]], plan_options: PlanOptions, groups: RowGroups,
    ranks: Ranks, row: int = 0, *, forward: Sequence[tuple[Message, float]] = (),
    yielding: Sequence[str] = (),
) -> Iterator[AxisLoad]:  # fmt: skip
    """Yield the load of each axis that sends some of the messages, each with its count.

    Parameters
    ----------
    messages, forward
        Messages of the backward and of the forward pass.
    groups
        The groups of columns of strategies, as the closed form sees them.
    row
        The strategy in those columns.
    yielding
        Axes that overlap with the computation of whole passes.
    """
    every = [(*sent, False) for sent in messages] + [(*sent, True) for sent in forward]
    for axis in dict.fromkeys(message.axis for message, *_ in every):
        group = groups.of(axis, row)
        if group_size(group) < 2:
            continue
        place = ranks.place(axis)
        sent: list[Sending] = []
        overlaps = False
        for message, times, is_forward in every:
            if message.axis != axis:
                continue
            pattern, private_s, start_bytes, wait_s = groups.sends(message, plan_options, group)
            start_bytes, start_s = start_bytes * times, 0.0
            if start_bytes:
                start_s = start_bytes / min(
                    s.bandwidth_bytes_per_s for s in group.spans if s.size > 1
                )
            wait_s = wait_s * times * message.num_bytes
            in_rounds = message.overlaps and message.rounds
            kind = str(message.kind) if axis in yielding else ""
            sent.append(
                Sending(
                    placed_demands(pattern, axis, place), message.num_bytes * times, private_s,
                    message.rounds if in_rounds else kind, message.since, message.until,
                    message.beside_s * times if in_rounds else 0.0, is_forward,
                    start_bytes, start_s, wait_s, message.is_stream,
                )
            )  # fmt: skip
            overlaps = overlaps or bool(message.overlaps)
        yield AxisLoad(axis, sent, overlaps, axis in yielding)


def idle_s_per_byte(message: Message, group: Group[float], private_s: FloatArray) -> float:
    """Return the seconds a byte of a collective in which even its busiest link is idle [s/B]."""
    name = best_algorithm(message.kind, message.num_bytes, group)
    _, s_per_byte = collective_algorithms[name].affine(group)
    return max(0.0, float(s_per_byte) - float(private_s.max(initial=0.0)))


def stream_rounds(
    stream: TensorStream, group: Group[float], num_chunks: float
) -> tuple[float, float, float]:
    """Return the cost of N - 1 rounds of a stream: fixed [s], for each byte [s], fixed bytes.

    Latencies of one hop and the start of each chunk keep the link; those of further hops are waited
    for, and each takes a chunk as long as the first, because relays store chunks whole.
    """
    crossed = [span for span in group.spans if span.size > 1]
    members = prod(span.size for span in crossed)
    slowest = min(span.bandwidth_bytes_per_s for span in crossed)
    starts = [span.message_half_bytes / span.bandwidth_bytes_per_s for span in crossed]
    latency_s = max(span.latency_s for span in crossed)
    rounds, more_hops = members - 1.0, float(stream.num_hops(members)) - 1.0
    hops = 1.0 + more_hops / num_chunks
    s_per_byte = rounds * hops / (members * float(stream.num_parts(members)) * slowest)
    fixed_bytes = rounds * (num_chunks * max(starts) + latency_s) * slowest
    return rounds * more_hops * (max(starts) + latency_s), s_per_byte, fixed_bytes


@lru_cache(maxsize=8192)
def placed_demands(pattern: Pattern, axis: str, place: AxisPlace) -> Demands:
    """Return the demands of all groups of an axis for one byte of a message.

    Groups are in the order of their first devices: equal places may list them in different orders,
    and the routes that are found depend on the order.
    """
    groups = place.ranks.groups(axis)
    first = groups.reshape(len(groups), -1)[:, 0]
    return placed(pattern, groups[np.argsort(first, kind="stable")], 1.0, axis)


class RowGroups:
    """The groups of columns of strategies, row by row."""

    def __init__(self, network: AxisNetwork) -> None:
        self.network = network
        self._known: dict[str, list[Group[float]]] = {}
        self._equal: dict[Group[float], Group[float]] = {}
        self._sends: dict[object, tuple[Pattern, FloatArray, float, float]] = {}

    def of(self, axis: str, row: int = 0) -> Group[float]:
        """Return the group of an axis in one row."""
        if axis not in self._known:
            self._known[axis] = self._rows(self.network.group(axis))
        return self._known[axis][row]

    def _rows(self, group: Group[FloatArray]) -> list[Group[float]]:
        number = len(self.network.strategy.tp)
        spans = []
        for span in group.spans:
            columns = [
                np.broadcast_to(getattr(span, name), number).tolist() for name in SPAN_COLUMNS
            ]
            kind = span.is_grid, span.in_network_reduction
            spans.append(
                [
                    Span(size, bandwidth, latency_s, half_bytes, closes, *kind)
                    for size, bandwidth, latency_s, half_bytes, closes in zip(*columns, strict=True)
                ]
            )
        found = (Group(of_row) for of_row in zip(*spans, strict=True))
        return [self._equal.setdefault(one, one) for one in found]

    def sends(
        self, message: Message, plan_options: PlanOptions, group: Group[float]
    ) -> tuple[Pattern, FloatArray, float, float]:
        """Return the pattern of a message in a group, and three costs of it.

        The seconds of each pair of members for a byte on private links [s]; the bytes that starts
        of messages and latencies keep a link for; the seconds a byte in which links are idle [s/B].
        """
        chunks = message.num_chunks if message.is_stream else message.num_bytes
        way = plan_options.stream_form, plan_options.wraps, message.is_stream, chunks
        key = (id(group), message.kind, *way)
        if key not in self._sends:
            is_side_by_side = joins_grids(self.network.levels)
            pattern = message_pattern(message, plan_options, group, is_side_by_side=is_side_by_side)
            private_s, start_bytes, idle_s = pair_s(pattern, group), 0.0, 0.0
            if message.is_stream:
                name = stream_of(plan_options, group)
                start_bytes = stream_rounds(streams[name], group, message.num_chunks)[2]
            elif message.kind is not CollectiveKind.SEND:
                idle_s = idle_s_per_byte(message, group, private_s)
            self._sends[key] = pattern, private_s, start_bytes, idle_s
        return self._sends[key]


def message_pattern(
    message: Message, plan_options: PlanOptions, group: Group[float], *, is_side_by_side: bool
) -> Pattern:
    """Return the sends of one message: source, destination and share.

    Parameters
    ----------
    is_side_by_side
        The outermost level joins whole grids, such as wafers, at their edges.
    """
    sizes = tuple(round(span.size) for span in group.spans)
    if message.kind is CollectiveKind.SEND:
        return chain_pattern(sizes, closes=plan_options.wraps, is_side_by_side=is_side_by_side)
    if message.is_stream:
        is_reversed = message.kind is CollectiveKind.REDUCE_SCATTER
        return stream_pattern(stream_of(plan_options, group), sizes, is_reversed=is_reversed)
    return collective_pattern(best_algorithm(message.kind, message.num_bytes, group), group)


def stream_of(plan_options: PlanOptions, group: Group[float]) -> str:
    """Return the name of the stream that the members of a group run."""
    sizes = tuple(round(span.size) for span in group.spans)
    closes = all(span.closes == 1.0 for span in group.spans if span.size > 1)
    return stream_name(str(plan_options.stream_form), sizes, closes=closes)


def joins_grids(levels: Sequence[NetworkLevel]) -> bool:
    """Tell whether the outermost level joins whole grids at their edges, as wafers with a seam."""
    return levels[-1].through_io_dies


@lru_cache(maxsize=4096)
def pair_s(pattern: Pattern, group: Group[float]) -> FloatArray:
    """Return the seconds of each pair of members (a square, flat) for a byte of the message [s]."""
    size = round(float(np.prod([span.size for span in group.spans])))
    bandwidth = np.array([span.bandwidth_bytes_per_s for span in group.spans])
    pair = pattern.source * size + pattern.destination
    seconds = np.bincount(pair, pattern.share / bandwidth[pattern.level], size * size)
    return read_only(seconds.astype(np.float64))
