"""The effect of shared links on a placed plan: the loads of every axis, and its slowdown.

Each axis alone: all its groups send at once, over the links between the devices that they really
have. Then messages that overlap with computation share the links of one window: the backward pass
of one micro-batch through a stage holds the streams of its layers, the gradients of data-parallel
axes and the sends of the pipeline. Streams come first; the others get the rest. Messages that
share a window are routed together, with a certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.base.arrays import FloatArray, read_only
from meshwright.base.compiled import as_written
from meshwright.collectives.group import Group, Span, group_size
from meshwright.collectives.registry import best_algorithm
from meshwright.cost.communication import AxisNetwork
from meshwright.network.placement import AxisPlace, Ranks
from meshwright.network.routing import Routes, default_routes, make_routes, xy_routes
from meshwright.network.tcme.bounds import Certificate
from meshwright.network.tcme.optimiser import make_problem, solve
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
from meshwright.topology.network import Network
from meshwright.wafer.messages import Message

SMALL = 20_000
"""Messages times links up to which routing takes less time than compiling it."""
PROVEN = 1e-6
"""Share of a bound within which a routing counts as proven best."""
SMALL_TREES = 5_000
"""Trees of shortest paths times links up to which they are grown without compilation: that takes
less time than to import numba."""


@dataclass(frozen=True)
class AxisLoad:
    """Messages of one axis in a window, over all its groups at once."""

    axis: str
    messages: Sequence[tuple[str, Demands, float]]
    """Name of the operator that sends each message in its rounds, or an empty one; its demands for
    one byte; its bytes."""
    private_s: float
    """Seconds of the busiest pair, if each pair had the links that the closed form gives it."""
    overlaps: bool
    """It overlaps with computation, and so with other axes."""
    yields: bool
    """Others that overlap with computation come first."""
    meets: float = 0.0
    """Share of the other messages of its rounds that pass while it travels; 0 where no other is in
    its rounds."""

    @property
    def demands(self) -> Demands:
        """All that is sent."""
        parts = [
            replace(demands, num_bytes=demands.num_bytes * size)
            for _, demands, size in self.messages
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


@dataclass(frozen=True)
class UnitLoad:
    """Link times of demands of one byte on default routes; messages of more bytes scale them."""

    demands: Demands
    routes: Routes
    busy_s: FloatArray
    """Busy time of each link, for a byte of the message [s]."""


_UNITS: WeakKeyDictionary[Network, dict[int, UnitLoad]] = WeakKeyDictionary()


_ROUTED: WeakKeyDictionary[
    Network, dict[tuple[tuple[str, int, float], ...], tuple[dict[str, Routes], Certificate]]
] = WeakKeyDictionary()
"""Routes of axes that run together, by what they send; ``_UNITS`` keeps the demands alive."""


def unit_load(network: Network, demands: Demands) -> UnitLoad:
    """Return the link times of demands on a network, worked out once each."""
    known = _UNITS.setdefault(network, {})
    if id(demands) not in known:
        # On grids shortest paths are looked for around dead links alone, elsewhere from each
        # source.
        num_trees = len(np.unique(demands.source))
        has_few_trees = bool(network.grid_shape) or network.num_links * num_trees <= SMALL_TREES
        with as_written() if has_few_trees else nullcontext():
            routes = default_routes(network, demands)
        known[id(demands)] = UnitLoad(demands, routes, busy_s(routes, demands, network))
    return known[id(demands)]


@dataclass(frozen=True)
class Contention:
    """The links while a placed plan runs one window, and the slowdown by sharing them."""

    slowdown: Mapping[str, float]
    """Slowdown by axis: time on the shared links over the closed form; at least 1."""
    busy_s: Mapping[str, FloatArray]
    """Busy time of each link in the window, by axis [s]."""
    detour: Mapping[str, float]
    """Bytes times links over those of the default routes, by axis that is rerouted."""
    num_routes: int
    certificate: Certificate | None
    """Certificate of the busiest link among all messages that overlap with computation, over all
    routings; None where messages just take the default routes."""
    routed: tuple[tuple[Demands, Routes], ...]
    network: Network

    @cached_property
    def num_rerouted(self) -> int:
        """Routes that leave the dimension order."""
        return sum(num_off_order(self.network, *one) for one in self.routed)

    @property
    def hottest(self) -> FloatArray:
        """Seconds that each link is busy, all axes together."""
        total: FloatArray = np.sum(list(self.busy_s.values()), axis=0)
        return total if self.busy_s else np.zeros(0)


def contention(
    loads: Sequence[AxisLoad], network: Network, *, is_routed: bool = False
) -> Contention:
    """Return the loads of the links, and the slowdown of each axis over private links.

    Messages take the dimension order, or the shortest path where links are missing.

    Parameters
    ----------
    is_routed
        Whether messages that overlap with computation are routed to relieve the busiest link, where
        a bound does not prove the default routes best. The certificate is worked out only then.
    """
    units = {
        load.axis: [unit_load(network, demands) for _, demands, _ in load.messages]
        for load in loads
    }
    together = [load for load in loads if load.overlaps]
    certificate, detour = None, {}
    anew: Mapping[str, Routes] = {}
    none = np.zeros(network.num_links)
    each = {
        load.axis: [
            unit.busy_s * size
            for unit, (_, _, size) in zip(units[load.axis], load.messages, strict=True)
        ]
        for load in loads
    }
    if together and is_routed:
        known = _ROUTED.setdefault(network, {})
        key = tuple(
            (load.axis, id(demands), size)
            for load in together
            for _, demands, size in load.messages
        )
        if key not in known:
            default_s = sum((busy for load in together for busy in each[load.axis]), none)
            known[key] = _routed(network, together, float(default_s.max(initial=0.0)))
        anew, certificate = known[key]
    for load in together:
        if load.axis not in anew:
            continue
        demands, routes = load.demands, anew[load.axis]
        byte_hops = sum(
            float((unit.routes.num_hops * unit.demands.num_bytes).sum()) * size
            for unit, (_, _, size) in zip(units[load.axis], load.messages, strict=True)
        )
        if byte_hops:
            detour[load.axis] = float((routes.num_hops * demands.num_bytes).sum()) / byte_hops
        ends = np.cumsum([len(one) for _, one, _ in load.messages])
        each[load.axis] = [
            busy_s(
                make_routes(routes.of(row) for row in range(end - len(one), end)),
                replace(one, num_bytes=one.num_bytes * size),
                network,
            )
            for (_, one, size), end in zip(load.messages, ends.tolist(), strict=True)
        ]
    busy = {axis: sum(parts, none) for axis, parts in each.items()}
    overlapping = sum((busy[load.axis] for load in together), np.zeros(network.num_links))
    meeting = sum((busy[load.axis] for load in loads if load.meets), np.zeros(network.num_links))
    slowdown = {}
    for load in loads:
        alone = busy[load.axis]
        if load.overlaps and load.yields:
            seconds = float(overlapping[alone > 0].max(initial=0.0))
        elif load.meets:
            seconds = float((alone + load.meets * (meeting - alone))[alone > 0].max(initial=0.0))
        else:
            rounds = [name for name, *_ in load.messages]
            seconds = one_after_the_other_s(rounds, each[load.axis])
        slowdown[load.axis] = max(1.0, seconds / load.private_s)
    return Contention(
        slowdown,
        busy,
        detour,
        num_routes=sum(len(demands) for load in loads for _, demands, _ in load.messages),
        certificate=certificate,
        routed=(
            *((load.demands, anew[load.axis]) for load in together if load.axis in anew),
            *((u.demands, u.routes) for axis, of in units.items() if axis not in anew for u in of),
        ),
        network=network,
    )


def _routed(
    network: Network, loads: Sequence[AxisLoad], default_s: float
) -> tuple[dict[str, Routes], Certificate]:
    """Return routes of axes that run together, and the gap of their busiest link to the best.

    Parameters
    ----------
    default_s
        Seconds of the busiest link on default routes.
    """
    problem = make_problem(network, joined_demands([load.demands for load in loads]))
    if default_s <= problem.bound_s * (1.0 + PROVEN):
        return {}, Certificate(default_s, problem.bound_s, problem.bound_method)
    is_small = len(problem.demands) * network.num_links <= SMALL
    with as_written() if is_small else nullcontext():
        routed = solve(problem)
    starts = np.cumsum([0, *(len(load.demands) for load in loads)])
    found = {
        load.axis: make_routes(
            routed.routes.of(route) if route >= 0 else ()
            for route in routed.first_route[first : first + len(load.demands)].tolist()
        )
        for load, first in zip(loads, starts.tolist(), strict=False)
    }
    return found, routed.certificate


def num_off_order(network: Network, demands: Demands, routes: Routes) -> int:
    """Return the number of routes that leave the dimension order of a grid; elsewhere 0."""
    if not network.grid_shape:
        return 0
    straight = xy_routes(network, demands)[0]
    same = routes.num_hops == straight.num_hops
    count = int((~same).sum())
    for route in np.flatnonzero(same).tolist():
        count += not np.array_equal(routes.of(route), straight.of(route))
    return count


def busy_s(routes: Routes, demands: Demands, network: Network) -> FloatArray:
    """Return the seconds that each link is busy when every demand takes its route [s]."""
    seconds: FloatArray = routes.link_load_bytes(demands.num_bytes, network) / (
        network.bandwidth_bytes_per_s
    )
    return seconds


def axis_loads(
    messages: Sequence[tuple[Message, float]],
    plan_options: PlanOptions,
    groups: RowGroups,
    ranks: Ranks,
    row: int = 0,
    *,
    yielding: Sequence[str] = (),
    meeting: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[AxisLoad]:
    """Yield the load of each axis that sends some of the messages, each with its count.

    Parameters
    ----------
    groups
        The groups of columns of strategies, as the closed form sees them.
    row
        The strategy in those columns.
    yielding
        Axes that wait for others where both overlap with computation.
    meeting
        Axes along which tensors travel in the same rounds, each with its ``AxisLoad.meets``.
    """
    for axis in dict.fromkeys(message.axis for message, _ in messages):
        group = groups.of(axis, row)
        if group_size(group) < 2:
            continue
        place = ranks.place(axis)
        sent: list[tuple[str, Demands, float]] = []
        pairs_s: list[FloatArray] = []
        overlaps = False
        for message, times in messages:
            if message.axis != axis:
                continue
            pattern = message_pattern(
                message, plan_options, group, is_side_by_side=joins_grids(groups.network.levels)
            )
            num_bytes = message.num_bytes * times
            sent.append((message.rounds, _placed(pattern, axis, place), num_bytes))
            pairs_s.append(pair_s(pattern, group) * num_bytes)
            overlaps = overlaps or bool(message.overlaps)
        rounds = [name for name, *_ in sent]
        private_s = one_after_the_other_s(rounds, pairs_s)
        yields, meets = axis in yielding, meeting.get(axis, 0.0)
        yield AxisLoad(axis, sent, private_s, overlaps, yields, meets)


@lru_cache(maxsize=8192)
def _placed(pattern: Pattern, axis: str, place: AxisPlace) -> Demands:
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

    def of(self, axis: str, row: int = 0) -> Group[float]:
        """Return the group of an axis in one row."""
        if axis not in self._known:
            self._known[axis] = self._rows(self.network.group(axis))
        return self._known[axis][row]

    def _rows(self, group: Group[FloatArray]) -> list[Group[float]]:
        number = len(self.network.strategy.tp)
        names = ("size", "bandwidth_bytes_per_s", "latency_s", "message_half_bytes", "closes")
        spans = []
        for span in group.spans:
            columns = [np.broadcast_to(getattr(span, name), number).tolist() for name in names]
            kind = span.is_grid, span.in_network_reduction
            spans.append(
                [
                    Span(size, bandwidth, latency_s, half_bytes, closes, *kind)
                    for size, bandwidth, latency_s, half_bytes, closes in zip(*columns, strict=True)
                ]
            )
        return [Group(of_row) for of_row in zip(*spans, strict=True)]


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
