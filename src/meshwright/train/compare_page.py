"""The report of a comparison: recipes side by side, with the time that each of them loses."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_seconds
from meshwright.train.answer import Candidate
from meshwright.train.compare import Comparison, Entry
from meshwright.train.report import plan_in_words, question_line
from meshwright.view import charts
from meshwright.view.parts import Chart, Code, Page, Part, Section, Table, Text, Tile
from meshwright.view.pieces import GIB, provenance, ranked
from meshwright.view.words import JOULES_PER_KWH

SAME = 0.005
"""Largest relative difference of times that are equal in words."""


def comparison_page(found: Comparison) -> Page:
    """Return the report of a comparison."""
    sections = (
        Section("recipes", "Which recipe is fastest?", list(_recipe_parts(found))),
        Section("lost", "Where do the others lose time?", list(_lost_parts(found))),
        Section("sure", "How sure is it?", list(_sure_parts(found))),
        Section("none", "Which recipes have no plan?", list(_none_parts(found))),
        Section("plans", "The plans", list(_plan_parts(found))),
    )
    return Page(
        title=f"{found.model.name} on {found.system.name}: recipes compared",
        subtitle=question_line(found),
        tiles=list(_tiles(found)),
        sections=[section for section in sections if section.parts],
        command=found.command,
        version=found.version,
    )


def _others(found: Comparison) -> list[tuple[Entry, Candidate]]:
    """Return the other recipes with their plans, the fastest first; without one: left out."""
    known = [(entry, entry.best) for entry in found.entries[1:] if entry.best is not None]
    return sorted(known, key=lambda pair: pair[1].estimate.step_time_s)


def _name(entry: Entry) -> str:
    """Return a recipe with its placer."""
    return f"{entry.recipe}, {entry.mapper}" if entry.mapper else entry.recipe


def _against(entry: Entry, found: Comparison) -> str:
    """Return the step time of a recipe relative to ours, in words."""
    times = entry.speedup_of(found.ours) or 1.0
    return "as fast as ours" if abs(times - 1.0) < SAME else f"{times:.2f}x the time of ours"


def _longer(ours: Candidate, other: Candidate) -> dict[str, float]:
    """Return the parts of a step that are longer than ours, the largest first [s]."""
    own, theirs = ours.estimate.time_parts_s, other.estimate.time_parts_s
    return ranked({name: max(part - own.get(name, 0.0), 0.0) for name, part in theirs.items()})


def _tiles(found: Comparison) -> Iterator[Tile]:
    """Yield the tiles of the verdict."""
    ours, others = found.ours.best, _others(found)
    if ours is None:
        yield Tile("Does it fit?", "No", found.ours.why_none, "none", "bad")
        return
    price = ours.estimate
    yield Tile(
        "How fast is the best plan?", f"{format_seconds(price.step_time_s)} a step",
        f"{price.tokens_per_s:,.0f} tokens/s, MFU {price.mfu_causal:.1%}", "plans", "good",
    )  # fmt: skip
    if others:
        entry, best = others[0]
        yield Tile("Which recipe comes next?", f"{_name(entry)}: {_against(entry, found)}",
                   entry.title, "recipes")  # fmt: skip
        longer = list(_longer(ours, best).items())[:2]
        yield Tile("What does it lack?",
                   ", ".join(f"{name} +{format_seconds(part)}" for name, part in longer)
                   or "Nothing takes longer", "against our step", "lost")  # fmt: skip
        slowest = others[-1][0]
        yield Tile("And the slowest?", f"{_name(slowest)}: {_against(slowest, found)}",
                   slowest.title, "recipes")  # fmt: skip
    have = sum(entry.best is not None for entry in found.entries)
    least = min(((ours.estimate.memory_bytes, found.ours),
                 *((best.estimate.memory_bytes, entry) for entry, best in others)),
                key=lambda pair: pair[0])  # fmt: skip
    lacks = have < len(found.entries)
    yield Tile("Which of them fit?", f"{have} of {len(found.entries)}",
               f"least memory: {_name(least[1])}, {least[0] / GIB:.1f} GiB",
               "none" if lacks else "recipes")  # fmt: skip
    if others:
        yield Tile("How sure is it?", *_sureness(ours, others[0][1]), "sure")
    yield Tile("What does it cost?", _cost(found, ours) or "price unknown",
               "of ours, per million tokens", "plans")  # fmt: skip


def _sureness(ours: Candidate, other: Candidate) -> tuple[str, str]:
    """Return a short answer, whether the intervals of two plans are apart, and a note on it."""
    own, theirs = ours.estimate.interval_s, other.estimate.interval_s
    if own is None or theirs is None:
        return "No interval", "the constants of this chip were not fitted to measurements"
    apart = own[1] < theirs[0]
    answer = "Apart from the next" if apart else "Overlaps with the next"
    return answer, "of intervals that hold four of five measurements"


def _cost(found: Comparison, best: Candidate) -> str:
    """Return the known money and energy of a million tokens."""
    price, million = best.estimate, found.workload.tokens_per_step / 1e6
    known = []
    if price.cost_usd is not None:
        known.append(f"{price.cost_usd / million:.3g} USD")
    if price.energy_j is not None:
        known.append(f"{price.energy_j / million / JOULES_PER_KWH:.3g} kWh")
    return ", ".join(known)


def time_of(found: Comparison) -> Chart | None:
    """Return the chart of the step of each recipe by part; None: nothing fits."""
    if found.ours.best is None:
        return None
    pairs = [(found.ours, found.ours.best), *_others(found)]
    steps = [best.estimate.step_time_s for _, best in pairs]
    each = [ranked(best.estimate.time_parts_s) for _, best in pairs]
    parts = list(dict.fromkeys(name for one in each for name in one))
    return Chart(
        "Time of a step, by recipe",
        "; ".join(f"{_name(entry)} {format_seconds(step)}"
                  for (entry, _), step in zip(pairs, steps, strict=True))
        + "; the line is at ours",
        charts.stacked(
            [_name(entry) for entry, _ in pairs],
            {name: [one.get(name, 0.0) for one in each] for name in parts},
            "time of a step [s]", row_title="", limit=steps[0], limit_name="ours [s]",
        ),
        Table(("recipe", *(f"{name}>" for name in parts)),
              [(_name(entry), *(format_seconds(one[name]) if name in one else "" for name in parts))
               for (entry, _), one in zip(pairs, each, strict=True)]),
    )  # fmt: skip


def _recipe_parts(found: Comparison) -> Iterator[Part]:
    if found.ours.best is None:
        yield Text(f"Nothing fits even when everything is free: {found.ours.why_none}")
        return
    yield from filter(None, [time_of(found)])
    pairs = [(found.ours, found.ours.best), *_others(found)]
    steps = [best.estimate.step_time_s for _, best in pairs]
    rows = [
        (_name(entry), format_seconds(step), f"{step / steps[0]:.2f}x",
         f"{best.estimate.memory_bytes / GIB:.1f}", f"{best.estimate.mfu_causal:.1%}",
         "" if best.estimate.tokens_per_j is None else f"{best.estimate.tokens_per_j:.2f}",
         _cost(found, best), best.text)
        for (entry, best), step in zip(pairs, steps, strict=True)
    ]  # fmt: skip
    head = ("recipe", "step>", "against ours>", "GiB>", "MFU>", "tokens/J>", "a million tokens",
            "plan")  # fmt: skip
    yield Table(head, rows, "The best plan of each recipe")


def _lost_parts(found: Comparison) -> Iterator[Part]:
    ours = found.ours.best
    if ours is None:
        return
    rows = []
    for entry, best in _others(found):
        longer = _longer(ours, best)
        because = ", ".join(f"{name} +{format_seconds(part)}" for name, part in longer.items())
        rows.append((_name(entry), entry.title, because or "nothing"))
    if rows:
        yield Table(("recipe", "what it does", "longer than ours"), rows)


def intervals_of(found: Comparison) -> Chart | None:
    """Return the chart of the intervals of the recipes; None: fewer than two are known."""
    pairs = [(found.ours, found.ours.best), *_others(found)]
    known = [
        (_name(entry), best.estimate.interval_s, best.estimate.step_time_s)
        for entry, best in pairs
        if best is not None and best.estimate.interval_s is not None
    ]
    if len(known) < 2:
        return None
    return Chart(
        "Intervals of the recipes",
        "Where four of five measurements of each plan lie; errors of plans of one job move "
        "together, so that plans whose intervals overlap may still differ",
        charts.spans(
            [name for name, _, _ in known], [span[0] for _, span, _ in known],
            [step for _, _, step in known], [span[1] for _, span, _ in known],
            "time of a step [s]",
        ),
        Table(("recipe", "from>", "step>", "to>"),
              [(name, format_seconds(span[0]), format_seconds(step), format_seconds(span[1]))
               for name, span, step in known]),
    )  # fmt: skip


def _sure_parts(found: Comparison) -> Iterator[Part]:
    yield from filter(None, [intervals_of(found)])
    searched = [
        (_name(entry), "" if entry.lower_bound_s is None else format_seconds(entry.lower_bound_s),
         format_seconds(entry.search_s))
        for entry in found.entries
    ]  # fmt: skip
    yield Table(("recipe", "no plan of it is faster than>", "time of its search>"), searched,
                "Every recipe is searched whole, with the same effort")  # fmt: skip
    yield provenance(found.system)


def _none_parts(found: Comparison) -> Iterator[Part]:
    rows = [(_name(entry), entry.title, entry.why_none)
            for entry in found.entries if entry.best is None]  # fmt: skip
    if rows:
        yield Table(("recipe", "what it does", "why it has none"), rows)


def _plan_parts(found: Comparison) -> Iterator[Part]:
    for entry in found.entries:
        if entry.best is None:
            continue
        said = plan_in_words(entry.best)
        yield Code(entry.best.text, f"{_name(entry)}: {entry.title}")
        yield Text(f"{said[:1].upper()}{said[1:]}. Recipe: {entry.source}.")
