"""The report of prefill and decode on separate workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.base.units import format_bytes, format_number, format_seconds
from meshwright.serve.answer import Deployment, DisaggregatedPlan, WorkerPool
from meshwright.serve.report import question_line, verdict
from meshwright.view.parts import Chart, Code, Page, Part, Section, Table, Text, Tile
from meshwright.view.pieces import (
    count_chart,
    launch_parts,
    memory_chart,
    provenance,
    time_chart,
)
from meshwright.view.words import counted, per_million_tokens, rent_rate


def disaggregated_page(
    plan: DisaggregatedPlan, *, launch_files: Mapping[str, str] | None = None,
    launch_command: str = "",
) -> Page:  # fmt: skip
    """Return the report of a deployment with workers of two kinds.

    Parameters
    ----------
    launch_files
        Files that start a worker of each kind, by name; None: no server starts them.
    launch_command
        Command that writes them.
    """
    best = plan.best
    sections = (
        Section("plan", "The workers", [_workers(best), Code(best.text, "plan string")]),
        Section("memory", "Does it fit?", list(_memory_parts(best))),
        Section("time", "How fast, and what limits it?", list(_time_parts(best))),
        Section("others", "Why not another plan?", list(_other_parts(plan))),
        Section("space", "What was searched?", list(_space_parts(plan))),
        Section("sure", "How sure is it?", [provenance(plan.system)]),
        Section("launch", "What to launch",
                list(launch_parts(f"Workers of both kinds: {best.text}.", launch_files,
                                  launch_command))),
    )  # fmt: skip
    return Page(
        title=f"{plan.model.name} served on {plan.system.name}, prefill and decode apart",
        subtitle=question_line(plan),
        tiles=list(_tiles(plan, launch_command)),
        sections=[section for section in sections if section.parts],
        warnings=plan.warnings,
        command=plan.command,
        version=plan.version,
    )


def _pools(best: Deployment) -> tuple[tuple[str, WorkerPool], ...]:
    return ("prefill", best.prefill), ("decode", best.decode)


def _tiles(plan: DisaggregatedPlan, launch_command: str) -> Iterator[Tile]:
    best = plan.best
    sizes = [
        f"{name} {format_bytes(pool.worker.estimate.memory_bytes)}" for name, pool in _pools(best)
    ]
    room = format_bytes(best.decode.worker.estimate.memory_capacity_bytes)
    yield Tile(
        "Does it fit?", f"Yes, {', '.join(sizes)} of {room}", "on the fullest device of each",
        "memory", "good",
    )  # fmt: skip
    yield Tile(
        "How fast is it?", f"{best.tokens_per_s:,.0f} tokens/s",
        f"TTFT {format_seconds(best.first_token_s)}, TPOT {format_seconds(best.latency_s)}, "
        f"{format_number(best.requests_per_s)} requests/s", "time",
    )  # fmt: skip
    busiest, pool = max(_pools(best), key=lambda entry: entry[1].busy_share)
    yield Tile("What limits it?", f"{busiest} workers, {pool.busy_share:.0%} busy",
               "of the requests that they could take", "time")  # fmt: skip
    yield Tile("Why not workers that do both?", _against(plan), verdict(plan), "others")
    money = per_million_tokens(best.cost_usd_per_million_tokens, None)
    yield Tile("What does it cost?", money, rent_rate(plan.system.chip, best.num_devices_used))
    yield Tile("What to launch?", best.text, launch_command, "launch")


def _against(plan: DisaggregatedPlan) -> str:
    ratio = plan.speedup
    if ratio is None:
        return "None of them keeps the limits"
    return f"Apart is {abs(ratio - 1.0):.0%} {'faster' if ratio >= 1.0 else 'slower'}"


def _workers(best: Deployment) -> Table:
    rows = [
        (name, f"{pool.number:,}", f"{pool.worker.estimate.num_devices_used:,}", pool.worker.text,
         f"{pool.busy_share:.0%}")
        for name, pool in _pools(best)
    ]  # fmt: skip
    return Table(("kind", "workers>", "devices of each>", "split of each", "busy>"), rows)


def _memory_parts(best: Deployment) -> Iterator[Part]:
    for name, pool in _pools(best):
        price = pool.worker.estimate
        yield memory_chart(
            f"Memory of a device of {name}", price.memory_parts_bytes, price.memory_capacity_bytes
        )


def first_token_of(best: Deployment) -> Chart:
    """Return the chart of the parts of the time to the first token."""
    return time_chart("Time to the first token", best.first_token_parts_s, best.first_token_s)


def time_of(best: Deployment) -> Chart:
    """Return the chart of the parts of the time per output token."""
    price = best.decode.worker.estimate
    return time_chart("Time per output token", price.time_parts_s, price.latency_s)


def _time_parts(best: Deployment) -> Iterator[Part]:
    yield first_token_of(best)
    yield time_of(best)
    growing = counted(best.sequences_in_flight, "answer grows", "answers grow")
    yield Text(f"{growing} at once; {best.tokens_per_s_per_device:,.1f} tokens/s a device.")


def _other_parts(plan: DisaggregatedPlan) -> Iterator[Part]:
    yield Text(verdict(plan)[:1].upper() + verdict(plan)[1:] + ".")
    rows = [_row(entry) for entry in (plan.best, *plan.runners_up)]
    mixed = plan.aggregated
    if mixed is not None:
        price = mixed.estimate
        first = "" if price.first_token_s is None else format_seconds(price.first_token_s)
        rows.append(
            (f"{price.tokens_per_s:,.0f}", first, format_seconds(price.latency_s),
             f"{price.num_devices_used:,}", f"workers that do both: {mixed.text}")
        )  # fmt: skip
    head = ("tokens/s>", "TTFT>", "TPOT>", "devices>", "plan")
    yield Table(head, rows, "The leading deployments side by side")


def _row(entry: Deployment) -> tuple[str, ...]:
    return (
        f"{entry.tokens_per_s:,.0f}", format_seconds(entry.first_token_s),
        format_seconds(entry.latency_s), f"{entry.num_devices_used:,}", entry.text,
    )  # fmt: skip


def _space_parts(plan: DisaggregatedPlan) -> Iterator[Part]:
    kinds = (("prefill", plan.prefill_coverage), ("decode", plan.decode_coverage))
    for name, cover in kinds:
        refused = sum(cover.num_refused.values())
        yield count_chart(
            f"What became of the plans of a {name} worker",
            {"priced": cover.num_priced, "refused by a rule": refused,
             "over memory": cover.num_over_memory, "beyond the bound": cover.num_beyond_bound,
             "dominated": cover.num_dominated}, "plans",
        )  # fmt: skip
    yield Text("All pairs of both kinds, and all numbers of workers, are covered.")
