"""The screens of serving: the answer first; in the detail the ranking, the front, the proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshwright.base.units import format_bytes, format_number, format_seconds
from meshwright.serve.answer import (
    Deployment,
    DisaggregatedPlan,
    ServingFront,
    ServingPlan,
    WorkerPool,
)
from meshwright.serve.speculation import tokens_per_step
from meshwright.spec.workload import Decode
from meshwright.view.screen import (
    Bars,
    Screen,
    Stacked,
    Table,
    memory_lines,
    time_lines,
    wrapped,
)
from meshwright.view.words import (
    named_type,
    per_million_tokens,
    rent_rate,
    words,
)

FRONT_LINES = 8
"""Points of the front that a screen shows."""

REMEDIES = {
    "matmul_compute_s": "arithmetic: lower precision of the products, more devices",
    "matmul_memory_s": "reading weights: a larger batch, narrower weights, more tp",
    "attention_s": "attention over the cache: a narrower cache, shorter context, more devices",
    "elementwise_s": "elementwise work: a fusing compiler",
    "launch_s": "kernel launches: CUDA graphs",
    "reduction_s": "sums over the cores of a chip: larger batches, fewer layers",
    "tp_comm_s": "collectives of tp: less tp, faster links inside the host",
    "cp_comm_s": "the ring of keys and values: less cp",
    "ep_comm_s": "dispatch to experts: less ep, faster links between hosts",
    "pp_comm_s": "sends between stages: less pp",
    "host_s": "the server outside its kernels: larger batches, another server",
    "draft_s": "passes of the draft: fewer drafted tokens, a smaller draft",
    "wait_s": "waiting for the slowest stage: even stages, fewer groups",
    "jitter_s": "the slowest of many devices: smaller replicas",
}
"""Remedies by the largest part of the time."""


def serving_screen(plan: ServingPlan, *, next_command: str = "") -> Screen:
    """Return the default screen of a plan of serving, the answer first."""
    price, latency = plan.best.estimate, "TPOT" if plan.is_decode else "TTFT"
    screen = Screen(question_line(plan))
    screen.gap()
    said = [(latency, price.latency_s, price.latency_interval_s)]
    if price.first_token_s is not None:
        said.insert(0, ("TTFT", price.first_token_s, price.first_token_interval_s))
    text = rates_text(price.tokens_per_s, price.tokens_per_s_interval, said)
    label, style = ("FITS", "bold green") if price.fits else ("NO FIT", "bold red")
    screen.add(label, text, style=style)
    text = (
        f"{price.tokens_per_s_per_user:,.1f} tokens/s for each user, "
        f"{price.tokens_per_s_per_device:,.1f} a device{_requests(plan)}; "
        f"{price.fidelity.replace('_', '-')} model"
    )
    screen.add("", text, spare=2)
    cost = per_million_tokens(price.cost_usd_per_million_tokens, price.energy_j_per_million_tokens)
    screen.add("cost", cost)
    if rate := rent_rate(plan.system.chip, price.num_devices_used):
        screen.add("", rate, spare=1)
    screen.add("plan", plan.best.text, style="bold")
    text = (
        f"{price.sequences_in_flight:,.0f} sequences in flight on {price.num_devices_used:,} "
        f"devices; the KV cache has room for {price.most_sequences:,}"
    )
    screen.add("", text, spare=3)
    screen.add("", f"KV cache of a replica: {price.cache_tokens:,} tokens", spare=2)
    screen.add("launches", launches_text(plan))
    if drafts := _drafts(plan):
        screen.add("drafts", drafts, spare=1)
    screen.gap()
    head = f"{_gib(price.memory_bytes)} of {_gib(price.memory_capacity_bytes)} GiB"
    if plan.best.strategy.pp > 1:
        head += f", {price.fullest_stage} stage"
    parts = {words(name): size for name, size in price.memory_parts_bytes.items()}
    screen.add("memory", Stacked(head, parts, price.memory_capacity_bytes, _gib))
    screen.gap()
    times = {words(name): seconds for name, seconds in price.time_parts_s.items()}
    screen.add(latency, Bars(times, format_seconds))
    name, seconds = max(price.time_parts_s.items(), key=lambda item: item[1])
    screen.add("limit", f"{seconds / price.latency_s:.0%} {REMEDIES[name]}", spare=2)
    if rows := _alternatives(plan, latency):
        screen.gap()
        screen.add("instead", Table(("", "", ""), rows), spare=1)
    screen.gap()
    if plan.warnings:
        left = len(plan.warnings) - 1
        more = f" ({left} more with --detail)" if left else ""
        screen.add("warning", plan.warnings[0] + more, style="yellow")
    if next_command:
        screen.add("next", next_command, style="bold")
    return screen


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
    number = f"{drafts.drafted_tokens} token{'s' if drafts.drafted_tokens > 1 else ''}"
    return (
        f"{number} a step by {name}, {drafts.acceptance:.0%} accepted as stated: {yielded:.2f} "
        "tokens a step"
    )


def _requests(plan: ServingPlan) -> str:
    rate = plan.requests_per_s
    return "" if rate is None else f", {format_number(rate)} requests/s"


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f}"


def _alternatives(plan: ServingPlan, latency: str) -> list[tuple[str, str, str]]:
    """Return two other points of the front, or the runners-up: the plan, its gain, its price."""
    ours, front, found = plan.best.estimate, plan.front, []
    if front is not None:
        rate, least_s = ours.tokens_per_s_per_device, min(front.latency_s)
        points = zip(front.plans, front.tokens_per_s_per_device, front.latency_s, strict=True)
        ranked = sorted(points, key=lambda item: item[2])
        middle_s = (least_s * ours.latency_s) ** 0.5
        quick = [item for item in ranked if item[2] < 0.95 * ours.latency_s]
        wide = [item for item in ranked if item[1] > 1.005 * rate]
        chosen = [*quick[:1], *wide[-1:]]
        if quick and not wide:
            chosen.append(min(quick, key=lambda item: abs(item[2] - middle_s)))
        for text, each, seconds in dict.fromkeys(chosen):
            found.append((text, f"{latency} {format_seconds(seconds)}",
                          f"{each / rate - 1.0:+.0%} tokens/s"))  # fmt: skip
    for entry in plan.runners_up[: 2 - len(found)]:
        price = entry.estimate
        found.append((entry.text, f"{latency} {format_seconds(price.latency_s)}",
                      f"{price.tokens_per_s / ours.tokens_per_s - 1.0:+.1%} tokens/s"))  # fmt: skip
    return found


def serving_lines(plan: ServingPlan) -> Iterator[str]:
    """Yield the lines that the screen leaves out: memory, time, ranking, front, limits, proof."""
    best, price = plan.best, plan.best.estimate
    where = f"{price.fullest_stage} stage" if best.strategy.pp > 1 else "every device"
    parts, capacity = price.memory_parts_bytes, price.memory_capacity_bytes
    yield from memory_lines(parts, price.memory_bytes, capacity, where)
    yield ""
    name = "time per output token" if plan.is_decode else "time to the first token"
    yield from time_lines(name, price.time_parts_s, price.latency_s)
    yield ""
    yield f"top {1 + len(plan.runners_up)}: tokens/s, latency, memory"
    for number, entry in enumerate((best, *plan.runners_up), start=1):
        other = entry.estimate
        head = (
            f"  {number}  {other.tokens_per_s:>11,.0f}  {format_seconds(other.latency_s):>8} "
            f"{format_bytes(other.memory_bytes):>9}  "
        )
        yield from wrapped(head, entry.text)
    if plan.front is not None and len(plan.front.plans) > 1:
        yield ""
        yield from _front(plan.front)
    yield ""
    name, seconds = max(price.time_parts_s.items(), key=lambda item: item[1])
    headroom = format_bytes(capacity - price.memory_bytes)
    text = f"{seconds / price.latency_s:.0%} {REMEDIES[name]}; {headroom} of memory left"
    yield from wrapped("limits: ", text)
    cover = plan.coverage
    if cover is not None:
        refused = sum(cover.num_refused.values())
        yield from wrapped(
            "proof: ",
            f"{cover.num_candidates:,} candidates = {cover.num_priced:,} priced + {refused:,} "
            f"refused by rule + {cover.num_over_memory:,} over memory; {plan.num_too_slow:,} of "
            f"the priced ones are too slow; {cover.elapsed_s:.2f} s",
        )
    for warning in plan.warnings:
        yield from wrapped("warning: ", warning)


def _front(front: ServingFront) -> Iterator[str]:
    """Yield some points of the front, evenly taken, both ends among them."""
    number = len(front.plans)
    shown = min(number, FRONT_LINES)
    rows = sorted({round(k * (number - 1) / (shown - 1)) for k in range(shown)})
    more = ", TTFT" if front.first_token_s else ""
    yield f"front: {number} plans, {len(rows)} shown (tokens/s a user, tokens/s a device{more})"
    for index in rows:
        head = (
            f"  {front.tokens_per_s_per_user[index]:>10,.1f} "
            f"{front.tokens_per_s_per_device[index]:>10,.1f}  "
        )
        if front.first_token_s:
            head += f"{format_seconds(front.first_token_s[index]):>8}  "
        yield from wrapped(head, front.plans[index])


def disaggregated_screen(plan: DisaggregatedPlan, *, next_command: str = "") -> Screen:
    """Return the default screen of workers of prefill and of decode, the answer first."""
    best = plan.best
    screen = Screen(f"{question_line(plan)}, prefill and decode apart")
    screen.gap()
    text = rates_text(best.tokens_per_s, best.tokens_per_s_interval, (
        ("TTFT", best.first_token_s, best.first_token_interval_s),
        ("TPOT", best.latency_s, best.latency_interval_s),
    ))  # fmt: skip
    screen.add("FITS", text, style="bold green")
    rates = (
        f"{1.0 / best.latency_s:,.1f} tokens/s for each user, "
        f"{best.tokens_per_s_per_device:,.1f} a device, "
        f"{format_number(best.requests_per_s)} requests/s; closed-form model"
    )
    screen.add("", rates, spare=2)
    screen.add("", verdict(plan))
    screen.add("cost", per_million_tokens(best.cost_usd_per_million_tokens, None))
    if rate := rent_rate(plan.system.chip, best.num_devices_used):
        screen.add("", rate, spare=1)
    for name, pool in (("prefill", best.prefill), ("decode", best.decode)):
        screen.add(name, _pool(pool), style="bold")
    idle = plan.system.num_alive - best.num_devices_used
    text = f"{best.sequences_in_flight:,.0f} answers grow at once on {best.num_devices_used:,}"
    screen.add("", f"{text} devices" + (f", {idle:,} stay idle" if idle else ""), spare=3)
    screen.gap()
    parts = {words(name): seconds for name, seconds in best.first_token_parts_s.items()}
    screen.add("TTFT", Bars(parts, format_seconds))
    screen.gap()
    times = best.decode.worker.estimate.time_parts_s
    screen.add("TPOT", Bars({words(name): s for name, s in times.items()}, format_seconds), spare=2)
    if rows := [_instead(plan, entry) for entry in plan.runners_up[:2]]:
        screen.gap()
        screen.add("instead", Table(("", "", ""), rows), spare=1)
    screen.gap()
    if plan.warnings:
        screen.add("warning", plan.warnings[0], style="yellow")
    if next_command:
        screen.add("next", next_command, style="bold")
    return screen


def verdict(plan: DisaggregatedPlan) -> str:
    """Return the better one within the limits: separate workers, or workers that do both."""
    mixed, ratio = plan.aggregated, plan.speedup
    if mixed is None or ratio is None:
        return "no worker that does both keeps the limits"
    times = f"TTFT {format_seconds(mixed.estimate.first_token_s or 0.0)}, TPOT "
    times += format_seconds(mixed.estimate.latency_s)
    other = f"{mixed.text} ({mixed.estimate.tokens_per_s:,.0f} tokens/s, {times})"
    if ratio >= 1.0:
        return f"{ratio - 1.0:+.0%} over workers that do both: {other}"
    return f"{ratio - 1.0:+.0%}: workers that do both win: {other}"


def _pool(pool: WorkerPool) -> str:
    number = f"{pool.number} worker{'s' if pool.number > 1 else ''}"
    each = pool.worker.estimate.num_devices_used
    devices = f"{each} device{'s' if each > 1 else ''}"
    return f"{number} of {devices}: {pool.worker.text}; {pool.busy_share:.0%} busy"


def _instead(plan: DisaggregatedPlan, entry: Deployment) -> tuple[str, str, str]:
    first = f"TTFT {format_seconds(entry.first_token_s)}"
    return entry.text, first, f"{entry.tokens_per_s / plan.best.tokens_per_s - 1.0:+.1%} tokens/s"


def disaggregated_lines(plan: DisaggregatedPlan) -> Iterator[str]:
    """Yield the lines of the detail: both memories, the ranking, the proof, the warnings."""
    best = plan.best
    for pool in (best.prefill, best.decode):
        price = pool.worker.estimate
        parts, capacity = price.memory_parts_bytes, price.memory_capacity_bytes
        yield from memory_lines(parts, price.memory_bytes, capacity, pool.worker.text)
        yield ""
    yield f"top {1 + len(plan.runners_up)}: tokens/s, TTFT, TPOT"
    for number, entry in enumerate((best, *plan.runners_up), start=1):
        head = (
            f"  {number}  {entry.tokens_per_s:>11,.0f}  {format_seconds(entry.first_token_s):>8} "
            f"{format_seconds(entry.latency_s):>9}  "
        )
        yield from wrapped(head, entry.text)
    yield ""
    kinds = (("prefill", plan.prefill_coverage), ("decode", plan.decode_coverage))
    texts = [
        f"{name} {cover.num_candidates:,} candidates = {cover.num_priced:,} priced + "
        f"{sum(cover.num_refused.values()):,} refused by rule + {cover.num_over_memory:,} over "
        "memory"
        for name, cover in kinds
    ]
    elapsed_s = plan.decode_coverage.elapsed_s
    yield from wrapped("proof: ", f"all pairs of {' and '.join(texts)}; {elapsed_s:.2f} s")
    for warning in plan.warnings:
        yield from wrapped("warning: ", warning)


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
