"""The best plan of the whole space, the Pareto front, and a plan for the devices that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.audit.laws import lawful
from meshwright.base.arrays import FloatArray, column
from meshwright.base.cluster import HERE, Cluster
from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.base.registry import version
from meshwright.base.units import format_seconds
from meshwright.catalog.calibration import DEFAULT
from meshwright.cost.energy import step_energy_parts_j, total_energy_j
from meshwright.cost.money import step_cost_usd
from meshwright.cost.problem import Problem
from meshwright.search.exhaustive import TIE, Found, Progress
from meshwright.search.leading import dominated_by, front_of
from meshwright.search.robustness import DrawnTimes, with_plan_errors
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import plan_string, row
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import Candidate, Estimate, Front, Plan, Replan, Robustness
from meshwright.train.families import ROUNDING, PricedBlock
from meshwright.train.launched import Frameworks
from meshwright.train.leading import (
    CLOSED_FORM,
    NUM_SIMULATED,
    Leaders,
    Placer,
    lead,
    nothing_fits,
)
from meshwright.train.measured.factors import PLAN_ERROR, Factors
from meshwright.train.measured.trials import trials_of, with_measured_interval
from meshwright.train.price import candidates, compared, facts_of, warnings
from meshwright.train.question import check_fixed, make_problem, switched_on
from meshwright.train.robustness import NUM_DRAWS, robustness
from meshwright.train.search import search
from meshwright.train.space import SearchSpace

NUM_PERTURBED = 8
"""Leading candidates that are priced again under perturbed constants."""


def plan(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    *,
    allowed: Mapping[str, Sequence[object]] | None = None,
    top: int = 5,
    calibration: str = DEFAULT,
    factors: Factors | None = None,
    per_operator: bool = False,
    num_simulated: int = NUM_SIMULATED,
    prefers_simple: bool = True,
    placer: Placer = CLOSED_FORM,
    cluster: Cluster = HERE,
    progress: Progress | None = None,
    command: str = "",
) -> Plan:
    """Return the best plan of the whole space, with its price and the proof.

    Parameters
    ----------
    allowed
        Fixed values of a degree or of a structural choice by name, such as
        ``{"tp": [8], "recompute": ["full"]}``.
    top
        Candidates with a proven order; they come back as the best and its runners-up.
    factors
        Factors of the resources from measured jobs (:func:`learn`): they adjust the constants.
    per_operator
        Whether to look for a strategy for each group of operators as well (grids only).
    num_simulated
        Leading candidates that are simulated where ranks are placed; that decides their order.
    prefers_simple
        Whether a simpler plan leads that is slower by no more than plans are wrong against each
        other (:func:`lead`); without it the fastest leads, as where designs are compared.
    placer
        Placer of candidates on their devices, where ranks are placed.
    cluster
        Workers that share the search; the plan and its proof are those of one process.
    progress
        Called after each block of the search.

    Raises
    ------
    SpecError, UnknownNameError
        Bad input.
    UnsupportedError
        Strategies for each operator on a system without them.
    InfeasibleError
        Nothing fits; carries the counts and the nearest change that would fit.
    UnlawfulError
        The plan breaks a law of conservation.
    """
    problem = make_problem(model, system, switched_on(workload), calibration, factors)
    check_fixed(problem, allowed or {})
    if per_operator:
        placer.check_operators(problem)
    choices = Choices({name: tuple(values) for name, values in (allowed or {}).items()})
    space = replace(placer.space(problem, choices), cluster=cluster)
    leaders, note = lead(
        space, placer, top=top, simplest=prefers_simple,
        num_simulated=num_simulated, progress=progress,
    )  # fmt: skip
    if not leaders.placed:
        why = nothing_fits(problem, leaders.result)
        raise InfeasibleError(f"{why}{_to_let_go(problem, choices)}")
    found = _answer(problem, placer, calibration, factors, leaders)
    found = replace(found, warnings=(*note, *found.warnings))
    found = replace(found, command=command)
    lawful(found, facts_of(found))
    return _with_operators(space, placer, found, allowed, progress) if per_operator else found


def _to_let_go(problem: Problem, choices: Choices) -> str:
    """Return the first fixed choice that keeps every plan from fitting, and the plan without it.

    Empty: there is none. Recomputation comes first: it changes neither devices nor their work.
    """
    for name in sorted(choices.allowed, key=lambda name: name != "recompute"):
        fewer = {other: values for other, values in choices.allowed.items() if other != name}
        leaders, _ = lead(SearchSpace(problem, Choices(fewer)), CLOSED_FORM)
        if leaders.placed:
            return f". With another {name.replace('_', ' ')} it fits: {leaders.best.text}"
    return ""


def _with_operators(
    space: SearchSpace, placer: Placer, found: Plan,
    allowed: Mapping[str, Sequence[object]] | None, progress: Progress | None,
) -> Plan:  # fmt: skip
    """Add a strategy for each operator to a plan; after an interrupt the plan stays without."""
    try:
        operators = placer.operator_plan(
            space.problem, found.best, allowed=allowed, cluster=space.cluster, progress=progress
        )
    except KeyboardInterrupt:
        note = "interrupted: the search for a strategy for each operator was not finished"
        return replace(found, warnings=(*found.warnings, note))
    uniform_s = found.best.estimate.step_time_s
    if operators is not None and operators.step_time_s <= uniform_s * (1.0 + ROUNDING):
        return replace(found, operators=operators)
    takes = "fits" if operators is None else f"takes less than {format_seconds(uniform_s)}"
    note = f"one strategy for all operators: no assignment of strategies to them {takes}"
    return replace(found, warnings=(*found.warnings, note))


def _answer(
    problem: Problem, placer: Placer, calibration: str, factors: Factors | None, leaders: Leaders
) -> Plan:
    """Return the plan that a search leads to."""
    placed = leaders.placed
    chosen = [*(entry.found for entry in placed), *leaders.others][:NUM_PERTURBED]
    drawn = robustness(problem, chosen, factors=factors)
    candidates = [entry.candidate for entry in placed]
    if factors is not None:
        candidates = [with_measured_interval(problem, entry, factors) for entry in candidates]
    best = candidates[0]
    # Constants are perturbed without contention.
    placement = best.placement
    slower = best.estimate.step_time_s / placement.closed_form_s if placement else 1.0
    is_asked = best.strategy.tatp <= 1 and problem.has_grid and leaders.coverage.is_complete
    streams = _best_of_streams(placer, leaders) if is_asked else None
    why_not = () if streams is None else (compared("tensor streams (tatp)", best, streams),)
    return Plan(
        model=problem.model,
        system=problem.system,
        workload=problem.workload,
        calibration=calibration,
        best=best,
        fastest_s=leaders.fastest_s,
        runners_up=tuple(candidates[1:]),
        coverage=leaders.coverage,
        robustness=_robustness(chosen, drawn, slower, len(candidates)),
        why_not=why_not,
        factors=factors,
        warnings=(*_changed_order(candidates, leaders), *warnings(problem, best)),
        version=version(),
    )


def _best_of_streams(placer: Placer, leaders: Leaders) -> Candidate | None:
    """Return the best plan with tensor streams: the fastest of all plans, where that has them."""
    every, fastest = leaders.result.families, leaders.fastest
    if fastest is not None and fastest.candidate.strategy.tatp > 1:
        return fastest.candidate
    choices = Choices({**every.space.choices.allowed, "tatp": every.streams})
    other = placer.best(replace(every.space, choices=choices), among=every)
    return other.best if other.placed else None


def _changed_order(candidates: Sequence[Candidate], leaders: Leaders) -> list[str]:
    """Return a note if simulation prefers another plan than the price does; empty: it does not."""
    fastest = () if leaders.fastest is None else (leaders.fastest.candidate,)
    known = [entry for entry in (*candidates, *fastest) if entry.simulated_s is not None]
    if not known or known[0] is not candidates[0]:
        return []
    best, priced = known[0], min(known, key=lambda entry: entry.estimate.step_time_s)
    first_s, other_s = best.estimate.step_time_s, priced.estimate.step_time_s
    if first_s <= other_s * (1.0 + TIE):
        return []
    takes = format_seconds(best.simulated_s or 0.0), format_seconds(priced.simulated_s or 0.0)
    return [
        f"the simulation changes the order: {priced.text} is priced at {format_seconds(other_s)} "
        f"and takes {takes[1]}, the plan at {format_seconds(first_s)} and takes {takes[0]}"
    ]


def _robustness(
    chosen: Sequence[Found], drawn: DrawnTimes, slower: float, num_shown: int
) -> Robustness:
    """Return the robustness of the chosen candidates under perturbed constants, shown ones first.

    Parameters
    ----------
    slower
        Time of the best one with contention over its time without [1].
    """
    low_s, high_s = drawn.interval_s(0)
    regret = drawn.largest_regret
    safest = int(regret.argmin())
    texts = [plan_string(f.strategy, f.plan_options) for f in chosen]
    logs = np.log(drawn.times_s[:num_shown])
    return Robustness(
        num_draws=NUM_DRAWS,
        best_stays_first_fraction=drawn.stays_first(0),
        least_regret=texts[safest],
        least_regret_fraction=float(regret[safest]),
        ties=tuple(t for t, w in zip(texts, drawn.wins.tolist(), strict=True) if w >= 0.05),
        step_time_s=(low_s * slower, high_s * slower),
        trials=trials_of(texts[:num_shown], with_plan_errors(logs, PLAN_ERROR)),
    )


def front(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    *,
    allowed: Mapping[str, Sequence[object]] | None = None,
    calibration: str = DEFAULT,
    factors: Factors | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> Front:
    """Return the plans that no other one beats in time, memory, energy and money at once."""
    problem = make_problem(model, system, switched_on(workload), calibration, factors)
    check_fixed(problem, allowed or {})
    choices = Choices({name: tuple(values) for name, values in (allowed or {}).items()})
    found = pareto_front(SearchSpace(problem, choices), progress=progress)
    if not found.found:
        raise InfeasibleError(f"no plan for {problem.model.name} fits {problem.system.name}")
    return Front(
        problem.model,
        problem.system,
        problem.workload,
        tuple(
            Frameworks(problem.sharing(), candidates).added(
                candidates(problem, [(one.strategy, one.plan_options) for one in found.found])
            )
        ),
        tuple(found.unknown),
        version=version(),
        command=command,
    )


def replan(
    before: Plan, *, without: int, placer: Placer = CLOSED_FORM, progress: Progress | None = None
) -> Replan:
    """Return the plan for the devices that are left after a loss, and the state that moves.

    The lost devices are taken from the end. A device that keeps its place in tp, tatp, pp and ep
    keeps its weights and moves only the part of sharded state that grows; otherwise it loads all.
    """
    system = before.system
    if not 0 < without < system.num_alive:
        message = f"{without} lost of {system.num_alive} devices"
        raise SpecError(Fault("--without", message, f"1 to {system.num_alive - 1}"))
    alive = [d for d in range(system.num_devices) if d not in system.dead_devices]
    dead = tuple(sorted({*system.dead_devices, *alive[-without:]}))
    smaller = system.model_copy(update={"dead_devices": dead})
    after = plan(
        before.model, smaller, before.workload, calibration=before.calibration,
        factors=before.factors, placer=placer, progress=progress,
    )  # fmt: skip
    old, new = before.best, after.best
    held = held_parts_bytes(new.estimate)
    if all(getattr(old.strategy, name) == getattr(new.strategy, name) for name in _PLACE):
        had = held_parts_bytes(old.estimate)
        held = tuple(max(0.0, now - then) for now, then in zip(held, had, strict=True))
    return Replan(
        plan=after,
        num_lost=without,
        throughput_fraction=new.estimate.tokens_per_s / old.estimate.tokens_per_s,
        changed=tuple(differences(old, new)),
        moved_bytes_per_device=sum(held),
    )


_PLACE = ("tp", "tatp", "pp", "num_virtual_stages", "ep", "etp")


def held_parts_bytes(price: Estimate) -> tuple[float, ...]:
    """Return the bytes of weights and of optimizer state on the fullest device and its host."""
    parts = price.memory_parts_bytes
    return parts["weights_bytes"], parts["states_bytes"] + price.host_bytes_per_device


def differences(old: Candidate, new: Candidate) -> list[str]:
    """Return the degrees and choices in which two candidates differ."""
    pairs = [
        (vars(old.strategy), vars(new.strategy)),
        (vars(old.plan_options), vars(new.plan_options)),
    ]
    return [
        f"{name}: {_shown(before[name])} to {_shown(after[name])}"
        for before, after in pairs
        for name in before
        if before[name] != after[name]
    ]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}"
    return " ".join(value) if isinstance(value, tuple) else str(value)


OBJECTIVES = ("step_time_s", "memory_bytes", "energy_j", "cost_usd")


@dataclass
class ParetoFront:
    """Candidates that nothing found so far beats in every respect."""

    problem: Problem
    values: FloatArray = field(default_factory=lambda: np.empty((0, len(OBJECTIVES))))
    """Values of shape (candidates, objectives); an objective that is not known is 0 for all."""
    found: list[Found] = field(default_factory=list)
    unknown: tuple[str, ...] = ()
    """Objectives left out, because a price or a power figure is missing."""

    def visit(self, block: PricedBlock) -> None:
        """Take a priced block into account."""
        parts_j = step_energy_parts_j(
            self.problem, block.plan_options, block.strategy, block.price_with_mean, block.time
        )
        step_s = block.time.total_s
        energy = total_energy_j(parts_j, step_s)
        cost = step_cost_usd(self.problem.system.chip, step_s, block.strategy.num_devices)
        columns = [step_s, block.memory_bytes, energy, cost]
        rows = len(block.memory_bytes)
        known = [np.broadcast_to(column, (rows,)) for column in columns]
        self.unknown = tuple(
            name for name, c in zip(OBJECTIVES, known, strict=True) if np.isnan(c).any()
        )
        values = np.stack([np.where(np.isnan(c), 0.0, c) for c in known], axis=1)
        fresh = np.flatnonzero(~dominated_by(values, self.values))
        fresh = fresh[front_of(values[fresh])]
        if not len(fresh):
            return
        keep = ~dominated_by(self.values, values[fresh])
        self.values = np.vstack([self.values[keep], values[fresh]])
        self.found = [f for f, kept in zip(self.found, keep.tolist(), strict=True) if kept]
        self.found += [_found(block, int(index)) for index in fresh]


def pareto_front(space: SearchSpace, *, progress: Progress | None = None) -> ParetoFront:
    """Return the front of the whole space; every candidate that fits is priced."""
    front = ParetoFront(space.problem)
    search(space, prune=False, progress=progress, visit=front.visit)
    order = np.lexsort(front.values.T[::-1])
    front.found = [front.found[index] for index in order]
    front.values = front.values[order]
    return front


def _found(block: PricedBlock, index: int) -> Found:
    table, family = block.families, int(block.family_rows[index])
    own = table.option_sets[int(table.option_set_of[family])]
    plan_options = replace(
        own,
        zero_stage=block.plan_options.zero_stage,
        reshard_after_forward=block.plan_options.reshard_after_forward,
        offload=block.plan_options.offload,
    )
    time_s, memory = column(block.time.total_s)[index], block.memory_bytes[index]
    return Found(row(block.strategy, index), plan_options, float(time_s), float(memory))
