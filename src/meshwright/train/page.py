"""The report of a training plan: eight questions answered at once, and a section for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.base.units import format_bytes, format_days, format_seconds, format_si
from meshwright.cost.problem import Problem
from meshwright.spec.calibration import constants_of
from meshwright.train.answer import Candidate, HotLink, Placement, Plan, WhyNot
from meshwright.train.question import problem_of
from meshwright.train.report import (
    blocks_in_words,
    launches_in_words,
    plan_in_words,
    question_line,
    shortage,
)
from meshwright.train.report_detail import BUSY, bound_in_words, node_name
from meshwright.train.robustness import changes
from meshwright.train.timeline import StepTimeline, plan_timeline
from meshwright.train.timeline_charts import memory_charts, timeline_charts
from meshwright.view import charts
from meshwright.view.parts import (
    Chart,
    Code,
    Page,
    Part,
    Picture,
    Section,
    Table,
    Text,
    Tile,
)
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
    ranked,
    time_chart,
)
from meshwright.view.words import JOULES_PER_KWH, rent_rate, words

if TYPE_CHECKING:
    from meshwright.train.explain import Explanation

BETTER = "The same plan on a better system"


def plan_page(
    plan: Plan, *, explanation: Explanation | None = None, front: Sequence[Candidate] = (),
    launch_files: Mapping[str, str] | None = None, launch_command: str = "", map_svg: str = "",
    line: StepTimeline | None = None,
) -> Page:  # fmt: skip
    """Return the report of a plan.

    Parameters
    ----------
    explanation
        The best plans with the features that this one lacks, where they were looked for.
    front
        Plans that no other plan beats in every respect, where they were looked for.
    launch_files
        Files that start the plan, by name; None: no framework starts it.
    launch_command
        Command that writes them.
    line
        The step over time; needed for a plan on a grid, where axes share links.
    map_svg
        Picture of the grid on which the plan is placed; empty: there is none.
    """
    if line is None and plan.best.placement is None:
        line = plan_timeline(plan)
    problem = problem_of(plan)
    gains = _gains(plan, problem)
    launches = f"Launches {launches_in_words(plan)}."
    launch = list(launch_parts(launches, launch_files, launch_command))
    sections = (
        Section("plan", "The plan", list(_plan_parts(plan))),
        Section("memory", "Does it fit?", list(_memory_parts(plan, line))),
        Section("time", "How fast, and what limits it?", list(_time_parts(plan, line))),
        Section("where", "Where does it run?", list(_where_parts(plan, map_svg))),
        Section("change", "What if the system were better?", list(gain_parts(BETTER, gains))),
        Section("others", "Why not another plan?", list(_other_parts(plan, explanation, front))),
        Section("space", "What was searched?", list(_space_parts(plan))),
        Section("sure", "How sure is it?", list(_sure_parts(plan, problem))),
        Section("cost", "What does it cost?", list(_cost_parts(plan))),
        Section("launch", "What to launch", launch),
    )  # fmt: skip
    page = _first_screen(plan, gains, launch_command)
    return replace(page, sections=[section for section in sections if section.parts])


# ------------------------------------------------------------------------------- the first screen


def first_screen(plan: Plan) -> Page:
    """Return the report of a plan without its sections: the part that is ready at once."""
    return _first_screen(plan, _gains(plan, problem_of(plan)))


def gains_of(plan: Plan) -> Chart | None:
    """Return a chart of the gains on a better system; None: no single change gains anything."""
    return gain_chart(BETTER, _gains(plan, problem_of(plan)))


def _gains(plan: Plan, problem: Problem) -> Gains:
    """Return the gains of the same plan on better systems, the largest first."""
    found = changes(problem, plan.best.strategy, plan.best.plan_options)
    return {change.what: (change.step_time_s, change.faster_by_fraction) for change in found}


def _first_screen(plan: Plan, gains: Gains, launch_command: str = "") -> Page:
    return Page(
        title=f"{plan.model.name} on {plan.system.name}",
        subtitle=question_line(plan),
        tiles=list(_tiles(plan, gains, launch_command)),
        sections=(),
        warnings=plan.warnings,
        command=plan.command,
        version=plan.version,
    )


def _tiles(plan: Plan, gains: Gains, launch_command: str) -> Iterator[Tile]:
    """Yield the questions that everybody asks, with their answers."""
    price = plan.best.estimate
    used, room = format_bytes(price.memory_bytes), format_bytes(price.memory_capacity_bytes)
    stage = f", {price.fullest_stage} stage" if plan.best.strategy.pp > 1 else ""
    yield Tile(
        "Does it fit?", f"Yes, {used} of {room}" if price.fits else f"No: {shortage(price)}",
        f"on the fullest device{stage}", "memory", "good" if price.fits else "bad",
    )  # fmt: skip
    yield Tile(
        "How fast is it?", f"{format_seconds(price.step_time_s)} a step",
        f"{price.tokens_per_s:,.0f} tokens/s, MFU {price.mfu_causal:.1%}; "
        f"{price.fidelity.replace('_', '-')} model", "time",
    )  # fmt: skip
    yield Tile(
        "What limits it?", largest(price.time_parts_s, price.step_time_s), "share of a step", "time"
    )
    yield network_tile(plan.system, gains)
    if (placement := plan.best.placement) is not None and placement.hottest_links:
        waits = max(placement.slowdown.values(), default=1.0)
        yield Tile(
            "Where does it run?", f"In blocks on {' x '.join(map(str, placement.grid_shape))}",
            f"shared links: up to {waits:.2f}x slower; hottest "
            f"{_ends(placement.hottest_links[0], placement)}", "where",
        )  # fmt: skip
    yield Tile("Why not another plan?", *_against(plan), "others")
    yield Tile("How sure is it?", *_sureness(plan), "sure")
    yield Tile("What does it cost?", *_cost_words(plan), "cost")
    yield Tile("What to launch?", plan.best.text, launch_command or launches_in_words(plan),
               "launch")  # fmt: skip


def _against(plan: Plan) -> tuple[str, str]:
    """Return the runner-up beside the best plan, and the size of the search, in words."""
    cover = plan.coverage
    searched = "" if cover is None else f"{cover.num_candidates:,} plans covered"
    if cover is not None:
        searched += f", gap {cover.gap:.1%}" if cover.is_complete else ", interrupted"
    if not plan.runners_up:
        others = 0 if cover is None else cover.num_priced - 1
        alone = "Only this one was priced" if cover is None else "No other one fits"
        return f"It leads {others:,} others" if others > 0 else alone, searched
    ours = plan.best.estimate.step_time_s
    fastest = min(plan.runners_up, key=lambda entry: entry.estimate.step_time_s)
    slower = fastest.estimate.step_time_s / ours - 1.0
    if slower < 0.0:
        return f"A less simple one is {-slower:.1%} faster", searched
    return f"The next one is {slower:.1%} slower", searched


def _sureness(plan: Plan) -> tuple[str, str]:
    price = plan.best.estimate
    if price.interval_s is None:
        return "No interval", "the constants of this chip were not fitted to measurements"
    low, high = price.interval_s
    return (
        f"{format_seconds(low)} to {format_seconds(high)}",
        "four of five measurements of such a step lie there",
    )


def _cost_words(plan: Plan) -> tuple[str, str]:
    price, million = plan.best.estimate, plan.workload.tokens_per_step / 1e6
    money = "price unknown" if price.cost_usd is None else f"{price.cost_usd / million:.3g} USD"
    energy = "energy unknown"
    if price.energy_j is not None:
        energy = f"{price.energy_j / million / JOULES_PER_KWH:.3g} kWh"
    note = "per million tokens"
    if plan.run_s is not None:
        note += f"; the whole run takes {format_days(plan.run_s)}"
    return f"{money}, {energy}", note


# ------------------------------------------------------------------------------------ the sections


def _plan_parts(plan: Plan) -> Iterator[Part]:
    yield Code(plan.best.text, "plan string")
    yield Text(plan_in_words(plan.best)[:1].upper() + plan_in_words(plan.best)[1:] + ".")


def _memory_parts(plan: Plan, line: StepTimeline | None) -> Iterator[Part]:
    price = plan.best.estimate
    yield memory_of(plan)
    if price.host_bytes_per_device:
        room = price.host_capacity_bytes_per_device
        of = "" if room is None else f" of {format_bytes(room)}"
        yield Text(f"And {format_bytes(price.host_bytes_per_device)}{of} of host memory a device.")
    if line is not None:
        yield from memory_charts(line)


def memory_of(plan: Plan) -> Chart:
    """Return the chart of the memory of the fullest device by part."""
    price = plan.best.estimate
    stage = f" ({price.fullest_stage} stage)" if plan.best.strategy.pp > 1 else ""
    title = f"Memory of the fullest device{stage}"
    return memory_chart(title, price.memory_parts_bytes, price.memory_capacity_bytes)


def time_of(plan: Plan) -> Chart:
    """Return the chart of the time of a step by part."""
    price = plan.best.estimate
    return time_chart("Time of a step", price.time_parts_s, price.step_time_s)


def _time_parts(plan: Plan, line: StepTimeline | None) -> Iterator[Part]:
    price = plan.best.estimate
    yield time_of(plan)
    if line is not None:
        yield from timeline_charts(line)
    yield Table(
        ("measure", "value>"),
        [
            ("tokens/s", f"{price.tokens_per_s:,.0f}"),
            ("tokens/s a device", f"{price.tokens_per_s_per_device:,.1f}"),
            ("MFU, scores under a causal mask counted half", f"{price.mfu_causal:.2%}"),
            ("MFU, all scores", f"{price.mfu_full:.2%}"),
            ("HFU", f"{price.hfu:.2%}"),
            ("micro-batches in a step", f"{price.num_micro_batches:,}"),
            ("devices in use", f"{price.num_devices_used:,}"),
        ],
        "Efficiency",
    )


def _where_parts(plan: Plan, map_svg: str) -> Iterator[Part]:
    """Yield the places of the ranks on a grid, and the waiting times of their messages."""
    placement, best = plan.best.placement, plan.best
    if placement is None:
        return
    where = blocks_in_words(placement)
    yield Text(f"{where[:1].upper()}{where[1:]}. Routes: {placement.routing}.")
    if map_svg:
        yield Picture("Devices, groups and load of links",
                      "Each device with its ranks, each link with the share of the step during "
                      "which it carries something", map_svg)  # fmt: skip
    steps = {"links of its own (closed form)": placement.closed_form_s,
             "links shared (contended)": best.estimate.step_time_s}  # fmt: skip
    if best.simulated_s is not None:
        steps["played message by message (simulated)"] = best.simulated_s
    shown = [format_seconds(time) for time in steps.values()]
    yield Chart(
        "Time of a step, by fidelity",
        "; ".join(f"{name} {text}" for name, text in zip(steps, shown, strict=True))
        + f"; no way to nest the blocks is faster than {format_seconds(placement.lower_bound_s)}",
        charts.bars(list(steps), list(steps.values()), shown, "time of a step [s]",
                    limit=placement.lower_bound_s, limit_name="no nesting is faster [s]"),
    )  # fmt: skip
    yield Table(
        ("part of the busiest device", "busy in a step>"),
        [(BUSY[name], format_seconds(time)) for name, time in placement.busy_s.items()],
    )
    slower = sorted(placement.slowdown.items(), key=lambda item: -item[1])
    if slower:
        yield Table(("axis", "time on shared links over links of its own>"),
                    [(axis, f"{factor:.2f}x") for axis, factor in slower])  # fmt: skip
    if placement.hottest_links:
        yield _hottest(placement)


def _hottest(placement: Placement) -> Chart:
    """Return the links with the most traffic, and the axes that use them."""
    links = placement.hottest_links
    names = [_ends(link, placement) for link in links]
    axes = list(dict.fromkeys(axis for link in links for axis in link.by_axis_s))
    return Chart(
        "The hottest links",
        f"{names[0]} is busy for {format_seconds(links[0].busy_s)} of the backward pass of a "
        "micro-batch",
        charts.stacked(
            names, {axis: [link.by_axis_s.get(axis, 0.0) for link in links] for axis in axes},
            "busy in the backward pass of a micro-batch [s]", row_title="",
        ),
        Table(("link", "busy>", *(f"{axis}>" for axis in axes)),
              [(name, format_seconds(link.busy_s),
                *(format_seconds(link.by_axis_s.get(axis, 0.0)) for axis in axes))
               for name, link in zip(names, links, strict=True)]),
    )  # fmt: skip


def _ends(link: HotLink, placement: Placement) -> str:
    ends = (node_name(end, placement.grid_shape) for end in (link.source, link.target))
    return " to ".join(ends)


def _other_parts(
    plan: Plan, explanation: Explanation | None, front: Sequence[Candidate]
) -> Iterator[Part]:
    ranking = (plan.best, *plan.runners_up)
    if len(ranking) > 1:
        yield _ranking(ranking)
        if (intervals := intervals_of(plan)) is not None:
            yield intervals
    if front:
        yield front_chart([plan.best, *front])
    whys = plan.why_not if explanation is None else explanation.why_not
    if whys:
        head = ("instead", "step>", "slower>", "because", "plan")
        yield Table(head, [_why_row(why) for why in whys], "The best plan with something else")
    if explanation is not None and explanation.not_possible:
        yield Table(("instead", "why it cannot be"), list(explanation.not_possible.items()),
                    "Not possible")  # fmt: skip


def _ranking(ranking: Sequence[Candidate]) -> Table:
    ours = ranking[0].estimate.step_time_s
    rows = [
        (str(number), format_seconds(entry.estimate.step_time_s),
         f"{entry.estimate.step_time_s / ours - 1.0:+.1%}",
         f"{entry.estimate.memory_bytes / GIB:.1f}", f"{entry.estimate.mfu_causal:.1%}",
         entry.text, ", ".join(entry.launches_with) or "none")
        for number, entry in enumerate(ranking, 1)
    ]  # fmt: skip
    head = (">", "step>", "time against plan 1>", "GiB>", "MFU>", "plan", "launches with")
    return Table(head, rows, "The leading plans side by side")


def intervals_of(plan: Plan) -> Chart | None:
    """Return the chart of the intervals of the leading plans; None: one plan, or no intervals."""
    ranking = (plan.best, *plan.runners_up)
    ends = [entry.estimate.interval_s for entry in ranking if entry.estimate.interval_s is not None]
    if not len(ranking) == len(ends) > 1:
        return None
    return Chart(
        "Intervals of the leading plans",
        "Where four of five measurements of each lie; intervals that overlap cannot be told apart "
        "by prediction alone, but errors of plans of one job move together",
        charts.spans(
            [f"{number}  {entry.text}" for number, entry in enumerate(ranking, 1)],
            [low for low, _ in ends], [entry.estimate.step_time_s for entry in ranking],
            [high for _, high in ends], "time of a step [s]",
        ),
    )  # fmt: skip


def front_chart(
    front: Sequence[Candidate], *, first: str = "this plan", is_brushed: bool = False
) -> Chart:
    """Return the chart of plans in time and memory.

    Parameters
    ----------
    first
        Name of the first plan in the chart.
    is_brushed
        Whether an area of the chart can be selected.
    """
    every = list({entry.text: entry for entry in front}.values())
    return Chart(
        "Time against memory",
        f"{len(every)} plans of which none is beaten in time, memory, energy and money at once",
        charts.points(
            [entry.text for entry in every], [entry.estimate.step_time_s for entry in every],
            [entry.estimate.memory_bytes / GIB for entry in every],
            [first, *["on the front"] * (len(every) - 1)],
            "time of a step [s]", "memory of the fullest device [GiB]", is_brushed=is_brushed,
        ),
        Table(("step>", "GiB>", "plan"),
              [(format_seconds(entry.estimate.step_time_s),
                f"{entry.estimate.memory_bytes / GIB:.1f}", entry.text) for entry in every]),
    )  # fmt: skip


def _why_row(why: WhyNot) -> tuple[str, ...]:
    because = ", ".join(
        f"{words(name)} +{format_seconds(part)}" for name, part in list(why.because_s.items())[:3]
    )
    step = format_seconds(why.candidate.estimate.step_time_s)
    return why.question, step, f"{why.slower_by_fraction:+.1%}", because, why.candidate.text


def space_of(plan: Plan) -> Chart | None:
    """Return the chart of the counts of all plans of the space; None: none was searched."""
    cover = plan.coverage
    if cover is None:
        return None
    parts = {
        "priced": cover.num_priced, "refused by a rule": sum(cover.num_refused.values()),
        "over memory": cover.num_over_memory, "beyond the bound": cover.num_beyond_bound,
        "dominated": cover.num_dominated,
    }  # fmt: skip
    return count_chart("What became of the plans", parts, "plans")


def _space_parts(plan: Plan) -> Iterator[Part]:
    cover = plan.coverage
    if cover is None:
        return
    covered = f"Every one of {cover.num_candidates:,} plans is accounted for"
    head = covered if cover.is_complete else "The search was interrupted"
    yield Text(
        f"{head}; {bound_in_words(plan, cover)}. The proof is of the model of cost; it took "
        f"{format_seconds(cover.elapsed_s)}."
    )
    yield from filter(None, [space_of(plan)])
    if cover.num_refused:
        frequent = sorted(cover.num_refused.items(), key=lambda item: -item[1])
        yield count_chart("Plans refused, by rule", dict(frequent), "plans")


def _sure_parts(plan: Plan, problem: Problem) -> Iterator[Part]:
    price, robust = plan.best.estimate, plan.robustness
    answer, why = _sureness(plan)
    yield Text(f"{answer}: {why}. Fidelity: {price.fidelity.replace('_', '-')}.")
    if robust is not None:
        text = (
            f"In {robust.best_stays_first_fraction:.0%} of {robust.num_draws} draws of the "
            "constants no plan is over 1 % faster than this one."
        )
        if robust.trials is not None and robust.trials.run:
            before, after = robust.trials.regret_fractions[0], robust.trials.regret_fractions[-1]
            text += (
                f" A few steps of {len(robust.trials.run)} plans would settle it: the expected "
                f"loss against the fastest falls from {before:.1%} to {after:.1%}."
            )
        yield Text(text)
        if robust.trials is not None and robust.trials.run:
            yield Table(("plans to run for a few steps", "probability of being the fastest>"),
                        [(text, f"{robust.trials.best_fraction.get(text, 0.0):.0%}")
                         for text in robust.trials.run])  # fmt: skip
    yield provenance(plan.system)
    yield constants(constants_of(problem.nominal_calibration), plan.calibration)


def _cost_parts(plan: Plan) -> Iterator[Part]:
    price = plan.best.estimate
    answer, note = _cost_words(plan)
    yield Text(f"{answer} {note}.")
    if rate := rent_rate(plan.system.chip, price.num_devices_used):
        yield Text(f"Rent: {rate}.")
    yield from filter(None, [energy_of(plan)])


def energy_of(plan: Plan) -> Chart | None:
    """Return the chart of the energy of a step by part; None: it is not known."""
    price = plan.best.estimate
    if not (price.energy_j and price.energy_parts_j and price.power_w):
        return None
    parts = ranked(price.energy_parts_j)
    shares = [f"{part / price.energy_j:.1%}" for part in parts.values()]
    return Chart(
        "Energy of a step",
        f"{format_si(price.energy_j, 'J')} at {format_si(price.power_w, 'W')}: "
        + ", ".join(f"{name} {s}" for name, s in list(zip(parts, shares, strict=True))[:3]),
        charts.bars(list(parts), [part / 1e3 for part in parts.values()], shares,
                    "energy [kJ]", colour=charts.COLOURS[1]),
        Table(("part", "energy>", "share>"),
              [(name, format_si(part, "J"), share)
               for (name, part), share in zip(parts.items(), shares, strict=True)]),
    )  # fmt: skip


# --------------------------------------------------------------------------------- side by side


def side_by_side(plans: Sequence[Plan]) -> Iterator[Part]:
    """Yield plans beside each other, called A, B and so on: facts, time and memory by part."""
    names = [chr(ord("A") + number) for number in range(len(plans))]
    prices = [plan.best.estimate for plan in plans]
    facts: Mapping[str, Sequence[str]] = {
        "question": [question_line(plan) for plan in plans],
        "plan": [plan.best.text for plan in plans],
        "fits": ["yes" if price.fits else f"no: {shortage(price)}" for price in prices],
        "step": [format_seconds(price.step_time_s) for price in prices],
        "tokens/s": [f"{price.tokens_per_s:,.0f}" for price in prices],
        "MFU": [f"{price.mfu_causal:.1%}" for price in prices],
        "memory": [format_bytes(price.memory_bytes) for price in prices],
        "four of five measurements": [_sureness(plan)[0] for plan in plans],
        "per million tokens": [_cost_words(plan)[0] for plan in plans],
    }
    rows = [(fact, *values) for fact, values in facts.items()]
    yield Table(("", *names), rows, "Side by side")
    yield _parts_beside(
        "Time of a step", names, [price.time_parts_s for price in prices],
        [price.step_time_s for price in prices], 1.0, "s", format_seconds,
    )  # fmt: skip
    yield _parts_beside(
        "Memory of the fullest device", names, [price.memory_parts_bytes for price in prices],
        [price.memory_bytes for price in prices], GIB, "GiB", format_bytes,
    )  # fmt: skip


def _parts_beside(
    title: str, names: Sequence[str], parts: Sequence[Mapping[str, float]],
    wholes: Sequence[float], unit: float, unit_name: str, shown: Callable[[float], str],
) -> Chart:  # fmt: skip
    """Return a stacked bar of parts for each plan, the largest first."""
    used = [name for name in parts[0] if any(entry[name] for entry in parts)]
    used.sort(key=lambda name: -max(entry[name] for entry in parts))
    amounts = {words(name): [entry[name] / unit for entry in parts] for name in used}
    rows = [(words(name), *(shown(entry[name]) for entry in parts)) for name in used]
    axis_title = f"{title.split()[0].lower()} [{unit_name}]"
    return Chart(
        title,
        "; ".join(f"{name}: {shown(whole)}" for name, whole in zip(names, wholes, strict=True)),
        charts.stacked(names, amounts, axis_title, row_title="plan"),
        Table(("part", *(f"{name}>" for name in names)), rows),
    )
