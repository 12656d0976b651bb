"""The views of questions beside a plan: fit, check, front, loss of devices, time limit, reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshwright.base.units import format_bytes, format_days, format_seconds
from meshwright.train.answer import (
    Candidate,
    Check,
    Deadline,
    Explanation,
    Fit,
    Front,
    Replan,
)
from meshwright.train.view import comparison as comparison
from meshwright.train.view.plan import (
    cost_tile,
    memory_tile,
    page_with,
    plan_page,
    string_tile,
    time_tile,
    verdict_tile,
)
from meshwright.train.words import (
    SAME,
    because_in_words,
    difference,
    launches_in_words,
    question_line,
    run_in_words,
    shortage,
    slower_in_words,
    take,
)
from meshwright.view.parts import Later, Page, Part, Plot, Section, Table, Text, Tile
from meshwright.view.pieces import provenance
from meshwright.view.registry import view
from meshwright.view.words import JOULES_PER_KWH, counted, words

DAY_S = 86_400.0
MOST_PLANS, MOST_REASONS = 10, 5
"""Plans of a front, and plans that lose, on the first screen."""

# ------------------------------------------------------------------------------------------- a fit


@view(Fit)
def fit_page(plan: Fit, **beside: Any) -> Page:
    """Return the page of a fit: the verdict, the memory by part, and nearby changes that fit."""
    return page_with(plan, _fit_tiles(plan), **beside)


def _fit_tiles(plan: Fit) -> Iterator[Tile]:
    price = plan.best.estimate
    left = price.memory_capacity_bytes - price.memory_bytes
    if price.fits:
        yield Tile("Does it fit?", f"{format_bytes(left)} left on the fullest device, beside the "
                   "margin", section="memory", mood="good", label="FITS")  # fmt: skip
    else:
        yield Tile("Does it fit?", shortage(price), section="memory", mood="bad",
                   label="TIGHT" if price.is_tight else "NO FIT")  # fmt: skip
    yield string_tile(plan.best)
    yield Tile("What to launch?", launches_in_words(plan), section="launch", label="launches",
               spare=2)  # fmt: skip
    yield memory_tile(plan)
    parts = sorted(price.memory_parts_bytes.items(), key=lambda item: -item[1])
    rows = [(words(name), size, size / price.memory_capacity_bytes) for name, size in parts if size]
    yield Tile("What fills it?", f"{rows[0][0]} {format_bytes(parts[0][1])}", section="memory",
               part=Table(("part", "memory [bytes]", "of the capacity [%]"), rows))  # fmt: skip
    if plan.would_fit:
        offers = [(difference(plan.best, entry), entry.estimate.memory_bytes)
                  for entry in plan.would_fit]  # fmt: skip
        yield Tile("What would fit?", offers[0][0], label="fits with",
                   part=Table(("", " [bytes]"), offers))  # fmt: skip
    elif not price.fits:
        yield Tile("What would fit?", f"no plan on {plan.system.name}: more devices, or an "
                   "optimizer with less state", label="fits with")  # fmt: skip


# ----------------------------------------------------------------------------------------- a check


@view(Check)
def check_page(found: Check) -> Page:
    """Return the page of a check: each broken rule with the nearest legal change."""
    number = counted(len(found.faults), "rule")
    verdict = Tile("Is it legal?", "no rule is broken" if found.is_legal else f"{number} broken",
                   section="rules", mood="good" if found.is_legal else "bad",
                   label="LEGAL" if found.is_legal else "REFUSED")  # fmt: skip
    broken = [
        Tile(f"What does {fault.rule} say?", f"{fault.rule}: {fault.message}",
             f"nearest legal: {fault.fix}" if fault.fix else "", "rules", label="rule")
        for fault in found.faults
    ]  # fmt: skip
    rows = [(fault.rule, fault.message, fault.fix) for fault in found.faults]
    section = Section("rules", "Broken rules", [Table(("rule", "found", "nearest legal"), rows)])
    return Page("A strategy checked", found.plan, [verdict, *broken], sections=[section])


# --------------------------------------------------------------------------------------- a front

Amount = Callable[[Candidate], float | None]
AMOUNTS: dict[str, tuple[str, str, Amount]] = {
    "step": ("time of a step [s]", "Which is fastest?", lambda c: c.estimate.step_time_s),
    "memory": ("memory of the fullest device [bytes]", "Which needs least memory?",
               lambda c: c.estimate.memory_bytes),
    "energy": ("energy of a step [J]", "Which needs least energy?", lambda c: c.estimate.energy_j),
    "money": ("money for a step [USD]", "Which costs least?", lambda c: c.estimate.cost_usd),
}  # fmt: skip
"""Objectives of a front: the axis, the question for the best plan, the amount where it is known."""


@view(Front)
def front_page(found: Front) -> Page:
    """Return the page of a front."""
    known = [name for name in AMOUNTS if None not in _amounts(found, name)]
    return Page(
        title=f"{found.model.name} on {found.system.name}: Pareto front",
        subtitle=question_line(found),
        tiles=list(_front_tiles(found, known)),
        sections=[
            Section("front", "What is weighed against what?",
                    [_weighed(found, name) for name in known if name != "step"]),
            Section("plans", "The plans", [_front_table(found.candidates)]),
            Section("sure", "Where the numbers come from", [provenance(found.system)]),
        ],
    )  # fmt: skip


def _amounts(found: Front, name: str) -> list[float | None]:
    """Return an amount of all plans."""
    return [AMOUNTS[name][2](candidate) for candidate in found.candidates]


def _front_tiles(found: Front, known: Sequence[str]) -> Iterator[Tile]:
    number = len(found.candidates)
    steps = max(min(number, MOST_PLANS) - 1, 1)
    chosen = {round(k * (number - 1) / steps) for k in range(min(number, MOST_PLANS))}
    shown = _front_table([found.candidates[place] for place in sorted(chosen)], columns=5)
    yield Tile("How many plans?", f"{counted(number, 'plan')} on the Pareto front",
               section="plans", label="front")  # fmt: skip
    yield Tile("Which plans?", f"{len(shown.rows)} of {number}", section="plans",
               label="plans", part=shown)  # fmt: skip
    if number > len(shown.rows):
        yield Tile("Which others?", f"{number - len(shown.rows)} between them with --detail",
                   label="others")  # fmt: skip
    if found.left_out:
        unknown = ", ".join(words(name) for name in found.left_out)
        yield Tile("What is left out?", f"not known: {unknown}", label="left out")
    for name in known:
        best = _least(found, name)
        slower = best.estimate.step_time_s / _least(found, "step").estimate.step_time_s - 1.0
        beside = f"; {slower_in_words(slower)} than the fastest" if slower > 0.0 else ""
        yield Tile(AMOUNTS[name][1], _cells(best)[name], f"{best.text}{beside}", "front")


def _least(found: Front, name: str) -> Candidate:
    """Return the plan with the least of an amount that is known for all plans."""
    return min(found.candidates, key=lambda entry: AMOUNTS[name][2](entry) or 0.0)


def _cells(entry: Candidate) -> dict[str, str]:
    """Return the amounts of a plan in words."""
    price, energy, money = entry.estimate, "unknown", "unknown"
    if price.energy_j is not None:
        energy = f"{price.energy_j / JOULES_PER_KWH:.3g} kWh"
    if price.cost_usd is not None:
        money = f"{price.cost_usd:.3g} USD"
    return {"step": format_seconds(price.step_time_s), "memory": format_bytes(price.memory_bytes),
            "energy": energy, "money": money}  # fmt: skip


def _weighed(found: Front, name: str) -> Plot:
    """Return the plot of step time against another amount."""
    ends = {"fastest": _least(found, "step"), f"least {name}": _least(found, name)}
    kinds = {entry.text: kind for kind, entry in reversed(ends.items())}
    told = [f"{_cells(entry)['step']} with {_cells(entry)[name]} ({kind})"
            for kind, entry in ends.items()]  # fmt: skip
    rows = [
        (entry.text, kinds.get(entry.text, "on the front"), entry.estimate.step_time_s, amount)
        for entry, amount in zip(found.candidates, _amounts(found, name), strict=True)
    ]
    head = ("plan", "kind", AMOUNTS["step"][0], AMOUNTS[name][0])
    return Plot(f"Time against {name}", f"From {told[0]} to {told[1]}", "points", Table(head, rows))


def _front_table(plans: Sequence[Candidate], columns: int = 6) -> Table:
    head = ("step>", "memory>", "energy>", "money>", "plan", "launches with")
    rows = [(*_cells(entry).values(), entry.text, ", ".join(entry.launches_with) or "none")
            for entry in plans]  # fmt: skip
    return Table(head[:columns], [row[:columns] for row in rows])


# ----------------------------------------------------------------------------------- after a loss


@view(Replan)
def replan_page(found: Replan, **beside: Any) -> Page:
    """Return the page of a plan after devices were lost."""
    lost, moved = counted(found.num_lost, "device"), format_bytes(found.moved_bytes_per_device)
    text = (f"{lost} lost: {found.throughput_fraction:.1%} of the throughput; {moved} to load on "
            "each device")  # fmt: skip
    what = "; ".join(found.changed) or "the plan stays as it is"
    tile = Tile("What does the loss cost?", text, what, "loss", label="change")
    changed: Part = Text("The plan stays as it is.")
    if found.changed:
        rows = [tuple(change.partition(": ")[::2]) for change in found.changed]
        changed = Table(("choice", "change"), rows)
    section = Section("loss", "What changes", [Text(f"{text}."), changed])
    return _led_by(plan_page(found.plan, **beside), tile, section)


# ---------------------------------------------------------------------------------------- in time


@view(Deadline)
def deadline_page(found: Deadline, **beside: Any) -> Page:
    """Return the page of a plan for a run with a time limit."""
    others = [one for one in found.tried if one.num_devices != found.plan.system.num_devices]
    took = [
        f"{one.num_devices:,} "
        + ("without a plan" if one.run_s is None
           else f"{take(one.num_devices)} {format_days(one.run_s)}")
        for one in others
    ]  # fmt: skip
    tile = Tile(
        f"Does it end within {format_days(found.within_s)}?", run_in_words(found),
        f"the fewest tried with their slow end in time; expected: {', '.join(took)}"
        if others else "", "devices",
        "good" if found.is_in_time else "bad", "IN TIME" if found.is_in_time else "LATE",
    )  # fmt: skip
    section = Section("devices", "How many devices does it take?", list(_tried(found)))
    return _led_by(plan_page(found.plan, **beside), tile, section)


def _tried(found: Deadline) -> Iterator[Part]:
    known = [(f"{one.num_devices:,} devices", one.run_s / DAY_S)
             for one in found.tried if one.run_s is not None]  # fmt: skip
    yield Plot(
        "The whole run, by number of devices",
        "; ".join(f"{name}: {format_days(days * DAY_S)}" for name, days in known)
        + f"; the line is at {format_days(found.within_s)}",
        "bars", Table(("devices", "time of the whole run [days]"), known),
        found.within_s / DAY_S, "allowed",
    )  # fmt: skip
    without = [f"{one.num_devices:,}" for one in found.tried if one.run_s is None]
    if without:
        yield Text(f"No plan fits {' or '.join(without)} devices.")


def _led_by(page: Page, tile: Tile, section: Section) -> Page:
    """Return a page with a tile and a section before its own."""
    sections = Later(lambda: [section, *page.sections])
    return replace(page, tiles=[tile, *page.tiles], sections=sections)


# ------------------------------------------------------------------------------------- the reasons


@view(Explanation)
def explanation_page(found: Explanation, **beside: Any) -> Page:
    """Return the page of a plan with its reasons: time, better hardware, the plans it beats."""
    return page_with(found.plan, _reasons(found), explanation=found, **beside)


def _reasons(found: Explanation) -> Iterator[Tile]:
    plan = found.plan
    yield verdict_tile(plan)
    yield string_tile(plan.best)
    helps = [one for one in plan.changes if one.faster_by_fraction > SAME][:3]
    if helps:
        text = ", ".join(f"{one.what} {one.faster_by_fraction:.1%} faster" for one in helps)
        yield Tile("What if the system were better?", text, section="change", label="hardware",
                   spare=2)  # fmt: skip
    # The ranking itself comes first; it is shown where no other plan was looked for.
    lacking = found.why_not[len(plan.runners_up) :] or found.why_not
    rows = [(why.question, slower_in_words(why.slower_by_fraction), because_in_words(why, 1))
            for why in lacking]  # fmt: skip
    rows += [(name, "impossible", reason) for name, reason in found.not_possible.items()]
    if rows:
        shown = Table(("", "", ""), rows[:MOST_REASONS])
        yield Tile("Why not another plan?", f"{rows[0][0]}: {rows[0][1]}", section="others",
                   label="why not", part=shown, spare=1)  # fmt: skip
    yield time_tile(plan)
    yield replace(memory_tile(plan), label="")
    yield cost_tile(plan)
    yield Tile("What to launch?", launches_in_words(plan), section="launch", label="launches",
               spare=2)  # fmt: skip
