"""The report of a partition: stages with their memory and time, and the alternatives."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds
from meshwright.sram.answer import PartitionPlan
from meshwright.sram.picture import MOST_ROWS, partition_svg
from meshwright.sram.report import (
    Alike,
    batches_table,
    fullest_stage,
    latency_of,
    levels_table,
    offer_row,
    proof_text,
    question_line,
    rate_lines,
    runs_of_alike,
    stages_table,
    verdict,
)
from meshwright.view import charts
from meshwright.view.parts import (
    Chart,
    Folded,
    Page,
    Part,
    Picture,
    Section,
    Table,
    Text,
    Tile,
)
from meshwright.view.pieces import GIB, largest, time_chart
from meshwright.view.terminal import Table as ScreenTable
from meshwright.view.terminal import counted, words

MOST_LETTERS = 30
"""Most letters for the layers of a stage, beside its bar."""
MIB = 2.0**20


def partition_page(plan: PartitionPlan) -> Page:
    """Return the report of a partition."""
    sections = (
        Section("memory", "Does it fit?", list(_memory_parts(plan))),
        Section("time", "How fast, and what limits it?", list(_time_parts(plan))),
        Section("others", "What else would do?", list(_other_parts(plan))),
        Section("stages", "What does each stage hold?", list(_stage_parts(plan))),
        Section("sure", "What is proved, and how sure is it?", list(_sure_parts(plan))),
    )
    on = f" on {plan.system}" if plan.system else ""
    return Page(
        title=f"{plan.source} cut into stages{on}",
        subtitle=question_line(plan),
        tiles=list(_tiles(plan)),
        sections=[section for section in sections if section.parts],
        warnings=plan.warnings,
        command=plan.command,
        version=plan.version,
    )


def _tiles(plan: PartitionPlan) -> Iterator[Tile]:
    answer = verdict(plan)
    note = f"{plan.level} memory, {format_bytes(plan.room_bytes)} a device"
    yield Tile("Does it fit?", f"{'Yes' if plan.fits else 'No'}: {answer}", note, "memory",
               "good" if plan.fits else "bad")  # fmt: skip
    if plan.stages:
        number, fullest = fullest_stage(plan)
        yield Tile("How full is the fullest device?", f"{fullest.filled_fraction:.1%}",
                   f"stage {number}: {format_bytes(fullest.held_bytes)} of "
                   f"{format_bytes(fullest.room_bytes)}", "memory")  # fmt: skip
    price = plan.rates
    if price is not None:
        yield Tile("How fast is it?", f"{price.tokens_per_s:,.0f} tokens/s",
                   f"{format_seconds(price.latency_s)} {latency_of(plan)}", "time")  # fmt: skip
        yield Tile("What limits it?", largest(price.time_parts_s, price.latency_s),
                   f"share of the time {latency_of(plan)}", "time")  # fmt: skip
    elif plan.passes_per_s is not None:
        yield Tile("How fast is it?", f"{plan.passes_per_s:,.0f} passes/s",
                   "while the slowest stage is busy", "time")  # fmt: skip
    if plan.proposals:
        kind, what, cost = offer_row(plan, plan.proposals[0])
        yield Tile("What would help?", f"{kind}: {what}", cost, "others")
    elif any(level.name != plan.level for level in plan.levels) or len(plan.batches) > 1:
        yield Tile("What else would do?",
                   ", ".join([*(level.name for level in plan.levels if level.name != plan.level),
                              *(["another batch"] if len(plan.batches) > 1 else [])]),
                   "the same layers elsewhere, or with another batch", "others")  # fmt: skip
    least = plan.proof.num_stages
    yield Tile("What is proved?",
               "No layer order has a cut" if least is None else
               f"No contiguous cut has fewer than {counted(least, 'stage')}",
               f"no cut at all fewer than {counted(plan.proof.lower_bound, 'stage')}",
               "sure")  # fmt: skip
    if price is not None:
        yield Tile("How sure is it?", "Calibrated" if price.is_calibrated else "Not calibrated",
                   "constants fitted to measurements of these chips" if price.is_calibrated
                   else "no measurements of these chips", "sure")  # fmt: skip


def _shown(plan: PartitionPlan) -> tuple[list[Alike], list[str]]:
    """Return the runs of stages that are drawn, and their names."""
    runs = runs_of_alike(plan.stages)[:MOST_ROWS]
    return runs, [f"{run.numbers}: {run.layers(MOST_LETTERS)}" for run in runs]


def _memory_parts(plan: PartitionPlan) -> Iterator[Part]:
    yield memory_of(plan) or Text(f"There is no cut: {verdict(plan)}.")


def memory_of(plan: PartitionPlan) -> Chart | None:
    """Return the chart of the memory of a device of each stage; None: a layer fits no device."""
    if not plan.stages:
        return None
    runs, names = _shown(plan)
    each = [run.stages[0].parts_bytes for run in runs]
    parts = list(dict.fromkeys(name for one in each for name in one))
    unit, word = (GIB, "GiB") if plan.room_bytes >= GIB else (MIB, "MiB")
    number, fullest = fullest_stage(plan)
    return Chart(
        "Memory of a device of each stage",
        f"{verdict(plan)}; the fullest, {number}, holds {format_bytes(fullest.held_bytes)} of "
        f"{format_bytes(fullest.room_bytes)} ({fullest.filled_fraction:.1%}); alike stages share "
        "a bar",
        charts.stacked(
            names, {words(part): [one.get(part, 0.0) / unit for one in each] for part in parts},
            f"memory of a device [{word}]", row_title="", limit=plan.room_bytes / unit,
            limit_name=f"room [{word}]",
        ),
        Table(("stage", *(f"{words(part)} [{word}]>" for part in parts), "filled>"),
              [(name, *(f"{one.get(part, 0.0) / unit:,.2f}" for part in parts),
                f"{run.stages[0].filled_fraction:.1%}")
               for name, one, run in zip(names, each, runs, strict=True)]),
    )  # fmt: skip


def stages_of(plan: PartitionPlan) -> Chart | None:
    """Return the time of one group on each stage; None: no times are known."""
    if not any(stage.occupied_s for stage in plan.stages):
        return None
    runs, names = _shown(plan)
    parts = {"work": [run.stages[0].work_s or 0.0 for run in runs],
             "send": [run.stages[0].send_s or 0.0 for run in runs]}  # fmt: skip
    slowest_s = max(stage.occupied_s for stage in plan.stages)
    return Chart(
        "Time of one group on each stage",
        f"{format_seconds(slowest_s)} on the slowest stage, which sets the pace; alike stages "
        "share a bar",
        charts.stacked(names, {name: each for name, each in parts.items() if any(each)},
                       "time [s]", row_title=""),
        Table(("stage", "work>", "send>"),
              [(name, format_seconds(work), format_seconds(send))
               for name, work, send in zip(names, *parts.values(), strict=True)]),
    )  # fmt: skip


def _time_parts(plan: PartitionPlan) -> Iterator[Part]:
    if plan.rates is not None:
        what = latency_of(plan)
        yield time_chart(f"Time {what}", plan.rates.time_parts_s, plan.rates.latency_s)
    yield from filter(None, [stages_of(plan)])
    for line in rate_lines(plan):
        yield Text(f"{line[:1].upper()}{line[1:]}.")
    load_s = [stage.load_s for stage in plan.stages if stage.load_s is not None]
    if load_s:
        yield Text(f"Loaded in {format_seconds(max(load_s))} over the host links.")


def _other_parts(plan: PartitionPlan) -> Iterator[Part]:
    if plan.proposals:
        rows = [offer_row(plan, offer) for offer in plan.proposals]
        yield Table(("change", "what", "price"), rows,
                    "What would help, the cheapest in device seconds first; then what changes the "
                    "numbers")  # fmt: skip
        priced = [(offer, 1e3 * offer.latency_s) for offer in plan.proposals
                  if offer.latency_s is not None]  # fmt: skip
        if len(priced) > 1:
            yield Chart(
                "Devices against time, of what would help",
                f"From {min(offer.num_devices for offer, _ in priced):,} devices to "
                f"{max(offer.num_devices for offer, _ in priced):,}",
                charts.points(
                    [offer.what for offer, _ in priced],
                    [float(offer.num_devices) for offer, _ in priced],
                    [latency for _, latency in priced], [offer.kind for offer, _ in priced],
                    "devices of one pipeline", f"time {latency_of(plan)} [ms]",
                ),
            )  # fmt: skip
    if len(plan.levels) > 1:
        yield _of(levels_table(plan.levels), "Each level of memory")
    yield from filter(None, [batches_of(plan)])
    if plan.largest_batch:
        yield Text(f"Largest batch that fits {plan.num_devices_given} devices: "
                   f"{plan.largest_batch:,}.")  # fmt: skip


def batches_of(plan: PartitionPlan) -> Chart | None:
    """Return the batches that none beats; None: there is one."""
    if len(plan.batches) < 2:
        return None
    return Chart(
        "Batches that none beats",
        f"{len(plan.batches)} batches, from "
        f"{format_seconds(min(batch.latency_s for batch in plan.batches))} {latency_of(plan)} "
        f"to {max(batch.tokens_per_s for batch in plan.batches):,.0f} tokens/s of the system",
        charts.points(
            [f"batch {batch.batch_size}, {batch.num_groups} groups" for batch in plan.batches],
            [1e3 * batch.latency_s for batch in plan.batches],
            [batch.tokens_per_s for batch in plan.batches],
            ["batch"] * len(plan.batches), f"time {latency_of(plan)} [ms]",
            "tokens/s of the system",
        ),
        _of(batches_table(plan.batches)),
    )  # fmt: skip


def _stage_parts(plan: PartitionPlan) -> Iterator[Part]:
    if not plan.stages:
        return
    yield _of(stages_table(plan, most=len(plan.stages), columns=9), "Stages; those alike share a "
              "row")  # fmt: skip
    says = f"{counted(len(plan.stages), 'stage')}: layers, memory, time, what each sends on"
    yield Folded("The stages as one picture", [Picture("Stages", says, partition_svg(plan))])


def _of(table: ScreenTable, caption: str = "") -> Table:
    """Return a table of the screen."""
    return Table(table.head, table.rows, caption)


def _sure_parts(plan: PartitionPlan) -> Iterator[Part]:
    text = proof_text(plan)
    yield Text(f"{text[:1].upper()}{text[1:]}.")
    if plan.too_large:
        yield Table(("layer",), [(name,) for name in plan.too_large], "Too large for a device")
    if plan.rates is not None:
        known = "calibrated" if plan.rates.is_calibrated else "not calibrated"
        yield Text(f"Times: {plan.rates.fidelity.replace('_', '-')} model, {known}.")
