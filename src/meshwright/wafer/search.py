"""The place of a strategy on a grid: ways to lay its axes, bounded and priced, and a choice.

The mapper of the problem states which ways are tried, and which one is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from operator import attrgetter

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray, column, joined, number_at, take_rows
from meshwright.base.errors import InfeasibleError
from meshwright.base.units import format_seconds
from meshwright.cost.communication import AxisNetwork
from meshwright.cost.parts import TimePart
from meshwright.cost.problem import MOST_DEVICES, Mapper, Problem
from meshwright.cost.step import Priced, price_each
from meshwright.network.blocks import sequential_shapes
from meshwright.network.faults import SharedWork
from meshwright.network.placement import Nesting, Ranks, all_choices, stated_ranks
from meshwright.search.exhaustive import Found
from meshwright.sharding.space import axis_orders
from meshwright.sharding.strategy import AXES, EXPERT_AXES, Offload, PlanOptions, Strategy
from meshwright.topology.network import Network
from meshwright.train.answer import Candidate, HotLink, Placement
from meshwright.train.families import ROUNDING
from meshwright.train.price import candidate_of
from meshwright.wafer.contention import PROVEN
from meshwright.wafer.price import (
    PlacedPrice,
    choice_network,
    price_placed,
    priced_at_pace,
    step_links,
    with_energy,
    work_of,
)

MOST_CHOICES = 4096
"""Most ways to lay a strategy that are tried; a bound holds for all others."""
MOST_ON_LARGE = 64
"""Most ways to lay a strategy that are tried on grids of more than ``MOST_DEVICES``."""
AT_ONCE = 256
"""Most ways with link loads worked out before the next bounds are looked at."""
AT_ONCE_OF_ONE = 8
"""Most ways of one candidate with link loads worked out before the next bounds are looked at."""
LAID_AT_ONCE = 256
"""Most candidates with ways that are priced at once, link loads aside."""
NUM_HOTTEST = 6


@dataclass(frozen=True)
class Placing:
    """The best way found to lay a strategy, and its proof."""

    price: PlacedPrice
    lower_bound_s: float
    """No way to lay it in nested blocks is faster with default routes [s]."""
    num_choices: int
    num_priced: int
    """The others are bounded by their closed form."""

    @property
    def time_s(self) -> float:
        """Step time with contention [s]."""
        return self.price.time_s


@dataclass
class Laid:
    """A candidate and its ways to lie, in order of their closed form, and the number priced.

    The closed form of a way is a bound of its contended price, so ways are taken in its order until
    the next one cannot be better.
    """

    found: Found
    choices: Sequence[Nesting]
    alone: Priced
    """Prices on private links, one row for each way."""
    left_s: float
    """Least seconds of all ways that are not among them."""
    num_priced: int = 0
    best: PlacedPrice | None = None

    def __post_init__(self) -> None:
        self.bound_s = column(self.alone.step.time.total_s)

    @property
    def time_s(self) -> float:
        """The least step time with contention found so far [s]."""
        return np.inf if self.best is None else self.best.time_s

    @property
    def next_s(self) -> float:
        """Least seconds of the ways that are still to be priced."""
        return self.bound_s[self.num_priced] if self.num_priced < len(self.choices) else np.inf

    def fold(self, price: PlacedPrice | None) -> None:
        """Take the price of a way with contention into account."""
        if price is not None and price.time_s < self.time_s:
            self.best = price

    def laid_as(self, problem: Problem, choice: Nesting, priced: Priced, time_s: float) -> Found:
        """Return the candidate laid in one way, with its time; the first row gives its memory."""
        return Found(
            self.found.strategy,
            replace(self.found.plan_options, axis_order=choice.axes),
            time_s,
            float(column(priced.step.memory_bytes)[0]),
            choice_network(problem, [(self.found.strategy, [choice])]).placement,
        )

    @property
    def placing(self) -> Placing:
        """The best way found, with its proof."""
        assert self.best is not None
        bound_s = min(self.time_s, self.next_s, self.left_s)
        return Placing(self.best, bound_s, len(self.choices), self.num_priced)


@dataclass
class Works:
    """Splits of the work of a step over ranks, by placement and by the traits that change them."""

    problem: Problem
    physical: Network
    _ranks: dict[Nesting, Ranks | None] = field(default_factory=dict)
    _works: dict[tuple[Nesting, float, float], SharedWork | None] = field(default_factory=dict)

    def of(self, strategy: Strategy, choice: Nesting) -> SharedWork | None:
        """Return the work of a strategy that is laid in one way; None where no rank can work."""
        key = choice, float(strategy.cp), float(strategy.micro_batch_size)
        if key not in self._works:
            if choice not in self._ranks:
                sides = self.problem.grid_sides
                self._ranks[choice] = stated_ranks(self.physical, sides, choice)
            ranks = self._ranks[choice]
            self._works[key] = (
                None if ranks is None else work_of(self.problem, strategy, ranks, self.physical)
            )
        return self._works[key]


def laid(
    problem: Problem, found: Sequence[Found], works: Works, *, must_fit: bool,
    within_s: float = np.inf,
) -> list[Laid]:  # fmt: skip
    """Return candidates with the ways to lay each; candidates without blocks that fit are left out.

    Ways under the same plan options are priced at once, each at the pace of its ranks.

    Parameters
    ----------
    must_fit
        Whether ways are left out that need more memory than a device or its host has.
    within_s
        Limit of the step time [s]: a candidate that certainly takes longer, with the work of its
        ranks as shared, is left out as well.
    """
    entries = [(one, choices_of(problem, one)) for one in found]
    entries = [(one, choices) for one, choices in entries if choices]
    if not entries:
        return []
    most = most_choices(problem)
    laid = [(one.strategy, choices[:most]) for one, choices in entries]
    network = choice_network(problem, laid)
    nests = np.ones(len(network.strategy.tp), dtype=bool)
    if problem.num_experts:
        nests = np.logical_and.reduce([network.has_blocks(axis) for axis in EXPERT_AXES])
    option_sets = [
        (replace(one.plan_options, axis_order=AXES), len(choices))
        for (one, _), (_, choices) in zip(entries, laid, strict=True)
    ]
    ends = np.cumsum([len(choices) for _, choices in laid])
    every = []
    for rows, priced in _at_their_pace(problem, laid, option_sets, network, works, within_s):
        times_s, fits = column(priced.step.time.total_s), fits_devices(problem, priced)
        numbers = np.searchsorted(ends, rows, side="right")
        for number in np.unique(numbers).tolist():
            one, choices = entries[number]
            mine = np.flatnonzero(numbers == number)
            first = ends[number] - len(laid[number][1])
            mine = mine[nests[rows[mine]]]
            mine = mine[fits[mine] & np.isfinite(times_s[mine])] if must_fit else mine
            mine = mine[np.argsort(times_s[mine], kind="stable")]
            if problem.mapper is Mapper.GMAP:
                mine = mine[:1]
            ways = [choices[row] for row in (rows[mine] - first).tolist()]
            left_s = min(one.time_s if len(choices) > most else np.inf, within_s)
            every.append(Laid(one, ways, take_rows(priced, mine), left_s))
    return every


def _at_their_pace(
    problem: Problem, laid: Sequence[tuple[Strategy, Sequence[Nesting]]],
    option_sets: Sequence[tuple[PlanOptions, int]], network: AxisNetwork, works: Works,
    within_s: float,
) -> list[tuple[IntArray, Priced]]:  # fmt: skip
    """Return the price of every way, in parts, each with the numbers of its rows.

    On devices of unequal speed each way is priced at the pace of its last rank; those without one
    are left out, and those that take longer than is wanted even if only the computation of the
    rank with most work were to grow.
    """
    if not problem.is_unequal:
        return price_each(problem, option_sets, network)
    every = [works.of(strategy, choice) for strategy, choices in laid for choice in choices]
    most_work = np.array([np.inf if work is None else work.most_work for work in every])
    wanted = np.zeros(len(every), dtype=bool)
    for numbers, priced in price_each(problem, option_sets, network):
        time = priced.step.time
        computes_s = column(time[TimePart.COMPUTE] + time[TimePart.RECOMPUTE])
        least_s = np.maximum(column(time.total_s), most_work[numbers] * computes_s)
        wanted[numbers] = least_s * (1.0 - ROUNDING) < within_s
    options = [plan_options for plan_options, number in option_sets for _ in range(number)]
    works_of = {row: work for row, work in enumerate(every) if work is not None and wanted[row]}
    found: dict[PlanOptions, list[tuple[IntArray, Priced]]] = {}
    for rows, priced in priced_at_pace(problem, options, network, works_of):
        found.setdefault(priced.plan_options, []).append((rows, priced))
    return [
        (np.concatenate([rows for rows, _ in parts]), joined([priced for _, priced in parts]))
        for parts in found.values()
    ]


def most_choices(problem: Problem) -> int:
    """Return the most ways to lay a strategy that are tried."""
    return MOST_CHOICES if problem.system.num_devices <= MOST_DEVICES else MOST_ON_LARGE


def fits_devices(problem: Problem, priced: Priced) -> BoolArray:
    """Return which rows fit the memory of a device, and of its host."""
    fits = column(priced.step.memory_bytes) <= problem.system.chip.main_memory.capacity_bytes
    host = problem.system.host
    if host is not None:
        fits &= column(priced.step.host_bytes) <= host.capacity_bytes
    return fits


def choices_of(problem: Problem, found: Found) -> Sequence[Nesting]:
    """Return the ways to lay a candidate that the mapper of the problem knows."""
    sides, plan_options, strategy = problem.grid_sides, found.plan_options, found.strategy
    if problem.mapper is Mapper.SMAP:
        rows = [
            (order, sequential_shapes([int(getattr(strategy, axis)) for axis in order], sides))
            for order in axis_orders(True)
        ]
        return [Nesting(order, shapes) for order, shapes in rows if shapes is not None]
    grids = () if problem.may_have_holes else problem.whole_grids
    return all_choices(plan_options, strategy, sides, grids, most_choices(problem) + 1)


class PlacementSearch:
    """Places candidates, those with the least bounds first, until the fastest ones are proven.

    Each price is a bound of the next one: a candidate before it is placed, its ways on private
    links, and those with contention.
    """

    def __init__(
        self, problem: Problem, physical: Network, top: int = 1, *, must_fit: bool = True,
        offloads: Sequence[Offload] = (),
    ) -> None:  # fmt: skip
        self.problem, self.physical, self.top = problem, physical, top
        self.must_fit, self.offloads = must_fit, offloads
        self.laid: list[Laid] = []
        self.num_too_large = 0
        """Candidates that fit no memory in any way."""
        self.elapsed_s = 0.0
        self.is_complete = True
        """False after an interrupt."""
        self._works = Works(problem, physical)
        self._queue: list[tuple[float, int]] = []
        self._left_s = np.inf
        self._num_priced = 0

    @property
    def limit_s(self) -> float:
        """Seconds beyond which a candidate is not among the fastest."""
        times_s = sorted(one.time_s for one in self.laid)
        return times_s[self.top - 1] if len(times_s) >= self.top else np.inf

    @property
    def lower_bound_s(self) -> float:
        """No candidate is faster on any way, however its messages are routed [s]."""
        alone_s = [min(float(one.bound_s[0]), one.left_s) for one in self.laid]
        return float(min([self._left_s, *alone_s]))

    @property
    def fastest(self) -> list[Laid]:
        """The candidates that are placed, fastest first."""
        return sorted((one for one in self.laid if one.best is not None), key=attrgetter("time_s"))

    def run(self, found: Sequence[Found], beyond_s: float) -> bool:
        """Place candidates; returns whether the fastest of all of them are proven.

        Parameters
        ----------
        found
            Candidates in order of their bounds [s], without those of earlier calls.
        beyond_s
            Least seconds of all candidates that are not named.
        """
        started = time.perf_counter()
        waiting = list(found)
        bounds_s = [*(one.time_s for one in waiting), beyond_s]
        at = 0
        try:
            while min(bounds_s[at], self._next_s) < self.limit_s:
                if self._next_s <= bounds_s[at]:
                    self._price_next()
                elif at == len(waiting):
                    break
                else:
                    limit_s = self.limit_s
                    some = waiting[at : at + min(16 + at, LAID_AT_ONCE)]
                    now = [one for one in some if one.time_s < limit_s]
                    at += len(now)
                    self._lay(now)
        except KeyboardInterrupt:
            if not self.fastest:
                raise
            self.is_complete = False
        self._left_s = min(bounds_s[at], self._next_s)
        self.elapsed_s += time.perf_counter() - started
        return self._left_s >= self.limit_s

    def _lay(self, found: Sequence[Found]) -> None:
        """Price candidates on private links; those too large for memory may offload."""
        entries = laid(
            self.problem, found, self._works, must_fit=self.must_fit, within_s=self.limit_s
        )
        for one in entries:
            if one.choices:
                heappush(self._queue, (one.next_s, len(self.laid)))
                self.laid.append(one)
                continue
            self.num_too_large += 1
            if one.found.plan_options.offload is Offload.NONE:
                kinds = [kind for kind in self.offloads if kind is not Offload.NONE]
                option_sets = [replace(one.found.plan_options, offload=kind) for kind in kinds]
                self._lay(
                    [replace(one.found, plan_options=plan_options) for plan_options in option_sets]
                )

    @property
    def _next_s(self) -> float:
        return self._queue[0][0] if self._queue else np.inf

    def _price_next(self) -> None:
        """Work out the link loads of the ways with the least bounds."""
        limit_s = self.limit_s
        numbers: list[int] = []
        ways: list[tuple[Laid, int]] = []
        most = min(self._num_priced + 1, AT_ONCE)
        while self._next_s < limit_s and len(ways) < most:
            numbers.append(heappop(self._queue)[1])
            one = self.laid[numbers[-1]]
            start, longest_s = one.num_priced, min(limit_s, one.time_s)
            some = one.bound_s[start : start + (AT_ONCE_OF_ONE if self._num_priced else 1)]
            one.num_priced += max(1, int((some < longest_s).sum()))
            ways += [(one, number) for number in range(start, one.num_priced)]
        self._num_priced += len(ways)
        for (one, _), price in zip(ways, self._priced(ways), strict=True):
            one.fold(price)
        for number in numbers:
            one = self.laid[number]
            if one.next_s < one.time_s:
                heappush(self._queue, (one.next_s, number))

    def _priced(self, ways: Sequence[tuple[Laid, int]]) -> Sequence[PlacedPrice | None]:
        """Return the price of ways of candidates; one by one where some cannot be routed."""
        listed = [
            (replace(one.found.plan_options, axis_order=AXES), one.found.strategy, one.choices[way])
            for one, way in ways
        ]
        alone = [take_rows(one.alone, [way]) for one, way in ways]
        try:
            prices = price_placed(self.problem, listed, self.physical, alone=alone)
            if not self.must_fit:
                return prices
            return [
                price
                if price is not None and bool(fits_devices(self.problem, price.contended).all())
                else None
                for price in prices
            ]
        except InfeasibleError:
            if len(ways) == 1:
                return [None]
            return [price for way in ways for price in self._priced([way])]


def place(
    problem: Problem, plan_options: PlanOptions, strategy: Strategy, physical: Network
) -> Placing | None:
    """Return the way to lay a strategy that the mapper of the problem chooses; None: none fits."""
    one = PlacementSearch(problem, physical, must_fit=False)
    one.run([Found(strategy, plan_options, 0.0, 0.0)], np.inf)
    return one.fastest[0].placing if one.fastest else None


def routed(problem: Problem, placing: Placing, physical: Network) -> Placing:
    """Return the placement with its messages routed around shared links, where that helps."""
    if physical.num_devices > MOST_DEVICES:
        return placing
    price = placing.price
    way = price.plan_options, price.strategy, price.nesting
    (anew,) = price_placed(problem, [way], physical, is_routed=True, alone=[price.closed_form])
    assert anew is not None
    best = min(anew, price, key=attrgetter("time_s"))
    return replace(placing, price=best, lower_bound_s=min(placing.lower_bound_s, best.time_s))


def has_placement(problem: Problem) -> bool:
    """Tell whether ranks of a system can be placed: on grids."""
    return bool(problem.grid_sides)


def price_as_placed(problem: Problem, entry: Candidate, physical: Network) -> PlacedPrice | None:
    """Return the price of a candidate in the placement that its plan states."""
    placement = entry.placement
    if placement is None:
        return None
    unused = tuple(a for a in entry.plan_options.axis_order if a not in placement.axes)
    shapes = [placement.shapes[axis][::-1] for axis in placement.axes]
    alone = (1,) * len(placement.grid_shape)
    shapes += [alone for _ in unused]
    choice = Nesting((*placement.axes, *unused), tuple(shapes), placement.devices)
    found = [
        price
        for is_routed in {physical.num_devices <= MOST_DEVICES, False}
        for price in price_placed(
            problem, [(entry.plan_options, entry.strategy, choice)], physical, is_routed=is_routed
        )
        if price is not None
    ]
    return min(found, key=attrgetter("time_s"), default=None)


def placed_candidate(problem: Problem, placing: Placing, physical: Network) -> Candidate:
    """Return a candidate with its contended price and its placement."""
    price, ranks = placing.price, placing.price.ranks
    links = step_links(problem, price, physical)
    contended = with_energy(problem, price, links)
    used = [i for i in range(len(ranks.axes)) if ranks.device.shape[i] > 1]
    busy_s, total_s = price.contention.busy_s, price.contention.hottest
    hottest = [
        HotLink(
            int(physical.source[link]),
            int(physical.target[link]),
            float(total_s[link]),
            {axis: float(seconds[link]) for axis, seconds in busy_s.items() if seconds[link] > 0},
        )
        for link in np.argsort(-total_s, kind="stable")[:NUM_HOTTEST].tolist()
        if total_s[link] > 0
    ]
    # Parts of the busiest device in a step, each as if it did nothing else.
    pipeline, time, rates = price.contended.pipeline, price.contended.step.time, problem.rates
    hbm_s = number_at(pipeline.memory_traffic_bytes) / number_at(rates.memory_bytes_per_s)
    work_s = {
        "compute": number_at(pipeline.flops) / number_at(rates.matmul_flops_per_s),
        "hbm": hbm_s + number_at(time[TimePart.OPTIMIZER]),
        "d2d": links.busiest_s,
        "exposed": sum(number_at(column) for part, column in time.columns.items() if part.axis),
    }
    placement = Placement(
        grid_shape=problem.grid_sides[::-1],
        axes=tuple(ranks.axes[i] for i in used),
        shapes={ranks.axes[i]: ranks.shapes[i][::-1] for i in used},
        devices=tuple(ranks.device.reshape(-1, order="F").tolist()),
        slowdown=dict(price.contention.slowdown),
        hottest_links=tuple(hottest),
        routing=_routing(price, physical),
        closed_form_s=number_at(price.closed_form.step.time.total_s),
        lower_bound_s=placing.lower_bound_s,
        num_choices=placing.num_choices,
        busy_s=work_s,
        sequences=tuple(price.work.sequences.tolist()),
        work_shares=()
        if price.work.is_equal
        else tuple(price.work.share.reshape(-1, order="F").tolist()),
    )
    nested = replace(contended, plan_options=replace(price.plan_options, axis_order=ranks.axes))
    entry = candidate_of(problem, price.strategy, nested, fidelity="contended")
    return replace(entry, placement=placement)


def _routing(price: PlacedPrice, physical: Network) -> str:
    shared = price.contention
    proof = shared.certificate
    default = "dimension order" if physical.grid_shape else "shortest ways"
    routes = f"{default}, all {shared.num_routes} routes"
    if shared.num_rerouted:
        routes = f"{shared.num_rerouted} of {shared.num_routes} routes leave the dimension order"
    if proof is None or proof.z_s <= 0:
        return routes
    least = (
        "no routing does with less" if proof.gap < PROVEN else f"{proof.gap:.1%} above the bound"
    )
    return f"{routes}; busiest link {format_seconds(proof.z_s)}, {least} ({proof.method})"
