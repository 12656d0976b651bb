"""Price of given strategies, as candidates of a plan, with warnings and facts for the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from meshwright.audit.laws import gathered, lawful
from meshwright.audit.training import TrainingFacts
from meshwright.base.arrays import known_at, number_at
from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.base.registry import version
from meshwright.base.units import format_si, time_told
from meshwright.catalog.calibration import DEFAULT
from meshwright.catalog.systems import best_measured_mfu
from meshwright.cost.energy import idle_power_w, idles_above_cap
from meshwright.cost.memory import fullest, host_of
from meshwright.cost.money import goodput_fraction
from meshwright.cost.operator import stated_rate
from meshwright.cost.parts import TimePart
from meshwright.cost.pipeline import POSITIONS, micro_batches, recomputed_shares
from meshwright.cost.problem import RECURRENT_NOTE, UNCALIBRATED_NOTE, Problem
from meshwright.cost.step import Priced, price_columns, price_one
from meshwright.graph.flops import ScoreCount, StepFlops, step_flops
from meshwright.search.intervals import UNSEEN, interval
from meshwright.sharding.strategy import PlanOptions, Strategy, plan_string, stack
from meshwright.sharding.strategy import row as row_of
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import Candidate, Estimate, Placement, Plan, WhyNot
from meshwright.train.launched import Chosen, Frameworks, framework_of
from meshwright.train.measured.factors import PLAN_ERROR, Factors
from meshwright.train.measured.trials import with_measured_interval
from meshwright.train.question import check_problem, make_problem, under


def candidate(problem: Problem, strategy: Strategy, plan_options: PlanOptions) -> Candidate:
    """Return one strategy with its full price."""
    return candidates(problem, [(strategy, plan_options)])[0]


def candidates(problem: Problem, chosen: Chosen) -> list[Candidate]:
    """Return strategies with their full price; those of equal plan options are one column."""
    found: dict[int, Candidate] = {}
    for plan_options in dict.fromkeys(plan_options for _, plan_options in chosen):
        rows = [index for index, entry in enumerate(chosen) if entry[1] == plan_options]
        priced = price_columns(problem, plan_options, stack([chosen[index][0] for index in rows]))
        for row, index in enumerate(rows):
            found[index] = candidate_of(problem, chosen[index][0], priced, row)
    return [found[index] for index in range(len(chosen))]


def candidate_of(
    problem: Problem, strategy: Strategy, priced: Priced, row: int = 0,
    fidelity: str = "closed_form",
) -> Candidate:  # fmt: skip
    """Return one row of priced columns as a candidate of a plan."""
    return Candidate(strategy, priced.plan_options, estimate_of(problem, priced, row, fidelity))


def estimate_of(
    problem: Problem, priced: Priced, row: int = 0, fidelity: str = "closed_form"
) -> Estimate:
    """Return the price of one row of priced columns, with the figures that derive from it."""
    step, work, constants = priced.step, problem.workload, problem.nominal_calibration
    use, stage = fullest(step.memory)
    parts_s, num_devices = step.time.row(row), int(number_at(step.num_devices, row))
    step_s = time_told("a step", number_at(step.time.total_s, row), parts_s)
    tokens_per_s = work.tokens_per_step / step_s
    strategy = row_of(priced.strategy, row)
    mfu_causal, mfu_full, hfu = utilizations(
        problem, priced.plan_options, strategy, step_s, num_devices
    )
    energy_j = known_at(step.energy_j, row)
    power_w = None if energy_j is None else energy_j / step_s
    return Estimate(
        fidelity=fidelity,
        is_calibrated=problem.calibration.is_calibrated,
        step_time_s=step_s,
        time_parts_s=parts_s,
        memory_bytes=number_at(use.total_bytes, row),
        memory_parts_bytes=use.row(row),
        memory_most_bytes=use.most_row(row),
        fullest_stage=POSITIONS[int(number_at(stage, row))],
        memory_capacity_bytes=problem.system.chip.main_memory.capacity_bytes,
        host_bytes_per_device=number_at(step.host_bytes, row),
        num_devices_used=num_devices,
        num_micro_batches=int(number_at(priced.pipeline.num_micro_batches, row)),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / num_devices,
        mfu_causal=mfu_causal,
        mfu_full=mfu_full,
        hfu=hfu,
        energy_j=energy_j,
        energy_parts_j={name: number_at(part, row) for name, part in step.energy_parts_j.items()},
        power_w=power_w,
        tokens_per_j=tokens_per_s / power_w if power_w else None,
        cost_usd=known_at(step.cost_usd, row),
        goodput_fraction=goodput_fraction(
            num_devices,
            constants.mtbf_device_hours,
            constants.checkpoint_s,
            constants.restart_s,
        ),
        ramp_s=ramp_s(problem, priced.plan_options, strategy, step_s),
        interval_s=interval(problem, step_s, number_at(step.time[TimePart.LAUNCH], row) / step_s),
        host_capacity_bytes_per_device=None
        if not priced.plan_options.uses_host
        else host_of(problem).capacity_bytes,
    )


def ramp_s(problem: Problem, plan_options: PlanOptions, strategy: Strategy, step_s: float) -> float:
    """Return the time that the growth of the batch adds to the whole run [s].

    Steps of smaller batches have fewer micro-batches for the same bubble, synchronisation and
    update. Their closed form is relative to that of the whole batch.
    """
    work = problem.workload
    ramp, whole = work.batch_ramp, work.global_batch_size
    if ramp is None:
        return 0.0
    known: dict[float, float] = {}

    def closed_form_s(size: int) -> float:
        smaller = replace(
            problem,
            workload=work.model_copy(update={"global_batch_size": size, "batch_ramp": None}),
        )
        number = number_at(micro_batches(smaller, strategy))
        if number not in known:
            known[number] = number_at(price_one(smaller, plan_options, strategy).step.time.total_s)
        return known[number]

    sizes = ramp.sizes(whole)
    unit_s = step_s / closed_form_s(whole)
    each = ramp.sequences / len(sizes)
    return sum(each * (closed_form_s(size) * unit_s / size - step_s / whole) for size in sizes)


def utilizations(
    problem: Problem, plan_options: PlanOptions, strategy: Strategy, step_s: float, num_devices: int
) -> tuple[float, float, float]:
    """Return MFU with causal scores, MFU with full scores, and HFU, over the dense peak.

    The peak is that of the type of the linear layers.
    """
    work = problem.workload
    peak = stated_rate(problem.system.chip, work.precision.matmul) * num_devices * step_s

    def flops(count: ScoreCount) -> StepFlops:
        return step_flops(
            problem.graph,
            num_tokens=float(work.tokens_per_step),
            sequence_length=float(work.attended_length),
            count=count,
            recompute=str(plan_options.recompute),
            recompute_modules=plan_options.recompute_modules,
            stored_tensors=plan_options.stored_tensors,
            recomputed_shares=recomputed_shares(problem, plan_options, strategy),
            freezes_weights=work.optimizer.freezes_weights,
        )

    causal, full = flops(ScoreCount.CAUSAL), flops(ScoreCount.FULL)
    return float(causal.model / peak), float(full.model / peak), float(causal.hardware / peak)


def compared(question: str, best: Candidate, other: Candidate) -> WhyNot:
    """Return the comparison of another candidate with the best one, part by part."""
    ours, theirs = best.estimate, other.estimate
    longer = {
        name: seconds - ours.time_parts_s[name]
        for name, seconds in theirs.time_parts_s.items()
        if seconds > ours.time_parts_s[name]
    }
    because = dict(sorted(longer.items(), key=lambda item: -item[1]))
    slower = theirs.step_time_s / ours.step_time_s - 1.0
    if slower < 0.0:
        question += " (faster, yet less simple)" if slower >= -PLAN_ERROR else " (faster)"
    return WhyNot(question, other, slower, because)


def warnings(problem: Problem, best: Candidate) -> list[str]:
    """Return the warnings that a user needs before trusting a candidate."""
    notes = []
    if problem.num_experts:
        notes.append(
            f"the busiest expert rank carries {problem.workload.expert_load_imbalance:.2f} x the "
            "mean load, as stated"
        )
    if problem.model.recurrences:
        notes.append(RECURRENT_NOTE)
    work, price = problem.workload, best.estimate
    if not price.is_calibrated:
        spread, family = problem.nominal_calibration.spread, problem.system.chip.family
        wider = ""
        if spread is not None:
            times = max(t.factors.get(UNSEEN, 1.0) for t in (spread.slower, spread.faster))
            wider = (
                f"; no measured row has family {family!r}, so its interval reaches {times:.1f} "
                "times as far"
            )
        notes.append(UNCALIBRATED_NOTE + wider)
    limit = best_measured_mfu(problem.system.chip.name, work.precision.matmul)
    if limit is not None and price.mfu_full > limit:
        notes.append(
            f"outside the evidence: MFU {price.mfu_full:.0%}, attention counted in full as in "
            f"publications, is above the best reported for {problem.system.chip.name} in "
            f"{work.precision.matmul} ({limit:.0%})"
        )
    slowest, placement = problem.system.slowest_speed_factor, best.placement
    if slowest < 1.0 and placement is None:
        notes.append(f"the slowest device runs at {slowest:.0%} and sets the pace of all")
    if placement is not None and placement.work_shares:
        notes.append(shared_note(placement))
    islands = problem.islands
    if len(islands) > 1:
        notes.append(islands_note(islands))
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


def shared_note(placement: Placement) -> str:
    """Return the shares of the work of ranks, in words, where devices are slow or missing."""
    shares, hosted = placement.work_shares, []
    for device, count in Counter(placement.devices).items():
        if count > 1:
            hosted.append(f"device {device} hosts {count} ranks")
    replicas = ", ".join(map(str, placement.sequences))
    most = f"work is shared by speed: sequences {replicas} on the replicas, at most "
    return "; ".join([f"{most}{max(shares) - 1.0:.1%} more than an equal split on a rank", *hosted])


def islands_note(islands: Sequence[Sequence[int]]) -> str:
    """Return the devices that reach each other on a cut grid, and those of plans, in words."""
    parts = ", ".join(f"{len(part)} ({_ranges(part)})" for part in islands)
    return (
        f"faults cut the grid into {len(islands)} islands of {parts} devices: plans are on the "
        "first one"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text: ``0-3, 8``."""
    firsts = [n for n in numbers if n - 1 not in numbers]
    lasts = [n for n in numbers if n + 1 not in numbers]
    pairs = zip(firsts, lasts, strict=True)
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in pairs)


def above_caps(system: SystemSpec, num_devices: float) -> str:
    """Return the reason why devices cannot run below their power caps, and their least power."""
    idle_w = float(idle_power_w(system, num_devices))
    own_w = system.chip.idle_power_w or 0.0
    caps = [
        f"{what} of {format_si(cap, 'W')}"
        for what, cap, least_w in (
            ("the power cap", system.max_power_w, idle_w),
            ("the power cap of a device", system.max_device_power_w, own_w),
        )
        if cap is not None and least_w >= cap
    ]
    return (
        f"no plan on {system.name} draws less than {' and '.join(caps)}: {num_devices:.0f} devices "
        f"of {format_si(own_w, 'W')} draw {format_si(idle_w, 'W')} before they do anything, "
        "overhead included"
    )


PriceOne = Callable[[Problem, Strategy, PlanOptions], Candidate]
"""Price of one strategy."""


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
    price: PriceOne = candidate,
    checks_power: bool = True,
) -> Plan:
    """Return the price of one given strategy.

    Parameters
    ----------
    factors
        Factors of the resources from measured jobs (:func:`learn`): they adjust the constants.
    price
        Price of a strategy: in closed form, or placed on its devices.
    checks_power
        Whether to refuse devices that draw more than a power cap before they do anything.

    Raises
    ------
    SpecError
        The strategy is illegal: names each rule it breaks and the nearest legal change.
    InfeasibleError
        Its devices draw more than a power cap before they do anything.
    """
    problem = make_problem(model, system, workload, calibration, factors).sharing()
    faults = check_problem(problem, strategy, plan_options)
    if faults:
        raise SpecError(faults, origin=plan_string(strategy, plan_options))
    least_devices = float(problem.least_devices(strategy.num_devices))
    if checks_power and idles_above_cap(problem.system, least_devices):
        raise InfeasibleError(above_caps(problem.system, least_devices))

    def prices(problem: Problem, chosen: Chosen) -> list[Candidate]:
        return [price(problem, *entry) for entry in chosen]

    (only,) = Frameworks(problem, prices).added(prices(problem, [(strategy, plan_options)]))
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


def plan_under(plan: Plan, framework: str) -> Plan:
    """Return a plan as a framework runs it: its software, and its price of the same strategy.

    A plan that was asked for the framework stays as it is.

    Raises
    ------
    SpecError
        The framework does not run on the chips, or not with what the question states.
    """
    if framework_of(plan.workload) == framework:
        return plan
    asked, best = under(plan.problem, framework), plan.best
    price = candidate(asked, best.strategy, best.plan_options).estimate
    return replace(plan, workload=asked.workload, best=replace(best, estimate=price))


def facts_of(plan: Plan) -> Iterator[TrainingFacts]:
    """Yield the facts of each candidate of a plan, the best one first.

    A plan that a search found claims to fit.
    """
    for found in (plan.best, *plan.runners_up):
        fits = found.estimate.fits or plan.coverage is not None
        yield candidate_facts(plan, found, claims_to_fit=fits)


def candidate_facts(
    question: Plan | Problem, candidate: Candidate, *, claims_to_fit: bool
) -> TrainingFacts:
    """Return the facts of one candidate."""
    price, placement = candidate.estimate, candidate.placement
    devices = () if placement is None else placement.devices
    return gathered(
        TrainingFacts, price, question,
        answer=candidate.text,
        degrees=vars(candidate.strategy),
        choices=vars(candidate.plan_options),
        is_placed=placement is not None,
        num_hosted=len(devices) - len(set(devices)),
        mfu=price.mfu_causal,
        claims_to_fit=claims_to_fit,
    )  # fmt: skip
