"""The backward pass of any graph, by rules that look at units and dims alone.

A product is linear in each tensor that it reads or holds. The gradient of one of them is the
product of the gradient of the output with all the others: it writes the dims of that tensor and
sums over the rest, so it costs as much as the product. Elementwise functions, norms and softmax
turn a gradient into one of the same dims and read their forward inputs again (softmax would rather
read its output, which is as large). A sum hands its gradient on. A move is moved back; a lookup
keeps one gradient for each row that it read. The gradients of several readers are summed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from meshwright.base.errors import Fault, SpecError
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import (
    Dims,
    Kernel,
    Operand,
    Unit,
    Weight,
    num_elements,
    single_dims,
)
from meshwright.graph.op import Phase


def with_backward(
    graph: DataflowGraph,
    *,
    prologue: Collection[str] = (),
    vector_saves: bool = True,
) -> DataflowGraph:
    """Return the graph with the gradients of its weights and inputs behind it.

    The gradient of each output comes in as an input, named ``NAME.grad``; those of weights and of
    inputs that are not constants go out.

    Parameters
    ----------
    prologue
        Kernels that no gradient passes: it goes out where it would enter them.
    vector_saves
        Whether the gradients of elementwise functions, norms and softmax read tensors saved by the
        forward pass. Tensors that products need are always read.

    Raises
    ------
    SpecError
        For a graph that has gradients already, or sends messages, which no rule turns round; where
        neither a weight nor an input that is no constant leads to an output.
    """
    _check(graph, prologue)
    done = _Backward(graph, frozenset(prologue), vector_saves)
    done.run()
    gradients = {
        f"{name}.grad": done.dims_of(name) for name in graph.outputs if name in done.wanted
    }
    if not gradients:
        fix = "hold weights, or let an input be no constant"
        raise SpecError(Fault("outputs", "nothing that they depend on has a gradient", fix),
                        origin=graph.name)  # fmt: skip
    return replace(
        graph,
        name=f"{graph.name}-training",
        kernels=(*graph.kernels, *done.kernels),
        inputs={**graph.inputs, **gradients},
        constants=(*graph.constants, *gradients),
        outputs=(*graph.outputs, *done.outputs()),
    )


def gradient_name(kernel: Kernel, weight: Weight) -> str:
    """Return the name of the kernel that makes the gradient of a weight of a kernel."""
    return f"{kernel.name}.grad.{weight.name.removeprefix(f'{kernel.name}.')}"


def forward_kernels(graph: DataflowGraph) -> tuple[int, ...] | None:
    """Return the number of the forward kernel of each kernel; of a forward one it is its own.

    Gradients have the name of their kernel. The sum of the gradients of an input goes with the
    first kernel that reads it. None: some are named otherwise.
    """
    first = {
        read.source: number
        for number, kernel in reversed(list(enumerate(graph.kernels)))
        for read in kernel.inputs
        if kernel.phase is Phase.FORWARD and read.source in graph.inputs
    }
    forward = {k.name: n for n, k in enumerate(graph.kernels) if k.phase is Phase.FORWARD}
    known = first | forward
    found: list[int] = []
    for number, kernel in enumerate(graph.kernels):
        words = kernel.name.split(".grad")
        named = (".grad".join(words[:count]) for count in range(len(words) - 1, 0, -1))
        of_gradient = (known[name] for name in named if name in known)
        owner = number if kernel.phase is Phase.FORWARD else next(of_gradient, None)
        if owner is None:
            return None
        found.append(owner)
    return tuple(found)


def _check(graph: DataflowGraph, prologue: Collection[str]) -> None:
    faults = [
        Fault(f"kernels.{k.name}", "is not a kernel of a forward pass", "give the forward graph")
        if k.phase is not Phase.FORWARD
        else Fault(f"kernels.{k.name}", "sends messages, so its gradient is not known")
        for k in graph.kernels
        if k.phase is not Phase.FORWARD or k.messages
    ]
    faults += [
        Fault(f"kernels.{k.name}", "writes over what its gradient may read", "in_place: false")
        for k in graph.kernels
        if k.in_place
    ]
    faults += [Fault("prologue", f"no kernel {n!r}") for n in set(prologue) - graph.number.keys()]
    if faults:
        raise SpecError(faults, origin=graph.name)


@dataclass
class _Backward:
    """Kernels of the backward pass, made from the last forward kernel to the first."""

    graph: DataflowGraph
    prologue: frozenset[str]
    vector_saves: bool
    kernels: list[Kernel] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The tensors that sum up to the gradient of a tensor."""
    weight_gradients: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    """Tensors that have a gradient."""

    def run(self) -> None:
        """Make all kernels."""
        self.names = {*self.graph.number, *self.graph.inputs}
        self.wanted = self._wanted()
        for name in self.graph.outputs:
            if name in self.wanted:
                self.parts[name].append(f"{name}.grad")
                self.names.add(f"{name}.grad")
        for kernel in reversed(self.graph.kernels):
            if kernel.name not in self.prologue and self.parts[kernel.name]:
                self._through(kernel, self._summed(kernel.name))
        for name in self.graph.inputs:
            if self.parts[name]:
                self.parts[name] = [self._summed(name)]

    def outputs(self) -> tuple[str, ...]:
        """Return the kernels that write gradients of inputs and weights."""
        ends = (*self.graph.inputs, *sorted(self.prologue, key=self.graph.number.__getitem__))
        made = {kernel.name for kernel in self.kernels}
        carried = (part for name in ends for part in self.parts[name] if part in made)
        return tuple(dict.fromkeys((*carried, *self.weight_gradients)))

    def dims_of(self, tensor: str) -> Dims:
        """Return the dims of a tensor where it is made."""
        if tensor in self.graph.inputs:
            return self.graph.inputs[tensor]
        return self.graph.kernels[self.graph.number[tensor]].dims

    def _wanted(self) -> set[str]:
        """Return the tensors that have a gradient: those that weights or inputs reach."""
        wanted = (self.graph.inputs.keys() - set(self.graph.constants)) | self.prologue
        for kernel in self.graph.kernels:
            if kernel.weights or any(read.source in wanted for read in kernel.inputs):
                wanted.add(kernel.name)
        return wanted

    def _summed(self, tensor: str) -> str:
        """Return the gradient of a tensor: its only part, or the sum of them."""
        parts = self.parts[tensor]
        if len(parts) == 1:
            return parts[0]
        dims = self.dims_of(tensor)
        reads = tuple(Operand(part, dims) for part in parts)
        flops = len(parts) - 1.0
        return self._add(
            Kernel(f"{tensor}.grad", Unit.VECTOR, dims, reads, flops_per_point=flops, is_sum=True)
        )

    def _through(self, kernel: Kernel, gradient: str) -> None:
        """Make the gradients for one forward kernel: of its inputs, then of its weights."""
        of_output = Operand(gradient, kernel.dims)
        is_lookup = kernel.unit is Unit.NONE and bool(kernel.weights)
        for place, read in enumerate(kernel.inputs):
            if read.source not in self.wanted or is_lookup:
                continue
            if kernel.is_sum and read.dims == kernel.dims:
                self.parts[read.source].append(gradient)
                continue
            made = _gradient_of(kernel, of_output, read.dims, place, self.vector_saves)
            made = replace(made, name=f"{kernel.name}.grad.{read.source}")
            self.parts[read.source].append(self._add_whole(made, read))
        for number, weight in enumerate(kernel.weights):
            place = len(kernel.inputs) + number
            made = _gradient_of(kernel, of_output, weight.dims, place, self.vector_saves)
            word = weight.word_bytes if kernel.word_bytes is None else kernel.word_bytes
            made = replace(made, name=gradient_name(kernel, weight), word_bytes=word)
            self.weight_gradients.append(self._add(replace(made, phase=Phase.WEIGHT_GRADIENT)))

    def _add_whole(self, gradient: Kernel, read: Operand) -> str:
        """Add the gradient of the part read, and return the gradient of the whole tensor.

        A reader that takes a part, or rows several times, has a gradient of that part. A move puts
        it back into the whole tensor, at once where the reader is a move itself.
        """
        there = self.dims_of(read.source)
        other = {
            taken: made
            for taken, made in zip(read.dims, there, strict=True)
            if num_elements((taken,), self.graph.sizes) != num_elements((made,), self.graph.sizes)
        }
        if gradient.unit is not Unit.NONE:
            name = self._add(gradient)
            if not other:
                return name
            back = (Operand(name, there),)
            return self._add(Kernel(f"{name}.back", Unit.NONE, there, back))
        reads = tuple(
            Operand(r.source, tuple(other.get(dim, dim) for dim in r.dims)) for r in gradient.inputs
        )
        dims = tuple(other.get(dim, dim) for dim in gradient.dims)
        return self._add(replace(gradient, dims=dims, inputs=reads))

    def _add(self, kernel: Kernel) -> str:
        """Add a kernel under a unique name, and return the name."""
        name, again = kernel.name, 2
        while name in self.names:
            name, again = f"{kernel.name}.{again}", again + 1
        phase = Phase.INPUT_GRADIENT if kernel.phase is Phase.FORWARD else kernel.phase
        self.kernels.append(replace(kernel, name=name, phase=phase))
        self.names.add(name)
        return name


def _gradient_of(
    kernel: Kernel, of_output: Operand, dims: Dims, place: int, vector_saves: bool
) -> Kernel:
    """Return the kernel that makes the gradient of one tensor of a forward kernel.

    ``place`` counts inputs, then weights.
    """
    if kernel.unit is Unit.NONE:
        rows = dims if place < len(kernel.inputs) else kernel.dims
        ids = () if place < len(kernel.inputs) else kernel.inputs
        return Kernel("", Unit.NONE, rows, (of_output, *ids), word_bytes=kernel.word_bytes)
    if kernel.is_sum or _is_bias(kernel, place):
        return Kernel("", Unit.VECTOR, dims, (of_output,), is_sum=True)
    is_product = kernel.unit is Unit.MATRIX
    saved = kernel.inputs if is_product or vector_saves else ()
    # a product needs all factors but its own; other functions need all that they read
    others = (read for at, read in enumerate(saved) if not is_product or at != place)
    return Kernel(
        "",
        kernel.unit,
        dims,
        (of_output, *others),
        _factors(kernel, place),
        whole=kernel.whole,
        flops_per_point=kernel.flops_per_point,
        word_bytes=kernel.word_bytes,
    )


def _factors(kernel: Kernel, place: int) -> tuple[Weight, ...]:
    """Return the weights that a gradient is multiplied with: not its own one, and no bias."""
    first = len(kernel.inputs)
    return tuple(
        weight
        for at, weight in enumerate(kernel.weights, first)
        if at != place and not _is_bias(kernel, at)
    )


def _is_bias(kernel: Kernel, place: int) -> bool:
    """Return whether a weight of a product is added to it: it has no dim that is summed over."""
    if kernel.unit is not Unit.MATRIX or place < len(kernel.inputs) or not kernel.contracted:
        return False
    dims = single_dims(kernel.weights[place - len(kernel.inputs)].dims)
    return not set(dims) & set(kernel.contracted)
