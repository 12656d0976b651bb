"""Level 2: the options of a frame where they share links, each priced when it is asked for.

Level 1 knows the fastest way to lay each set of degrees alone on its links. Here some further ways
to lay the likely ones stand beside it, and an option costs what it costs alone until its messages
have been laid on the links of the system. Contention only slows down, so until then its price is a
bound.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.pricing.operators.contended import Slowdown, slowdown_of, slowed_prices
from meshwright.pricing.operators.price import Assigned
from meshwright.pricing.operators.resharding import Resharding
from meshwright.search.operators.assignment import Assignment, fastest_uniform, fastest_ways
from meshwright.search.operators.layers import ModelGraph, moves_of
from meshwright.topology.network import Network

MOST_WAYS = 3
"""Ways to lay each set of degrees that level 1 chose, and of those that are fast for all."""
MOST_UNIFORM = 4
"""Options that are fast for all operators."""


class SharedTable:
    """The likely options of a frame, and what those that were asked for suffer from each other."""

    def __init__(self, alone: Assignment, physical: Network) -> None:
        every = alone.model.every_way
        self.problem, self.physical = every.problem, physical
        self.rows = _likely(alone)
        options = every.options.take(self.rows)
        moves_s = moves_of(every.take(self.rows), Resharding(self.problem, options, physical))
        self._slowdown: dict[int, Slowdown] = {}
        self._model = ModelGraph(every.take(self.rows), every, self.rows, moves_s)
        number = {int(row): index for index, row in enumerate(self.rows)}
        self.start = tuple(number[int(alone.model.rows[o])] for o in alone.assigned.options)
        """What level 1 chose, one option for each node."""

    @property
    def model(self) -> ModelGraph:
        """What each option costs as far as it is known: on shared links, or alone."""
        return self._model

    @property
    def num_priced(self) -> int:
        """Options whose messages have been laid on the links."""
        return len(self._slowdown)

    def knows(self, options: Iterable[int]) -> bool:
        """Tell whether all of some options have been priced on shared links."""
        return all(option in self._slowdown for option in options)

    def learn(self, options: Iterable[int]) -> None:
        """Price options on shared links that have not been priced there."""
        model, new = self._model, sorted(set(options) - set(self._slowdown))
        if not new:
            return
        for option in new:
            self._slowdown[option] = slowdown_of(
                self.problem, model.prices.options, option, self._params(option), self.physical
            )
        free: Slowdown = {}
        slowdowns = [self._slowdown.get(option, free) for option in range(len(self.rows))]
        prices = slowed_prices(self.problem, model.prices.options, slowdowns)
        self._model = ModelGraph(prices, model.every_way, model.rows, model.moves_s)

    def price(self, choices: tuple[int, ...]) -> Assigned:
        """Return the price on shared links of one option for each node."""
        self.learn(choices)
        return self._model.price(choices)

    def _params(self, option: int) -> float:
        """Return the dense parameters on one device where all operators have an option [1]."""
        whole = self._model.price((option,) * len(self._model.places))
        return float(np.ravel(whole.pipeline.heaviest.dense_params)[0])


def _likely(alone: Assignment) -> IntArray:
    """Return the options that may be the best on shared links, as numbers among all ways."""
    model, codes = alone.model, alone.model.every_way.options.codes
    used = [*alone.assigned.options, *fastest_uniform(model, MOST_UNIFORM)]
    ways = fastest_ways(model.every_way, MOST_WAYS)
    others = ways[np.isin(codes[ways], codes[model.rows[used]])]
    found: IntArray = np.unique(np.concatenate([model.rows, others]))
    return found
