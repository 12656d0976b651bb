"""The linear program of routing: messages may be cut at will; the oracle on small networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.network.tcme.bounds import Certificate
from meshwright.network.tcme.moves import TOLERANCE, Messages
from meshwright.network.tcme.optimiser import (
    RoutedClass,
    make_problem,
    solve,
)
from meshwright.network.traffic import Demands
from meshwright.topology.network import Network


@dataclass(frozen=True)
class _Flow:
    """A flow from some holders to what the nodes ask for."""

    holders: IntArray
    asked: FloatArray
    """What each node takes: bytes of unicasts, or 1 at one receiver of a multicast."""
    members: IntArray
    """Nodes that may send it on though they do not forward."""
    tree: int
    """Index of the multicast that it belongs to; -1 for unicasts, whose flows add up."""


@dataclass
class _Entries:
    """Coefficients of a sparse matrix."""

    rows: list[IntArray]
    columns: list[IntArray]
    values: list[FloatArray]

    def add(self, rows: IntArray, columns: IntArray, value: float | FloatArray) -> None:
        """Add coefficients."""
        self.rows.append(rows)
        self.columns.append(columns)
        self.values.append(np.broadcast_to(np.asarray(value, dtype=np.float64), rows.shape))

    def matrix(self, num_rows: int, num_columns: int) -> object:
        """Return them as compressed rows."""
        from scipy.sparse import csr_matrix

        places = (np.concatenate(self.rows), np.concatenate(self.columns))
        return csr_matrix((np.concatenate(self.values), places), shape=(num_rows, num_columns))


def lp_bound(network: Network, messages: Messages) -> float:
    """Return the least z of any fractional routing [s].

    Unicasts are gathered by source, which loses nothing. A multicast has a flow f_d to each
    receiver and x >= f_d on each link, and loads a link with bytes * x.

    Source: min-max multicommodity flow; the multicast form is the capacity of network coding,
    Ahlswede et al. 2000 (IEEE Trans. Inf. Theory 46(4)), a relaxation of packing trees.
    """
    from scipy.optimize import linprog

    flows, tree_bytes = _flows(network, messages)
    if not flows:
        return 0.0
    num_links = network.num_links
    num_columns = (len(flows) + len(tree_bytes)) * num_links + 1
    cost, most = np.zeros(num_columns), np.full(num_columns, np.inf)
    cost[-1] = 1.0
    for index, flow in enumerate(flows):
        may_send = network.forwards.astype(bool)
        may_send[flow.members] = True
        most[index * num_links : (index + 1) * num_links][~may_send[network.source]] = 0.0
    below = _below(network, flows, tree_bytes)
    num_rows = (1 + sum(flow.tree >= 0 for flow in flows)) * num_links
    solved = linprog(
        cost,
        A_ub=below.matrix(num_rows, num_columns),
        b_ub=np.zeros(num_rows),
        A_eq=_conserved(network, flows).matrix(len(flows) * network.num_nodes, num_columns),
        b_eq=np.concatenate([flow.asked for flow in flows]),
        bounds=np.stack([np.zeros(num_columns), most], axis=1),
        method="highs",
    )
    return float(solved.fun)


def _flows(network: Network, messages: Messages) -> tuple[list[_Flow], list[float]]:
    """Return the flows, and the bytes of each multicast; equal messages are taken together."""
    by_source: dict[int, FloatArray] = {}
    by_ends: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    for message, size in enumerate(messages.num_bytes.tolist()):
        at = slice(*messages.holder_offsets[message : message + 2].tolist())
        to = slice(*messages.receiver_offsets[message : message + 2].tolist())
        holders, receivers = messages.holders[at], messages.receivers[to]
        if len(holders) == 1 and len(receivers) == 1:
            asked = by_source.setdefault(int(holders[0]), np.zeros(network.num_nodes))
            asked[receivers[0]] += size
        else:
            ends = (tuple(holders.tolist()), tuple(receivers.tolist()))
            by_ends[ends] = by_ends.get(ends, 0.0) + size
    flows = [
        _Flow(np.array([source]), asked, np.array([source]), -1)
        for source, asked in by_source.items()
    ]
    for tree, (held, needed) in enumerate(by_ends):
        members = np.array(held + needed)
        for receiver in needed:
            asked = np.zeros(network.num_nodes)
            asked[receiver] = 1.0
            flows.append(_Flow(np.array(held), asked, members, tree))
    return flows, list(by_ends.values())


def _conserved(network: Network, flows: list[_Flow]) -> _Entries:
    """Return inflow - outflow of each flow at each node but its holders."""
    entries = _Entries([], [], [])
    links = np.arange(network.num_links)
    for index, flow in enumerate(flows):
        for ends, sign in ((network.target, 1.0), (network.source, -1.0)):
            counted = links[~np.isin(ends, flow.holders)]
            rows = index * network.num_nodes + ends[counted]
            entries.add(rows, index * network.num_links + counted, sign)
    return entries


def _below(network: Network, flows: list[_Flow], tree_bytes: list[float]) -> _Entries:
    """Return load - z on each link, then f - x on each link for each flow of a multicast."""
    entries = _Entries([], [], [])
    links = np.arange(network.num_links)
    seconds_per_byte = 1.0 / network.bandwidth_bytes_per_s
    first_x = len(flows) * network.num_links
    last = first_x + len(tree_bytes) * network.num_links
    row = network.num_links
    for index, flow in enumerate(flows):
        carried = index * network.num_links + links
        if flow.tree < 0:
            entries.add(links, carried, seconds_per_byte)
        else:
            entries.add(row + links, carried, 1.0)
            entries.add(row + links, first_x + flow.tree * network.num_links + links, -1.0)
            row += network.num_links
    for tree, size in enumerate(tree_bytes):
        entries.add(links, first_x + tree * network.num_links + links, size * seconds_per_byte)
    entries.add(links, np.full(network.num_links, last), -1.0)
    return entries


def with_lp(routed: RoutedClass, network: Network, demands: Demands) -> RoutedClass:
    """Return the same routing with the bound of the linear program where that is better.

    Meant for small networks: seconds on 8x8 unicasts, far longer on many large multicasts.
    """
    problem = make_problem(network, demands, max_paths=routed.num_paths)
    known = routed.certificate
    problem = replace(problem, bound_s=known.bound_s, bound_method=known.method)
    problem = problem.raised(lp_bound(network, problem.messages), "lp")
    proven = Certificate(known.z_s, min(problem.bound_s, known.z_s), problem.bound_method)
    return replace(routed, certificate=proven)


@dataclass(frozen=True)
class Best:
    """The candidate that can be routed best."""

    index: int
    routed: RoutedClass
    num_pruned: int
    """Candidates that were not routed, because their bound was no better than the best."""


def best_of(
    network: Network, candidates: Iterable[Demands], seed: int = 0, *, max_paths: int = 1
) -> Best:
    """Route the demands of several placements and return the one with the least z.

    Candidates are taken by their bound; those that cannot beat the best so far are not routed.
    The first one wins a tie of bounds.
    """
    problems = [make_problem(network, demands, max_paths=max_paths) for demands in candidates]
    order = sorted(range(len(problems)), key=lambda index: problems[index].bound_s)
    best = Best(order[0], solve(problems[order[0]], seed), 0)
    for index in order[1:]:
        if problems[index].bound_s >= best.routed.z_s * (1 - TOLERANCE):
            best = replace(best, num_pruned=best.num_pruned + 1)
            continue
        routed = solve(problems[index], seed)
        if routed.z_s < best.routed.z_s * (1 - TOLERANCE):
            best = Best(index, routed, best.num_pruned)
    return best
