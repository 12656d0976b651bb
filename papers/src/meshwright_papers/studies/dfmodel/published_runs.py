"""A layer of GPT-3 on eight SN10 under the rules of DFModel: its mapping, the vendor's, kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from meshwright.dataflow.fusion.fuse import fuse_graph, problem_of
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.fusion.question import FusionQuestion
from meshwright.dataflow.fusion.search import evaluate, fuse
from meshwright.dataflow.question import load_graph
from meshwright_papers.studies.dfmodel.networks import DimKind, NetworkDim
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL, target_named
from meshwright_papers.studies.dfmodel.rules import all_reduce_s
from meshwright_papers.studies.dfmodel.workloads import gpt_training_layer

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
    graph, target = load_graph("gpt3-175b-layer"), target_named("SN10")
    return FusionQuestion(graph, target, tp, pp, rules=DFMODEL, runs_by_kernel=by_kernel)


@cache
def best_fused() -> Mapping:
    """Return the best mapping over all degrees and tiles, proven."""
    found = fuse_graph(question(), chips=CHIPS)
    return Mapping("ours, fused", found.tp, found.pp, found.tile, found.sequences_per_s)


@cache
def vendor(tile: int) -> Mapping:
    """Return the vendor's partitions at one tile."""
    asked = question(CHIPS)
    problem = problem_of(asked, tile)
    found = evaluate(problem, problem.sets_of(VENDOR))
    return Mapping("vendor", CHIPS, 1, tile, 1.0 / (found.time_s * asked.repeats))


@cache
def by_kernel(tp: int) -> Mapping:
    """Return one kernel after the other, with tensors that always pass through DRAM.

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


LENGTH, VOCABULARY, TP, TILE = 2048, 51200, 8, 32
PEAK = 312e12
"""Dense rate of an A100 at 16 bit [FLOP/s]."""


@dataclass(frozen=True)
class Run:
    """A published run (Narayanan et al. 2021, arXiv 2104.04473, table 1), and the peer's figure."""

    name: str
    hidden: int
    heads: int
    layers: int
    chips: int
    pp: int
    batch: int
    measured_flops_per_s: float
    """Measured rate of one chip, recomputation included [FLOP/s]."""
    peer_samples_per_s: float
    """Prediction in the public log of DFModel [samples/s]."""

    @property
    def dp(self) -> int:
        """Replicas."""
        return self.chips // (TP * self.pp)

    @property
    def executed_flops(self) -> float:
        """Work of one sample with full recomputation, as the publication counts it [FLOP]."""
        h, s, layers = self.hidden, LENGTH, self.layers
        share = 1 + s / (6 * h) + VOCABULARY / (16 * layers * h)
        return 96 * s * layers * h**2 * share

    @property
    def measured_samples_per_s(self) -> float:
        """Samples each second, from the measured rate."""
        return self.chips * self.measured_flops_per_s / self.executed_flops


RUNS = (
    Run("76B", 10240, 80, 60, 1024, 4, 1792, 140e12, 198.224),
    Run("145.6B", 12288, 96, 80, 1536, 8, 2304, 148e12, 165.844),
    Run("310B", 16384, 128, 96, 1920, 16, 2160, 155e12, 104.172),
    Run("530B", 20480, 128, 105, 2520, 35, 2520, 163e12, 88.558),
    Run("1T", 25600, 160, 128, 3072, 64, 3072, 163e12, 57.986),
)


@dataclass(frozen=True)
class Prediction:
    """One run, predicted under the rules of DFModel."""

    run: Run
    samples_per_s: float
    utilisation: float
    """Forward and backward work, without recomputation, over the peak."""

    @property
    def over_measured(self) -> float:
        """Samples each second over those that were measured [1]."""
        return self.samples_per_s / self.run.measured_samples_per_s

    @property
    def over_peer(self) -> float:
        """Samples each second over those of the public log [1]."""
        return self.samples_per_s / self.run.peer_samples_per_s


def predicted(run: Run) -> Prediction:
    """Return one kernel after the other on each chip, micro-batches of one sequence."""
    head_dim = run.hidden // run.heads
    graph = gpt_training_layer(run.hidden, run.heads, head_dim, LENGTH, repeats=run.layers)
    target = target_named("A100")
    asked = FusionQuestion(graph, target, TP, run.pp, rules=DFMODEL, runs_by_kernel=True)
    problem = problem_of(asked, TILE)
    link = target.link_bytes_per_s or 0.0
    inner = NetworkDim(DimKind.SWITCH, TP, link)
    ring = NetworkDim(DimKind.RING, TP, link)
    scale = all_reduce_s(1.0, inner) / all_reduce_s(1.0, ring)
    found = fuse(
        replace(
            problem, network_s=problem.network_s * scale, send_s=0.0, micro_batches=(1,),
            grid=replace(problem.grid, sram_bytes=np.inf),
        )
    )  # fmt: skip
    bubble = 1.0 + (run.pp - 1) / (run.batch / run.dp)
    stage_s = found.time_s * bubble * run.layers / run.pp
    rate = run.dp / stage_s
    return Prediction(run, rate, rate * graph.flops / (run.chips * PEAK))
