"""The 29 runs with results in the public repository of DFModel, each beside ours.

Figures are those that its logs print (kosho2013/DFModel, commit d395b285). Where its inputs are
known, the run is priced here under its rules; where they are not, a reason stands for the figure.
Most of its runs were stopped by hand: its own optimum may be better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusion.fuse import problem_of
from meshwright.dataflow.fusion.question import FusionQuestion
from meshwright.dataflow.fusion.search import fuse
from meshwright.dataflow.question import load_graph
from meshwright.dataflow.search import calibrated_system, plan_dataflow
from meshwright.graph.op import Phase
from meshwright_papers.studies.dfmodel.networks import DimKind, NetworkDim, network_price
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL, accelerator_named, target_named
from meshwright_papers.studies.dfmodel.published_runs import RUNS, best_fused, predicted, vendor
from meshwright_papers.studies.dfmodel.rules import all_reduce_s, send_s
from meshwright_papers.studies.dfmodel.trillion import NETWORKS
from meshwright_papers.studies.dfmodel.workloads import gpt_training_layer

LENGTH = 2048
TILES = (128, 256, 512, 1024, 2048)
NO_SIZES = "its sizes are not in its log"
HEAD_DIM = 256
SIZES = (
    "hidden size and layers follow from utilisation and samples/s as printed; heads of 256 and the "
    "batch are assumed"
)


@dataclass(frozen=True)
class StoredRun:
    """A run, the figures in its log, and ours."""

    name: str
    unit: str
    """Unit of both figures: samples/s, ms."""
    peer: float | None
    """Figure of the peer; None where its solver found nothing."""
    peer_price: float | None = None
    """Price of memory and network, in units of the peer."""
    ours: Callable[[], float] | None = None
    price: float | None = None
    rules: str = "its"
    """Owner of the rules that priced ours."""
    note: str = ""


@dataclass(frozen=True)
class Training:
    """A GPT that is trained on chips of the peer with everything but the tile given."""

    chip: str
    hidden: int
    heads: int
    head_dim: int
    layers: int
    dims: tuple[NetworkDim, ...]
    """Dims of the network, tp first, then pp and dp."""
    batch: int
    micro_batch: int
    dram_bytes_per_s: float | None = None
    """Bandwidth of the memory in place of that of the chip [B/s]."""
    runs_by_kernel: bool = False
    is_limited: bool = True
    """Whether DRAM has to hold the tensors of a sequence beside the weights."""

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Degrees of tp, pp and dp: the sizes of the dimensions."""
        sizes = [*(dim.size for dim in self.dims), 1, 1]
        return sizes[0], sizes[1], sizes[2]

    def samples_per_s(self) -> float:
        """Return the samples per second under the peer's rules, by the best tile; 0: none fits."""
        _, pp, dp = self.degrees
        micro_batches = self.batch / (self.micro_batch * dp)
        bubble = 1.0 + (pp - 1) / micro_batches
        sent_s = send_s(2.0 * LENGTH * self.hidden, self.dims[1]) if pp > 1 else 0.0
        layer_s = max(min(map(self._layer_s, TILES)), sent_s)
        return dp / (layer_s * bubble * self.layers / pp)

    def _layer_s(self, tile: int) -> float:
        """Return the seconds of a layer and sequence; infinite where nothing fits."""
        graph = gpt_training_layer(
            self.hidden, self.heads, self.head_dim, LENGTH, repeats=self.layers
        )
        target = target_named(self.chip, self.dims[0].bandwidth_bytes_per_s)
        if self.dram_bytes_per_s is not None:
            grid = target.grid.at_dram_rate(self.dram_bytes_per_s)
            target = replace(target, grid=grid)
        tp, pp, dp = self.degrees
        asked = FusionQuestion(
            graph, target, tp, pp, rules=DFMODEL, runs_by_kernel=self.runs_by_kernel
        )
        problem = problem_of(asked, tile)
        network_s = problem.network_s
        if tp > 1:
            inner = self.dims[0]
            ring = replace(inner, kind=DimKind.RING)
            network_s = network_s * (all_reduce_s(1.0, inner) / all_reduce_s(1.0, ring))
        if dp > 1:
            is_gradient = [kernel.phase is Phase.WEIGHT_GRADIENT for kernel in graph.kernels]
            summed = [all_reduce_s(float(size), self.dims[2]) for size in problem.setup_bytes]
            network_s = network_s + np.where(is_gradient, summed, 0.0) * dp / self.batch
        sram = np.inf if self.runs_by_kernel else problem.grid.sram_bytes
        try:
            return fuse(
                replace(
                    problem, network_s=network_s, send_s=0.0, micro_batches=(self.micro_batch,),
                    spare_dram_bytes=problem.spare_dram_bytes if self.is_limited else np.inf,
                    grid=replace(problem.grid, sram_bytes=sram),
                )
            ).time_s  # fmt: skip
        except InfeasibleError:
            return np.inf

    @property
    def price(self) -> float:
        """Price of memory and network, in units of the peer."""
        rate = self.dram_bytes_per_s or accelerator_named(self.chip).grid.dram_bytes_per_s
        return network_price(self.dims, rate)


TOPOLOGIES = {
    "2D torus": ((10, 64), 18.177, 280_800.0),
    "3D torus": ((10, 8, 8), 18.854, 492_800.0),
    "DGX-1": ((10, 64), 18.177, 652_800.0),
    "DGX-2": ((10, 64), 18.177, 960_000.0),
    "dragonfly": ((10, 64), 20.035, 3_075_200.0),
    "ZionEX": ((10, 64), 17.008, 2_896_000.0),
}
"""Sizes of the dimensions, samples/s and price.

Inputs that the logs do not name follow from the numbers that they print. Links of 25 GB/s and these
prices leave 200 GB/s of DRAM a chip, the same for all six. Utilisation, peak and samples/s make
1.2535e16 FLOP a sample: 128 layers of hidden 25,600. Those of the sweeps make 1.1558e16: hidden
24,576.
"""
BATCH = 8192
"""Global batch of the models of 1T parameters [sequences]; not in their logs."""


def _topologies() -> Iterator[StoredRun]:
    for name, (sizes, rate, price) in TOPOLOGIES.items():
        dims = tuple(
            NetworkDim(kind, size, 25e9) for kind, size in zip(NETWORKS[name], sizes, strict=True)
        )
        ours = Training("SN30", 25600, 160, 160, 128, dims, BATCH, 4, dram_bytes_per_s=200e9)
        yield StoredRun(
            f"1T on 640 chips, {name}", "samples/s", rate, price, ours.samples_per_s, ours.price
        )


@dataclass(frozen=True)
class LargeRun:
    """A model of 11T or 128T parameters on 3,840 chips."""

    name: str
    hidden: int
    layers: int
    micro_batch: int
    on_gpu: bool
    peer: float | None
    note: str = ""
    is_limited: bool = True
    fits: bool = True

    @property
    def made(self) -> Training:
        """Its training."""
        chip, inner = ("H100", 900e9) if self.on_gpu else ("SN30", 50e9)
        dims = tuple(map(NetworkDim, NETWORKS["3D torus"], (10, 64, 6), (inner, 50e9, 50e9)))
        return Training(
            chip, self.hidden, self.hidden // HEAD_DIM, HEAD_DIM, self.layers, dims, BATCH,
            self.micro_batch, 3000e9, self.on_gpu, self.is_limited,
        )  # fmt: skip


LARGE = (
    LargeRun("11T on 3840 GPU", 60416, 256, 1, True, 10.9705,
             "without the limit of DRAM: weights and tensors of 4 layers fill over 103 GB here",
             is_limited=False),
    LargeRun("11T on 3840 RDU", 60416, 256, 1, False, None,
             "its log ends without a solution, gap 22.7 %"),
    LargeRun("128T on 3840 RDU", 148480, 480, 8, False, 1.21895),
    LargeRun("128T on 3840 GPU", 148480, 480, 1, True, None,
             "its solver says infeasible, and nothing fits here", fits=False),
)  # fmt: skip
"""Utilisation x chips x peak / samples each second is the work of a sample, to five figures; of all
numbers of layers that 16 divides and hidden sizes that 256 divides one pair each has it."""


def _sweeps() -> Iterator[StoredRun]:
    torus = NETWORKS["3D torus"]
    for name, chip, rates, by_kernel, peer, price in (
        ("GPU", "H100", (900e9, 50e9, 50e9), True, 91.345, 37_468_800.0),
        ("RDU", "SN30", (50e9, 50e9, 50e9), False, 101.579, 15_273_600.0),
    ):
        dims = tuple(map(NetworkDim, torus, (10, 64, 6), rates))
        ours = Training(
            chip, 24576, 128, 192, 128, dims, BATCH, 1, dram_bytes_per_s=3000e9,
            runs_by_kernel=by_kernel,
        )  # fmt: skip
        yield StoredRun(
            f"1T on 3840 {name}", "samples/s", peer, price, ours.samples_per_s, ours.price,
            note="stopped by hand; its batch is not in its log",
        )  # fmt: skip
    for run in LARGE:
        yield StoredRun(
            run.name, "samples/s", run.peer, ours=run.made.samples_per_s if run.fits else None,
            price=run.made.price, note=f"{run.note}; {SIZES}" if run.note else SIZES,
        )  # fmt: skip
    ours = Training("A100", 1600, 25, 64, 48, (NetworkDim(DimKind.FULL, 4, 600e9),), BATCH, 1,
                    runs_by_kernel=True)  # fmt: skip
    yield StoredRun(
        "1.5B on 4 A100", "samples/s", None, ours=ours.samples_per_s, price=ours.price,
        note="its solver says infeasible; here memory is that of weights and tensors, tile by tile",
    )  # fmt: skip


def _wafer() -> float:
    """Return samples each second of GPT-3 13B on one WSE-2: 40 layers of 40 heads of 128."""
    one = NetworkDim(DimKind.RING, 1, 1.0)
    made = Training("WSE-2", 5120, 40, 128, 40, (one,), 1, 1)
    return max(replace(made, micro_batch=size, batch=size).samples_per_s() for size in (1, 8, 64))


@dataclass(frozen=True)
class Factorisation:
    """Linpack on a grid of chips under the peer's rules: links or arithmetic, whichever is more.

    In each iteration a panel is sent on along a row of the grid, columns - 1 times, and the rows
    that change places along a column, rows - 1 times. A chip updates its part of the rest,
    panel included, and its part of the panel, both as products.
    """

    size: int
    rows: int
    columns: int
    link_bytes_per_s: float

    @property
    def time_s(self) -> float:
        """Time of all iterations [s]."""
        return max(self.sent_bytes / self.link_bytes_per_s, self.flops / HPL_FLOPS_PER_S)

    @property
    def sides(self) -> list[int]:
        """Sides of the matrix left before each iteration."""
        return list(range(self.size, 0, -HPL_BLOCK))

    @property
    def sent_bytes(self) -> float:
        """Bytes sent by a chip, one link at a time."""
        hops = (self.columns - 1) / self.rows + (self.rows - 1) / self.columns
        return hops * sum(HPL_WORD_BYTES * HPL_BLOCK * side for side in self.sides)

    @property
    def flops(self) -> float:
        """Work of a chip [FLOP]."""
        work = sum(2.0 * HPL_BLOCK * side * (side + HPL_BLOCK) for side in self.sides)
        return work / (self.rows * self.columns)

    @property
    def price(self) -> float:
        """Price of a torus of such links and memories of 3 TB/s, in units of the peer."""
        dims = [
            NetworkDim(DimKind.RING, n, self.link_bytes_per_s) for n in (self.rows, self.columns)
        ]
        return network_price(dims, 3000e9)


HPL_BLOCK, HPL_WORD_BYTES, HPL_FLOPS_PER_S = 1024, 2.0, 496_607.2e9 / 20
"""Inputs of Linpack, as derived from the printed logs.

The two runs on 8 chips take 0.14 ns for each n (n + 1024): iterations of 1,024 columns, words of 2
bytes and 7 hops on a ring of 50 GB/s. The rest then follows: 4 x 4 chips by the price (links of 2
dimensions, 3 TB/s of memory), 17.11 ms at 25 GB/s. The rate of a chip is that of the work in the
time of the one run that is not bound by its links, 24.83 TFLOP/s: that run is no check.
"""
INFERRED = "block, words and links follow from this run and that of the other size"
NO_BATCH = (
    "tp8 pp16 dp4 is the one order of its dimensions that fits; a layer and sequence takes 15.3 ms "
    "before the pipeline fills, and how many sequences fill it is not in its log"
)
OF_ITSELF = "the rate of a chip follows from the utilisation of this very run: no check"
TORUS = "4 x 4 follows from its price, block and words from the runs on 8 chips"


def _dlrm_a() -> float:
    """Return the milliseconds of a training step on 128 A100, under our own rules."""
    graph = load_graph("dlrm-a", training=True)
    system = calibrated_system("128xA100")
    found = plan_dataflow(graph, system, optimizer="rowwise-adagrad", allowed={"tp": (128,)})
    return 1e3 * found.best.step_s


def stored_runs() -> Iterator[StoredRun]:
    """Yield all 29."""
    for run in RUNS:
        yield StoredRun(
            f"{run.name} on {run.chips} A100", "samples/s", run.peer_samples_per_s,
            ours=lambda run=run: predicted(run).samples_per_s,  # type: ignore[misc]
        )  # fmt: skip
    yield StoredRun(
        "GPT-3 forward on 8 SN10, own mapping", "samples/s", 2.84482,
        ours=lambda: best_fused().samples_per_s,
    )  # fmt: skip
    yield StoredRun(
        "the same, the vendor's mapping", "samples/s", 1.69441,
        ours=lambda: vendor(32).samples_per_s,
    )  # fmt: skip
    yield StoredRun(
        "GPT-3 on 8x16x4 TPUv4, a layer", "ms", 25.84290566, 768_000.0,
        note=NO_BATCH,
    )  # fmt: skip
    yield StoredRun(
        "13B on one WSE-2", "samples/s", 4.65281, ours=_wafer,
        note="work of a sample in its log is 0.69 of that of 40 layers of hidden 5,120",
    )  # fmt: skip
    yield from _topologies()
    yield from _sweeps()
    yield StoredRun(
        "DLRM-A on 128 A100", "ms", 38.20356782, 979_040.0, _dlrm_a, rules="ours",
        note="with latency, all-reduces of dense gradients and the update",
    )  # fmt: skip
    yield StoredRun(
        "DLRM-F on 128 A100", "ms", 23.6624518, 831_200.0,
        note="12T parameters of 2 bytes do not fit 128 x 80 GB",
    )  # fmt: skip
    yield StoredRun("DLRM-I on 128 A100", "ms", 55.41682092, 979_040.0, note=NO_SIZES)
    for size, rows, columns, link, peer, price in (
        (16384, 1, 8, 50e9, 39.92977408, None),
        (6144, 1, 8, 50e9, 6.16562688, None),
        (16384, 4, 4, 100e9, 8.91253241, 92_800.0),
        (16384, 4, 4, 25e9, 17.11276032, 59_200.0),
    ):
        made = Factorisation(size, rows, columns, link)
        yield StoredRun(
            f"HPL {size} on {rows * columns} chips, {link / 1e9:.0f} GB/s", "ms", peer, price,
            lambda made=made: 1e3 * made.time_s, made.price if price else None,  # type: ignore[misc]
            note=INFERRED if price is None else OF_ITSELF if link == 100e9 else TORUS,
        )  # fmt: skip
