"""View of a dry run: memory by category beside the formulas, collectives, FLOPs."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds
from meshwright.run.dry.answer import DryRun, RanStage
from meshwright.run.view import sent_answer, sent_table
from meshwright.view.parts import Page, Section, Table, Text, Tile
from meshwright.view.registry import view
from meshwright.view.words import counted


@view(DryRun)
def dry_page(found: DryRun) -> Page:
    """Return the page of a dry run."""
    return Page(
        title=f"{found.model}, run dry",
        subtitle=found.plan,
        tiles=list(_tiles(found)),
        sections=[
            Section("memory", "Where is the memory?", [_memory(found), *map(Text, found.notes)]),
            Section(
                "sent",
                "What is sent?",
                [sent_table((_named(stage), stage.sent) for stage in found.stages)],
            ),
            Section("flops", "What is computed?", [_flops(found)]),
        ],
    )


def _tiles(found: DryRun) -> Iterator[Tile]:
    fullest = max(found.stages, key=lambda stage: stage.peak_bytes)
    took_s = sum(stage.seconds for stage in found.stages)
    yield Tile("Does it start?", f"yes, in a dry run of {found.program}",
               f"{counted(found.num_ranks, 'rank')}, of which "
               f"{counted(len(found.stages), 'rank')} ran in {format_seconds(took_s)}",
               mood="good", label="starts")  # fmt: skip
    rows = [(part.category, format_bytes(part.at_peak_bytes), format_bytes(part.predicted_bytes))
            for part in fullest.held]  # fmt: skip
    rows.append(("all", format_bytes(fullest.peak_bytes), format_bytes(fullest.predicted_bytes)))
    yield Tile("Does it fit?", f"{format_bytes(found.peak_bytes)} of tensors at the peak of the "
               f"fullest rank, of {format_bytes(found.capacity_bytes)}",
               f"stage {fullest.stage}, {fullest.peak_phase}; by formula "
               f"{format_bytes(fullest.predicted_bytes)}", "memory",
               mood="good" if found.fits else "bad", label="memory",
               part=Table(("", "executed>", "by formula>"), rows))  # fmt: skip
    if len(found.notes) > 1:
        yield Tile("Are both of one program?", found.notes[1], label="note")
    sent = [one for stage in found.stages for one in stage.sent]
    yield Tile("Is what is sent as derived?", sent_answer(sent), "", "sent", label="sent")


def _named(stage: RanStage) -> str:
    return f"{stage.stage} (rank {stage.rank}, {counted(len(stage.layers), 'layer')})"


def _memory(found: DryRun) -> Table:
    rows = [
        (_named(stage), part.category, part.at_peak_bytes, part.predicted_bytes, part.most_bytes,
         part.predicted_most_bytes)
        for stage in found.stages
        for part in stage.held
    ]  # fmt: skip
    head = ("stage", "category", "at the peak [bytes]", "by formula [bytes]", "most [bytes]",
            "most by formula [bytes]")  # fmt: skip
    return Table(head, rows)


def _flops(found: DryRun) -> Table:
    rows = [(_named(stage), phase, flops) for stage in found.stages
            for phase, flops in stage.flops.items()]  # fmt: skip
    return Table(("stage", "phase", "arithmetic [FLOP]"), rows)
