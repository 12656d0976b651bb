"""The view of a fusion: its speed, the limit and the memory of each partition, and the proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from meshwright.base.units import format_bytes, format_seconds
from meshwright.dataflow.fusion.answer import FusedPartition, FusionAnswer
from meshwright.view import charts
from meshwright.view.drawn import largest
from meshwright.view.parts import Cell, Chart, Page, Part, Plot, Section, Table, Text, Tile, Whole
from meshwright.view.registry import view
from meshwright.view.values import shown
from meshwright.view.words import counted, words

SHOWN_GAP = 0.0005
"""Least gap that is shown; a smaller one is written as 0.0 %."""
MOST_PARTITIONS = 8
"""Partitions on the first screen."""
MOST_LETTERS = 36
"""Most letters for the kernels of a partition on the first screen."""
PICTURE, CHIP = 1000, 300
"""Width of a picture of a fusion; height of all cores [px]."""


@view(FusionAnswer)
def fusion_page(answer: FusionAnswer) -> Page:
    """Return the page of a fusion."""
    return Page(
        title=f"{answer.graph} on {answer.chip}: kernels fused",
        subtitle=question_line(answer),
        tiles=list(_tiles(answer)),
        sections=(
            Section("time", "How fast, and what limits it?", list(_time(answer))),
            Section("memory", "What does the chip hold?", list(_memory(answer))),
            Section("partitions", "What runs together?", list(_partitions(answer))),
            Section("sure", "What is proved?", list(_sure(answer))),
        ),
    )


def _tiles(answer: FusionAnswer) -> Iterator[Tile]:
    one, partitions = answer.pass_name, answer.partitions
    yield Tile("How fast is it?", speed_line(answer), _pass_line(answer), "time", label="speed")
    yield Tile(
        "How long does one take?", f"{format_seconds(answer.latency_s)} for one {one} alone",
        _latency_line(answer), "time", label="latency",
    )  # fmt: skip
    fullest, room = _fullest(answer), answer.sram_capacity_bytes
    yield Tile("Does it fit?", f"{format_bytes(fullest)} of {format_bytes(room)} of SRAM in the "
               "fullest partition", _held_line(answer), section="memory", mood="good",
               label="memory")  # fmt: skip
    verdict, *notes = proof_lines(answer)
    yield Tile("How sure is it?", verdict, "\n".join(notes), "sure", label="proof")
    yield Tile("What limits it?", largest(answer.parts_s, answer.time_s),
               f"share of the time of a {one}", "time", label="time",
               part=_whole(answer))  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            number,
            part.time_s,
            words(part.limit),
            part.sram_bytes,
            part.moved_bytes,
            f"{part.tile} {part.tiled}",
            _kernels(part),
        )
        for number, part in enumerate(partitions[:MOST_PARTITIONS], start=1)
    ]
    left = len(partitions) - MOST_PARTITIONS
    rows += [("...", None, f"{left} more", None, None, "", "")] if left > 0 else []
    yield Tile(
        "What runs together?", counted(len(partitions), "partition"),
        f"of {counted(answer.num_kernels, 'kernel')}", "partitions", label="parts", spare=2,
        part=Table(
            ("", "time [s]", "limit", "SRAM [bytes]", "moved [bytes]", "tile", "kernels"), rows
        ),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- in words


def _passes(answer: FusionAnswer, number: float) -> str:
    return counted(number, answer.pass_name, "passes" if answer.pass_name == "pass" else "")


def question_line(answer: FusionAnswer) -> str:
    """Return the question: the graph, the chips, degrees and tile."""
    how = "kernel by kernel" if answer.kernel_by_kernel else "fused"
    how += " for latency" if answer.objective == "latency" else ""
    return (
        f"{answer.graph} on {answer.chip}, {how}: tp {answer.tp}, pp {answer.pp}, "
        f"tiles of {_tile_lengths(answer.partitions)}"
    )


def _tile_lengths(partitions: Sequence[FusedPartition]) -> str:
    """Return the tiles of all partitions, from the shortest to the longest of each dim."""
    lengths: dict[str, list[int]] = {}
    for part in partitions:
        lengths.setdefault(part.tiled, []).append(part.tile)
    ranges = ((dim, min(tiles), max(tiles)) for dim, tiles in lengths.items())
    return " or ".join(
        f"{low:,} {dim}" if low == high else f"{low:,} to {high:,} {dim}"
        for dim, low, high in ranges
    )


def speed_line(answer: FusionAnswer) -> str:
    """Return the throughput of the group of chips."""
    many = "passes" if answer.pass_name == "pass" else "sequences"
    chips = counted(answer.tp * answer.pp, "chip")
    return (
        f"{shown(answer.sequences_per_s)} {many}/s on {chips}, {answer.compute_share:.0%} of peak"
    )


def _pass_line(answer: FusionAnswer) -> str:
    """Return the time of a pass, and the passes in flight."""
    often = f" x {answer.repeats} for" if answer.repeats > 1 else ""
    if answer.objective == "latency":
        return f"{_passes(answer, answer.other.micro_batch)} in flight\n{_own_line(answer)}"
    stream = "" if answer.num_passes is None else f", {answer.num_passes:,} in all"
    return (f"{format_seconds(answer.time_s)}{often} a {answer.pass_name}, "
            f"{_passes(answer, answer.micro_batch)} in flight{stream}")  # fmt: skip


def _has_own(answer: FusionAnswer) -> bool:
    """Return whether the other objective has other partitions or tiles."""
    stated, others = (
        [(*(one.name for one in part.kernels), part.tile, part.tiled) for part in partitions]
        for partitions in (answer.partitions, answer.other.partitions)
    )
    return stated != others


def _own_line(answer: FusionAnswer) -> str:
    """Return the partitions of the other objective, where they are its own."""
    if not _has_own(answer):
        return ""
    many = counted(len(answer.other.partitions), "partition")
    tiles = _tile_lengths(answer.other.partitions)
    return f"in {many} of its own, tiles of {tiles} (--objective {answer.other.objective})"


def _latency_line(answer: FusionAnswer) -> str:
    """Return the part of the latency that loads weights, and partitions that are its own."""
    loads = "no weights are waited for"
    if answer.resident_bytes:
        loads = "weights stay in the SRAM"
    elif answer.weights_s:
        loads = f"{format_seconds(answer.weights_s)} of it waits for weights"
        if answer.micro_batch > 1:
            loads += f", which {answer.micro_batch} in flight share (--micro-batch)"
    if answer.objective == "latency":
        return loads
    return f"{loads}\n{_own_line(answer)}"


def _fullest(answer: FusionAnswer) -> float:
    """Return the SRAM of the fullest partition, with the weights that stay [bytes]."""
    return max(part.sram_bytes for part in answer.partitions) + answer.resident_bytes


def _held_line(answer: FusionAnswer) -> str:
    """Return the weights that stay in the SRAM, or wait behind the DRAM."""
    if answer.resident_bytes:
        return f"{format_bytes(answer.resident_bytes)} of it are weights that stay"
    if answer.far_bytes:
        return f"{format_bytes(answer.far_bytes)} of weights wait in the memory of the host"
    return ""


def proof_lines(answer: FusionAnswer) -> Iterator[str]:
    """Yield the distance from the optimum, then the search behind it."""
    counts = answer.counts
    model = "by the closed-form model, not calibrated"
    searched = [f"searched: {counted(counts.num_ideals, 'order ideal')}, "
                f"{counted(counts.num_steps, 'step')} between them"]  # fmt: skip
    if answer.kernel_by_kernel and counts.num_kept is None:
        yield f"one answer for each tile {model}"
        searched = []
    elif counts.num_kept is None and answer.gap < SHOWN_GAP:
        yield f"proven: gap {answer.gap:.1%} {model}"
    else:
        yield f"at most {answer.gap:.1%} from the best {model}"
    if answer.sharding_gap >= SHOWN_GAP:
        yield f"split over tp: at most {answer.sharding_gap:.1%} from the best of all splits"
    if counts.num_kept is not None:
        searched.insert(0, f"wide graph: the bound covers all orders of {counts.num_kept} of its "
                        f"{answer.num_kernels} kernels")  # fmt: skip
    if counts.tiles_fused + counts.tiles_pruned + counts.tiles_refused > 1:
        searched.append(
            f"sizes of tiles of {' or '.join(answer.tiled_dims)}: {counts.tiles_fused} searched, "
            f"{counts.tiles_pruned} pruned by a bound, {counts.tiles_refused} too large"
        )
    if searched:
        yield "; ".join(searched)


def _kernels(part: FusedPartition) -> str:
    """Return the kernels of a partition: all that fit in a cell, else those of the most cores."""
    text = ", ".join(kernel.name for kernel in part.kernels)
    if len(text) <= MOST_LETTERS:
        return text
    named: list[str] = []
    for kernel in sorted(part.kernels, key=lambda kernel: -kernel.cores):
        if named and len(", ".join([*named, kernel.name])) > MOST_LETTERS:
            break
        named.append(kernel.name)
    return f"{', '.join(named)}, ... ({len(part.kernels)})"


# ------------------------------------------------------------------------------------ the sections


def _whole(answer: FusionAnswer) -> Whole:
    return Whole(f"Time of a {answer.pass_name}", answer.parts_s, "s", answer.time_s)


def _names(answer: FusionAnswer) -> list[str]:
    return [f"partition {number}" for number in range(1, len(answer.partitions) + 1)]


def _time(answer: FusionAnswer) -> Iterator[Part]:
    yield _whole(answer)
    partitions = answer.partitions
    causes = [name for name in partitions[0].parts_s
              if any(part.parts_s[name] for part in partitions)]  # fmt: skip
    name, longest = max(
        zip(_names(answer), partitions, strict=True), key=lambda entry: entry[1].time_s
    )
    yield Plot(
        f"Time of each partition, for one {answer.pass_name}",
        f"The longest, {name}, takes {format_seconds(longest.time_s)}; "
        f"{words(longest.limit)} limits it",
        "stacked",
        Table(("", *(f"{words(cause)} [s]" for cause in causes)),
              [(name, *(part.parts_s[cause] for cause in causes))
               for name, part in zip(_names(answer), partitions, strict=True)]),
    )  # fmt: skip


def _memory(answer: FusionAnswer) -> Iterator[Part]:
    names, partitions = _names(answer), answer.partitions
    fullest, room = _fullest(answer), answer.sram_capacity_bytes
    main = "DRAM" if answer.dram_capacity_bytes else "SRAM"
    yield Plot(
        "SRAM of each partition",
        f"{format_bytes(fullest)} of {format_bytes(room)} in the fullest", "bars",
        Table(("partition", "SRAM [bytes]"),
              [(name, part.sram_bytes + answer.resident_bytes)
               for name, part in zip(names, partitions, strict=True)]),
        limit=room, limit_name="capacity",
    )  # fmt: skip
    moved = [part.moved_bytes for part in partitions]
    yield Plot(
        f"Traffic of tensors through {main}, by partition",
        f"{format_bytes(sum(moved))} in all, weights apart",
        "bars",
        Table(("partition", "traffic [bytes]"), list(zip(names, moved, strict=True))),
    )
    room = answer.dram_capacity_bytes or room
    yield Text(f"Tensors of one {answer.pass_name} take {format_bytes(answer.held_bytes)} of "
               f"{format_bytes(room)} of {main}.")  # fmt: skip


def _partitions(answer: FusionAnswer) -> Iterator[Part]:
    yield _table(answer.partitions, "In the order of time; the longest of the three resources sets "
                 "the pace")  # fmt: skip
    if _has_own(answer):
        yield _table(answer.other.partitions, f"Those of --objective {answer.other.objective}")
    if answer.places:
        yield Table(
            ("", "busiest link [s]", "exposed [s]", "kernels along the rows of the mesh of cores"),
            [(number, place.noc_s, place.exposed_s, ", ".join(place.order))
             for number, place in enumerate(answer.places, start=1)],
            "Places of the least load on the links between cores",
        )  # fmt: skip
    yield from _over_time(answer)


def _table(partitions: Sequence[FusedPartition], caption: str) -> Table:
    rows = [
        (number, words(part.limit), part.time_s, part.compute_s, part.dram_s, part.network_s,
         ", ".join(f"{kernel.name} {kernel.cores}" for kernel in part.kernels),
         "" if part.weight_parts == 1 else f"{part.weight_parts} parts")
        for number, part in enumerate(partitions, start=1)
    ]  # fmt: skip
    head = ("", "limit", "time [s]", "compute [s]", "DRAM [s]", "network [s]",
            "cores of each kernel", "weights in")  # fmt: skip
    return Table(head, rows, caption)


def _over_time(answer: FusionAnswer) -> tuple[Chart, Chart]:
    """Return the kernels on the cores, and the resources of each partition, over time."""
    partitions, room = answer.partitions, answer.sram_capacity_bytes
    ends_s = [*accumulate((part.time_s for part in partitions), initial=0.0)]
    placed: list[tuple[Any, ...]] = []
    shares: list[tuple[Any, ...]] = []
    for number, (part, start) in enumerate(zip(partitions, ends_s, strict=False), start=1):
        low = 0
        for kernel in part.kernels:
            placed.append((start, start + part.time_s, low, low + kernel.cores, kernel.name,
                           f"{kernel.name} {kernel.cores}", f"partition {number}"))  # fmt: skip
            low += kernel.cores
        spent = {
            "compute": part.compute_s, "DRAM": part.dram_s, "network": part.network_s,
            "fill, setup": part.wait_s + part.fill_s + part.exposed_setup_s,
            "launch": part.exposed_launch_s,
        }  # fmt: skip
        for name, seconds in spent.items():
            limits = "limits the partition" if name.lower() == part.limit else "busy"
            shares.append((name, start, start + seconds, limits, format_seconds(seconds)))
        filled = part.sram_bytes / room
        shares.append(("SRAM", start, start + filled * part.time_s, "filled", f"{filled:.0%}"))
    lefts, rights, lows, highs, names, words_, numbers = map(list, zip(*placed, strict=True))
    cores = charts.boxes(
        lefts, rights, lows, highs, names, words_, numbers, "time [s]", "cores", CHIP, "partition"
    )
    cores["layer"].append(
        {"data": charts.columns(start=ends_s), "mark": {"type": "rule", "color": charts.COLOURS[7]},
         "encoding": {"x": {"field": "start", "type": "quantitative"}}}
    )  # fmt: skip
    rows, starts, ends, kinds, labels = map(list, zip(*shares, strict=True))
    colours = {"limits the partition": charts.ACCENT, "busy": charts.COLOURS[1],
               "filled": charts.COLOURS[4]}  # fmt: skip
    resources = charts.timeline(
        rows, starts, ends, kinds, labels, colours, "time [s]", "", "amount"
    )
    many = counted(len(partitions), "partition")
    return (
        Chart("Cores over time", f"{many}, one after the other; {answer.num_cores} cores", cores),
        Chart("Resources over time", "Seconds of each partition on each resource, from its start; "
              f"share of its SRAM of {format_bytes(room)}", resources),
    )  # fmt: skip


def fusion_svg(answer: FusionAnswer) -> str:
    """Return the kernels on the cores over time, and the resources below, as SVG."""
    from meshwright.view.svg import together_svg

    says = f"{speed_line(answer)}; {_pass_line(answer)}"
    return together_svg(_over_time(answer), question_line(answer), says, width=PICTURE)


def _sure(answer: FusionAnswer) -> Iterator[Part]:
    for line in proof_lines(answer):
        yield Text(f"{line[:1].upper()}{line[1:]}.")
    if answer.refused:
        yield Table(("why others do not fit",), [(why,) for why in answer.refused])
