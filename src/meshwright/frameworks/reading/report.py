"""Jobs read from files: as a screen, as a full list, and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from meshwright.frameworks.framework import readers
from meshwright.frameworks.reading.job import Job
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import OptimizerPreset, Precision
from meshwright.view.screen import Screen
from meshwright.view.words import counted

_DEGREES = ("tp", "pp", "num_virtual_stages", "cp", "dp", "dp_shard", "ep", "etp")
_SHORT = {"num_virtual_stages": "vpp", "micro_batch_size": "mbs"}
_BATCH = ("global_batch", "micro_batch_size", "seq", "tokens", "batch", "context")


def job_screen(job: Job, *, next_command: str) -> Screen:
    """Return the screen of a job: its question, open options, and ignored options."""
    screen = Screen(f"{_title(job)}: {_model(job)}{_devices(job)}")
    screen.gap()
    for label, content in _rows(job):
        screen.add(label, content)
    for note in job.notes:
        screen.add("note", note)
    for fault in job.missing:
        screen.add("open", str(fault), style="bold yellow")
    if job.ignored:
        names = ", ".join(one.option for one in job.ignored)
        what = counted(len(job.ignored), "option")
        screen.add("ignored", f"{what} that no price depends on: {names}", spare=1)
    screen.gap()
    screen.add("next", next_command)
    return screen


def job_lines(job: Job) -> Iterator[str]:
    """Yield every statement, its place, and whether it was ignored."""
    yield f"{_title(job)}: {_model(job)}{_devices(job)}"
    for label, content in _rows(job):
        yield f"  {label:9} {content}"
    for title, statements in (("read", job.read), ("ignored", job.ignored)):
        if statements:
            yield f"{title}:"
        for one in statements:
            place = f"  ({one.place})" if one.place else ""
            yield f"  {one}{place}"
    for note in job.notes:
        yield f"note: {note}"
    for fault in job.missing:
        yield f"open: {fault}"


class DevicesRecord(TypedDict):
    """Devices of a job; null: not stated."""

    hosts: int | None
    all: int | None
    chip: str | None


class StatementRecord(TypedDict):
    """An option of a framework, as a file states it."""

    option: str
    value: Any
    place: str | None
    """File and line."""


class OpenOption(TypedDict):
    """Option that the files leave open."""

    option: str
    message: str
    fix: str


class JobRecord(TypedDict):
    """The question that the files of a job ask."""

    framework: str
    kind: str
    model: str | None
    devices: DevicesRecord
    options: Mapping[str, Any]
    """Values of options of this program, by name."""
    read: Sequence[StatementRecord]
    ignored: Sequence[StatementRecord]
    missing: Sequence[OpenOption]
    notes: Sequence[str]


def job_record(job: Job) -> JobRecord:
    """Return the job as data."""
    return {
        "framework": job.framework,
        "kind": job.kind,
        "model": _name(job.options.get("model")),
        "devices": {"hosts": job.devices.num_hosts, "all": job.devices.count,
                    "chip": job.devices.chip or None},
        "options": {name: value for name, value in job.options.items() if name != "model"},
        "read": [_statement(one) for one in job.read],
        "ignored": [_statement(one) for one in job.ignored],
        "missing": [{"option": f.path, "message": f.message, "fix": f.fix} for f in job.missing],
        "notes": list(job.notes),
    }  # fmt: skip


def _statement(one: Any) -> StatementRecord:
    return {"option": one.option, "value": one.value, "place": one.place or None}


def _title(job: Job) -> str:
    return next((readers[name].title for name in readers if name == job.framework), job.framework)


def _model(job: Job) -> str:
    return _name(job.options.get("model")) or "a model that the files do not name"


def _name(value: Any) -> str | None:
    return value.name if isinstance(value, ModelSpec) else value


def _devices(job: Job) -> str:
    count = job.devices.count
    if not count:
        return ""
    chip = job.devices.chip
    return f" on {count:,} {chip}" if chip else f" on {counted(count, 'device')}"


def _rows(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the parts of the question, each with a label."""
    options = job.options
    degrees = [
        f"{_SHORT.get(n, n)} {options[n]}" for n in _DEGREES if options.get(n) not in (None, 1)
    ]
    yield "split", ", ".join(degrees) or "one device"
    batch = [
        f"{_SHORT.get(n, n).replace('_', ' ')} {_number(options[n])}"
        for n in _BATCH
        if n in options
    ]
    if batch:
        yield "work", ", ".join(batch)
    shown = {*_DEGREES, *_BATCH, "model", "software", "decode", "server"}
    rest = [
        f"{name.replace('_', ' ')} {_text(value)}"
        for name, value in options.items() if name not in shown and value is not False
    ]  # fmt: skip
    rest += [f"{name.replace('_', ' ')} {'on' if on else 'off'}"
             for name, on in dict(options.get("software") or {}).items()]  # fmt: skip
    if rest:
        yield "choices", ", ".join(rest)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, OptimizerPreset):
        return value.name
    if isinstance(value, Precision):
        return f"{value.matmul}, a scale for each row"
    return "on" if value is True else str(value)
