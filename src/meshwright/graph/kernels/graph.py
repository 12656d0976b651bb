"""Kernels in an order in which they can run, the tensors between them, and graphs put in a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import BoolArray
from meshwright.base.errors import Fault, SpecError
from meshwright.base.records import Listed, Rows
from meshwright.base.units import format_si
from meshwright.graph.kernels.kernel import (
    Dims,
    Kernel,
    Operand,
    Unit,
    Weight,
    factors,
    num_elements,
    single_dims,
)
from meshwright.graph.op import Phase


@dataclass(frozen=True)
class Edge:
    """One read of the output of a kernel: numbers of producer and consumer, index of the input."""

    producer: int
    consumer: int
    place: int
    """Index among the inputs of the consumer."""
    num_bytes: float
    """Bytes of the part that is read, on all devices together [bytes]."""
    is_carried: bool = False
    """The consumer is in the next repetition of the graph."""


@dataclass(frozen=True)
class DataflowGraph(Listed):
    """A computation and its number of repetitions: one layer of a model, or a whole workload.

    Kernels come after all that they read. A tensor from the layer before is an input.
    """

    name: str
    kernels: tuple[Kernel, ...]
    sizes: Mapping[str, int]
    """Size of each dim."""
    inputs: Mapping[str, Dims]
    """Tensors that come from outside, by name."""
    outputs: tuple[str, ...]
    """Kernels with tensors that leave the graph; those of the next repetition are among them."""
    tiled: str
    """The dim that passes through a chip in tiles, one behind the other: tokens, samples."""
    word_bytes: float = 2.0
    numbers_per_word: int = 1
    """2 where words are complex numbers."""
    repeats: int = 1
    constants: tuple[str, ...] = ()
    """Inputs without a gradient: data, numbers of rows, tables of angles."""
    output_layouts: Mapping[str, str] = field(default_factory=dict)
    """The dim over which an output has to lie split, or ``whole``; the others are free."""

    def brief(self) -> str:
        """Return a line with the numbers of kernels and repetitions, and the FLOPs."""
        often = f", {self.repeats} times" if self.repeats > 1 else ""
        return f"{self.name}: {len(self.kernels)} kernels{often}, {format_si(self.flops, 'FLOP')}"

    def rows(self) -> Rows:
        """Return the kernels, in an order in which they can run."""
        return [
            {"name": kernel.name, "phase": kernel.phase.value, "unit": kernel.unit.value,
             "dims": " x ".join(kernel.dims), "flops": kernel.flops(self.sizes),
             "written_bytes": self.tensor_bytes(kernel),
             "weight_bytes": sum(self.tensor_bytes(weight) for weight in kernel.weights)}
            for kernel in self.kernels
        ]  # fmt: skip

    @cached_property
    def number(self) -> Mapping[str, int]:
        """Place of each kernel, by name."""
        return {kernel.name: place for place, kernel in enumerate(self.kernels)}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All reads of one kernel by another, in the order of the readers."""
        return tuple(edge for edge in self.all_edges if not edge.is_carried)

    @cached_property
    def all_edges(self) -> tuple[Edge, ...]:
        """All reads of :attr:`edges`, and those across two repetitions of a graph that repeats."""
        found = []
        for consumer, kernel in enumerate(self.kernels):
            for place, operand in enumerate(kernel.inputs):
                source = operand.source
                producer = self.carried.get(source, self.number.get(source))
                if producer is not None:
                    maker = self.kernels[producer]
                    part = self.word_of(maker) * num_elements(operand.dims, self.sizes)
                    num_bytes = min(part, self.tensor_bytes(maker))
                    is_carried = source not in self.number
                    found.append(Edge(producer, consumer, place, num_bytes, is_carried))
        return tuple(found)

    @cached_property
    def carried(self) -> Mapping[str, int]:
        """Kernel of the previous repetition that writes each input.

        Activations come from activations, gradients from gradients, in the order in which they are
        named; the last output with as many dims serves the inputs that remain. An input without
        such an output comes from outside in every repetition, and is left out.
        """
        if self.repeats == 1:
            return {}
        read_forward = {
            read.source for k in self.kernels if k.phase is Phase.FORWARD for read in k.inputs
        }
        found: dict[str, int] = {}
        for is_forward in (True, False):
            written = [
                number
                for number in map(self.number.__getitem__, self.outputs)
                if (phase := self.kernels[number].phase) is not Phase.WEIGHT_GRADIENT
                and (phase is Phase.FORWARD) is is_forward
            ]
            inputs = [name for name in self.inputs if (name in read_forward) is is_forward]
            for place, name in enumerate(inputs):
                near = [n for n in written if len(self.kernels[n].dims) == len(self.inputs[name])]
                if near:
                    found[name] = near[min(place, len(near) - 1)]
        return found

    @cached_property
    def ends(self) -> frozenset[int]:
        """Kernels with tensors that leave the graph: outputs, gradients of weights apart.

        Those are summed once a step, not once a pass.
        """
        outputs = map(self.number.__getitem__, self.outputs)
        return frozenset(n for n in outputs if self.kernels[n].phase is not Phase.WEIGHT_GRADIENT)

    @cached_property
    def trains(self) -> bool:
        """Whether the graph makes gradients of weights."""
        return any(kernel.phase is Phase.WEIGHT_GRADIENT for kernel in self.kernels)

    @cached_property
    def reads(self) -> BoolArray:
        """Whether the first kernel reads the output of the second, shape (kernels, kernels)."""
        found = np.zeros((len(self.kernels), len(self.kernels)), bool)
        for edge in self.edges:
            found[edge.consumer, edge.producer] = True
        return found

    @cached_property
    def batch_dims(self) -> tuple[str, ...]:
        """Dims with elements that pass the graph alone, as samples do, largest first.

        Every tensor that depends on such a dim has it where its reader looks for it, no weight has
        it, and nothing is summed over it but gradients of weights.
        """

        def places(dims: Dims, dim: str) -> list[int]:
            return [place for place, one in enumerate(dims) if dim in factors(one)]

        def is_alone(dim: str) -> bool:
            for kernel in self.kernels:
                if dim in kernel.whole or kernel.messages:
                    return False
                if dim in kernel.contracted and kernel.phase is not Phase.WEIGHT_GRADIENT:
                    return False
                if any(dim in single_dims(weight.dims) for weight in kernel.weights):
                    return False
                for read in kernel.inputs:
                    makers = [self.inputs[read.source]] if read.source in self.inputs else []
                    number = self.carried.get(read.source, self.number.get(read.source))
                    if number is not None:
                        makers.append(self.kernels[number].dims)
                    if any(places(made, dim) != places(read.dims, dim) for made in makers):
                        return False
            return any(dim in kernel.points for kernel in self.kernels)

        found = [dim for dim, size in self.sizes.items() if size > 1 and is_alone(dim)]
        return tuple(sorted(found, key=lambda dim: -self.sizes[dim]))

    def part_of_batch(self, parts: int) -> DataflowGraph:
        """Return the graph of the largest of equal parts of the batch."""
        if parts == 1:
            return self
        dim = self.batch_dims[0]
        return replace(self, sizes={**self.sizes, dim: -(-self.sizes[dim] // parts)})

    def word_of(self, tensor: Kernel | Weight) -> float:
        """Return the bytes of an element of a weight, or of the output of a kernel [bytes]."""
        return self.word_bytes if tensor.word_bytes is None else tensor.word_bytes

    def tensor_bytes(
        self, tensor: Kernel | Weight, sizes: Mapping[str, int] | None = None
    ) -> float:
        """Return the size of a weight, or of the output of a kernel [bytes].

        Parameters
        ----------
        sizes
        Sizes of all dims on one device; None: the whole tensor.
        """
        elements = num_elements(tensor.dims, self.sizes if sizes is None else sizes)
        return self.word_of(tensor) * elements

    @property
    def number_bytes(self) -> float:
        """Bytes of one number in arithmetic: half of a word of complex numbers [bytes]."""
        return self.word_bytes / self.numbers_per_word

    @cached_property
    def widest_product_bytes(self) -> float:
        """Bytes of the widest numbers of any product; of the graph where it has none [bytes]."""
        products = (kernel for kernel in self.kernels if kernel.unit is Unit.MATRIX)
        return max(map(self.product_bytes, products), default=self.number_bytes)

    def product_bytes(self, kernel: Kernel) -> float:
        """Return the bytes of the numbers that a product multiplies [bytes].

        The wider of its two operands, because the narrower one is widened on the way to it; at most
        that of its result, because an operand kept in more bytes was cast. Inputs have the word of
        the graph.
        """
        makers = [self.number.get(read.source) for read in kernel.inputs]
        words = [self.word_bytes if n is None else self.word_of(self.kernels[n]) for n in makers]
        words += [self.word_of(weight) for weight in kernel.weights]
        widest = max(words[:2], default=self.word_bytes)
        return min(widest, self.word_of(kernel)) / self.numbers_per_word

    @property
    def num_parameters(self) -> float:
        """Elements of all weights, over all repetitions; a name that occurs twice counts once."""
        held = {weight.name: weight for kernel in self.kernels for weight in kernel.weights}
        return self.repeats * sum(num_elements(w.dims, self.sizes) for w in held.values())

    @property
    def flops(self) -> float:
        """Work of one pass over all repetitions [FLOP]."""
        return self.repeats * sum(kernel.flops(self.sizes) for kernel in self.kernels)


def chained(name: str, parts: Sequence[DataflowGraph]) -> DataflowGraph:
    """Return one graph with every repetition of each part, one after the other.

    A part reads the output of the part before, so all but the first have one input. Kernels are
    numbered by where they occur: ``3.softmax``. Weights keep their names in a part that occurs
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
    stated = parts[-1].output_layouts.get(parts[-1].outputs[0])
    return replace(
        parts[0],
        name=name,
        kernels=tuple(kernels),
        sizes={dim: size for part in parts for dim, size in part.sizes.items()},
        outputs=(last,) if last else (),
        output_layouts={last: stated} if last and stated else {},
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
    """Raise if the parts cannot follow one another."""
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
