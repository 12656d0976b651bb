"""The view of a fleet: the devices that a rate needs, and the times of its requests."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_number, format_seconds
from meshwright.serve.traffic.answer import Fleet, Times, TrafficPlan
from meshwright.view.parts import Page, Part, Section, Table, Text, Tile
from meshwright.view.pieces import provenance
from meshwright.view.registry import view
from meshwright.view.words import counted, per_million_tokens, rent_rate


@view(TrafficPlan)
def traffic_page(plan: TrafficPlan) -> Page:
    """Return the page of the fewest workers that take the requests of a rate."""
    sections = (
        Section("time", "How long do requests take?", [_times(plan), Text(_faces(plan.best))]),
        Section("others", "Why not other workers?", list(_others(plan))),
        Section("sure", "How sure is it?", [provenance(plan.system)]),
    )
    return Page(
        title=f"{plan.model.name} under traffic on {plan.best.system}",
        subtitle=question_of_traffic(plan),
        tiles=list(_tiles(plan)),
        sections=sections,
    )


def question_of_traffic(plan: TrafficPlan) -> str:
    """Return the question in a line: model, system, rate, lengths and limits."""
    asked = plan.traffic
    limits = [
        f"{name} within {format_seconds(limit_s)}"
        for name, limit_s in (("TTFT", plan.max_time_to_first_token_s),
                              ("TPOT", plan.max_time_per_output_token_s)) if limit_s is not None
    ]  # fmt: skip
    kept = f"; {' and '.join(limits)} for {plan.percentile:g} %" if limits else ""
    of = f"of {asked.trace}" if asked.trace else (
        f"of {asked.prompt_length:,} + {asked.answer_length:,} tokens"
    )  # fmt: skip
    return (
        f"{plan.model.name} on {plan.best.system}: {format_number(asked.rate_per_s)} requests/s "
        f"{of}{kept}"
    )


def _tiles(plan: TrafficPlan) -> Iterator[Tile]:
    best = plan.best
    yield Tile(
        "How many devices does it need?",
        f"{counted(best.num_devices, 'device')} of {best.system}: {best.text}",
        f"load {best.load:.0%}: {counted(best.num_workers, 'worker')} "
        f"{'saturates' if best.num_workers == 1 else 'saturate'} at "
        f"{format_number(best.saturation_requests_per_s)} requests/s",
        "others", "good", "FITS",
    )  # fmt: skip
    yield Tile(
        "How long do requests take?", "", "", "time", label="times", part=_times(plan),
    )  # fmt: skip
    shown = [
        f"{name} p{plan.percentile:g} {format_seconds(found.asked_s)}{_between(found)}"
        for name, found in (("TTFT", best.ttft), ("TPOT", best.tpot))
    ]
    yield Tile("Does it keep the limits?", ", ".join(shown),
               f"goodput {format_number(best.goodput_requests_per_s)} requests/s, "
               f"{best.tokens_per_s:,.0f} output tokens/s", "time", label="limits")  # fmt: skip
    cost = per_million_tokens(best.cost_usd_per_million_tokens, best.energy_j_per_million_tokens)
    rent = rent_rate(plan.system.chip, best.num_devices)
    yield Tile("What does it cost?", f"{cost} of answers", rent, label="cost")
    evicted = best.evictions_per_request
    yield Tile(
        "Does the cache hold them?",
        f"room for {best.cache_tokens:,} tokens on a worker, {best.sequences_in_flight:,.1f} "
        f"answers grow at once",
        f"{best.cache_hit_share:.0%} of prompt tokens found in it, "
        f"{evicted:.2g} evictions a request", label="cache",
    )  # fmt: skip
    start = ", ".join(best.launches_with) or "no server of the catalog"
    yield Tile("What to launch?", f"with {start}; priced for {plan.server} (--framework)", "",
               label="launches", spare=2)  # fmt: skip
    rows = [
        (f"{fleet.num_devices:,} of {fleet.system}: {fleet.text}",
         f"TPOT {format_seconds(fleet.tpot.asked_s)}", _usd(fleet))
        for fleet in plan.others[:2]
    ]  # fmt: skip
    if rows:
        yield Tile("Why not other workers?", rows[0][0], rows[0][2], "others", label="instead",
                   part=Table(("", "", ""), rows), spare=1)  # fmt: skip
    yield Tile("How sure is it?", f"{best.num_simulated:,} requests simulated", _faces(best),
               "sure", spare=1)  # fmt: skip


def _between(times: Times) -> str:
    ends = times.interval_s
    if ends is None:
        return ""
    return f" ({format_seconds(ends[0])} to {format_seconds(ends[1])})"


def _usd(fleet: Fleet) -> str:
    usd = fleet.cost_usd_per_million_tokens
    return "price unknown" if usd is None else f"{usd:.3g} USD/M"


def _faces(best: Fleet) -> str:
    return (
        f"mean TTFT {format_seconds(best.ttft.mean_s)} simulated, "
        f"{format_seconds(best.ttft.closed_form_s)} in closed form; mean TPOT "
        f"{format_seconds(best.tpot.mean_s)} and {format_seconds(best.tpot.closed_form_s)}"
    )


def _times(plan: TrafficPlan) -> Table:
    best = plan.best
    rows = [
        (name, *(format_seconds(seconds) for seconds in
                 (found.mean_s, found.p50_s, found.p90_s, found.p99_s)))
        for name, found in (("TTFT", best.ttft), ("TPOT", best.tpot), ("end to end", best.e2e))
    ]  # fmt: skip
    return Table(("", "mean>", "p50>", "p90>", "p99>"), rows)


def _others(plan: TrafficPlan) -> Iterator[Part]:
    rows = [
        (fleet.num_devices, fleet.text, fleet.system, fleet.ttft.asked_s, fleet.tpot.asked_s,
         fleet.e2e.p50_s, f"{fleet.load:.0%}", _usd(fleet))
        for fleet in (plan.best, *plan.others)
    ]  # fmt: skip
    at = f"p{plan.percentile:g}"
    yield Table(
        ("devices [#]", "workers", "system", f"TTFT {at} [s]", f"TPOT {at} [s]",
         "end to end p50 [s]", "load>", "price>"),
        rows, "Fleets that keep the limits, the best one first",
    )  # fmt: skip
