"""The facade: each verb joins the public pieces into one call and returns plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.evidence import best_measured_mfu
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.plans import (
    Candidate,
    Coverage,
    Estimate,
    Plan,
    Replan,
    Robustness,
    Segment,
    WhyNot,
)
from meshwright.pricing.estimates import figures
from meshwright.pricing.network import crosses_data_parallel_network
from meshwright.pricing.price import price_one
from meshwright.pricing.problem import Problem
from meshwright.report.explain import Explanation
from meshwright.search.choice import in_order_of_preference
from meshwright.search.exhaustive import Found, Progress, SearchResult, search
from meshwright.search.families import DATA_PARALLEL_ONLY, SearchSpace
from meshwright.search.neighbours import leaner, missing_features
from meshwright.search.pareto import pareto_front
from meshwright.search.robustness import NUM_DRAWS, robustness
from meshwright.search.sensitivity import Change, changes
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import OptimizerPreset, Training
from meshwright.strategy.axes import all_refusals
from meshwright.strategy.rules import Case, Refusal
from meshwright.strategy.space import Choices
from meshwright.strategy.strategy import (
    Strategy,
    StrategyColumns,
    Structure,
    plan_string,
    stack,
)

FIDELITY = "closed_form"
SHAKEN = 8
"""Leading candidates that are priced again under perturbed constants."""


def default_optimizer(system: SystemSpec) -> OptimizerPreset:
    """Return the optimizer preset that users of a system would expect.

    Wafer studies count 12 bytes for each parameter; elsewhere Megatron's mixed-precision Adam.
    """
    return load_optimizer("temp-12" if system.chip.family == "temp-die" else "megatron-adam")


def training(system: SystemSpec | str, **fields: Any) -> Training:
    """Return a training workload; ``optimizer`` is a preset, its name, or the system's default."""
    spec = load_system(system) if isinstance(system, str) else system
    optimizer = fields.pop("optimizer", None) or default_optimizer(spec)
    if isinstance(optimizer, str):
        optimizer = load_optimizer(optimizer)
    return Training(optimizer=optimizer, **fields)


def make_problem(
    model: ModelSpec | str, system: SystemSpec | str, workload: Training, calibration: str
) -> Problem:
    """Return the question with its specifications loaded."""
    model_spec = load_model(model) if isinstance(model, str) else model
    system_spec = load_system(system) if isinstance(system, str) else system
    longest = model_spec.max_sequence_length
    if model_spec.learned_positions and workload.sequence_length > model_spec.learned_positions:
        fault = Fault(
            "sequence_length",
            f"{workload.sequence_length} tokens, but {model_spec.name} has learned positions for "
            f"{model_spec.learned_positions}",
            f"at most {longest or model_spec.learned_positions}",
        )
        raise SpecError(fault)
    constants = load_calibration(system_spec.chip.family, calibration)
    return Problem(model_spec, system_spec, workload, constants)


def plan(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    *,
    allowed: Mapping[str, Sequence[object]] | None = None,
    top: int = 5,
    calibration: str = "uncalibrated",
    progress: Progress | None = None,
    command: str = "",
) -> Plan:
    """Return the best plan of the whole space, with its price and the proof.

    Parameters
    ----------
    allowed
        What is fixed: values of a degree or of a structural choice by name, such as
        ``{"tp": [8], "recompute": ["full"]}``.
    top
        Candidates whose order is proven; they come back as the best and its runners-up.
    progress
        Called after each block of the search.

    Raises
    ------
    SpecError, UnknownNameError
        Bad input.
    InfeasibleError
        Nothing fits; carries the counts and the least change that would.
    """
    problem = make_problem(model, system, workload, calibration)
    choices = Choices({name: tuple(values) for name, values in (allowed or {}).items()})
    watch = uses_streams if problem.has_grid else None
    result = search(SearchSpace(problem, choices), top=top, progress=progress, watch=watch)
    if not result.found:
        raise InfeasibleError(nothing_fits(problem, result))
    chosen = distinct(in_order_of_preference(result.found))[: max(top, SHAKEN)]
    verdict = robustness(problem, chosen[:SHAKEN])
    candidates = [candidate(problem, f.strategy, f.structure) for f in chosen[:top]]
    best = candidates[0]
    interval = verdict.interval_s(0)
    best = replace(best, estimate=replace(best.estimate, interval_s=interval))
    regret = verdict.largest_regret
    safest = int(regret.argmin())
    return Plan(
        model=problem.model,
        system=problem.system,
        workload=workload,
        calibration=calibration,
        best=best,
        fastest_s=result.found[0].time_s,
        runners_up=tuple(candidates[1:]),
        coverage=coverage(result),
        robustness=Robustness(
            num_draws=NUM_DRAWS,
            best_stays_first_fraction=float(verdict.wins[0]),
            least_regret=plan_string(chosen[safest].strategy, chosen[safest].structure),
            least_regret_fraction=float(regret[safest]),
            ties=tuple(
                plan_string(f.strategy, f.structure)
                for f, share in zip(chosen, verdict.wins.tolist(), strict=False)
                if share >= 0.05
            ),
        ),
        why_not=why_no_streams(problem, best, result),
        warnings=tuple(warnings(problem, best)),
        version=version(),
        command=command,
    )


def uses_streams(columns: StrategyColumns) -> Any:
    """Return which candidates stream tensors between neighbours."""
    return columns.tatp > 1


def why_no_streams(problem: Problem, best: Candidate, result: SearchResult) -> tuple[WhyNot, ...]:
    """Return the best plan with tensor streams, where there is one and the chosen one has none."""
    if best.strategy.tatp > 1 or not result.watched:
        return ()
    other = result.watched[0]
    return (
        compared(
            "tensor streams (tatp)", best, candidate(problem, other.strategy, other.structure)
        ),
    )


def compared(question: str, best: Candidate, other: Candidate) -> WhyNot:
    """Return how another candidate compares with the best one, part by part."""
    ours, theirs = best.estimate, other.estimate
    longer = {
        name: seconds - ours.time_parts_s[name]
        for name, seconds in theirs.time_parts_s.items()
        if seconds > ours.time_parts_s[name]
    }
    because = dict(sorted(longer.items(), key=lambda item: -item[1]))
    return WhyNot(question, other, theirs.step_time_s / ours.step_time_s - 1.0, because)


def estimate(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    strategy: Strategy,
    structure: Structure,
    *,
    calibration: str = "uncalibrated",
    command: str = "",
) -> Plan:
    """Return the price of one given strategy.

    Raises
    ------
    SpecError
        The strategy is illegal: names each rule it breaks and the nearest legal change.
    """
    problem = make_problem(model, system, workload, calibration)
    faults = check_problem(problem, strategy, structure)
    if faults:
        raise SpecError(faults, origin=plan_string(strategy, structure))
    only = candidate(problem, strategy, structure)
    return Plan(
        model=problem.model,
        system=problem.system,
        workload=workload,
        calibration=calibration,
        best=only,
        fastest_s=only.estimate.step_time_s,
        warnings=tuple(warnings(problem, only)),
        version=version(),
        command=command,
    )


def check(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    strategy: Strategy,
    structure: Structure,
) -> list[Fault]:
    """Return every rule that a strategy breaks, each with the nearest legal change."""
    problem = make_problem(model, system, workload, "uncalibrated")
    return check_problem(problem, strategy, structure)


def check_problem(problem: Problem, strategy: Strategy, structure: Structure) -> list[Fault]:
    """Return every rule that a strategy breaks under a problem."""
    chip = problem.system.chip
    columns = stack([strategy])
    tile = {"tile_rows": chip.tile_rows, "tile_columns": chip.tile_columns}
    found: list[Refusal] = all_refusals(problem.model, problem.workload, columns, structure, **tile)
    case = Case(problem.model, problem.workload, structure, columns, **tile)
    faults = [
        Fault(refusal.name, refusal.text(case, 0), refusal.rule.nearest_legal_fix(case))
        for refusal in found
    ]
    network = problem.network(structure.axis_order, columns)
    if bool(crosses_data_parallel_network(network)[0]):
        message = "an axis other than dp crosses a network that carries dp only"
        faults.append(Fault(DATA_PARALLEL_ONLY, message, "smaller tp, cp, pp or ep"))
    given = problem.system.num_alive
    if strategy.num_devices > given:
        used = f"{strategy.num_devices:.0f}"
        message = f"the degrees multiply to {used}, but {problem.system.name} has {given} devices"
        faults.insert(0, Fault("devices", message, f"a product of at most {given}"))
    return faults


def candidate(problem: Problem, strategy: Strategy, structure: Structure) -> Candidate:
    """Return one strategy with its full price."""
    known = figures(problem, price_one(problem, structure, strategy))
    price = Estimate(
        fidelity=FIDELITY,
        is_calibrated=problem.calibration.is_calibrated,
        step_time_s=known.step_time_s,
        time_parts_s=known.time_parts_s,
        memory_bytes=known.memory_bytes,
        memory_parts_bytes=known.memory_parts_bytes,
        fullest_stage=known.fullest_stage,
        memory_capacity_bytes=problem.system.chip.main_memory.capacity_bytes,
        host_bytes_per_device=known.host_bytes,
        num_devices_used=known.num_devices,
        num_micro_batches=known.num_micro_batches,
        tokens_per_s=known.tokens_per_s,
        tokens_per_s_per_device=known.tokens_per_s / known.num_devices,
        mfu_causal=known.mfu_causal,
        mfu_full=known.mfu_full,
        hfu=known.hfu,
        energy_j=known.energy_j,
        cost_usd=known.cost_usd,
    )
    last = problem.model.num_layers - 1
    return Candidate((Segment(0, last, strategy, structure),), price)


def export(plan: Plan, target: str, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write launch files for a target, whole or not at all; return what was written."""
    from meshwright.exporters import write

    return write(plan, target, Path(folder), force=force)


def problem_of(plan: Plan) -> Problem:
    """Return the question that a plan answers."""
    return make_problem(plan.model, plan.system, plan.workload, plan.calibration)


def what_would_change(plan: Plan) -> list[Change]:
    """Return how the step time of the same plan changes on a better system."""
    return changes(problem_of(plan), plan.best.strategy, plan.best.structure)


def what_would_fit(plan: Plan) -> list[Candidate]:
    """Return the smallest single changes of a plan that fit, nearest first: at most three."""
    problem, found = problem_of(plan), []
    for strategy, structure in leaner(plan.best.strategy, plan.best.structure):
        if not check_problem(problem, strategy, structure):
            entry = candidate(problem, strategy, structure)
            if entry.estimate.fits:
                found.append(entry)
    return sorted(found, key=lambda entry: entry.estimate.step_time_s)[:3]


def explain(plan: Plan) -> Explanation:
    """Return why this plan: what limits it, what beats what, and what is not possible."""
    problem, price = problem_of(plan), plan.best.estimate
    whys = [compared(f"the runner-up {n}", plan.best, c) for n, c in enumerate(plan.runners_up, 2)]
    impossible: dict[str, str] = {}
    for name, choice, values in missing_features(problem, plan.best.strategy, plan.best.structure):
        try:
            result = search(SearchSpace(problem, Choices({choice: values})), top=1)
        except InfeasibleError as error:
            impossible[name] = str(error)
            continue
        if result.found:
            first = result.found[0]
            other = candidate(problem, first.strategy, first.structure)
            whys.append(compared(name, plan.best, other))
        else:
            impossible[name] = result.counts.summary
    shares = {name: t / price.step_time_s for name, t in price.time_parts_s.items()}
    return Explanation(shares, what_would_change(plan), whys, impossible)


def front(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    *,
    allowed: Mapping[str, Sequence[object]] | None = None,
    calibration: str = "uncalibrated",
    progress: Progress | None = None,
) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return the plans that no other one beats in time, memory, energy and money at once.

    Also returns the objectives that had to be left out, because a price or power is not known.
    """
    problem = make_problem(model, system, workload, calibration)
    choices = Choices({name: tuple(values) for name, values in (allowed or {}).items()})
    found = pareto_front(SearchSpace(problem, choices), progress=progress)
    if not found.found:
        raise InfeasibleError(f"no plan for {problem.model.name} fits {problem.system.name}")
    return [candidate(problem, f.strategy, f.structure) for f in found.found], found.unknown


def replan(before: Plan, *, without: int, progress: Progress | None = None) -> Replan:
    """Return the plan for the devices that are left after some were lost, and what moves.

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
        before.model, smaller, before.workload, calibration=before.calibration, progress=progress
    )
    old, new = before.best, after.best
    held = held_bytes(new.estimate)
    stays = all(getattr(old.strategy, n) == getattr(new.strategy, n) for n in _PLACE)
    moved = max(0.0, held - held_bytes(old.estimate)) if stays else held
    return Replan(
        plan=after,
        num_lost=without,
        throughput_fraction=new.estimate.tokens_per_s / old.estimate.tokens_per_s,
        changed=tuple(differences(old, new)),
        moved_bytes_per_device=moved,
    )


_PLACE = ("tp", "tatp", "pp", "num_virtual_stages", "ep", "etp")


def held_bytes(price: Estimate) -> float:
    """Return the bytes of weights and optimizer state on the fullest device and its host."""
    parts = price.memory_parts_bytes
    return parts["weights_bytes"] + parts["optimizer_bytes"] + price.host_bytes_per_device


def differences(old: Candidate, new: Candidate) -> list[str]:
    """Return the degrees and choices in which two candidates differ."""
    pairs = [(vars(old.strategy), vars(new.strategy)), (vars(old.structure), vars(new.structure))]
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


def distinct(found: Sequence[Found]) -> list[Found]:
    """Return candidates without those that read the same as one before."""
    seen: set[str] = set()
    kept = []
    for entry in found:
        text = plan_string(entry.strategy, entry.structure)
        if text not in seen:
            seen.add(text)
            kept.append(entry)
    return kept


def coverage(result: SearchResult) -> Coverage:
    """Return how the space was covered."""
    counts = result.counts
    return Coverage(
        num_candidates=counts.total,
        num_priced=counts.priced,
        num_refused={name: n for name, n in sorted(counts.refused.items()) if n},
        num_over_memory=counts.does_not_fit + counts.pruned_by_memory,
        num_beyond_bound=counts.pruned_by_bound,
        num_dominated=counts.dominated,
        is_complete=result.is_complete,
        lower_bound_s=result.lower_bound_s,
        gap=result.gap,
        elapsed_s=result.elapsed_s,
    )


def warnings(problem: Problem, best: Candidate) -> list[str]:
    """Return what the user should know before trusting a candidate."""
    notes = []
    work, price = problem.workload, best.estimate
    if not price.is_calibrated:
        notes.append("uncalibrated: constants come from data sheets and public sources")
    limit = best_measured_mfu(problem.system.chip.name, work.precision.matmul)
    if limit is not None and price.mfu_full > limit:
        notes.append(
            f"outside the evidence: MFU {price.mfu_full:.0%} is above the best reported for "
            f"{problem.system.chip.name} in {work.precision.matmul} ({limit:.0%})"
        )
    unused = problem.system.num_alive - price.num_devices_used
    if unused:
        notes.append(f"{unused} of {problem.system.num_alive} devices stay idle")
    sequences = price.num_micro_batches * best.strategy.micro_batch_size * best.strategy.dp
    padding = sequences / work.global_batch_size - 1.0
    if padding > 0:
        notes.append(
            f"the batch does not divide evenly: the fullest rank has {padding:.1%} more sequences "
            "than the mean"
        )
    return notes


def nothing_fits(problem: Problem, result: SearchResult) -> str:
    """Return why no candidate is left, in one message."""
    capacity = problem.system.chip.main_memory.capacity_bytes / 2**30
    return (
        f"no plan for {problem.model.name} fits {problem.system.name} "
        f"({problem.system.num_alive} devices of {capacity:.0f} GiB). {result.counts.summary}. "
        "Use more devices, a smaller micro-batch or sequence, or an optimizer with less state."
    )


def load_plan(path: str | Path) -> Plan:
    """Return the plan of a file."""
    from meshwright import plans

    return plans.load(Path(path))


def version() -> str:
    """Return the version of this package."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("meshwright")
    except PackageNotFoundError:
        return "source"
