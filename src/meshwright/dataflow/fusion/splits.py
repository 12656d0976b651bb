"""Splits of the kernels of a graph over a ring of chips, before they are fused on one.

Splits and partitions are chosen together. Cores take at least the work of all kernels, the links
all collectives, the DRAM the inputs and outputs of the graph. The three overlap, so the largest is
below the time of any partitions: a bound for all splits. The splits that are best at several means
of the three are fused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.fusion.cores import CoreGrid, tileable_dims
from meshwright.dataflow.fusion.problem import DeviceShare, least_work_s
from meshwright.dataflow.fusion.question import FusionQuestion
from meshwright.dataflow.layouts import KernelSplit, local_sizes, splits_of
from meshwright.dataflow.price import gradient_sums, volume_tables, weights_split
from meshwright.dataflow.sharding import (
    PairCosts,
    SplitTables,
    choose_for_largest,
)
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, num_elements
from meshwright.graph.op import Phase

LINKS = 2
"""Links of a chip in a ring: both are used at once."""


class ResourceWeights(NamedTuple):
    """Weights of a second of cores, of links and of DRAM."""

    cores: float
    links: float
    dram: float


LINKS_ONLY = ResourceWeights(0.0, 1.0, 0.0)
_FEW = 1e-6
"""Weight of the other resources, to decide between equals."""
RESOURCE_MEANS = (
    ResourceWeights(1.0 - 2.0 * _FEW, _FEW, _FEW),
    ResourceWeights(_FEW, 1.0 - 2.0 * _FEW, _FEW),
    ResourceWeights(_FEW, _FEW, 1.0 - 2.0 * _FEW),
    ResourceWeights(0.5, 0.5, 0.0),
    ResourceWeights(0.75, 0.25, 0.0),
    ResourceWeights(0.25, 0.75, 0.0),
    ResourceWeights(0.4, 0.3, 0.3),
)
"""Weighted means of the three: each is a bound, and its best splits are likely to be good."""


@dataclass(frozen=True)
class GraphSplit:
    """Splits of the kernels, and the network time of each one for a sequence."""

    dims: Mapping[str, str | None] = field(default_factory=dict)
    network_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SplitCandidates:
    """Splits to fuse, and a lower bound over all splits."""

    likely: tuple[GraphSplit, ...]
    ring: ChipRing | None = None
    """The chips that share the kernels; None where there is one split only."""
    least_s: float = 0.0
    """Lower bound of the time of cores and links for a sequence [s]."""
    gap: float = 0.0
    """Largest possible distance of the one split from the fewest bytes, as a fraction."""


@dataclass(frozen=True)
class ChipRing:
    """Chips that share the kernels of a graph."""

    graph: DataflowGraph
    grid: CoreGrid
    degree: int
    link_bytes_per_s: float

    def splits(self, kernel: Kernel, *, splits_weights: bool) -> tuple[KernelSplit, ...]:
        """Return the ways to split a kernel.

        Dims shorter than the group are not split; where that leaves none, every chip does all of
        it. Gradients of weights are no open sums: the number of passes after which they close is
        not known.

        Parameters
        ----------
        splits_weights
            Whether no chip may hold a whole weight.
        """
        found = weights_split(kernel) if kernel.weights and splits_weights else splits_of(kernel)
        if kernel.phase is Phase.WEIGHT_GRADIENT:
            found = tuple(split for split in found if not split.writes.is_partial)
        sizes = self.graph.sizes
        wide = tuple(s for s in found if s.dim is None or sizes[s.dim] >= self.degree)
        return wide or splits_of(kernel)[:1]

    @property
    def open_dims(self) -> dict[str, tuple[str | None, ...]]:
        """Dims over which each kernel may be split."""
        listed = {
            kernel.name: self.splits(kernel, splits_weights=self.graph.trains)
            for kernel in self.graph.kernels
        }
        return {
            name: tuple(dict.fromkeys(s.dim for s in splits)) for name, splits in listed.items()
        }

    def tables(self, weights: ResourceWeights, *, splits_weights: bool) -> SplitTables:
        """Return the splits with the least seconds of cores, links and DRAM, weighted.

        A gradient is brought to the layout of its weight in every pass.
        """
        byte_s = weights.links / (LINKS * self.link_bytes_per_s)
        volume = volume_tables(
            self.graph, self.degree,
            splits=lambda kernel: self.splits(kernel, splits_weights=splits_weights),
        )  # fmt: skip
        sums = gradient_sums(self.graph, volume.splits, volume.change_cost)
        columns = zip(
            volume.costs,
            cores_s(self.graph, self.grid, self.degree, volume.splits),
            self._dram_s(volume.splits),
            strict=True,
        )
        return replace(
            volume,
            costs=tuple(
                byte_s * sent + weights.cores * cores + weights.dram * dram
                for sent, cores, dram in columns
            ),
            change_cost=lambda b, have, want: byte_s * volume.change_cost(b, have, want),
            pair_costs={pair: PairCosts(byte_s * sent, np.zeros_like(sent)) for pair, sent in sums},
        )

    def _dram_s(self, splits: Sequence[Sequence[KernelSplit]]) -> list[FloatArray]:
        """Return the seconds in which DRAM takes in or gives out the ends of the graph.

        Each split of each kernel has its shard of them; an input that several kernels read is
        shared out among them, because together they read it once.
        """
        graph, rate = self.graph, self.grid.dram_bytes_per_s
        readers = Counter(read.source for kernel in graph.kernels for read in kernel.inputs)
        found = []
        for kernel, listed in zip(graph.kernels, splits, strict=True):
            ends = [(read.dims, 1.0 / readers[read.source]) for read in kernel.inputs
                    if read.source in graph.inputs]  # fmt: skip
            if kernel.name in graph.outputs and kernel.phase is not Phase.WEIGHT_GRADIENT:
                ends.append((kernel.dims, 1.0))
            sizes = [local_sizes(graph.sizes, split.dim, self.degree) for split in listed]
            elements = [sum(n * num_elements(dims, size) for dims, n in ends) for size in sizes]
            found.append(np.array(elements) * graph.word_bytes / rate)
        return found


def cores_s(
    graph: DataflowGraph, grid: CoreGrid, degree: int, splits: Sequence[Sequence[KernelSplit]]
) -> list[FloatArray]:
    """Return the least seconds of all cores for each split of each kernel.

    Those of one tile as long as all, of the best dim: shorter tiles fill arrays no better.
    """
    graphs = [replace(graph, tiled=dim) for dim in tileable_dims(graph)]
    columns = []
    for number in range(max(map(len, splits))):
        dims = {
            kernel.name: listed[min(number, len(listed) - 1)].dim
            for kernel, listed in zip(graph.kernels, splits, strict=True)
        }
        shares = (DeviceShare(tp=degree, splits=dims, tile=g.sizes[g.tiled]) for g in graphs)
        work = [least_work_s(g, grid, share) for g, share in zip(graphs, shares, strict=True)]
        columns.append(np.min(work, axis=0))
    rows = np.stack(columns, axis=1)
    return [row[: len(listed)] for row, listed in zip(rows, splits, strict=True)]


def splits_for(question: FusionQuestion) -> SplitCandidates:
    """Return the splits of a question.

    Raises
    ------
    SpecError
        When kernels cannot be split over that many chips.
    """
    graph, degree, link = question.graph, question.tp, question.target.link_bytes_per_s
    if degree == 1 or link is None:
        return SplitCandidates((GraphSplit(),))
    if question.rules.split is not None:
        dims, sent_s, gap = question.rules.split(graph, degree, link)
        return SplitCandidates((GraphSplit(dims, sent_s),), gap=gap)
    return _likely(ChipRing(graph, question.target.grid, degree, link))


def _likely(ring: ChipRing) -> SplitCandidates:
    """Return the splits of the least means.

    Those in which no chip holds a whole weight are searched by themselves: they need less SRAM.
    In training there are no others, because gradients of whole weights would be open sums.
    """
    likely: dict[tuple[tuple[str, str | None], ...], GraphSplit] = {}
    least_s = 0.0
    for is_split in (True,) if ring.graph.trains else (True, False):
        network = ring.tables(LINKS_ONLY, splits_weights=is_split)
        means = [ring.tables(weights, splits_weights=is_split) for weights in RESOURCE_MEANS]
        found = choose_for_largest(means)
        least_s = found[0].lower_bound
        for sharding in found:
            sent = network.costs_by_kernel(sharding.ways)
            likely.setdefault(tuple(sharding.dims.items()), GraphSplit(sharding.dims, sent))
    return SplitCandidates(tuple(likely.values()), ring, least_s)
