"""The report of a fusion: its partitions, the limit and the memory of each, and the proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.base.units import format_bytes, format_seconds
from meshwright.dataflow.fusion.answer import FusionAnswer, Partition
from meshwright.dataflow.fusion.picture import fusion_svg
from meshwright.dataflow.fusion.report import pass_of, proof_lines, speed_line, title
from meshwright.view import charts
from meshwright.view.parts import Chart, Page, Part, Picture, Section, Table, Text, Tile
from meshwright.view.pieces import count_chart, largest, time_chart
from meshwright.view.words import counted, words

MIB = 2.0**20


def fusion_page(answer: FusionAnswer) -> Page:
    """Return the report of a fusion."""
    sections = (
        Section("time", "How fast, and what limits it?", list(_time_parts(answer))),
        Section("memory", "What does the chip hold?", list(_memory_parts(answer))),
        Section("partitions", "What runs together?", list(_partition_parts(answer))),
        Section("sure", "What is proved?", list(_sure_parts(answer))),
    )
    return Page(
        title=f"{answer.question.graph.name} on {answer.question.target.name}: kernels fused",
        subtitle=title(answer),
        tiles=list(_tiles(answer)),
        sections=[section for section in sections if section.parts],
        command=answer.command,
        version=answer.version,
    )


def _tiles(answer: FusionAnswer) -> Iterator[Tile]:
    asked, fusion = answer.question, answer.choice.fusion
    chips = counted(asked.tp * asked.pp, "chip")
    many = "passes" if pass_of(answer) == "pass" else "sequences"
    yield Tile("How fast is it?", f"{answer.sequences_per_s:.4g} {many}/s on {chips}",
               f"{answer.compute_share:.0%} of peak; {format_seconds(fusion.time_s)} for one",
               "time")  # fmt: skip
    yield Tile("What limits it?", largest(fusion.parts_s, fusion.time_s),
               f"share of the time of a {pass_of(answer)}", "time")  # fmt: skip
    yield Tile("What runs together?", counted(len(fusion.partitions), "partition"),
               f"of {counted(len(asked.graph.kernels), 'kernel')}, tiles of {answer.tile} "
               f"{asked.graph.tiled}", "partitions")  # fmt: skip
    fullest = max(part.sram_bytes for part in fusion.partitions)
    yield Tile("Does it fit?", f"Yes, {format_bytes(fullest)} of "
               f"{format_bytes(asked.target.grid.sram_bytes)}",
               "SRAM of the fullest partition", "memory", "good")  # fmt: skip
    yield Tile("How sure is it?", "Proven" if answer.gap == 0.0 and not asked.runs_by_kernel
               else f"At most {answer.gap:.1%} from the best",
               "of the closed-form model, which is not calibrated", "sure")  # fmt: skip


def _names(partitions: Sequence[Partition]) -> list[str]:
    return [f"partition {number}" for number in range(1, len(partitions) + 1)]


def _time_parts(answer: FusionAnswer) -> Iterator[Part]:
    yield Text(f"{speed_line(answer)}.")
    yield time_of(answer)
    yield partitions_of(answer)


def time_of(answer: FusionAnswer) -> Chart:
    """Return the seconds of one sequence, or pass, by cause."""
    fusion = answer.choice.fusion
    return time_chart(f"Time of a {pass_of(answer)}", fusion.parts_s, fusion.time_s)


def partitions_of(answer: FusionAnswer) -> Chart:
    """Return the time of each partition by cause."""
    fusion = answer.choice.fusion
    names, partitions = _names(fusion.partitions), fusion.partitions
    causes = {
        words(name): [part.parts_s[name] for part in partitions] for name in partitions[0].parts_s
    }
    shown = {name: each for name, each in causes.items() if any(each)}
    slowest = max(range(len(partitions)), key=lambda number: partitions[number].time_s)
    return Chart(
        f"Time of each partition, for one {pass_of(answer)}",
        f"The longest, {names[slowest]}, takes {format_seconds(partitions[slowest].time_s)}; "
        f"{partitions[slowest].limit} limits it",
        charts.stacked(names, shown, "time [s]", row_title=""),
        Table(("", "limit", "time>", *(f"{name}>" for name in shown)),
              [(name, part.limit, format_seconds(part.time_s),
                *(format_seconds(each[number]) for each in shown.values()))
               for number, (name, part) in enumerate(zip(names, partitions, strict=True))]),
    )  # fmt: skip


def sram_of(answer: FusionAnswer) -> Chart:
    """Return the SRAM of each partition."""
    partitions, capacity = answer.choice.fusion.partitions, answer.question.target.grid.sram_bytes
    return Chart(
        "SRAM of each partition",
        f"{format_bytes(max(part.sram_bytes for part in partitions))} of "
        f"{format_bytes(capacity)} in the fullest",
        charts.bars(
            _names(partitions), [part.sram_bytes / MIB for part in partitions],
            [format_bytes(part.sram_bytes) for part in partitions], "SRAM [MiB]",
            limit=capacity / MIB, limit_name="capacity [MiB]",
        ),
    )  # fmt: skip


def moved_of(answer: FusionAnswer) -> Chart:
    """Return the bytes between chip and DRAM of each partition."""
    partitions = answer.choice.fusion.partitions
    return Chart(
        "Bytes between chip and DRAM, by partition",
        f"{format_bytes(sum(part.moved_bytes for part in partitions))} in all, weights apart",
        charts.bars(
            _names(partitions), [part.moved_bytes / MIB for part in partitions],
            [format_bytes(part.moved_bytes) for part in partitions], "moved [MiB]",
            colour=charts.COLOURS[1],
        ),
    )  # fmt: skip


def _memory_parts(answer: FusionAnswer) -> Iterator[Part]:
    fusion, grid = answer.choice.fusion, answer.question.target.grid
    yield sram_of(answer)
    yield moved_of(answer)
    yield Text(f"Tensors of one {pass_of(answer)} take {format_bytes(fusion.held_bytes)} of "
               f"{format_bytes(grid.dram_bytes)} of DRAM.")  # fmt: skip


def _partition_parts(answer: FusionAnswer) -> Iterator[Part]:
    fusion = answer.choice.fusion
    rows = []
    for number, part in enumerate(fusion.partitions, start=1):
        cores = ", ".join(f"{name} {count}" for name, count
                          in zip(part.kernels, part.cores, strict=True))  # fmt: skip
        pieces = "" if part.weight_parts == 1 else f"{part.weight_parts} parts"
        rows.append((str(number), part.limit, format_seconds(part.time_s), cores, pieces))
    yield Table((">", "limit", "time>", "kernels, with their cores", "weights in"), rows,
                "In the order of time")  # fmt: skip
    says = f"Cores of {counted(len(fusion.partitions), 'partition')} over time"
    yield Picture("Cores over time", says, fusion_svg(answer))


def _sure_parts(answer: FusionAnswer) -> Iterator[Part]:
    for line in proof_lines(answer):
        yield Text(f"{line[:1].upper()}{line[1:]}.")
    choice = answer.choice
    if choice.num_fused + choice.num_pruned + len(choice.refused) > 1:
        yield count_chart("What became of tiles and divisions", {
            "fused": choice.num_fused, "beyond their bound": choice.num_pruned,
            "do not fit": len(choice.refused)}, "tiles and divisions")  # fmt: skip
    if choice.refused:
        yield Table(("why others do not fit",), [(why,) for why in choice.refused])
