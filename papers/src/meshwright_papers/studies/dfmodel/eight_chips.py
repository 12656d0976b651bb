"""A layer of GPT-3 on eight SN10 under the rules of DFModel: its mapping, the vendor's, kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from meshwright.dataflow.fusion.answer import FusionQuestion
from meshwright.dataflow.fusion.fuse import fuse_graph, problem_of, target_named
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.fusion.search import evaluate, fuse
from meshwright.dataflow.load import load_graph

CHIPS = 8
TILES = (32, 64, 128, 256)
VENDOR = (
    ("add0", "ln1", "q", "k", "v"),
    ("qk", "softmax", "drop1", "av", "proj", "drop2", "add1", "ln2"),
    ("ffn0", "gelu"),
    ("ffn1", "drop3", "add2"),
)
"""Partitions of the vendor's mapping, over all eight chips, as the public run states them."""


@dataclass(frozen=True)
class Mapping:
    """One way to run the layer on eight chips."""

    name: str
    tp: int
    pp: int
    tile: int
    samples_per_s: float


def question(tp: int = 1, pp: int = 1, *, by_kernel: bool = False) -> FusionQuestion:
    """Return the layer on some of the chips."""
    graph, target = load_graph("gpt3-175b-layer"), target_named("SN10", "dfmodel")
    return FusionQuestion(graph, target, tp, pp, rules="dfmodel", runs_by_kernel=by_kernel)


@cache
def best_fused() -> Mapping:
    """Return the best mapping over all degrees and tiles, proven."""
    found = fuse_graph(question(), chips=CHIPS)
    asked = found.question
    return Mapping("ours, fused", asked.tp, asked.pp, found.tile, found.sequences_per_s)


@cache
def vendor(tile: int) -> Mapping:
    """Return the vendor's partitions at one tile."""
    asked = question(CHIPS)
    problem = problem_of(asked, tile)
    found = evaluate(problem, problem.sets_of(VENDOR))
    return Mapping("vendor", CHIPS, 1, tile, 1.0 / (found.time_s * asked.repeats))


@cache
def by_kernel(tp: int) -> Mapping:
    """Return one kernel after the other, whose tensors always pass through DRAM.

    The public run sets no limit on SRAM here, so the tile is the whole sequence.
    """
    asked = question(tp, CHIPS // tp, by_kernel=True)
    length = asked.graph.sizes[asked.graph.tiled]
    found = fuse(without_limit(problem_of(asked, length)))
    return Mapping(
        "kernel by kernel", tp, CHIPS // tp, length, 1.0 / (found.time_s * asked.repeats)
    )


def without_limit(problem: FusionProblem) -> FusionProblem:
    """Return a problem on a chip of any SRAM."""
    return replace(problem, grid=replace(problem.grid, sram_bytes=np.inf))


def mappings() -> list[Mapping]:
    """Return all mappings that are compared."""
    kernels = [by_kernel(tp) for tp in (8, 4, 2, 1)]
    return [best_fused(), *(vendor(tile) for tile in TILES), *kernels]
