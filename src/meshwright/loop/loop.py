"""The verb: the fastest step of a loop, from a question to the answer as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshwright.audit.laws import gathered, lawful
from meshwright.audit.loop import LoopFacts
from meshwright.base.errors import InfeasibleError, MeshwrightError, UnsupportedError
from meshwright.base.registry import version
from meshwright.base.units import time_told
from meshwright.catalog.calibration import DEFAULT
from meshwright.cost.money import step_cost_usd
from meshwright.cost.problem import Problem
from meshwright.loop.answer import LoopPlan, LoopStep, PhaseMemory
from meshwright.loop.question import Sharing, Work, check_work
from meshwright.loop.search import Answered, Asked, found_step, relaxed
from meshwright.loop.step import KNOBS, Step, reshard_bytes, stale_step_s, weight_bytes
from meshwright.loop.verl import verl_options
from meshwright.serve.passes import ServingProblem
from meshwright.serve.price import MILLION
from meshwright.serve.serve import serving_candidate, serving_problem
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Decode, Precision, SoftwareStack, Training
from meshwright.train.price import candidate_facts
from meshwright.train.question import check_fixed, make_problem, switched_on


def loop(
    model: ModelSpec, system: SystemSpec, workload: Training, work: Work, sharing: Sharing, *,
    allowed: Mapping[str, Sequence[object]] | None = None, engine: str = "generic",
    calibration: str = DEFAULT, command: str = "",
) -> LoopPlan:  # fmt: skip
    """Return the fastest step of a loop of reinforcement learning.

    Parameters
    ----------
    workload
        An update: one mini-batch, as :attr:`Work.rows` packs its samples.
    engine
        Server that rolls out.
    allowed
        Fixed degrees and choices of training.

    Raises
    ------
    SpecError
        Sizes that contradict each other.
    InfeasibleError
        Nothing fits; names the fullest phase, and which fixed choice would have to go.
    """
    check_work(work)
    if any(level.kind in ("mesh", "torus") for level in system.levels):
        raise UnsupportedError("a loop on a grid of devices is not priced: plan and serve are")
    training = make_problem(model, system, switched_on(workload), calibration).sharing()
    check_fixed(training, allowed or {})
    serving = rollout_problem(training, work, engine, calibration)
    asked = Asked(work, sharing, training, serving, allowed or {})
    try:
        found = found_step(asked)
    except InfeasibleError as error:
        raise InfeasibleError(f"{error}{_to_let_go(asked)}") from error
    plan = _answer(asked, found, calibration, command)
    return lawful(plan, facts_of(plan, training))


def rollout_problem(
    training: Problem, work: Work, engine: str, calibration: str
) -> ServingProblem:  # fmt: skip
    """Return the problem of rollouts: weights and cache in the wide type of training."""
    model = training.model.model_copy(update={"weight_format": None, "cache_type": None})
    chip = training.system.chip
    requests = Decode(
        batch_size=work.num_samples, prompt_length=work.prompt,
        context_length=work.prompt + max(round(work.lengths.mean), 1),
        precision=Precision.on(chip, training.workload.precision.activation),
        expert_load_imbalance=training.workload.expert_load_imbalance,
        software=SoftwareStack(cuda_graphs=True),
    )  # fmt: skip
    return serving_problem(model, training.system, requests, engine, calibration)


def _to_let_go(asked: Asked) -> str:
    """Return the first fixed choice without which a step fits; empty: there is none."""
    for option, other in relaxed(asked):
        try:
            found = found_step(other).step
        except MeshwrightError:
            continue
        engine = f"engine tp{found.engine.serving.strategy.tp:.0f} at a share of {found.share:.2f}"
        plan = found.trainer.candidate.text
        return f". With another {option} it fits: {plan}, {engine}, park {found.park}"
    return ""


def _answer(asked: Asked, found: Answered, calibration: str, command: str) -> LoopPlan:
    work, training = asked.work, asked.training
    best, *others = [loop_step(asked, step) for step in (found.step, *found.runners_up)]
    whole = weight_bytes(training)
    return LoopPlan(
        model=training.model,
        system=training.system,
        work=work,
        sharing=asked.sharing,
        workload=training.workload,
        calibration=calibration,
        engine=asked.serving.server.name,
        best=best,
        others=tuple(others),
        memory_capacity_bytes=asked.capacity_bytes,
        reshard_bytes=reshard_bytes(whole, training.system.num_alive),
        longest_answer=work.lengths.longest_of(work.num_samples),
        cut_share=work.lengths.cut_share,
        lower_bound_s=found.lower_bound_s,
        num_combinations=found.num_combinations,
        verl=verl_options(found.step),
        warnings=tuple(_warnings(asked, found.step)),
        version=version(),
        command=command,
    )


def loop_step(asked: Asked, step: Step) -> LoopStep:
    """Return a step as plain numbers, with its energy and its rent."""
    work, trainer, engine = asked.work, step.trainer, step.engine
    serving, price = engine.serving, trainer.candidate.estimate
    runs = serving.server.model_copy(update={"memory_fraction": step.share})
    problem = replace(serving.problem, server=runs)
    most, mean = (
        serving_candidate(problem, replace(serving.strategy, micro_batch_size=max(round(size), 1)),
                          serving.plan_options, 1)
        for size in (step.rolled.in_flight, step.rolled.mean_in_flight)
    )  # fmt: skip
    rollout_s = step.rollout_s
    parts_s = step.parts_s
    total_s = time_told("a step", step.total_s, parts_s)
    answers = work.num_samples * work.lengths.mean
    train_s = sum(trainer.parts_s.values())
    per_million = mean.estimate.energy_j_per_million_tokens
    energy_j = None
    if per_million is not None and price.power_w is not None:
        energy_j = price.power_w * train_s + per_million * answers / MILLION
    rent = float(step_cost_usd(problem.system.chip, total_s, float(step.num_devices)))
    ends: tuple[float, float] | None = None
    token = most.estimate
    if price.interval_s is not None and token.latency_interval_s is not None:
        stale = step.sharing.staleness
        others_s = step.reshard_s if stale else total_s - rollout_s - train_s
        fast, slow = (
            stale_step_s(
                rollout_s * token_s / token.latency_s, train_s * update_s / price.step_time_s,
                others_s, stale,
            )
            for token_s, update_s in zip(token.latency_interval_s, price.interval_s, strict=True)
        )  # fmt: skip
        ends = fast, slow
    return LoopStep(
        training=trainer.candidate,
        rollout=most,
        train_devices=trainer.problem.system.num_alive,
        rollout_devices=problem.system.num_alive,
        park=step.park,
        memory_share=step.share,
        step_time_s=total_s,
        time_parts_s=parts_s,
        rollout_s=rollout_s,
        tokens_per_s=work.tokens / total_s,
        answer_tokens_per_s=answers / total_s,
        memory=tuple(
            PhaseMemory(phase, sum(parts.values()), dict(parts), KNOBS[phase])
            for phase, parts in step.memory.items()
        ),
        interval_s=ends,
        energy_j=energy_j,
        cost_usd=None if rent != rent else rent,
    )


def _warnings(asked: Asked, step: Step) -> Iterator[str]:
    """Yield the notes for the reader beside the numbers."""
    work = asked.work
    if work.lengths.are_equal and work.lengths.mean:
        yield (
            "all answers have the mean length, so that no tail is priced: state --longest-answer "
            "(max_response_length)"
        )
    elif work.lengths.mean:
        yield (
            f"lengths of answers are log-normal with a spread of {work.lengths.spread:g} "
            "(--with length_spread): take it from the log of your run"
        )
    yield "rewards by rule, transfers of samples and start of the engine are left out"
    if step.sharing.apart and step.sharing.staleness == 0:
        yield "without staleness one role waits while the other works (--staleness 1)"


def facts_of(plan: LoopPlan, training: Problem) -> Iterator[LoopFacts]:
    """Yield the facts of each step, the best one first, and those of its plan of training."""
    yield candidate_facts(training, plan.best.training, claims_to_fit=False)  # type: ignore[misc]
    for step in plan.steps():
        yield gathered(
            LoopFacts, step, plan,
            answer=step.text,
            degrees=vars(step.training.strategy),
            choices=vars(step.training.plan_options),
            phases={one.phase: (one.memory_bytes, one.memory_parts_bytes) for one in step.memory},
            num_samples=plan.work.num_samples,
            answer_tokens=plan.work.lengths.mean,
            are_apart=plan.sharing.apart,
        )  # fmt: skip
