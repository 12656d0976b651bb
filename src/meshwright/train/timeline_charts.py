"""A step over time as charts of a report: stages with their passes, memory of each stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.units import format_bytes, format_seconds
from meshwright.train.picture import COLOURS
from meshwright.train.timeline import TASKS, StepTimeline
from meshwright.view import charts
from meshwright.view.parts import Chart, Table
from meshwright.view.pieces import GIB

MOST_BARS = 2_400
"""Most bars of one chart; longer steps are shown at their beginning and at their end."""
MOST_LINES = 8
"""Most stages with their memory drawn over time."""
MOST_CHANGES = 400
"""Points of a line of memory; of longer lines, the highest of each interval of time is drawn."""


@dataclass(frozen=True)
class _Bars:
    """Bars of a chart: whole passes with the communication in them, and tasks outside of passes."""

    stage: IntArray
    task: IntArray
    micro_batch: IntArray
    start_s: FloatArray
    end_s: FloatArray

    def of(self, chosen: BoolArray) -> _Bars:
        """Return some of the bars."""
        return _Bars(*(values[chosen] for values in vars(self).values()))


def timeline_charts(line: StepTimeline) -> Iterator[Chart]:
    """Yield the stages over time; of a long step its beginning and its end."""
    bars = _bars(line)
    number = len(bars.stage)
    if number <= MOST_BARS:
        yield _chart("The step over time", line, bars)
        return
    order = np.argsort(bars.start_s)
    first_s = float(bars.start_s[order[MOST_BARS // 2]])
    last_s = float(np.sort(bars.end_s)[-MOST_BARS // 2])
    yield _chart("The beginning of the step", line, bars.of(bars.start_s < first_s))
    yield _chart("The end of the step", line, bars.of(bars.end_s > last_s))


def _bars(line: StepTimeline) -> _Bars:
    """Return one bar for each pass, and one for each task of a stage outside of passes."""
    is_part = line.in_pass >= 0
    keys = np.stack([line.stage, line.in_pass, line.micro_batch, line.chunk])[:, is_part]
    found, places = np.unique(keys, axis=1, return_inverse=True)
    places = places.reshape(-1)
    start_s, end_s = np.full(found.shape[1], np.inf), np.zeros(found.shape[1])
    np.minimum.at(start_s, places, line.start_s[is_part])
    np.maximum.at(end_s, places, line.end_s[is_part])
    rest = ~is_part
    return _Bars(
        stage=np.concatenate([found[0], line.stage[rest]]),
        task=np.concatenate([found[1], line.task[rest]]),
        micro_batch=np.concatenate([found[2], line.micro_batch[rest]]),
        start_s=np.concatenate([start_s, line.start_s[rest]]),
        end_s=np.concatenate([end_s, line.end_s[rest]]),
    )


def _chart(title: str, line: StepTimeline, bars: _Bars) -> Chart:
    busy = {str(task): line.seconds_by_task()[task] for task in line.seconds_by_task()}
    idle = line.bubble_s / line.step_time_s
    says = (
        f"{line.num_stages} pipeline stages as rows (0 is the first), {line.num_micro_batches} "
        f"micro-batches, {format_seconds(line.step_time_s)} with the schedule played "
        f"({format_seconds(line.priced_s)} as priced); idle {idle.min():.1%} to {idle.max():.1%} "
        "of the step. Drag to move, scroll to zoom."
    )
    labels = ["" if number < 0 else f"micro-batch {number}" for number in bars.micro_batch]
    spec = charts.timeline(
        [str(number) for number in bars.stage],
        _rounded(bars.start_s), _rounded(bars.end_s),
        [str(TASKS[number]) for number in bars.task], labels,
        {str(task): colour for task, colour in COLOURS.items()},
        "time of a step [s]", "stage",
    )  # fmt: skip
    head = ("stage", "idle>", *(f"{name}>" for name in busy))
    rows = [
        (str(stage), f"{idle[stage]:.1%}",
         *(format_seconds(float(seconds[stage])) for seconds in busy.values()))
        for stage in range(line.num_stages)
    ]  # fmt: skip
    return Chart(title, says, spec, Table(head, rows))


def memory_charts(line: StepTimeline) -> Iterator[Chart]:
    """Yield the memory of every stage at its fullest, and over the step."""
    yield from filter(None, [stages_chart(line)])
    yield memory_chart(line)


def stages_chart(line: StepTimeline) -> Chart | None:
    """Return the memory of every stage at its fullest; None: there is one stage."""
    if line.num_stages == 1:
        return None
    stages = _names(line)
    resident = np.array([stage.resident_bytes for stage in line.memory]) / GIB
    peak = np.array([stage.peak_bytes for stage in line.memory]) / GIB
    capacity, fullest = line.memory_capacity_bytes / GIB, int(peak.argmax())
    parts = {"all the time": resident, "micro-batches in flight": peak - resident}
    return Chart(
        "Memory of every pipeline stage",
        f"One device of each stage at its fullest, against {capacity:.0f} GiB; the fullest is "
        f"stage {fullest} with {format_bytes(float(peak[fullest]) * GIB)}. A stage between "
        "the ends holds what the fullest of them holds",
        charts.stacked(stages, {name: _rounded(sizes) for name, sizes in parts.items()},
                       "memory [GiB]", row_title="stage", limit=capacity),
        Table(("stage", "all the time [GiB]>", "at its fullest [GiB]>"),
              [(stage, f"{least:.1f}", f"{most:.1f}")
               for stage, least, most in zip(stages, resident, peak, strict=True)]),
    )  # fmt: skip


def memory_chart(line: StepTimeline) -> Chart:
    """Return the memory of a device of each stage over the step; only some of many stages."""
    stages, capacity = _names(line), line.memory_capacity_bytes / GIB
    shown = sorted({*np.linspace(0, line.num_stages - 1, MOST_LINES).round().astype(int).tolist()})
    series, xs, ys = list[str](), list[float](), list[float]()
    for number in shown:
        at_s, sizes = _thinned(line.memory[number].at_s, line.memory[number].total_bytes)
        series += [stages[number]] * (len(at_s) + 1)
        xs += [*_rounded(at_s), float(f"{line.step_time_s:.6g}")]
        ys += [*_rounded(sizes / GIB), float(f"{sizes[-1] / GIB:.6g}")]
    some = "" if len(shown) == line.num_stages else f" of {len(shown)} of {line.num_stages} stages"
    return Chart(
        "Memory over the step",
        f"One device{some}: activations come with each forward pass and go with its backward pass; "
        f"capacity {capacity:.0f} GiB",
        charts.lines(series, xs, ys, "time of a step [s]", "memory [GiB]",
                     series_title="stage", limit=capacity, is_stepped=True),
    )  # fmt: skip


def _names(line: StepTimeline) -> list[str]:
    return [str(number) for number in range(line.num_stages)]


def _thinned(at_s: FloatArray, sizes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a line of at most ``MOST_CHANGES`` points that keeps its peaks."""
    if len(at_s) <= MOST_CHANGES:
        return at_s, sizes
    starts = np.linspace(0, len(at_s), MOST_CHANGES, endpoint=False).astype(int)
    return at_s[starts], np.maximum.reduceat(sizes, starts)


def _rounded(values: FloatArray) -> list[float]:
    """Return numbers in six digits: enough for a chart, a third of the bytes."""
    return [float(f"{value:.6g}") for value in values]
