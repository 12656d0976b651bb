"""The views of serving: the rates and the plan first, then a section for each question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from meshwright.base.units import format_bytes, format_number, format_seconds
from meshwright.serve.answer import (
    EVERY_ROW,
    Deployment,
    DisaggregatedPlan,
    ServingCandidate,
    ServingFront,
    ServingPlan,
    WorkerPool,
)
from meshwright.serve.passes import tokens_per_step
from meshwright.spec.workload import Decode
from meshwright.view.drawn import largest
from meshwright.view.parts import Code, Page, Part, Plot, Section, Table, Text, Tile, Whole
from meshwright.view.pieces import (
    constants,
    gain_parts,
    gains_of,
    launch_parts,
    network_tile,
    provenance,
)
from meshwright.view.registry import view
from meshwright.view.words import counted, named_type, per_million_tokens, percent, rent_rate

REMEDIES = {
    "matmul_compute_s": "arithmetic; shorter with lower precision of the products, more devices",
    "matmul_memory_s": "reading weights; shorter with a larger batch, narrower weights, more tp",
    "attention_s": "attention over the cache; shorter with less context, a narrower cache",
    "elementwise_s": "elementwise work; shorter with a fusing compiler",
    "launch_s": "kernel launches; shorter with CUDA graphs",
    "reduction_s": "waits at sums over the cores of a chip; shorter with fewer layers",
    "mesh_s": "sums on the links between cores; shorter with less context, a smaller mesh",
    "tp_comm_s": "collectives of tp; shorter with less tp, faster links inside the host",
    "cp_comm_s": "the ring of keys and values; shorter with less cp",
    "ep_comm_s": "dispatch to experts; shorter with less ep, faster links between hosts",
    "pp_comm_s": "sends between stages; shorter with less pp",
    "host_s": "the server outside its kernels; shorter with larger batches, another server",
    "draft_s": "passes of the draft; shorter with fewer drafted tokens, a smaller draft",
    "wait_s": "waiting for the slowest stage; shorter with even stages, fewer groups",
    "jitter_s": "the slowest of many devices; shorter with smaller replicas",
}
"""Remedies by the largest part of the time."""


@view(ServingPlan)
def serving_page(
    plan: ServingPlan, *, launch_files: Mapping[str, str] | None = None, launch_command: str = ""
) -> Page:
    """Return the page of a plan of serving.

    Parameters
    ----------
    launch_files
        Files that start a replica, by name; None: no server starts the plan.
    launch_command
        Command that writes them.
    """
    price, launches = plan.best.estimate, f"Launches {launches_text(plan)}."
    stage = f" ({price.fullest_stage} stage)" if plan.best.strategy.pp > 1 else ""
    memory = _memory(f"Memory of the fullest device{stage}", plan.best)
    slowest = f"{format_seconds(price.bottleneck_s)} between passes through the slowest stage."
    sections = (
        Section("plan", "The plan", list(_plan_parts(plan))),
        Section("memory", "Does it fit?", [memory]),
        Section("time", "How fast, and what limits it?", [_time(plan), Text(slowest)]),
        Section("others", "Why not another plan?", list(_other_parts(plan))),
        Section("change", "What if the system were better?", list(_change_parts(plan))),
        Section("space", "What was searched?", list(_space_parts(plan))),
        Section("sure", "How sure is it?", list(_sure_parts(plan))),
        Section("launch", "What to launch",
                list(launch_parts(launches, launch_files, launch_command))),
    )  # fmt: skip
    return Page(
        title=f"{plan.model.name} served on {plan.system.name}",
        subtitle=question_line(plan),
        tiles=list(_tiles(plan, memory, launch_command)),
        sections=sections,
    )


# ------------------------------------------------------------------------------- the first screen


def _latency(plan: ServingPlan) -> str:
    """Return the name of the latency: TPOT or TTFT."""
    return "TPOT" if plan.is_decode else "TTFT"


def _tiles(plan: ServingPlan, memory: Whole, launch_command: str) -> Iterator[Tile]:
    price, s, latency = plan.best.estimate, plan.best.strategy, _latency(plan)
    times = [(latency, price.latency_s, price.latency_interval_s)]
    if price.first_token_s is not None:
        times.insert(0, ("TTFT", price.first_token_s, price.first_token_interval_s))
    rate = plan.requests_per_s
    requests = "" if rate is None else f", {format_number(rate)} requests/s"
    yield Tile(
        "How fast is it?", rates_text(price.tokens_per_s, price.tokens_per_s_interval, times),
        f"{price.tokens_per_s_per_user:,.1f} tokens/s for each user, "
        f"{price.tokens_per_s_per_device:,.1f} a device{requests}; "
        f"{price.fidelity.replace('_', '-')} model",
        "time", "good" if price.fits else "bad", "FITS" if price.fits else "NO FIT",
    )  # fmt: skip
    yield Tile(
        "Which plan is it?", plan.best.text,
        f"batch: {counted(s.dp, 'replica')} x {counted(price.num_groups, 'group')} x "
        f"{counted(s.micro_batch_size, 'sequence')} on "
        f"{counted(price.num_devices_used, 'device')}\n"
        f"KV cache of a replica: {price.cache_tokens:,} tokens; room for "
        f"{counted(price.most_sequences, 'sequence')} on all replicas", "plan", label="plan",
    )  # fmt: skip
    rent = rent_rate(plan.system.chip, price.num_devices_used)
    cost = per_million_tokens(price.cost_usd_per_million_tokens, price.energy_j_per_million_tokens)
    yield Tile("What does it cost?", cost, rent, label="cost")
    yield Tile("What to launch?", launches_text(plan), launch_command, "launch", label="launches")
    if drafts := _drafts(plan):
        yield Tile("What do drafts gain?", drafts, "", "plan", label="drafts", spare=1)
    held, room = (f"{size / 2**30:,.1f}" for size in
                  (price.memory_bytes, price.memory_capacity_bytes))  # fmt: skip
    stage = f", {price.fullest_stage} stage" if plan.best.strategy.pp > 1 else ""
    yield Tile("Does it fit?", f"{held} of {room} GiB{stage}", "", "memory",
               "good" if price.fits else "bad", "memory", memory)  # fmt: skip
    yield Tile("What limits it?", largest(price.time_parts_s, price.latency_s),
               f"share of {latency}", "time", label=latency, part=_time(plan))  # fmt: skip
    part, seconds = max(price.time_parts_s.items(), key=lambda item: item[1])
    share = f"{seconds / price.latency_s:.0%}"
    yield Tile("What would help?", f"{share} is {REMEDIES[part]}", "", "time", label="limit",
               spare=2)  # fmt: skip
    if plan.doubled_latency_s:
        yield network_tile(plan.system, gains_of(plan.doubled_latency_s, price.latency_s))
    others = list(_alternatives(plan))
    label, table = "instead" if others else "", Table(("", "", ""), others)
    yield Tile("Why not another plan?", *_against(plan), "others", "", label, table, spare=1)
    yield Tile("How sure is it?", *_sureness(plan), "sure")


def rates_text(
    tokens_per_s: float, interval: tuple[float, float] | None,
    times: Iterable[tuple[str, float, tuple[float, float] | None]],
) -> str:  # fmt: skip
    """Return a rate and some times, each with the interval of 80 % of measured ones."""
    found = [f"{tokens_per_s:,.0f} tokens/s"]
    if interval is not None:
        found[0] += f" (80 %: {interval[0]:,.0f} to {interval[1]:,.0f})"
    for name, time_s, ends in times:
        between = f" ({format_seconds(ends[0])} to {format_seconds(ends[1])})" if ends else ""
        found.append(f"{name} {format_seconds(time_s)}{between}")
    return ", ".join(found)


def launches_text(plan: ServingPlan) -> str:
    """Return the servers that start a plan, and the one for which it is priced."""
    known = [name for name in plan.best.launches_with if name != plan.server]
    if plan.server in plan.best.launches_with:
        return f"with {plan.server}, as asked" + (f"; also {', '.join(known)}" if known else "")
    start = f"with {', '.join(known)}" if known else "with no server of the catalog"
    return f"{start}; priced for {plan.server} (--framework)"


def _drafts(plan: ServingPlan) -> str:
    """Return the drafted tokens, and the tokens of a step; empty without drafts."""
    drafts = plan.workload.speculation if isinstance(plan.workload, Decode) else None
    if drafts is None:
        return ""
    name = drafts.draft.name if drafts.draft else "its own prediction layer"
    yielded = tokens_per_step(drafts.acceptance, drafts.drafted_tokens)
    return (
        f"{counted(drafts.drafted_tokens, 'token')} a step by {name}, {drafts.acceptance:.0%} "
        f"accepted as stated: {yielded:.2f} tokens a step"
    )


def _alternatives(plan: ServingPlan) -> Iterator[tuple[str, str, str]]:
    """Yield two other points of the front, else the runners-up: the plan, its time, its gain."""
    ours, front, latency = plan.best.estimate, plan.front, _latency(plan)
    chosen: list[tuple[str, float, float]] = []
    rate = ours.tokens_per_s_per_device
    if front is not None:
        points = zip(front.plans, front.latency_s, front.tokens_per_s_per_device, strict=True)
        ranked = sorted(points, key=lambda item: item[1])
        quick = [item for item in ranked if item[1] < 0.95 * ours.latency_s]
        wide = [item for item in ranked if item[2] > 1.005 * rate]
        chosen = [*quick[:1], *wide[-1:]]
        if quick and not wide:
            middle_s = (ranked[0][1] * ours.latency_s) ** 0.5
            chosen.append(min(quick, key=lambda item: abs(item[1] - middle_s)))
        chosen = list(dict.fromkeys(chosen))
    for text, seconds, each in chosen:
        yield text, f"{latency} {format_seconds(seconds)}", f"{each / rate - 1.0:+.0%} tokens/s"
    for entry in plan.runners_up[: 2 - len(chosen)]:
        price = entry.estimate
        yield (entry.text, f"{latency} {format_seconds(price.latency_s)}",
               f"{price.tokens_per_s / ours.tokens_per_s - 1.0:+.1%} tokens/s")  # fmt: skip


def _against(plan: ServingPlan) -> tuple[str, str]:
    """Return the distance of the runner-up, and the size of the search."""
    cover = plan.coverage
    searched = "" if cover is None else f"{cover.num_candidates:,} plans covered, none is better"
    if not plan.runners_up:
        others = 0 if cover is None else cover.num_priced - plan.num_too_slow - 1
        return f"It leads {others:,} others" if others > 0 else "No other one fits", searched
    ours, other = plan.best.estimate, plan.runners_up[0].estimate
    if plan.objective == "latency":
        slower = other.latency_s / ours.latency_s - 1.0
        return f"{_latency(plan)} of the next one is {slower:.1%} longer", searched
    return f"The next one does {1.0 - other.tokens_per_s / ours.tokens_per_s:.1%} less", searched


def _sureness(plan: ServingPlan) -> tuple[str, str]:
    if not plan.errors or not plan.best.estimate.is_calibrated:
        return "Not calibrated", "the constants of this chip were not fitted to measurements"
    if plan.server in plan.errors:
        known, whose = plan.errors[plan.server], f"of {plan.server}, left out of the fit"
        return f"Median error {percent(known.median)}", whose
    known = plan.errors[EVERY_ROW]
    return f"Median error {percent(known.median)}", "of sources left out of the fit"


# ------------------------------------------------------------------------------------ the sections


def _plan_parts(plan: ServingPlan) -> Iterator[Part]:
    price, s = plan.best.estimate, plan.best.strategy
    yield Code(plan.best.text, "plan string")
    yield Text(
        f"{counted(s.dp, 'replica')}, each on {counted(s.num_devices / s.dp, 'device')}; in each "
        f"{counted(price.num_groups, 'group')} of {counted(s.micro_batch_size, 'sequence')}; "
        f"{counted(price.sequences_in_flight, 'sequence')} in flight on "
        f"{counted(price.num_devices_used, 'device')}."
    )


def _memory(title: str, found: ServingCandidate) -> Whole:
    price = found.estimate
    return Whole(title, price.memory_parts_bytes, "bytes", capacity=price.memory_capacity_bytes)


def _time(plan: ServingPlan) -> Whole:
    """Return the parts of the latency."""
    price = plan.best.estimate
    what = "Time per output token" if plan.is_decode else "Time to the first token"
    return Whole(what, price.time_parts_s, "s", price.latency_s)


def _other_parts(plan: ServingPlan) -> Iterator[Part]:
    latency, ranking = _latency(plan), (plan.best, *plan.runners_up)
    if len(ranking) > 1:
        rows = [
            (number, entry.estimate.tokens_per_s, entry.estimate.latency_s,
             entry.estimate.tokens_per_s_per_user, entry.estimate.memory_bytes, entry.text,
             ", ".join(entry.launches_with) or "none")
            for number, entry in enumerate(ranking, 1)
        ]  # fmt: skip
        head = (">", "tokens/s [#]", f"{latency} [s]", "tokens/s a user>", "memory [bytes]",
                "plan", "launches with")  # fmt: skip
        yield Table(head, rows, f"The leading plans, by {plan.objective}")
    front, work, price = plan.front, plan.workload, plan.best.estimate
    if front is None or len(front.plans) < 2:
        return
    if isinstance(work, Decode):
        limit_s = work.max_time_per_output_token_s
    else:
        limit_s = work.max_time_to_first_token_s
    ours = plan.best.text, "this plan", price.latency_s, price.tokens_per_s_per_device
    yield _front(front, "latency", latency, front.latency_s, limit_s, [ours])
    if front.first_token_s and price.first_token_s is not None and isinstance(work, Decode):
        ours = plan.best.text, "this plan", price.first_token_s, price.tokens_per_s_per_device
        yield _front(front, "the time to the first token", "TTFT", front.first_token_s,
                     work.max_time_to_first_token_s, [ours])  # fmt: skip


def _front(
    front: ServingFront, against: str, name: str, times_s: tuple[float, ...],
    limit_s: float | None = None, ours: Sequence[tuple[str, str, float, float]] = (),
) -> Plot:  # fmt: skip
    """Return throughput against a time, of every plan that no other beats in both."""
    rows = [
        (text, "on the front", time_s, rate)
        for text, time_s, rate in zip(
            front.plans, times_s, front.tokens_per_s_per_device, strict=True
        )
        if all(text != own for own, *_ in ours)
    ]
    within = "" if limit_s is None else f"; the line is the limit, {format_seconds(limit_s)}"
    return Plot(
        f"Throughput against {against}",
        f"{len(front.plans)} plans on the Pareto front of the system and one user"
        f"{within}",
        "points", Table(("plan", "", f"{name} [s]", "tokens/s a device>"), [*ours, *rows]),
        limit_s, f"limit of {name}",
    )  # fmt: skip


def _change_parts(plan: ServingPlan) -> Iterator[Part]:
    if plan.doubled_latency_s:
        gains = gains_of(plan.doubled_latency_s, plan.best.estimate.latency_s)
        yield from gain_parts(f"{_latency(plan)} of the same plan on a better system", gains)


def _space_parts(plan: ServingPlan) -> Iterator[Part]:
    cover = plan.coverage
    if cover is None:
        return
    yield Text(
        f"Every one of {cover.num_candidates:,} plans is accounted for; "
        f"{format_seconds(cover.elapsed_s)}. The proof is of the model of cost."
    )
    yield Whole("What became of the plans", {
        "priced": cover.num_priced - plan.num_too_slow,
        "priced, over the latency": plan.num_too_slow,
        "refused by a rule": sum(cover.num_refused.values()),
        "over memory": cover.num_over_memory,
    }, "#")  # fmt: skip
    if cover.num_refused:
        yield Whole("Plans refused, by rule", cover.num_refused, "#")


def _sure_parts(plan: ServingPlan) -> Iterator[Part]:
    answer, whose = _sureness(plan)
    yield Text(f"{answer}: {whose}. Fidelity: {plan.best.estimate.fidelity.replace('_', '-')}.")
    if plan.errors:
        rows = [
            (name, error.rows, error.median, error.p90, percent(error.bias, sign=True))
            for name, error in plan.errors.items()
        ]  # fmt: skip
        head = ("figure or server", "rows [#]", "median [%]", "90th percentile [%]", "bias>")
        yield Table(head, rows, "Errors by figure and by server, each left out of the fit: "
                    "|ln(predicted / measured)|")  # fmt: skip
    yield provenance(plan.system)
    if plan.constants:
        yield constants(plan.constants, plan.calibration)


@view(ServingFront)
def front_page(front: ServingFront) -> Page:
    """Return the page of the plans that no other beats for both the system and one user."""
    fastest = front.tokens_per_s_per_device.index(max(front.tokens_per_s_per_device))
    quickest = front.latency_s.index(min(front.latency_s))
    plots = [_front(front, "latency", "latency", front.latency_s)]
    if front.first_token_s:
        plots.append(_front(front, "the time to the first token", "TTFT", front.first_token_s))
    return Page(
        title="Throughput of the system against the time of one user",
        subtitle=f"{counted(len(front.plans), 'plan')} that none beats in both",
        tiles=[
            Tile("Which is the fastest for the system?",
                 f"{front.tokens_per_s_per_device[fastest]:,.1f} tokens/s a device",
                 front.plans[fastest], "front", label="system"),
            Tile("Which is the fastest for a user?",
                 f"{front.tokens_per_s_per_user[quickest]:,.1f} tokens/s a user",
                 front.plans[quickest], "front", label="user"),
        ],
        sections=[Section("front", "Which plans are they?", plots)],
    )  # fmt: skip


# ---------------------------------------------------------------- prefill and decode on own workers


@view(DisaggregatedPlan)
def disaggregated_page(
    plan: DisaggregatedPlan, *, launch_files: Mapping[str, str] | None = None,
    launch_command: str = "",
) -> Page:  # fmt: skip
    """Return the page of a deployment with workers of two kinds.

    Parameters
    ----------
    launch_files
        Files that start a worker of each kind, by name; None: no server starts them.
    launch_command
        Command that writes them.
    """
    best = plan.best
    workers = f"Workers of both kinds: {best.text}."
    sections = (
        Section("plan", "The workers", [_workers(best), Code(best.text, "plan string")]),
        Section("memory", "Does it fit?", [
            _memory(f"Memory of a device of {name}", pool.worker) for name, pool in _pools(best)]),
        Section("time", "How fast, and what limits it?",
                [_first_token(best), _token(best), Text(f"{_growing(plan)}.")]),
        Section("others", "Why not another plan?", list(_other_deployments(plan))),
        Section("space", "What was searched?", list(_spaces(plan))),
        Section("sure", "How sure is it?",
                [Text("Fidelity: closed-form."), provenance(plan.system)]),
        Section("launch", "What to launch",
                list(launch_parts(workers, launch_files, launch_command))),
    )  # fmt: skip
    return Page(
        title=f"{plan.model.name} served on {plan.system.name}, prefill and decode apart",
        subtitle=f"{question_line(plan)}, prefill and decode apart",
        tiles=list(_tiles_of_workers(plan, launch_command)),
        sections=sections,
    )


def _pools(best: Deployment) -> tuple[tuple[str, WorkerPool], ...]:
    return ("prefill", best.prefill), ("decode", best.decode)


def _tiles_of_workers(plan: DisaggregatedPlan, launch_command: str) -> Iterator[Tile]:
    best = plan.best
    yield Tile(
        "How fast is it?",
        rates_text(best.tokens_per_s, best.tokens_per_s_interval, (
            ("TTFT", best.first_token_s, best.first_token_interval_s),
            ("TPOT", best.latency_s, best.latency_interval_s),
        )),
        f"{1.0 / best.latency_s:,.1f} tokens/s for each user, "
        f"{best.tokens_per_s_per_device:,.1f} a device, "
        f"{format_number(best.requests_per_s)} requests/s",
        "time", "good", "FITS",
    )  # fmt: skip
    yield Tile("Which workers are best?", best.text, "", "plan", label="plan")
    yield Tile("Why not workers that do both?", verdict(plan), "", "others", label="mixed")
    yield Tile("What does it cost?", per_million_tokens(best.cost_usd_per_million_tokens, None),
               rent_rate(plan.system.chip, best.num_devices_used), label="cost")  # fmt: skip
    for name, pool in _pools(best):
        more = "" if name == "prefill" else _growing(plan)
        yield Tile(f"Which workers of {name}?", _pool(pool), more, "plan", label=name)
    sizes = [
        f"{name} {format_bytes(pool.worker.estimate.memory_bytes)}" for name, pool in _pools(best)
    ]
    room = format_bytes(best.decode.worker.estimate.memory_capacity_bytes)
    yield Tile("Does it fit?", f"Yes, {', '.join(sizes)} of {room}",
               "on the fullest device of each", "memory", "good")  # fmt: skip
    busiest, pool = max(_pools(best), key=lambda entry: entry[1].busy_share)
    yield Tile("What limits it?", f"{busiest} workers, {pool.busy_share:.0%} busy",
               "share of the requests that they could take", "time")  # fmt: skip
    for name, part, spare in (("TTFT", _first_token(best), 0), ("TPOT", _token(best), 2)):
        yield Tile(f"What is in {name}?", largest(part.parts, part.whole or 1.0), "", "time",
                   label=name, part=part, spare=spare)  # fmt: skip
    rows = [
        (entry.text, f"TTFT {format_seconds(entry.first_token_s)}",
         f"{entry.tokens_per_s / best.tokens_per_s - 1.0:+.1%} tokens/s")
        for entry in plan.runners_up[:2]
    ]  # fmt: skip
    if rows:
        yield Tile("Which other workers?", rows[0][0], rows[0][2], "others", label="instead",
                   part=Table(("", "", ""), rows), spare=1)  # fmt: skip
    yield Tile("What to launch?", best.text, launch_command, "launch")


def verdict(plan: DisaggregatedPlan) -> str:
    """Return the better one within the limits: separate workers, or workers that do both."""
    mixed, ratio = plan.aggregated, plan.speedup
    if mixed is None or ratio is None:
        return "no worker that does both keeps the limits"
    times = f"TTFT {format_seconds(mixed.estimate.first_token_s or 0.0)}, TPOT "
    times += format_seconds(mixed.estimate.latency_s)
    other = f"{mixed.text} ({mixed.estimate.tokens_per_s:,.0f} tokens/s, {times})"
    more = f"{abs(ratio - 1.0):.0%} {'more' if ratio >= 1.0 else 'less'}"
    return f"{more} throughput than workers that do both: {other}"


def _pool(pool: WorkerPool) -> str:
    each = counted(pool.worker.estimate.num_devices_used, "device")
    return (
        f"{counted(pool.number, 'worker')} of {each}: {pool.worker.text}; {pool.busy_share:.0%} "
        "busy"
    )


def _growing(plan: DisaggregatedPlan) -> str:
    best = plan.best
    idle = plan.system.num_alive - best.num_devices_used
    return (
        f"{counted(best.sequences_in_flight, 'answer grows', 'answers grow')} at once on "
        f"{counted(best.num_devices_used, 'device')}" + (f", {idle:,} stay idle" if idle else "")
    )


def _workers(best: Deployment) -> Table:
    rows = [
        (name, pool.number, pool.worker.estimate.num_devices_used, pool.worker.text,
         f"{pool.busy_share:.0%}")
        for name, pool in _pools(best)
    ]  # fmt: skip
    return Table(("kind", "workers [#]", "devices of each [#]", "split of each", "busy>"), rows)


def _first_token(best: Deployment) -> Whole:
    return Whole("Time to the first token", best.first_token_parts_s, "s", best.first_token_s)


def _token(best: Deployment) -> Whole:
    price = best.decode.worker.estimate
    return Whole("Time per output token", price.time_parts_s, "s", price.latency_s)


def _other_deployments(plan: DisaggregatedPlan) -> Iterator[Part]:
    yield Text(f"{verdict(plan)[:1].upper()}{verdict(plan)[1:]}.")
    rows: list[tuple[float | str | None, ...]] = [
        (entry.tokens_per_s, entry.first_token_s, entry.latency_s, entry.num_devices_used,
         entry.text)
        for entry in (plan.best, *plan.runners_up)
    ]  # fmt: skip
    if plan.aggregated is not None:
        mixed = plan.aggregated.estimate
        rows.append(
            (mixed.tokens_per_s, mixed.first_token_s, mixed.latency_s, mixed.num_devices_used,
             f"workers that do both: {plan.aggregated.text}")
        )  # fmt: skip
    head = ("tokens/s [#]", "TTFT [s]", "TPOT [s]", "devices [#]", "plan")
    yield Table(head, rows, "The leading deployments side by side")


def _spaces(plan: DisaggregatedPlan) -> Iterator[Part]:
    kinds = (("prefill", plan.prefill_coverage), ("decode", plan.decode_coverage))
    for name, cover in kinds:
        yield Whole(f"What became of the plans of a {name} worker", {
            "priced": cover.num_priced, "refused by a rule": sum(cover.num_refused.values()),
            "over memory": cover.num_over_memory, "beyond the bound": cover.num_beyond_bound,
            "dominated": cover.num_dominated,
        }, "#")  # fmt: skip
    yield Text(
        "All pairs of both kinds, and all numbers of workers, are covered; "
        f"{format_seconds(plan.decode_coverage.elapsed_s)}."
    )


# ------------------------------------------------------------------------------------ the question


def question_line(plan: ServingPlan | DisaggregatedPlan) -> str:
    """Return the question in a line: model, system, batch, lengths, types and the limit."""
    work = plan.workload
    if isinstance(work, Decode) and work.prompt_length is not None:
        what = (
            f"{work.batch_size:,} requests of {work.prompt_length:,} + {work.answer_length:,} "
            "tokens at once"
        )
        limit_s = work.max_time_per_output_token_s
    elif isinstance(work, Decode):
        what = f"decode of {work.batch_size:,} sequences with {work.context_length:,} tokens each"
        limit_s = work.max_time_per_output_token_s
    else:
        what = f"prefill of {work.prompt_length:,} tokens, batches of {work.batch_size:,}"
        limit_s = work.max_time_to_first_token_s
    within = "" if limit_s is None else f", within {format_seconds(limit_s)}"
    if isinstance(work, Decode) and work.max_time_to_first_token_s is not None:
        within = "" if limit_s is None else f", TPOT within {format_seconds(limit_s)}"
        within += f", TTFT within {format_seconds(work.max_time_to_first_token_s)}"
    precision = work.precision
    weights = named_type(precision.weight_name, plan.system.chip)
    types = f"weights {weights}, cache {precision.kv_cache}"
    objective = plan.objective if isinstance(plan, ServingPlan) else "throughput"
    return f"{plan.model.name} on {plan.system.name}: {what}, {types}; best {objective}{within}"
