"""Kernels that bring the hottest links down: move by move, or all messages at rising prices."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.compiled import compiled
from meshwright.network.paths import Graph, Scratch
from meshwright.network.tcme.messages import Messages
from meshwright.network.tcme.moves import (
    TOLERANCE,
    State,
    Trial,
    add,
    excess,
    improve,
    largest,
    lay,
    peak_of,
)


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
    each by p-norm shortest paths; keep what lowers the sorted loads. It ends, because every move
    that is kept lowers them.
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
    lays it whatever becomes of the others; the price of links that stay overfull rises. It fails
    where the rows are used up, or so many in a row have not lowered what is too much.

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
