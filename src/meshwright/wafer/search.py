"""The place of a strategy on a grid: ways to lay its axes, bounded and priced, and a choice.

The mapper of the problem states which ways are tried, and which one is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from operator import attrgetter

import numpy as np

from meshwright.base.arrays import FloatArray, Mask, Num, column, number_at
from meshwright.base.errors import InfeasibleError
from meshwright.base.units import format_seconds
from meshwright.cost.parts import TimePart
from meshwright.cost.problem import MOST_DEVICES, Mapper, Problem
from meshwright.cost.step import price_each
from meshwright.network.faults import SharedWork
from meshwright.network.placement import Nesting
from meshwright.search.exhaustive import Counts, FastestCandidates, Found, Progress
from meshwright.sharding.strategy import AXES, EXPERT_AXES, Offload, PlanOptions, Strategy
from meshwright.topology.network import Network
from meshwright.train.answer import Candidate, HotLink, Placement
from meshwright.train.price import candidate_of
from meshwright.wafer.messages import HeldParams
from meshwright.wafer.passes import PROVEN
from meshwright.wafer.power import temperature_celsius
from meshwright.wafer.price import (
    PlacedPrice,
    choice_network,
    energy_of_dies,
    nesting_of,
    price_placed,
    shared_out,
    step_links,
    with_energy,
)
from meshwright.wafer.ways import Ways, WayTables

AT_ONCE = 1024
"""Most ways with link loads worked out before the next bounds are looked at."""
AT_ONCE_OF_ONE = 8
"""Most ways of one candidate with link loads worked out before the next bounds are looked at."""
FIRST_LAID = 64
"""Candidates with ways that are priced first, before any limit is known."""
LAID_AT_ONCE = 4096
"""Most candidates with ways that are priced at once, link loads aside."""
NUM_HOTTEST = 6


@dataclass(frozen=True)
class Placing:
    """The best way found to lay a strategy, and its proof."""

    price: PlacedPrice
    lower_bound_s: float
    """No way to lay it is faster with default routes [s]."""
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
    works: Sequence[SharedWork]
    """Split of the work in each way; empty where all devices are equal."""
    bound_s: FloatArray
    """Step time of each way on private links [s]."""
    memory_bytes: float
    """Memory of the first way [bytes]."""
    held: HeldParams[float]
    """Parameters on one device of its fullest stage, however it lies."""
    left_s: float
    """Least seconds of all ways that are not among them."""
    num_choices: int
    """All ways."""
    num_priced: int = 0
    best: PlacedPrice | None = None

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

    def laid_as(
        self, problem: Problem, choice: Nesting, time_s: float, memory_bytes: float
    ) -> Found:
        """Return the candidate laid in one way, with its time and its memory."""
        return Found(
            self.found.strategy,
            replace(self.found.plan_options, axis_order=choice.axes),
            time_s,
            memory_bytes,
            choice_network(problem, [(self.found.strategy, [choice])]).placement,
        )

    @property
    def placing(self) -> Placing:
        """The best way found, with its proof."""
        assert self.best is not None
        bound_s = min(self.time_s, self.next_s, self.left_s)
        return Placing(self.best, bound_s, self.num_choices, self.num_priced)


def laid(problem: Problem, entries: Sequence[Ways], *, must_fit: bool) -> list[Laid]:
    """Return candidates with the price of each way on private links, fastest first.

    Ways under the same plan options are priced at once, each at the pace of its ranks.

    Parameters
    ----------
    must_fit
        Whether ways are left out that need more memory than a device or its host has.
    """
    if not entries:
        return []
    every = []
    network = choice_network(problem, [(e.found.strategy, e.choices) for e in entries])
    nests = np.ones(len(network.strategy.tp), dtype=bool)
    if problem.num_experts:
        nests = np.logical_and.reduce([network.has_blocks(axis) for axis in EXPERT_AXES])
    counts = [len(entry.choices) for entry in entries]
    option_sets = [
        (replace(entry.found.plan_options, axis_order=AXES), number)
        for entry, number in zip(entries, counts, strict=True)
    ]
    ends = np.cumsum(counts)
    if problem.is_unequal:
        works = [work for entry in entries for work in entry.works]
        slowdown = {"tatp": np.concatenate([entry.slowdown for entry in entries])}
        network = replace(network, slowdown=slowdown, own_slowdown=slowdown)
        prices = shared_out(problem, option_sets, network, works)
    else:
        prices = price_each(problem, option_sets, network)
    for rows, priced in prices:
        times_s, heaviest = column(priced.step.time.total_s), priced.pipeline.heaviest
        memory_bytes = column(priced.step.memory_bytes)
        fits = fits_devices(problem, memory_bytes, priced.step.host_bytes) & (times_s < np.inf)
        numbers = np.searchsorted(ends, rows, side="right")
        for number in np.unique(numbers).tolist():
            entry = entries[number]
            mine = np.flatnonzero(numbers == number)
            mine = mine[nests[rows[mine]]]
            mine = mine[fits[mine]] if must_fit else mine
            mine = mine[np.argsort(times_s[mine], kind="stable")]
            if problem.mapper is Mapper.GMAP:
                mine = mine[:1]
            first = ends[number] - counts[number]
            own = (rows[mine] - first).tolist()
            ways = [entry.choices[number] for number in own]
            works = [entry.works[number] for number in own] if entry.works else []
            row = int(mine[0]) if len(mine) else 0
            held = HeldParams(
                number_at(heaviest.dense_params, row), number_at(heaviest.expert_params, row)
            )
            size = number_at(memory_bytes, row)
            bound_s, left_s, total = times_s[mine], entry.left_s, entry.num_choices
            every.append(Laid(entry.found, ways, works, bound_s, size, held, left_s, total))
    return every


def fits_devices(problem: Problem, memory_bytes: Num, host_bytes: Num) -> Mask:
    """Return whether a step fits the memory of a device, and of its host."""
    host = problem.system.host
    fits: Mask = memory_bytes <= problem.system.chip.main_memory.capacity_bytes
    return fits if host is None else fits & (host_bytes <= host.capacity_bytes)


class PlacementSearch:
    """Places candidates, those with the least bounds first, until the fastest ones are proven.

    Each price is a bound of the next one: a candidate before it is placed, its ways on private
    links, and those with contention.
    """

    def __init__(
        self, problem: Problem, physical: Network, top: int = 1, *, must_fit: bool = True,
        offloads: Sequence[Offload] = (), progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.progress = progress
        self.problem, self.physical, self.top = problem, physical, top
        self.must_fit, self.offloads = must_fit, offloads
        self.laid: list[Laid] = []
        self.num_too_large = 0
        """Candidates that fit no memory in any way."""
        self.elapsed_s = 0.0
        self.is_complete = True
        """False after an interrupt."""
        self.limit_s = np.inf
        """Seconds beyond which a candidate is not among the fastest."""
        self._tables = WayTables(problem, physical)
        self._queue: list[tuple[float, int]] = []
        self._left_s = np.inf
        self._beyond_s = np.inf
        self._num_priced = 0
        self._most_laid = FIRST_LAID

    @property
    def lower_bound_s(self) -> float:
        """No candidate is faster on any way, however its messages are routed [s]."""
        alone_s = [min(float(one.bound_s[0]), one.left_s) for one in self.laid]
        return float(min([self._left_s, self._beyond_s, *alone_s]))

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
                # The first that are laid are priced before any other: they set the limit.
                if self._next_s <= bounds_s[at] or (self._queue and np.isinf(self.limit_s)):
                    self._price_next()
                elif at == len(waiting):
                    break
                else:
                    limit_s = self.limit_s
                    some = waiting[at : at + self._most_laid]
                    now = [one for one in some if one.time_s < limit_s]
                    at += len(now)
                    self._lay(now)
                    if np.isfinite(limit_s):
                        self._most_laid = LAID_AT_ONCE
                        if self._next_s < limit_s:
                            self._price_next()
                if self.progress is not None:
                    least_s = min((one.time_s for one in self.laid), default=np.inf)
                    times_s = np.array([least_s] if least_s < np.inf else [])
                    best = FastestCandidates(1, 1, times_s=times_s)
                    bound_s = min(bounds_s[at], self._next_s)
                    self.progress(Counts(priced=len(self.laid)), best, bound_s)
        except KeyboardInterrupt:
            if not self.fastest:
                raise
            self.is_complete = False
        self._left_s = min(bounds_s[at], self._next_s)
        self.elapsed_s += time.perf_counter() - started
        return self._left_s >= self.limit_s

    def _lay(self, found: Sequence[Found]) -> None:
        """Price candidates on private links; those too large for memory may offload."""
        entries = self._tables.ways_of(found, self.limit_s)
        self._beyond_s = min([self._beyond_s, *(e.left_s for e in entries if not e.choices)])
        near = [entry for entry in entries if entry.choices]
        kinds = [kind for kind in self.offloads if kind is not Offload.NONE]
        offloaded: list[Found] = []
        for one in laid(self.problem, near, must_fit=self.must_fit):
            if one.choices:
                heappush(self._queue, (one.next_s, len(self.laid)))
                self.laid.append(one)
                continue
            self.num_too_large += 1
            self._beyond_s = min(self._beyond_s, one.left_s)
            plan_options = one.found.plan_options
            if plan_options.offload is Offload.NONE:
                option_sets = [replace(plan_options, offload=kind) for kind in kinds]
                offloaded += [replace(one.found, plan_options=each) for each in option_sets]
        if offloaded:
            self._lay(offloaded)

    @property
    def _next_s(self) -> float:
        return self._queue[0][0] if self._queue else np.inf

    def _price_next(self) -> None:
        """Work out the link loads of the ways with the least bounds."""
        limit_s = self.limit_s
        numbers: list[int] = []
        ways: list[tuple[Laid, int]] = []
        most = min(self._num_priced + AT_ONCE_OF_ONE, AT_ONCE)
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
        times_s = sorted(one.time_s for one in self.laid)
        self.limit_s = times_s[self.top - 1] if len(times_s) >= self.top else np.inf

    def _priced(self, ways: Sequence[tuple[Laid, int]]) -> Sequence[PlacedPrice | None]:
        """Return the price of ways of candidates; one by one where some cannot be routed."""
        listed = [
            (replace(one.found.plan_options, axis_order=AXES), one.found.strategy, one.choices[way])
            for one, way in ways
        ]
        held = [one.held for one, _ in ways]
        works = [one.works[way] for one, way in ways if one.works]
        try:
            return price_placed(self.problem, listed, self.physical, held=held, known=works)
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


def routed(problem: Problem, placings: Sequence[Placing], physical: Network) -> list[Placing]:
    """Return placements with their messages routed around shared links, where that helps."""
    if problem.mapper is not Mapper.TMAP or physical.num_devices > MOST_DEVICES:
        return list(placings)
    prices = [placing.price for placing in placings]
    ways = [(price.plan_options, price.strategy, price.nesting) for price in prices]
    known = [price.work for price in prices]
    anew = price_placed(problem, ways, physical, is_routed=True, known=known)
    found = []
    for placing, price in zip(placings, anew, strict=True):
        assert price is not None
        before = replace(placing.price, private=price.private)
        best = min(price, before, key=attrgetter("time_s"))
        bound_s = min(placing.lower_bound_s, best.time_s)
        found.append(replace(placing, price=best, lower_bound_s=bound_s))
    return found


def has_placement(problem: Problem) -> bool:
    """Tell whether ranks of a system can be placed: on grids."""
    return bool(problem.grid_sides)


def price_as_placed(problem: Problem, entry: Candidate, physical: Network) -> PlacedPrice | None:
    """Return the price of a candidate in the placement that its plan states."""
    placement = entry.placement
    if placement is None:
        return None
    choice = nesting_of(
        placement.axes, placement.shapes, entry.plan_options, len(placement.grid_shape),
        placement.devices, placement.lies_in,
    )  # fmt: skip
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
    pipeline, time = price.contended.pipeline, price.contended.step.time
    rates = problem.rates_at(price.work.pace, price.work.most_work)
    hbm_s = number_at(pipeline.memory_traffic_bytes) / number_at(rates.memory_bytes_per_s)
    work_s = {
        "compute": number_at(pipeline.flops) / number_at(rates.matmul_flops_per_s),
        "hbm": hbm_s + number_at(time[TimePart.OPTIMIZER]),
        "d2d": links.busiest_s,
        "exposed": sum(number_at(column) for part, column in time.columns.items() if part.axis),
    }
    step, cooling = contended.step, problem.system.cooling
    power_w = np.zeros(0)
    if step.energy_parts_j:
        energy = energy_of_dies(problem, price, links, step.energy_parts_j)
        power_w = energy.power_w(number_at(step.time.total_s))
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
        lies_in=price.nesting.lies_in,
        die_power_w=tuple(power_w.tolist()),
        die_celsius=()
        if cooling is None or not len(power_w)
        else tuple(temperature_celsius(problem.system, cooling, power_w).tolist()),
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
