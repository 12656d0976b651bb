"""The effect of shared links on a placed plan: the loads of every axis, and its slowdown.

Each axis alone: all its groups send at once, over the links between the devices that they really
have. Then both passes of a micro-batch (:mod:`~meshwright.wafer.passes`). Messages that overlap
with computation are routed together, with a certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.compiled import as_written
from meshwright.network.routing import Routes, make_routes, xy_routes
from meshwright.network.tcme.bounds import Certificate
from meshwright.network.tcme.optimiser import make_problem, solve
from meshwright.network.traffic import Demands, joined_demands
from meshwright.topology.network import Network
from meshwright.wafer.loads import AxisLoad
from meshwright.wafer.passes import NO_PIPELINE, PROVEN, PipelineShape, StagePass, slowdowns
from meshwright.wafer.teams import ONE_TEAM, Teams, new_unit, unit_load

SMALL = 20_000
"""Messages times links up to which routing takes less time than compiling it."""
_ROUTED: WeakKeyDictionary[
    Network, dict[tuple[tuple[str, int, float], ...], tuple[dict[str, Routes], Certificate]]
] = WeakKeyDictionary()
"""Routes of axes that run together, by what they send; ``_UNITS`` keeps the demands alive."""


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
    passes: tuple[StagePass, StagePass] = (StagePass(), StagePass()), teams: Teams = ONE_TEAM,
    shape: PipelineShape = NO_PIPELINE,
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
            id(sent.demands): new_unit(
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
    slowdown, own = slowdowns(loads, units, busy, network, passes, teams, shape)
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
