"""The view of a step over time: stages with their passes, memory of each stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.units import format_bytes, format_seconds
from meshwright.train.timeline import PASSES, TASKS, StepTask, StepTimeline
from meshwright.train.words import question_line
from meshwright.view import charts
from meshwright.view.parts import Chart, Later, Page, Plot, Section, Table, Tile, Whole
from meshwright.view.registry import view
from meshwright.view.values import written
from meshwright.view.words import counted

MOST_BARS = 2_400
"""Most bars of one chart; longer steps are shown at their beginning and at their end."""
MOST_LINES = 8
"""Most stages with their memory drawn over time."""
MOST_CHANGES = 400
"""Points of a line of memory; of longer lines, the highest of each interval of time is drawn."""
MOST_ROWS = 12
"""Rows of stages on the first screen."""
GIB = 2.0**30
ZOOM = " Drag to move, scroll to zoom."
PICTURE = 1180
"""Width of a picture of a step [px]."""
COLOURS = {
    StepTask.FORWARD: "#9cc9ef", StepTask.BACKWARD: "#2563a8", StepTask.BACKWARD_INPUT: "#2563a8",
    StepTask.BACKWARD_WEIGHT: "#57a387", StepTask.RECOMPUTE: "#cdbce8",
    StepTask.OPTIMIZER: "#33373f", StepTask.LAUNCH: "#f7e08a", StepTask.TP: "#f0a35e",
    StepTask.CP: "#e9c46a", StepTask.EP: "#e0708a", StepTask.TATP: "#b58a3c",
    StepTask.PP: "#d1495b", StepTask.DP: "#8c1c3a", StepTask.OFFLOAD: "#6b4f1d",
    StepTask.OVERLAP_SLOWDOWN: "#a4abb9", StepTask.JITTER: "#c2c7d1",
    StepTask.THROTTLE: "#858c9a",
}  # fmt: skip


@view(StepTimeline)
def step_page(line: StepTimeline) -> Page:
    """Return the page of a step over time."""
    plan = line.plan
    return Page(
        title=f"{plan.model.name} on {plan.system.name}: a step over time",
        subtitle=question_line(plan),
        tiles=list(_tiles(line)),
        sections=Later(lambda: _sections(line)),
        command=plan.command,
        version=plan.version,
    )


def _tiles(line: StepTimeline) -> Iterator[Tile]:
    difference = round(line.difference, 4) + 0.0
    batches = counted(line.num_micro_batches, "micro-batch", "micro-batches")
    yield Tile(
        "How long is a step?",
        f"{format_seconds(line.step_time_s)} with the schedule played ({difference:+.1%}), "
        f"{format_seconds(line.priced_s)} {line.fidelity.replace('_', ' ')}",
        f"{line.num_tasks:,} tasks of {batches} on {counted(line.num_stages, 'pipeline stage')}; "
        f"passes and links in {line.fidelity.replace('_', ' ')}",
        "time", label="step",
    )  # fmt: skip
    yield Tile("What is the plan?", line.plan.best.text, label="plan")
    stages = _stages(line)
    rows = stages.rows if len(stages.rows) <= MOST_ROWS else [
        *stages.rows[: MOST_ROWS - 1], stages.rows[-1]
    ]  # fmt: skip
    idle = (line.bubble_s / line.step_time_s).round(4) + 0.0  # no -0.0 %
    yield Tile("How long do stages wait?", f"{idle.min():.1%} to {idle.max():.1%} of the step",
               section="stages", label="stages", part=Table(stages.head, rows))  # fmt: skip
    yield Tile("What does the busiest stage do?", f"stage {int(line.busy_s.argmax())}",
               section="time", label="time", part=_busiest(line))  # fmt: skip


def _sections(line: StepTimeline) -> list[Section]:
    return [
        Section("time", "What happens in a step?", [*tasks_over_step(line), _busiest(line)]),
        Section("memory", "How much memory does it take?", list(memory_over_step(line))),
        Section("stages", "What does each stage do?", [_stages(line)]),
    ]


def _stages(line: StepTimeline) -> Table:
    """Return the time and the memory of each stage; those alike share a row."""
    seconds, total_s = line.seconds_by_task(), line.step_time_s
    waits_s = sum((s for task, s in seconds.items() if task.is_communication), 0.0 * line.busy_s)
    columns = (line.busy_s / total_s, line.bubble_s / total_s, waits_s / total_s)
    memory = [format_bytes(stage.peak_bytes) for stage in line.memory]
    each = [tuple(f"{share + 0.0:.1%}" for share in row) for row in zip(*columns, strict=True)]
    every = [(*shares, size) for shares, size in zip(each, memory, strict=True)]
    rows = []
    for cells, group in groupby(range(len(every)), key=every.__getitem__):
        alike = list(group)
        name = f"{alike[0]}" if len(alike) == 1 else f"{alike[0]}-{alike[-1]}"
        rows.append((name, *cells))
    return Table(("stage", "busy>", "idle>", "communicates>", "memory>"), rows)


def _busiest(line: StepTimeline) -> Whole:
    """Return the step of the busiest stage by kind of task."""
    stage = int(line.busy_s.argmax())
    parts = {str(task): float(s[stage]) for task, s in line.seconds_by_task().items()}
    parts["idle"] = max(float(line.bubble_s[stage]), 0.0)
    return Whole(f"Time of stage {stage}, the busiest", parts, "s", line.step_time_s)


@dataclass(frozen=True)
class _Bars:
    """Bars of a chart: all tasks, or whole passes and the tasks outside of passes."""

    stage: IntArray
    task: IntArray
    micro_batch: IntArray
    start_s: FloatArray
    end_s: FloatArray

    def of(self, chosen: BoolArray) -> _Bars:
        """Return some of the bars."""
        return _Bars(*(values[chosen] for values in vars(self).values()))


def tasks_over_step(line: StepTimeline) -> Iterator[Chart]:
    """Yield the stages over time; of a long step its beginning and its end."""
    bars = _bars(line) if line.num_tasks > MOST_BARS else _Bars(
        line.stage, line.task, line.micro_batch, line.start_s, line.end_s
    )  # fmt: skip
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
    seconds = line.seconds_by_task()
    idle = (line.bubble_s / line.step_time_s).round(4) + 0.0  # no -0.0 %
    says = (
        f"{counted(line.num_stages, 'pipeline stage')} (0 is the first), "
        f"{counted(line.num_micro_batches, 'micro-batch', 'micro-batches')}, "
        f"{format_seconds(line.step_time_s)} with the schedule played "
        f"({format_seconds(line.priced_s)} as priced); idle {idle.min():.1%} to {idle.max():.1%} "
        f"of the step; passes and links {line.fidelity.replace('_', ' ')}.{ZOOM}"
    )
    shares = {task: f"{task} {seconds[task].mean() / line.step_time_s:.1%}" for task in seconds}
    in_pass = np.isin(bars.task, PASSES).tolist()
    numbers = zip(bars.micro_batch.tolist(), in_pass, strict=True)
    spec = charts.timeline(
        [str(number) for number in bars.stage],
        _rounded(bars.start_s), _rounded(bars.end_s),
        [shares[TASKS[number]] for number in bars.task],
        [str(number) if inside else "" for number, inside in numbers],
        {shares[task]: COLOURS[task] for task in COLOURS if task in shares},
        "time of a step [s]", "stage", "micro-batch",
    )  # fmt: skip
    table = Table(
        ("stage", "idle [%]", *(f"{task} [s]" for task in seconds)),
        [(str(stage), float(idle[stage]), *(float(each[stage]) for each in seconds.values()))
         for stage in range(line.num_stages)],
    )  # fmt: skip
    return Chart(title, says, spec, written(table))


def step_svg(line: StepTimeline) -> str:
    """Return the tasks of the stages over time, and their memory below, as SVG."""
    from meshwright.view.svg import together_svg

    plan = line.plan
    tasks = [replace(one, says=one.says.removesuffix(ZOOM)) for one in tasks_over_step(line)]
    title = f"{plan.model.name} on {plan.system.name}: {plan.best.text}"
    return together_svg([*tasks, _memory(line)], title, question_line(plan), width=PICTURE)


def memory_over_step(line: StepTimeline) -> Iterator[Plot | Chart]:
    """Yield the memory of every stage at its fullest, where there are some, and over the step."""
    if line.num_stages > 1:
        yield _fullest(line)
    yield _memory(line)


def _fullest(line: StepTimeline) -> Plot:
    """Return the memory of every stage at its fullest."""
    peaks = [stage.peak_bytes for stage in line.memory]
    fullest, capacity = int(np.argmax(peaks)), line.memory_capacity_bytes
    return Plot(
        "Memory of every pipeline stage",
        f"One device of each stage at its fullest, against {format_bytes(capacity)}; the fullest "
        f"is stage {fullest} with {format_bytes(peaks[fullest])}. A stage between the ends holds "
        "what the fullest of them holds",
        "stacked",
        Table(("stage", "all the time [bytes]", "micro-batches in flight [bytes]"),
              [(str(number), stage.resident_bytes, stage.peak_bytes - stage.resident_bytes)
               for number, stage in enumerate(line.memory)]),
        capacity, "capacity",
    )  # fmt: skip


def _memory(line: StepTimeline) -> Chart:
    """Return the memory of a device of each stage over the step; only some of many stages."""
    capacity = line.memory_capacity_bytes / GIB
    shown = sorted({*np.linspace(0, line.num_stages - 1, MOST_LINES).round().astype(int).tolist()})
    series, xs, ys = list[str](), list[float](), list[float]()
    for number in shown:
        at_s, sizes = _thinned(line.memory[number].at_s, line.memory[number].total_bytes)
        name = f"{number}: {format_bytes(line.memory[number].peak_bytes)}"
        series += [name] * (len(at_s) + 1)
        xs += [*_rounded(at_s), float(f"{line.step_time_s:.6g}")]
        ys += [*_rounded(sizes / GIB), float(f"{sizes[-1] / GIB:.6g}")]
    some = "" if len(shown) == line.num_stages else f" of {len(shown)} of {line.num_stages} stages"
    return Chart(
        "Memory over the step",
        f"One device{some}: activations come with each forward pass and go with its backward pass; "
        f"capacity {format_bytes(line.memory_capacity_bytes)}",
        charts.lines(series, xs, ys, "time of a step [s]", "memory [GiB]",
                     series_title="stage", limit=capacity, is_stepped=True),
    )  # fmt: skip


def _thinned(at_s: FloatArray, sizes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a line of at most ``MOST_CHANGES`` points that keeps its peaks."""
    if len(at_s) <= MOST_CHANGES:
        return at_s, sizes
    starts = np.linspace(0, len(at_s), MOST_CHANGES, endpoint=False).astype(int)
    return at_s[starts], np.maximum.reduceat(sizes, starts)


def _rounded(values: FloatArray) -> list[float]:
    """Return numbers in six digits: enough for a chart, a third of the bytes."""
    return [float(f"{value:.6g}") for value in values]
