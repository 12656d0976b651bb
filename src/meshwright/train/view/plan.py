"""The view of a training plan: its first screen, and a section for each question about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.cost.problem import UNCALIBRATED_NOTE
from meshwright.spec.calibration import constants_of
from meshwright.train.answer import (
    Candidate,
    Estimate,
    Explanation,
    OperatorOption,
    OperatorPlan,
    OperatorRun,
    Placement,
    Plan,
)
from meshwright.train.question import frameworks_on
from meshwright.train.words import (
    because_in_words,
    beside_in_words,
    blocks_in_words,
    bound_in_words,
    cost_in_words,
    difference,
    efficiency_in_words,
    ends_of,
    host_in_words,
    interval_in_words,
    launches_in_words,
    measured_in_words,
    memory_in_words,
    plan_in_words,
    plan_names,
    question_line,
    robustness_in_words,
    shortage,
    slower_in_words,
    speed_in_words,
    trade,
    trials_in_words,
    verified_in_words,
)
from meshwright.view.drawn import largest
from meshwright.view.parts import (
    Chart,
    Code,
    Later,
    Page,
    Part,
    Plot,
    Section,
    Table,
    Text,
    Tile,
    Whole,
)
from meshwright.view.pieces import (
    Gains,
    constants,
    gain_parts,
    launch_parts,
    network_tile,
    provenance,
)
from meshwright.view.registry import view
from meshwright.view.words import counted, rent_rate, words

if TYPE_CHECKING:
    from meshwright.train.timeline import StepTimeline

BUSY = {"compute": "arithmetic", "hbm": "HBM", "d2d": "links", "exposed": "exposed"}
_WARNINGS_BY_WEIGHT = (
    "interrupted", UNCALIBRATED_NOTE.split(":")[0], "outside the evidence", "stay idle",
    "the slowest device", "does not divide", "the busiest expert",
)  # fmt: skip


@view(Plan)
def plan_page(plan: Plan, **beside: Any) -> Page:
    """Return the page of a plan; parts beside it as for :func:`sections_of`."""
    return page_with(plan, plan_tiles(plan, beside.get("launch_command", "")), **beside)


def page_with(plan: Plan, tiles: Iterable[Tile], **beside: Any) -> Page:
    """Return the page of a plan with other tiles."""
    return Page(
        title=f"{plan.model.name} on {plan.system.name}",
        subtitle=question_line(plan),
        tiles=list(tiles),
        page_tiles=Later(lambda: [network_tile(plan.system, _gains(plan)), _sure_tile(plan)]),
        sections=Later(lambda: sections_of(plan, **beside)),
        warnings=by_weight(plan.warnings),
        command=plan.command,
        version=plan.version,
    )


def by_weight(warnings: Sequence[str]) -> list[str]:
    """Return warnings, the most important ones first."""
    marks = list(enumerate(_WARNINGS_BY_WEIGHT))

    def weight(text: str) -> int:
        return next((place for place, mark in marks if mark in text), len(marks))

    return sorted(warnings, key=weight)


def sections_of(
    plan: Plan, *, explanation: Explanation | None = None, line: StepTimeline | None = None,
    launch_files: Mapping[str, str] | None = None, launch_command: str = "",
    grid: Chart | None = None,
) -> list[Section]:  # fmt: skip
    """Return the sections of a plan; those without parts are left out.

    Parameters
    ----------
    explanation
        The best plans with the features that this one lacks, where they were looked for.
    line
        The step over time.
    launch_files
        Files that start the plan, by name; None: no framework starts it.
    launch_command
        Command that writes them.
    grid
        Map of the grid on which the plan is placed.
    """
    launches = f"Launches {launches_in_words(plan)}."
    sections = (
        Section("plan", "The plan", list(_plan_parts(plan))),
        Section("memory", "Does it fit?", list(_memory_parts(plan, line))),
        Section("time", "How fast, and what limits it?", list(_time_parts(plan, line))),
        Section("where", "Where does it run?", list(where_parts(plan.best, grid))),
        Section("change", "What if the system were better?",
                list(gain_parts("The same plan on a better system", _gains(plan)))),
        Section("others", "Why not another plan?", list(_other_parts(plan, explanation))),
        Section("space", "What was searched?", list(_space_parts(plan))),
        Section("sure", "How sure is it?", list(_sure_parts(plan))),
        Section("cost", "What does it cost?", list(_cost_parts(plan))),
        Section("launch", "What to launch",
                [*_under_frameworks(plan.best),
                 *launch_parts(launches, launch_files, launch_command)]),
    )  # fmt: skip
    return [section for section in sections if section.parts]


def _under_frameworks(best: Candidate) -> Iterator[Table]:
    """Yield the table of the plan under each framework, or the reason against it."""
    if best.frameworks:
        rows = [(entry.framework, entry.step_time_s, entry.memory_bytes, entry.why_not)
                for entry in best.frameworks]  # fmt: skip
        yield Table(("framework", "step [s]", "memory [bytes]", "why not"), rows,
                    "The plan as each framework runs it")  # fmt: skip


# ------------------------------------------------------------------------------- the first screen


def plan_tiles(plan: Plan, launch_command: str = "") -> Iterator[Tile]:
    """Yield the questions that everybody asks, with their answers."""
    best = plan.best
    yield verdict_tile(plan)
    yield string_tile(best)
    yield cost_tile(plan)
    if plan.proof:
        yield Tile("Why this plan?", plan.proof, section="others", label="proof")
    if plan.yours is not None:
        yield Tile("How fast is your job?", beside_in_words(best, plan.yours), label="yours")
    if best.placement is None or frameworks_on(plan.system.chip):
        yield Tile("What to launch?", launches_in_words(plan), launch_command, "launch",
                   label="launches", spare=2)  # fmt: skip
    if plan.verified:
        told = plan.verified[-1]
        yield Tile("Does it start?", verified_in_words(told), section="launch", label="verified",
                   mood="good" if told.is_kept else "bad")  # fmt: skip
    if best.placement is not None:
        yield Tile("Where does it run?", blocks_in_words(best.placement),
                   _waits(best.placement), "where", label="placed", spare=2)  # fmt: skip
    if plan.operators is not None:
        gain = best.estimate.step_time_s / plan.operators.step_time_s - 1.0
        played_s = plan.operators.simulated_s
        simulated = "" if played_s is None else f", simulated {format_seconds(played_s)}"
        yield Tile(
            "What if each operator had its own strategy?",
            f"each group of operators with its own strategy: "
            f"{format_seconds(plan.operators.step_time_s)} a step, {slower_in_words(-gain)} than "
            f"one for all{simulated}", section="plan", label="operators",
        )  # fmt: skip
    if plan.factors is not None:
        yield Tile("What was measured?", *measured_in_words(plan.factors), "sure", label="adjusted")
    yield memory_tile(plan)
    yield time_tile(plan)
    yield from _instead(best, plan.runners_up or plan.would_fit)


def verdict_tile(plan: Plan) -> Tile:
    """Return the speed where the plan fits, else the shortage of memory."""
    price, speed, use = plan.best.estimate, speed_in_words(plan), efficiency_in_words(plan.best)
    if price.fits:
        return Tile("How fast is it?", speed, use, "time", "good", "FITS")
    label = "TIGHT" if price.is_tight else "NO FIT"
    return Tile("Does it fit?", shortage(price), f"{speed}\n{use}", "memory", "bad", label)


def string_tile(best: Candidate) -> Tile:
    """Return the plan string, and the plan in words."""
    return Tile("What is the plan?", best.text, plan_in_words(best), "plan", label="plan")


def cost_tile(plan: Plan) -> Tile:
    """Return the cost, and the rent of the devices."""
    rate = rent_rate(plan.system.chip, plan.best.estimate.num_devices_used)
    return Tile("What does it cost?", cost_in_words(plan), rate, "cost", label="cost")


def memory_tile(plan: Plan) -> Tile:
    """Return the memory of the fullest device, and of its host."""
    price, question = plan.best.estimate, "Does it fit?"
    if not price.fits:
        question = "How full is the fullest device?"
    return Tile(question, memory_in_words(plan.best), host_in_words(price), "memory",
                "good" if price.fits else "bad", "memory", _memory(plan.best))  # fmt: skip


def time_tile(plan: Plan) -> Tile:
    """Return the largest parts of a step."""
    price = plan.best.estimate
    limits = largest(price.time_parts_s, price.step_time_s)
    return Tile("What limits it?", limits, section="time", label="time", part=_time(plan.best))


def _waits(placement: Placement) -> str:
    """Return the delay by shared links, and the hottest one."""
    if not placement.hottest_links:
        return ""
    waits = max(placement.slowdown.values(), default=1.0)
    hottest = ends_of(placement.hottest_links[0], placement)
    return f"shared links: up to {waits:.2f}x slower; hottest {hottest}"


def _instead(best: Candidate, others: Sequence[Candidate]) -> Iterator[Tile]:
    """Yield the two alternatives that trade most: the fastest, and the one with least memory."""
    if not others:
        return
    fastest = min(others, key=lambda entry: entry.estimate.step_time_s)
    leanest = min(others, key=lambda entry: entry.estimate.memory_bytes)
    chosen = list(dict.fromkeys(map(others.index, (fastest, leanest, *others))))[:2]
    rows = [(difference(best, entry), *trade(best.estimate, entry.estimate))
            for entry in map(others.__getitem__, sorted(chosen))]  # fmt: skip
    told = "\n".join(f"{what}: {time}, {memory}" for what, time, memory in rows)
    answer, _, note = told.partition("\n")
    yield Tile("Why not another plan?", answer, note, "others", label="instead",
               part=Table(("", "", ""), rows), spare=1)  # fmt: skip


def _gains(plan: Plan) -> Gains:
    """Return the time of the same plan on each better system, and its gain."""
    return {one.what: (one.step_time_s, one.faster_by_fraction) for one in plan.changes}


# ------------------------------------------------------------------------------------ the sections


def _memory(best: Candidate) -> Whole:
    price = best.estimate
    stage = f" ({price.fullest_stage} stage)" if best.strategy.pp > 1 else ""
    return Whole(f"Memory of the fullest device{stage}", price.memory_parts_bytes, "bytes",
                 capacity=price.memory_capacity_bytes)  # fmt: skip


def _time(best: Candidate) -> Whole:
    price = best.estimate
    return Whole("Time of a step", price.time_parts_s, "s", price.step_time_s)


def sentence(text: str) -> Text:
    """Return words as a sentence."""
    return Text(f"{text[:1].upper()}{text[1:]}.")


def _plan_parts(plan: Plan) -> Iterator[Part]:
    best = plan.best
    yield Code(best.text, "plan string")
    yield sentence(plan_in_words(best))
    order = best.placement.axes if best.placement else best.plan_options.axis_order
    axes = [name for name in order if getattr(best.strategy, name) > 1]
    yield Text(f"Axes from the inside: {' '.join(axes) or 'none'}.")
    if plan.operators is not None:
        yield from _operator_parts(plan.operators, best.estimate.step_time_s)


def _operator_parts(plan: OperatorPlan, one_for_all_s: float) -> Iterator[Part]:
    """Yield the options, their operators, the price and the proofs."""
    faster = one_for_all_s / plan.step_time_s - 1.0
    yield Text(
        f"A strategy for each operator: {format_seconds(plan.step_time_s)} a step, "
        f"{slower_in_words(-faster)} than one for all, with {format_bytes(plan.memory_bytes)} on "
        f"the fullest device; {plan.fidelity.replace('_', '-')} model."
    )
    names = [f"{number}" for number in range(1, len(plan.options) + 1)]
    yield Table(
        ("option", "plan", "blocks of rows x columns, from the inside"),
        [(name, option.text, _blocks(option))
         for name, option in zip(names, plan.options, strict=True)],
        "Options of the operators",
    )  # fmt: skip
    yield Table(
        ("layers", "option", "operators"),
        [(_layers(run), names[run.option], ", ".join(run.operators)) for run in plan.runs],
        "Option of each operator",
    )
    yield Whole("Time of a step with a strategy for each operator", plan.time_parts_s, "s",
                plan.step_time_s)  # fmt: skip
    yield Text(
        f"Proof: alone on its links {format_seconds(plan.closed_form_s)}, no choice among "
        f"{plan.num_options} options takes less than {format_seconds(plan.closed_form_bound_s)} "
        f"(gap {plan.closed_form_gap:.2%}); with contention and resharding no plan of these "
        f"micro-batches takes less than {format_seconds(plan.lower_bound_s)} "
        f"(gap {plan.gap:.1%}); found in {plan.search_s:.1f} s."
    )


def _blocks(option: OperatorOption) -> str:
    blocks = (f"{axis} {'x'.join(map(str, option.shapes[axis]))}" for axis in option.axes)
    return ", ".join(blocks) or "none"


def _layers(run: OperatorRun) -> str:
    """Return the layers of a run."""
    if run.first_layer is None:
        return "edge"
    one = run.first_layer == run.last_layer
    return f"{run.first_layer}" if one else f"{run.first_layer}-{run.last_layer}"


def _memory_parts(plan: Plan, line: StepTimeline | None) -> Iterator[Part]:
    price = plan.best.estimate
    yield _memory(plan.best)
    if price.fits:
        left = format_bytes(price.memory_capacity_bytes - price.memory_bytes)
        yield Text(f"{left} of memory are left.")
    else:
        yield sentence(shortage(price))
    if host := host_in_words(price):
        yield sentence(host)
    yield from _over_step(line, "memory")


def _over_step(line: StepTimeline | None, key: str) -> Iterator[Part]:
    """Yield the charts of a section of the page of a step."""
    for section in () if line is None else line.page().sections:
        if section.key == key:
            yield from (part for part in section.parts if isinstance(part, Chart | Plot))


def _time_parts(plan: Plan, line: StepTimeline | None) -> Iterator[Part]:
    price = plan.best.estimate
    yield _time(plan.best)
    yield from _over_step(line, "time")
    rows = (
        ("tokens/s", f"{price.tokens_per_s:,.0f}"),
        ("tokens/s a device", f"{price.tokens_per_s_per_device:,.1f}"),
        ("MFU, scores under a causal mask counted half", f"{price.mfu_causal:.2%}"),
        ("MFU, all scores", f"{price.mfu_full:.2%}"),
        ("HFU", f"{price.hfu:.2%}"),
        ("micro-batches in a step", f"{price.num_micro_batches:,}"),
        ("devices in use", f"{price.num_devices_used:,}"),
        ("fidelity", price.fidelity.replace("_", "-")),
    )
    yield Table(("measure", "value>"), rows, "Efficiency")


def where_parts(best: Candidate, grid: Chart | None = None) -> Iterator[Part]:
    """Yield the places of the ranks on a grid, and the waiting times of their messages."""
    placement = best.placement
    if placement is None:
        return
    yield sentence(f"{blocks_in_words(placement)}. Routes: {placement.routing}")
    if grid is not None:
        yield grid
    steps = {"links of its own (closed form)": placement.closed_form_s,
             "links shared (contended)": best.estimate.step_time_s}  # fmt: skip
    if best.simulated_s is not None:
        steps["played message by message (simulated)"] = best.simulated_s
    yield Plot(
        "Time of a step, by fidelity",
        "; ".join(f"{name} {format_seconds(time_s)}" for name, time_s in steps.items())
        + f"; no way to lay the axes is faster than {format_seconds(placement.lower_bound_s)}",
        "bars", Table(("fidelity", "time of a step [s]"), list(steps.items())),
        placement.lower_bound_s, "no other way is faster",
    )  # fmt: skip
    yield Table(("part of the busiest device", "busy in a step [s]"),
                [(BUSY[name], time_s) for name, time_s in placement.busy_s.items()])  # fmt: skip
    if placement.slowdown:
        slower = sorted(placement.slowdown.items(), key=lambda item: -item[1])
        yield Table(("axis", "time on shared links over links of its own [x]"), slower)
    if placement.hottest_links:
        yield _hottest(placement)


def _hottest(placement: Placement) -> Plot:
    """Return the links with the most traffic, and the axes that use them."""
    links = placement.hottest_links
    axes = list(dict.fromkeys(axis for link in links for axis in link.by_axis_s))
    return Plot(
        "The hottest links",
        f"{ends_of(links[0], placement)} is busy for {format_seconds(links[0].busy_s)} of the "
        "backward pass of a micro-batch",
        "stacked",
        Table(("link", *(f"{axis} [s]" for axis in axes)),
              [(ends_of(link, placement), *(link.by_axis_s.get(axis, 0.0) for axis in axes))
               for link in links]),
    )  # fmt: skip


def _other_parts(plan: Plan, explanation: Explanation | None) -> Iterator[Part]:
    ranking = (plan.best, *plan.runners_up)
    if len(ranking) > 1:
        yield _ranking(ranking)
        yield from intervals("plan", "leading plans", {
            f"{number}  {entry.text}": entry for number, entry in enumerate(ranking, 1)
        })  # fmt: skip
    whys = plan.why_not if explanation is None else explanation.why_not
    if whys:
        head = ("instead", "step [s]", "slower>", "because", "plan")
        rows = [(why.question, why.candidate.estimate.step_time_s,
                 f"{why.slower_by_fraction:+.1%}", because_in_words(why), why.candidate.text)
                for why in whys]  # fmt: skip
        yield Table(head, rows, "The best plan with something else")
    if explanation is not None and explanation.not_possible:
        yield Table(("instead", "why it cannot be"), list(explanation.not_possible.items()),
                    "Not possible")  # fmt: skip


def _ranking(ranking: Sequence[Candidate]) -> Table:
    ours = ranking[0].estimate.step_time_s
    rows = [
        (str(number), entry.estimate.step_time_s,
         f"{entry.estimate.step_time_s / ours - 1.0:+.1%}", entry.estimate.memory_bytes,
         entry.estimate.mfu_causal, entry.text, ", ".join(entry.launches_with) or "none")
        for number, entry in enumerate(ranking, 1)
    ]  # fmt: skip
    head = (">", "step [s]", "time against plan 1>", "memory [bytes]", "MFU [%]", "plan",
            "launches with")  # fmt: skip
    return Table(head, rows, "The leading plans side by side")


def intervals(kind: str, things: str, plans: Mapping[str, Candidate]) -> Iterator[Plot]:
    """Yield the plot of the intervals of plans by name, where two or more are known."""
    rows = [(name, *_interval(entry)) for name, entry in plans.items()
            if entry.estimate.interval_s is not None]  # fmt: skip
    if len(rows) < 2:
        return
    yield Plot(
        f"Intervals of the {things}",
        "Where four of five measurements of each lie; intervals that overlap cannot be told apart "
        "by prediction alone, but errors of plans of one job move together",
        "spans", Table((kind, "from [s]", "step [s]", "to [s]"), rows),
    )  # fmt: skip


def _interval(entry: Candidate) -> tuple[float, float, float]:
    """Return low end, expected value and high end of a step [s]."""
    assert entry.estimate.interval_s is not None
    low_s, high_s = entry.estimate.interval_s
    return low_s, entry.estimate.step_time_s, high_s


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
    parts = {
        "priced": cover.num_priced, "refused by a rule": sum(cover.num_refused.values()),
        "over memory": cover.num_over_memory, "beyond the bound": cover.num_beyond_bound,
        "dominated": cover.num_dominated,
    }  # fmt: skip
    yield counts("What became of the plans", parts)
    if cover.num_refused:
        yield counts("Plans refused, by rule", cover.num_refused)


def counts(title: str, numbers: Mapping[str, int]) -> Plot:
    """Return the number of plans of each kind, the largest first."""
    shown = sorted(((name, number) for name, number in numbers.items() if number),
                   key=lambda entry: -entry[1])  # fmt: skip
    says = "; ".join(f"{name}: {number:,}" for name, number in shown)
    return Plot(title, says, "bars", Table(("", "plans [#]"), shown))


def _sure_tile(plan: Plan) -> Tile:
    price = plan.best.estimate
    return Tile("How sure is it?", interval_in_words(price), _where_measured(price), "sure")


def _where_measured(price: Estimate) -> str:
    """Return the meaning of an interval, or the reason why there is none."""
    if price.interval_s is None:
        return "the constants of this chip were not fitted to measurements"
    return "four of five measurements of such a step lie there"


def _sure_parts(plan: Plan) -> Iterator[Part]:
    price, robust = plan.best.estimate, plan.robustness
    yield Text(f"{interval_in_words(price)}: {_where_measured(price)}.")
    if robust is not None:
        yield sentence(robustness_in_words(plan, robust))
        if trials := trials_in_words(robust.trials, plan_names(plan)):
            yield sentence(trials)
    if plan.factors is not None and plan.factors.is_applied:
        number = counted(plan.factors.num_measurements, "measurement")
        yield Table(
            ("resource", "factor [x]", "from [x]", "to [x]"),
            [(words(entry.resource), entry.factor, entry.low, entry.high)
             for entry in plan.factors.factors],
            f"Time over the calibrated time, by resource, adjusted by {number}",
        )  # fmt: skip
    yield provenance(plan.system)
    yield constants(constants_of(plan.problem.nominal_calibration), plan.calibration)


def _cost_parts(plan: Plan) -> Iterator[Part]:
    price = plan.best.estimate
    yield Text(f"{cost_in_words(plan)}.")
    if rate := rent_rate(plan.system.chip, price.num_devices_used):
        yield Text(f"Rent: {rate}.")
    if price.energy_j and price.energy_parts_j and price.power_w and price.tokens_per_j:
        shares = largest(price.energy_parts_j, price.energy_j)
        yield Whole(
            "Energy of a step", price.energy_parts_j, "J", price.energy_j,
            says=f"{format_si(price.energy_j, 'J')} at {format_si(price.power_w, 'W')}, "
            f"{price.tokens_per_j:.3g} tokens/J: {shares}",
        )  # fmt: skip


# --------------------------------------------------------------------------------- side by side


def front_plot(front: Sequence[Candidate]) -> Plot:
    """Return plans in time and memory, the fastest first; an area of the plot can be selected."""
    every = list({entry.text: entry for entry in front}.values())
    kinds = ["the fastest", *["on the front"] * (len(every) - 1)]
    return Plot(
        "Time against memory",
        f"{len(every)} plans on the Pareto front of time, memory, energy and money",
        "points",
        Table(("plan", "kind", "time of a step [s]", "memory of the fullest device [bytes]"),
              [(entry.text, kind, entry.estimate.step_time_s, entry.estimate.memory_bytes)
               for entry, kind in zip(every, kinds, strict=True)]),
        is_brushed=True,
    )  # fmt: skip


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
        "four of five measurements": [interval_in_words(price) for price in prices],
        "cost": [cost_in_words(plan) for plan in plans],
    }  # fmt: skip
    yield Table(("", *names), [(fact, *values) for fact, values in facts.items()], "Side by side")
    yield _beside("Time of a step", names, [price.time_parts_s for price in prices], "s")
    yield _beside("Memory of the fullest device", names,
                  [price.memory_parts_bytes for price in prices], "bytes")  # fmt: skip


def _beside(
    title: str, names: Sequence[str], parts: Sequence[Mapping[str, float]], unit: str
) -> Plot:
    """Return a stacked bar of parts for each plan, the largest first."""
    shown = {"s": format_seconds, "bytes": format_bytes}[unit]
    used = [name for name in parts[0] if any(entry[name] for entry in parts)]
    used.sort(key=lambda name: -max(entry[name] for entry in parts))
    return Plot(
        title,
        "; ".join(f"{name}: {shown(sum(entry.values()))}"
                  for name, entry in zip(names, parts, strict=True)),
        "stacked",
        Table(("plan", *(f"{words(name)} [{unit}]" for name in used)),
              [(name, *(entry[part] for part in used))
               for name, entry in zip(names, parts, strict=True)]),
    )  # fmt: skip
