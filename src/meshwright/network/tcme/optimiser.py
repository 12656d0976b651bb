"""The five-phase optimiser: default paths, merged and moved off the hottest links, certified."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.network.demands import Demands
from meshwright.network.routes import Routes
from meshwright.network.routing import default_routes
from meshwright.network.tcme.certificate import Certificate
from meshwright.network.tcme.moves import TOLERANCE
from meshwright.network.tcme.problem import RoutingProblem, make_problem
from meshwright.network.tcme.search import Search, merged_routes
from meshwright.topology.network import Network


@dataclass(frozen=True)
class RoutedClass:
    """What is in flight together, with its routes and the proof of how good they are."""

    routes: Routes
    """A path, or the tree of a multicast, for each message or part of one."""
    num_bytes: FloatArray
    """What each route carries [bytes]."""
    first_route: IntArray
    """The route that serves each row of the demands; -1 for rows to oneself."""
    num_paths: int
    """Routes that share a row in equal parts: ``first_route`` and those behind it."""
    link_load_bytes: FloatArray
    default_load_bytes: FloatArray
    """What the links would carry on the default paths, each row on its own [bytes]."""
    default_z_s: float
    """Time of the busiest link on those paths [s]."""
    certificate: Certificate

    @property
    def z_s(self) -> float:
        """Return the time of the busiest link [s]."""
        return self.certificate.z_s


def optimise(
    network: Network, demands: Demands, seed: int = 0, *, max_paths: int = 1
) -> RoutedClass:
    """Route what is in flight together, so that the busiest link is done as early as possible.

    1. Default paths: XY on grids. Rows of one payload are merged into trees at once, which raises
       no link. 2. to 5. Messages leave the hottest links by p-norm shortest paths while that
       lowers the sorted loads. Then escapes: with a lower target, all messages on links above it
       are laid again at rising prices; what does not reach the target is undone. Never worse than
       the default paths; the same seed gives the same routes.

    Parameters
    ----------
    max_paths
        Equal parts into which every message is cut, each with a route of its own.

    Source: five phases after TCME in TEMP (arXiv 2512.14256), section VI-B; the acceptance rule
    and the escapes are ours.
    """
    return solve(make_problem(network, demands, max_paths=max_paths), seed)


def solve(problem: RoutingProblem, seed: int = 0) -> RoutedClass:
    """Route a problem; see :func:`optimise`."""
    network = problem.network
    default = default_routes(network, problem.demands)
    search = Search(problem, _first_routes(problem, default, seed))
    problem = search.run(problem, np.random.default_rng(seed))
    default_load = default.link_load_bytes(problem.demands.num_bytes, network)
    routes = search.routes()
    load = routes.link_load_bytes(problem.messages.num_bytes, network)
    z_s = _longest_s(load, network)
    return RoutedClass(
        routes=routes,
        num_bytes=problem.messages.num_bytes,
        first_route=np.where(problem.message_of < 0, -1, problem.message_of * problem.num_paths),
        num_paths=problem.num_paths,
        link_load_bytes=load,
        default_load_bytes=default_load,
        default_z_s=_longest_s(default_load, network),
        certificate=Certificate(z_s, min(problem.bound_s, z_s), problem.bound_method),
    )


def _first_routes(problem: RoutingProblem, default: Routes, seed: int) -> Routes:
    """Return the links that each message begins with: those of whole messages before it is cut."""
    if problem.num_paths == 1:
        return merged_routes(problem, default)
    return optimise(problem.network, problem.demands, seed).routes


def _longest_s(load_bytes: FloatArray, network: Network) -> float:
    """Return the time of the busiest link [s]."""
    return float((load_bytes / network.bandwidth_bytes_per_s).max(initial=0.0))






