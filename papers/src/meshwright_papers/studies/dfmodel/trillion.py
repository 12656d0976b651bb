"""A model of 1T parameters trained on 1,024 chips: every degree, tile, micro-batch and network.

Under the rules of DFModel: the first dimension of a network carries tp, the second pp, the third
dp; a layer takes its partitions one after the other or its sends, whichever is more; the pipeline
fills and drains once a step; gradients are summed once a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import product

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusion.fuse import problem_of
from meshwright.dataflow.fusion.price import bound_s
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.fusion.question import FusionQuestion
from meshwright.dataflow.fusion.search import KnownLattices, fuse, orders_of
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.op import Phase
from meshwright_papers.studies.dfmodel.networks import DimKind, NetworkDim, network_price
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL, accelerator_named, target_named
from meshwright_papers.studies.dfmodel.rules import all_reduce_s, send_s
from meshwright_papers.studies.dfmodel.workloads import gpt_training_layer

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
POWERS = tuple(1 << power for power in range(11))
MICRO_BATCHES = tuple(1 << power for power in range(7))
UNLIMITED, UNLIMITED_BYTES, ROUNDING = 1 << 40, 1e30, 1e-12


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
        return tuple(NetworkDim(kind, size, rate) for kind, size in zip(kinds, sizes, strict=False))

    @property
    def num_micro_batches(self) -> float:
        """Micro-batches of one replica in a step."""
        return GLOBAL_BATCH / (self.micro_batch * self.dp)

    @property
    def weight(self) -> float:
        """Seconds per sample for each second of a layer: layers of a stage, pipeline, replicas."""
        layers = LAYERS / self.pp
        return layers * (1.0 + (self.pp - 1) / self.num_micro_batches) / self.dp

    def price(self, dram_bytes_per_s: float | None = None) -> float:
        """Return the price of memories and network, in units of the peer."""
        rate = dram_bytes_per_s or accelerator_named(CHIP).grid.dram_bytes_per_s
        return network_price(self.dims, rate)


@dataclass(frozen=True)
class Found:
    """The best of a space, and how it was covered."""

    case: Case
    samples_per_s: float
    utilisation: float
    num_cases: int
    num_fused: int
    """Layers with known partitions."""
    search_s: float
    """CPU time of one core [s]."""


@cache
def layer() -> DataflowGraph:
    """Return the training layer in 41 kernels."""
    return gpt_training_layer(HIDDEN, HEADS, HEAD_DIM, LENGTH, repeats=LAYERS)


def cases(network: str | None, *, by_kernel: bool) -> Iterator[Case]:
    """Yield all cases of a network, or of all."""
    for name in NETWORKS if network is None else (network,):
        for tp, pp, dp in _degrees(len(NETWORKS[name])):
            for tile, size in product(TILES, MICRO_BATCHES):
                if size * dp <= GLOBAL_BATCH:
                    yield Case(name, tp, pp, dp, tile, size, by_kernel)


def _degrees(num_dims: int) -> Iterator[tuple[int, int, int]]:
    """Yield the ways to divide the chips: no head is cut, dp has a separate dimension."""
    for tp, pp in product(POWERS, POWERS):
        dp = NUM_CHIPS // (tp * pp)
        fits = tp * pp * dp == NUM_CHIPS and tp <= HEADS and pp <= LAYERS
        if fits and (dp == 1 or num_dims == 3):
            yield tp, pp, dp


def search(
    network: str | None = None, *, by_kernel: bool = False,
    dram_bytes_per_s: float | None = None, for_price: bool = False,
) -> Found:  # fmt: skip
    """Return the best way to train the model, proven: the least bound is looked at next.

    A case is bounded without its network first, then by the layer with the network of tp alone;
    both can only be faster. The first case that comes up with its own price is the best.

    Parameters
    ----------
    network
        None: any.
    dram_bytes_per_s
        In place of that of the chip [B/s].
    for_price
        Whether the most samples for each unit of price are wanted, not for each second.
    """
    started = time.process_time()
    layers = _Layers(by_kernel=by_kernel, dram_bytes_per_s=dram_bytes_per_s)
    listed = list(cases(network, by_kernel=by_kernel))
    prices = [case.price(dram_bytes_per_s) if for_price else 1.0 for case in listed]
    weights = [case.weight * price for case, price in zip(listed, prices, strict=True)]
    waiting = [(weights[n] * layers.least_s(case), 0, n) for n, case in enumerate(listed)]
    heapify(waiting)
    while True:
        whole, level, number = heappop(waiting)
        case = listed[number]
        if level == len(LEVELS):
            break
        layer_s = LEVELS[level](layers, case)
        heappush(waiting, (weights[number] * layer_s, level + 1, number))
    peak = NUM_CHIPS * accelerator_named(CHIP).grid.flops_per_s
    rate = prices[number] / whole
    return Found(
        case=case,
        samples_per_s=rate,
        utilisation=layer().flops * rate / peak,
        num_cases=len(listed),
        num_fused=layers.num_fused,
        search_s=time.process_time() - started,
    )


class _Layers:
    """The layer on one chip; keeps the results that several cases share."""

    def __init__(self, *, by_kernel: bool, dram_bytes_per_s: float | None) -> None:
        self.by_kernel = by_kernel
        self.target = target_named(CHIP)
        if dram_bytes_per_s is not None:
            grid = self.target.grid.at_dram_rate(dram_bytes_per_s)
            self.target = replace(self.target, grid=grid)
        self.num_fused = 0
        self._lattices: KnownLattices = {}
        self._base: dict[tuple[int, int, int], FusionProblem] = {}
        self._least_s: dict[tuple[int, int], float] = {}
        self._fused_s: dict[tuple[object, ...], float] = {}
        self._is_gradient = np.array(
            [kernel.phase is Phase.WEIGHT_GRADIENT for kernel in layer().kernels]
        )

    def base(self, case: Case) -> FusionProblem:
        """Return the layer of a chip on a ring, repeated for the layers of a stage."""
        key = case.tp, case.pp, case.tile
        if key not in self._base:
            asked = FusionQuestion(
                layer(), self.target, case.tp, case.pp, rules=DFMODEL,
                runs_by_kernel=self.by_kernel,
            )  # fmt: skip
            self._base[key] = problem_of(asked, case.tile)
        return self._base[key]

    def least_s(self, case: Case) -> float:
        """Return the least time of a layer, without its network [s]."""
        key = case.tp, case.tile
        if key not in self._least_s:
            base = self.base(replace(case, pp=1))
            silent = replace(base, network_s=0.0 * base.network_s, micro_batches=(UNLIMITED,))
            self._least_s[key] = bound_s(silent)
        setup_s = self.base(replace(case, pp=1)).total_setup_s
        return self._least_s[key] + setup_s * (1.0 / case.micro_batch - 1.0 / UNLIMITED)

    def with_tp_s(self, case: Case) -> float:
        """Return the layer with the network of tp, without sums over replicas [s].

        With DRAM for any number of tensors, weights are all that a micro-batch changes.
        """
        base, inner_s = self.base(replace(case, pp=1)), all_reduce_s(1.0, case.dims[0])
        once = (case.tp, case.tile, inner_s)
        if once not in self._fused_s:
            free = replace(
                base,
                network_s=self._of_tp_s(case, base),
                micro_batches=(1,),
                spare_dram_bytes=UNLIMITED_BYTES,
            )
            self._fused_s[once] = self._fuse_s(free) - base.total_setup_s
        layer_s = self._fused_s[once] + base.total_setup_s / case.micro_batch
        return max(layer_s * (1.0 - ROUNDING), self._send_s(case))

    def price_s(self, case: Case) -> float:
        """Return the seconds of a layer of a case [s].

        Sums of gradients over replicas are spread over all sequences of a step.
        """
        base, dims = self.base(case), case.dims
        network_s = self._of_tp_s(case, base)
        if case.dp > 1:
            summed = np.array([all_reduce_s(float(size), dims[2]) for size in base.setup_bytes])
            network_s = (
                network_s + np.where(self._is_gradient, summed, 0.0) * case.dp / GLOBAL_BATCH
            )
        problem = replace(base, network_s=network_s, micro_batches=(case.micro_batch,))
        return max(self._fuse_s(problem), self._send_s(case))

    def _fuse_s(self, problem: FusionProblem) -> float:
        """Return the best time of a layer; infinite where nothing fits [s]."""
        self.num_fused += 1
        try:
            alone = replace(problem, send_s=0.0)
            return fuse(alone, orders_of(alone, self._lattices)).time_s
        except InfeasibleError:
            return np.inf

    def _of_tp_s(self, case: Case, base: FusionProblem) -> FloatArray:
        """Return the network of each kernel on the first dimension: that of a ring, scaled."""
        inner = case.dims[0]
        ring_s = all_reduce_s(1.0, replace(inner, kind=RING))
        found: FloatArray = base.network_s * (all_reduce_s(1.0, inner) / ring_s if ring_s else 0.0)
        return found

    def _send_s(self, case: Case) -> float:
        """Return the seconds in which a sequence moves to the next stage [s]."""
        return send_s(2.0 * LENGTH * HIDDEN, case.dims[1]) if case.pp > 1 else 0.0


LEVELS: tuple[Callable[[_Layers, Case], float], ...] = (_Layers.with_tp_s, _Layers.price_s)
"""Ever closer bounds of a layer; the last one is its price."""
