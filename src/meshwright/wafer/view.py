"""The views of a simulated step, of a placement, and of two placements side by side."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_seconds
from meshwright.train.answer import HotLink
from meshwright.train.words import question_line
from meshwright.view.drawn import largest
from meshwright.view.parts import Page, Plot, Section, Table, Tile, Whole
from meshwright.view.registry import view
from meshwright.wafer.answer import PlacedPlan, Placements, SimulatedPlan

MOST_LINKS = 3
"""Hottest links of a placement that are named."""


@view(SimulatedPlan)
def simulated_page(found: SimulatedPlan) -> Page:
    """Return the page of a simulated step."""
    used = found.link_utilisation
    tenths = [(f"tenth {number}", load) for number, load in enumerate(used.over_time, start=1)]
    most = max(used.over_time)
    return Page(
        title=f"{found.plan.model.name} on {found.plan.system.name}: a step simulated",
        subtitle=question_line(found.plan),
        tiles=list(_tiles(found)),
        sections=(
            Section("time", "How long is a step?", [_time(found)]),
            Section("links", "How busy are the links?", [
                Plot("Links over the step",
                     f"Mean load of {found.network.num_links:,} links in each tenth of the step: "
                     f"{used.mean:.1%} of their bandwidth, {most:.1%} at the most",
                     "bars", Table(("part of the step", "of their bandwidth [%]"), tenths)),
                _busiest(found)]),
        ),
    )  # fmt: skip


def _tiles(found: SimulatedPlan) -> Iterator[Tile]:
    step, price = found.step, found.plan.best.estimate
    ratio = step.step_time_s / price.step_time_s - 1.0
    priced = f"{ratio:+.1%} against {format_seconds(price.step_time_s)} contended"
    if found.closed_form_s is not None:
        priced += f"; {format_seconds(found.closed_form_s)} closed form"
    yield Tile("How long is a step?", f"{format_seconds(step.step_time_s)} simulated", priced,
               "time", label="step")  # fmt: skip
    known = found.plan.operators
    if found.operators_s is not None and known is not None:
        ratio = found.operators_s / known.step_time_s - 1.0
        yield Tile("What if each operator has its own strategy?",
                   f"{format_seconds(found.operators_s)} simulated, each group of operators with "
                   "its own strategy", f"{ratio:+.1%} against "
                   f"{format_seconds(known.step_time_s)} contended", label="operators")  # fmt: skip
    yield Tile("Which plan is it?", found.plan.best.text, label="plan")
    yield Tile("How much was simulated?",
               f"{found.num_tasks:,} tasks of {step.num_micro_batches} of "
               f"{price.num_micro_batches} micro-batches", label="played")  # fmt: skip
    yield Tile("What limits it?", largest(step.time_parts_s, step.step_time_s), section="time",
               label="time", part=_time(found))  # fmt: skip
    used = found.link_utilisation
    tenths = " ".join(f"{load:.0%}" for load in used.over_time)
    yield Tile("How busy are the links?", f"{used.mean:.1%} busy on average, {used.largest:.1%} "
               "the busiest", f"over the step, in tenths: {tenths}", "links",
               label="links")  # fmt: skip
    if found.busiest_links:
        first = found.busiest_links[0]
        yield Tile("Which links are the busiest?", f"{first.source} -> {first.target}",
                   section="links", label="busiest", part=_busiest(found), spare=2)  # fmt: skip


def _time(found: SimulatedPlan) -> Whole:
    return Whole("Time of a step, simulated", found.step.time_parts_s, "s",
                 found.step.step_time_s)  # fmt: skip


def _busiest(found: SimulatedPlan) -> Table:
    rows = [(f"{link.source} -> {link.target}", link.utilisation) for link in found.busiest_links]
    return Table(("link", "busy [%]"), rows)


# --------------------------------------------------------------------------------------- placements


@view(PlacedPlan)
def placed_page(found: PlacedPlan) -> Page:
    """Return the page of a placement."""
    blocks = ", ".join(f"{axis} {'x'.join(map(str, shape))}" for axis, shape in found.axes.items())
    return Page(
        title=f"{found.plan} on {found.system}",
        subtitle=f"{found.plan} on {found.system}, a grid of {'x'.join(map(str, found.grid))}",
        tiles=[
            Tile("Which blocks do the groups fill?", blocks or "one device", label="blocks"),
            Tile("Which device runs each rank?", ", ".join(map(str, found.devices)),
                 label="devices"),
        ],
    )  # fmt: skip


@view(Placements)
def placements_page(found: Placements) -> Page:
    """Return the page of a plan in two placements."""
    planned, stated = found.planned, found.stated
    ratio = stated.simulated_s / planned.simulated_s - 1.0
    faster = f"{abs(ratio):.1%} {'slower' if ratio > 0 else 'faster'} than planned" \
        if abs(ratio) >= 0.0005 else "as fast as planned"  # fmt: skip
    return Page(
        title=f"{found.model} on {planned.system}: two placements",
        subtitle=f"{found.model} on {planned.system}: {planned.plan}",
        tiles=[
            Tile("Which placement is faster?", f"the stated placement is {faster}",
                 f"{format_seconds(stated.simulated_s)} against "
                 f"{format_seconds(planned.simulated_s)}, simulated", "times", label="verdict"),
            Tile("How long is a step?", format_seconds(stated.simulated_s), section="times",
                 label="step", part=_times(found)),
            Tile("Which links are the hottest?", f"planned: {_hottest(planned.hottest_links)}",
                 f"stated: {_hottest(stated.hottest_links)}", label="hottest"),
        ],
        sections=[Section("times", "How long is a step?", [_times(found)])],
    )  # fmt: skip


def _times(found: Placements) -> Table:
    """Return the step times and the slowdowns of both placements."""
    both = (found.planned, found.stated)
    axes = dict.fromkeys(axis for one in both for axis in one.slowdown)
    rows: list[tuple[str, ...]] = [
        ("simulated", *(format_seconds(one.simulated_s) for one in both)),
        ("contended", *(format_seconds(one.contended_s) for one in both)),
        ("on private links", *(format_seconds(one.closed_form_s) for one in both)),
    ]
    rows += [(f"slowdown of {axis}", *(f"{one.slowdown.get(axis, 1.0):.2f} x" for one in both))
             for axis in axes]  # fmt: skip
    return Table(("", "as planned>", "as stated>"), rows)


def _hottest(links: tuple[HotLink, ...]) -> str:
    texts = [f"{link.source} -> {link.target} {format_seconds(link.busy_s)}" for link in links]
    return ", ".join(texts[:MOST_LINKS]) or "none"
