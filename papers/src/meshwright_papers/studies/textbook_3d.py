"""The textbook's 3D search re-run: its block, exercises, anecdote; the whole model beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from textwrap import wrap
from typing import Any

from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.sharding.space import factorizations
from meshwright.train.answer import Candidate
from meshwright.train.question import training
from meshwright.wafer.training import plan
from meshwright_papers.studies.study import StudyResult, studies
from meshwright_papers.studies.textbook_grids import (
    PricedGrid,
    StateSharding,
    TextbookSetting,
    gradient_s,
    price,
    ranked_grids,
)

BOOK = TextbookSetting()
FAST_FABRIC = replace(BOOK, data_bytes_per_s=200e9)
LARGE_MODEL = replace(BOOK, num_params=200e9)
DEVICE_COUNTS = (60, 64, 66, 72)
PARAMS_TRIED = (308e9, 310e9, 316e9, 318e9, 319e9, 319.9e9)
ANECDOTE_GRID = (8, 1, 8)
ANECDOTE_SAVING = 0.4
"""Share of the step time that the reshaping saved in the book's story."""
MODEL, SYSTEM, SEQUENCE_LENGTH = "llama3-70b", "64xA100", 4096
"""80 layers and 70e9 parameters, on hosts of eight with 25 GB/s for each device between them."""
BATCHES = (16, 256)
"""Sequences of a step: one for each of the book's micro-batches, and a usual million tokens."""
GRIDS_BESIDE = ((1, 8, 8), (2, 4, 8), ANECDOTE_GRID)


@studies.register("textbook-3d")
class Textbook3D:
    """A search over 28 grids, and the text around it checked against its own numbers."""

    title = "the 3D grid search of a textbook: its output, exercises and anecdote"
    source = "section 16.9, Code 16.9.1, https://scalablebook.apartsin.com"

    @staticmethod
    def run() -> StudyResult:
        """Compute every part."""
        parts = {
            "printed_block": printed_block(),
            "exercise_a": factor_counts(),
            "exercise_b": faster_data_fabric(),
            "exercise_c": larger_model(),
            "anecdote": anecdote(),
            "whole_model": whole_model(),
        }
        lines = [line for part in parts.values() for line in (*part.lines, "")]
        data = {name: part.data for name, part in parts.items()}
        return StudyResult(tuple(lines[:-1]), data)


def printed_block() -> StudyResult:
    """Return the output of the book's program."""
    ranked = ranked_grids(BOOK)
    best, genuine = ranked[0], first_genuine_3d(ranked)
    lines = (
        f"devices D               : {BOOK.num_devices}",
        f"feasible configurations : {len(ranked)}",
        f"best (dp, pp, tp)       : {best.grid} product = {BOOK.num_devices}",
        f"  memory / device       : {best.memory_bytes / 1e9:6.2f} GB"
        f" (cap {BOOK.memory_capacity_bytes / 1e9:.0f} GB)",
        f"  comm time / step      : {best.overhead_s * 1e3:6.2f} ms",
        "",
        "top 4 feasible shapes (dp, pp, tp -> comm ms, mem GB):",
        *(
            f"  ({row.dp:2.0f}, {row.pp:2.0f}, {row.tp:2.0f}) -> {row.overhead_s * 1e3:6.2f} ms"
            f"  {row.memory_bytes / 1e9:6.2f} GB"
            for row in ranked[:4]
        ),
        "",
        f"best genuine 3D shape : {named(genuine)} -> {genuine.overhead_s * 1e3:.2f} ms",
    )
    data = {"num_fitting": len(ranked), "ranked": [record(row) for row in ranked]}
    return StudyResult(lines, data | {"best_genuine_3d": record(genuine)})


def factor_counts() -> StudyResult:
    """Exercise (a): how many grids a device count has, and how many are well shaped.

    Well shaped: tp divides a host and pp divides the layers.
    """
    counts = {}
    for number in DEVICE_COUNTS:
        triples = factorizations(number, 3).tolist()
        shaped = [t for t in triples if BOOK.devices_per_host % t[2] == BOOK.num_layers % t[1] == 0]
        counts[number] = {
            "num_triples": len(triples),
            "num_quadruples": len(factorizations(number, 4)),
            "num_well_shaped_triples": len(shaped),
        }
    lines = (
        "exercise a: grids by device count",
        "  devices  triples  quadruples  triples with tp | 8 and pp | 80",
        *(
            f"  {number:7d}  {c['num_triples']:7d}  {c['num_quadruples']:10d}"
            f"  {c['num_well_shaped_triples']:31d}"
            for number, c in counts.items()
        ),
        "  By count a power of two is not richer: 64 beats 66 by one, and 60 and 72 beat 64.",
        "  What 64 has is grids whose tp fills a host evenly.",
    )
    return StudyResult(lines, {str(number): c for number, c in counts.items()})


def faster_data_fabric() -> StudyResult:
    """Exercise (b): the data axis at 200 GB/s, and the bandwidth at which it starts to win."""
    ranked, before = ranked_grids(FAST_FABRIC), ranked_grids(BOOK)
    best, best_data = ranked[0], next(row for row in ranked if row.dp > 1)
    was = next(row for row in before if row.grid == best_data.grid)
    tie_bytes_per_s, tie_grid = data_bandwidth_to_tie(before)
    lines = (
        "exercise b: data fabric at 200 GB/s instead of 25 GB/s",
        f"  the winner stays {best.grid}: {best.overhead_s * 1e3:.4f} ms",
        f"  best with dp > 1 is {best_data.grid}: {best_data.overhead_s * 1e3:.4f} ms"
        f" (was {was.overhead_s * 1e3:.4f}), {best_data.overhead_s / best.overhead_s:.2f}x slower",
        f"  a grid with dp > 1 first ties at {tie_bytes_per_s / 1e9:.0f} GB/s: {tie_grid}",
        "  So it is competitive again only in the sense of a smaller loss.",
    )
    data = {
        "best": record(best),
        "best_with_data_axis": record(best_data),
        "tie_bytes_per_s": tie_bytes_per_s,
        "tie_grid": list(tie_grid),
    }
    return StudyResult(lines, data)


def larger_model() -> StudyResult:
    """Exercise (c): 200e9 parameters under both memory rules, and where the filter bites."""
    sharded = ranked_grids(LARGE_MODEL)
    whole = ranked_grids(LARGE_MODEL, StateSharding.NOT_OVER_DATA)
    by_hand = LARGE_MODEL.state_bytes / LARGE_MODEL.memory_capacity_bytes
    smallest = min(row.pp * row.tp for row in whole)
    num_fitting = {
        f"{params / 1e9:g}e9": len(ranked_grids(replace(BOOK, num_params=params)))
        for params in PARAMS_TRIED
    }
    lines = (
        "exercise c: 200e9 parameters",
        f"  state not shared over dp: pp * tp >= {by_hand:.0f}, on 64 devices"
        f" {smallest:.0f}: {len(whole)} grids, all with dp = 1",
        f"  state shared over dp, as the program has it: {len(sharded)} of"
        f" {len(ranked_grids(BOOK))} grids fit, pp * tp >= 1",
        f"  best {sharded[0].grid}: {sharded[0].overhead_s * 1e3:.4f} ms,"
        f" {sharded[0].memory_bytes / 1e9:.2f} GB",
        "  The question and the program disagree: the program shares the state over dp as well.",
        "  More parameters lengthen the tensor and data axes only, so the winner moves to pp.",
        "  grids that fit by parameters: "
        + ", ".join(f"{params}: {count}" for params, count in num_fitting.items()),
    )
    data = {
        "state_over_data": {"num_fitting": len(sharded), "best": record(sharded[0])},
        "state_not_over_data": {
            "num_fitting": len(whole),
            "real_model_shards": by_hand,
            "smallest_model_shards": smallest,
            "grids": [list(row.grid) for row in whole],
        },
        "num_fitting_by_params": num_fitting,
    }
    return StudyResult(lines, data)


def anecdote() -> StudyResult:
    """Re-examine the story: (8, 1, 8) became (1, 8, 8), which saved about 40 % of the step.

    The model has no computation c. With it, c + best = (1 - saving) (c + story) gives
    c = ((1 - saving) story - best) / saving.
    """
    best = ranked_grids(BOOK)[0]
    dp, pp, tp = map(float, ANECDOTE_GRID)
    story = price(dp, pp, tp, BOOK, StateSharding.OVER_DATA)
    ratio = story.overhead_s / best.overhead_s
    implied_s = ((1 - ANECDOTE_SAVING) * story.overhead_s - best.overhead_s) / ANECDOTE_SAVING
    lines = (
        f"anecdote: {ANECDOTE_GRID} reshaped to {best.grid}",
        f"  {story.overhead_s * 1e3:.4f} ms against {best.overhead_s * 1e3:.4f} ms:"
        f" {ratio:.2f}x, where the story tells of {ANECDOTE_SAVING:.0%} of the step",
        "  The model has no computation; both agree only if a step computes for"
        f" {implied_s:.2f} s besides.",
    )
    data = {"story": record(story), "ratio_to_best": ratio, "implied_compute_s": implied_s}
    return StudyResult(lines, data)


def _wrapped(line: str) -> list[str]:
    """Return a line in parts of at most 100 letters."""
    return wrap(line, 100, subsequent_indent=" " * 15)


def whole_model() -> StudyResult:
    """Search the whole space on the book's cluster, and the book's grids within it."""
    lines = [f"the whole model beside it: {MODEL} on {SYSTEM}, sequence {SEQUENCE_LENGTH}"]
    data = {}
    for batch in BATCHES:
        best = chosen(batch)
        grids = {grid: chosen(batch, grid) for grid in GRIDS_BESIDE}
        before, after = grids[ANECDOTE_GRID].estimate, grids[1, 8, 8].estimate
        saving = 1 - after.step_time_s / before.step_time_s
        lines += [
            f"  {batch} sequences a step",
            *_wrapped(f"    best       {told(best)}"),
            *(
                line
                for grid, candidate in grids.items()
                for line in _wrapped(f"    {grid}  {told(candidate)}")
            ),
            f"    {ANECDOTE_GRID} reshaped to (1, 8, 8) changes the step by {-saving:+.1%}"
            f" (the story: {-ANECDOTE_SAVING:+.0%})",
        ]
        data[str(batch)] = {
            "best": candidate_record(best),
            "grids": {"x".join(map(str, g)): candidate_record(c) for g, c in grids.items()},
            "anecdote_saving_fraction": saving,
        }
    lines.append("  (closed form, uncalibrated; a grid gets the best of all other choices)")
    return StudyResult(tuple(lines), data)


def chosen(global_batch_size: int, grid: tuple[int, int, int] | None = None) -> Candidate:
    """Return the plan for the book's cluster: of the whole space, or with (dp, pp, tp) fixed."""
    workload = training(
        SYSTEM, sequence_length=SEQUENCE_LENGTH, global_batch_size=global_batch_size
    )
    allowed = fixed_to(grid) if grid else None
    return plan(
        MODEL,
        SYSTEM,
        workload,
        allowed=allowed,
        top=1,
        calibration=UNCALIBRATED,
        prefers_simple=False,
    ).best


def fixed_to(grid: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """Return a grid (dp, pp, tp) as the only choice of degrees; dp is replicated or sharded."""
    dp, pp, tp = grid
    replicas = tuple(factor for factor in range(1, dp + 1) if dp % factor == 0)
    return {
        "dp_replicate": replicas,
        "dp_shard": replicas,
        "pp": (pp,),
        "tp": (tp,),
        "cp": (1,),
        "num_devices": (dp * pp * tp,),
    }


def told(candidate: Candidate) -> str:
    """Return a candidate as time and plan."""
    return f"{candidate.estimate.step_time_s:6.3f} s  {candidate.text}"


def candidate_record(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate as data."""
    return {
        "plan": candidate.text,
        "step_time_s": candidate.estimate.step_time_s,
        "memory_bytes": candidate.estimate.memory_bytes,
    }


def data_bandwidth_to_tie(ranked: Sequence[PricedGrid]) -> tuple[float, tuple[int, int, int]]:
    """Return the least data bandwidth [bytes/s] at which a grid with dp > 1 equals the winner.

    Its gradient bytes have to cross in the time by which its other parts are below the winner.
    """
    best_s = ranked[0].overhead_s
    ties = []
    for row in ranked:
        spare_s = best_s - (row.overhead_s - row.gradient_s)
        if row.dp > 1 and spare_s > 0:
            seconds_of_a_byte_per_s = gradient_s(
                row.dp, row.pp, row.tp, replace(BOOK, data_bytes_per_s=1.0)
            )
            ties.append((seconds_of_a_byte_per_s / spare_s, row.grid))
    return min(ties)


def first_genuine_3d(ranked: Sequence[PricedGrid]) -> PricedGrid:
    """Return the cheapest grid with all three degrees above one."""
    return next(row for row in ranked if min(row.grid) > 1)


def named(row: PricedGrid) -> str:
    """Return a grid with its axes named."""
    return "(dp={}, pp={}, tp={})".format(*row.grid)


def record(row: PricedGrid) -> dict[str, Any]:
    """Return a priced grid as data."""
    return (
        asdict(row)
        | dict(zip(("dp", "pp", "tp"), row.grid, strict=True))
        | {"overhead_s": row.overhead_s}
    )
