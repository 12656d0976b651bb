"""Ways to split a graph over a ring of chips that fuse kernels, by what they take at least.

Cores take at least the work of all kernels, the links all collectives, the DRAM what enters and
leaves the graph. The three run side by side, so the largest is below what any partitions take.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import Fault, SpecError
from meshwright.dataflow.dfmodel_rules import peer_tables
from meshwright.dataflow.fusion.answer import FusionQuestion
from meshwright.dataflow.fusion.cores import CoreGrid
from meshwright.dataflow.fusion.problem import Share, least_work_s
from meshwright.dataflow.layouts import KernelSplit, local_sizes, payload_bytes, splits_of
from meshwright.dataflow.price import (
    Holdings,
    gradient_sums,
    ring_bytes,
    volume_tables,
    weights_split,
)
from meshwright.dataflow.sharding import (
    Bond,
    Sharding,
    SplitChoices,
    SplitTables,
    choose_for_largest,
    choose_sharding,
)
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, num_elements
from meshwright.graph.op import Phase
from meshwright.spec.collective import CollectiveKind

LINKS = 2
"""Of a chip in a ring: both are used at once."""


KernelSplits = Sequence[Sequence[KernelSplit]]


class ResourceWeights(NamedTuple):
    """What a second counts: of cores, of links, of DRAM."""

    cores: float
    links: float
    dram: float


LINKS_ONLY = ResourceWeights(0.0, 1.0, 0.0)
_FEW = 1e-6
"""Of what does not count, to decide between equals."""
RESOURCE_MEANS = (
    ResourceWeights(1.0 - 2.0 * _FEW, _FEW, _FEW),
    ResourceWeights(_FEW, 1.0 - 2.0 * _FEW, _FEW),
    ResourceWeights(_FEW, _FEW, 1.0 - 2.0 * _FEW),
    ResourceWeights(0.5, 0.5, 0.0),
    ResourceWeights(0.75, 0.25, 0.0),
    ResourceWeights(0.25, 0.75, 0.0),
    ResourceWeights(0.4, 0.3, 0.3),
)
"""Means of the three: each is a bound, and its best ways are likely to be good."""


@dataclass(frozen=True)
class Ring:
    """Chips that share the kernels of a graph."""

    graph: DataflowGraph
    grid: CoreGrid
    degree: int
    link_bytes_per_s: float

    @property
    def trains(self) -> bool:
        """Whether the graph makes gradients of weights."""
        return any(kernel.phase is Phase.WEIGHT_GRADIENT for kernel in self.graph.kernels)

    def ways(self, kernel: Kernel, *, splits_weights: bool) -> tuple[KernelSplit, ...]:
        """Return the ways of a kernel.

        Dims shorter than the group are not split; where that leaves none, every chip does all of
        it. Gradients of weights are no open sums: nobody knows after how many passes they close.

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
        return {
            kernel.name: tuple(
                dict.fromkeys(way.dim for way in self.ways(kernel, splits_weights=self.trains))
            )
            for kernel in self.graph.kernels
        }

    def tables(self, weights: ResourceWeights, *, splits_weights: bool) -> SplitTables:
        """Return the ways with the least seconds of cores, links and DRAM, weighted.

        A gradient is brought to the layout of its weight in every pass.
        """
        byte_s = weights.links / (LINKS * self.link_bytes_per_s)
        volume = volume_tables(
            self.graph, self.degree,
            splits=lambda kernel: self.ways(kernel, splits_weights=splits_weights),
        )  # fmt: skip
        sums = gradient_sums(
            self.graph, volume.splits, Holdings(self.graph, self.degree), volume.change_cost
        )
        columns = zip(
            volume.costs, self._work_s(volume.splits), self._ends_s(volume.splits), strict=True
        )
        return replace(
            volume,
            costs=tuple(
                byte_s * sent + weights.cores * work + weights.dram * ends
                for sent, work, ends in columns
            ),
            change_cost=lambda b, have, want: byte_s * volume.change_cost(b, have, want),
            bonds={pair: Bond(byte_s * sent, np.zeros_like(sent)) for pair, sent in sums},
        )

    def _work_s(self, splits: KernelSplits) -> list[FloatArray]:
        """Return the least seconds of all cores for each way of each kernel.

        Those of one tile as long as all: shorter tiles fill arrays no better.
        """
        kernels, columns = self.graph.kernels, []
        for way in range(max(map(len, splits))):
            dims = {
                kernel.name: ways[min(way, len(ways) - 1)].dim
                for kernel, ways in zip(kernels, splits, strict=True)
            }
            share = Share(tp=self.degree, splits=dims, tile=self.graph.sizes[self.graph.tiled])
            columns.append(least_work_s(self.graph, self.grid, share))
        work_s = np.stack(columns, axis=1)
        return [row[: len(ways)] for row, ways in zip(work_s, splits, strict=True)]

    def _ends_s(self, splits: KernelSplits) -> list[FloatArray]:
        """Return the seconds in which DRAM takes in or gives out the ends of the graph.

        Each way of each kernel has its shard of them; an input that several kernels read is shared
        out among them, because together they read it once.
        """
        graph, rate = self.graph, self.grid.dram_bytes_per_s
        readers = Counter(read.source for kernel in graph.kernels for read in kernel.inputs)
        found = []
        for kernel, ways in zip(graph.kernels, splits, strict=True):
            ends = [(read.dims, 1.0 / readers[read.source]) for read in kernel.inputs
                    if read.source in graph.inputs]  # fmt: skip
            if kernel.name in graph.outputs and kernel.phase is not Phase.WEIGHT_GRADIENT:
                ends.append((kernel.dims, 1.0))
            sizes = [local_sizes(graph.sizes, way.dim, self.degree) for way in ways]
            elements = [sum(n * num_elements(dims, size) for dims, n in ends) for size in sizes]
            found.append(np.array(elements) * graph.word_bytes / rate)
        return found


@dataclass(frozen=True)
class GraphSplit:
    """How kernels are split, and the network that each one causes for a sequence."""

    dims: Mapping[str, str | None] = field(default_factory=dict)
    network_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SplitCandidates:
    """SplitCandidates that are worth fusing, and what holds for all there are."""

    likely: tuple[GraphSplit, ...]
    ring: Ring | None = None
    """The chips that are shared; None where there is one split only."""
    least_s: float = 0.0
    """Neither cores nor links take less for a sequence [s]."""
    gap: float = 0.0
    """How far the one split may be from the fewest bytes."""


def splits_for(question: FusionQuestion) -> SplitCandidates:
    """Return the splits of a question.

    Raises
    ------
    SpecError
        When kernels cannot be split over so many chips.
    """
    graph, degree, link = question.graph, question.tp, question.target.link_bytes_per_s
    if degree == 1 or link is None:
        return SplitCandidates((GraphSplit(),))
    if question.rules == "dfmodel":
        return _fewest_bytes(question, link)
    return _likely(Ring(graph, question.target.grid, degree, link))


def _likely(ring: Ring) -> SplitCandidates:
    """Return the ways of the least means.

    Those in which no chip holds a whole weight are looked at by themselves: they need less SRAM.
    In training there are no others, because gradients of whole weights would be open sums.
    """
    likely: dict[tuple[tuple[str, str | None], ...], GraphSplit] = {}
    least_s = 0.0
    for is_split in (True,) if ring.trains else (True, False):
        network = SplitChoices(ring.tables(LINKS_ONLY, splits_weights=is_split))
        found = choose_for_largest(
            [ring.tables(w, splits_weights=is_split) for w in RESOURCE_MEANS]
        )
        least_s = found[0].lower_bound
        for sharding in found:
            sent = network.costs_by_kernel(sharding.ways)
            likely.setdefault(tuple(sharding.dims.items()), GraphSplit(sharding.dims, sent))
    return SplitCandidates(tuple(likely.values()), ring, least_s)


def _fewest_bytes(question: FusionQuestion, link: float) -> SplitCandidates:
    """Return the split of fewest bytes under the rules of DFModel."""
    graph, degree = question.graph, question.tp
    sharding = choose_sharding(peer_tables(graph, degree))
    if sharding is None:
        raise SpecError(Fault("--tp", f"{graph.name} cannot be split over {degree} chips"))
    sent: dict[str, float] = defaultdict(float)
    for kind, name, num_bytes in _peer_collectives(sharding):
        sent[name] += ring_bytes(kind, num_bytes, degree) / (LINKS * link)
    return SplitCandidates((GraphSplit(sharding.dims, sent),), gap=sharding.gap)


def _peer_collectives(sharding: Sharding) -> Iterator[tuple[CollectiveKind, str, float]]:
    """Yield the collectives of a sharding: kind, the kernel that causes it, and bytes."""
    tables = sharding.tables
    for placed in sharding.changes:
        kind = placed.change.kind
        if kind is not None:
            num_bytes = payload_bytes(kind, placed.num_bytes, tables.degree)
            yield kind, placed.producer, num_bytes
    for kernel, costs, way in zip(tables.graph.kernels, tables.costs, sharding.ways, strict=True):
        if costs[way] > 0:
            yield CollectiveKind.ALL_REDUCE, kernel.name, float(costs[way])
