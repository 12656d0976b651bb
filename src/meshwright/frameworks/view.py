"""The view of a measured step beside its prediction."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_seconds
from meshwright.frameworks.profiled import ProfiledStep
from meshwright.view.parts import Cell, Page, Plot, Section, Table, Tile, Whole
from meshwright.view.registry import view
from meshwright.view.words import counted, words


@view(ProfiledStep)
def profile_page(found: ProfiledStep) -> Page:
    """Return the page of a measured step."""
    measured = {name: s for part in found.parts for name, s in part.measured_parts_s.items()}
    predicted = {name: s for part in found.parts for name, s in part.predicted_parts_s.items()}
    return Page(
        title="A measured step beside its prediction",
        subtitle=found.question,
        tiles=list(_tiles(found)),
        sections=(
            Section("parts", "Where do they differ?", [_beside(found), _sides(found)]),
            Section("measured", "What was measured?", [
                Whole("Time of the measured step", measured, "s", found.step_s)]),
            Section("predicted", "What was predicted?", [
                Whole("Time of the predicted step", predicted, "s", found.predicted_step_s)]),
        ),
    )  # fmt: skip


def _tiles(found: ProfiledStep) -> Iterator[Tile]:
    steps = counted(found.num_steps, "step") if found.num_steps else "no step named: as one"
    what = "kernels of the device" if found.on_device else "operators of the CPU"
    ratio = found.step_s / found.predicted_step_s - 1.0
    yield Tile(
        "How long is a step?",
        f"{format_seconds(found.step_s)} a step ({steps}, {what}), predicted "
        f"{format_seconds(found.predicted_step_s)} ({ratio:+.1%})", label="measured",
    )  # fmt: skip
    yield Tile("Which plan was it?", found.plan, label="plan")
    most = max(found.parts, key=lambda part: abs(part.measured_s - part.predicted_s))
    longer = (most.measured_s - most.predicted_s) / found.step_s
    yield Tile("Where do they differ most?", f"{most.name}: {longer:+.1%} of the step", "", "parts",
               label="parts", part=_beside(found))  # fmt: skip
    hidden = {kind: seconds for kind, seconds in found.hidden_s.items() if seconds > 0}
    if hidden:
        named = ", ".join(f"{words(kind)} {format_seconds(s)}" for kind, s in hidden.items())
        yield Tile("What is hidden behind computation?", named, label="hidden")


def _beside(found: ProfiledStep) -> Table:
    """Return each part of the step and of its prediction, with their own parts below."""
    rows: list[tuple[Cell, ...]] = []
    for part in found.parts:
        lost = (part.measured_s - part.predicted_s) / found.step_s
        rows.append((part.name, part.measured_s, part.predicted_s, f"{lost:+.1%}"))
        if len(part.measured_parts_s) > 1:
            rows += [(f"  {words(name)}", s, None, None)
                     for name, s in part.measured_parts_s.items()]  # fmt: skip
        if len(part.predicted_parts_s) > 1:
            rows += [(f"  {words(name)}", None, s, None)
                     for name, s in part.predicted_parts_s.items()]  # fmt: skip
    return Table(("", "measured [s]", "predicted [s]", "difference>"), rows)


def _sides(found: ProfiledStep) -> Plot:
    """Return both steps as bars of the same parts."""
    head = ("step", *(f"{part.name} [s]" for part in found.parts))
    rows: list[tuple[Cell, ...]] = [
        ("measured", *(part.measured_s for part in found.parts)),
        ("predicted", *(part.predicted_s for part in found.parts)),
    ]
    says = f"{format_seconds(found.step_s)} measured, {format_seconds(found.predicted_step_s)} "
    return Plot("Both steps by part", f"{says}predicted", "stacked", Table(head, rows))
