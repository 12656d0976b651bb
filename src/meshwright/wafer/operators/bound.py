"""A bound of every plan of a frame that knows what passing tensors costs at least.

Each operator takes a set of degrees in the best way to lay it. Between two sets of degrees a tensor
takes what it takes between the two ways that suit it best. That is worked out only for the pairs
that the bound would use, again and again, until the bound is high enough or knows all that it uses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.search.choices.budget import cheapest_within
from meshwright.search.choices.graph import ChoiceGraph, Load, make_load
from meshwright.wafer.operators.assignment import room_bytes
from meshwright.wafer.operators.groups import Handover
from meshwright.wafer.operators.layers import Entry, ModelGraph, handed_over, passed_tensors

MOST_ROUNDS = 60
MOST_WAYS = 160
"""Ways to lay two sets of degrees; where there are more, moves between them count as nothing."""


def bound_with_moves_s(model: ModelGraph, enough_s: float) -> float:
    """Return a bound of every plan of the frame, wherever its operators lie [s].

    Infinite where nothing fits.

    Parameters
    ----------
    enough_s
        Bound at which no more is asked for [s].
    """
    anywhere = replace(model, prices=model.every_way)
    room, nodes = room_bytes(anywhere), _least_nodes(anywhere)
    moves = LeastMoves(anywhere)
    bound_s = 0.0
    for _ in range(MOST_ROUNDS):
        chosen = cheapest_within(ChoiceGraph(nodes, moves.edges()), room, uses_program=False)
        if chosen is None:
            return float("inf")
        bound_s = max(bound_s, chosen.lower_bound_s)
        if bound_s >= enough_s or not moves.learn(chosen.choices):
            break
    return bound_s


class LeastMoves:
    """What passing tensors between sets of degrees costs at least, as far as it is known."""

    def __init__(self, anywhere: ModelGraph) -> None:
        prices = anywhere.prices
        self.model = anywhere
        self.codes = prices.options.codes
        self.passed = list(passed_tensors(prices))
        self.handovers: dict[Entry, Handover] = {entry: what for _, entry, what in self.passed}
        size = int(self.codes.max()) + 1
        self.least_s = {entry: np.zeros((size, size)) for entry in self.handovers}
        self.is_known = {entry: np.eye(size, dtype=bool) for entry in self.handovers}

    def edges(self) -> dict[tuple[int, int], Load]:
        """Return what is known to be passed between nodes, in a step."""
        times = self.model.num_micro_batches * (1.0 + self.model.jitter)
        loads = {entry: make_load(least * times) for entry, least in self.least_s.items()}
        return {pair: loads[entry] for pair, entry, _ in self.passed}

    def learn(self, choices: tuple[int, ...]) -> bool:
        """Work out the moves of some choices; tell whether any was new."""
        pairs = {(entry, choices[u], choices[v]) for (u, v), entry, _ in self.passed}
        new = [pair for pair in sorted(pairs) if not self.is_known[pair[0]][pair[1:]]]
        for entry, one, other in new:
            self.least_s[entry][one, other] = self._least(entry, one, other)
            self.is_known[entry][one, other] = True
        return bool(new)

    def _least(self, entry: Entry, one: int, other: int) -> float:
        """Return the least seconds between two sets of degrees, for one micro-batch."""
        first, second = np.flatnonzero(self.codes == one), np.flatnonzero(self.codes == other)
        layer = self.model.prices.problem.pieces[entry[0]]
        rows = np.concatenate([first, second]).tolist()
        if len(rows) > MOST_WAYS:
            return 0.0
        moved = handed_over(self.model.resharding, layer, self.handovers[entry], rows)
        return float(moved.time_s[: len(first), len(first) :].min())


def _least_nodes(anywhere: ModelGraph) -> list[Load]:
    """Return what each node costs with each set of degrees, in the best way to lay it."""
    codes, nodes = anywhere.prices.options.codes, anywhere.graph_nodes(0.0)
    known = {
        id(load): make_load(_least_of(codes, load.time_s), _least_of(codes, load.num_bytes))
        for load in nodes
    }
    return [known[id(load)] for load in nodes]


def _least_of(codes: IntArray, values: FloatArray) -> FloatArray:
    """Return the least value of each code."""
    least = np.full(int(codes.max()) + 1, np.inf)
    np.minimum.at(least, codes, values)
    return least
