"""Kernels in an order in which they can run, and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import BoolArray
from meshwright.base.errors import Fault, SpecError
from meshwright.graph.kernels.kernel import Dims, Kernel, Operand, Weight, num_elements
from meshwright.graph.op import Phase


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


@dataclass(frozen=True)
class Reading:
    """One read of what a kernel writes; the reader may stand in the next repetition."""

    producer: int
    consumer: int
    place: int
    """Among the inputs of the consumer."""
    num_bytes: float
    """Of the part that is read, on all devices together."""
    is_carried: bool = False
    """From one repetition to another."""


def readings(graph: DataflowGraph) -> tuple[Reading, ...]:
    """Return all reads of one kernel by another; in a graph that repeats, across as well."""
    return tuple(_readings(graph, carried(graph)))


def _readings(graph: DataflowGraph, carriers: Mapping[str, int]) -> Iterator[Reading]:
    for consumer, kernel in enumerate(graph.kernels):
        for place, operand in enumerate(kernel.inputs):
            is_carried = operand.source not in graph.number
            producer = carriers.get(operand.source, graph.number.get(operand.source))
            if producer is not None:
                maker = graph.kernels[producer]
                word = graph.word_bytes if maker.word_bytes is None else maker.word_bytes
                part = word * num_elements(operand.dims, graph.sizes)
                num_bytes = min(part, graph.tensor_bytes(maker))
                yield Reading(producer, consumer, place, num_bytes, is_carried)


def carried(graph: DataflowGraph) -> dict[str, int]:
    """Return which kernel of the repetition before writes each input of a graph.

    Activations come from activations, gradients from gradients, in the order in which they are
    named; the last output of as many dims serves the inputs that are left. An input without any
    comes from outside in every repetition, and is left out.
    """
    if graph.repeats == 1:
        return {}
    found: dict[str, int] = {}
    for is_forward in (True, False):
        outputs = [
            graph.number[name]
            for name in graph.outputs
            if (phase := graph.kernels[graph.number[name]].phase) is not Phase.WEIGHT_GRADIENT
            and (phase is Phase.FORWARD) is is_forward
        ]
        inputs = [name for name in graph.inputs if _is_forward(graph, name) is is_forward]
        for place, name in enumerate(inputs):
            near = [o for o in outputs if len(graph.kernels[o].dims) == len(graph.inputs[name])]
            if near:
                found[name] = near[min(place, len(near) - 1)]
    return found


def ends(graph: DataflowGraph) -> frozenset[int]:
    """Return the kernels whose tensors leave for good: outputs that no repetition reads.

    Gradients of weights are left out: they are summed once a step, not once a pass.
    """
    read = {reading.producer for reading in readings(graph)}
    outputs = {graph.number[name] for name in graph.outputs} - read
    return frozenset(n for n in outputs if graph.kernels[n].phase is not Phase.WEIGHT_GRADIENT)


def _is_forward(graph: DataflowGraph, name: str) -> bool:
    """Return whether an input is read in the forward pass."""
    return any(
        kernel.phase is Phase.FORWARD and any(read.source == name for read in kernel.inputs)
        for kernel in graph.kernels
    )


def chained(name: str, parts: Sequence[DataflowGraph]) -> DataflowGraph:
    """Return one graph in which each part stands as often as it repeats.

    A part reads what the part before writes, so all but the first have one input. Kernels are
    numbered by where they stand: ``3.softmax``. Weights keep their names in a part that stands
    once, so that a weight that two parts name is held once.

    Raises
    ------
    SpecError
        Where parts do not fit: several inputs or outputs, other dims, other sizes or word bytes.
    """
    _check(name, parts)
    kernels: list[Kernel] = []
    last: str | None = None
    for step, part in enumerate(p for p in parts for _ in range(p.repeats)):
        kernels += _numbered(part, step, last)
        last = f"{step}.{part.outputs[0]}"
    return replace(
        parts[0],
        name=name,
        kernels=tuple(kernels),
        sizes={dim: size for part in parts for dim, size in part.sizes.items()},
        outputs=(last,) if last else (),
        repeats=1,
    )


def _numbered(part: DataflowGraph, step: int, last: str | None) -> Iterator[Kernel]:
    """Yield the kernels of one step; the first one reads the inputs of the whole graph."""

    def source(name: str) -> str:
        if name in part.number:
            return f"{step}.{name}"
        return name if last is None else last

    for kernel in part.kernels:
        reads = tuple(Operand(source(read.source), read.dims) for read in kernel.inputs)
        held = kernel.weights
        if part.repeats > 1:
            held = tuple(replace(weight, name=f"{step}.{weight.name}") for weight in held)
        yield replace(kernel, name=f"{step}.{kernel.name}", inputs=reads, weights=held)


def _check(name: str, parts: Sequence[DataflowGraph]) -> None:
    """Raise all that keeps parts from standing behind one another."""
    faults = [] if parts else [Fault("parts", "there are none")]
    sizes: dict[str, int] = {}
    for number, part in enumerate(parts):
        place = f"parts[{number}]"
        if len(part.outputs) != 1 or (number and len(part.inputs) != 1):
            faults.append(Fault(place, "needs one input and one output", part.name))
        if part.word_bytes != parts[0].word_bytes or part.tiled != parts[0].tiled:
            faults.append(Fault(place, "has another word or tiled dim than the first part"))
        faults += [
            Fault(f"{place}.{dim}", f"has {size} here and {sizes[dim]} before")
            for dim, size in part.sizes.items()
            if sizes.setdefault(dim, size) != size
        ]
    if faults:
        raise SpecError(faults, origin=name)
