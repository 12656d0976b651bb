"""Fused partitions for a reader: the limit of each, and the cores of its kernels."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds
from meshwright.dataflow.fusion.answer import FusionAnswer, Partition
from meshwright.spec.workload import BYTES_OF
from meshwright.view.screen import (
    Bars,
    Screen,
    Table,
    wrapped,
)
from meshwright.view.words import counted, words

SHOWN_GAP = 0.0005
"""A smaller one would be printed as nothing."""
MOST_PARTITIONS = 8
"""Partitions on the default screen."""
MOST_LETTERS = 36
"""Most letters for the kernels of a partition on the default screen."""


def fusion_screen(answer: FusionAnswer, *, next_command: str = "") -> Screen:
    """Return the default screen of a fusion, the answer first."""
    fusion = answer.choice.fusion
    screen = Screen(title(answer))
    screen.gap()
    screen.add("speed", speed_line(answer), style="bold green")
    screen.add("latency", latency_line(answer))
    target, graph = answer.question.target, answer.question.graph
    if BYTES_OF[target.dtype] != graph.widest_product_bytes:
        line = f"at its rate of {target.dtype}: {target.name} states none for "
        screen.add(
            "", f"{line}products of {graph.widest_product_bytes:g}-byte numbers (--precision)"
        )
    for spare, line in enumerate(proof_lines(answer)):
        screen.add("", line, spare=spare)
    screen.gap()
    parts = {words(name): seconds for name, seconds in fusion.parts_s.items() if seconds}
    screen.add("time", Bars(parts, format_seconds))
    screen.gap()
    rows = [
        (f"{number}", format_seconds(part.time_s), part.limit, format_bytes(part.sram_bytes),
         format_bytes(part.moved_bytes), _kernels(part))
        for number, part in enumerate(fusion.partitions[:MOST_PARTITIONS], start=1)
    ]  # fmt: skip
    if left := len(fusion.partitions) - MOST_PARTITIONS:
        rows += [("...", f"{left} more", "", "", "", "")] if left > 0 else []
    screen.add("parts", Table(("", "time>", "limit", "SRAM>", "moved>", "kernels"), rows), spare=2)
    if next_command:
        screen.gap()
        screen.add("next", next_command, style="bold")
    return screen


def _kernels(part: Partition) -> str:
    """Return the kernels of a partition: all that fit in a cell, else those of the most cores."""
    text = ", ".join(part.kernels)
    if len(text) <= MOST_LETTERS:
        return text
    largest = sorted(zip(part.kernels, part.cores, strict=True), key=lambda pair: -pair[1])
    shown: list[str] = []
    for name, _ in largest:
        if shown and len(", ".join([*shown, name])) > MOST_LETTERS:
            break
        shown.append(name)
    return f"{', '.join(shown)}, ... ({len(part.kernels)})"


def fusion_lines(answer: FusionAnswer) -> Iterator[str]:
    """Yield the lines of the detail: every partition, with the cores of its kernels."""
    yield (f"{'':>2} {'time':>9} {'limit':<8}{'compute':>9} {'DRAM':>9} {'network':>9} "
           f"{'fill':>8} {'setup':>8} {'SRAM':>10} {'moved':>10}")  # fmt: skip
    for number, part in enumerate(answer.choice.fusion.partitions, start=1):
        yield from _partition_lines(number, part)


def title(answer: FusionAnswer) -> str:
    """Return the title: the graph, the chips, degrees and tile."""
    asked = answer.question
    how = "kernel by kernel" if asked.runs_by_kernel else "fused"
    return (
        f"{asked.graph.name} on {asked.target.name}, {how}: tp {asked.tp}, pp {asked.pp}, "
        f"tiles of {answer.tile} {asked.graph.tiled}"
    )


def pass_of(answer: FusionAnswer) -> str:
    """Return the name of one pass through the graph: a sequence of tokens, or all of its inputs."""
    graph = answer.question.graph
    return "sequence" if graph.tiled == "tokens" and "batch" not in graph.sizes else "pass"


def speed_line(answer: FusionAnswer) -> str:
    """Return the line with the time of a pass and the throughput of the group."""
    asked, fusion = answer.question, answer.choice.fusion
    often = f" x {answer.question.repeats}" if answer.question.repeats > 1 else ""
    many = "passes" if pass_of(answer) == "pass" else "sequences"
    return (
        f"{counted(len(fusion.partitions), 'partition')}: {format_seconds(fusion.time_s)}{often} "
        f"for a {pass_of(answer)}, {answer.sequences_per_s:.4g}/s on "
        f"{counted(asked.tp * asked.pp, 'chip')} ({answer.compute_share:.0%} of peak), "
        f"{counted(fusion.micro_batch, pass_of(answer), many)} in flight"
    )


def latency_line(answer: FusionAnswer) -> str:
    """Return the line with the latency of one pass alone, and the part that others share."""
    in_flight, weights_s = answer.choice.fusion.micro_batch, answer.weights_s
    alone = f"{format_seconds(answer.latency_s)} for one {pass_of(answer)} alone"
    if not weights_s:
        return f"{alone}; no weights are loaded"
    loads = f"{alone}, {format_seconds(weights_s)} of it loads weights"
    if in_flight == 1:
        return loads
    return f"{loads}, which {in_flight} in flight share (--micro-batch)"


def proof_lines(answer: FusionAnswer) -> Iterator[str]:
    """Yield the proof that nothing is faster, in closed form."""
    choice, counts = answer.choice, answer.choice.fusion.counts
    gap = answer.gap
    looked = f"{counted(counts.num_ideals, 'ideal')}, "
    looked += f"{counted(counts.num_steps, 'step')} between them"
    tiles = ""
    if choice.num_fused + choice.num_pruned + len(choice.refused) > 1:
        tiles = (
            f"; of tiles of {' or '.join(answer.tiled_dims)} {choice.num_fused} fused, "
            f"{choice.num_pruned} beyond their bound, {len(choice.refused)} do not fit"
        )
    if counts.num_kept is not None:
        kernels = len(answer.question.graph.kernels)
        yield (
            f"fidelity closed_form, uncalibrated; at most {gap:.1%} from the best (wide graph: "
            f"bound by all orders of {counts.num_kept} of its {kernels} kernels; {looked}){tiles}"
        )
    elif answer.question.runs_by_kernel:
        yield f"fidelity closed_form, uncalibrated, one answer for each tile{tiles}"
    else:
        yield f"fidelity closed_form, uncalibrated, proven: gap {gap:.1%} ({looked}){tiles}"
    if answer.sharding_gap >= SHOWN_GAP:
        yield f"split over tp: at most {answer.sharding_gap:.1%} from the best of all splits"


def _partition_lines(number: int, part: Partition) -> Iterator[str]:
    """Yield one partition: a row of numbers, then its kernels."""
    seconds = (part.compute_s, part.dram_s, part.network_s)
    compute, dram, network = (format_seconds(value) for value in seconds)
    fill, setup = format_seconds(part.fill_s), format_seconds(part.setup_s)
    yield (
        f"{number:>2} {format_seconds(part.time_s):>9} {part.limit:<8}{compute:>9} {dram:>9} "
        f"{network:>9} {fill:>8} {setup:>8} {format_bytes(part.sram_bytes):>10} "
        f"{format_bytes(part.moved_bytes):>10}"
    )
    cores = ", ".join(f"{n} {c}" for n, c in zip(part.kernels, part.cores, strict=True))
    parts = f" (weights in {part.weight_parts} parts)" if part.weight_parts > 1 else ""
    yield from wrapped("     cores: ", f"{cores}{parts}")
