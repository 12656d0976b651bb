"""A step over time as text and as plain data: the time of each pipeline stage, and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from typing_extensions import TypedDict

from meshwright.base.units import format_bytes, format_seconds
from meshwright.train.answer import Plan
from meshwright.train.report import question_line
from meshwright.train.timeline import StepTimeline
from meshwright.view.screen import bar_lines, wrapped

MOST_ROWS = 16
"""Rows of stages that are shown."""
_HEAD = f"{'stage':<12}{'busy':>8}{'idle':>8}{'  communicates':>14}{'memory':>12}"


def timeline_lines(plan: Plan, line: StepTimeline) -> Iterator[str]:
    """Yield the step of a plan over time, at most 100 columns wide."""
    yield question_line(plan)
    yield from wrapped("plan  ", plan.best.text)
    yield (
        f"step  {format_seconds(line.step_time_s)} with the schedule played "
        f"({round(line.difference, 4) + 0.0:+.1%}), {format_seconds(line.priced_s)} closed form"
    )
    yield (
        f"      {len(line.stage):,} tasks of {line.num_micro_batches} micro-batches on "
        f"{line.num_stages} pipeline stages; passes and links in closed form"
    )
    yield ""
    yield _HEAD
    rows = _stage_rows(line)
    for words, group in groupby(range(len(rows)), key=rows.__getitem__):
        stages = list(group)
        if stages[0] >= MOST_ROWS and stages[-1] < len(rows) - 1:
            continue
        name = f"{stages[0]}" if len(stages) == 1 else f"{stages[0]}-{stages[-1]}"
        yield f"{name:<12}{words}"
    yield ""
    busiest = int(line.busy_s.argmax())
    yield f"time of stage {busiest}, the busiest: {format_seconds(line.step_time_s)}"
    parts = {str(task): float(s[busiest]) for task, s in line.seconds_by_task().items()}
    parts["idle"] = float(line.bubble_s[busiest])
    yield from bar_lines({name: s for name, s in parts.items() if s > 0}, format_seconds)


def _stage_rows(line: StepTimeline) -> list[str]:
    """Return the row of each stage, without its number."""
    seconds, total_s = line.seconds_by_task(), line.step_time_s
    waits_s = sum((s for task, s in seconds.items() if task.is_communication), 0.0 * line.busy_s)
    shares = zip(line.busy_s / total_s, line.bubble_s / total_s, waits_s / total_s, strict=True)
    return [
        f"{busy:>8.1%}{idle:>8.1%}{waits:>14.1%}{format_bytes(memory.peak_bytes):>12}"
        for (busy, idle, waits), memory in zip(shares, line.memory, strict=True)
    ]


class StageTimeline(TypedDict):
    """Tasks and memory of a stage in a step."""

    busy_s: float
    idle_s: float
    by_task_s: Mapping[str, float]
    memory_peak_bytes: float
    memory_resident_bytes: float


class TimelineRecord(TypedDict):
    """A step over time, stage by stage."""

    plan: str
    fidelity: str
    step_time_s: float
    """Step time with the schedule played [s]."""
    priced_s: float
    """Step time as the plan states it [s]."""
    num_micro_batches: int
    num_tasks: int
    stages: Sequence[StageTimeline]


def timeline_record(plan: Plan, line: StepTimeline) -> TimelineRecord:
    """Return a step over time as plain data."""
    seconds = line.seconds_by_task()
    return {
        "plan": plan.best.text,
        "fidelity": line.fidelity,
        "step_time_s": line.step_time_s,
        "priced_s": line.priced_s,
        "num_micro_batches": line.num_micro_batches,
        "num_tasks": len(line.stage),
        "stages": [
            {
                "busy_s": float(line.busy_s[stage]),
                "idle_s": float(line.bubble_s[stage]),
                "by_task_s": {str(task): float(s[stage]) for task, s in seconds.items()},
                "memory_peak_bytes": memory.peak_bytes,
                "memory_resident_bytes": memory.resident_bytes,
            }
            for stage, memory in enumerate(line.memory)
        ],
    }
