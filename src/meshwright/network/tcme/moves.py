"""Messages of demands, and kernels that take one off its links and lay it again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.compiled import compiled
from meshwright.network.paths import Graph, Prices, Scratch, grow_tree
from meshwright.network.traffic import Demands

TOLERANCE = 1e-9
"""Relative difference of two loads below which they count as equal."""
_WITHIN = 1e-9
"""Price of a message's own links when it is first laid, relative to all others."""


class State(NamedTuple):
    """The links of every message, and the load that they add up to; changed in place."""

    start: IntArray
    """Message m has the links from ``links[start[m]]`` on, with room up to ``start[m + 1]``."""
    used: IntArray
    """Links of each message."""
    links: IntArray
    load_s: FloatArray
    """Seconds that each link is busy."""


class Trial(NamedTuple):
    """Working memory of one move."""

    links: IntArray
    """Links that the message had."""
    load_s: FloatArray
    """Their loads."""
    is_old: BoolArray
    """Whether each link of the network is one of them."""
    before_s: FloatArray
    """Loads of the links that change, before and after."""
    after_s: FloatArray


def make_trial(num_nodes: int, num_links: int) -> Trial:
    """Return working memory for moves on a network."""
    return Trial(
        np.zeros(num_nodes, dtype=np.int64),
        np.zeros(num_nodes),
        np.zeros(num_links, dtype=bool),
        np.zeros(2 * num_nodes),
        np.zeros(2 * num_nodes),
    )


@compiled
def add(graph: Graph, state: State, message: int, num_bytes: float) -> int:
    """Add bytes of a message to the load of its links; negative ones take them away."""
    first = state.start[message]
    for at in range(first, first + state.used[message]):
        link = state.links[at]
        state.load_s[link] += num_bytes * graph.seconds_per_byte[link]
    return int(state.used[message])


@compiled
def lay(
    graph: Graph,
    scratch: Scratch,
    messages: Messages,
    state: State,
    message: int,
    price: FloatArray,
    scale: float,
) -> int:
    """Lay a message that was taken off: along a new tree, or the old one if none fits its room."""
    size, first = messages.num_bytes[message], state.start[message]
    at, to = messages.holder_offsets[message], messages.holder_offsets[message + 1]
    low, high = messages.receiver_offsets[message], messages.receiver_offsets[message + 1]
    count = grow_tree(
        graph,
        scratch,
        Prices(price, state.load_s, size, scale),
        messages.holders[at:to],
        messages.receivers[low:high],
    )
    if 0 <= count <= state.start[message + 1] - first:
        state.used[message] = count
        for index in range(count):
            state.links[first + index] = scratch.found[index]
    return add(graph, state, message, size)


@compiled
def lay_first(
    graph: Graph,
    scratch: Scratch,
    messages: Messages,
    state: State,
    price: FloatArray,
    offsets: IntArray,
    links: IntArray,
) -> int:
    """Lay every message as a tree within its own links; return the links that are used.

    A tree uses each of them once at most, so no link carries more than the links given do.
    ``price`` is that of all other links.
    """
    total = 0
    for message in range(len(messages.num_bytes)):
        for at in range(offsets[message], offsets[message + 1]):
            price[links[at]] *= _WITHIN
        total += lay(graph, scratch, messages, state, message, price, 0.0)
        for at in range(offsets[message], offsets[message + 1]):
            price[links[at]] /= _WITHIN
    return total


@compiled
def is_below(before_s: FloatArray, after_s: FloatArray, count: int) -> bool:
    """Return whether loads, from the highest down, are lexicographically lower after.

    Both columns are sorted as far as that takes.
    """
    for rank in range(count):
        for at in range(rank + 1, count):
            if before_s[at] > before_s[rank]:
                before_s[at], before_s[rank] = before_s[rank], before_s[at]
            if after_s[at] > after_s[rank]:
                after_s[at], after_s[rank] = after_s[rank], after_s[at]
        higher = max(before_s[rank], after_s[rank])
        if abs(before_s[rank] - after_s[rank]) > TOLERANCE * higher:
            return bool(after_s[rank] < before_s[rank])
    return False


@compiled
def compare(graph: Graph, state: State, trial: Trial, message: int, size: float, old: int) -> int:
    """List the loads of the links that a message left or joined, before and after."""
    for at in range(old):
        trial.is_old[trial.links[at]] = True
    count, first = 0, state.start[message]
    for at in range(first, first + state.used[message]):
        link = state.links[at]
        if trial.is_old[link]:
            trial.is_old[link] = False
            continue
        trial.before_s[count] = state.load_s[link] - size * graph.seconds_per_byte[link]
        trial.after_s[count] = state.load_s[link]
        count += 1
    for at in range(old):
        link = trial.links[at]
        if trial.is_old[link]:
            trial.before_s[count] = trial.load_s[at]
            trial.after_s[count] = state.load_s[link]
            trial.is_old[link] = False
            count += 1
    return count


@compiled
def improve(
    graph: Graph,
    scratch: Scratch,
    trial: Trial,
    messages: Messages,
    state: State,
    message: int,
    price: FloatArray,
    scale: float,
) -> bool:
    """Lay a message again where that lowers the sorted loads; else leave it in place.

    Only the links of the old and the new tree change, so only they are compared.
    """
    first, old, size = state.start[message], state.used[message], messages.num_bytes[message]
    for at in range(old):
        trial.links[at] = state.links[first + at]
        trial.load_s[at] = state.load_s[state.links[first + at]]
    add(graph, state, message, -size)
    lay(graph, scratch, messages, state, message, price, scale)
    count = compare(graph, state, trial, message, size, old)
    if is_below(trial.before_s, trial.after_s, count):
        return True
    add(graph, state, message, -size)
    state.used[message] = old
    for at in range(old):
        state.links[first + at] = trial.links[at]
        state.load_s[trial.links[at]] = trial.load_s[at]
    return False


@compiled
def largest(values: FloatArray) -> float:
    """Return the largest of some values that are not negative."""
    most = 0.0
    for value in values:
        most = max(most, value)
    return most


@compiled
def excess(values: FloatArray, limit: float) -> float:
    """Return the sum of the excesses over a limit."""
    total = 0.0
    for value in values:
        total += max(value - limit, 0.0)
    return total


@compiled
def peak_of(state: State, message: int) -> float:
    """Return the largest load among the links of a message [s]."""
    first, most_s = state.start[message], 0.0
    for at in range(first, first + state.used[message]):
        most_s = max(most_s, state.load_s[state.links[at]])
    return most_s


@compiled
def descend(
    graph: Graph,
    scratch: Scratch,
    trial: Trial,
    messages: Messages,
    state: State,
    price: FloatArray,
    most_moves: int,
) -> int:
    """Move messages off the hottest links until none of them can be moved; return the moves.

    Phases 2 to 5: take the links of greatest load, the messages on them, largest first, and lay
    each by p-norm shortest paths; keep moves that lower the sorted loads. It ends, because every
    move that is kept lowers them.
    """
    moves, last = 0, -1
    while moves > last and moves < most_moves:
        last = moves
        peak_s = largest(state.load_s)
        hot_s = peak_s * (1.0 - TOLERANCE)
        for message in range(len(messages.num_bytes)):
            if peak_of(state, message) >= hot_s:
                moves += improve(
                    graph, scratch, trial, messages, state, message, price, 1.0 / peak_s
                )
    return moves


@compiled
def polish(
    graph: Graph,
    scratch: Scratch,
    trial: Trial,
    messages: Messages,
    state: State,
    price: FloatArray,
) -> int:
    """Try every message once, also off the hottest links; return the moves."""
    moves, scale = 0, 1.0 / largest(state.load_s)
    for message in range(len(messages.num_bytes)):
        moves += improve(graph, scratch, trial, messages, state, message, price, scale)
    return moves


@compiled
def negotiate(
    graph: Graph,
    scratch: Scratch,
    messages: Messages,
    state: State,
    price: FloatArray,
    order: IntArray,
    target_s: float,
    patience: int,
) -> int:
    """Lay messages again until no link exceeds the target; return the passes, -1 for failure.

    Each pass takes every message that crosses an overfull link, in the given order of its row, and
    lays it even if others suffer; the price of links that stay overfull rises. It fails where the
    rows are used up, or ``patience`` passes in a row have not lowered the excess.

    Source: negotiated congestion of PathFinder, McMurchie and Ebeling 1995 (FPGA '95).
    """
    limit_s = target_s * (1.0 + TOLERANCE)
    least_s, found = np.inf, 0
    for turn in range(len(order)):
        if largest(state.load_s) <= limit_s:
            return turn
        over_s = excess(state.load_s, target_s)
        if over_s < least_s:
            least_s, found = over_s, turn
        elif turn - found > patience:
            return -1
        for message in order[turn]:
            if peak_of(state, message) > limit_s:
                add(graph, state, message, -messages.num_bytes[message])
                lay(graph, scratch, messages, state, message, price, 1.0 / target_s)
        raise_prices(state, price, target_s, limit_s)
    return -1


@compiled
def raise_prices(state: State, price: FloatArray, target_s: float, limit_s: float) -> None:
    """Make overfull links dearer, the fullest ones most."""
    for link in range(len(price)):
        if state.load_s[link] > limit_s:
            price[link] *= 0.5 + state.load_s[link] / target_s


class Messages(NamedTuple):
    """One row for each piece of data, largest first; as kernels read them.

    A device that receives a payload may pass it on, so the senders of a payload that do not
    receive it too are its holders, and any of them may serve any receiver.
    """

    num_bytes: FloatArray
    holder_offsets: IntArray
    holders: IntArray
    receiver_offsets: IntArray
    receivers: IntArray
    payload: IntArray


def make_messages(demands: Demands, num_nodes: int) -> tuple[Messages, IntArray]:
    """Return the messages of demands, and the message that each row belongs to.

    Rows to oneself belong to -1. Where all senders of a payload receive it too, all of them are
    taken to hold it.
    """
    moving = np.flatnonzero(demands.source != demands.destination)
    keys = np.stack([-demands.num_bytes[moving], demands.payload[moving]])
    kinds, of_row = np.unique(keys, axis=1, return_inverse=True)
    of_row = of_row.reshape(-1)
    sent = np.unique(of_row * num_nodes + demands.source[moving])
    received = np.unique(of_row * num_nodes + demands.destination[moving])
    first = np.setdiff1d(sent, received, assume_unique=True)
    has_holder = np.isin(sent // num_nodes, first // num_nodes)
    held = np.union1d(first, sent[~has_holder])
    needed = np.setdiff1d(received, held, assume_unique=True)
    num_messages = kinds.shape[1]
    messages = Messages(
        -kinds[0],
        offsets_of(held // num_nodes, num_messages),
        held % num_nodes,
        offsets_of(needed // num_nodes, num_messages),
        needed % num_nodes,
        kinds[1].astype(np.int64),
    )
    message_of = np.full(len(demands), -1, dtype=np.int64)
    message_of[moving] = of_row
    return messages, message_of


def split_in(messages: Messages, num_parts: int) -> Messages:
    """Return the messages cut into equal parts that may take different ways."""
    chosen = np.repeat(np.arange(len(messages.num_bytes)), num_parts)
    holder_offsets, holders = taken(messages.holder_offsets, messages.holders, chosen)
    receiver_offsets, receivers = taken(messages.receiver_offsets, messages.receivers, chosen)
    return Messages(
        messages.num_bytes[chosen] / num_parts,
        holder_offsets,
        holders,
        receiver_offsets,
        receivers,
        messages.payload[chosen],
    )


def offsets_of(of_row: IntArray, num_rows: int) -> IntArray:
    """Return the offset of each row among entries sorted by row."""
    counts = np.bincount(of_row, minlength=num_rows)
    return np.concatenate(([0], np.cumsum(counts)))


def taken(offsets: IntArray, entries: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return the compressed rows that are chosen, in their order."""
    counts = np.diff(offsets)[rows]
    starts = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    return starts, entries[np.repeat(offsets[rows], counts) + within]
