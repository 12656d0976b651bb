"""Busy times of the links on default routes, by the teams of devices that send."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.compiled import as_written
from meshwright.collectives.group import Group
from meshwright.network.faults import SharedWork
from meshwright.network.placement import AxisPlace, Ranks
from meshwright.network.routing import Routes, default_routes
from meshwright.network.traffic import Demands, stream_pattern
from meshwright.sharding.strategy import PlanOptions
from meshwright.topology.network import Network
from meshwright.wafer.loads import pair_s, placed_demands, stream_of

SMALL_TREES = 5_000
"""Trees of shortest paths times links up to which they are grown without compilation: that takes
less time than to import numba."""


@dataclass(frozen=True, eq=False)
class UnitLoad:
    """Link times of demands of one byte on default routes; messages of more bytes scale them."""

    demands: Demands
    routes: Routes
    busy_s: FloatArray
    """Busy time of each link, for a byte of the message [s]."""
    num_flows: FloatArray
    """Messages on each link [1]."""

    def by_team(self, teams: Teams, network: Network) -> tuple[FloatArray, FloatArray]:
        """Return the busy times and the messages of each link, by team of their sender."""
        shape = len(teams.pace), network.num_links
        if shape[0] == 1:
            return self.busy_s[None], self.num_flows[None]
        hops, demands = self.routes.num_hops, self.demands
        cell = np.repeat(teams.of_device[demands.source], hops) * shape[1] + self.routes.links
        size = np.repeat(demands.num_bytes, hops)
        number = shape[0] * shape[1]
        carried = np.bincount(cell, size, number).astype(np.float64).reshape(shape)
        flows = np.bincount(cell, size > 0, number).astype(np.float64).reshape(shape)
        return carried / network.bandwidth_bytes_per_s, flows

    def of_slowest_s(self, teams: Teams, network: Network) -> FloatArray:
        """Return the busy times by the teams of the slowest pace [s]."""
        if len(teams.pace) == 1:
            return self.busy_s
        return self.sent_by_s((teams.pace == teams.pace[-1])[teams.of_device], network)

    def sent_by_s(self, senders: BoolArray, network: Network) -> FloatArray:
        """Return the busy times by the messages of some devices [s]."""
        num_bytes = np.where(senders[self.demands.source], self.demands.num_bytes, 0.0)
        return busy_s(self.routes, num_bytes, network)


@dataclass(frozen=True)
class Teams:
    """Devices that wait for each other in a pass: a pipeline stage of a data-parallel replica.

    Teams of equal pace run in step. Those of a pace whose links are all whole count as one.
    """

    of_device: IntArray
    """Number of the team of each device."""
    pace: FloatArray
    """Computation of each team over that of the slowest one, ascending [1]."""
    replica: IntArray
    """Replica of each team; -1: several."""

    @cached_property
    def same_pace(self) -> FloatArray:
        """1 where two teams run in step, (teams, teams)."""
        return np.equal.outer(self.pace, self.pace).astype(np.float64)

    @cached_property
    def key(self) -> bytes:
        """Equal where two have the same teams at the same paces."""
        return self.pace.tobytes() + self.of_device.tobytes()

    def stages(self, replica: int, pace: float, num_stages: float) -> tuple[IntArray, FloatArray]:
        """Return the teams of the stages of a replica, and the number of stages of each."""
        mine = np.flatnonzero((self.replica == replica) & (self.pace == pace))
        whole = np.flatnonzero((self.replica < 0) & (self.pace == pace))
        left = num_stages - len(mine)
        if replica < 0 or left <= 0 or not len(whole):
            return mine, np.ones(len(mine))
        return np.append(mine, whole), np.append(np.ones(len(mine)), left)


ONE_TEAM = Teams(np.zeros(0, dtype=np.int64), np.ones(1), np.full(1, -1))


def new_unit(network: Network, demands: Demands, routes: Routes) -> UnitLoad:
    """Return the link times of demands on given routes."""
    flows = routes.link_load_bytes((demands.num_bytes > 0).astype(np.float64), network)
    return UnitLoad(demands, routes, busy_s(routes, demands.num_bytes, network), flows)


_UNITS: WeakKeyDictionary[Network, dict[int, UnitLoad]] = WeakKeyDictionary()


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
        known[id(demands)] = new_unit(network, demands, routes)
    return known[id(demands)]


def stream_loads(
    plan_options: PlanOptions, group: Group[float], place: AxisPlace, senders: BoolArray,
    network: Network,
) -> list[tuple[FloatArray, FloatArray]]:  # fmt: skip
    """Return the busy time of links and pairs for a byte of a stream over tatp, and of its sums.

    Of messages of some devices, on default routes, and on private links [s].
    """
    sizes = tuple(round(span.size) for span in group.spans)
    name, found = stream_of(plan_options, group), []
    for pattern in {stream_pattern(name, sizes, is_reversed=turned) for turned in (False, True)}:
        unit = unit_load(network, placed_demands(pattern, "tatp", place))
        found.append((unit.sent_by_s(senders, network), pair_s(pattern, group)))
    return found


def busy_s(routes: Routes, num_bytes: FloatArray, network: Network) -> FloatArray:
    """Return the seconds that each link is busy when every route carries so many bytes [s]."""
    seconds: FloatArray = routes.link_load_bytes(num_bytes, network) / network.bandwidth_bytes_per_s
    return seconds


def teams_of(ranks: Ranks, work: SharedWork, network: Network) -> Teams:
    """Return the teams of placed ranks; one where all have equal work and all links are whole.

    Experts are shared between replicas, so these wait for each other.
    """
    is_uneven = network.next_to_faults
    if work.is_equal and not np.ptp(work.speed) and not is_uneven.any():
        return ONE_TEAM
    apart = _are_apart(ranks)
    stages = [is_apart or axis == "pp" for is_apart, axis in zip(apart, ranks.axes, strict=True)]
    within = tuple(number for number, is_apart in enumerate(stages) if not is_apart)
    pace = _pace(ranks, work)
    has_faults = is_uneven[ranks.device].any(axis=within, keepdims=True)
    shape = np.array(ranks.device.shape)
    replica, stage = (
        np.arange(np.prod(sizes)).reshape(sizes)
        for sizes in (np.where(each, shape, 1) for each in (apart, stages))
    )
    keys = np.stack(
        [
            pace.ravel(),
            *(
                np.broadcast_to(np.where(has_faults, number, -1), pace.shape).ravel()
                for number in (replica, stage)
            ),
        ]
    )
    found, number = np.unique(keys, axis=1, return_inverse=True)
    of_device = np.zeros(network.num_devices, dtype=np.int64)
    np.maximum.at(of_device, ranks.device.ravel(), number.ravel())
    return Teams(of_device, found[0], found[1].astype(np.int64))


def slowest_devices(ranks: Ranks, work: SharedWork, network: Network) -> BoolArray:
    """Return whether each device has a rank of the slowest pace."""
    found = np.zeros(network.num_devices, dtype=bool)
    found[ranks.device[_pace(ranks, work) == 1.0]] = True
    return found


def _pace(ranks: Ranks, work: SharedWork) -> FloatArray:
    """Return the computation of the replica of each rank over that of the slowest one [1]."""
    own = tuple(number for number, is_apart in enumerate(_are_apart(ranks)) if not is_apart)
    busy_s = work.share / np.maximum(work.speed, 1e-9)
    slowest_s = busy_s.max(axis=own, keepdims=True)
    pace: FloatArray = np.broadcast_to(np.round(slowest_s / slowest_s.max(), 6), busy_s.shape)
    return pace


def _are_apart(ranks: Ranks) -> list[bool]:
    """Return the axes whose ranks do not wait for each other in a pass: those of replicas."""
    return [axis.startswith("dp_") and not ranks.experts for axis in ranks.axes]
