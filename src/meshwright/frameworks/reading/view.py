"""The view of a job read from files: its question, open options, and each statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.frameworks.framework import readers
from meshwright.frameworks.reading.given import Statement
from meshwright.frameworks.reading.job import ReadJob
from meshwright.spec.workload import OptimizerPreset, Precision
from meshwright.view.parts import Page, Part, Section, Table, Text, Tile
from meshwright.view.registry import view
from meshwright.view.words import counted

_DEGREES = ("tp", "pp", "num_virtual_stages", "cp", "dp", "dp_shard", "ep", "etp")
_SHORT = {"num_virtual_stages": "vpp", "micro_batch_size": "mbs"}
_BATCH = ("global_batch", "micro_batch_size", "seq", "tokens", "batch", "context")


@view(ReadJob)
def job_page(job: ReadJob) -> Page:
    """Return the page of a job."""
    title = next(
        (readers[name].table.title for name in readers if name == job.framework), job.framework
    )
    sections = (
        Section("read", "What was read?", _statements(job.read)),
        Section("ignored", "What changes no price?", _statements(job.ignored)),
        Section("notes", "What does the price leave out?", [Text(note) for note in job.notes]),
        Section("open", "What has to be stated?", [Text(str(option)) for option in job.missing]),
    )
    question = f"{title}: {job.model or 'a model that the files do not name'}{_devices(job)}"
    return Page(
        title=question,
        subtitle=question,
        tiles=list(_tiles(job)),
        sections=sections,
    )


def _devices(job: ReadJob) -> str:
    count, chip = job.devices.count, job.devices.chip
    if not count:
        return ""
    return f" on {count:,} {chip}" if chip else f" on {counted(count, 'device')}"


def _tiles(job: ReadJob) -> Iterator[Tile]:
    """Yield the parts of the question, notes, open options and ignored ones."""
    options, read = job.options, "read" if job.read else ""
    degrees = [
        f"{_SHORT.get(n, n)} {options[n]}" for n in _DEGREES if options.get(n) not in (None, 1)
    ]
    split = ", ".join(degrees) or "one device"
    yield Tile("How is it split?", split, "", read, label="split")
    batch = [
        f"{_SHORT.get(n, n).replace('_', ' ')} {_number(options[n])}"
        for n in _BATCH
        if n in options
    ]
    if batch:
        yield Tile("What is the work?", ", ".join(batch), "", read, label="work")
    shown = {*_DEGREES, *_BATCH, "model", "software", "decode", "server"}
    rest = [
        f"{name.replace('_', ' ')} {_text(value)}"
        for name, value in options.items() if name not in shown and value is not False
    ]  # fmt: skip
    rest += [f"{name.replace('_', ' ')} {'on' if on else 'off'}"
             for name, on in dict(options.get("software") or {}).items()]  # fmt: skip
    if rest:
        yield Tile("Which choices?", ", ".join(rest), "", read, label="choices")
    if job.notes:
        yield Tile("What does the price leave out?", job.notes[0], "\n".join(job.notes[1:]),
                   "notes", label="note")  # fmt: skip
    if job.missing:
        first, *others = map(str, job.missing)
        yield Tile("What has to be stated?", first, "\n".join(others), "open", "bad", "open")
    if job.ignored:
        names = ", ".join(one.option for one in job.ignored)
        what = counted(len(job.ignored), "option")
        yield Tile("What changes no price?", f"{what} that no price depends on: {names}", "",
                   "ignored", label="ignored", spare=1)  # fmt: skip


def _statements(statements: Sequence[Statement]) -> list[Part]:
    rows = [(str(one), one.place) for one in statements]
    return [Table(("option", "place"), rows)] if rows else []


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _text(value: object) -> str:
    if isinstance(value, OptimizerPreset):
        return value.name
    if isinstance(value, Precision):
        return f"{value.matmul}, a scale for each row"
    return "on" if value is True else str(value)
