"""The leading plan of a space: the simplest that starts among those the model cannot tell apart.

Each verb takes a :class:`Placer` of strategies on devices, so this room knows no grids of devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from meshwright.base.cluster import HERE, Cluster
from meshwright.base.errors import InfeasibleError, UnsupportedError
from meshwright.base.units import format_bytes
from meshwright.cost.energy import IDLE_ABOVE_CAP
from meshwright.cost.memory import host_of
from meshwright.cost.problem import Problem
from meshwright.search.exhaustive import Coverage, Found, Progress
from meshwright.search.leading import complexity, distinct, in_order_of_preference
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import PlanOptions, Strategy, stack
from meshwright.train.answer import Candidate, OperatorPlan
from meshwright.train.families import AllFamilies
from meshwright.train.launched import Chosen, Frameworks, rule_against
from meshwright.train.measured.factors import PLAN_ERROR
from meshwright.train.price import above_caps, candidate, candidates
from meshwright.train.search import (
    MOST_MORE,
    SearchResult,
    fewer_devices,
    least_complexity,
    search,
)
from meshwright.train.space import SearchSpace


@dataclass(frozen=True)
class Placed:
    """A candidate as found, with its final time, and with its full price."""

    found: Found
    candidate: Candidate


@dataclass(frozen=True)
class Leaders:
    """The best candidates of a space with their final price, and the coverage of the space."""

    result: SearchResult
    placed: tuple[Placed, ...]
    """The fastest candidates, preferred first; none where nothing fits."""
    others: tuple[Found, ...]
    """Some of the next candidates, by their closed form."""
    coverage: Coverage
    fastest: Placed | None
    """The fastest candidate, which may be within a tie of the preferred one."""

    @property
    def best(self) -> Candidate:
        """The preferred candidate."""
        return self.placed[0].candidate

    @property
    def fastest_s(self) -> float:
        """Step time of the fastest candidate [s]."""
        return (self.fastest or self.placed[0]).candidate.estimate.step_time_s


class Placer:
    """Places nothing: candidates keep their closed form. A subclass places ranks on devices."""

    def has_placement(self, problem: Problem) -> bool:
        """Tell whether the ranks of a system are placed."""
        return False

    def space(self, problem: Problem, choices: Choices) -> SearchSpace:
        """Return the space of a problem: candidates in closed form, or still to be placed."""
        return SearchSpace(problem, choices, is_open=self.has_placement(problem))

    def best(
        self, space: SearchSpace, *, top: int = 1, progress: Progress | None = None,
        among: AllFamilies | None = None, num_simulated: int = 0,
    ) -> Leaders:  # fmt: skip
        """Return the best candidates of a space, proven.

        Parameters
        ----------
        top
            Leading candidates with a proven order.
        among
            Families of a wider space, priced before.
        num_simulated
            Leading candidates that are simulated, where ranks are placed.
        """
        problem, result = space.problem, search(space, top=top, progress=progress, among=among)
        if among is None and result.is_complete:
            first_s = result.found[0].time_s if result.found else float("inf")
            within_s = max(result.beyond_s, first_s * (1.0 + PLAN_ERROR))
            result = fewer_devices(space, result, within_s)
        found = distinct(in_order_of_preference(result.found))
        first, others = found[:top], tuple(found[top:])
        priced = list(dict.fromkeys([*first, *result.found[:1]]))
        prices = candidates(problem, [(one.strategy, one.plan_options) for one in priced])
        placed = list(map(Placed, priced, prices))
        fastest = next((one for one in placed if one.found == result.found[0]), None)
        return Leaders(result, tuple(placed[: len(first)]), others, result.coverage, fastest)

    def price(self, problem: Problem, strategy: Strategy, plan_options: PlanOptions) -> Candidate:
        """Return one strategy with its final price."""
        return candidate(problem, strategy, plan_options)

    def prices(self, problem: Problem, chosen: Chosen) -> list[Candidate]:
        """Return strategies with their final prices."""
        if not self.has_placement(problem):
            return candidates(problem, chosen)
        return [self.price(problem, *entry) for entry in chosen]

    def check_operators(self, problem: Problem) -> None:
        """Refuse a problem that cannot have a strategy for each operator.

        Raises
        ------
        UnsupportedError
            Always, on this placer.
        """
        raise UnsupportedError("a strategy for each operator needs a grid of devices")

    def operator_plan(
        self, problem: Problem, best: Candidate, *,
        allowed: Mapping[str, Sequence[object]] | None = None, cluster: Cluster = HERE,
        progress: Progress | None = None,
    ) -> OperatorPlan | None:  # fmt: skip
        """Return the best plan with a strategy for each operator; None where nothing fits."""
        return None


CLOSED_FORM = Placer()


Starts = Callable[[Found], bool]
NUM_TRIED = 64
"""Number of fastest candidates that are tried; one of them has to start where any does."""
AT_ONCE = 1_000
"""Families that are searched for a simpler plan at least: fewer take as long."""
NUM_SIMULATED = 5
"""Leading candidates on a grid that are simulated."""


def lead(
    space: SearchSpace, placer: Placer, *, top: int = 1, simplest: bool = True,
    num_simulated: int = NUM_SIMULATED, progress: Progress | None = None,
    among: AllFamilies | None = None,
) -> tuple[Leaders, tuple[str, ...]]:  # fmt: skip
    """Return the recommended plans of a space, best first, and the notes on them.

    The only place that decides which plan leads; every verb with a best plan calls it.
    Within the error of plans against each other (``PLAN_ERROR`` of the fastest) the simplest plan
    comes first, by :func:`~meshwright.search.leading.complexity`, of those that use no fewer
    devices than the fastest; faster plans follow. Without a requested framework, plans that
    some framework starts, with its own memory, come before those that start nowhere.

    Parameters
    ----------
    top, num_simulated, progress, among
        As for :meth:`Placer.best`.
    simplest
        Whether simplicity and headroom count; else the fastest plan that starts leads.
    """
    leaders = placer.best(
        space, top=top, progress=progress, among=among, num_simulated=num_simulated
    )
    frameworks = Frameworks(space.problem.sharing(), placer.prices)
    if not (leaders.placed and leaders.coverage.is_complete):
        return _with_frameworks(leaders, frameworks), ()
    leaders, notes = _first(space, leaders, placer, frameworks, simplest, num_simulated)
    return _with_frameworks(leaders, frameworks), notes


def _with_frameworks(leaders: Leaders, frameworks: Frameworks) -> Leaders:
    """Return leaders that say which frameworks start each of them."""
    known = frameworks.added(entry.candidate for entry in leaders.placed)
    placed = [replace(entry, candidate=one)
              for entry, one in zip(leaders.placed, known, strict=True)]  # fmt: skip
    return replace(leaders, placed=tuple(placed))


def _first(
    space: SearchSpace, leaders: Leaders, placer: Placer, frameworks: Frameworks, simplest: bool,
    num_simulated: int,
) -> tuple[Leaders, tuple[str, ...]]:  # fmt: skip
    """Return complete leaders with the recommended plan in front, and the notes on it."""
    if not simplest and leaders.fastest is not None:
        leaders = _led_by(leaders.fastest, leaders)
    if leaders.best.placement is not None:
        return _lead_placed(space, leaders, placer, frameworks, num_simulated)
    best, starts = leaders.best, _starting(leaders, frameworks)
    limit_s = leaders.result.found[0].time_s * (1.0 + PLAN_ERROR)
    first, best_starts = None, starts(leaders.placed[0].found)
    if simplest:
        first = _simplest(space, leaders, limit_s, starts)
    if first is None and not best_starts:
        first = _fastest_that_starts(space, leaders, frameworks, starts)
    if first is None:
        return leaders, ()
    placed = Placed(first, candidate(space.problem, first.strategy, first.plan_options))
    return _led_by(placed, leaders), () if best_starts else _named(space, placed, best)


def _lead_placed(
    space: SearchSpace, leaders: Leaders, placer: Placer, frameworks: Frameworks, num_simulated: int
) -> tuple[Leaders, tuple[str, ...]]:
    """Return placed leaders and notes: a plan that some framework starts comes first.

    One example is a torus of TPUs, where no framework has tensor streams. On chips without any
    framework, such as a wafer, the order stays.
    """
    problem, best, first = space.problem, leaders.best, None
    is_named = problem.workload.software.launches is not None
    if is_named or frameworks.starts(best.strategy, best.plan_options):
        return leaders, ()
    limit_s = math.inf
    for asked in frameworks.problems:
        try:
            found = placer.best(
                placer.space(asked, space.choices), top=1, num_simulated=num_simulated
            )
        except InfeasibleError:
            continue
        if found.placed and found.best.estimate.step_time_s <= limit_s:
            first, limit_s = found.placed[0], found.best.estimate.step_time_s
    if first is None:
        return leaders, ()
    plan = placer.price(problem, first.candidate.strategy, first.candidate.plan_options)
    if not plan.estimate.fits:
        return leaders, ()
    first = replace(first, candidate=plan)
    return _led_by(first, leaders), _named(space, first, best)


def _led_by(first: Placed, leaders: Leaders) -> Leaders:
    """Return the leaders with ``first`` moved to the front."""
    others = [entry for entry in leaders.placed if entry.candidate.text != first.candidate.text]
    return replace(leaders, placed=(first, *others)[: len(leaders.placed)])


def _named(space: SearchSpace, first: Placed, fastest: Candidate) -> tuple[str, ...]:
    """Return the note on a faster plan that starts nowhere."""
    ahead = 1.0 - fastest.estimate.step_time_s / first.candidate.estimate.step_time_s
    if first.candidate.text == fastest.text or ahead <= 0.0:
        return ()
    asked = space.problem.workload.software.framework
    why = f"no file of {asked} starts it" if asked else "no framework starts it"
    return (f"ideal {fastest.text}: {ahead:.1%} faster, {why}",)


def _simplest(space: SearchSpace, leaders: Leaders, limit_s: float, starts: Starts) -> Found | None:
    """Return the simplest plan that starts, where it is simpler than the leader so far.

    Families that ask for more than a plan that starts are not priced again.
    """
    now, families = leaders.placed[0].found, leaders.result.families
    least = leaders.result.found[0].strategy.num_devices
    near = least_complexity(families)[families.column("bound_s") <= limit_s]
    numbers = np.bincount(near).cumsum()
    most = len(numbers) + MOST_MORE
    most = min(_complexity(now), most) if starts(now) else most
    first, tried = 1 + int(np.searchsorted(numbers, AT_ONCE)), 0
    for demands in range(max(min(first, most), 1), most + 1):
        known = search(space, within_s=limit_s, simpler_than=demands, among=families)
        if not known.is_complete:
            return None
        for found_demands, entries in groupby(known.found, _complexity):
            enough = [found for found in entries if found.strategy.num_devices >= least]
            for found in in_order_of_preference(enough) if found_demands >= tried else ():
                if starts(found):
                    return found
        tried = demands
    return None


def _complexity(found: Found) -> int:
    return int(complexity(stack([found.strategy]), found.plan_options)[0])


def _starting(leaders: Leaders, frameworks: Frameworks) -> Starts:
    """Return the test whether the requested framework, or else any framework, starts a plan.

    Where the files of the requested framework cannot express even the question, any plan passes.
    """
    problem = frameworks.problem
    if problem.workload.software.launches is None:
        return lambda found: frameworks.starts(found.strategy, found.plan_options)

    def is_written(found: Found) -> bool:
        return not rule_against(problem, found.strategy, found.plan_options)

    if any(map(is_written, leaders.result.found[:NUM_TRIED])):
        return is_written
    return lambda found: True


def _fastest_that_starts(
    space: SearchSpace, leaders: Leaders, frameworks: Frameworks, starts: Starts
) -> Found | None:
    """Return the best plan that the requested framework, or else any framework, starts.

    Each framework is searched as it is: its kernels, its memory. The plan also fits without them.
    """
    problem = space.problem
    if problem.workload.software.launches is not None:
        return next(filter(starts, leaders.result.found), None)
    first, limit_s = None, None
    for asked in frameworks.problems:
        try:
            result = search(SearchSpace(asked, space.choices), within_s=limit_s)
        except InfeasibleError:
            continue
        tried = [found for found in in_order_of_preference(result.found)[:NUM_TRIED]
                 if not rule_against(asked, found.strategy, found.plan_options)]  # fmt: skip
        prices = candidates(problem, [(found.strategy, found.plan_options) for found in tried])
        for found, price in zip(tried, prices, strict=True):
            if price.estimate.fits:
                first, limit_s = found, found.time_s
                break
    return first


def nothing_fits(problem: Problem, result: SearchResult) -> str:
    """Return the reason why no candidate is left, and the nearest change that could help."""
    system = problem.system
    if result.counts.refused[IDLE_ABOVE_CAP] and not math.isfinite(result.least_memory_bytes):
        least_devices = float(min(problem.device_numbers))
        return f"{above_caps(system, least_devices)}. {result.counts.summary}"
    what, counts = f"no plan for {problem.model.name} fits {system.name}", result.counts
    if counts.over_host:
        return (
            f"{what}: the leanest of those that devices would hold keeps "
            f"{format_bytes(counts.least_host_bytes)} for each device on a host that has "
            f"{format_bytes(host_of(problem).capacity_bytes)}. Host memory is the limit: it takes "
            f"more of it, more devices, or an optimizer with less state. {counts.summary}"
        )
    # Families that cannot fit have only bounds.
    capacity = system.chip.main_memory.capacity_bytes
    known = (result.least_memory_bytes, counts.least_device_bytes)
    least = min((size for size in known if size > capacity), default=known[0])
    if not math.isfinite(least):
        refused = [f"{name} ({count:,})" for name, count in counts.refused.most_common(3)]
        why = "the options that are given leave no strategy"
        if refused:
            why = f"rules refuse every strategy, most of them {', '.join(refused)}"
        return f"{what}: {why}. {counts.summary}"
    return (
        f"{what}: the leanest needs {format_bytes(least)} on a device of {format_bytes(capacity)}. "
        "Device memory is the limit: it takes at least "
        f"{math.ceil(least / capacity * system.num_alive)} such devices, a shorter sequence, or an "
        f"optimizer with less state. {counts.summary}"
    )
