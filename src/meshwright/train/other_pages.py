"""The reports of a front, of a plan after a loss, and of a plan for a run with a time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshwright.base.errors import UnknownNameError
from meshwright.base.units import format_bytes, format_days, format_seconds
from meshwright.train.answer import Candidate, Deadline, Front, Replan
from meshwright.train.page import plan_page
from meshwright.train.report import question_line, slower_in_words
from meshwright.view import charts
from meshwright.view.parts import Chart, Page, Part, Section, Table, Text, Tile
from meshwright.view.pieces import GIB, provenance
from meshwright.view.words import JOULES_PER_KWH, counted, words

DAY_S = 86_400.0

# ---------------------------------------------------------------------------------------- a front

Amount = Callable[[Candidate], float | None]
AMOUNTS: dict[str, tuple[str, Amount]] = {
    "step": ("time of a step [s]", lambda c: c.estimate.step_time_s),
    "memory": ("memory of the fullest device [GiB]", lambda c: c.estimate.memory_bytes / GIB),
    "energy": ("energy of a step [kWh]", lambda c: _over(c.estimate.energy_j, JOULES_PER_KWH)),
    "money": ("money for a step [USD]", lambda c: c.estimate.cost_usd),
}
"""Objectives of a front: the title of the axis, and the amount where it is known."""


def _over(amount: float | None, unit: float) -> float | None:
    return None if amount is None else amount / unit


def front_page(found: Front) -> Page:
    """Return the report of a front: the features that only one plan has."""
    sections = (
        Section("front", "What is weighed against what?", list(_front_parts(found))),
        Section("plans", "The plans", [_front_table(found)]),
        Section("sure", "Where the numbers come from", [provenance(found.system)]),
    )
    return Page(
        title=f"{found.model.name} on {found.system.name}: Pareto front",
        subtitle=question_line(found),
        tiles=list(_front_tiles(found)),
        sections=[section for section in sections if section.parts],
        command=found.command,
        version=found.version,
    )


def _known(found: Front) -> dict[str, list[float]]:
    """Return the known amounts of all plans, by objective."""
    every = {
        name: [amount(candidate) for candidate in found.candidates]
        for name, (_, amount) in AMOUNTS.items()
    }
    return {
        name: [amount for amount in amounts if amount is not None]
        for name, amounts in every.items()
        if None not in amounts
    }


def _front_tiles(found: Front) -> Iterator[Tile]:
    known = _known(found)
    unknown = ", ".join(words(name) for name in found.left_out)
    yield Tile("How many plans?", counted(len(found.candidates), "plan"),
               f"not known, and left out: {unknown}" if unknown
               else "none is beaten in every respect", "plans")  # fmt: skip
    asked = {"step": "Which is fastest?", "memory": "Which needs least memory?",
             "energy": "Which needs least energy?", "money": "Which costs least?"}  # fmt: skip
    for name, amounts in known.items():
        place = amounts.index(min(amounts))
        entry = found.candidates[place]
        shown = _cells(entry)[name]
        fastest = min(c.estimate.step_time_s for c in found.candidates)
        slower = entry.estimate.step_time_s / fastest - 1.0
        beside = f"; {slower_in_words(slower)} than the fastest" if slower > 0.0 else ""
        yield Tile(asked[name], shown, f"{entry.text}{beside}", "front")


def _cells(entry: Candidate) -> dict[str, str]:
    """Return the amounts of a plan in words."""
    price = entry.estimate
    return {
        "step": format_seconds(price.step_time_s),
        "memory": format_bytes(price.memory_bytes),
        "energy": "unknown"
        if price.energy_j is None
        else f"{price.energy_j / JOULES_PER_KWH:.3g} kWh",
        "money": "unknown" if price.cost_usd is None else f"{price.cost_usd:.3g} USD",
    }


def _front_parts(found: Front) -> Iterator[Part]:
    for name in _known(found):
        if name != "step":
            yield from filter(None, [weighed_of(found, name)])


def weighed_of(found: Front, name: str) -> Chart | None:
    """Return the chart of step time against another amount; None: not known for every plan.

    Raises
    ------
    UnknownNameError
        The front has no such amount.
    """
    known, others = _known(found), [other for other in AMOUNTS if other != "step"]
    if name not in others:
        raise UnknownNameError("amount", str(name), others)
    if name not in known:
        return None
    amounts = known[name]
    fastest, least = known["step"].index(min(known["step"])), amounts.index(min(amounts))
    kinds = ["on the front"] * len(amounts)
    kinds[least], kinds[fastest] = f"least {name}", "fastest"
    ends = [_cells(found.candidates[place]) for place in (fastest, least)]
    return Chart(
        f"Time against {name}",
        f"From {ends[0]['step']} with {ends[0][name]} (the fastest) to {ends[1]['step']} with "
        f"{ends[1][name]} (least {name})",
        charts.points([entry.text for entry in found.candidates], known["step"], amounts, kinds,
                      AMOUNTS["step"][0], AMOUNTS[name][0]),
    )  # fmt: skip


def _front_table(found: Front) -> Table:
    rows = [
        (*_cells(entry).values(), entry.text, ", ".join(entry.launches_with) or "none")
        for entry in found.candidates
    ]
    return Table(("step>", "memory>", "energy>", "money>", "plan", "launches with"), rows)


# ----------------------------------------------------------------------------------- after a loss


def replan_page(found: Replan, **more: Any) -> Page:
    """Return the report of a plan after devices were lost; ``more`` as for a plan."""
    page = plan_page(found.plan, **more)
    lost = counted(found.num_lost, "device")
    kept = f"{found.throughput_fraction:.1%} of the throughput is left"
    moved = format_bytes(found.moved_bytes_per_device)
    tile = Tile(f"What does the loss of {lost} cost?", kept, f"{moved} to load on each device",
                "loss")  # fmt: skip
    changed: Part = Text("The plan stays as it is.")
    if found.changed:
        rows = [tuple(change.partition(": ")[::2]) for change in found.changed]
        changed = Table(("choice", "change"), rows)
    told = Text(f"{lost} lost: {kept}; {moved} of weights and state to load on each device.")
    section = Section("loss", "What changes", [told, changed])
    return _led_by(page, tile, section)


# ---------------------------------------------------------------------------------------- in time


def deadline_page(found: Deadline, **more: Any) -> Page:
    """Return the report of a plan for a run with a time limit; ``more`` as for a plan."""
    page, plan = plan_page(found.plan, **more), found.plan
    price = plan.best.estimate
    devices = f"{plan.system.num_alive:,} {plan.system.chip.name}"
    spread = ""
    if price.interval_s is not None:
        low, high = (found.run_s * step_s / price.step_time_s for step_s in price.interval_s)
        spread = f"; four of five such runs take {format_days(low)} to {format_days(high)}"
    verdict = "Yes" if found.is_in_time else "No"
    tile = Tile(
        f"Does it end within {format_days(found.within_s)}?",
        f"{verdict}, {format_days(found.run_s)} on {devices}",
        f"the fewest devices of those that were tried{spread}" if len(found.tried) > 1
        else spread.removeprefix("; "),
        "devices", "good" if found.is_in_time else "bad",
    )  # fmt: skip
    section = Section("devices", "How many devices does it take?", list(_tried_parts(found)))
    return _led_by(page, tile, section)


def devices_of(found: Deadline) -> Chart:
    """Return the chart of the time of the whole run by number of devices."""
    known = [(one.num_devices, one.run_s) for one in found.tried if one.run_s is not None]
    days = [run_s / DAY_S for _, run_s in known]
    shown = [format_days(run_s) for _, run_s in known]
    names = [f"{number:,} devices" for number, _ in known]
    return Chart(
        "The whole run, by number of devices",
        "; ".join(f"{name}: {text}" for name, text in zip(names, shown, strict=True))
        + f"; the line is at {format_days(found.within_s)}",
        charts.bars(names, days, shown, "time of the whole run [days]",
                    limit=found.within_s / DAY_S, limit_name="allowed [days]"),
    )  # fmt: skip


def _tried_parts(found: Deadline) -> Iterator[Part]:
    yield devices_of(found)
    without = [f"{one.num_devices:,}" for one in found.tried if one.run_s is None]
    if without:
        yield Text(f"No plan fits {' or '.join(without)} devices.")


def _led_by(page: Page, tile: Tile, *sections: Section) -> Page:
    """Return a page with a tile and sections before its own."""
    tiles: Sequence[Tile] = [tile, *page.tiles]
    return replace(page, tiles=tiles, sections=[*sections, *page.sections])
