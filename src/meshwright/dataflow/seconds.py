"""Seconds as the price: computation by the roofline, and collectives on the links of the system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.changes import collective_of, payload_bytes
from meshwright.dataflow.gradients import gradient_sums
from meshwright.dataflow.machine import Links, Machine
from meshwright.dataflow.memory import Holding, Holdings
from meshwright.dataflow.roofline import Roofline
from meshwright.dataflow.splits import WHOLE, KernelSplit, Layout, splits_of
from meshwright.dataflow.tables import Bond, SplitTables
from meshwright.graph.dataflow.graph import DataflowGraph, Edge
from meshwright.graph.dataflow.kernel import MessageKind, Weight
from meshwright.graph.dataflow.readings import ends
from meshwright.spec.collective import CollectiveKind

_KINDS = {MessageKind.SEND: CollectiveKind.SEND, MessageKind.BROADCAST: CollectiveKind.BROADCAST}
Pair = tuple[int, int]


@dataclass(frozen=True)
class Weights:
    """What a second counts: of computation, and of collectives."""

    compute: float = 1.0
    network: float = 1.0


EXPOSED = Weights()
"""Collectives run before and after computation, not beside it."""
NETWORK = Weights(compute=0.0)
"""Collectives and messages alone."""


@dataclass(frozen=True)
class Seconds:
    """The ways to split a graph over a group, and what they take for one pass.

    Parameters
    ----------
    holding
        How often what a kernel holds lies in the memory of a device.
    num_passes
        Passes between two sums of the gradients of weights.
    """

    graph: DataflowGraph
    machine: Machine
    degree: int
    holding: Holding
    num_passes: int = 1

    @cached_property
    def links(self) -> Links:
        """Of the group: neighbouring devices."""
        return self.machine.links(1, self.degree)

    @cached_property
    def splits(self) -> tuple[tuple[KernelSplit, ...], ...]:
        """The ways of each kernel; none that leaves devices without a part."""
        sizes, degree = self.graph.sizes, self.degree
        return tuple(
            tuple(s for s in splits_of(kernel) if s.dim is None or sizes[s.dim] >= degree)
            if degree > 1
            else splits_of(kernel)[:1]
            for kernel in self.graph.kernels
        )

    def change_s(self, num_bytes: float, have: Layout, want: Layout) -> float:
        """Return the time of a change of layout [s]."""
        kind = collective_of(have, want)
        if kind is None:
            return 0.0
        return self.links.time_s(kind, payload_bytes(kind, num_bytes, self.degree))

    def tables(self, weights: Weights = EXPOSED, *, s_per_param: float = 0.0) -> SplitTables:
        """Return the ways with their seconds, weighted.

        Parameters
        ----------
        s_per_param
            What a parameter on the device takes once a step, spread over the passes [s].
        """
        compute = self.compute_s
        network = [
            np.array([self._alone_s(number, split) for split in ways])
            for number, ways in enumerate(self.splits)
        ]
        return SplitTables(
            graph=self.graph,
            degree=self.degree,
            splits=self.splits,
            costs=tuple(
                weights.compute * c + weights.network * n + s_per_param * p
                for c, n, p in zip(compute, network, self.parameters, strict=True)
            ),
            held_bytes=tuple(
                np.array([self._holdings.kernel_bytes(number, split) for split in ways])
                for number, ways in enumerate(self.splits)
            ),
            change_cost=lambda b, have, want: weights.network * self.change_s(b, have, want),
            bonds=dict(self._bonds(weights)),
        )

    @cached_property
    def compute_s(self) -> tuple[FloatArray, ...]:
        """Seconds of computation for each way of each kernel, collectives apart [s]."""
        roofline = Roofline(self.graph, self.machine, self.degree)
        return tuple(
            np.array([roofline.kernel_s(number, split.dim) for split in ways])
            for number, ways in enumerate(self.splits)
        )

    @cached_property
    def parameters(self) -> tuple[FloatArray, ...]:
        """Parameters of one repetition on the device, for each way of each kernel."""
        holdings = Holdings(self.graph, self.degree)
        return tuple(
            np.array([holdings.num_parameters(number, split) for split in ways])
            for number, ways in enumerate(self.splits)
        )

    def _alone_s(self, number: int, split: KernelSplit) -> float:
        """Return the messages of a kernel, and the sum that its output still needs at the end."""
        kernel = self.graph.kernels[number]
        sent_s = sum(self.links.time_s(_KINDS[m.kind], m.num_bytes) for m in kernel.messages)
        if number in self._ends and split.writes.is_partial:
            sent_s += self.change_s(self.graph.tensor_bytes(kernel), split.writes, WHOLE)
        return sent_s

    @cached_property
    def _ends(self) -> frozenset[int]:
        return ends(self.graph)

    @cached_property
    def _holdings(self) -> Holdings:
        return Holdings(self.graph, self.degree, self.holding)

    def _bonds(self, weights: Weights) -> Iterator[tuple[Pair, Bond]]:
        """Yield what two kernels cost beside each other."""
        found: dict[Pair, Bond] = {}
        for pair, bond in (
            *self._fused(weights.compute), *self._copies(), *self._gradients(weights.network),
        ):  # fmt: skip
            found[pair] = found[pair] + bond if pair in found else bond
        yield from found.items()

    def _fused(self, weight: float) -> Iterator[tuple[Pair, Bond]]:
        """Yield the way through memory of tensors that would stay on the chip."""
        roofline = Roofline(self.graph, self.machine, self.degree)
        for edge in roofline.fused:

            def cost(a: KernelSplit, b: KernelSplit, edge: Edge = edge) -> float:
                stays = a.writes == b.reads[edge.place]
                return 0.0 if stays else weight * roofline.materialised_s(edge, (a.dim, b.dim))

            pair = (edge.producer, edge.consumer)
            costs = self._pairs(pair, cost)
            yield pair, Bond(costs, np.zeros_like(costs))

    def _copies(self) -> Iterator[tuple[Pair, Bond]]:
        """Yield the memory of weights that two kernels hold in different layouts."""
        for pair, shared in self._holdings.shared_weights:

            def held(
                a: KernelSplit, b: KernelSplit, pair: Pair = pair, weight: Weight = shared
            ) -> float:
                return self._holdings.copy_bytes(pair, weight, a, b)

            num_bytes = self._pairs(pair, held)
            yield pair, Bond(np.zeros_like(num_bytes), num_bytes)

    def _gradients(self, weight: float) -> Iterator[tuple[Pair, Bond]]:
        """Yield the sums of the gradients of weights over the group, spread over the passes."""
        found = gradient_sums(self.graph, self.splits, self._holdings, self.change_s)
        for pair, sums_s in found:
            costs = weight / self.num_passes * sums_s
            yield pair, Bond(costs, np.zeros_like(costs))

    def _pairs(self, pair: Pair, cost: Callable[[KernelSplit, KernelSplit], float]) -> FloatArray:
        """Return a number for each way of a kernel and each of another."""
        first, second = (self.splits[number] for number in pair)
        return np.array([[cost(a, b) for b in second] for a in first])
