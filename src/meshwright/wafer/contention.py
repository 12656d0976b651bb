"""The effect of shared links on a placed plan: the loads of every axis, and its slowdown.

Each axis alone: all its groups send at once, over the links between the devices that they really
have. Then both passes of a micro-batch through a stage: parts of operators with the messages that
travel beside them, and data-parallel messages as background of all of them
(:mod:`~meshwright.wafer.fair_sharing`). Messages that overlap with computation are routed together,
with a certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, read_only
from meshwright.base.compiled import as_written
from meshwright.collectives.group import Group, Span, group_size
from meshwright.collectives.registry import best_algorithm, collective_algorithms
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
from meshwright.streams.forms import TensorStream, streams
from meshwright.topology.network import Network
from meshwright.wafer.fair_sharing import (
    InFlight,
    beside_background_s,
    in_flight,
    slowdown_of_parts,
)
from meshwright.wafer.messages import Message

SMALL = 20_000
"""Messages times links up to which routing takes less time than compiling it."""
PROVEN = 1e-6
"""Share of a bound within which a routing counts as proven best."""
SMALL_TREES = 5_000
"""Trees of shortest paths times links up to which they are grown without compilation: that takes
less time than to import numba."""


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


@dataclass(frozen=True)
class StagePass:
    """Computation of one pass of a micro-batch, and the number of passes with background."""

    compute_s: float = 0.0
    data_share: float = 0.0
    """Share of the micro-batches with data-parallel messages in this pass [1]."""


def one_after_the_other_s(rounds: Sequence[str], busy_s: Sequence[FloatArray]) -> float:
    """Return the seconds of messages that keep links, or pairs of devices, busy so long.

    Those in the same rounds travel at the same time; all others go one after the other.
    """
    found: dict[object, FloatArray] = {}
    for number, (name, busy) in enumerate(zip(rounds, busy_s, strict=True)):
        key = name or number
        found[key] = found[key] + busy if key in found else busy
    return sum(float(busy.max(initial=0.0)) for busy in found.values())


@dataclass(frozen=True, eq=False)
class UnitLoad:
    """Link times of demands of one byte on default routes; messages of more bytes scale them."""

    demands: Demands
    routes: Routes
    busy_s: FloatArray
    """Busy time of each link, for a byte of the message [s]."""
    num_flows: FloatArray
    """Messages on each link [1]."""

    def by_pace(self, paces: Paces, network: Network) -> tuple[FloatArray, FloatArray]:
        """Return the busy times and the messages of each link, by pace of their sender."""
        shape = len(paces.share), network.num_links
        if shape[0] == 1:
            return self.busy_s[None], self.num_flows[None]
        hops, demands = self.routes.num_hops, self.demands
        cell = np.repeat(paces.of_device[demands.source], hops) * shape[1] + self.routes.links
        size = np.repeat(demands.num_bytes, hops)
        number = shape[0] * shape[1]
        carried = np.bincount(cell, size, number).astype(np.float64).reshape(shape)
        flows = np.bincount(cell, size > 0, number).astype(np.float64).reshape(shape)
        return carried / network.bandwidth_bytes_per_s, flows


@dataclass(frozen=True)
class Paces:
    """Replicas of unequal pace: they run apart, and their messages meet by chance."""

    of_device: IntArray
    """Number of the pace of each device."""
    share: FloatArray
    """Computation of each pace over that of the slowest one [1]."""


ONE_PACE = Paces(np.zeros(0, dtype=np.int64), np.ones(1))


def _unit(network: Network, demands: Demands, routes: Routes) -> UnitLoad:
    flows = routes.link_load_bytes((demands.num_bytes > 0).astype(np.float64), network)
    return UnitLoad(demands, routes, busy_s(routes, demands, network), flows)


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
        known[id(demands)] = _unit(network, demands, routes)
    return known[id(demands)]


@dataclass(frozen=True)
class Contention:
    """The links while a placed plan runs one window, and the slowdown by sharing them."""

    slowdown: Mapping[str, float]
    """Slowdown by axis: time on the shared links over the closed form; at least 1."""
    own_slowdown: Mapping[str, float]
    """Slowdown of each axis if the others sent nothing."""
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
    loads: Sequence[AxisLoad], network: Network, *, is_routed: bool = False,
    passes: tuple[StagePass, StagePass] = (StagePass(), StagePass()), paces: Paces = ONE_PACE,
) -> Contention:  # fmt: skip
    """Return the loads of the links, and the slowdown of each axis over private links.

    Messages take the dimension order, or the shortest path where links are missing.

    Parameters
    ----------
    is_routed
        Whether messages that overlap with computation are routed to relieve the busiest link, where
        a bound does not prove the default routes best. The certificate is worked out only then.
    passes
        The forward and the backward pass of a micro-batch.
    """
    units = {
        load.axis: [unit_load(network, sent.demands) for sent in load.messages] for load in loads
    }
    together = [load for load in loads if load.overlaps and load.backward]
    certificate, detour = None, {}
    anew: Mapping[str, Routes] = {}
    none = np.zeros(network.num_links)
    if together and is_routed:
        known = _ROUTED.setdefault(network, {})
        key = tuple(
            (load.axis, id(sent.demands), sent.num_bytes)
            for load in together
            for sent in load.backward
        )
        if key not in known:
            default_s = sum(
                (
                    unit.busy_s * sent.num_bytes
                    for load in together
                    for unit, sent in zip(units[load.axis], load.messages, strict=True)
                    if not sent.is_forward
                ),
                none,
            )
            known[key] = _routed(network, together, float(default_s.max(initial=0.0)))
        anew, certificate = known[key]
    for load in together:
        if load.axis not in anew:
            continue
        demands, routes = load.demands, anew[load.axis]
        byte_hops = sum(
            float((unit.routes.num_hops * unit.demands.num_bytes).sum()) * sent.num_bytes
            for unit, sent in zip(units[load.axis], load.messages, strict=True)
            if not sent.is_forward
        )
        if byte_hops:
            detour[load.axis] = float((routes.num_hops * demands.num_bytes).sum()) / byte_hops
        ends = np.cumsum([len(sent.demands) for sent in load.backward])
        taken = {
            id(sent.demands): _unit(
                network, sent.demands,
                make_routes(routes.of(row) for row in range(end - len(sent.demands), end)),
            )
            for sent, end in zip(load.backward, ends.tolist(), strict=True)
        }  # fmt: skip
        units[load.axis] = [
            taken.get(id(sent.demands), unit)
            for unit, sent in zip(units[load.axis], load.messages, strict=True)
        ]
    busy = {
        load.axis: sum(
            (
                unit.busy_s * sent.num_bytes
                for unit, sent in zip(units[load.axis], load.messages, strict=True)
                if not sent.is_forward
            ),
            none,
        )
        for load in loads
    }
    slowdown, own = _slowdowns(loads, units, busy, network, passes, paces)
    return Contention(
        slowdown,
        own,
        busy,
        detour,
        num_routes=sum(len(sent.demands) for load in loads for sent in load.backward),
        certificate=certificate,
        routed=(
            *((load.demands, anew[load.axis]) for load in together if load.axis in anew),
            *((u.demands, u.routes) for axis, of in units.items() if axis not in anew for u in of),
        ),
        network=network,
    )


def _slowdowns(
    loads: Sequence[AxisLoad], units: Mapping[str, Sequence[UnitLoad]],
    busy: Mapping[str, FloatArray], network: Network, passes: tuple[StagePass, StagePass],
    paces: Paces,
) -> tuple[dict[str, float], dict[str, float]]:  # fmt: skip
    """Return the slowdown of each axis, and that without the messages of others."""
    own = {load.axis: _own_slowdown(load, units[load.axis]) for load in loads}
    found = dict(own)
    data = [load for load in loads if load.yields and load.overlaps and load.axis != "pp"]
    beside = [load for load in loads if not load.yields]
    played = [
        _PlayedPass.of(is_forward, one, beside, data, units, network, paces)
        for is_forward, one in zip((True, False), passes, strict=True)
    ]
    for load in beside:
        if load.messages:
            least = _least_slowdown(load, units[load.axis], network, paces)
            found[load.axis] = max(least, _slowdown_of(load.axis, played, own[load.axis]))
    private_s = sum(one.data_private_s * one.data_share for one in played)
    if private_s:
        shared_s = sum(one.data_s * one.data_share for one in played)
        alone_s = sum(one.data_own_s * one.data_share for one in played)
        for load in data:
            found[load.axis] = own[load.axis] * max(1.0, shared_s / max(alone_s, 1e-300))
    overlapping = sum(
        (busy[load.axis] for load in loads if load.overlaps), np.zeros(network.num_links)
    )
    for load in loads:
        if load.axis == "pp" and load.overlaps:
            seconds = float(overlapping[busy["pp"] > 0].max(initial=0.0))
            found["pp"] = max(1.0, seconds / sum(sent.longest_s for sent in load.messages))
    return found, own


def _own_slowdown(load: AxisLoad, units: Sequence[UnitLoad]) -> float:
    """Return the time of the messages of an axis alone over that on private links."""
    waits_s = sum(sent.wait_s for sent in load.messages)
    busy = [u.busy_s * s.num_bytes for u, s in zip(units, load.messages, strict=True)]
    shared_s = one_after_the_other_s(load.rounds, busy)
    return max(1.0, (shared_s + waits_s) / (load.private_s + waits_s))


def _least_slowdown(
    load: AxisLoad, units: Sequence[UnitLoad], network: Network, paces: Paces
) -> float:
    """Return the slowdown of the streams of an axis, if nothing else used links."""
    sent = {u: s.private_s for s, u in zip(load.messages, units, strict=True) if s.is_stream}
    return least_slowdown([(u.by_pace(paces, network)[0][-1], s) for u, s in sent.items()])


def least_slowdown(messages: Sequence[tuple[FloatArray, FloatArray]]) -> float:
    """Return a bound of the slowdown of messages, whichever of them travel together, at least 1.

    A link that is busy for at least s times as long as the longest pair of each message, private,
    is so for all sums of them. Messages that keep one link busy for 4 s and 6 s, and take 2 s and
    2 s on private links, are slowed down at least 2-fold.

    Parameters
    ----------
    messages
        Of each the busy time of each link, and the private time of each pair of members [s].
    """
    each = [busy / max(float(private.max(initial=0.0)), 1e-300) for busy, private in messages]
    return max(1.0, float(np.min(each, axis=0).max(initial=0.0))) if each else 1.0


@dataclass(frozen=True)
class _PlayedPass:
    """The parts of one pass of a micro-batch in time, with data-parallel messages beside them."""

    axes: Sequence[tuple[str, ...]]
    """Axes that send in each part."""
    private_s: FloatArray
    """Messages of each part on private links [s]."""
    hidden_s: FloatArray
    """Computation of each part beyond starts of messages [s]."""
    part_s: FloatArray
    """Each part on shared links, starts of messages left out [s]."""
    data_share: float
    data_private_s: float
    """Data-parallel messages on private links [s]."""
    data_own_s: float
    """Data-parallel messages on their links without others [s]."""
    data_s: float
    """Time for which they are in flight [s]."""

    @classmethod
    def of(
        cls, is_forward: bool, one: StagePass, beside: Sequence[AxisLoad],
        data: Sequence[AxisLoad], units: Mapping[str, Sequence[UnitLoad]], network: Network,
        paces: Paces,
    ) -> _PlayedPass:  # fmt: skip
        """Return the parts of a pass of all axes."""
        parts = _Parts(network, paces)
        for load in beside:
            for sent, unit in zip(load.messages, units[load.axis], strict=True):
                if sent.is_forward is is_forward:
                    parts.add(load.axis, sent, unit)
        table = parts.known_table()
        compute_s, parts_private_s, starts_s, waits_s = table.seconds
        rest_s = max(0.0, one.compute_s - float(compute_s.sum()))
        background, num_flows = np.zeros(network.num_links), np.zeros(network.num_links)
        kinds: dict[object, FloatArray] = {}
        private_s = waited_s = 0.0
        for load in data:
            for sent, unit in zip(load.messages, units[load.axis], strict=True):
                if sent.is_forward is is_forward:
                    background = background + unit.busy_s * sent.num_bytes
                    same = kinds.get(sent.rounds, num_flows)
                    kinds[sent.rounds] = np.maximum(same, unit.num_flows)
                    private_s += sent.longest_s + sent.wait_s
                    waited_s += sent.wait_s
        num_flows = sum(kinds.values(), num_flows)
        alone_s = np.maximum(compute_s, table.busy_s.sum(axis=0).max(axis=1, initial=0.0))
        duty = table.busy_s.sum(axis=1) / max(float(alone_s.sum()) + rest_s, 1e-300)
        found: list[tuple[float, float, FloatArray, InFlight]] = []
        for pace, (busy, flows) in enumerate(zip(table.busy_s, table.flows, strict=True)):
            own_s, own_rest_s = compute_s * paces.share[pace], rest_s * paces.share[pace]
            busy = busy * (1.0 + np.minimum(duty.sum(axis=0) - duty[pace], 1.0))
            without_s = np.maximum(own_s, busy.max(axis=1, initial=0.0) + waits_s)
            beside_s = beside_background_s(busy, flows, background, num_flows)
            with_s = np.maximum(own_s, beside_s.max(axis=1, initial=0.0) + waits_s)
            flight = in_flight(np.append(with_s, own_rest_s), busy, background, waited_s)
            share = flight.on_links * one.data_share
            part_s = without_s + share * (with_s - without_s)
            found.append(
                (float(part_s.sum()) + own_rest_s, float(paces.share[pace]), part_s, flight)
            )
        # The replica that is last exposes what it takes beyond the computation of the slowest.
        total_s, slower, part_s, flight = max(found, key=itemgetter(0))
        exposed_s = part_s - slower * compute_s
        beyond_s = total_s - float(compute_s.sum()) - rest_s
        scale = beyond_s / max(float(exposed_s.sum()), 1e-300) if slower < 1.0 else 1.0
        return cls(
            table.axes, parts_private_s, compute_s - starts_s,
            compute_s + scale * exposed_s - starts_s, one.data_share, private_s,
            float(background.max(initial=0.0)) + waited_s,
            one.compute_s * flight.share + flight.left_s,
        )  # fmt: skip


def _slowdown_of(axis: str, played: Sequence[_PlayedPass], own: float) -> float:
    """Return the slowdown at which the parts with messages of an axis take as long as played."""
    rows = [[axis in axes for axes in one.axes] for one in played]
    private_s, compute_s, part_s = (
        np.concatenate([getattr(one, name)[mask] for one, mask in zip(played, rows, strict=True)])
        for name in ("private_s", "hidden_s", "part_s")
    )
    sends = private_s > 0
    if not sends.any():
        return 1.0
    total_s = float(part_s[sends].sum())
    slowdown = slowdown_of_parts(total_s, private_s[sends], compute_s[sends])
    if total_s <= float(compute_s[sends].sum()) * (1.0 + PROVEN):
        slowdown = min(slowdown, own)
    return max(1.0, slowdown)


class _Table(NamedTuple):
    """Parts of a pass as columns, with a row for each; links are columns, paces come first."""

    axes: Sequence[tuple[str, ...]]
    seconds: FloatArray
    """Computation, messages on private links, starts and waits of each part, (4, parts) [s]."""
    busy_s: FloatArray
    flows: FloatArray


class _Parts:
    """Parts of the operators of a pass, each with the messages that travel meanwhile."""

    def __init__(self, network: Network, paces: Paces) -> None:
        self._network, self._paces = network, paces
        self._by_rounds: dict[object, list[tuple[str, Sending, UnitLoad]]] = {}

    def add(self, axis: str, sent: Sending, unit: UnitLoad) -> None:
        """Add a message; those of the same rounds share their parts."""
        key = sent.rounds or len(self._by_rounds)
        self._by_rounds.setdefault(key, []).append((axis, sent, unit))

    def known_table(self) -> _Table:
        """Return all parts; candidates with equal messages share them."""
        rows = [
            (number, axis, unit, sent.num_bytes, sent.since, sent.until, sent.beside_s)
            for number, messages in enumerate(self._by_rounds.values())
            for axis, sent, unit in messages
        ]
        key = (*rows, self._paces.share.tobytes(), self._paces.of_device.tobytes())
        known = _TABLES.setdefault(self._network, {})
        if key not in known:
            table = self.table()
            if len(known) * table.busy_s.size > MOST_NUMBERS:
                known.clear()
            known[key] = table
        return known[key]

    def table(self) -> _Table:
        """Return all parts: sums over messages of the share of each that travels in a part."""
        rows = [part for messages in self._by_rounds.values() for part in self._cut(messages)]
        sent = [row for messages in self._by_rounds.values() for row in messages]
        place = {id(message): n for n, (_, message, _) in enumerate(sent)}
        num_paces, num_links = len(self._paces.share), self._network.num_links
        shares = np.zeros((len(rows), len(sent)))
        for number, (_, beside) in enumerate(rows):
            for message, share in beside:
                shares[number, place[id(message)]] = share
        if not rows:
            shape = num_paces, 0, num_links
            return _Table((), np.zeros((4, 0)), np.zeros(shape), np.zeros(shape))
        each = [unit.by_pace(self._paces, self._network) for _, _, unit in sent]
        num_bytes, start_bytes, start_s, wait_s = np.array(
            [[one.num_bytes, one.start_bytes, one.start_s, one.wait_s] for _, one, _ in sent]
        ).T
        flows = np.stack([unit_flows for _, unit_flows in each], axis=1)
        seconds = np.stack([unit_busy for unit_busy, _ in each], axis=1) * num_bytes[:, None]
        starts = flows * (start_bytes[:, None] / self._network.bandwidth_bytes_per_s)
        names = [axis for axis, _, _ in sent]
        longest_s = np.zeros(len(rows))
        for axis in dict.fromkeys(names):
            mine = [n for n, name in enumerate(names) if name == axis]
            private = np.stack([sent[n][1].private_s for n in mine]) * num_bytes[mine, None]
            longest_s = np.maximum(longest_s, (shares[:, mine] @ private).max(axis=1, initial=0.0))
        waits_s = shares @ wait_s
        of_parts = [
            np.array([compute_s for compute_s, _ in rows]), longest_s + waits_s,
            (shares * start_s).max(axis=1), waits_s,
        ]  # fmt: skip
        travels = shares > 0
        axes = [tuple(dict.fromkeys(names[n] for n in np.flatnonzero(row))) for row in travels]
        return _Table(axes, np.stack(of_parts), shares @ (seconds + starts), travels @ flows)

    def _cut(
        self, messages: Sequence[tuple[str, Sending, UnitLoad]]
    ) -> Iterator[tuple[float, list[tuple[Sending, float]]]]:
        """Yield the parts of one operator: it is cut where a message begins or ends.

        Each has its computation [s], and the share of each message that travels in it [1].
        """
        edges = {0.0, 1.0}
        for _, sent, _ in messages:
            edges |= {round(sent.since, 9), round(sent.until, 9)}
        compute_s = max(sent.beside_s for _, sent, _ in messages)
        for begin, end in pairwise(sorted(edges)):
            travels = [
                (sent, (min(end, sent.until) - max(begin, sent.since)) / (sent.until - sent.since))
                for _, sent, _ in messages
                if min(end, sent.until) - max(begin, sent.since) > LEAST_SHARE
            ]
            yield compute_s * max(0.0, min(end, 1.0) - begin), travels


_TABLES: WeakKeyDictionary[Network, dict[object, _Table]] = WeakKeyDictionary()
MOST_NUMBERS = 4_000_000
"""Numbers of tables of parts that are kept, about."""
LEAST_SHARE = 1e-8
"""Share of a computation below which two ends are the same [1]."""


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
                    _placed(pattern, axis, place), message.num_bytes * times, private_s,
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
        self._equal: dict[Group[float], Group[float]] = {}
        self._sends: dict[object, tuple[Pattern, FloatArray, float, float]] = {}

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


def stream_loads(
    plan_options: PlanOptions, group: Group[float], ranks: Ranks, network: Network, paces: Paces
) -> list[tuple[FloatArray, FloatArray]]:
    """Return the busy time of links and pairs for a byte of a stream over tatp, and of its sums.

    Of the slowest ranks, on default routes, and on private links [s].
    """
    sizes = tuple(round(span.size) for span in group.spans)
    name, place = stream_of(plan_options, group), ranks.place("tatp")
    found = []
    for pattern in {stream_pattern(name, sizes, is_reversed=turned) for turned in (False, True)}:
        unit = unit_load(network, _placed(pattern, "tatp", place))
        found.append((unit.by_pace(paces, network)[0][-1], pair_s(pattern, group)))
    return found


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
