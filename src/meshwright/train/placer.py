"""Leading candidates of a space, placed on their devices where ranks are placed.

Each verb takes a :class:`Placer` of strategies on devices, so this room knows no grids of devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.audit.laws import lawful
from meshwright.base.errors import InfeasibleError, SpecError, UnsupportedError
from meshwright.base.registry import version
from meshwright.base.units import format_bytes
from meshwright.catalog.calibration import DEFAULT
from meshwright.cost.energy import IDLE_ABOVE_CAP, idles_above_cap
from meshwright.cost.memory import host_of
from meshwright.cost.problem import Problem
from meshwright.search.exhaustive import Coverage, Found, Progress
from meshwright.search.leading import distinct, in_order_of_preference
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import PlanOptions, Strategy, plan_string
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import Candidate, OperatorPlan, Plan
from meshwright.train.audited import facts_of
from meshwright.train.families import AllFamilies
from meshwright.train.measured.factors import PLAN_ERROR, Factors
from meshwright.train.measured.trials import with_measured_interval
from meshwright.train.price import above_caps, candidate, warnings
from meshwright.train.question import check_problem, make_problem
from meshwright.train.search import SearchResult, fewer_devices, search
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
        placed = [Placed(f, candidate(problem, f.strategy, f.plan_options)) for f in found[:top]]
        fastest = None
        if placed:
            first = result.found[0]
            fastest = Placed(first, candidate(problem, first.strategy, first.plan_options))
        return Leaders(result, tuple(placed), tuple(found[top:]), result.coverage, fastest)

    def price(self, problem: Problem, strategy: Strategy, plan_options: PlanOptions) -> Candidate:
        """Return one strategy with its final price."""
        return candidate(problem, strategy, plan_options)

    def check_operators(self, problem: Problem) -> None:
        """Refuse a problem that cannot have a strategy for each operator.

        Raises
        ------
        UnsupportedError
            Always, on this placer.
        """
        raise UnsupportedError("a strategy for each operator needs a grid of devices")

    def operator_plan(
        self, problem: Problem, *,
        allowed: Mapping[str, Sequence[object]] | None = None, progress: Progress | None = None,
    ) -> OperatorPlan | None:  # fmt: skip
        """Return the best plan with a strategy for each operator; None where nothing fits."""
        return None


CLOSED_FORM = Placer()


def estimate(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    strategy: Strategy,
    plan_options: PlanOptions,
    *,
    calibration: str = DEFAULT,
    factors: Factors | None = None,
    command: str = "",
    placer: Placer = CLOSED_FORM,
    is_placed: bool = True,
) -> Plan:
    """Return the price of one given strategy.

    Parameters
    ----------
    factors
        Factors of the resources from measured jobs (:func:`learn`): they adjust the constants.
    placer
        Placer of the strategy on its devices, where ranks are placed.
    is_placed
        Whether to place the ranks; the memory does not depend on it.

    Raises
    ------
    SpecError
        The strategy is illegal: names each rule it breaks and the nearest legal change.
    InfeasibleError
        Its devices draw more than a power cap before they do anything.
    """
    problem = make_problem(model, system, workload, calibration, factors)
    faults = check_problem(problem, strategy, plan_options)
    if faults:
        raise SpecError(faults, origin=plan_string(strategy, plan_options))
    least_devices = float(problem.least_devices(strategy.num_devices))
    if is_placed and idles_above_cap(problem.system, least_devices):
        raise InfeasibleError(above_caps(problem.system, least_devices))
    price = placer.price if is_placed else candidate
    only = price(problem, strategy, plan_options)
    if factors is not None:
        only = with_measured_interval(problem, only, factors)
    plan = Plan(
        model=problem.model,
        system=problem.system,
        workload=problem.workload,
        calibration=calibration,
        best=only,
        fastest_s=only.estimate.step_time_s,
        factors=factors,
        warnings=tuple(warnings(problem, only)),
        version=version(),
        command=command,
    )
    return lawful(plan, facts_of(plan))


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
