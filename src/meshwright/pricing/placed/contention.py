"""What sharing links does to a placed plan: the loads of every axis, and how much slower each gets.

Each axis alone: all its groups speak at once, over the links between the devices that they really
have. Then what runs beside computation shares the links of one window: the backward pass of one
micro-batch through a stage holds the streams of its layers, the gradients of the data-parallel
axes and the sends of the pipeline. Streams come first; the others get what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.collectives.group import Group, Span
from meshwright.collectives.selection import best_algorithm
from meshwright.placement.demands import Demands
from meshwright.placement.patterns import (
    Pattern,
    chain_pattern,
    collective_pattern,
    joined_demands,
    placed,
    stream_pattern,
)
from meshwright.placement.ranks import Ranks
from meshwright.placement.routes import Routes
from meshwright.placement.routing import default_routes, xy_routes
from meshwright.pricing.network import AxisNetwork
from meshwright.pricing.placed.passes import Message
from meshwright.spec.collective import CollectiveKind
from meshwright.strategy.strategy import Structure
from meshwright.topology.network import Network


@dataclass(frozen=True)
class AxisLoad:
    """What one axis sends in a window, over all its groups at once."""

    axis: str
    demands: Demands
    private_s: float
    """Of the busiest pair, if each pair had the links that the closed form gives it [s]."""
    is_beside: bool
    """It runs beside computation, and so beside other axes."""
    yields: bool
    """Others that run beside computation come first."""


@dataclass(frozen=True)
class Contention:
    """The links while a placed plan runs one window, and what their sharing slows down."""

    slowdown: Mapping[str, float]
    """By axis: time on the shared links over what the closed form assumes; at least 1."""
    busy_s: Mapping[str, FloatArray]
    """By axis: seconds that it keeps each link busy in the window."""
    num_routes: int
    num_rerouted: int
    """Those that leave the dimension order."""

    @property
    def hottest(self) -> FloatArray:
        """Seconds that each link is busy, all axes together."""
        total: FloatArray = np.sum(list(self.busy_s.values()), axis=0)
        return total


def contention(loads: Sequence[AxisLoad], network: Network) -> Contention:
    """Return what the links carry, and how much slower each axis is than on links of its own."""
    beside = np.zeros(network.num_links)
    busy: dict[str, FloatArray] = {}
    num_routes = num_rerouted = 0
    for load in loads:
        routes = default_routes(network, load.demands)
        num_routes += len(routes)
        num_rerouted += int((~xy_routes(network, load.demands)[1]).sum())
        busy[load.axis] = busy_s(routes, load.demands, network)
        if load.is_beside:
            beside = beside + busy[load.axis]
    slowdown = {}
    for load in loads:
        alone = busy[load.axis]
        shared = beside[alone > 0] if load.is_beside and load.yields else alone
        slowdown[load.axis] = max(1.0, float(shared.max(initial=0.0)) / load.private_s)
    return Contention(slowdown, busy, num_routes, num_rerouted)


def busy_s(routes: Routes, demands: Demands, network: Network) -> FloatArray:
    """Return the seconds that each link is busy when every demand takes its route [s]."""
    seconds: FloatArray = routes.link_load_bytes(demands.num_bytes, network) / (
        network.bandwidth_bytes_per_s
    )
    return seconds


def axis_loads(
    messages: Sequence[tuple[Message, float]],
    structure: Structure,
    groups: AxisNetwork,
    ranks: Ranks,
    *,
    yielding: Sequence[str] = (),
) -> Iterator[AxisLoad]:
    """Yield the load of each axis that sends some of the messages, each so many times.

    Parameters
    ----------
    groups
        The groups of one strategy, as the closed form sees them: columns of one row.
    yielding
        Axes that wait for others where both run beside computation.
    """
    axes = dict.fromkeys(message.axis for message, _ in messages)
    for axis in axes:
        group, members = scalar_group(groups.group(axis)), ranks.groups(axis)
        if members[0].size < 2:
            continue
        parts, private = [], np.zeros(0)
        mine = [(message, times) for message, times in messages if message.axis == axis]
        for message, times in mine:
            pattern = message_pattern(message, structure, group)
            parts.append(placed(pattern, members, message.num_bytes * times, axis))
            private = _added(private, pattern, group, message.num_bytes * times)
        yield AxisLoad(
            axis,
            replace(joined_demands(parts), operation_names=(axis,) * len(parts)),
            float(private.max()),
            any(message.is_beside for message, _ in mine),
            axis in yielding,
        )


def scalar_group(group: Group[FloatArray]) -> Group[float]:
    """Return the group of the only row of columns."""
    spans = []
    for span in group.spans:
        numbers = {
            name: float(np.asarray(getattr(span, name)).reshape(-1)[0])
            for name in ("size", "bandwidth_bytes_per_s", "latency_s", "message_half_bytes",
                         "closes")
        }  # fmt: skip
        spans.append(Span(**numbers, is_grid=span.is_grid,
                          in_network_reduction=span.in_network_reduction))  # fmt: skip
    return Group(tuple(spans))


def message_pattern(message: Message, structure: Structure, group: Group[float]) -> Pattern:
    """Return who sends what in one message."""
    columns = round(group.spans[0].size)
    rows = round(float(np.prod([span.size for span in group.spans[1:]])))
    if message.kind is CollectiveKind.SEND:
        return chain_pattern(rows, columns, closes=structure.wraps)
    if message.is_stream:
        return stream_pattern(str(structure.stream_form), rows, columns)
    return collective_pattern(best_algorithm(message.kind, message.num_bytes, group), group)


def _added(
    so_far: FloatArray, pattern: Pattern, group: Group[float], num_bytes: float
) -> FloatArray:
    """Return the seconds of each pair of members (a square, flat) with one more message."""
    size = round(float(np.prod([span.size for span in group.spans])))
    seconds = so_far if len(so_far) else np.zeros(size * size)
    bandwidth = np.array([span.bandwidth_bytes_per_s for span in group.spans])
    pair = pattern.source * size + pattern.destination
    more = np.bincount(pair, pattern.share * num_bytes / bandwidth[pattern.level], size * size)
    return seconds + more.astype(np.float64)
