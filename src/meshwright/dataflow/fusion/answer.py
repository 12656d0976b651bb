"""The answer of fusion: question, partitions in the order of time, seconds by cause, and the proof.

Data are in SI units; seconds and bytes are those of one sequence and one chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from meshwright.base.arrays import gap_of
from meshwright.base.records import Brief, Rows, Shown, scalars
from meshwright.dataflow.fusion.problem import FusionProblem


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
    was_cut: bool = False
    """Whether an interrupt or a limit on time ended the search."""


@dataclass(frozen=True)
class PlacedKernel(Brief):
    """A kernel, and its cores."""

    name: str
    cores: int


@dataclass(frozen=True)
class FusedPartition(Brief):
    """Kernels that are on the chip together; seconds and bytes are those of one sequence."""

    DERIVED: ClassVar[Mapping[str, str]] = {"limit": "limit", "time_s": "time_s"}
    kernels: tuple[PlacedKernel, ...]
    compute_s: float
    dram_s: float
    network_s: float
    wait_s: float
    """Further rounds of its tiles in which one sequence alone waits for whole tensors."""
    fill_s: float
    setup_s: float
    """Time to read weights, and to read and write sums, spread over the micro-batch."""
    exposed_setup_s: float
    """Part of it in which the partition waits: the rest passes while the one before it runs."""
    exposed_launch_s: float
    """Exposed part of the launch, spread over the micro-batch."""
    sram_bytes: float
    held_bytes: float
    """SRAM held before weights are cut in parts: weights, and sums over all tiles."""
    moved_bytes: float
    """Traffic between DRAM and chip, weights apart."""
    weight_parts: int
    """Parts in which the weights of a kernel that is alone pass through the SRAM."""
    tile: int
    tiled: str
    """The dim that passes in tiles."""

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
            "wait_s": self.wait_s,
            "fill_s": self.fill_s,
            "exposed_setup_s": self.exposed_setup_s,
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
class PlacedPartition(Brief):
    """Kernels of a partition along a path through the mesh of cores, and the traffic of a pass."""

    order: tuple[str, ...]
    """Kernels in the order in which they take the cores of the path, row by row."""
    noc_s: float
    """Time of the busiest link between two cores [s]."""
    byte_hops: float
    """Bytes times the links that they cross."""
    exposed_s: float
    """Part of that time beyond the partition's own, which the price of the fusion lacks [s]."""


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

    problem: FusionProblem
    partitions: tuple[FusedPartition, ...]
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
    def far_bytes(self) -> float:
        """Weights of a chip in the memories behind its DRAM."""
        problem = self.problem
        beyond = self.micro_batch * self.held_bytes - problem.spare_dram_bytes
        return max(beyond, 0.0) * problem.dram_shares if problem.grid.outside else 0.0

    @property
    def gap(self) -> float:
        """Distance of the time from the bound, as a fraction of the bound; 0 is a proof."""
        return gap_of(self.time_s, self.bound_s)

    @property
    def parts_s(self) -> Mapping[str, float]:
        """Seconds by cause; they sum to the time."""
        each = [part.parts_s for part in self.partitions]
        found = {name: sum(parts[name] for parts in each) for name in each[0]}
        steady_s = self.problem.whole_s(sum(found.values()), 1.0)
        found["exposed_send_s"] = steady_s - sum(found.values())
        return {**found, "ramp_s": self.time_s - steady_s}


@dataclass(frozen=True, kw_only=True)
class FusionCounts(SearchCounts):
    """Size of the search, over all tiles."""

    tiles_fused: int
    tiles_pruned: int
    """Tiles and divisions with a bound no better than the best."""
    tiles_refused: int


Objective = Literal["throughput", "latency"]


@dataclass(frozen=True)
class OtherObjective(Brief):
    """The best partitions of the same chips and splits under the objective that was not asked."""

    objective: Objective
    time_s: float
    """Time of one sequence under it [s]."""
    bound_s: float
    """Lower bound of that time [s]."""
    gap: float
    micro_batch: int
    partitions: tuple[FusedPartition, ...]


@dataclass(frozen=True, kw_only=True)
class FusionAnswer(Shown):
    """Kernels fused into partitions that run on one chip after the other."""

    graph: str
    chip: str
    rate_of: str
    """Type of the numbers for which the rate of products is stated."""
    fidelity: str = "closed_form"
    is_calibrated: bool = False
    kernel_by_kernel: bool
    tp: int
    """Chips over which kernels are split."""
    pp: int
    """Stages over which repetitions are spread."""
    tile: int
    """Length of a tile of the longest partition."""
    tiled: str
    """The dim that passes in its tiles."""
    tiled_dims: tuple[str, ...]
    """Dims with tiles that were tried."""
    pass_name: Literal["sequence", "pass"]
    """Word for one pass: a sequence of tokens, or all inputs of the graph."""
    num_kernels: int
    repeats: int
    """Repetitions of the graph on one chip."""
    micro_batch: int
    """Passes in flight: weights are read once for all of them."""
    objective: Objective
    """The goal of the search; under it are ``time_s``, its parts, the bound and the partitions."""
    num_passes: int | None
    """Passes of the stream; None: without end."""
    latency_s: float
    """Latency of one pass alone on the chips, in partitions and tiles of its own [s]."""
    weights_s: float
    """Part of the latency in which weights and sums pass between DRAM and chip [s]."""
    time_s: float
    """Time of one sequence in steady state [s]."""
    parts_s: Mapping[str, float]
    """Parts of the time; they sum to ``time_s`` [s]."""
    bound_s: float
    """Lower bound of the time of any partitions [s]."""
    gap: float
    """Largest possible distance from the optimum, over all candidates tried [1]."""
    sharding_gap: float
    """Largest possible distance from the best of all splits over ``tp`` [1]."""
    sequences_per_s: float
    """Throughput of the group of chips in steady state, with full pipelines [1/s]."""
    compute_share: float
    """FLOPs of the graph over the peak FLOPs of the chips in that time [1]."""
    num_cores: int
    """Cores of a chip."""
    sram_capacity_bytes: float
    resident_bytes: float
    """Weights and sums of all repetitions that stay in the SRAM of a chip."""
    far_bytes: float
    """Weights of a chip in the memories behind its DRAM."""
    dram_capacity_bytes: float
    """0: the chip has none, and tensors stay in its SRAM."""
    held_bytes: float
    """DRAM that tensors of one sequence take [bytes]."""
    splits: Mapping[str, str | None]
    """The dim over which each kernel is split."""
    counts: FusionCounts
    refused: tuple[str, ...]
    """Reasons why other tiles and divisions do not fit."""
    partitions: tuple[FusedPartition, ...]
    """Partitions in the order of time."""
    places: tuple[PlacedPartition, ...] = ()
    """Places of the kernels of each partition; empty where no links between cores are stated."""
    other: OtherObjective
    warnings: tuple[str, ...] = ()
    version: str = ""
    command: str = ""

    def rows(self) -> Rows:
        """Return the partitions in the order of time, for one sequence."""
        return [
            {"kernels": ", ".join(kernel.name for kernel in part.kernels), **scalars(part)}
            for part in self.partitions
        ]
