"""Messages of a placed plan as transfers that a simulation can run: routes, bytes and waits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.collectives.group import Group
from meshwright.collectives.registry import collective_algorithms
from meshwright.collectives.selection import affine_candidates, best_algorithm
from meshwright.cost.network import AxisNetwork
from meshwright.network.demands import Demands
from meshwright.network.patterns import placed
from meshwright.network.ranks import Ranks
from meshwright.network.routes import Routes
from meshwright.network.routing import default_routes
from meshwright.sharding.strategy import PlanOptions
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.registry import TensorStream, streams
from meshwright.topology.network import Network
from meshwright.wafer.contention import (
    joins_grids,
    message_pattern,
    pair_s,
    scalar_group,
    stream_of,
)
from meshwright.wafer.passes import Message


@dataclass(frozen=True)
class Exchange:
    """One message pattern on some devices; bytes are linear in those of the message."""

    demands: Demands
    """For one byte of the full tensor on one rank."""
    routes: Routes
    fixed_s: float
    """What the steps of the algorithm take beside the bytes, latencies and message starts [s]."""
    waits_s_per_byte: float
    """What a byte of the message takes beyond its time on the busiest link: steps that leave links
    idle, relays that store messages whole [s]."""
    fixed_bytes: float
    """What each message start occupies a link for, where messages run beside computation."""
    groups: IntArray
    """Devices that exchange with each other, (groups, members): they are done together, as steps
    and rounds that wait for each other are. Rows of ``demands`` stand group by group."""

    @property
    def rows(self) -> IntArray:
        """Rows of ``demands`` of each group, (groups, rows)."""
        return np.arange(len(self.demands)).reshape(len(self.groups), -1)

    def num_bytes(self, message_bytes: float, times: float) -> FloatArray:
        """Return the bytes of each row for a message that is sent so many times [bytes]."""
        sizes: FloatArray = times * (self.demands.num_bytes * message_bytes + self.fixed_bytes)
        return sizes

    def waits_s(self, message_bytes: float, times: float) -> float:
        """Return what a device waits for after its last byte has come [s]."""
        return times * (self.fixed_s + self.waits_s_per_byte * message_bytes)


class Exchanges:
    """The exchanges of one placed strategy, worked out once each."""

    def __init__(
        self, structure: PlanOptions, groups: AxisNetwork, ranks: Ranks, network: Network,
        launch_s: float,
    ) -> None:  # fmt: skip
        self.structure, self.groups, self.ranks, self.network = structure, groups, ranks, network
        self.launch_s = launch_s
        self._known: dict[tuple[object, ...], Exchange] = {}
        self._of: dict[tuple[Message, int], Exchange] = {}

    def of(self, message: Message, stage: int) -> Exchange:
        """Return the exchange of a message among the devices of one pipeline stage."""
        if (message, stage) not in self._of:
            self._of[message, stage] = self._find(message, stage)
        return self._of[message, stage]

    def _find(self, message: Message, stage: int) -> Exchange:
        """Return the exchange of a message; those that differ in their bytes alone share one."""
        group = scalar_group(self.groups.group(message.axis))
        name = stream_of(self.structure, group) if message.is_stream else best_algorithm(
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
            groups = np.stack((there, source), axis=1)
            self._known[key] = self._exchange(demands, groups, float(fixed_s))
        return self._known[key]

    def _exchange(
        self, demands: Demands, groups: IntArray, fixed_s: float, waits_s_per_byte: float = 0.0,
        fixed_bytes: float = 0.0,
    ) -> Exchange:  # fmt: skip
        """Return the exchange of placed demands."""
        routes = default_routes(self.network, demands)
        return Exchange(demands, routes, fixed_s, waits_s_per_byte, fixed_bytes, groups)

    def _make(self, message: Message, name: str, group: Group[float], stage: int) -> Exchange:
        """Return the exchange of a message."""
        pattern = message_pattern(
            message, self.structure, group, is_side_by_side=joins_grids(self.groups.levels)
        )
        groups = self.ranks.groups(message.axis)
        groups = groups.reshape(len(groups), -1)
        groups = groups[np.isin(groups[:, 0], self.stages[stage])]
        demands = placed(pattern, groups, 1.0, message.axis)
        busiest_s_per_byte = float(pair_s(pattern, group).max())
        if message.is_stream:
            fixed_s, s_per_byte, fixed_bytes = _rounds(streams[name], group)
        else:
            fixed_s, s_per_byte = collective_algorithms[name].affine(group)
            fixed_s, fixed_bytes = fixed_s + self.launch_s, 0.0
        waits_s_per_byte = max(0.0, float(s_per_byte) - busiest_s_per_byte)
        return self._exchange(demands, groups, float(fixed_s), waits_s_per_byte, fixed_bytes)


def _rounds(stream: TensorStream, group: Group[float]) -> tuple[float, float, float]:
    """Return what N - 1 rounds of a stream take: fixed [s], for each byte [s], and fixed bytes.

    Latencies and message starts of one hop keep the link; those of further hops are waited for,
    and each of them takes the sub-tensor as long as the first, because it is stored whole.
    """
    crossed = [span for span in group.spans if span.size > 1]
    members = prod(span.size for span in crossed)
    slowest = min(span.bandwidth_bytes_per_s for span in crossed)
    start_s = max(s.message_half_bytes / s.bandwidth_bytes_per_s + s.latency_s for s in crossed)
    rounds, hops = members - 1.0, stream.num_hops(members)
    s_per_byte = rounds * hops / (members * stream.num_parts(members) * slowest)
    return rounds * (hops - 1.0) * start_s, s_per_byte, rounds * start_s * slowest
