"""Level 2: the options of a frame where they share links, each priced when it is asked for.

An option costs what it costs alone until its messages have been laid on the links of the system.
Contention only slows down, so until then its price is a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from meshwright.base.arrays import FloatArray
from meshwright.pricing.operators.contended import Slowdown, slowdown_of, slowed_prices
from meshwright.pricing.operators.price import Assigned, whole_params
from meshwright.search.operators.assignment import Assignment
from meshwright.search.operators.layers import ModelGraph
from meshwright.strategy.strategy import Structure
from meshwright.topology.network import Network


class SharedTable:
    """The options of a frame, and what those that were asked for suffer from each other.

    Parameters
    ----------
    before
        A table of another frame with the same layers, whose options suffer the same where the same
        messages are sent.
    """

    def __init__(
        self, alone: Assignment, physical: Network, before: SharedTable | None = None
    ) -> None:
        self.alone, self.physical = alone, physical
        structure = alone.model.prices.options.frame.structure
        self.sends = _sent(structure)
        self._slowdown: dict[int, Slowdown] = {}
        self._model = alone.model
        if before is not None and before.sends == self.sends:
            self._slowdown, self._model = before._slowdown, before.model.under(structure)

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
        alone, new = self.alone.model.prices, sorted(set(options) - set(self._slowdown))
        if not new:
            return
        for option in new:
            params = float(self._params[option])
            self._slowdown[option] = slowdown_of(
                alone.problem, alone.options, option, params, self.physical
            )
        free: Slowdown = {}
        slowdowns = [self._slowdown.get(option, free) for option in range(len(alone.options))]
        self._model = replace(self._model, prices=slowed_prices(alone, slowdowns))

    def price(self, choices: tuple[int, ...]) -> Assigned:
        """Return the price on shared links of one option for each node."""
        self.learn(choices)
        return self._model.price(choices)

    @cached_property
    def _params(self) -> FloatArray:
        """Dense parameters on one device where all operators have one option, by option [1]."""
        return whole_params(self.alone.model.prices, self.alone.model.places)


def _sent(structure: Structure) -> tuple[bool, bool]:
    """Return what tells the data-parallel messages of two stages of ZeRO apart."""
    stage = structure.zero_stage
    return stage == 0, stage == 3 and structure.reshard_after_forward
