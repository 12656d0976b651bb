"""Dual bounds: lengths of links under which all messages together must be long.

For any lengths w >= 0, z >= sum_q bytes_q length_w(q) / sum_e w_e c_e, where length_w(q) is a
lower bound on every tree of the message. Good lengths come by multiplicative weights: what
carries much becomes longer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
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
from meshwright.network.tcme.messages import Messages
from meshwright.network.tcme.moves import largest
from meshwright.topology.network import Network

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
    """List in ``found`` the nodes that reach a receiver over links without rest; return how many.

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
