"""Memory that split kernels take on one device: their weights, and the tensors that they write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.dataflow.splits import KernelSplit, Layout, local_sizes, place_of
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Weight, num_elements
from meshwright.graph.op import Phase


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
