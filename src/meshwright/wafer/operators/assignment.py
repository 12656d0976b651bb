"""The best option of each operator under one frame, within the memory of a device, with a proof.

Level 1: each option has its cost alone on its links. Level 2: where options share links,
each is priced when it is asked for. Contention only slows down, so until then its price alone is a
bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, column, gap_of, number_at
from meshwright.cost.problem import Problem
from meshwright.search.choices.budget import cheapest_within
from meshwright.search.choices.elimination import ChoiceGraph, Load, Pair, make_load
from meshwright.topology.network import Network
from meshwright.wafer.contention import Contention
from meshwright.wafer.messages import HeldParams
from meshwright.wafer.operators.model import Assigned, ModelGraph, handed_over, moves_of
from meshwright.wafer.operators.options import SharedChoices, Way, all_options
from meshwright.wafer.operators.prices import (
    OperatorPrices,
    contention_alone,
    operator_prices,
    slowed_prices,
)
from meshwright.wafer.operators.resharding import Resharding

MOST_TRIES = 6
MOST_FAST, MOST_LEAN, MOST_OF_GROUP = 16, 4, 6
"""Options that each operator chooses among: the fastest, the leanest, the fastest of each group."""
MOST_UNIFORM = 3
WINDOW_SHARES = (0.0, 1.0, 0.5)
CLOSE = 5e-3
"""Gap at which no further bound is tried."""


@dataclass(frozen=True)
class Assignment:
    """The best options found under a frame, and a bound for all of them."""

    model: ModelGraph
    assigned: Assigned
    lower_bound_s: float
    """No choice of options under this frame takes less [s]."""

    @property
    def gap(self) -> float:
        """Share by which the options may lie above the best ones."""
        return gap_of(self.assigned.total_s, self.lower_bound_s)


def model_graph(
    problem: Problem, frame: SharedChoices, physical: Network, way: Way | None = None
) -> ModelGraph | None:
    """Return the choices of all operators under a frame; None where no option is legal.

    Every set of degrees keeps its fastest way to lay it; those that are likely to matter stay.

    Parameters
    ----------
    way
        A strategy that stays, and the way to lay it.
    """
    options = all_options(problem, frame, physical)
    if options is None:
        return None
    prices = operator_prices(problem, options)
    rows = np.union1d(_likely(prices), options.laid_as(way) if way else [])
    return graph_of(prices, rows.astype(np.int64), Resharding(problem, options, physical))


def graph_of(every_way: OperatorPrices, rows: IntArray, resharding: Resharding) -> ModelGraph:
    """Return the choices of all operators among some of the options."""
    kept = every_way.take(rows)
    return ModelGraph(kept, every_way, rows, resharding, moves_of(kept, resharding, rows.tolist()))


def _whole_s(prices: OperatorPrices) -> FloatArray:
    """Return one micro-batch through the whole model under each option [s]."""
    whole_s: FloatArray = np.sum(
        [
            column(piece.count * cost.layer.total_s)
            for piece, costs in zip(prices.problem.pieces, prices.costs, strict=True)
            for cost in costs
        ],
        axis=0,
    )
    return whole_s


def fastest_ways(prices: OperatorPrices, most: int) -> IntArray:
    """Return, for each set of degrees, the fastest ways to lay it for the whole model."""
    order = np.lexsort((_whole_s(prices), prices.options.codes))
    codes = prices.options.codes[order]
    begins = np.append(True, codes[1:] != codes[:-1])
    number = np.arange(len(codes))
    place = number - np.maximum.accumulate(np.where(begins, number, 0))
    return np.sort(order[place < most])


def _likely(prices: OperatorPrices) -> IntArray:
    """Return the options that are fast or lean as a whole, or fast for some group.

    An option that is left out is still in the bound of the whole plan.
    """
    rows = fastest_ways(prices, 1)
    costs = [cost.layer for piece in prices.costs for cost in piece]
    held = np.sum(
        [column(cost.kept_bytes + cost.dense_params + cost.expert_params) for cost in costs], axis=0
    )
    fast = rows[np.argsort(_whole_s(prices)[rows], kind="stable")[:MOST_FAST]]
    lean = rows[np.argsort(held[rows], kind="stable")[:MOST_LEAN]]
    of_group = [
        rows[np.argsort(column(cost.total_s)[rows], kind="stable")[:MOST_OF_GROUP]]
        for cost in costs
    ]
    found: IntArray = np.unique(np.concatenate([fast, lean, *of_group]))
    return found


def assign(model: ModelGraph) -> Assignment | None:
    """Return the best options within the memory of a device; None where none fit.

    Several bounds of exposed data-parallel messages are tried, until one proves the best that was
    found. One option for all operators is also compared.
    """
    uniform = best_uniform(model)
    plans = [uniform] if uniform else []
    bound_s = 0.0
    for share in WINDOW_SHARES:
        assigned, lower_s = cheapest_fitting(model, share)
        plans += [assigned] if assigned else []
        bound_s = max(bound_s, lower_s)
        if min((plan.total_s for plan in plans), default=0.0) <= bound_s * (1.0 + CLOSE):
            break
    if not plans:
        return None
    best = min(plans, key=attrgetter("total_s"))
    return Assignment(model, best, min(bound_s, best.total_s))


def cheapest_fitting(model: ModelGraph, window_share: float) -> tuple[Assigned | None, float]:
    """Return the cheapest options under one way to count messages, and a bound for all [s].

    Memory for the work at hand is one figure for the whole model: it is left at its least for the
    bound, then raised to what the chosen options need until they fit.
    """
    capacity = capacity_bytes(model)
    room, bound_s = room_bytes(model), float("inf")
    graph = model.graph(window_share)
    for _ in range(MOST_TRIES):
        chosen = cheapest_within(graph, room)
        if chosen is None:
            break
        bound_s = min(bound_s, chosen.lower_bound_s)
        assigned = model.price(chosen.choices)
        if assigned.memory_bytes <= capacity:
            return assigned, bound_s
        room -= assigned.memory_bytes - capacity
    return None, bound_s


def best_uniform(model: ModelGraph) -> Assigned | None:
    """Return the best single option for all operators; None where none fits."""
    capacity, equal = capacity_bytes(model), model.graph().equal_nodes
    time_s = np.sum([len(at) * load.time_s for load, at in equal], axis=0)
    held = np.sum([len(at) * load.num_bytes for load, at in equal], axis=0)
    fits = np.flatnonzero(held <= capacity)
    likely = fits[np.argsort(time_s[fits], kind="stable")][:MOST_UNIFORM]
    priced = [model.price((option,) * len(model.places)) for option in likely.tolist()]
    fitting = [plan for plan in priced if plan.memory_bytes <= capacity]
    return min(fitting, key=attrgetter("total_s"), default=None)


def lower_bound_s(model: ModelGraph, enough_s: float = float("inf")) -> float:
    """Return a bound of every plan of the frame, wherever its operators run [s].

    Each operator takes its best option in the best way to lay it, and nothing is passed between
    them; only the memory of a device ties them together. Infinite where nothing fits.

    Parameters
    ----------
    enough_s
        Bound at which no other way to count messages is tried [s].
    """
    anywhere = replace(model, prices=model.every_way)
    bound_s = 0.0
    for share in WINDOW_SHARES:
        alone = ChoiceGraph(anywhere.graph_nodes(share), {})
        chosen = cheapest_within(alone, room_bytes(anywhere))
        bound_s = max(bound_s, float("inf") if chosen is None else chosen.lower_bound_s)
        if bound_s >= enough_s:
            break
    return bound_s


def capacity_bytes(model: ModelGraph) -> float:
    """Return the memory of one device [bytes]."""
    return model.prices.problem.system.chip.main_memory.capacity_bytes


def room_bytes(model: ModelGraph) -> float:
    """Return the memory left by buffers, margin and the least work at hand [bytes]."""
    constants, capacity = model.prices.problem.calibration, capacity_bytes(model)
    fixed = float(np.asarray(constants.communication_buffer_bytes))
    fixed += float(np.asarray(constants.memory_margin_fraction)) * capacity
    pieces = model.prices.costs if model.frame.num_stages == 1 else model.prices.costs[:-1]
    costs = (cost for piece in pieces for cost in piece)
    return capacity - fixed - max(float(np.min(cost.layer.working_bytes)) for cost in costs)


MOST_ROUNDS = 60
MOST_WAYS = 160
"""Ways to lay two sets of degrees; where there are more, moves between them count as nothing."""


def bound_with_moves_s(model: ModelGraph, enough_s: float) -> float:
    """Return a bound of every plan of the frame, wherever its operators run [s].

    Infinite where nothing fits.

    Parameters
    ----------
    enough_s
        Bound that suffices [s].
    """
    anywhere = replace(model, prices=model.every_way)
    moves = LeastMoves(anywhere)
    # Cost of each node with each set of degrees, in the best way to lay it.
    loads = anywhere.graph_nodes(0.0)
    known = {
        id(load): make_load(
            _least_of(moves.codes, load.time_s), _least_of(moves.codes, load.num_bytes)
        )
        for load in loads
    }
    room, nodes = room_bytes(anywhere), [known[id(load)] for load in loads]
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
    """Least costs of passing tensors between sets of degrees, as far as they are known."""

    def __init__(self, anywhere: ModelGraph) -> None:
        prices = anywhere.prices
        self.model = anywhere
        self.codes = prices.options.codes
        size = int(self.codes.max()) + 1
        self.least_s = {entry: np.zeros((size, size)) for entry in anywhere.moves}
        self.is_known = {entry: np.eye(size, dtype=bool) for entry in anywhere.moves}

    def edges(self) -> Mapping[Pair, Load]:
        """Return the known costs of passing tensors between nodes, in a step."""
        return self.model.edges_of(
            {entry: (least_s, 0.0 * least_s) for entry, least_s in self.least_s.items()}
        )

    def learn(self, choices: tuple[int, ...]) -> bool:
        """Work out the moves of some choices; tell whether any was new."""
        passed = self.model.passed
        pairs = {(one.entry, choices[one.first], choices[one.second]) for one in passed}
        new = [pair for pair in sorted(pairs) if not self.is_known[pair[0]][pair[1:]]]
        for entry, one, other in new:
            first, second = np.flatnonzero(self.codes == one), np.flatnonzero(self.codes == other)
            layer = self.model.prices.problem.pieces[entry[0]]
            rows = np.concatenate([first, second]).tolist()
            if len(rows) <= MOST_WAYS:
                moved = handed_over(self.model.resharding, layer, self.model.handovers[entry], rows)
                least_s = float(moved.time_s[: len(first), len(first) :].min())
                self.least_s[entry][one, other] = least_s
            self.is_known[entry][one, other] = True
        return bool(new)


def _least_of(codes: IntArray, values: FloatArray) -> FloatArray:
    """Return the least value of each code."""
    least = np.full(int(codes.max()) + 1, np.inf)
    np.minimum.at(least, codes, values)
    return least


WAYS_TAKEN_IN = 2
"""Further ways to lay a set of degrees with slowed messages."""
SLOWER = 1.002
"""Slowdown over the time alone from which on other ways are tried."""


class SharedTable:
    """The options of a frame, and the mutual slowdown of those that were asked for.

    Options are numbered as in ``model``; known slowdowns are kept by their numbers among all ways
    to lay them.

    Parameters
    ----------
    before
        A table of another frame with the same layers: options have equal slowdowns where the same
        messages are sent.
    """

    def __init__(self, alone: Assignment, before: SharedTable | None = None) -> None:
        self.alone = alone
        plan_options = alone.model.prices.options.frame.plan_options
        stage = plan_options.zero_stage
        self.sends = stage == 0, stage == 3 and plan_options.reshard_after_forward
        """Whether gradients are all-reduced, and whether weights are gathered twice: stages of ZeRO
        that agree in both send equal data-parallel messages."""
        self._shared: dict[int, Contention] = {}
        self.model = alone.model
        """Cost of each option as far as it is known: on shared links, or alone."""
        if before is not None and before.sends == self.sends:
            self._shared, self.model = before._shared, before.model.under(plan_options)
        number = {row: option for option, row in enumerate(self.model.rows.tolist())}
        self.start = tuple(number[int(alone.model.rows[o])] for o in alone.assigned.options)
        """Choice of level 1, one option for each node."""

    @property
    def num_priced(self) -> int:
        """Number of options with messages laid on the links."""
        return len(self._shared)

    def knows(self, options: Iterable[int]) -> bool:
        """Tell whether all of some options have been priced on shared links."""
        return all(int(self.model.rows[option]) in self._shared for option in options)

    def learn(self, options: Iterable[int]) -> None:
        """Price options on shared links that have not been priced there."""
        rows = {int(self.model.rows[option]) for option in options} - self._shared.keys()
        every, physical = self.model.every_way, self.model.resharding.physical
        for row in sorted(rows):
            self._shared[row] = contention_alone(
                every.problem, every.options, row, self._params(row), physical
            )
        if rows:
            self.model = self._slowed(self.model, {row: self._shared[row] for row in rows})

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
        """Take in other ways to lay the options that turned out slow; tell if there were any."""
        every, rows = self.model.every_way, self.model.rows
        slow = [
            row
            for row, slower in self._shared.items()
            if max(slower.slowdown.values(), default=1.0) > SLOWER
        ]
        codes, ways = every.options.codes, fastest_ways(every, 1 + WAYS_TAKEN_IN)
        new = np.setdiff1d(ways[np.isin(codes[ways], codes[slow])], rows)
        if not len(new):
            return False
        wider = graph_of(every, np.concatenate([rows, new]), self.model.resharding)
        self.model = self._slowed(wider, self._shared)
        return True

    def routed(self, found: Assignment) -> Assignment:
        """Return choices with the messages of their options routed around shared links.

        As they are where that takes longer.
        """
        every, model = self.model.every_way, self.model
        rows = {int(model.rows[option]) for option in found.assigned.options}
        shared = {
            row: contention_alone(
                every.problem, every.options, row, self._params(row), model.resharding.physical,
                is_routed=True,
            )
            for row in sorted(rows)
        }  # fmt: skip
        assigned = self._slowed(model, shared).price(found.assigned.options)
        if assigned.total_s >= found.assigned.total_s:
            return found
        return replace(found, assigned=assigned)

    def _slowed(self, model: ModelGraph, shared: Mapping[int, Contention]) -> ModelGraph:
        """Return a model in which some of the ways have their cost on shared links."""
        known = {row: option for option, row in enumerate(model.rows.tolist())}
        slower = [(known[row], entry) for row, entry in shared.items() if row in known]
        options = np.array([option for option, _ in slower])
        prices = slowed_prices(model.prices, options, [entry for _, entry in slower])
        return replace(model, prices=prices)

    @cached_property
    def _held(self) -> HeldParams[FloatArray]:
        return replace(self.model, prices=self.model.every_way).whole_params()

    def _params(self, row: int) -> HeldParams[float]:
        """Return the parameters on one device where all operators have one option [1]."""
        return HeldParams(number_at(self._held.dense, row), number_at(self._held.expert, row))


MOST_ROUNDS_ON_DEMAND = 40
"""Each one prices at least one option more."""
CLOSE_ON_DEMAND = 1e-3
"""Gap at which the best choices found are good enough."""


def on_demand(
    table: SharedTable, enough_s: float = float("inf"), way: Way | None = None
) -> Assignment:
    """Return the best choices on shared links, with the bound that proves them.

    Parameters
    ----------
    enough_s
        The search ends at a bound of at least this time [s].
    way
        A strategy for all operators that is compared too.
    """
    best, bound_s, is_narrow = table.price(table.start), 0.0, True
    for option in table.model.prices.options.laid_as(way) if way else ():
        best = table.better(best, (option,) * len(table.model.places))
    for _ in range(MOST_ROUNDS_ON_DEMAND):
        found, bound_s = cheapest_fitting(table.model, WINDOW_SHARES[0])
        plans = [found] if found else []
        if all(table.knows(plan.options) for plan in plans):
            plans += filter(None, [best_uniform(table.model)])
        is_known = all(table.knows(plan.options) for plan in plans)
        best = min(
            [best, *(table.price(plan.options) for plan in plans)], key=attrgetter("total_s")
        )
        if bound_s >= min(best.total_s / (1.0 + CLOSE_ON_DEMAND), enough_s):
            break
        if is_known and not (is_narrow and table.widen()):
            break
        is_narrow = is_narrow and not is_known
    for share in WINDOW_SHARES[1:]:
        if bound_s < min(best.total_s / (1.0 + CLOSE_ON_DEMAND), enough_s):
            bound_s = max(bound_s, cheapest_fitting(table.model, share)[1])
    return Assignment(table.model, best, min(bound_s, best.total_s))
