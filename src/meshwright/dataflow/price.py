"""Prices of each split of each kernel on a group of devices: memory, seconds, or bytes sent.

Seconds are computation by the roofline and collectives on the links of the system. Bytes sent round
a ring are the count of the textbook argument for sequence parallelism: they ignore latency and
topology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.layouts import (
    REPLICATED,
    Exit,
    KernelSplit,
    TensorLayout,
    closed_layouts,
    collective_of,
    local_sizes,
    payload_bytes,
    place_of,
    splits_of,
)
from meshwright.dataflow.roofline import CalibratedSystem, Links, Roofline
from meshwright.dataflow.sharding import ChangeCost, PairCosts, SplitTables
from meshwright.graph.kernels.backward import forward_kernels, gradient_name
from meshwright.graph.kernels.graph import DataflowGraph, Edge
from meshwright.graph.kernels.kernel import (
    Kernel,
    MessageKind,
    Unit,
    Weight,
    num_elements,
    single_dims,
)
from meshwright.graph.op import Phase
from meshwright.search.choices.elimination import Pair
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Residency:
    """Copies of the tensors of a kernel in the memory of a device."""

    layers: int = 1
    """Repetitions of the graph on the device."""
    passes_in_flight: int = 1
    """Passes with tensors that wait for their backward pass."""
    bytes_per_param: float | None = None
    """Bytes of a parameter with its gradient and optimizer state; None: the word of the weight."""
    bytes_per_row: float | None = None
    """State of a row of a table, where an update touches the rows that were read and nothing else;
    None where tables are like all other weights."""


@dataclass(frozen=True)
class KernelMemory:
    """Memory of the kernels of a graph on one device of a group: weights and outputs.

    Tensors that the backward pass reads are kept for all layers and passes in flight. Of the others
    all those of one layer are counted, which is more than lives at once. Copies that arise from
    changes of layout are not counted: each lives as long as its readers run.
    """

    graph: DataflowGraph
    degree: int
    residency: Residency = Residency()

    def kernel_bytes(self, number: int, split: KernelSplit) -> float:
        """Return the bytes of a kernel on the largest shard; partial sums are as large as all."""
        kernel = self.graph.kernels[number]
        sizes = local_sizes(self.graph.sizes, split.dim, self.degree)
        each, layers = self.residency.bytes_per_param, self.residency.layers
        rows = self.residency.bytes_per_row if kernel.unit is Unit.NONE else None
        total = 0.0
        for weight in kernel.weights:
            if self._first_holder[weight.name] == number:
                elements = num_elements(weight.dims, sizes)
                if rows is not None:
                    state = rows * elements / num_elements(kernel.row, sizes)
                    total += layers * (self.graph.word_of(weight) * elements + state)
                else:
                    word = self.graph.word_of(weight) if each is None else each
                    total += layers * word * elements
        if kernel.phase is Phase.WEIGHT_GRADIENT or kernel.in_place:
            return total
        copies = layers * self.residency.passes_in_flight if number in self._kept else 1
        return total + copies * self.graph.tensor_bytes(kernel, sizes)

    def num_parameters(self, number: int, split: KernelSplit) -> float:
        """Return the parameters of a kernel on the largest shard, over all layers.

        Tables with rows that are updated as they are read are left out.
        """
        kernel = self.graph.kernels[number]
        if kernel.unit is Unit.NONE and self.residency.bytes_per_row is not None:
            return 0.0
        sizes, held = local_sizes(self.graph.sizes, split.dim, self.degree), kernel.weights
        first = (weight for weight in held if self._first_holder[weight.name] == number)
        return self.residency.layers * sum(num_elements(weight.dims, sizes) for weight in first)

    @cached_property
    def shared_weights(self) -> tuple[tuple[Pair, Weight], ...]:
        """Weights that a later kernel holds too, with the numbers of the first and of that one."""
        return tuple(
            ((self._first_holder[weight.name], number), weight)
            for number, kernel in enumerate(self.graph.kernels)
            for weight in kernel.weights
            if self._first_holder[weight.name] != number
        )

    def copy_bytes(
        self, pair: Pair, weight: Weight, first: KernelSplit, second: KernelSplit
    ) -> float:
        """Return the bytes of a second copy of a weight; 0 where a part of the first one serves."""
        held = (
            next(w for w in self.graph.kernels[number].weights if w.name == weight.name)
            for number in pair
        )
        there, wanted = map(_weight_layout, held, (first, second))
        if there in (wanted, REPLICATED):
            return 0.0
        sizes = local_sizes(self.graph.sizes, second.dim, self.degree)
        return self.residency.layers * self.graph.tensor_bytes(weight, sizes)

    @cached_property
    def _first_holder(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for number, kernel in enumerate(self.graph.kernels):
            for weight in kernel.weights:
                found.setdefault(weight.name, number)
        return found

    @cached_property
    def _kept(self) -> frozenset[int]:
        """Kernels of the forward pass with tensors that the backward pass reads."""
        kernels = self.graph.kernels
        return frozenset(
            edge.producer
            for edge in self.graph.edges
            if kernels[edge.producer].phase is Phase.FORWARD
            and kernels[edge.consumer].phase is not Phase.FORWARD
        )


def _weight_layout(weight: Weight, split: KernelSplit) -> TensorLayout:
    """Return the layout of a weight under a split of the kernel that holds it."""
    return TensorLayout(None if split.dim is None else place_of(weight.dims, split.dim))


@dataclass(frozen=True)
class TimeWeights:
    """Weights of a second of computation, and of a second of collectives."""

    compute: float = 1.0
    network: float = 1.0


EXPOSED = TimeWeights()
"""Collectives run before and after computation: nothing overlaps."""
NETWORK_ONLY = TimeWeights(compute=0.0)
"""Collectives and messages alone."""
_KINDS = {MessageKind.SEND: CollectiveKind.SEND, MessageKind.BROADCAST: CollectiveKind.BROADCAST}


@dataclass(frozen=True)
class SplitTimes:
    """Splits of a graph over a group, and the time of each for one pass.

    Parameters
    ----------
    residency
        Copies of the tensors of a kernel in the memory of a device.
    num_passes
        Passes between two sums of the gradients of weights.
    """

    graph: DataflowGraph
    system: CalibratedSystem
    degree: int
    residency: Residency
    num_passes: int = 1

    @cached_property
    def links(self) -> Links:
        """Links of the group: neighbouring devices."""
        return self.system.links(1, self.degree)

    @cached_property
    def splits(self) -> tuple[tuple[KernelSplit, ...], ...]:
        """The ways to split each kernel; none that leaves devices without a part."""
        sizes, degree = self.graph.sizes, self.degree
        return tuple(
            tuple(s for s in splits_of(kernel) if s.dim is None or sizes[s.dim] >= degree)
            if degree > 1
            else splits_of(kernel)[:1]
            for kernel in self.graph.kernels
        )

    def change_s(self, num_bytes: float, have: TensorLayout, want: TensorLayout) -> float:
        """Return the time of a change of layout [s]."""
        kind = collective_of(have, want)
        if kind is None:
            return 0.0
        return self.links.time_s(kind, payload_bytes(kind, num_bytes, self.degree))

    def tables(self, weights: TimeWeights = EXPOSED, *, is_cut: bool = False) -> SplitTables:
        """Return the splits with their seconds, weighted.

        ``is_cut`` leaves out all that a cut into stages may save: a bound of the sum of all stages.
        """
        network = _column(self.splits, self._network_s)
        return SplitTables(
            graph=self.graph,
            degree=self.degree,
            splits=self.splits,
            costs=tuple(
                weights.compute * c + weights.network * n
                for c, n in zip(self.compute_s, network, strict=True)
            ),
            held_bytes=self.held_bytes,
            change_cost=lambda b, have, want: weights.network * self.change_s(b, have, want),
            pair_costs=self._pair_costs(weights, is_cut),
            exits=exits_of(self.graph, self.degree, self.residency.layers),
            cut_cost=lambda n, split, before, after: (
                weights.compute * self._cut_s(n, split.dim, before, after)
            ),
        )

    def _cut_s(self, number: int, dim: str | None, before: int, after: int) -> float:
        """Return the extra time of a kernel in a stage, over that in the whole graph [s].

        A tensor that would stay on the chip is written by the stage that makes it, and read by a
        separate launch in the stage that needs it.
        """
        inside = after & ~before
        cut = [
            edge
            for edge in self._roofline.fused
            if number in (edge.producer, edge.consumer)
            and not (inside >> edge.producer & inside >> edge.consumer & 1)
        ]
        return self._without_s(number, dim, cut) if cut else 0.0

    def _without_s(self, number: int, dim: str | None, cut: Sequence[Edge]) -> float:
        """Return the extra time of a kernel some of whose tensors do not stay on the chip [s]."""
        return self._roofline.kernel_s(number, dim, cut) - self._roofline.kernel_s(number, dim)

    @cached_property
    def compute_s(self) -> tuple[FloatArray, ...]:
        """Seconds of computation for each split of each kernel, collectives apart [s]."""
        return _column(
            self.splits, lambda number, split: self._roofline.kernel_s(number, split.dim)
        )

    @cached_property
    def held_bytes(self) -> tuple[FloatArray, ...]:
        """Memory of each split of each kernel [bytes]."""
        return _column(self.splits, self._memory.kernel_bytes)

    @cached_property
    def parameters(self) -> tuple[FloatArray, ...]:
        """Parameters of one repetition on the device, for each split of each kernel."""
        once = replace(self.residency, layers=1)
        return _column(self.splits, KernelMemory(self.graph, self.degree, once).num_parameters)

    def _network_s(self, number: int, split: KernelSplit) -> float:
        """Return the time of the messages of a kernel, the same under any split [s]."""
        messages = self.graph.kernels[number].messages
        return sum(self.links.time_s(_KINDS[m.kind], m.num_bytes) for m in messages)

    @cached_property
    def _memory(self) -> KernelMemory:
        return KernelMemory(self.graph, self.degree, self.residency)

    @cached_property
    def _roofline(self) -> Roofline:
        return Roofline(self.graph, self.system, self.degree, self.residency.bytes_per_row)

    def _pair_costs(self, weights: TimeWeights, is_cut: bool) -> dict[Pair, PairCosts]:
        """Return the joint costs of the splits of two kernels, by the numbers of both.

        Under ``is_cut`` a fused tensor that changes its layout costs at most the extra time of its
        two kernels when a cut takes it off the chip. These times add up to a bound: a product has
        one fused tensor, and the time of an elementwise kernel is convex in the bytes that it
        moves. Gradients that two stages sum are left out, since stages do not price them.
        """
        found: dict[Pair, PairCosts] = {}

        def add(pair: Pair, costs: FloatArray, held_bytes: FloatArray) -> None:
            both = PairCosts(costs, held_bytes)
            found[pair] = found[pair] + both if pair in found else both

        # a tensor that would stay on the chip passes through memory where its layout changes
        for edge in self._roofline.fused:

            def through_memory_s(a: KernelSplit, b: KernelSplit, edge: Edge = edge) -> float:
                if a.writes == b.reads[edge.place]:
                    return 0.0
                dims = (a.dim, b.dim)
                seconds = self._roofline.materialised_s(edge, dims)
                if is_cut:
                    ends = zip((edge.producer, edge.consumer), dims, strict=True)
                    more = (self._without_s(number, dim, [edge]) for number, dim in ends)
                    seconds = min(seconds, sum(more))
                return weights.compute * seconds

            pair = (edge.producer, edge.consumer)
            costs = self._table(pair, through_memory_s)
            add(pair, costs, np.zeros_like(costs))
        # a weight that two kernels hold in different layouts is held twice
        for pair, weight in self._memory.shared_weights:
            held_bytes = self._table(pair, partial(self._memory.copy_bytes, pair, weight))
            add(pair, np.zeros_like(held_bytes), held_bytes)
        # gradients of weights are summed over the group once a step, spread over its passes; those
        # of the rows of a table reach them in every pass
        owners = forward_kernels(self.graph) if is_cut else None
        for pair, sums_s in gradient_sums(self.graph, self.splits, self.change_s):
            if owners is not None and owners[pair[0]] != owners[pair[1]]:
                continue
            is_lookup = self.graph.kernels[pair[1]].unit is Unit.NONE
            costs = weights.network / (1 if is_lookup else self.num_passes) * sums_s
            add(pair, costs, np.zeros_like(costs))
        return found

    def _table(self, pair: Pair, cost: Callable[[KernelSplit, KernelSplit], float]) -> FloatArray:
        """Return a number for each split of a kernel and each of another."""
        first, second = (self.splits[number] for number in pair)
        return np.array([[cost(a, b) for b in second] for a in first])


def _column(
    splits: Sequence[Sequence[KernelSplit]], of: Callable[[int, KernelSplit], float]
) -> tuple[FloatArray, ...]:
    """Return a number for each split of each kernel."""
    return tuple(
        np.array([of(number, split) for split in listed]) for number, listed in enumerate(splits)
    )


def exits_of(graph: DataflowGraph, degree: int, layers: int) -> dict[int, Exit]:
    """Return the layouts in which tensors leave a repeating graph, by the number of their writer.

    Tensors that the next repetition reads leave once, behind the last one.
    """
    found = {}
    for number, kernel in enumerate(graph.kernels):
        if number in graph.ends:
            layouts = closed_layouts(kernel.dims, graph.sizes, degree)
            stated = graph.output_layouts.get(kernel.name)
            if stated is not None:
                layouts = (TensorLayout(place_of(kernel.dims, stated)),)
            is_carried = number in graph.carried.values()
            found[number] = Exit(layouts, 1.0 / layers if is_carried else 1.0)
    return found


def gradient_sums(
    graph: DataflowGraph, splits: Sequence[Sequence[KernelSplit]], change_cost: ChangeCost
) -> Iterator[tuple[Pair, FloatArray]]:
    """Yield the demands that bring the gradients of weights to the layouts of their weights.

    By the numbers of the kernel that holds a weight and of the one that makes its gradient: the
    cost of the change of layout, for each split of the one and of the other.
    """
    for first, kernel in enumerate(graph.kernels):
        for weight in kernel.weights:
            second = graph.number.get(gradient_name(kernel, weight))
            if second is None or kernel.phase is not Phase.FORWARD:
                continue
            num_bytes = graph.tensor_bytes(graph.kernels[second])
            costs = [
                [
                    change_cost(
                        num_bytes,
                        made.writes,
                        _gradient_layout(graph.kernels[second], weight, held),
                    )
                    for made in splits[second]
                ]
                for held in splits[first]
            ]
            yield (first, second), np.array(costs)


def _gradient_layout(gradient: Kernel, weight: Weight, held: KernelSplit) -> TensorLayout:
    """Return the layout that a gradient must have under the split of the kernel with its weight.

    The gradient of a lookup has the dims of the rows read: rows of a table that is whole, or split
    over its rows, are needed everywhere.
    """
    is_split = held.dim is not None and place_of(weight.dims, held.dim) is not None
    return TensorLayout(place_of(gradient.dims, held.dim) if is_split and held.dim else None)


def ring_bytes(kind: CollectiveKind, num_bytes: float, degree: int) -> float:
    """Return the bytes that a device sends on a ring: (n - 1)/n, twice for an all-reduce.

    Bytes are those of the full tensor on one rank. Source: Patarasuk and Yuan 2009.
    """
    rounds = 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0
    return rounds * num_bytes * (degree - 1) / degree


def volume_tables(
    graph: DataflowGraph,
    degree: int,
    *,
    splits: Callable[[Kernel], tuple[KernelSplit, ...]] = splits_of,
) -> SplitTables:
    """Return the ways to split a graph, priced by the bytes that a device sends.

    Memory is that of weights and of outputs of kernels, in the word of the graph.
    """
    listed = tuple(splits(kernel) for kernel in graph.kernels)

    def change_cost(num_bytes: float, have: TensorLayout, want: TensorLayout) -> float:
        kind = collective_of(have, want)
        if kind is None:
            return 0.0
        return ring_bytes(kind, payload_bytes(kind, num_bytes, degree), degree)

    return SplitTables(
        graph=graph,
        degree=degree,
        splits=listed,
        costs=tuple(np.zeros(len(each)) for each in listed),
        held_bytes=_column(listed, KernelMemory(graph, degree).kernel_bytes),
        change_cost=change_cost,
        exits=exits_of(graph, degree, graph.repeats),
    )


def weights_split(kernel: Kernel) -> tuple[KernelSplit, ...]:
    """Return the splits in which no device holds a whole weight, where a kernel has any."""
    held = {dim for weight in kernel.weights for dim in single_dims(weight.dims)}
    splits = splits_of(kernel)
    return tuple(split for split in splits if split.dim in held) if held else splits
