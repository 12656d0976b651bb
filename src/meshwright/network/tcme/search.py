"""The search for a routing: descent from the default paths, then escapes to lower targets."""

from __future__ import annotations

import numpy as np

from meshwright.network.paths import make_graph, make_scratch
from meshwright.network.routes import Routes, make_routes
from meshwright.network.tcme.descent import descend, negotiate, polish
from meshwright.network.tcme.dual import dual_bound
from meshwright.network.tcme.messages import offsets_of, taken
from meshwright.network.tcme.moves import State, lay_first, make_trial
from meshwright.network.tcme.problem import RoutingProblem

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
        """Begin with links for each message, of which its parts take a tree."""
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
    """Return a time below z by a share of what is left to the bound, in steps that exist [s]."""
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
