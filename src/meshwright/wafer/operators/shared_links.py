"""Level 2: the options of a frame where they share links, each priced when it is asked for.

An option costs what it costs alone until its messages have been laid on the links of the system.
Contention only slows down, so until then its price is a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.sharding.strategy import PlanOptions
from meshwright.wafer.operators.assignment import (
    WINDOW_SHARES,
    Assignment,
    best_uniform,
    capacity_bytes,
    cheapest_fitting,
    fastest_ways,
    graph_of,
)
from meshwright.wafer.operators.model_graph import Assigned, ModelGraph, whole_params
from meshwright.wafer.operators.prices import Slowdown, slowdown_of, slowed_prices

MOST_WAYS = 2
"""Further ways to lay a set of degrees whose messages are slowed down."""
SLOWER = 1.002
"""Times as long as alone from which on other ways are tried."""


class SharedTable:
    """The options of a frame, and what those that were asked for suffer from each other.

    Options are numbered as in ``model``; what is known of them is kept by their numbers among all
    ways to lay them.

    Parameters
    ----------
    before
        A table of another frame with the same layers, whose options suffer the same where the same
        messages are sent.
    """

    def __init__(self, alone: Assignment, before: SharedTable | None = None) -> None:
        self.alone = alone
        structure = alone.model.prices.options.frame.structure
        self.sends = _sent(structure)
        self._slowdown: dict[int, Slowdown] = {}
        self.model = alone.model
        """What each option costs as far as it is known: on shared links, or alone."""
        if before is not None and before.sends == self.sends:
            self._slowdown, self.model = before._slowdown, before.model.under(structure)
        number = {row: option for option, row in enumerate(self.model.rows.tolist())}
        self.start = tuple(number[int(alone.model.rows[o])] for o in alone.assigned.options)
        """What level 1 chose, one option for each node."""

    @property
    def num_priced(self) -> int:
        """Options whose messages have been laid on the links."""
        return len(self._slowdown)

    def knows(self, options: Iterable[int]) -> bool:
        """Tell whether all of some options have been priced on shared links."""
        return all(int(self.model.rows[option]) in self._slowdown for option in options)

    def learn(self, options: Iterable[int]) -> None:
        """Price options on shared links that have not been priced there."""
        rows = {int(self.model.rows[option]) for option in options} - self._slowdown.keys()
        every, physical = self.model.every_way, self.model.resharding.physical
        for row in sorted(rows):
            self._slowdown[row] = slowdown_of(
                every.problem, every.options, row, float(self._params[row]), physical
            )
        if rows:
            self.model = self._slowed(self.model, rows)

    def price(self, choices: tuple[int, ...]) -> Assigned:
        """Return the price on shared links of one option for each node."""
        self.learn(choices)
        return self.model.price(choices)

    def better(self, best: Assigned, choices: tuple[int, ...]) -> Assigned:
        """Return the faster one of a plan and of other choices, if these fit."""
        found = self.price(choices)
        fits = found.memory_bytes <= capacity_bytes(self.model)
        return found if fits and found.total_s < best.total_s else best

    def widen(self) -> bool:
        """Take in other ways to lay what turned out to be slow; tell whether there were any."""
        every, rows = self.model.every_way, self.model.rows
        slow = [row for row, slower in self._slowdown.items() if max(slower.values()) > SLOWER]
        codes, ways = every.options.codes, fastest_ways(every, 1 + MOST_WAYS)
        new = np.setdiff1d(ways[np.isin(codes[ways], codes[slow])], rows)
        if not len(new):
            return False
        wider = graph_of(every, np.concatenate([rows, new]), self.model.resharding)
        self.model = self._slowed(wider, self._slowdown.keys())
        return True

    def _slowed(self, model: ModelGraph, rows: Iterable[int]) -> ModelGraph:
        """Return a model in which some of the ways cost what they cost on shared links."""
        known = {row: option for option, row in enumerate(model.rows.tolist())}
        slower = [(known[row], self._slowdown[row]) for row in rows if row in known]
        options = np.array([option for option, _ in slower])
        prices = slowed_prices(model.prices, options, [entry for _, entry in slower])
        return replace(model, prices=prices)

    @cached_property
    def _params(self) -> FloatArray:
        """Dense parameters on one device where all operators have one option, by way [1]."""
        return whole_params(self.model.every_way, self.model.places)


def _sent(structure: PlanOptions) -> tuple[bool, bool]:
    """Return what tells the data-parallel messages of two stages of ZeRO apart."""
    stage = structure.zero_stage
    return stage == 0, stage == 3 and structure.reshard_after_forward


MOST_ROUNDS = 40
"""Each one prices at least one option more."""
CLOSE = 1e-3
"""Gap at which the best choices found are good enough."""


def on_demand(table: SharedTable, enough_s: float = float("inf")) -> Assignment:
    """Return the best choices on shared links, with the bound that proves them.

    Parameters
    ----------
    enough_s
        The search ends where a bound shows that it takes no less [s].
    """
    best, bound_s, is_narrow = table.price(table.start), 0.0, True
    for _ in range(MOST_ROUNDS):
        found, bound_s = cheapest_fitting(table.model, WINDOW_SHARES[0])
        plans = [found] if found else []
        if all(table.knows(plan.options) for plan in plans):
            plans += filter(None, [best_uniform(table.model)])
        is_known = all(table.knows(plan.options) for plan in plans)
        best = min([best, *(table.price(plan.options) for plan in plans)], key=_total_s)
        if bound_s >= min(best.total_s / (1.0 + CLOSE), enough_s):
            break
        if is_known and not (is_narrow and table.widen()):
            break
        is_narrow = is_narrow and not is_known
    for share in WINDOW_SHARES[1:]:
        if bound_s < min(best.total_s / (1.0 + CLOSE), enough_s):
            bound_s = max(bound_s, cheapest_fitting(table.model, share)[1])
    return Assignment(table.model, best, min(bound_s, best.total_s))


def _total_s(assigned: Assigned) -> float:
    return assigned.total_s
