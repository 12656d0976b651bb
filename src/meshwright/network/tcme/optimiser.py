"""Routing problems: the messages of demands, and the bound that no routing of them beats."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.network.paths import make_graph, make_scratch
from meshwright.network.routing import Routes, default_routes, make_routes
from meshwright.network.tcme.bounds import (
    Certificate,
    common_divisor,
    cut_bound,
    dual_bound,
    round_up,
)
from meshwright.network.tcme.moves import (
    TOLERANCE,
    Messages,
    State,
    descend,
    lay_first,
    make_messages,
    make_trial,
    negotiate,
    offsets_of,
    polish,
    split_in,
    taken,
)
from meshwright.network.traffic import Demands
from meshwright.topology.network import Network


@dataclass(frozen=True)
class RoutingProblem:
    """Demands prepared for routing, and the best known bound."""

    network: Network
    demands: Demands
    messages: Messages
    message_of: IntArray
    """Message that each row belongs to before it is cut; -1 for rows to oneself."""
    num_paths: int
    """Equal parts into which each message is cut."""
    divisor_bytes: float
    """Largest common divisor of the sizes of all parts [bytes]; 0 where there is none."""
    bound_s: float = 0.0
    """No routing of whole parts is faster [s]."""
    bound_method: str = "none"

    @property
    def unit_s(self) -> float:
        """Return the least step between two times of a link [s]; 0 where it is not known."""
        fastest = self.network.bandwidth_bytes_per_s.max(initial=0.0)
        return float(self.divisor_bytes / fastest) if fastest > 0 else 0.0

    def raised(self, bound_s: float, method: str) -> RoutingProblem:
        """Return the problem with a bound, rounded up to whole parts, where that is better."""
        bandwidth = self.network.bandwidth_bytes_per_s
        whole_s = round_up(bound_s, self.divisor_bytes, bandwidth)
        if whole_s <= self.bound_s * (1 + TOLERANCE):
            return self
        is_rounded = whole_s > bound_s * (1 + TOLERANCE)
        named = f"{method}, whole messages" if is_rounded else method
        return replace(self, bound_s=whole_s, bound_method=named)


def make_problem(network: Network, demands: Demands, *, max_paths: int = 1) -> RoutingProblem:
    """Return demands ready to be routed, with their cut bound.

    Parameters
    ----------
    max_paths
        Equal parts into which each message is cut, each with its own route.
    """
    whole, message_of = make_messages(demands, network.num_nodes)
    messages = whole if max_paths == 1 else split_in(whole, max_paths)
    problem = RoutingProblem(
        network, demands, messages, message_of, max_paths, common_divisor(messages.num_bytes)
    )
    return problem.raised(cut_bound(network, messages), "cut")


_MOST_MOVES = 100_000
_PASSES = (20, 100)
"""Fewest and most passes over the messages in an escape."""
_PASS_WORK = 5_000_000
"""Messages times nodes times passes above which an escape gives up sooner."""
_PATIENCE = 5
"""Passes of a large search in a row that may bring nothing."""
_JITTER = 0.5
"""Spread of the link prices with which an escape begins."""
_FAILURES = (3, 10)
"""Fewest and most escapes that may fail before the search ends."""
_FAILURE_WORK = 100_000
"""Messages times nodes times failures above which the search ends sooner."""
_LARGE = 2_000_000
"""Messages times nodes from which one failure is enough, and patience ends."""
_CLOSE = 1e-3
"""Gap that is not worth an escape."""
_DUAL_ROUNDS = 100
_DUAL_WORK = 5_000_000
"""Messages times nodes times rounds that a dual bound may take."""


class Search:
    """The routes of all messages while they are moved about."""

    def __init__(self, problem: RoutingProblem, first: Routes) -> None:
        """Begin with links for each message; each of its parts takes a tree of them."""
        self.messages = problem.messages
        self.graph = make_graph(problem.network)
        self.scratch = make_scratch(problem.network.num_nodes)
        self.trial = make_trial(problem.network.num_nodes, problem.network.num_links)
        self.flat = np.ones(problem.network.num_links)
        chosen = np.repeat(np.arange(len(first)), problem.num_paths)
        offsets, links = taken(first.offsets, first.links, chosen)
        room = np.minimum(4 * np.diff(offsets) + 16, problem.network.num_nodes)
        start = np.concatenate(([0], np.cumsum(room)))
        self.state = State(
            start,
            np.zeros(len(room), dtype=np.int64),
            np.zeros(start[-1], dtype=np.int64),
            np.zeros(problem.network.num_links),
        )
        if len(room):
            work = (self.graph, self.scratch, self.messages, self.state)
            lay_first(*work, self.flat.copy(), offsets, links)

    @property
    def z_s(self) -> float:
        """Return the time of the busiest link [s]."""
        return float(self.state.load_s.max(initial=0.0))

    def run(self, problem: RoutingProblem, random: np.random.Generator) -> RoutingProblem:
        """Move messages until the bound is met or nothing helps; return the raised bounds."""
        if self.z_s == 0:
            return problem
        self._descend()
        problem = self._escape(problem, random)
        work = (self.graph, self.scratch, self.trial, self.messages, self.state)
        polish(*work, self.flat)
        return problem

    def routes(self) -> Routes:
        """Return the links of each message; they were found from the receivers back."""
        parts = zip(self.state.start[:-1], self.state.used, strict=True)
        found = (self.state.links[first : first + used] for first, used in parts)
        return make_routes(links[::-1] for links in found)

    def _descend(self) -> None:
        """Take messages off the hottest links until none can be moved."""
        work = (self.graph, self.scratch, self.trial, self.messages, self.state)
        descend(*work, self.flat, _MOST_MOVES)

    def _escape(self, problem: RoutingProblem, random: np.random.Generator) -> RoutingProblem:
        """Try lower targets, from half-way to the bound; ask for a better bound after a failure."""
        work = len(self.messages.num_bytes) * problem.network.num_nodes
        most_failures = int(np.clip(_FAILURE_WORK // work, *_FAILURES)) if work < _LARGE else 1
        failures, share = 0, 0.5
        while self.z_s > problem.bound_s * (1 + _CLOSE) and failures < most_failures:
            if self._reaches(_target_s(problem, self.z_s, share), random):
                self._descend()
                continue
            share *= 0.5
            failures += 1
            if failures == 1:
                problem = self._with_dual(problem)
        return problem

    def _reaches(self, target_s: float, random: np.random.Generator) -> bool:
        """Return whether all links could be brought to a target; leave things alone if not."""
        kept = [column.copy() for column in self.state]
        price = self.flat + _JITTER * random.random(len(self.flat))
        size = self.messages.num_bytes
        work = len(size) * len(self.scratch.via)
        passes = int(np.clip(_PASS_WORK // work, *_PASSES))
        patience = passes if work < _LARGE else _PATIENCE
        order = np.argsort(-size * random.uniform(0.5, 1.5, (passes, len(size))), axis=1)
        tools = (self.graph, self.scratch, self.messages, self.state)
        if negotiate(*tools, price, order, target_s, patience) >= 0:
            return True
        for column, before in zip(self.state, kept, strict=True):
            column[:] = before
        return False

    def _with_dual(self, problem: RoutingProblem) -> RoutingProblem:
        """Return the problem with its dual bound, where that is affordable."""
        network = problem.network
        work = len(self.messages.num_bytes) * network.num_nodes
        rounds = min(_DUAL_ROUNDS, _DUAL_WORK // work)
        if rounds < 1:
            return problem
        return problem.raised(dual_bound(network, self.messages, num_rounds=rounds), "dual")


def _target_s(problem: RoutingProblem, z_s: float, share: float) -> float:
    """Return a time below z by a share of the gap to the bound, in steps that exist [s]."""
    lower_s = (z_s - problem.bound_s) * share
    if problem.unit_s > 0:
        lower_s = max(np.floor(lower_s / problem.unit_s), 1.0) * problem.unit_s
    return max(z_s - lower_s, problem.bound_s)


def merged_routes(problem: RoutingProblem, default: Routes) -> Routes:
    """Return the links of each whole message: those of its rows' paths, each once."""
    num_links = max(problem.network.num_links, 1)
    of_row = np.repeat(problem.message_of, default.num_hops)
    pairs = np.unique((of_row * num_links + default.links)[of_row >= 0])
    num_whole = len(problem.messages.num_bytes) // problem.num_paths
    return Routes(offsets_of(pairs // num_links, num_whole), pairs % num_links)


@dataclass(frozen=True)
class RoutedClass:
    """Messages in flight together, with their routes and the proof of their quality."""

    routes: Routes
    """A path, or the tree of a multicast, for each message or part of one."""
    num_bytes: FloatArray
    """Bytes that each route carries."""
    first_route: IntArray
    """The route that serves each row of the demands; -1 for rows to oneself."""
    num_paths: int
    """Routes that share a row in equal parts: ``first_route`` and those behind it."""
    link_load_bytes: FloatArray
    default_load_bytes: FloatArray
    """Loads of the links on the default paths, each row on its own path [bytes]."""
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
    """Route messages in flight together, so that the busiest link finishes as early as possible.

    1. Default paths: XY on grids. Rows of one payload are merged into trees at once, which raises
       no link. 2. to 5. Messages leave the hottest links by p-norm shortest paths while that
       lowers the sorted loads. Then escapes: with a lower target, all messages on links above it
       are laid again at rising prices; moves that miss the target are undone. Never worse than
       the default paths; the same seed gives the same routes.

    Parameters
    ----------
    max_paths
        Equal parts into which every message is cut, each with its own route.

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
    """Return the first links of each message: those of the whole message before it is cut."""
    if problem.num_paths == 1:
        return merged_routes(problem, default)
    return optimise(problem.network, problem.demands, seed).routes


def _longest_s(load_bytes: FloatArray, network: Network) -> float:
    """Return the time of the busiest link [s]."""
    return float((load_bytes / network.bandwidth_bytes_per_s).max(initial=0.0))
