"""The answer of fusion: question, partitions in the order of time, seconds by cause, and the proof.

Data are in SI units; seconds and bytes are those of one sequence and one chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from meshwright.base.records import Brief, Rows, Shown, scalars
from meshwright.dataflow.fusion.cores import CoreGrid, passing_dims
from meshwright.dataflow.fusion.problem import OWN, FusionProblem, Rules
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import single_dims
from meshwright.spec.system import DType
from meshwright.view.notebook import figure

if TYPE_CHECKING:
    from meshwright.view.notebook import AltairChart
    from meshwright.view.parts import Page


@dataclass(frozen=True)
class FusionChoice(Brief):
    """The best candidate, and the outcome of all others."""

    number: int
    """Index among the candidates, in their order."""
    fusion: Fusion
    weighted_s: float
    bound_s: float
    """Lower bound of all candidates; equal to ``weighted_s`` where no graph was too wide."""
    num_fused: int
    num_pruned: int
    """Candidates with a bound no better than the best."""
    refused: tuple[str, ...]
    """Reasons why other candidates do not fit."""


@dataclass(frozen=True)
class Partition(Brief):
    """Kernels that are on the chip together; seconds and bytes are those of one sequence."""

    kernels: tuple[str, ...]
    cores: tuple[int, ...]
    """Cores of each kernel."""
    compute_s: float
    dram_s: float
    network_s: float
    fill_s: float
    setup_s: float
    """Time to read weights, and to read and write sums, spread over the micro-batch."""
    exposed_launch_s: float
    """Exposed part of the launch, spread over the micro-batch."""
    sram_bytes: float
    held_bytes: float
    """SRAM held before weights are cut in parts: weights, and sums over all tiles."""
    moved_bytes: float
    """Traffic between DRAM and chip, weights apart."""
    weight_parts: int
    """Parts in which the weights of a kernel that is alone pass through the SRAM."""

    @property
    def busy_s(self) -> float:
        """Time of the slowest of computation, DRAM and network."""
        return max(self.compute_s, self.dram_s, self.network_s)

    @property
    def time_s(self) -> float:
        """Time of the partition, all parts summed."""
        return sum(self.parts_s.values())

    @property
    def parts_s(self) -> Mapping[str, float]:
        """Seconds by cause."""
        return {
            "compute_s": self.compute_s,
            "exposed_dram_s": max(self.dram_s - self.compute_s, 0.0),
            "exposed_network_s": self.busy_s - max(self.dram_s, self.compute_s),
            "fill_s": self.fill_s,
            "setup_s": self.setup_s,
            "exposed_launch_s": self.exposed_launch_s,
        }

    @property
    def limit(self) -> str:
        """Part of the time that limits the partition."""
        if self.exposed_launch_s > 0.0:
            return "launch"
        seconds = {"compute": self.compute_s, "dram": self.dram_s, "network": self.network_s}
        return max(seconds, key=lambda name: seconds[name])


@dataclass(frozen=True)
class SearchCounts(Brief):
    """Size of the search."""

    num_ideals: int
    num_steps: int
    num_sets: int
    """Number of different partitions that were priced."""
    num_pairs: int
    """Pairs (seconds, bytes) kept on the way."""
    num_kept: int | None = None
    """Kernels of a wide graph with all their orders searched, for its bound; None: the orders of
    all kernels were."""


@dataclass(frozen=True)
class Fusion(Brief):
    """The best partitions of a problem."""

    fidelity: ClassVar[str] = "closed_form"

    problem: FusionProblem
    partitions: tuple[Partition, ...]
    micro_batch: int
    """Sequences that pass through one partition before the next one is loaded."""
    held_bytes: float
    """DRAM that tensors of one sequence take [bytes]."""
    time_s: float
    """Time of one sequence in steady state [s]."""
    bound_s: float
    """Lower bound of the time of any partitions."""
    counts: SearchCounts

    @property
    def gap(self) -> float:
        """Distance of the time from the bound, as a fraction of the bound; 0 is a proof."""
        return self.time_s / self.bound_s - 1.0 if self.bound_s > 0 else 0.0

    @property
    def parts_s(self) -> Mapping[str, float]:
        """Seconds by cause; they sum to the time."""
        each = [part.parts_s for part in self.partitions]
        found = {name: sum(parts[name] for parts in each) for name in each[0]}
        return {**found, "exposed_send_s": max(self.problem.send_s - sum(found.values()), 0.0)}


@dataclass(frozen=True)
class Target(Brief):
    """A chip, and one direction of the links between such chips."""

    name: str
    grid: CoreGrid
    link_bytes_per_s: float | None = None
    dtype: DType = "bf16"
    """Type of the numbers for which the rate of products is stated."""


@dataclass(frozen=True)
class FusionQuestion(Brief):
    """Graph, chips and limits of a fusion."""

    graph: DataflowGraph
    target: Target
    tp: int = 1
    """Chips over which kernels are split."""
    pp: int = 1
    """Stages over which repetitions are spread."""
    tile: int | None = None
    """Length of a tile; None: the best power of two."""
    micro_batch: int | None = None
    """Sequences of a micro-batch; None: the best."""
    rules: Rules = OWN
    runs_by_kernel: bool = False

    @property
    def repeats(self) -> int:
        """Repetitions of the graph on one chip."""
        return -(-self.graph.repeats // self.pp)


@dataclass(frozen=True)
class FusionAnswer(Shown):
    """The best partitions of a question."""

    question: FusionQuestion
    tile: int
    splits: Mapping[str, str | None]
    """The dim over which each kernel is split."""
    sharding_gap: float
    choice: FusionChoice
    tiled_dims: tuple[str, ...] = ()
    """Dims with tiles that were tried."""
    version: str = ""
    command: str = ""

    def page(self) -> Page:
        """Return the report as data."""
        from meshwright.dataflow.fusion.page import fusion_page

        return fusion_page(self)

    def brief(self) -> str:
        """Return the lead of the screen."""
        from meshwright.dataflow.fusion.report import fusion_screen

        return fusion_screen(self).lead

    def rows(self) -> Rows:
        """Return the partitions in the order of time, for one sequence."""
        return [
            {"kernels": ", ".join(part.kernels), "limit": part.limit, "time_s": part.time_s,
             **scalars(part)}
            for part in self.choice.fusion.partitions
        ]  # fmt: skip

    def plot_time(self) -> AltairChart:
        """Draw the seconds of one sequence by cause: compute, DRAM and network that show."""
        from meshwright.dataflow.fusion.page import time_of

        return figure(time_of(self))

    def plot_partitions(self) -> AltairChart:
        """Draw the time of each partition by cause, for one sequence [s]."""
        from meshwright.dataflow.fusion.page import partitions_of

        return figure(partitions_of(self))

    def plot_memory(self) -> AltairChart:
        """Draw the SRAM of each partition, against the capacity [MiB]."""
        from meshwright.dataflow.fusion.page import sram_of

        return figure(sram_of(self))

    def plot_moved(self) -> AltairChart:
        """Draw the bytes between chip and DRAM of each partition [MiB]."""
        from meshwright.dataflow.fusion.page import moved_of

        return figure(moved_of(self))

    @property
    def gap(self) -> float:
        """Largest possible distance from the optimum, over all candidates tried [1]."""
        return self.choice.weighted_s / self.choice.bound_s - 1.0

    @property
    def sequences_per_s(self) -> float:
        """Throughput of the group of chips in steady state, with full pipelines [1/s]."""
        return 1.0 / (self.choice.fusion.time_s * self.question.repeats)

    @property
    def latency_s(self) -> float:
        """Latency of one pass alone on the chips, all weights read for it [s].

        graph repeats x sum over partitions max(rounds x busy + fill + setup, launch)
        + (pp - 1) x send

        Partitions are those of the best throughput. A kernel that needs all tiles of another kernel
        waits for them: one more round of its partition, at its pace. Three partitions of 2, 3 and 4
        us that fill for 1 us and load weights for 5 us each, one round in each, take 3 x 6 + 9 = 27
        us once; launched every 9 us 9 + 9 + 10 = 28 us.
        """
        asked, fusion = self.question, self.choice.fusion
        once = sum(
            max(
                self._rounds(part) * part.busy_s
                + fusion.micro_batch * (part.fill_s + part.setup_s),
                fusion.problem.grid.launch_s,
            )
            for part in fusion.partitions
        )
        return asked.graph.repeats * once + (asked.pp - 1) * fusion.problem.send_s

    def _rounds(self, part: Partition) -> int:
        """Return the number of times that the tiles of one pass run through a partition."""
        graph, waits = self.question.graph, dict[str, int]()
        passing = passing_dims(graph, self.choice.fusion.problem.num_tiles).keys()
        makers = {kernel.name: kernel for kernel in graph.kernels if kernel.name in part.kernels}
        for name, kernel in makers.items():
            waits[name] = max(
                (
                    waits[read.source]
                    + (not passing.isdisjoint(single_dims(makers[read.source].dims))
                       and passing.isdisjoint(single_dims(read.dims)))
                    for read in kernel.inputs
                    if read.source in makers
                ),
                default=0,
            )  # fmt: skip
        return 1 + max(waits.values())

    @property
    def weights_s(self) -> float:
        """Seconds of :attr:`latency_s` in which weights and sums pass between DRAM and chip [s]."""
        fusion = self.choice.fusion
        setup = sum(part.setup_s for part in fusion.partitions)
        return self.question.graph.repeats * fusion.micro_batch * setup

    @property
    def compute_share(self) -> float:
        """FLOPs of the graph over the peak FLOPs of the chips in that time [1]."""
        asked = self.question
        chips = asked.tp * asked.pp
        return asked.graph.flops * self.sequences_per_s / (chips * asked.target.grid.flops_per_s)


@dataclass(frozen=True, kw_only=True)
class FusionCounts(SearchCounts):
    """Size of the search, over all tiles."""

    tiles_fused: int
    tiles_pruned: int
    tiles_refused: int


class PlacedKernelRecord(TypedDict):
    """A kernel, and its cores."""

    name: str
    cores: int


class PartitionRecord(TypedDict):
    """Kernels that are on the chip together; seconds and bytes are those of one sequence."""

    limit: str
    """Part of the time that limits the partition."""
    time_s: float
    kernels: Sequence[PlacedKernelRecord]
    compute_s: float
    dram_s: float
    network_s: float
    fill_s: float
    setup_s: float
    """Time to read weights, and to read and write sums, spread over the micro-batch."""
    exposed_launch_s: float
    """Exposed part of the launch, spread over the micro-batch."""
    sram_bytes: float
    held_bytes: float
    """SRAM held before weights are cut in parts: weights, and sums over all tiles."""
    moved_bytes: float
    """Traffic between DRAM and chip, weights apart."""
    weight_parts: int
    """Parts in which the weights of a kernel that is alone pass through the SRAM."""


class FusionRecord(TypedDict):
    """Kernels fused into partitions that run on one chip after the other."""

    graph: str
    chip: str
    rate_of: str
    """Type of the numbers for which the rate of products is stated."""
    fidelity: str
    is_calibrated: bool
    kernel_by_kernel: bool
    tp: int
    pp: int
    tile: int
    tiled: str
    """The dim that passes in tiles."""
    repeats: int
    micro_batch: int
    """Passes in flight: weights are read once for all of them."""
    latency_s: float
    """Latency of one pass alone on the chips."""
    time_s: float
    """Time of one sequence in steady state."""
    parts_s: Mapping[str, float]
    """Parts of the time; they sum to ``time_s``."""
    bound_s: float
    """Lower bound of the time of any partitions."""
    gap: float
    sharding_gap: float
    sequences_per_s: float
    compute_share: float
    sram_capacity_bytes: float
    held_bytes: float
    splits: Mapping[str, str | None]
    """The dim over which each kernel is split."""
    counts: FusionCounts
    partitions: Sequence[PartitionRecord]


def fusion_record(answer: FusionAnswer) -> FusionRecord:
    """Return an answer as data."""
    asked, fusion = answer.question, answer.choice.fusion
    return {
        "graph": asked.graph.name,
        "chip": asked.target.name,
        "rate_of": asked.target.dtype,
        "fidelity": fusion.fidelity,
        "is_calibrated": False,
        "kernel_by_kernel": asked.runs_by_kernel,
        "tp": asked.tp,
        "pp": asked.pp,
        "tile": answer.tile,
        "tiled": asked.graph.tiled,
        "repeats": answer.question.repeats,
        "micro_batch": fusion.micro_batch,
        "latency_s": answer.latency_s,
        "time_s": fusion.time_s,
        "parts_s": fusion.parts_s,
        "bound_s": answer.choice.bound_s / asked.repeats,
        "gap": answer.gap,
        "sharding_gap": answer.sharding_gap,
        "sequences_per_s": answer.sequences_per_s,
        "compute_share": answer.compute_share,
        "sram_capacity_bytes": asked.target.grid.sram_bytes,
        "held_bytes": fusion.held_bytes,
        "splits": answer.splits,
        "counts": FusionCounts(
            **vars(fusion.counts),
            tiles_fused=answer.choice.num_fused,
            tiles_pruned=answer.choice.num_pruned,
            tiles_refused=len(answer.choice.refused),
        ),
        "partitions": [_partition_record(part) for part in fusion.partitions],
    }


def _partition_record(part: Partition) -> PartitionRecord:
    kernels = zip(part.kernels, part.cores, strict=True)
    return {
        "limit": part.limit,
        "time_s": part.time_s,
        "kernels": [{"name": name, "cores": cores} for name, cores in kernels],
        "compute_s": part.compute_s,
        "dram_s": part.dram_s,
        "network_s": part.network_s,
        "fill_s": part.fill_s,
        "setup_s": part.setup_s,
        "exposed_launch_s": part.exposed_launch_s,
        "sram_bytes": part.sram_bytes,
        "held_bytes": part.held_bytes,
        "moved_bytes": part.moved_bytes,
        "weight_parts": part.weight_parts,
    }
