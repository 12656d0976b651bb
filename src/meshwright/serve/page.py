"""The report of a plan of serving: eight questions answered at once, and a section for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from meshwright.base.arrays import column
from meshwright.base.errors import UnknownNameError
from meshwright.base.units import format_bytes, format_number, format_seconds
from meshwright.catalog.calibration import serving_record
from meshwright.serve.answer import ServingCandidate, ServingPlan
from meshwright.serve.passes import ServingProblem
from meshwright.serve.price import price_serving
from meshwright.serve.report import REMEDIES, launches_text, question_line
from meshwright.serve.serve import serving_problem
from meshwright.sharding.strategy import stack
from meshwright.spec.doubled import doubled
from meshwright.spec.workload import Decode
from meshwright.view import charts
from meshwright.view.parts import Chart, Code, Page, Part, Section, Table, Text, Tile
from meshwright.view.pieces import (
    GIB,
    Gains,
    constants,
    count_chart,
    gain_chart,
    gain_parts,
    largest,
    launch_parts,
    memory_chart,
    network_tile,
    provenance,
    time_chart,
)
from meshwright.view.words import (
    counted,
    per_million_tokens,
    percent,
    rent_rate,
)

MILLI = 1e3


def serving_page(
    plan: ServingPlan, *, launch_files: Mapping[str, str] | None = None, launch_command: str = ""
) -> Page:
    """Return the report of a plan of serving.

    Parameters
    ----------
    launch_files
        Files that start a replica, by name; None: no server starts the plan.
    launch_command
        Command that writes them.
    """
    problem = problem_of(plan)
    gains = _gains(problem, plan.best)
    launches = f"Launches {launches_text(plan)}."
    sections = (
        Section("plan", "The plan", list(_plan_parts(plan))),
        Section("memory", "Does it fit?", list(_memory_parts(plan))),
        Section("time", "How fast, and what limits it?", list(_time_parts(plan))),
        Section("change", "What if the system were better?",
                list(gain_parts(_better(plan), gains))),
        Section("others", "Why not another plan?", list(_other_parts(plan))),
        Section("space", "What was searched?", list(_space_parts(plan))),
        Section("sure", "How sure is it?", list(_sure_parts(plan, problem))),
        Section("cost", "What does it cost?", list(_cost_parts(plan))),
        Section("launch", "What to launch",
                list(launch_parts(launches, launch_files, launch_command))),
    )  # fmt: skip
    return Page(
        title=f"{plan.model.name} served on {plan.system.name}",
        subtitle=question_line(plan),
        tiles=list(_tiles(plan, gains, launch_command)),
        sections=[section for section in sections if section.parts],
        warnings=plan.warnings,
        command=plan.command,
        version=plan.version,
    )


def problem_of(plan: ServingPlan) -> ServingProblem:
    """Return the question of a plan, as it was priced."""
    return serving_problem(
        plan.model, plan.system, plan.workload, plan.server, plan.calibration, plan.memory_share
    )


def _better(plan: ServingPlan) -> str:
    return f"{_latency(plan)} of the same plan on a better system"


def gains_of(plan: ServingPlan) -> Chart | None:
    """Return the chart of the gains of a better system; None: no single change gains anything."""
    return gain_chart(_better(plan), _gains(problem_of(plan), plan.best))


def _gains(problem: ServingProblem, best: ServingCandidate) -> Gains:
    """Return the gain of the same plan from twice each resource, the largest first."""

    def latency_s(changed: ServingProblem) -> float:
        groups = np.array([float(best.estimate.num_groups)])
        price = price_serving(changed, best.plan_options, stack([best.strategy]), groups)
        return float(column(price.latency_s)[0])

    base_s = latency_s(problem)
    found = {}
    for what, system in doubled(problem.system):
        time_s = latency_s(replace(problem, system=system))
        found[what] = time_s, 1.0 - time_s / base_s
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


# ------------------------------------------------------------------------------- the first screen


def _latency(plan: ServingPlan) -> str:
    """Return the name of the latency: TPOT or TTFT."""
    return "TPOT" if plan.is_decode else "TTFT"


def _tiles(plan: ServingPlan, gains: Gains, launch_command: str) -> Iterator[Tile]:
    """Yield the questions that everybody asks, each with its answer."""
    price = plan.best.estimate
    used, room = format_bytes(price.memory_bytes), format_bytes(price.memory_capacity_bytes)
    lacks = format_bytes(price.memory_bytes - price.memory_capacity_bytes)
    yield Tile(
        "Does it fit?", f"Yes, {used} of {room}" if price.fits else f"No: {lacks} too much",
        f"the cache has room for {price.most_sequences:,} sequences", "memory",
        "good" if price.fits else "bad",
    )  # fmt: skip
    first = ""
    if price.first_token_s is not None:
        first = f"TTFT {format_seconds(price.first_token_s)}, "
    yield Tile(
        "How fast is it?", f"{price.tokens_per_s:,.0f} tokens/s",
        f"{first}{_latency(plan)} {format_seconds(price.latency_s)}, "
        f"{price.tokens_per_s_per_user:,.1f} tokens/s for each user", "time",
    )  # fmt: skip
    yield Tile("What limits it?", largest(price.time_parts_s, price.latency_s),
               f"share of {_latency(plan)}", "time")  # fmt: skip
    yield network_tile(plan.system, gains)
    yield Tile("Why not another plan?", *_against(plan), "others")
    yield Tile("How sure is it?", *_sureness(plan), "sure")
    yield Tile("What does it cost?", _cost(plan), rent_rate(plan.system.chip,
               price.num_devices_used), "cost")  # fmt: skip
    yield Tile("What to launch?", plan.best.text, launch_command or launches_text(plan), "launch")


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
    record = serving_record(plan.calibration)
    if record is None or not plan.best.estimate.is_calibrated:
        return "Not calibrated", "the constants of this chip were not fitted to measurements"
    if (known := record.servers.get(plan.server)) is not None:
        median = percent(known.left_out.median)
        return f"Median error {median}", f"of {plan.server}, left out of the fit"
    return f"Median error {percent(record.left_out.median)}", "of sources left out of the fit"


def _cost(plan: ServingPlan) -> str:
    price = plan.best.estimate
    return per_million_tokens(price.cost_usd_per_million_tokens, price.energy_j_per_million_tokens)


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


def memory_of(plan: ServingPlan) -> Chart:
    """Return the chart of the memory of the fullest device."""
    price = plan.best.estimate
    stage = f" ({price.fullest_stage} stage)" if plan.best.strategy.pp > 1 else ""
    title = f"Memory of the fullest device{stage}"
    return memory_chart(title, price.memory_parts_bytes, price.memory_capacity_bytes)


def _memory_parts(plan: ServingPlan) -> Iterator[Part]:
    price = plan.best.estimate
    yield memory_of(plan)
    yield Text(f"The KV cache of all replicas together has room for {price.most_sequences:,} "
               "sequences of full length.")  # fmt: skip


def _what(plan: ServingPlan) -> str:
    return "Time per output token" if plan.is_decode else "Time to the first token"


def time_of(plan: ServingPlan) -> Chart:
    """Return the chart of the parts of the latency."""
    price = plan.best.estimate
    return time_chart(_what(plan), price.time_parts_s, price.latency_s)


def _time_parts(plan: ServingPlan) -> Iterator[Part]:
    price, what = plan.best.estimate, _what(plan)
    yield time_of(plan)
    name = max(price.time_parts_s, key=lambda part: price.time_parts_s[part])
    yield Text(f"The largest part is {REMEDIES[name]}.")
    rows = [
        (what, format_seconds(price.latency_s)),
        ("tokens/s", f"{price.tokens_per_s:,.0f}"),
        ("tokens/s a device, idle ones counted", f"{price.tokens_per_s_per_device:,.1f}"),
        ("tokens/s a user", f"{price.tokens_per_s_per_user:,.1f}"),
        ("time between two passes through the slowest stage", format_seconds(price.bottleneck_s)),
    ]
    if price.first_token_s is not None:
        rows.insert(0, ("Time to the first token", format_seconds(price.first_token_s)))
    if plan.requests_per_s is not None:
        rows.append(("requests/s", format_number(plan.requests_per_s)))
    yield Table(("measure", "value>"), rows, "Speed")


def _other_parts(plan: ServingPlan) -> Iterator[Part]:
    yield from filter(None, [front_of(plan, against) for against in AGAINST])
    ranking = (plan.best, *plan.runners_up)
    if len(ranking) == 1:
        return
    rows = [
        (str(number), f"{entry.estimate.tokens_per_s:,.0f}",
         format_seconds(entry.estimate.latency_s), f"{entry.estimate.tokens_per_s_per_user:,.1f}",
         f"{entry.estimate.memory_bytes / GIB:.1f}", entry.text,
         ", ".join(entry.launches_with) or "none")
        for number, entry in enumerate(ranking, 1)
    ]  # fmt: skip
    head = (">", "tokens/s>", f"{_latency(plan)}>", "tokens/s a user>", "GiB>", "plan",
            "launches with")  # fmt: skip
    yield Table(head, rows, f"The leading plans, by {plan.objective}")


AGAINST = ("latency", "first_token")
"""Times that throughput is weighed against."""


def front_of(plan: ServingPlan, against: str) -> Chart | None:
    """Return throughput against a time, of every plan that none beats in both; None: no such front.

    Raises
    ------
    UnknownNameError
        No such time is weighed.
    """
    if against not in AGAINST:
        raise UnknownNameError("time", str(against), AGAINST)
    front, price, work = plan.front, plan.best.estimate, plan.workload
    if front is None or len(front.plans) < 2:
        return None
    if against == "latency":
        limit_s = (
            work.max_time_per_output_token_s
            if isinstance(work, Decode)
            else work.max_time_to_first_token_s
        )
        return _front_chart("Throughput against latency", plan, front.latency_s, price.latency_s,
                            limit_s, _latency(plan))  # fmt: skip
    if not front.first_token_s or price.first_token_s is None or not isinstance(work, Decode):
        return None
    return _front_chart(
        "Throughput against the time to the first token", plan, front.first_token_s,
        price.first_token_s, work.max_time_to_first_token_s, "TTFT",
    )  # fmt: skip


def _front_chart(
    title: str, plan: ServingPlan, times_s: tuple[float, ...], ours_s: float,
    limit_s: float | None, what: str,
) -> Chart:  # fmt: skip
    front, price = plan.front, plan.best.estimate
    assert front is not None
    ours = (plan.best.text, ours_s, price.tokens_per_s_per_device)
    others = [
        entry
        for entry in zip(front.plans, times_s, front.tokens_per_s_per_device, strict=True)
        if entry[0] != plan.best.text
    ]
    every = [ours, *others]
    within = "" if limit_s is None else f"; the line is the limit, {format_seconds(limit_s)}"
    return Chart(
        title,
        f"{len(front.plans)} plans of which none is beaten both for the system and for one user"
        f"{within}",
        charts.points(
            [text for text, _, _ in every], [MILLI * time for _, time, _ in every],
            [rate for _, _, rate in every],
            ["this plan", *["on the front"] * len(others)], f"{what} [ms]", "tokens/s a device",
            limit=None if limit_s is None else MILLI * limit_s, limit_name=f"limit of {what} [ms]",
        ),
        Table((f"{what}>", "tokens/s a device>", "plan"),
              [(format_seconds(time), f"{rate:,.1f}", text) for text, time, rate in every]),
    )  # fmt: skip


def _space_parts(plan: ServingPlan) -> Iterator[Part]:
    cover = plan.coverage
    if cover is None:
        return
    yield Text(
        f"Every one of {cover.num_candidates:,} plans is accounted for; "
        f"{format_seconds(cover.elapsed_s)}. The proof is of the model of cost."
    )
    yield count_chart("What became of the plans", {
        "priced": cover.num_priced - plan.num_too_slow, "priced, over the latency":
        plan.num_too_slow, "refused by a rule": sum(cover.num_refused.values()),
        "over memory": cover.num_over_memory}, "plans")  # fmt: skip
    if cover.num_refused:
        frequent = sorted(cover.num_refused.items(), key=lambda item: -item[1])
        yield count_chart("Plans refused, by rule", dict(frequent), "plans")


def _sure_parts(plan: ServingPlan, problem: ServingProblem) -> Iterator[Part]:
    answer, whose = _sureness(plan)
    fidelity = plan.best.estimate.fidelity.replace("_", "-")
    yield Text(f"{answer}: {whose}. Fidelity: {fidelity}.")
    record = serving_record(plan.calibration)
    if record is not None:
        head = ("figure or server", "rows>", "median>", "90th percentile>", "bias>")
        groups = {**record.figures, **record.servers}
        rows = [
            (name, f"{group.rows:,}", percent(group.left_out.median), percent(group.left_out.p90),
             percent(group.left_out.bias, sign=True))
            for name, group in groups.items()
        ]  # fmt: skip
        yield Table(head, rows, "Errors by figure and by server, each left out of the fit: "
                    "|ln(predicted / measured)|")  # fmt: skip
    yield provenance(plan.system)
    yield constants(problem.nominal_calibration, plan.calibration)


def _cost_parts(plan: ServingPlan) -> Iterator[Part]:
    yield Text(f"{_cost(plan)}.")
    if rate := rent_rate(plan.system.chip, plan.best.estimate.num_devices_used):
        yield Text(f"Rent: {rate}.")
