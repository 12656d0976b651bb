"""The picture of fused partitions as SVG: time to the right, cores and resources downwards.

Every partition is a column as wide as its time. The upper box is the chip: a band for each kernel,
as high as its share of the cores, and white where cores are idle. Below it are bars of the parts of
its time: computation, DRAM, network, fill and setup, launch. At the foot is its SRAM.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds
from meshwright.dataflow.fusion.answer import FusionAnswer, Partition
from meshwright.view.drawing import group_class, label, page, rectangle

MARGIN, HEAD, NAMES = 24.0, 82.0, 92.0
"""Margins: around everything; above the chip; left of it [px]."""
WIDTH, CHIP = 900.0, 300.0
"""Width of all partitions together; height of all cores [px]."""
ROW, BAR, GAP = 22.0, 14.0, 16.0
"""Distance of two bars; height of a bar; space below the chip [px]."""
LEAST_LABEL, INSET, LETTER, HEADING_LETTER = 11.0, 4.0, 6.0, 7.0
"""Least height of a band with a name; space left of a text; width of a letter, and above the chip
[px]."""
RESOURCES = ("compute", "DRAM", "network", "fill, setup", "launch", "SRAM")


def fusion_svg(answer: FusionAnswer) -> str:
    """Return the picture of an answer; equal for equal answers, and nothing from outside."""
    width = 2 * MARGIN + NAMES + WIDTH
    height = HEAD + CHIP + GAP + ROW * len(RESOURCES) + MARGIN
    total_s = sum(part.time_s for part in answer.partitions)
    says = (
        f"{format_seconds(answer.time_s)} for a {answer.pass_name}, {answer.micro_batch} at once; "
        f"{answer.num_cores} cores, SRAM {format_bytes(answer.sram_capacity_bytes)}; "
        f"{answer.fidelity}"
    )
    lines = [
        label(MARGIN, 28, question_line(answer), "title"),
        label(MARGIN, 48, says, "note quiet"),
        *_names(),
    ]
    left = MARGIN + NAMES
    for number, part in enumerate(answer.partitions):
        wide = WIDTH * part.time_s / total_s
        column = _column(number, part, wide, answer.num_cores, answer.sram_capacity_bytes)
        lines += [f'<g transform="translate({left:.1f} {HEAD:.0f})">', *column, "</g>"]
        left += wide
    return page(width, height, question_line(answer), lines)


def question_line(answer: FusionAnswer) -> str:
    """Return the question: the graph, the chips, degrees and tile."""
    how = "kernel by kernel" if answer.kernel_by_kernel else "fused"
    return (
        f"{answer.graph} on {answer.chip}, {how}: tp {answer.tp}, pp {answer.pp}, "
        f"tiles of {answer.tile} {answer.tiled}"
    )


def _names() -> Iterator[str]:
    """Yield the labels left of the rows."""
    yield label(MARGIN, HEAD + 12, "cores", "note quiet")
    for row, name in enumerate(RESOURCES):
        yield label(MARGIN, HEAD + CHIP + GAP + ROW * row + 11, name, "note quiet")


def _column(
    number: int, part: Partition, wide: float, num_cores: int, sram_bytes: float
) -> Iterator[str]:
    """Yield one partition: its kernels on the cores, and its parts of the time."""
    idle = num_cores - sum(kernel.cores for kernel in part.kernels)
    yield from _heading(f"{number + 1}", f": {format_seconds(part.time_s)}", wide)
    yield rectangle(0.0, 0.0, wide, CHIP, "die none", f"{idle} cores idle")
    top, unnamed = 0.0, []
    for place, kernel in enumerate(part.kernels):
        name, cores = kernel.name, kernel.cores
        high = CHIP * cores / num_cores
        colour = group_class(number + 3 * place)
        yield rectangle(0.0, top, wide, high, f"die {colour}", f"{name}: {cores} cores")
        words = f"{name} {cores}"
        if high >= LEAST_LABEL and INSET + LETTER * len(words) < wide:
            yield label(INSET, top + min(high / 2 + 4, high - 2), words, "label")
        else:
            unnamed.append(words)
        top += high
    says = f"and {', '.join(unnamed)}"
    if unnamed and CHIP - top >= LEAST_LABEL and INSET + LETTER * len(says) < wide:
        yield label(INSET, CHIP - 4, says, "label quiet")
    spent = (
        part.compute_s, part.dram_s, part.network_s, part.fill_s + part.setup_s,
        part.exposed_launch_s,
    )  # fmt: skip
    for row, (name, seconds) in enumerate(zip(RESOURCES, spent, strict=False)):
        says = f"{name} {format_seconds(seconds)}"
        share = seconds / part.time_s if part.time_s > 0 else 0.0
        yield from _bar(row, wide, share, says, is_limit=name.lower() == part.limit)
    says = f"{format_bytes(part.sram_bytes)}, {part.sram_bytes / sram_bytes:.0%}"
    yield from _bar(len(spent), wide, part.sram_bytes / sram_bytes, says, is_limit=False)


def _heading(number: str, time: str, wide: float) -> Iterator[str]:
    """Yield the number of a partition and its time, as far as its column has room."""
    for says in (number + time, number):
        if INSET + HEADING_LETTER * len(says) < wide:
            yield label(INSET, -6, says, "note")
            return


def _bar(row: int, wide: float, share: float, says: str, *, is_limit: bool) -> Iterator[str]:
    """Yield a bar of a share of the width of a partition, with its number where it has room."""
    top = CHIP + GAP + ROW * row
    yield rectangle(0.0, top, wide, BAR, "die none", says)
    yield rectangle(0.0, top, wide * share, BAR, "die h6" if is_limit else "die h2", says)
    if INSET + LETTER * len(says) < wide:
        yield label(INSET, top + 11, says, "label")
