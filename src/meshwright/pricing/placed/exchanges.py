"""Messages of a placed plan as transfers that a simulation can run: routes, bytes and waits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.collectives.group import Group
from meshwright.collectives.registry import collective_algorithms
from meshwright.collectives.selection import affine_candidates, best_algorithm
from meshwright.placement.demands import Demands
from meshwright.placement.patterns import placed
from meshwright.placement.ranks import Ranks
from meshwright.placement.routes import Routes
from meshwright.placement.routing import default_routes
from meshwright.pricing.network import AxisNetwork
from meshwright.pricing.placed.contention import joins_grids, message_pattern, scalar_group
from meshwright.pricing.placed.passes import Message
from meshwright.spec.collective import CollectiveKind
from meshwright.strategy.strategy import Structure
from meshwright.topology.network import Network


@dataclass(frozen=True)
class Exchange:
    """One message pattern on some devices; bytes are linear in those of the message."""

    demands: Demands
    """For one byte of the full tensor on one rank."""
    routes: Routes
    fixed_s: float
    """What the steps of the algorithm take beside the bytes, latencies and message starts [s]."""
    fixed_bytes: float
    """What each message start occupies a link for, where messages run beside computation."""
    incoming: tuple[IntArray, ...]
    """Rows of ``demands`` that reach each device, one array over all devices for each of the
    first, second, ... message; -1 where there are no more."""

    def num_bytes(self, message_bytes: float, times: float) -> FloatArray:
        """Return the bytes of each row for a message that is sent so many times [bytes]."""
        sizes: FloatArray = times * (self.demands.num_bytes * message_bytes + self.fixed_bytes)
        return sizes


class Exchanges:
    """The exchanges of one placed strategy, worked out once each."""

    def __init__(
        self, structure: Structure, groups: AxisNetwork, ranks: Ranks, network: Network,
        launch_s: float,
    ) -> None:  # fmt: skip
        self.structure, self.groups, self.ranks, self.network = structure, groups, ranks, network
        self.launch_s = launch_s
        self._known: dict[tuple[object, ...], Exchange] = {}

    def of(self, message: Message, stage: int) -> Exchange:
        """Return the exchange of a message among the devices of one pipeline stage."""
        group = scalar_group(self.groups.group(message.axis))
        name = "stream" if message.is_stream else best_algorithm(
            message.kind, message.num_bytes, group
        )  # fmt: skip
        key = (message.axis, message.kind, name, stage)
        if key not in self._known:
            self._known[key] = self._make(message, name, group, stage)
        return self._known[key]

    @cached_property
    def pipelines(self) -> IntArray:
        """The devices of every pipeline in the order of its stages, (pipelines, stages)."""
        members = self.ranks.groups("pp")
        order = self.ranks.visit(
            "pp",
            closes=self.structure.wraps,
            is_side_by_side=joins_grids(self.groups.levels),
        )
        pipelines: IntArray = members.reshape(len(members), -1)[:, order]
        return pipelines

    @cached_property
    def stages(self) -> tuple[IntArray, ...]:
        """The devices of each pipeline stage, ascending."""
        return tuple(np.sort(devices) for devices in self.pipelines.T)

    def partners(self, stage: int, other: int) -> IntArray:
        """Return the device of another stage that each device of a stage hands its work to."""
        partner = np.full(self.network.num_devices, -1, dtype=np.int64)
        partner[self.pipelines[:, stage]] = self.pipelines[:, other]
        return partner

    def between(self, stage: int, other: int) -> Exchange:
        """Return the exchange of one message from each device of a stage to the other stage."""
        key = ("between", stage, other)
        if key not in self._known:
            source, there = self.pipelines[:, stage], self.pipelines[:, other]
            demands = Demands(
                source, there, np.ones(len(source)), np.arange(len(source)),
                np.zeros(len(source), dtype=np.int64), ("pp",),
            )  # fmt: skip
            group = scalar_group(self.groups.group("pp"))
            fixed_s = affine_candidates(CollectiveKind.SEND, group)[0][1] + self.launch_s
            self._known[key] = self._exchange(demands, float(fixed_s), 0.0)
        return self._known[key]

    def _exchange(self, demands: Demands, fixed_s: float, fixed_bytes: float) -> Exchange:
        """Return the exchange of placed demands."""
        routes = default_routes(self.network, demands)
        incoming = _incoming(demands, self.network.num_devices)
        return Exchange(demands, routes, fixed_s, fixed_bytes, incoming)

    def _make(self, message: Message, name: str, group: Group[float], stage: int) -> Exchange:
        """Return the exchange of a message."""
        pattern = message_pattern(
            message, self.structure, group, is_side_by_side=joins_grids(self.groups.levels)
        )
        members = self.ranks.groups(message.axis)
        here = np.isin(members.reshape(len(members), -1)[:, 0], self.stages[stage])
        demands = placed(pattern, members[here], 1.0, message.axis)
        fixed_s, fixed_bytes = 0.0, 0.0
        if message.is_stream:
            rounds = members[0].size - 1.0
            span = max(group.spans, key=lambda s: s.latency_s * (s.size > 1))
            fixed_bytes = rounds * (
                span.message_half_bytes + span.latency_s * span.bandwidth_bytes_per_s
            )
        else:
            fixed_s = collective_algorithms[name].affine(group)[0] + self.launch_s
        return self._exchange(demands, float(fixed_s), float(fixed_bytes))


def _incoming(demands: Demands, num_devices: int) -> tuple[IntArray, ...]:
    """Return the rows that reach each device: the first of each, the second of each, ..."""
    order = np.argsort(demands.destination, kind="stable")
    device = demands.destination[order]
    starts = np.searchsorted(device, np.arange(num_devices))
    rank = np.arange(len(order)) - starts[device]
    table = np.full((int(rank.max(initial=-1)) + 1, num_devices), -1, dtype=np.int64)
    table[rank, device] = order
    return tuple(table)
