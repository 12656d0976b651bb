"""The verbs: the best way to serve, from a question to the answer as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.audit.laws import Facts, gathered, lawful
from meshwright.audit.serving import DeploymentFacts, ServingFacts
from meshwright.base.arrays import known_at, number_at, take_rows
from meshwright.base.errors import Fault, InfeasibleError, SpecError, UnsupportedError
from meshwright.base.registry import version
from meshwright.base.units import time_told
from meshwright.catalog.calibration import (
    DEFAULT,
    ErrorRecord,
    RowsErrorRecord,
    load_calibration,
    load_chip_serving,
    load_sram,
    serves_from_sram,
    serving_record,
)
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system, refuse_mixed_chips, refuse_single_links
from meshwright.catalog.workloads import load_server, server_names
from meshwright.cost.memory import fullest
from meshwright.cost.money import step_cost_usd
from meshwright.cost.operator import is_launched
from meshwright.cost.pipeline import POSITIONS
from meshwright.cost.problem import RECURRENT_NOTE, UNCALIBRATED_NOTE, certainty_note
from meshwright.search.intervals import (
    THROUGHPUT,
    TPOT,
    TTFT,
    Certainty,
    interval_of,
    rates_of,
)
from meshwright.serve.answer import (
    EVERY_ROW,
    Deployment,
    DisaggregatedPlan,
    ServingCandidate,
    ServingEstimate,
    ServingFront,
    ServingPlan,
    WorkerPool,
    serving_string,
)
from meshwright.serve.disaggregated import (
    Deployments,
    WorkerKind,
    WorkerSplit,
    search_disaggregated,
)
from meshwright.serve.launching import server_faults, serving_faults
from meshwright.serve.operators import host_of_prompt_s
from meshwright.serve.passes import ServingProblem, with_stored_weights
from meshwright.serve.price import (
    MILLION,
    SERVING_MEMORY_PARTS,
    SERVING_TIME_PARTS,
    ServingPrice,
    per_million_tokens,
    price_serving,
)
from meshwright.serve.search import ServingObjective, ServingResult, ServingSpace, search_serving
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import PlanOptions, Strategy, stack
from meshwright.spec.calibration import FREE_SUMS, constants_of
from meshwright.spec.declaration import declared
from meshwright.spec.doubled import doubled
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Decode, Prefill, Server

FIDELITY = "closed_form"
LAUNCHED_NOTE = "kernels are launched one by one; serving engines record them (cuda_graphs)"


def serving_candidate(
    problem: ServingProblem, strategy: Strategy, plan_options: PlanOptions, num_groups: int
) -> ServingCandidate:
    """Return one way of serving with its full price."""
    return serving_candidates(problem, [(strategy, plan_options, num_groups)])[0]


def serving_candidates(
    problem: ServingProblem, chosen: Sequence[tuple[Strategy, PlanOptions, int]]
) -> list[ServingCandidate]:
    """Return candidates with their full prices; those of equal plan options are one column."""
    found: dict[int, ServingCandidate] = {}
    for plan_options in dict.fromkeys(plan_options for _, plan_options, _ in chosen):
        rows = [index for index, entry in enumerate(chosen) if entry[1] == plan_options]
        groups = np.array([float(chosen[index][2]) for index in rows])
        columns = stack([chosen[index][0] for index in rows])
        prices = price_serving(problem, plan_options, columns, groups)
        for row, index in enumerate(rows):
            found[index] = _candidate(problem, *chosen[index], take_rows(prices, [row]))
    return [found[index] for index in range(len(chosen))]


def _candidate(
    problem: ServingProblem, strategy: Strategy, plan_options: PlanOptions, num_groups: int,
    price: ServingPrice,
) -> ServingCandidate:  # fmt: skip
    """Return one way of serving with its price, a column of one row, as plain numbers."""
    use, stage = fullest(price.memory)
    energy_j, cost_usd = per_million_tokens(problem, price)
    parts_s = {name: number_at(getattr(price.time, name)) for name in SERVING_TIME_PARTS}
    latency_s = time_told("a pass", number_at(price.latency_s), parts_s)
    tokens_per_s = number_at(price.tokens_per_s)
    first_s = None if price.first_token_s is None else number_at(price.first_token_s)
    estimate = ServingEstimate(
        fidelity=FIDELITY,
        is_calibrated=problem.calibration.is_calibrated,
        latency_s=latency_s,
        latency_interval_s=interval_of(latency_s, problem.latency_ends),
        tokens_per_s_interval=rates_of(tokens_per_s, problem.ends(THROUGHPUT)),
        first_token_interval_s=None
        if first_s is None
        else interval_of(first_s, problem.ends(TTFT)),
        time_parts_s=parts_s,
        bottleneck_s=number_at(price.bottleneck_s),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / problem.system.num_alive,
        tokens_per_s_per_user=number_at(price.tokens_per_s_per_user),
        sequences_in_flight=number_at(price.sequences_in_flight),
        most_sequences=int(number_at(price.most_sequences)),
        cache_tokens=int(number_at(price.cache_tokens)),
        num_groups=num_groups,
        num_devices_used=int(strategy.num_devices),
        memory_bytes=number_at(use.total_bytes),
        memory_parts_bytes={name: number_at(getattr(use, name)) for name in SERVING_MEMORY_PARTS},
        fullest_stage=POSITIONS[int(number_at(stage))],
        memory_capacity_bytes=problem.system.chip.main_memory.capacity_bytes,
        energy_j_per_million_tokens=known_at(energy_j),
        cost_usd_per_million_tokens=known_at(cost_usd),
        first_token_s=first_s,
    )
    return ServingCandidate(strategy, plan_options, estimate, servers_that_start(problem, strategy))


def servers_that_start(problem: ServingProblem, strategy: Strategy) -> tuple[str, ...]:
    """Return the servers of the catalog that can start one split of the devices."""
    known = {name: load_server(name).launches for name in server_names()}
    return tuple(
        name
        for name, launches in known.items()
        if launches is not None
        and not server_faults(
            launches,
            problem.system,
            problem.workload.precision,
            overlaps=problem.workload.two_batch_overlap,
        )
        and not serving_faults(launches, problem.model, problem.system, strategy)
    )


def serving_plan(
    problem: ServingProblem, result: ServingResult, *, calibration: str,
    server: str = "generic", version: str = "", command: str = "",
    memory_share: float | None = None,
) -> ServingPlan:  # fmt: skip
    """Return the answer of a search as data."""
    chosen = [result.candidate(index) for index in result.ranked.tolist()]
    candidates = serving_candidates(problem, chosen)
    return ServingPlan(
        model=problem.model,
        system=problem.system,
        workload=problem.workload,
        calibration=calibration,
        server=server,
        objective=str(result.objective),
        best=candidates[0],
        runners_up=tuple(candidates[1:]),
        front=_front(problem, result),
        coverage=result.counts.coverage(
            float(result.fitting.latency_s[result.ranked[0]]), result.elapsed_s
        ),
        num_too_slow=result.num_too_slow,
        warnings=tuple(serving_warnings(problem, candidates[0], load_server(server), calibration)),
        version=version,
        command=command,
        memory_share=memory_share,
        doubled_latency_s=_doubled_latency_s(problem, candidates[0]),
        constants=constants_of(problem.nominal_calibration),
        errors=_errors(calibration),
    )


def _doubled_latency_s(problem: ServingProblem, best: ServingCandidate) -> dict[str, float]:
    """Return the latency of the same plan with twice each resource of the system [s]."""
    groups, strategy = np.array([float(best.estimate.num_groups)]), stack([best.strategy])
    changed = {what: replace(problem, system=system) for what, system in doubled(problem.system)}
    return {
        what: number_at(price_serving(better, best.plan_options, strategy, groups).latency_s)
        for what, better in changed.items()
    }


def certainty_under(calibration: str) -> Certainty | None:
    """Return the spread of figures of serving about their prices; None: not known."""
    record = serving_record(calibration)
    if record is None:
        return None
    return Certainty(record.spreads, frozenset(record.families), frozenset(record.servers))


def _errors(calibration: str) -> dict[str, RowsErrorRecord]:
    """Return the errors of a calibration for serving, left out of the fit."""
    record = serving_record(calibration)
    if record is None:
        return {}
    groups = {**record.figures, **record.servers}
    left_out: dict[str, tuple[int, ErrorRecord]] = {EVERY_ROW: (record.num_rows, record.left_out)}
    left_out |= {name: (group.rows, group.left_out) for name, group in groups.items()}
    return {
        name: RowsErrorRecord(rows=rows, median=error.median, p90=error.p90, bias=error.bias)
        for name, (rows, error) in left_out.items()
    }


def _front(problem: ServingProblem, result: ServingResult) -> ServingFront:
    """Return the Pareto front as columns, the fastest user first."""
    rows, work = take_rows(result.fitting, result.front), problem.workload
    is_of_requests = isinstance(work, Decode) and work.prompt_length is not None
    return ServingFront(
        plans=tuple(serving_string(*result.candidate(row)) for row in result.front.tolist()),
        tokens_per_s_per_user=tuple(rows.tokens_per_s_per_user.tolist()),
        tokens_per_s_per_device=tuple((rows.tokens_per_s / problem.system.num_alive).tolist()),
        latency_s=tuple(rows.latency_s.tolist()),
        sequences_in_flight=tuple(rows.sequences_in_flight.tolist()),
        first_token_s=tuple(rows.first_token_s.tolist()) if is_of_requests else (),
    )


def serving_warnings(
    problem: ServingProblem, best: ServingCandidate, server: Server, calibration: str
) -> list[str]:  # fmt: skip
    """Return the notes for the reader beside the numbers."""
    price, notes, workload = best.estimate, [], problem.workload
    tokens = workload.prompt_length if isinstance(workload, Prefill) else workload.context_length
    longest = problem.model.max_sequence_length
    if longest is not None and tokens > longest:
        notes.append(f"{problem.model.name} is made for {longest:,} tokens, not for {tokens:,}")
    together = price.sequences_in_flight / best.strategy.dp
    if server.sequences_option and together > server.most_sequences:
        notes.append(
            f"{server.name} runs {server.most_sequences:,} sequences at a time on a replica, not "
            f"{together:,.0f}: start it with {server.sequences_option} {np.ceil(together):.0f}"
        )
    chip = problem.system.chip
    sums = load_sram(chip, calibration) if serves_from_sram(chip) else FREE_SUMS
    if note := certainty_note(sums, is_calibrated=price.is_calibrated):
        notes.append(note)
    if problem.model.recurrences:
        notes.append(RECURRENT_NOTE)
    left_out = "queues before the first pass are not priced"
    if price.first_token_s is not None:
        left_out = "each request is sent when another one ends; times are means"
    elif not problem.is_decode:
        left_out += ", nor the transfer of the cache to decode; prompts arrive in a steady stream"
    notes.append(left_out)
    if price.num_devices_used < problem.system.num_alive:
        idle = problem.system.num_alive - price.num_devices_used
        notes.append(f"{idle} of {problem.system.num_alive} devices stay idle")
    batch = problem.workload.batch_size
    if problem.is_decode and price.sequences_in_flight < batch:
        flying = f"{price.sequences_in_flight:.0f} of {batch} sequences"
        notes.append(f"{flying} are in flight at once; the others wait")
    if problem.is_decode and is_launched(chip, problem.workload.software):
        notes.append(LAUNCHED_NOTE)
    return notes


def serve(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Prefill | Decode,
    *,
    objective: str = "throughput",
    allowed: Mapping[str, Sequence[object]] | None = None,
    server: str = "generic",
    top: int = 5,
    calibration: str = DEFAULT,
    command: str = "",
    memory_share: float | None = None,
) -> ServingPlan:
    """Return the best way to serve, proven over the whole space.

    Parameters
    ----------
    objective
        ``throughput`` within the allowed latency, or ``latency`` with the whole batch in flight.
    allowed
        Fixed choices: values of a degree or of a plan option by name.
    server
        Server that runs the passes: its own time between them is priced.
    memory_share
        Share of the memory of a device that the server fills; None: its default.

    Raises
    ------
    InfeasibleError
        Nothing fits the memory or the latency; names the closest candidate and changes that help.
    """
    problem = serving_problem(model, system, workload, server, calibration, memory_share)
    choices = Choices({name: tuple(values) for name, values in (allowed or {}).items()})
    result = search_serving(ServingSpace(problem, choices), ServingObjective(objective), top=top)
    plan = serving_plan(
        problem, result, calibration=calibration, server=problem.server.name, version=version(),
        command=command, memory_share=memory_share,
    )  # fmt: skip
    return lawful(plan, facts_of(plan))


def serving_problem(
    model: ModelSpec | str, system: SystemSpec | str, workload: Prefill | Decode, server: str,
    calibration: str, memory_share: float | None = None,
) -> ServingProblem:  # fmt: skip
    """Return the problem of serving, under the constants of the server and of the chips.

    Raises
    ------
    SpecError
        A part of the question that serving does not price, or that the server lacks.
    """
    model_spec = load_model(model) if isinstance(model, str) else model
    system_spec = load_system(system) if isinstance(system, str) else system
    refuse_mixed_chips(system_spec)
    refuse_single_links(system_spec, "serving")
    if system_spec.is_power_capped:
        raise UnsupportedError("a power cap is for training: serving is priced without one")
    drafts = workload.speculation if isinstance(workload, Decode) else None
    if drafts is not None and drafts.draft is None and not model_spec.num_prediction_layers:
        message = f"{model_spec.name} has no layer of multi-token prediction"
        raise SpecError(Fault("speculation.draft", message, "name a draft model"))
    if workload.two_batch_overlap and not model_spec.has_experts:
        message = f"{model_spec.name} has no experts to which tokens travel"
        raise SpecError(Fault("two_batch_overlap", message, "leave it out"))
    field = "context_length" if isinstance(workload, Decode) else "prompt_length"
    for served in (model_spec, drafts.draft if drafts is not None else None):
        if served is not None:
            served.check_length(getattr(workload, field), field)
    workload = with_stored_weights(workload, model_spec, system_spec.chip)
    runs = load_server(server)
    if memory_share is not None:
        runs = runs.model_copy(update={"memory_fraction": memory_share})
    if runs.launches is not None and (
        faults := server_faults(
            runs.launches, system_spec, workload.precision, overlaps=workload.two_batch_overlap
        )
    ):
        raise SpecError(faults, origin=runs.name)
    chip = system_spec.chip
    constants = load_calibration(chip.family, calibration)
    if serves_from_sram(chip) and load_sram(chip, calibration).is_calibrated:
        constants = replace(constants, is_calibrated=True)
    return ServingProblem(
        model_spec, system_spec, workload, constants,
        constants=load_chip_serving(chip, runs, calibration), server=runs,
        certainty=certainty_under(calibration),
    )  # fmt: skip


def disaggregate(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Prefill | Decode,
    *,
    allowed: Mapping[str, Sequence[object]] | None = None,
    server: str = "generic",
    top: int = 5,
    calibration: str = DEFAULT,
    command: str = "",
    memory_share: float | None = None,
    workers: tuple[int, int] | None = None,
) -> DisaggregatedPlan:
    """Return the best deployment with workers of prefill and of decode, proven over both spaces.

    Parameters
    ----------
    workload
        Requests, with a limit of the time to the first token: without one prompts queue without
        end.
    allowed
        Fixed choices, of both kinds of workers.
    workers
        Numbers of prefill and of decode workers that are given; None: any.

    Raises
    ------
    InfeasibleError
        Nothing fits the memory or the limits; says whether workers that do both would.
    """
    if not isinstance(workload, Decode) or workload.prompt_length is None:
        raise SpecError(Fault("workload", "has no requests", "decode with a prompt_length"))
    work = declared(Decode, **dict(workload) | {"disaggregated": True})
    problem = serving_problem(model, system, work, server, calibration, memory_share)
    if problem.max_first_token_s is None:
        raise SpecError(Fault("max_time_to_first_token_s", "is needed: prompts queue without end"))
    mixed = serving_problem(model, system, workload, server, calibration, memory_share)
    choices = Choices({name: tuple(values) for name, values in (allowed or {}).items()})
    aggregated, why = None, ""
    try:
        together = search_serving(ServingSpace(mixed, choices), top=1)
        aggregated = serving_candidate(mixed, *together.candidate(int(together.ranked[0])))
    except InfeasibleError as error:
        why = f"nor do workers that do both: {error}"
    try:
        result = search_disaggregated(problem, choices, top=top, workers=workers)
    except InfeasibleError as error:
        if aggregated is not None:
            rate = f"{aggregated.estimate.tokens_per_s:,.0f} tokens/s"
            why = f"workers that do both do: {aggregated.text}, {rate}"
        raise InfeasibleError(f"{error}; {why}") from error
    best, counts = result.ranked[0], (result.prefill_counts, result.decode_counts)
    asked = problem.workload
    assert isinstance(asked, Decode)
    ranked = tuple(_deployment(result.deployments, split) for split in result.ranked)
    plan = DisaggregatedPlan(
        model=problem.model,
        system=problem.system,
        workload=asked,
        calibration=calibration,
        server=problem.server.name,
        best=ranked[0],
        runners_up=ranked[1:],
        aggregated=aggregated,
        prefill_coverage=counts[0].coverage(best.pass_s, result.elapsed_s),
        decode_coverage=counts[1].coverage(best.step_s, result.elapsed_s),
        warnings=tuple(_warnings_of_split(problem, ranked[0])),
        version=version(),
        command=command,
        memory_share=memory_share,
    )
    return lawful(plan, facts_of(plan))


def _deployment(found: Deployments, split: WorkerSplit) -> Deployment:
    """Return a deployment with the full price of a worker of each kind."""
    problem, work = found.problem, found.problem.workload
    assert isinstance(work, Decode)
    tokens_per_s = split.requests_per_s * work.answer_length
    rent = step_cost_usd(problem.system.chip, MILLION / tokens_per_s, float(split.num_devices))
    host_s = float(host_of_prompt_s(problem.constants, float(work.prompt_length or 0)))
    prefill = _worker(found.prefill, split.prefill_row)
    decode = _worker(found.decode, split.decode_row)
    return Deployment(
        prefill=WorkerPool(split.num_prefill, prefill, split.prefill_share),
        decode=WorkerPool(split.num_decode, decode, split.decode_share),
        requests_per_s=split.requests_per_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / problem.system.num_alive,
        sequences_in_flight=split.requests_per_s * (work.answer_length - 1.0) * split.step_s,
        num_devices_used=split.num_devices,
        first_token_s=split.first_token_s,
        first_token_interval_s=interval_of(split.first_token_s, problem.ends(TTFT)),
        latency_interval_s=interval_of(split.step_s, problem.ends(TPOT)),
        tokens_per_s_interval=rates_of(tokens_per_s, problem.ends(THROUGHPUT)),
        first_token_parts_s={
            "queue_s": split.queue_s,
            "pass_s": split.pass_s - host_s,
            "host_s": host_s,
            "transfer_s": split.transfer_s,
        },
        latency_s=split.step_s,
        cost_usd_per_million_tokens=known_at(rent),
    )


def _worker(kind: WorkerKind, index: int) -> ServingCandidate:
    """Return one worker, with rates over its own devices."""
    found = serving_candidate(kind.space.problem, *kind.candidate(index))
    price = found.estimate
    own = price.tokens_per_s / price.num_devices_used
    return replace(found, estimate=replace(price, tokens_per_s_per_device=own))


def _warnings_of_split(problem: ServingProblem, best: Deployment) -> list[str]:
    """Return the notes for the reader beside the numbers."""
    notes, num_alive = [], problem.system.num_alive
    notes.append(
        "prompts arrive at random, at any worker; a cache is sent after its pass, over the slowest "
        "network level"
    )
    if not problem.calibration.is_calibrated:
        notes.append(UNCALIBRATED_NOTE)
    if best.num_devices_used < num_alive:
        notes.append(f"{num_alive - best.num_devices_used} of {num_alive} devices stay idle")
    return notes


def facts_of(plan: ServingPlan | DisaggregatedPlan) -> Iterator[Facts]:
    """Yield the facts of each candidate of a plan, the best one first."""
    if isinstance(plan, ServingPlan):
        yield from (_of_candidate(plan, found) for found in (plan.best, *plan.runners_up))
        return
    for found in (plan.best, *plan.runners_up):
        facts = _of_deployment(plan, found)
        yield from (facts, facts.prefill, facts.decode)


def _of_candidate(
    question: ServingPlan | DisaggregatedPlan, candidate: ServingCandidate, **stated: Any
) -> ServingFacts:
    """Return the facts of one way of serving."""
    chip = question.system.chip
    return gathered(
        ServingFacts, candidate.estimate, question,
        answer=candidate.text,
        degrees=vars(candidate.strategy),
        choices=vars(candidate.plan_options),
        energy_is_of_operations=None
        not in (chip.energy_j_per_flop, chip.main_memory.energy_j_per_byte),
        **stated,
    )  # fmt: skip


def _of_deployment(plan: DisaggregatedPlan, found: Deployment) -> DeploymentFacts:
    """Return the facts of workers of two kinds: those of prefill see prompts alone."""
    work = plan.workload
    prompts = Prefill(
        batch_size=work.batch_size, prompt_length=work.prompt_length or 1,
        precision=work.precision, software=work.software,
    )  # fmt: skip
    return gathered(
        DeploymentFacts, found, plan,
        answer=found.text,
        prefill=_of_candidate(plan, found.prefill.worker, workload=prompts),
        decode=_of_candidate(plan, found.decode.worker),
        num_prefill=found.prefill.number,
        num_decode=found.decode.number,
    )  # fmt: skip
