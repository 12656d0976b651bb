"""Distance of a routing from the best one: a lower bound, and the excess due to whole messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, gap_of
from meshwright.base.compiled import compiled
from meshwright.network.paths import (
    FLOOR,
    Graph,
    Prices,
    Scratch,
    begin,
    grow_tree,
    make_graph,
    make_scratch,
    shortest_tree,
)
from meshwright.network.tcme.moves import Messages, largest
from meshwright.topology.network import Network

_ALIKE = 1e-9
_FINEST = 1e-3
"""Common divisors below this share of the smallest message are taken to be noise."""


@dataclass(frozen=True)
class Certificate:
    """The time of a routing and a proven lower bound on that of every routing."""

    z_s: float
    """Time that the busiest link takes [s]."""
    bound_s: float
    """No routing is faster than this [s]."""
    method: str
    """Name of the bound: ``cut``, ``dual`` or ``lp``; with ``whole`` where messages cannot be
    cut."""

    @property
    def gap(self) -> float:
        """Return z / bound - 1 [1]: 0 where the routing is proven best."""
        return gap_of(self.z_s, self.bound_s)


def common_divisor(num_bytes: FloatArray) -> float:
    """Return the largest size that divides all messages [bytes]; 0 where there is none."""
    sizes = np.unique(num_bytes[num_bytes > 0])
    if not len(sizes):
        return 0.0
    least = float(sizes[0])
    divisor = least
    for size in sizes[1:].tolist():
        rest = size
        while rest > _ALIKE * least:
            divisor, rest = rest, divisor % rest
            rest = 0.0 if divisor - rest <= _ALIKE * least else rest
        if divisor < _FINEST * least:
            return 0.0
    return divisor


def round_up(bound_s: float, divisor_bytes: float, bandwidth_bytes_per_s: FloatArray) -> float:
    """Return the least time from the bound on that some link can take with whole messages [s].

    A link of bandwidth c carries a multiple of g bytes, so z is one of k g / c.
    """
    if divisor_bytes <= 0 or not len(bandwidth_bytes_per_s):
        return bound_s
    unit_s = divisor_bytes / np.unique(bandwidth_bytes_per_s)
    return float((np.ceil(bound_s / unit_s * (1 - _ALIKE)) * unit_s).min())


_MOST_SETS = 4096


def node_sets(network: Network) -> BoolArray:
    """Return sets of nodes as rows.

    A switch or an IO die belongs to a set of devices if all devices that it is linked to do.
    """
    single = np.eye(network.num_nodes, dtype=bool)
    joined = _linked_devices(network)
    blocks = _blocks(network.grid_shape)
    devices = np.concatenate([joined[joined.any(axis=1)], *blocks])
    sets = np.zeros((len(devices), network.num_nodes), dtype=bool)
    sets[:, : network.num_devices] = devices
    if len(joined):
        left_out = (~devices).astype(np.float32) @ joined.T.astype(np.float32)
        sets[:, network.num_devices :] = (left_out == 0) & joined.any(axis=1)
    return np.concatenate((single, sets))


def _linked_devices(network: Network) -> BoolArray:
    """Return [node, device]: whether a link joins a node that is not a device with a device."""
    table = np.zeros((network.num_nodes, network.num_nodes), dtype=bool)
    table[network.source, network.target] = True
    table |= table.T
    return table[network.num_devices :, : network.num_devices]


def _blocks(shape: tuple[int, ...]) -> list[BoolArray]:
    """Return blocks of a grid as rows over its devices, in a sensible number.

    All blocks of a small grid, those that reach an edge in each dimension of a larger one, those
    that are cut in one dimension only of a very large one.
    """
    if not shape:
        return []
    for intervals in (_all_intervals, _outer_intervals):
        sides = [intervals(side) for side in shape]
        if np.prod([len(side) for side in sides]) <= _MOST_SETS:
            return [_product(sides)]
    whole = [np.ones((1, side), dtype=bool) for side in shape]
    return [
        _product([*whole[:dim], _outer_intervals(side), *whole[dim + 1 :]])
        for dim, side in enumerate(shape)
    ]


def _all_intervals(side: int) -> BoolArray:
    """Return every interval of a dimension as a row."""
    first, last = np.triu_indices(side)
    at = np.arange(side)
    inside: BoolArray = (first[:, None] <= at) & (at <= last[:, None])
    return inside


def _outer_intervals(side: int) -> BoolArray:
    """Return the intervals that reach an end of a dimension."""
    rows = _all_intervals(side)
    return rows[rows[:, 0] | rows[:, -1]]


def _product(sides: list[BoolArray]) -> BoolArray:
    """Return every block with one interval in each dimension, as rows over the devices."""
    blocks = np.ones((1, 1), dtype=bool)
    for side in sides:
        table = blocks[:, None, :, None] & side[None, :, None, :]
        blocks = table.reshape(len(blocks) * len(side), -1)
    return blocks


_AT_ONCE = 2**23
"""Entries of one block of the tables."""
_MOST_SHARING = 8


def cut_bound(network: Network, messages: Messages) -> float:
    """Return the largest cut bound over nodes, blocks, rows and columns of a grid [s].

    A message crosses into a set once if it holds a receiver and no holder; the set's links divide
    the crossing bytes. Where messages stay whole, some j + 1 of j k + 1 messages on k links share
    one, so z is at least the sum of the j + 1 smallest of the j k + 1 largest.
    """
    crossings = _Crossings(network, messages)
    rows = max(_AT_ONCE // max(len(messages.num_bytes), network.num_nodes), 1)
    sets = node_sets(network)
    blocks = (sets[first : first + rows].T for first in range(0, len(sets), rows))
    sides = (inside for block in blocks for inside in (block, ~block))
    return max((crossings.bound_s(inside) for inside in sides), default=0.0)


class _Crossings:
    """Traffic into sets of nodes; sets are the columns of a table over the nodes."""

    def __init__(self, network: Network, messages: Messages) -> None:
        self.network, self.messages = network, messages
        self.holders = _table(messages.holder_offsets, messages.holders, network.num_nodes)
        self.receivers = _table(messages.receiver_offsets, messages.receivers, network.num_nodes)
        ends = (np.diff(messages.holder_offsets), np.diff(messages.receiver_offsets))
        self.is_unicast = (ends[0] == 1) & (ends[1] == 1)
        self.weights = np.stack([messages.num_bytes, np.ones(len(ends[0]))])
        unicasts = (weight[:, None] * self.is_unicast[:, None] for weight in self.weights)
        back = self.holders.T
        self.between = [back @ self.receivers.multiply(weight).tocsr() for weight in unicasts]

    def bound_s(self, inside: BoolArray) -> float:
        """Return the largest bound of some sets [s]."""
        bandwidth = self.network.bandwidth_bytes_per_s
        into = inside[self.network.target] & ~inside[self.network.source]
        capacity = bandwidth @ into
        crossing_bytes, count = self._volumes(inside)
        used = np.flatnonzero((count > 0) & (capacity > 0))
        if not len(used):
            return 0.0
        shared_s = float((crossing_bytes[used] / capacity[used]).max())
        num_links = into.sum(axis=0)
        few = used[count[used] <= _MOST_SHARING * num_links[used]]
        if not len(few) or self.messages.num_bytes[0] == self.messages.num_bytes[-1]:
            return shared_s
        fastest = np.where(into[:, few], bandwidth[:, None], 0.0).max(axis=0)
        crossing = self._crossing(inside[:, few], np.ones(len(self.is_unicast), dtype=bool))
        whole = _whole_bytes(self.messages.num_bytes, crossing, num_links[few])
        return max(shared_s, float((whole / fastest).max()))

    def _volumes(self, inside: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return the bytes that cross into each set, and the number of messages.

        Unicasts bring to a set the bytes its nodes receive, less those they send each other.
        """
        crossing = self._crossing(inside, ~self.is_unicast).astype(np.float64)
        totals = self.weights[:, ~self.is_unicast] @ crossing
        column = inside.astype(np.float64)
        for total, between in zip(totals, self.between, strict=True):
            received = np.asarray(between.sum(axis=0)).reshape(-1) @ column
            total += received - ((between @ column) * column).sum(axis=0)
        return np.where(totals[1] > 0.5, totals[0], 0.0), np.rint(totals[1])

    def _crossing(self, inside: BoolArray, chosen: BoolArray) -> BoolArray:
        """Return [message, set]: whether a receiver is inside and no holder is."""
        column = inside.astype(np.float32)
        begins, reaches = self.holders[chosen] @ column, self.receivers[chosen] @ column
        crossing: BoolArray = (reaches > 0) & (begins == 0)
        return crossing


def _table(offsets: IntArray, nodes: IntArray, num_nodes: int) -> Any:
    """Return a sparse table [message, node] of ones."""
    from scipy.sparse import csr_matrix

    ones = np.ones(len(nodes), dtype=np.float32)
    return csr_matrix((ones, nodes, offsets), shape=(len(offsets) - 1, num_nodes))


def _whole_bytes(num_bytes: FloatArray, crossing: BoolArray, num_links: IntArray) -> FloatArray:
    """Return the bytes that some link into each set must carry, as messages stay whole [bytes]."""
    rank = np.cumsum(crossing, axis=0)
    most = np.zeros(crossing.shape[1])
    for sharing in range(_MOST_SHARING):
        last = sharing * num_links + 1
        enough = rank[-1] >= last
        if not enough.any():
            break
        chosen = crossing & (rank <= last) & (rank > last - 1 - sharing)
        most = np.where(enough, np.maximum(most, num_bytes @ chosen), most)
    return most


_STEP = 1.0
_DECAY = 0.985


class Unicasts(NamedTuple):
    """Messages of one holder and one receiver, sorted by holder."""

    source: IntArray
    destination: IntArray
    num_bytes: FloatArray


def dual_bound(
    network: Network, messages: Messages, *, num_rounds: int = 100, num_checks: int = 4
) -> float:
    """Return the best dual bound that some rounds of multiplicative weights find [s].

    The lengths of multicasts are only bounded in the last ``num_checks`` rounds, because that is
    dear; where all messages are unicasts every round counts.

    Source: multiplicative weights for packing, Plotkin, Shmoys and Tardos 1995; the dual of a
    tree, Wong 1984 (Math. Programming 28).
    """
    graph, back = make_graph(network), _reversed(network)
    is_unicast = (np.diff(messages.holder_offsets) == 1) & (np.diff(messages.receiver_offsets) == 1)
    rows = np.flatnonzero(is_unicast)
    source = messages.holders[messages.holder_offsets[rows]]
    order = np.argsort(source, kind="stable")
    unicasts = Unicasts(
        source[order],
        messages.receivers[messages.receiver_offsets[rows[order]]],
        messages.num_bytes[rows[order]],
    )
    multicasts = np.flatnonzero(~is_unicast)
    scratch = make_scratch(network.num_nodes)
    work = (graph, back, scratch, messages, unicasts, multicasts)
    return float(_best_bound(*work, num_rounds, num_checks))


def _reversed(network: Network) -> Graph:
    """Return the links by the node at which they end."""
    order = np.argsort(network.target, kind="stable")
    counts = np.bincount(network.target, minlength=network.num_nodes)
    graph = make_graph(network)
    return graph._replace(offsets=np.concatenate(([0], np.cumsum(counts))), outgoing=order)


@compiled
def _best_bound(
    graph: Graph,
    back: Graph,
    scratch: Scratch,
    messages: Messages,
    unicasts: Unicasts,
    multicasts: IntArray,
    num_rounds: int,
    num_checks: int,
) -> float:
    """Return the best bound over all rounds [s]."""
    weight, load_s = graph.seconds_per_byte.copy(), np.zeros(len(graph.source))
    best_s, step = 0.0, _STEP
    for turn in range(num_rounds):
        total = _lay_unicasts(graph, scratch, unicasts, weight, load_s)
        _lay_multicasts(graph, scratch, messages, multicasts, weight, load_s)
        if len(multicasts) == 0 or turn >= num_rounds - num_checks:
            for message in multicasts:
                length = tree_length(back, scratch, messages, message, weight)
                total += messages.num_bytes[message] * length
            best_s = max(best_s, total / _volume(graph, weight))
        _reweigh(weight, load_s, step)
        step *= _DECAY
    return best_s


@compiled
def _volume(graph: Graph, weight: FloatArray) -> float:
    """Return the sum of length times bandwidth over all links."""
    volume = 0.0
    for link in range(len(weight)):
        volume += weight[link] / graph.seconds_per_byte[link]
    return volume


@compiled
def _reweigh(weight: FloatArray, load_s: FloatArray, step: float) -> float:
    """Lengthen links by their load, scale the longest to 1 and clear the loads."""
    most_s, longest = largest(load_s), 0.0
    share = step / most_s if most_s > 0.0 else 0.0
    for link in range(len(weight)):
        weight[link] *= 1.0 + share * load_s[link]
        load_s[link] = 0.0
        longest = max(longest, weight[link])
    for link in range(len(weight)):
        weight[link] /= longest
    return longest


@compiled
def _lay_unicasts(
    graph: Graph, scratch: Scratch, unicasts: Unicasts, weight: FloatArray, load_s: FloatArray
) -> float:
    """Add every unicast to the load of a shortest path; return bytes times lengths."""
    total = 0.0
    prices = Prices(weight, load_s, 0.0, 0.0)
    for row in range(len(unicasts.source)):
        source, node = unicasts.source[row], unicasts.destination[row]
        if row == 0 or source != unicasts.source[row - 1]:
            shortest_tree(graph, scratch, prices, unicasts.source[row : row + 1])
        total += unicasts.num_bytes[row] * scratch.distance[node] / FLOOR
        while node != source:
            link = scratch.via[node]
            load_s[link] += unicasts.num_bytes[row] * graph.seconds_per_byte[link]
            node = graph.source[link]
    return total


@compiled
def _lay_multicasts(
    graph: Graph,
    scratch: Scratch,
    messages: Messages,
    chosen: IntArray,
    weight: FloatArray,
    load_s: FloatArray,
) -> int:
    """Add multicasts to the load of short trees; return their links."""
    prices = Prices(weight, load_s, 0.0, 0.0)
    links = 0
    for message in chosen:
        at, to = messages.holder_offsets[message], messages.holder_offsets[message + 1]
        low, high = messages.receiver_offsets[message], messages.receiver_offsets[message + 1]
        held, needed = messages.holders[at:to], messages.receivers[low:high]
        count = grow_tree(graph, scratch, prices, held, needed)
        for index in range(count):
            link = scratch.found[index]
            load_s[link] += messages.num_bytes[message] * graph.seconds_per_byte[link]
        links += count
    return links


@compiled
def tree_length(
    back: Graph, scratch: Scratch, messages: Messages, message: int, weight: FloatArray
) -> float:
    """Return a lower bound on the length of every tree of a message, by dual ascent.

    For each receiver in turn: the nodes that reach it over links without rest form a set; while it
    holds no holder, some link must lead into it, so the least rest of those that do is due.
    """
    at, to = messages.holder_offsets[message], messages.holder_offsets[message + 1]
    low, high = messages.receiver_offsets[message], messages.receiver_offsets[message + 1]
    begin(scratch, messages.holders[at:to])
    for node in messages.receivers[low:high]:
        scratch.is_member[node] = True
    rest, length = weight.copy(), 0.0
    for receiver in messages.receivers[low:high]:
        due = 1.0
        while due > 0.0:
            due = _raise_cut(back, scratch, rest, receiver)
            length += due
    return length


@compiled
def _raise_cut(back: Graph, scratch: Scratch, rest: FloatArray, receiver: int) -> float:
    """Take the least rest off the links into the set of a receiver; 0 where it has a holder."""
    size = _reaching(back, scratch, rest, receiver)
    due = np.inf
    for index in range(size):
        node = scratch.found[index]
        if scratch.distance[node] == 0.0:
            return 0.0
        for at in range(back.offsets[node], back.offsets[node + 1]):
            link = back.outgoing[at]
            if not scratch.is_waiting[back.source[link]] and _may_send(back, scratch, link):
                due = min(due, rest[link])
    for index in range(size):
        node = scratch.found[index]
        for at in range(back.offsets[node], back.offsets[node + 1]):
            link = back.outgoing[at]
            if not scratch.is_waiting[back.source[link]]:
                rest[link] -= due
    return due


@compiled
def _may_send(back: Graph, scratch: Scratch, link: int) -> bool:
    """Return whether the node at the beginning of a link passes the message on."""
    node = back.source[link]
    return bool(back.forwards[node] > 0 or scratch.is_member[node])


@compiled
def _reaching(back: Graph, scratch: Scratch, rest: FloatArray, receiver: int) -> int:
    """List in ``found`` the nodes that reach a receiver over links without rest; return the count.

    They are marked as waiting.
    """
    for node in range(len(scratch.is_waiting)):
        scratch.is_waiting[node] = False
    scratch.is_waiting[receiver] = True
    scratch.found[0] = receiver
    size, done = 1, 0
    while done < size:
        node = scratch.found[done]
        for at in range(back.offsets[node], back.offsets[node + 1]):
            link = back.outgoing[at]
            other = back.source[link]
            if (
                rest[link] <= 0.0
                and not scratch.is_waiting[other]
                and _may_send(back, scratch, link)
            ):
                scratch.is_waiting[other] = True
                scratch.found[size] = other
                size += 1
        done += 1
    return size
