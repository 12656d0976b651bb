"""Memory that split kernels take on one device: their weights, and the tensors that they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.layouts import (
    WHOLE,
    KernelSplit,
    Layout,
    collective_of,
    local_sizes,
    payload_bytes,
    place_of,
    splits_of,
)
from meshwright.dataflow.roofline import Links, Machine, Roofline
from meshwright.dataflow.sharding import Bond, ChangeCost, SplitTables
from meshwright.graph.kernels.backward import gradient_name
from meshwright.graph.kernels.graph import DataflowGraph, Edge, ends
from meshwright.graph.kernels.kernel import Kernel, MessageKind, Weight, num_elements, single_dims
from meshwright.graph.op import Phase
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Holding:
    """How often what a kernel holds lies in the memory of a device."""

    layers: int = 1
    """Repetitions of the graph on the device."""
    passes_in_flight: int = 1
    """Passes whose tensors wait for their backward pass."""
    bytes_per_param: float | None = None
    """Of weights with gradients and the state of the optimizer; None for the word of a weight."""


@dataclass(frozen=True)
class Holdings:
    """What the kernels of a graph hold on one device of a group.

    Tensors that the backward pass reads are kept for all layers and passes in flight. Of the others
    all those of one layer are counted, which is more than lives at once. Copies that arise from
    changes of layout are not counted: each lives as long as its readers run.
    """

    graph: DataflowGraph
    degree: int
    holding: Holding = Holding()

    def kernel_bytes(self, number: int, split: KernelSplit) -> float:
        """Return the bytes of a kernel on the largest shard; partial sums are as large as all."""
        kernel = self.graph.kernels[number]
        sizes = local_sizes(self.graph.sizes, split.dim, self.degree)
        local = replace(self.graph, sizes=sizes)
        each, times = self.holding.bytes_per_param, self.holding.layers
        total = 0.0
        for weight in kernel.weights:
            if self._first_holder[weight.name] == number:
                elements = num_elements(weight.dims, sizes)
                total += times * (local.weight_bytes(weight) if each is None else each * elements)
        if kernel.phase is Phase.WEIGHT_GRADIENT:
            return total
        if number in self._kept:
            return total + times * self.holding.passes_in_flight * local.tensor_bytes(kernel)
        return total + local.tensor_bytes(kernel)

    def num_parameters(self, number: int, split: KernelSplit) -> float:
        """Return the parameters of a kernel on the largest shard, over all layers."""
        sizes = local_sizes(self.graph.sizes, split.dim, self.degree)
        held = self.graph.kernels[number].weights
        first = (weight for weight in held if self._first_holder[weight.name] == number)
        return self.holding.layers * sum(num_elements(weight.dims, sizes) for weight in first)

    def weight_layout(self, number: int, place: int, split: KernelSplit) -> Layout:
        """Return how a weight lies where the kernel is split in some way."""
        weight = self.graph.kernels[number].weights[place]
        return Layout(None if split.dim is None else place_of(weight.dims, split.dim))

    @cached_property
    def shared_weights(self) -> tuple[tuple[tuple[int, int], Weight], ...]:
        """Weights that a later kernel holds too, with the numbers of the first and of that one."""
        return tuple(self._shared())

    def _shared(self) -> Iterator[tuple[tuple[int, int], Weight]]:
        for number, kernel in enumerate(self.graph.kernels):
            for weight in kernel.weights:
                if self._first_holder[weight.name] != number:
                    yield (self._first_holder[weight.name], number), weight

    def copy_bytes(
        self, pair: tuple[int, int], weight: Weight, first: KernelSplit, second: KernelSplit
    ) -> float:
        """Return the bytes of a second copy of a weight; 0 where a part of the first one serves."""
        layouts = []
        for number, split in zip(pair, (first, second), strict=True):
            names = [held.name for held in self.graph.kernels[number].weights]
            layouts.append(self.weight_layout(number, names.index(weight.name), split))
        if layouts[0] in (layouts[1], Layout()):
            return 0.0
        sizes = local_sizes(self.graph.sizes, second.dim, self.degree)
        return self.holding.layers * replace(self.graph, sizes=sizes).weight_bytes(weight)

    @cached_property
    def _first_holder(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for number, kernel in enumerate(self.graph.kernels):
            for weight in kernel.weights:
                found.setdefault(weight.name, number)
        return found

    @cached_property
    def _kept(self) -> frozenset[int]:
        """Kernels of the forward pass whose tensors the backward pass reads."""
        kernels = self.graph.kernels
        return frozenset(
            edge.producer
            for edge in self.graph.edges
            if kernels[edge.producer].phase is Phase.FORWARD
            and kernels[edge.consumer].phase is not Phase.FORWARD
        )


_KINDS = {MessageKind.SEND: CollectiveKind.SEND, MessageKind.BROADCAST: CollectiveKind.BROADCAST}
Pair = tuple[int, int]


@dataclass(frozen=True)
class TimeWeights:
    """What a second counts: of computation, and of collectives."""

    compute: float = 1.0
    network: float = 1.0


EXPOSED = TimeWeights()
"""Collectives run before and after computation, not beside it."""
NETWORK_ONLY = TimeWeights(compute=0.0)
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

    def tables(self, weights: TimeWeights = EXPOSED, *, s_per_param: float = 0.0) -> SplitTables:
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

    def _bonds(self, weights: TimeWeights) -> Iterator[tuple[Pair, Bond]]:
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


def gradient_sums(
    graph: DataflowGraph,
    splits: Sequence[Sequence[KernelSplit]],
    holdings: Holdings,
    change_cost: ChangeCost,
) -> Iterator[tuple[tuple[int, int], FloatArray]]:
    """Yield the numbers of a kernel that holds a weight and of the maker of its gradient.

    Beside them what the change of layout costs, for each way of the one and of the other.
    """
    for first, kernel in enumerate(graph.kernels):
        for place, held in enumerate(kernel.weights):
            second = graph.number.get(gradient_name(kernel, held))
            if second is None or kernel.phase is not Phase.FORWARD:
                continue
            num_bytes = graph.tensor_bytes(graph.kernels[second])
            wanted = [holdings.weight_layout(first, place, way) for way in splits[first]]
            costs = [
                [change_cost(num_bytes, way.writes, want) for way in splits[second]]
                for want in wanted
            ]
            yield (first, second), np.array(costs)


_TIMES_ROUND = {CollectiveKind.ALL_REDUCE: 2.0}
SplitsOf = Callable[[Kernel], tuple[KernelSplit, ...]]


def ring_bytes(kind: CollectiveKind, num_bytes: float, degree: int) -> float:
    """Return what a device sends to its neighbour on a ring: (n - 1)/n, twice for an all-reduce.

    Bytes are those of the full tensor on one rank. Source: Patarasuk and Yuan 2009.
    """
    return _TIMES_ROUND.get(kind, 1.0) * num_bytes * (degree - 1) / degree


def volume_tables(
    graph: DataflowGraph, degree: int, *, splits: SplitsOf = splits_of
) -> SplitTables:
    """Return the ways to split a graph, priced by the bytes that a device sends.

    What leaves the graph for good has no open sums. Memory is that of weights and of what kernels
    write, in the word of the graph.
    """
    ways = tuple(splits(kernel) for kernel in graph.kernels)
    holdings, last = Holdings(graph, degree), ends(graph)

    def change_cost(tensor_bytes: float, have: Layout, want: Layout) -> float:
        kind = collective_of(have, want)
        if kind is None:
            return 0.0
        return ring_bytes(kind, payload_bytes(kind, tensor_bytes, degree), degree)

    def sum_cost(number: int, split: KernelSplit) -> float:
        is_open = number in last and split.writes.is_partial
        tensor_bytes = graph.tensor_bytes(graph.kernels[number])
        return change_cost(tensor_bytes, split.writes, WHOLE) if is_open else 0.0

    return SplitTables(
        graph=graph,
        degree=degree,
        splits=ways,
        costs=tuple(
            np.array([sum_cost(number, split) for split in found])
            for number, found in enumerate(ways)
        ),
        held_bytes=tuple(
            np.array([holdings.kernel_bytes(number, split) for split in found])
            for number, found in enumerate(ways)
        ),
        change_cost=change_cost,
    )


def weights_split(kernel: Kernel) -> tuple[KernelSplit, ...]:
    """Return the ways in which no device holds a whole weight, where a kernel has any."""
    held = {dim for weight in kernel.weights for dim in single_dims(weight.dims)}
    ways = splits_of(kernel)
    return tuple(split for split in ways if split.dim in held) if held else ways
