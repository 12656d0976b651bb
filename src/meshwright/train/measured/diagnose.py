"""Diagnosis of a measured step: its lost time, the single changes that win it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import Fault, SpecError
from meshwright.base.records import Brief, Rows, Shown, scalars
from meshwright.cost.problem import Problem
from meshwright.search.robustness import with_plan_errors
from meshwright.sharding.space import virtual_stage_counts
from meshwright.sharding.strategy import (
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Strategy,
    plan_string,
)
from meshwright.train.answer import Estimate, Plan, Trials
from meshwright.train.measured.factors import (
    CHOICE_ERROR,
    NAMES,
    PLAN_ERROR,
    STEP_NOISE,
    Factors,
    Measurement,
    losses_s,
    step_seconds,
)
from meshwright.train.measured.learning import estimated, expected_log_spread
from meshwright.train.measured.trials import trials_of
from meshwright.train.price import candidate
from meshwright.train.question import check_problem, make_problem
from meshwright.train.robustness import NUM_DRAWS, SEED
from meshwright.train.words import question_line


@dataclass(frozen=True)
class Loss(Brief):
    """Time that one resource adds to a step against its prediction."""

    resource: str
    lost_s: float
    """Lost time under the most probable factors [s]; below 0: faster than predicted."""
    low_s: float
    """5th percentile over the uncertainty of the factors [s]."""
    high_s: float
    """95th percentile [s]."""


@dataclass(frozen=True)
class Improvement(Brief):
    """A single change of the plan, and its gain under the factors of the measurement."""

    what: str
    plan: str
    step_time_s: float
    """Expected step time under the factors [s]."""
    faster_by_fraction: float
    """Gain as a fraction of the measured step [1]; below 0: slower."""
    low_fraction: float
    """5th percentile."""
    high_fraction: float
    """95th percentile."""
    is_faster_fraction: float
    """Probability that it is faster at all."""
    memory_bytes: float
    """Memory of the fullest device, margin included, scaled by the measured memory where there is
    one [bytes]."""


@dataclass(frozen=True)
class Diagnosis(Shown):
    """Resources on which a measured step loses time, and the changes that win it back."""

    plan: str
    fidelity: str
    measured_s: float
    predicted_s: float
    """Step time under the calibrated constants [s]."""
    fitted_s: float
    """Step time under the most probable factors [s]."""
    surprise: float
    """ln(measured / predicted) over its expected standard deviation."""
    factors: Factors
    losses: tuple[Loss, ...]
    """Losses by resource; they sum to ``fitted_s - predicted_s``."""
    parts_s: Mapping[str, float]
    """Difference by part of the step, with the same sum [s]."""
    not_explained_s: float
    """Time that no resource explains, ``measured_s - fitted_s``: of this plan alone, or noise
    [s]."""
    changes: tuple[Improvement, ...]
    """Single changes that fit, the largest gain first."""
    left_out: Mapping[str, int]
    """Numbers of single changes that break a rule or do not fit."""
    trials: Trials | None
    measured_memory_bytes: float | None = None
    predicted_memory_bytes: float | None = None
    """Memory of the fullest device, without the margin that is left free [bytes]."""
    question: str = ""
    """The question in one line."""
    warnings: tuple[str, ...] = ()

    def rows(self) -> Rows:
        """Return the single changes that fit, the largest gain first."""
        return [scalars(change) for change in self.changes]


MOVED = ("tp", "cp", "pp", "dp_shard")
"""Axes that take devices from one another."""


@dataclass(frozen=True)
class SingleChange:
    """One thing changed, and the plan that follows; the workload holds the software."""

    what: str
    problem: Problem
    strategy: Strategy
    plan_options: PlanOptions


def single_changes(
    problem: Problem, strategy: Strategy, plan_options: PlanOptions
) -> Iterator[SingleChange]:
    """Yield every single change, legal or not: degrees by a factor of two, choices, software."""
    for what, degrees in _degree_changes(problem, strategy):
        changed = replace(strategy, **degrees)
        yield SingleChange(what, problem, changed, _fitting(plan_options, strategy, changed))
    for what, choices in _choice_changes(strategy, plan_options):
        yield SingleChange(what, problem, strategy, replace(plan_options, **choices))
    yield from _software_changes(problem, strategy, plan_options)


def _fitting(plan_options: PlanOptions, before: Strategy, after: Strategy) -> PlanOptions:
    """Return the plan options with the choices that depend on the degrees brought in line."""
    choices: dict[str, Any] = {}
    if (after.tp > 1) != (before.tp > 1):
        choices["sequence_parallel"] = after.tp > 1
    if after.dp_shard * after.cp == 1:
        choices["zero_stage"] = 0
    elif before.dp_shard * before.cp == 1:
        choices["zero_stage"] = 1
    if after.num_virtual_stages > 1:
        choices["schedule"] = ScheduleKind.INTERLEAVED
    elif plan_options.schedule is ScheduleKind.INTERLEAVED or before.pp == 1:
        choices["schedule"] = ScheduleKind.ONE_F_ONE_B
    return replace(plan_options, **choices)


Degrees = dict[str, float]


def _degree_changes(problem: Problem, strategy: Strategy) -> Iterator[tuple[str, Degrees]]:
    """Yield changed degrees: devices from one axis to another, chunks, micro-batches, experts."""
    for source, target in permutations(MOVED, 2):
        half, double = getattr(strategy, source) / 2.0, getattr(strategy, target) * 2.0
        if half == int(half):
            degrees = {source: half, target: double}
            text = ", ".join(_shown(strategy, name, degrees) for name in (source, target))
            has_no_chunks = source == "pp" and half == 1
            yield text, degrees | ({"num_virtual_stages": 1.0} if has_no_chunks else {})
    if strategy.pp > 1:
        counts = list(virtual_stage_counts(problem.model.num_layers, int(strategy.pp)))
        fewer = [n for n in counts if n < strategy.num_virtual_stages][-1:]
        for count in fewer + [n for n in counts if n > strategy.num_virtual_stages][:1]:
            yield _change(strategy, "num_virtual_stages", float(count))
    yield from _halved_and_doubled(strategy, "micro_batch_size")
    if problem.num_experts:
        yield from _halved_and_doubled(strategy, "ep")


def _halved_and_doubled(strategy: Strategy, name: str) -> Iterator[tuple[str, Degrees]]:
    """Yield half of a degree, where it is whole, and twice the degree."""
    for value in (getattr(strategy, name) / 2.0, getattr(strategy, name) * 2.0):
        if value == int(value):
            yield _change(strategy, name, value)


def _change(strategy: Strategy, name: str, value: float) -> tuple[str, dict[str, float]]:
    """Return one changed degree, with its words."""
    return _shown(strategy, name, {name: value}), {name: value}


_WORDS = {"dp_shard": "dp", "num_virtual_stages": "vpp", "micro_batch_size": "mbs"}


def _shown(strategy: Strategy, name: str, degrees: dict[str, float]) -> str:
    """Return a changed degree in words: ``tp 8 to 4``."""
    times = strategy.dp_replicate if name == "dp_shard" else 1.0
    before, after = getattr(strategy, name) * times, degrees[name] * times
    return f"{_WORDS.get(name, name)} {before:.0f} to {after:.0f}"


def _choice_changes(
    strategy: Strategy, plan_options: PlanOptions
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changed choices: recomputation, where state is kept, schedule, sequence parallelism."""
    for recompute in Recompute:
        if recompute is not plan_options.recompute:
            yield f"recompute {plan_options.recompute} to {recompute}", {"recompute": recompute}
    if strategy.dp_shard * strategy.cp > 1:
        for stage in range(4):
            if stage != plan_options.zero_stage:
                yield f"zero {plan_options.zero_stage} to {stage}", {"zero_stage": stage}
    if plan_options.zero_stage == 3:
        keeps = plan_options.reshard_after_forward
        text = "kept" if keeps else "gathered again"
        yield f"weights {text} for the backward pass", {"reshard_after_forward": not keeps}
    if plan_options.offload is not Offload.NONE:
        yield "nothing offloaded", {"offload": Offload.NONE}
    if strategy.pp > 1 and strategy.num_virtual_stages == 1:
        for kind in (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE):
            if kind is not plan_options.schedule:
                yield f"schedule {plan_options.schedule} to {kind}", {"schedule": kind}
    if strategy.tp > 1:
        turned = not plan_options.sequence_parallel
        text = "with" if turned else "without"
        yield f"{text} sequence parallelism", {"sequence_parallel": turned}


def _software_changes(
    problem: Problem, strategy: Strategy, plan_options: PlanOptions
) -> Iterator[SingleChange]:
    """Yield the same plan under software that hides more."""
    software = problem.workload.software
    if not plan_options.overlap_data_parallel and strategy.dp > 1:
        overlapped = replace(plan_options, overlap_data_parallel=True)
        yield SingleChange("overlapped data-parallel communication", problem, strategy, overlapped)
    if (
        not plan_options.overlap_tensor_parallel
        and plan_options.sequence_parallel
        and strategy.tp > 1
    ):
        changed = _with_software(problem, async_tensor_parallel=True)
        overlapped = replace(plan_options, overlap_tensor_parallel=True)
        yield SingleChange("async tensor parallelism", changed, strategy, overlapped)
    if not software.cuda_graphs:
        with_graphs = _with_software(problem, cuda_graphs=True)
        yield SingleChange("CUDA graphs", with_graphs, strategy, plan_options)


def _with_software(problem: Problem, **settings: bool) -> Problem:
    """Return the problem with changed settings of its software."""
    software = problem.workload.software.model_copy(update=settings)
    return replace(problem, workload=problem.workload.model_copy(update={"software": software}))


RATIO_ERROR = float(np.hypot(PLAN_ERROR, STEP_NOISE))
"""Standard deviation of ln(time of another plan / measured time) that no factor explains."""
LEADING = 8
"""Plans among which trials are chosen."""
AS_IT_RUNS = "as it runs"
LEFT_ASIDE = "factors that this plan learnt from other jobs are left aside"


@dataclass(frozen=True)
class _Case:
    """A job that ran, under the calibrated constants, with the factors of its measurement."""

    plan: Plan
    job: Measurement
    factors: Factors
    columns: FloatArray
    """The most probable factors in the first column, then draws, shape (resources, 1 + draws)."""
    memory_factor: float
    """Measured over predicted memory; 1 where it was not measured."""

    def seconds(self, change: SingleChange) -> FloatArray:
        """Return the step after a change under each column of factors [s]."""
        return step_seconds(change.problem, change.strategy, change.plan_options, self.columns)


def diagnose(
    plan: Plan, measured_s: float, *, measured_memory_bytes: float | None = None
) -> Diagnosis:
    """Return the lost time of a measured step of a plan, and the changes that win it back.

    Parameters
    ----------
    plan
        The plan that ran, priced without factors of other measurements.
    measured_s
        Time of one step [s].
    measured_memory_bytes
        Peak memory of the fullest device, where that was measured.

    Raises
    ------
    SpecError
        The plan breaks a rule, or the measurement is none.
    """
    _check_measured(measured_s, measured_memory_bytes)
    strategy, plan_options = plan.best.strategy, plan.best.plan_options
    problem = make_problem(plan.model, plan.system, plan.workload, plan.calibration)
    faults = check_problem(problem, strategy, plan_options)
    if faults:
        raise SpecError(faults, origin=plan.best.text)
    job = Measurement(plan.best.text, problem, strategy, plan_options, measured_s)
    factors = estimated([job])
    middle = factors.values[:, None]
    draws = middle * factors.draws(NUM_DRAWS, np.random.default_rng(SEED))
    used_bytes = _used_bytes(plan.best.estimate)
    memory_factor = (measured_memory_bytes or used_bytes) / used_bytes
    case = _Case(plan, job, factors, np.hstack([middle, draws]), memory_factor)
    return replace(
        _diagnosis(case),
        measured_memory_bytes=measured_memory_bytes,
        predicted_memory_bytes=used_bytes,
        question=question_line(plan),
        warnings=() if plan.factors is None else (LEFT_ASIDE,),
    )


def _diagnosis(case: _Case) -> Diagnosis:
    """Return losses, changes and trials of a measured plan."""
    job, factors, middle = case.job, case.factors, case.columns[:, :1]
    of_job = job.problem, job.strategy, job.plan_options
    predicted_s = float(step_seconds(*of_job, np.ones_like(middle))[0])
    fitted_s = float(step_seconds(*of_job, middle)[0])
    surprise = float(np.log(job.step_s / predicted_s)) / expected_log_spread(job)
    changes, log_times, left_out = _changes(case)
    return Diagnosis(
        plan=job.name,
        fidelity="closed_form",
        measured_s=job.step_s,
        predicted_s=predicted_s,
        fitted_s=fitted_s,
        surprise=surprise,
        factors=factors,
        losses=_losses(case),
        parts_s=_parts_s(case),
        not_explained_s=job.step_s - fitted_s,
        changes=changes,
        left_out=left_out,
        trials=_trials(case, changes, log_times),
    )


def _check_measured(measured_s: float, memory_bytes: float | None) -> None:
    """Refuse invalid measurements.

    Raises
    ------
    SpecError
        With every invalid one.
    """
    faults = [
        Fault(name, f"found {value}, expected a number above 0")
        for name, value in (("measured_s", measured_s), ("measured_memory_bytes", memory_bytes))
        if value is not None and not 0.0 < value < float("inf")
    ]
    if faults:
        raise SpecError(faults)


def _used_bytes(price: Estimate) -> float:
    """Return the memory of the fullest device without the margin that is left free [bytes]."""
    return price.memory_bytes - price.memory_parts_bytes["margin_bytes"]


def _losses(case: _Case) -> tuple[Loss, ...]:
    """Return the time that the factor of each resource adds to the step, with its interval [s]."""
    job = case.job
    lost = losses_s(job.problem, job.strategy, job.plan_options, case.columns)
    low, high = np.percentile(lost[:, 1:], [5.0, 95.0], axis=1)
    columns = zip(NAMES, lost[:, 0].tolist(), low.tolist(), high.tolist(), strict=True)
    return tuple(Loss(*entry) for entry in columns)


def _parts_s(case: _Case) -> dict[str, float]:
    """Return the added time of each part of the step under the factors [s]."""
    job, calibration = case.job, case.factors.applied(case.job.problem.nominal_calibration)
    fitted = replace(job.problem, calibration=calibration)
    without, under = (
        candidate(problem, job.strategy, job.plan_options).estimate.time_parts_s
        for problem in (job.problem, fitted)
    )
    return {name: seconds - without[name] for name, seconds in under.items()}


def _changes(
    case: _Case,
) -> tuple[tuple[Improvement, ...], dict[str, FloatArray], dict[str, int]]:
    """Return the single changes by gain, draws of ln(time) after each, and those left out."""
    job, found = case.job, []
    log_times: dict[str, FloatArray] = {}
    left_out = {"breaks a rule": 0, "does not fit": 0}
    capacity = job.problem.system.chip.main_memory.capacity_bytes
    own_s = step_seconds(job.problem, job.strategy, job.plan_options, case.columns)
    for number, change in enumerate(single_changes(job.problem, job.strategy, job.plan_options)):
        if check_problem(change.problem, change.strategy, change.plan_options):
            left_out["breaks a rule"] += 1
            continue
        price = candidate(change.problem, change.strategy, change.plan_options).estimate
        memory = price.memory_bytes + _used_bytes(price) * (case.memory_factor - 1.0)
        if memory > capacity:
            left_out["does not fit"] += 1
            continue
        logs = _log_times(case, change, own_s, SEED + number)
        log_times[change.what] = logs[1:]
        found.append(_improvement(case, change, logs, memory))
    found.sort(key=lambda entry: -entry.faster_by_fraction)
    return tuple(found), log_times, left_out


def _log_times(case: _Case, change: SingleChange, own_s: FloatArray, seed: int) -> FloatArray:
    """Return ln(time) after a change: under the most probable factors, then of each draw.

    Other degrees or micro-batches run other kernels, with a separate error. Where they stay,
    so does the part of the measurement beyond the factors, and only the effect of the change is in
    doubt.

    Parameters
    ----------
    own_s
        Step time before the change under the same factors [s].
    """
    logs = np.log(case.seconds(change))
    if not _keeps_kernels(case.job.strategy, change.strategy):
        logs[1:] = with_plan_errors(logs[1:], RATIO_ERROR, seed)
        return logs
    effects = logs - np.log(own_s)
    errors = np.random.default_rng(seed).standard_normal((2, len(logs) - 1))
    effects[1:] = effects[1:] * (1.0 + CHOICE_ERROR * errors[0]) + STEP_NOISE * errors[1]
    return np.asarray(effects + np.log(case.job.step_s))


def _keeps_kernels(before: Strategy, after: Strategy) -> bool:
    """Return whether devices run products of the same sizes."""
    return replace(before, num_virtual_stages=1.0) == replace(after, num_virtual_stages=1.0)


def _improvement(
    case: _Case, change: SingleChange, logs: FloatArray, memory_bytes: float
) -> Improvement:
    """Return the gain of a change against the measured step."""
    gains = 1.0 - np.exp(logs) / case.job.step_s
    low, high = np.percentile(gains[1:], [5.0, 95.0])
    return Improvement(
        what=change.what,
        plan=plan_string(change.strategy, change.plan_options),
        step_time_s=float(np.exp(logs[0])),
        faster_by_fraction=float(gains[0]),
        low_fraction=float(low),
        high_fraction=float(high),
        is_faster_fraction=float((gains[1:] > 0.0).mean()),
        memory_bytes=memory_bytes,
    )


def _trials(
    case: _Case, changes: Sequence[Improvement], log_times: dict[str, FloatArray]
) -> Trials | None:
    """Return the leading changes to run for some steps; the step of the current plan is known."""
    leading = [entry.what for entry in changes][: LEADING - 1]
    if not leading:
        return None
    known = np.full(NUM_DRAWS, np.log(case.job.step_s))
    table = np.array([known, *(log_times[name] for name in leading)])
    return trials_of([AS_IT_RUNS, *leading], table, known=(0,))
