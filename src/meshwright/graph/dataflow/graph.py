"""Kernels in an order in which they can run, and the tensors between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import BoolArray
from meshwright.graph.dataflow.kernel import Dims, Kernel, Weight, num_elements


@dataclass(frozen=True)
class Edge:
    """One read of what a kernel writes: producer and consumer by number, and which input it is."""

    producer: int
    consumer: int
    place: int
    """Among the inputs of the consumer."""


@dataclass(frozen=True)
class DataflowGraph:
    """A computation, and how often it repeats: one layer of a model, or a whole workload.

    Kernels come after all that they read. What a layer reads from the layer before it is an input.
    """

    name: str
    kernels: tuple[Kernel, ...]
    sizes: Mapping[str, int]
    """Of all dims."""
    inputs: Mapping[str, Dims]
    """Tensors that come from outside, by name."""
    outputs: tuple[str, ...]
    """Kernels whose tensors leave the graph; those of the next repetition are among them."""
    tiled: str
    """The dim that passes through a chip in tiles, one behind the other: tokens, samples."""
    word_bytes: float = 2.0
    numbers_per_word: int = 1
    """2 where words are complex numbers."""
    repeats: int = 1
    constants: tuple[str, ...] = ()
    """Inputs without a gradient: data, numbers of rows, tables of angles."""

    @cached_property
    def number(self) -> Mapping[str, int]:
        """Place of each kernel, by name."""
        return {kernel.name: place for place, kernel in enumerate(self.kernels)}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All reads of one kernel by another, in the order of the readers."""
        return tuple(
            Edge(self.number[operand.source], consumer, place)
            for consumer, kernel in enumerate(self.kernels)
            for place, operand in enumerate(kernel.inputs)
            if operand.source in self.number
        )

    @cached_property
    def reads(self) -> BoolArray:
        """Whether the first kernel reads what the second writes, shape (kernels, kernels)."""
        found = np.zeros((len(self.kernels), len(self.kernels)), bool)
        for edge in self.edges:
            found[edge.consumer, edge.producer] = True
        return found

    def tensor_bytes(self, kernel: Kernel) -> float:
        """Return the size of what a kernel writes [bytes]."""
        word = self.word_bytes if kernel.word_bytes is None else kernel.word_bytes
        return word * num_elements(kernel.dims, self.sizes)

    def weight_bytes(self, weight: Weight) -> float:
        """Return the size of a weight [bytes]."""
        word = self.word_bytes if weight.word_bytes is None else weight.word_bytes
        return word * num_elements(weight.dims, self.sizes)

    @property
    def number_bytes(self) -> float:
        """Width of a number in arithmetic [bytes]."""
        return self.word_bytes / self.numbers_per_word

    @property
    def num_parameters(self) -> float:
        """Elements of all weights, over all repetitions; a name that stands twice counts once."""
        held = {weight.name: weight for kernel in self.kernels for weight in kernel.weights}
        return self.repeats * sum(num_elements(w.dims, self.sizes) for w in held.values())

    @property
    def flops(self) -> float:
        """Work of one pass over all repetitions [FLOP]."""
        return self.repeats * sum(kernel.flops(self.sizes) for kernel in self.kernels)
