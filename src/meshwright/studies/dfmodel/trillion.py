"""A model of 1T parameters trained on 1,024 chips: every degree, tile, micro-batch and network.

Under the rules of DFModel: the first dimension of a network carries tp, the second pp, the third
dp; a layer takes its partitions one after the other or its sends, whichever is more; the pipeline
fills and drains once a step; gradients are summed once a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.baselines.dfmodel.accelerators import accelerator_named
from meshwright.baselines.dfmodel.networks import (
    DimKind,
    NetworkDim,
    all_reduce_s,
    network_price,
    send_s,
)
from meshwright.graph.dataflow.gpt import gpt_training_layer
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.op import Phase
from meshwright.onchip.fusion.bound import bound_s
from meshwright.onchip.fusion.choosing import Candidate, best_of
from meshwright.onchip.fusion.problem import FusionProblem
from meshwright.planner.dataflow.fusing import problem_of, target_named
from meshwright.plans.fusion import FusionQuestion

CHIP, NUM_CHIPS, GLOBAL_BATCH = "SN30", 1024, 8192
HIDDEN, HEADS, HEAD_DIM, LENGTH, LAYERS = 24576, 128, 192, 2048, 128
RING, FULL, SWITCH = DimKind.RING, DimKind.FULL, DimKind.SWITCH
NETWORKS: dict[str, tuple[DimKind, ...]] = {
    "2D torus": (RING, RING),
    "3D torus": (RING, RING, RING),
    "DGX-1": (RING, SWITCH),
    "DGX-2": (SWITCH, SWITCH),
    "dragonfly": (FULL, FULL),
    "ZionEX": (RING, FULL),
}
TILES = (32, 64, 128, 256, 512, 1024, 2048)
DEGREES = tuple(1 << power for power in range(11))
MICRO_BATCHES = tuple(1 << power for power in range(7))


@dataclass(frozen=True)
class Case:
    """One way to train the model."""

    network: str
    tp: int
    pp: int
    dp: int
    tile: int
    micro_batch: int
    runs_by_kernel: bool

    @property
    def dims(self) -> tuple[NetworkDim, ...]:
        """The network with its sizes."""
        rate = accelerator_named(CHIP).link_bytes_per_s or 0.0
        kinds, sizes = NETWORKS[self.network], (self.tp, self.pp, self.dp)
        return tuple(
            NetworkDim(kind, size, rate) for kind, size in zip(kinds, sizes, strict=False)
        )

    @property
    def num_micro_batches(self) -> float:
        """Of one replica in a step."""
        return GLOBAL_BATCH / (self.micro_batch * self.dp)

    @property
    def weight(self) -> float:
        """Seconds of a sample for each second of a layer: layers of a stage, pipeline, replicas."""
        layers = LAYERS / self.pp
        return layers * (1.0 + (self.pp - 1) / self.num_micro_batches) / self.dp

    @property
    def price(self) -> float:
        """Of memories and network, in units of the peer."""
        return network_price(self.dims, accelerator_named(CHIP).grid.dram_bytes_per_s)


@dataclass(frozen=True)
class Found:
    """The best of a space, and how it was covered."""

    case: Case
    samples_per_s: float
    utilisation: float
    gap: float
    num_cases: int
    num_fused: int
    num_pruned: int
    search_s: float
    """CPU time of one core [s]."""


@cache
def layer() -> DataflowGraph:
    """Return the training layer in 41 kernels."""
    return gpt_training_layer(HIDDEN, HEADS, HEAD_DIM, LENGTH, repeats=LAYERS)


def cases(network: str | None, *, by_kernel: bool) -> Iterator[Case]:
    """Yield all cases of a network, or of all."""
    for name, kinds in NETWORKS.items():
        if network not in (None, name):
            continue
        for tp in DEGREES:
            for pp in DEGREES:
                dp = NUM_CHIPS // (tp * pp)
                if tp * pp * dp != NUM_CHIPS or pp > LAYERS or (dp > 1 and len(kinds) < 3):
                    continue
                for tile in TILES:
                    for size in MICRO_BATCHES:
                        if size * dp <= GLOBAL_BATCH:
                            yield Case(name, tp, pp, dp, tile, size, by_kernel)


def search(network: str | None = None, *, by_kernel: bool = False) -> Found:
    """Return the best way to train the model, proven."""
    started = time.process_time()
    layers = _Layers(by_kernel=by_kernel)
    listed = [case for case in cases(network, by_kernel=by_kernel) if layers.splits(case)]
    choice = best_of(
        Candidate(layers.problem(case), case.weight, layers.least_s(case)) for case in listed
    )
    rate = 1.0 / choice.weighted_s
    peak = NUM_CHIPS * accelerator_named(CHIP).grid.flops_per_s
    return Found(
        case=listed[choice.number],
        samples_per_s=rate,
        utilisation=layer().flops * rate / peak,
        gap=choice.weighted_s / choice.bound_s - 1.0,
        num_cases=len(listed),
        num_fused=choice.num_fused,
        num_pruned=choice.num_pruned,
        search_s=time.process_time() - started,
    )


class _Layers:
    """The layer on one chip for each tp and tile; networks and micro-batches change little of it."""

    def __init__(self, *, by_kernel: bool) -> None:
        self.by_kernel = by_kernel
        self.target = target_named(CHIP, "dfmodel")
        self._base: dict[tuple[int, int], FusionProblem] = {}
        self._least_s: dict[tuple[int, int], float] = {}
        self._is_gradient = np.array(
            [kernel.phase is Phase.WEIGHT_GRADIENT for kernel in layer().kernels]
        )

    def splits(self, case: Case) -> bool:
        """Tell whether the heads can be split so."""
        return case.tp <= HEADS

    def base(self, case: Case) -> FusionProblem:
        """Return the layer of a chip on a ring of two links."""
        key = case.tp, case.tile
        if key not in self._base:
            asked = FusionQuestion(
                layer(), self.target, case.tp, rules="dfmodel", runs_by_kernel=self.by_kernel
            )
            self._base[key] = problem_of(asked, case.tile)
        return self._base[key]

    def problem(self, case: Case) -> FusionProblem:
        """Return the layer of a chip with the network and the micro-batch of a case."""
        base, dims = self.base(case), case.dims
        sent = 2.0 * LENGTH * HIDDEN
        return replace(
            base,
            network_s=self._network_s(case, base, dims),
            send_s=send_s(sent, dims[1]) if case.pp > 1 else 0.0,
            micro_batches=(case.micro_batch,),
        )

    def least_s(self, case: Case) -> float:
        """Return what a layer takes at least, from that of a base without network [s]."""
        key = case.tp, case.tile
        base = self.base(case)
        if key not in self._least_s:
            silent = replace(base, network_s=0.0 * base.network_s, micro_batches=(1 << 40,))
            self._least_s[key] = bound_s(silent)
        return self._least_s[key] + base.total_setup_s / case.micro_batch * (1.0 - 1e-9)

    def _network_s(
        self, case: Case, base: FusionProblem, dims: tuple[NetworkDim, ...]
    ) -> FloatArray:
        """Return the network of each kernel: that of a ring, scaled to the kind of dimension.

        Sums of gradients over replicas are spread over the micro-batches and their sequences.
        """
        inner = all_reduce_s(1.0, dims[0])
        ring = all_reduce_s(1.0, replace(dims[0], kind=RING))
        found = base.network_s * (inner / ring if ring else 0.0)
        if case.dp > 1:
            passes = self._sequences(case)
            summed = np.array([all_reduce_s(float(b), dims[2]) for b in base.setup_bytes])
            found = found + np.where(self._is_gradient, 0.0, summed) / passes
        return found

    def _sequences(self, case: Case) -> float:
        """Return the sequences of one replica in a step."""
        return GLOBAL_BATCH / case.dp
