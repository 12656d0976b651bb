"""The pipeline chart of a step as SVG: stages as rows, time to the right, memory below.

Where passes would be narrower than a few pixels, the chart shows the beginning and the end of the
step and names the part that it omits between them. Colours differ by lightness as well as by hue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.units import format_bytes, format_seconds
from meshwright.train.answer import Plan
from meshwright.train.timeline import PASSES, TASKS, StageMemory, StepTask, StepTimeline
from meshwright.view.drawing import (
    TICK,
    label,
    neat_ticks,
    page,
    rectangle,
)

LEFT, RIGHT, WIDTH, MARGIN = 92.0, 150.0, 1180.0, 24.0
"""Space left of the chart and right of it; width of the chart; margin around everything [px]."""
LEGEND, LINE = 88.0, 18.0
"""Top of the legend; distance of its lines [px]."""
ROWS, MOST_ROW, LEAST_ROW = 440.0, 30.0, 7.0
"""Height of all rows together, about; most and least height of one [px]."""
MEMORY, GAP, FOOT = 170.0, 52.0, 40.0
"""Height of the memory chart; gap above it; foot below it [px]."""
LEAST_PASS, LEAST_PARTED, BREAK = 4.0, 10.0, 30.0
"""Width of a pass on average, below which a part of the step is left out, and below which passes
are drawn whole, with the communication in them; width of the mark of an omitted part [px]."""
LEAST_SHAPE, SEAM, LETTER, LEGEND_LETTER = 0.2, 0.5, 6.2, 7.0
"""Least width of a shape; gap between passes; width of a digit in a pass, and of a letter of the
legend [px]."""
LEAST_SHARE = 0.0005
"""Least share of the step for an entry of the legend [1]."""
MOST_LINES, LINE_LABEL = 6, 13.0
"""Most stages with their memory drawn; least distance of their names [px]."""
NAMED_ROW = 11.0
"""Least height of rows with numbers in their passes, and a name each [px]."""

COLOURS = {
    StepTask.FORWARD: "#9cc9ef", StepTask.BACKWARD: "#2563a8", StepTask.BACKWARD_INPUT: "#2563a8",
    StepTask.BACKWARD_WEIGHT: "#57a387", StepTask.RECOMPUTE: "#cdbce8",
    StepTask.OPTIMIZER: "#33373f", StepTask.LAUNCH: "#f7e08a", StepTask.TP: "#f0a35e",
    StepTask.CP: "#e9c46a", StepTask.EP: "#e0708a", StepTask.TATP: "#b58a3c",
    StepTask.PP: "#d1495b", StepTask.DP: "#8c1c3a", StepTask.OFFLOAD: "#6b4f1d",
    StepTask.OVERLAP_SLOWDOWN: "#a4abb9", StepTask.JITTER: "#c2c7d1",
    StepTask.THROTTLE: "#858c9a",
}  # fmt: skip
_ON_DARK = {StepTask.BACKWARD, StepTask.BACKWARD_INPUT, StepTask.BACKWARD_WEIGHT}
"""Passes with white numbers."""
_STYLE = "".join(
    [f".t{number}{{fill:{COLOURS[task]}}}" for number, task in enumerate(TASKS)]
    + [".idle{fill:#eceef2}.inside{font-size:9px;fill:#10203a}.white{fill:#ffffff}"
       ".odd{fill-opacity:.72}.grid{stroke:#c9ced8;stroke-width:.7}.full{stroke:#8c1c3a;stroke-width:1.2;"
       "stroke-dasharray:6 4}.curve{fill:none;stroke-width:1.6}"]
    + [f".m{number}{{stroke:{colour}}}" for number, colour in enumerate(
        ("#1b4f8f", "#d1495b", "#3d8b5f", "#c98a0c", "#6a4c93", "#7d8794"))]
    + ["@media (prefers-color-scheme: dark){.idle{fill:#272c36}.grid{stroke:#3a404c}"
       f".t{TASKS.index(StepTask.OPTIMIZER)}{{fill:#c5cad6}}}}"]
)  # fmt: skip


@dataclass(frozen=True)
class _Scale:
    """From seconds to pixels, over the parts of a step that are shown."""

    windows: tuple[tuple[float, float], ...]
    """Begin and end of each part [s]."""

    @property
    def px_per_s(self) -> float:
        shown_s = sum(end - begin for begin, end in self.windows)
        return (WIDTH - BREAK * (len(self.windows) - 1)) / shown_s

    def parts(self) -> Iterator[tuple[float, float, float]]:
        """Yield the begin and the end of each part [s], and where it begins [px]."""
        left = MARGIN + LEFT
        for begin, end in self.windows:
            yield begin, end, left
            left += (end - begin) * self.px_per_s + BREAK


def pipeline_svg(plan: Plan, line: StepTimeline) -> str:
    """Return the chart of a plan and its timeline; equal for equal input."""
    row = min(MOST_ROW, max(LEAST_ROW, ROWS / line.num_stages))
    scale = _scale(line)
    legend = list(_legend(line))
    top = LEGEND + LINE * (1 + legend[-1][1]) + 12
    below = top + row * line.num_stages
    memory = below + GAP
    title = f"{plan.model.name} on {plan.system.name}: {plan.best.text}"
    lines = [
        label(MARGIN, 30, title, "title"),
        label(MARGIN, 52, _verdict(line), "note"),
        label(MARGIN, 70, _left_out(line, scale), "note quiet"),
        *(entry for entries, _ in legend for entry in entries),
        *_rows(line, scale, top, row),
        *_times(scale, top, below),
        *_memory(line, scale, memory),
        *_times(scale, memory, memory + MEMORY),
        label(
            MARGIN + LEFT + WIDTH / 2, memory + MEMORY + 36,
            f"time of a step [{_unit(scale)[0]}]", "note", "middle",
        ),
    ]  # fmt: skip
    width, height = 2 * MARGIN + LEFT + WIDTH + RIGHT, memory + MEMORY + FOOT + 8
    return page(width, height, title, lines, style=_STYLE)


def _verdict(line: StepTimeline) -> str:
    """Return the step time and its fidelity, in words."""
    idle = line.bubble_s / line.step_time_s
    times = (
        f"{format_seconds(line.step_time_s)} a step with the schedule played, "
        f"{format_seconds(line.priced_s)} as priced ({round(line.difference, 4) + 0.0:+.1%}); "
        f"passes and links {line.fidelity.replace('_', ' ')}"
    )
    if line.num_stages == 1:
        return times
    least, most = f"{idle.min():.1%}", f"{idle.max():.1%}"
    return f"{times}; idle {least if least == most else f'{least} to {most}'} of the step"


def _left_out(line: StepTimeline, scale: _Scale) -> str:
    """Return the omitted part of the step, in words."""
    count = line.num_micro_batches
    whole = ", ".join(
        f"{number} {name}{'s' * (number > 1)}"
        for number, name in ((line.num_stages, "stage"), (count, "micro-batch"))
    ).replace("batchs", "batches")
    if not _is_parted(line, scale):
        whole += "; communication within passes is drawn as part of them"
    if len(scale.windows) == 1:
        return whole
    (_, begin), (end, _) = scale.windows
    passes = line.micro_batch >= 0
    first, last = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(first, line.micro_batch[passes], line.start_s[passes])
    np.maximum.at(last, line.micro_batch[passes], line.end_s[passes])
    hidden = np.flatnonzero((first >= begin) & (last <= end))
    which = f"micro-batches {hidden[0]} to {hidden[-1]}, " if len(hidden) else ""
    return (
        f"{whole}; the first and the last {format_seconds(begin)} are drawn, "
        f"{which}{format_seconds(end - begin)} between them are left out"
    )


def _scale(line: StepTimeline) -> _Scale:
    """Return the parts of the step that are shown: all of it, or its beginning and its end."""
    step_s, passes = line.step_time_s, np.isin(line.task, PASSES)
    most = np.bincount(line.stage[passes]).max()
    shown = WIDTH / (LEAST_PASS * most)
    if shown >= 1.0:
        return _Scale(((0.0, step_s),))
    return _Scale(((0.0, step_s * shown / 2), (step_s * (1 - shown / 2), step_s)))


def _legend(line: StepTimeline) -> Iterator[tuple[list[str], int]]:
    """Yield the entries of the legend, each with the number of its line: shares of a step."""
    shares = {
        str(task): (f"t{TASKS.index(task)}", float(seconds.mean()) / line.step_time_s)
        for task, seconds in line.seconds_by_task().items()
    }
    shares["idle"] = "idle", float(line.bubble_s.mean()) / line.step_time_s
    x, row = MARGIN, 0
    for name, (kind, share) in shares.items():
        if share < LEAST_SHARE:
            continue
        says = f"{name} {share:.1%}"
        wide = 34 + LEGEND_LETTER * len(says)
        if x + wide > MARGIN + LEFT + WIDTH + RIGHT:
            x, row = MARGIN, row + 1
        y = LEGEND + LINE * row
        yield [rectangle(x, y, 12, 11, f"die {kind}"), label(x + 17, y + 10, says, "note")], row
        x += wide


def _mean_pass_px(line: StepTimeline, scale: _Scale) -> float:
    """Return the width of a pass of the stage that has most of them, on average [px]."""
    passes = np.isin(line.task, PASSES)
    return line.step_time_s * scale.px_per_s / int(np.bincount(line.stage[passes]).max())


def _is_parted(line: StepTimeline, scale: _Scale) -> bool:
    """Return whether there is room for the parts of a pass."""
    return _mean_pass_px(line, scale) >= LEAST_PARTED


class _Shapes(NamedTuple):
    """Shapes of the chart: a row for each task, or each whole pass where tasks are too narrow."""

    stage: IntArray
    task: IntArray
    micro_batch: IntArray
    chunk: IntArray
    start_s: FloatArray
    end_s: FloatArray


def _shapes(line: StepTimeline, *, is_parted: bool) -> _Shapes:
    """Return the shapes of all stages, in their order."""
    task = line.task if is_parted else np.where(line.in_pass >= 0, line.in_pass, line.task)
    columns = (line.stage, task, line.micro_batch, line.chunk)
    changes = np.any([np.diff(column) != 0 for column in columns], axis=0)
    first = np.flatnonzero(np.concatenate(([True], changes)))
    last = np.append(first[1:], len(task)) - 1
    stage, drawn, micro_batch, chunk = (column[first] for column in columns)
    return _Shapes(stage, drawn, micro_batch, chunk, line.start_s[first], line.end_s[last])


def _rows(line: StepTimeline, scale: _Scale, top: float, row: float) -> Iterator[str]:
    """Yield the row of each stage: idle time, the tasks in one shape each kind, numbers."""
    bar = row - min(3.0, 0.2 * row)
    stages = range(line.num_stages)
    # A name is higher than a low row: only some rows have one.
    named = {*stages[:: max(1, -int(-LINE_LABEL // row))][:-1], stages[-1]}
    shapes = _shapes(line, is_parted=_is_parted(line, scale))
    for stage in stages:
        y = top + row * stage
        if stage in named:
            yield label(MARGIN + LEFT - 8, y + bar / 2 + 4, f"stage {stage}", "note quiet", "end")
        mine = shapes.stage == stage
        for begin, end, left in scale.parts():
            wide = (end - begin) * scale.px_per_s
            yield rectangle(left, y, wide, bar, "idle", f"stage {stage}: idle")
            shown = mine & (shapes.end_s > begin) & (shapes.start_s < end)
            odd = shapes.chunk % 2 * (shapes.chunk > 0)
            for number, is_odd in np.unique(np.stack((shapes.task, odd))[:, shown], axis=1).T:
                rows = shown & (shapes.task == number) & (odd == is_odd)
                x = left + (np.clip(shapes.start_s[rows], begin, end) - begin) * scale.px_per_s
                to = left + (np.clip(shapes.end_s[rows], begin, end) - begin) * scale.px_per_s
                kind = f"t{number}" + " odd" * int(is_odd)
                yield from _shape(x, to, y, bar, kind, f"stage {stage}: {TASKS[number]}")
                if number in PASSES and row >= NAMED_ROW:
                    numbers = shapes.micro_batch[rows]
                    yield from _numbers(numbers, x, to, y + bar / 2 + 3, TASKS[number])


def _shape(
    x: FloatArray, to: FloatArray, y: float, high: float, kind: str, tip: str
) -> Iterator[str]:
    """Yield rectangles of one row as one shape, those too narrow to be seen left out."""
    wide = to - x
    seen = wide >= LEAST_SHAPE
    if not seen.any():
        return
    wide = np.where(wide > 4 * SEAM, wide - SEAM, wide)
    pairs = zip(x[seen].tolist(), wide[seen].tolist(), strict=True)
    path = "".join(f"M{a:.1f} {y:.1f}h{w:.1f}v{high:.1f}h-{w:.1f}z" for a, w in pairs)
    yield f'<path class="{kind}" d="{path}"><title>{tip}</title></path>'


def _numbers(
    numbers: IntArray, x: FloatArray, to: FloatArray, y: float, task: StepTask
) -> Iterator[str]:
    """Yield the number of the micro-batch in each pass that has room for it."""
    kind = "inside white" if task in _ON_DARK else "inside"
    columns = zip(numbers.tolist(), x.tolist(), to.tolist(), strict=True)
    for number, begin, end in columns:
        if end - begin >= LETTER * len(str(number)) + 3:
            yield label((begin + end) / 2, y, str(number), kind, "middle")


def _unit(scale: _Scale) -> tuple[str, float]:
    """Return the unit of the axis of time, and its length [s]."""
    end_s = scale.windows[-1][1]
    return next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if end_s >= s), ("us", 1e-6))


def _times(scale: _Scale, top: float, below: float) -> Iterator[str]:
    """Yield the time ticks below a chart, and the mark of the omitted part."""
    _, unit_s = _unit(scale)
    shown_s = sum(end - begin for begin, end in scale.windows)
    step = neat_ticks(shown_s / unit_s, 12)[1]
    for begin, end, left in scale.parts():
        right = left + (end - begin) * scale.px_per_s
        yield f'<path class="axis" d="M{left:.1f} {below:.1f}H{right:.1f}"/>'
        first = -(-begin / unit_s // step)
        for number in range(int(first), int(end / unit_s / step * (1 + 1e-9)) + 1):
            x = left + (number * step * unit_s - begin) * scale.px_per_s
            yield f'<path class="axis" d="M{x:.1f} {below:.1f}v{TICK:.0f}"/>'
            yield label(x, below + 18, f"{number * step:.6g}", "label", "middle")
        if end < scale.windows[-1][1]:
            middle = right + BREAK / 2
            yield f'<path class="grid" d="M{middle:.1f} {top:.1f}V{below:.1f}"/>'
            yield label(middle, below + 18, "...", "note", "middle")


def _memory(line: StepTimeline, scale: _Scale, top: float) -> Iterator[str]:
    """Yield the memory of some stages over the step, with the capacity of a device."""
    gib, below = 2.0**30, top + MEMORY
    peak = max(memory.peak_bytes for memory in line.memory)
    high = 1.06 * max(peak, line.memory_capacity_bytes)

    def place(size: float) -> float:
        return below - MEMORY * size / high

    yield label(MARGIN, top - 12, "memory of a device [GiB]", "note")
    for tick in neat_ticks(high / gib, 5):
        y = place(tick * gib)
        yield f'<path class="grid" d="M{MARGIN + LEFT:.1f} {y:.1f}h{WIDTH:.1f}"/>'
        yield label(MARGIN + LEFT - 8, y + 4, f"{tick:.6g}", "label", "end")
    full = place(line.memory_capacity_bytes)
    yield f'<path class="full" d="M{MARGIN + LEFT:.1f} {full:.1f}h{WIDTH:.1f}"/>'
    has = f"capacity {format_bytes(line.memory_capacity_bytes)}"
    yield label(MARGIN + LEFT + 6, full - 5, has, "label quiet")
    stages = _drawn_stages([memory.peak_bytes for memory in line.memory])
    order = sorted(stages, key=lambda stage: -line.memory[stage].peak_bytes)
    places = _apart([place(line.memory[stage].peak_bytes) for stage in order])
    for number, (stage, y) in enumerate(zip(order, places, strict=True)):
        memory, kind = line.memory[stage], f"curve m{number}"
        for begin, end, left in scale.parts():
            xs, sizes = _within(memory, begin, end)
            points = zip(xs.tolist(), sizes.tolist(), strict=True)
            path = "".join(
                f"H{left + (at - begin) * scale.px_per_s:.1f}V{place(size):.1f}"
                for at, size in points
            )
            start = f"M{left:.1f} {place(float(sizes[0])):.1f}"
            yield f'<path class="{kind}" d="{start}{path}"/>'
        right = MARGIN + LEFT + WIDTH
        yield f'<path class="{kind}" d="M{right + 6:.1f} {y - 3:.1f}h14"/>'
        yield label(right + 25, y + 1, f"stage {stage}: {format_bytes(memory.peak_bytes)}", "label")


def _within(memory: StageMemory, begin: float, end: float) -> tuple[FloatArray, FloatArray]:
    """Return the memory of a stage in a window, both ends included: times [s], sizes [bytes]."""
    inside = (memory.at_s > begin) & (memory.at_s < end)
    before = int(np.searchsorted(memory.at_s, begin, side="right")) - 1
    last = int(np.searchsorted(memory.at_s, end, side="left")) - 1
    at_s = np.concatenate(([begin], memory.at_s[inside], [end]))
    sizes = memory.total_bytes
    return at_s, np.concatenate(([sizes[before]], sizes[inside], [sizes[last]]))


def _drawn_stages(peaks_bytes: Sequence[float]) -> list[int]:
    """Return the stages with their memory drawn: all of a few, else the fullest and some others."""
    last = len(peaks_bytes) - 1
    if last < MOST_LINES:
        return list(range(last + 1))
    spread = np.linspace(0, last, MOST_LINES - 1).round().astype(int).tolist()
    return sorted({*spread, int(np.argmax(peaks_bytes))})


def _apart(places: Sequence[float]) -> list[float]:
    """Return places from top to bottom, moved down where names would overlap."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + LINE_LABEL) if moved else place)
    return moved
