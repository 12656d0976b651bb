"""The view of a diagnosis: a measured step beside its prediction, and what wins time back."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds
from meshwright.train.measured.diagnose import Diagnosis, Improvement
from meshwright.train.measured.factors import RESOURCES
from meshwright.train.words import trials_in_words
from meshwright.view.parts import Page, Part, Plot, Section, Table, Text, Tile
from meshwright.view.registry import view
from meshwright.view.words import words

MOST_CHANGES = 3
"""Changes on the first screen."""
SURPRISING = 3.0
"""Standard deviations from the prediction beyond which something else is likely wrong."""
SURPRISE = (
    "no factor that rows of published measurements suggest explains this: check that the options "
    "describe the job, then look for other causes (input, other jobs, throttling, a slow "
    "device). The intervals below do not hold then"
)
TITLES = {resource.name: resource.title for resource in RESOURCES}


@view(Diagnosis)
def diagnosis_page(found: Diagnosis) -> Page:
    """Return the page of a diagnosis."""
    surprise = [SURPRISE] if abs(found.surprise) > SURPRISING else []
    sections = (
        Section("lost", "Where does the step differ from its prediction?", list(_lost(found))),
        Section("changes", "What wins time back?", list(_changes(found))),
        Section("trials", "What to measure next?", list(_trials(found))),
    )
    return Page(
        title="A measured step beside its prediction",
        subtitle=found.question or found.plan,
        tiles=list(_tiles(found)),
        sections=sections,
        warnings=[*surprise, *found.warnings],
    )


def _tiles(found: Diagnosis) -> Iterator[Tile]:
    side = "slower" if found.surprise > 0 else "faster"
    ratio = found.measured_s / found.predicted_s - 1.0
    yield Tile(
        "How far is it from its prediction?",
        f"{format_seconds(found.measured_s)} a step, predicted "
        f"{format_seconds(found.predicted_s)} ({ratio:+.1%})",
        f"{abs(found.surprise):.1f} standard deviations {side}; "
        f"{found.fidelity.replace('_', '-')} model", "lost", label="measured",
    )  # fmt: skip
    helpful = _helpful(found)
    if helpful:
        best = helpful[0]
        yield Tile("What wins most back?", f"{best.what}: {best.faster_by_fraction:.1%} faster, "
                   f"{best.plan}", section="changes", label="best")  # fmt: skip
    yield Tile("What ran?", found.plan, label="plan")
    if found.measured_memory_bytes is not None and found.predicted_memory_bytes:
        yield Tile("How much memory did it take?", _memory(found), section="lost", label="memory")
    worst = max(found.losses, key=lambda loss: abs(loss.lost_s))
    yield Tile("Where is time lost?", f"{TITLES[worst.resource]}: {_signed(worst.lost_s)}",
               section="lost", label="lost", part=_losses(found, columns=4))  # fmt: skip
    yield Tile("What else wins time back?", _gaining(found), section="changes", label="changes")
    if helpful:
        yield Tile("By how much?", helpful[0].what, section="changes", label="gain",
                   part=_improvements(helpful[:MOST_CHANGES]))  # fmt: skip


def _memory(found: Diagnosis) -> str:
    measured, predicted = found.measured_memory_bytes, found.predicted_memory_bytes
    assert measured is not None
    assert predicted is not None
    return (
        f"{format_bytes(measured)} on the fullest device, predicted {format_bytes(predicted)} "
        f"({measured / predicted - 1.0:+.1%}); applied below"
    )


def _helpful(found: Diagnosis) -> list[Improvement]:
    return [entry for entry in found.changes if entry.faster_by_fraction > 0.0]


def _gaining(found: Diagnosis) -> str:
    """Return the number of changes that gain, and of those left out."""
    left = ", ".join(f"{why}: {number}" for why, number in found.left_out.items() if number)
    text = f"{len(_helpful(found))} of {len(found.changes)} single changes gain"
    return f"{text} ({left})" if left else text


def _signed(seconds: float) -> str:
    text = format_seconds(seconds)
    return text if text.startswith("-") else f"+{text}"


def _losses(found: Diagnosis, caption: str = "", columns: int = 6) -> Table:
    """Return the difference between measured and predicted time by resource, with its sum."""
    rows: list[tuple[str, ...]] = [
        (TITLES[loss.resource], _signed(loss.lost_s),
         f"{_signed(loss.low_s)} to {_signed(loss.high_s)}", f"{factor.factor:.2f}",
         f"{factor.low:.2f} to {factor.high:.2f}",
         f"{factor.prior_low:.2f} to {factor.prior_high:.2f}")
        for loss, factor in zip(found.losses, found.factors.factors, strict=True)
    ]  # fmt: skip
    sums = {"this plan alone, or noise": found.not_explained_s,
            "measured - predicted": found.measured_s - found.predicted_s}  # fmt: skip
    rows += [(name, _signed(seconds), "", "", "", "") for name, seconds in sums.items()]
    head = ("", "time>", "5 to 95 %>", "factor>", "5 to 95 %>", "before>")
    return Table(head[:columns], [row[:columns] for row in rows], caption)


def _improvements(entries: list[Improvement], caption: str = "") -> Table:
    rows = [
        (entry.what, entry.step_time_s, f"{entry.faster_by_fraction:+.1%}",
         f"{entry.low_fraction:+.1%} to {entry.high_fraction:+.1%}",
         f"{entry.is_faster_fraction:.0%} sure")
        for entry in entries
    ]  # fmt: skip
    return Table(("", "step [s]", "gain>", "5 to 95 %>", ">"), rows, caption)


def _lost(found: Diagnosis) -> Iterator[Part]:
    yield Plot(
        "Time lost by resource",
        "; ".join(f"{TITLES[loss.resource]} {_signed(loss.lost_s)}" for loss in found.losses),
        "spans",
        Table(("resource", "from [s]", "expected [s]", "to [s]"),
              [(TITLES[loss.resource], loss.low_s, loss.lost_s, loss.high_s)
               for loss in found.losses]),
    )  # fmt: skip
    yield _losses(found, "Where the step differs from its prediction")
    ranked = sorted(found.parts_s.items(), key=lambda item: -abs(item[1]))
    yield Table(("part of the step", "difference>"),
                [(words(name), _signed(part_s)) for name, part_s in ranked if part_s])  # fmt: skip
    if found.measured_memory_bytes is not None and found.predicted_memory_bytes:
        yield Text(f"Memory: {_memory(found)}.")


def _changes(found: Diagnosis) -> Iterator[Part]:
    yield Text(f"Under these factors {_gaining(found)}.")
    if found.changes:
        yield _improvements(list(found.changes), "Single changes, the largest gain first")
        yield Plot(
            "Gain of single changes", f"{found.changes[0].what} gains most", "spans",
            Table(("change", "from [%]", "expected [%]", "to [%]"),
                  [(entry.what, entry.low_fraction, entry.faster_by_fraction, entry.high_fraction)
                   for entry in found.changes]),
        )  # fmt: skip


def _trials(found: Diagnosis) -> Iterator[Part]:
    text = trials_in_words(found.trials)
    if text:
        yield Text(f"{text[:1].upper()}{text[1:]}.")
