"""The view of a comparison: recipes side by side, with the time that each of them loses."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_seconds
from meshwright.train.answer import BestOfRecipe, Candidate, Comparison
from meshwright.train.view.plan import intervals, sentence
from meshwright.train.words import plan_in_words, question_line
from meshwright.view.drawn import ranked
from meshwright.view.parts import Cell, Code, Page, Part, Plot, Section, Table, Text, Tile
from meshwright.view.pieces import provenance
from meshwright.view.registry import view
from meshwright.view.values import shown
from meshwright.view.words import per_million_tokens, words

SAME = 0.005
"""Largest relative difference of times that are equal in words."""
MOST_RECIPES = 14
"""Recipes on the first screen."""


@view(Comparison)
def comparison_page(found: Comparison) -> Page:
    """Return the page of a comparison."""
    plans = _plans(found)
    sections = (
        Section("recipes", "Which recipe is fastest?", list(_recipe_parts(found))),
        Section("lost", "Where do the others lose time?", list(_lost_parts(plans))),
        Section("sure", "How sure is it?", list(_sure_parts(found))),
        Section("none", "Which recipes have no plan?", list(_none_parts(found))),
        Section("plans", "The plans", list(_plan_parts(plans))),
    )
    return Page(
        title=f"{found.model.name} on {found.system.name}: recipes compared",
        subtitle=question_line(found),
        tiles=list(_tiles(found)),
        sections=sections,
    )


Planned = list[tuple[BestOfRecipe, Candidate]]


def _plans(found: Comparison) -> Planned:
    """Return the recipes with their plans, ours first, then the fastest; without one: left out."""
    known = [(entry, entry.best) for entry in found.entries if entry.best is not None]
    return sorted(known, key=lambda pair: (pair[0] is not found.ours, pair[0].speedup_of_ours))


def _against(entry: BestOfRecipe) -> str:
    """Return the step time of a recipe relative to ours, in words."""
    times = entry.speedup_of_ours or 1.0
    return "as fast as ours" if abs(times - 1.0) < SAME else f"{times:.2f}x the time of ours"


def _longer(ours: Candidate, other: Candidate) -> list[str]:
    """Return the parts of a step that are longer than ours, the largest first."""
    own, theirs = ours.estimate.time_parts_s, other.estimate.time_parts_s
    longer = {name: max(part - own.get(name, 0.0), 0.0) for name, part in theirs.items()}
    return [f"{name} +{format_seconds(part_s)}" for name, part_s in ranked(longer).items()]


def _tiles(found: Comparison) -> Iterator[Tile]:
    """Yield the best plan, then the recipes beside it."""
    ours, plans = found.ours.best, _plans(found)
    if ours is None:
        yield Tile("Does it fit?", found.ours.why_none, section="none", mood="bad", label="NO FIT")
    else:
        price = ours.estimate
        yield Tile(
            "How fast is the best plan?",
            f"{format_seconds(price.step_time_s)} a step, {price.tokens_per_s:,.0f} tokens/s",
            f"MFU {price.mfu_causal:.1%}", "plans", "good", "best",
        )  # fmt: skip
        yield Tile("What is the plan?", ours.text, section="plans", label="plan")
    left = len(found.entries) - MOST_RECIPES
    table = _recipes(found)
    yield Tile("Which of them fit?", f"{len(plans)} of {len(found.entries)}", section="recipes",
               label="recipes", part=Table(table.head, table.rows[:MOST_RECIPES]))  # fmt: skip
    if left > 0:
        yield Tile("How many more?", f"{left} more with --detail", label="others")
    if ours is None or len(plans) < 2:
        return
    entry, best = plans[1]
    yield Tile("Which recipe comes next?", f"{entry.name}: {_against(entry)}", entry.title,
               "recipes")  # fmt: skip
    yield Tile("What takes longer in it?", ", ".join(_longer(ours, best)[:2]) or "Nothing",
               "against our step", "lost")  # fmt: skip
    slowest = plans[-1][0]
    yield Tile("Which recipe is the slowest?", f"{slowest.name}: {_against(slowest)}",
               slowest.title, "recipes")  # fmt: skip
    yield Tile("How sure is it?", *_sureness(ours, best), "sure")
    yield Tile("What does it cost?", _cost(found, ours), "of ours", "plans")


def _sureness(ours: Candidate, other: Candidate) -> tuple[str, str]:
    """Return a short answer, whether the intervals of two plans are apart, and a note on it."""
    own, theirs = ours.estimate.interval_s, other.estimate.interval_s
    if own is None or theirs is None:
        return "No interval", "the constants of this chip were not fitted to measurements"
    answer = "Apart from the next" if own[1] < theirs[0] else "Overlaps with the next"
    return answer, "of intervals that hold four of five measurements"


def _cost(found: Comparison, best: Candidate) -> str:
    """Return money and energy of a million tokens."""
    price, million = best.estimate, found.workload.tokens_per_step / 1e6
    return per_million_tokens(*(None if amount is None else amount / million
                                for amount in (price.cost_usd, price.energy_j)))  # fmt: skip


def _recipes(found: Comparison) -> Table:
    """Return a row for each recipe, in the order of the answer."""
    places = any(entry.mapper for entry in found.entries)
    rows: list[tuple[Cell, ...]] = []
    for entry in found.entries:
        placed = [entry.mapper or "-"] if places else []
        if entry.best is None:
            rows.append((entry.recipe, *placed, "none fits", *[None] * 4))
            continue
        price, times = entry.best.estimate, entry.speedup_of_ours
        gain = None if entry is found.ours else times
        rows.append((entry.recipe, *placed, format_seconds(price.step_time_s), gain,
                     price.memory_bytes, price.mfu_causal, shown(price.tokens_per_j)))  # fmt: skip
    head = ("recipe", *(["placed by"] if places else []), "step>", "ours faster [x]",
            "memory [bytes]", "MFU [%]", "tokens/J>")  # fmt: skip
    return Table(head, rows)


def _recipe_parts(found: Comparison) -> Iterator[Part]:
    if found.ours.best is None:
        yield Text(f"No plan fits even with all choices searched: {found.ours.why_none}")
    else:
        yield _times(_plans(found))
    table = _recipes(found)
    more = [("", "") if entry.best is None else (_cost(found, entry.best), entry.best.text)
            for entry in found.entries]  # fmt: skip
    yield Table(
        (*table.head, "cost", "plan"),
        [(*row, *cells) for row, cells in zip(table.rows, more, strict=True)],
        "The best plan of each recipe",
    )


def _times(plans: Planned) -> Plot:
    """Return the step of each recipe by part."""
    parts = {name: 0.0 for _, best in plans for name in best.estimate.time_parts_s}
    for name in parts:
        parts[name] = max(best.estimate.time_parts_s.get(name, 0.0) for _, best in plans)
    used = sorted((name for name in parts if parts[name]), key=lambda name: -parts[name])
    return Plot(
        "Time of a step, by recipe",
        "; ".join(f"{entry.name} {format_seconds(best.estimate.step_time_s)}"
                  for entry, best in plans) + "; the line is at ours",
        "stacked",
        Table(("recipe", *(f"{words(name)} [s]" for name in used)),
              [(entry.name, *(best.estimate.time_parts_s.get(name) for name in used))
               for entry, best in plans]),
        plans[0][1].estimate.step_time_s, "ours",
    )  # fmt: skip


def _lost_parts(plans: Planned) -> Iterator[Part]:
    if len(plans) > 1:
        rows = [(entry.name, entry.title, ", ".join(_longer(plans[0][1], best)) or "nothing")
                for entry, best in plans[1:]]  # fmt: skip
        yield Table(("recipe", "what it does", "longer than ours"), rows)


def _sure_parts(found: Comparison) -> Iterator[Part]:
    yield from intervals("recipe", "recipes", {entry.name: best for entry, best in _plans(found)})
    yield Table(
        ("recipe", "lower bound of its plans [s]", "time of its search [s]"),
        [(entry.name, entry.lower_bound_s, entry.search_s) for entry in found.entries],
        "Every recipe is searched whole, with the same effort",
    )
    yield provenance(found.system)


def _none_parts(found: Comparison) -> Iterator[Part]:
    rows = [(entry.name, entry.title, entry.why_none)
            for entry in found.entries if entry.best is None]  # fmt: skip
    if rows:
        yield Table(("recipe", "what it does", "why it has none"), rows)


def _plan_parts(plans: Planned) -> Iterator[Part]:
    for entry, best in plans:
        yield Code(best.text, f"{entry.name}: {entry.title}")
        yield sentence(f"{plan_in_words(best)}. Recipe: {entry.source}")
