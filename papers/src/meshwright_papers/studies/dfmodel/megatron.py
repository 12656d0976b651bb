"""Five models of Megatron-LM on A100: what the rules of DFModel predict, and measured rates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.dataflow.dfmodel_rules import DimKind, NetworkDim, all_reduce_s
from meshwright.dataflow.fusion.answer import FusionQuestion
from meshwright.dataflow.fusion.fuse import problem_of, target_named
from meshwright.dataflow.fusion.search import fuse
from meshwright.graph.kernels.workloads import gpt_training_layer

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
    """Of one chip, with recomputation."""
    peer_samples_per_s: float
    """What the public log of DFModel predicts."""

    @property
    def dp(self) -> int:
        """Replicas."""
        return self.chips // (TP * self.pp)

    @property
    def executed_flops(self) -> float:
        """Of one sample with full recomputation, as the publication counts it [FLOP]."""
        h, s, layers = self.hidden, LENGTH, self.layers
        share = 1 + s / (6 * h) + VOCABULARY / (16 * layers * h)
        return 96 * s * layers * h**2 * share

    @property
    def measured_samples_per_s(self) -> float:
        """From the rate that was measured."""
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
    target = target_named("A100", "dfmodel")
    asked = FusionQuestion(graph, target, TP, run.pp, rules="dfmodel", runs_by_kernel=True)
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
