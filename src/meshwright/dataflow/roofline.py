"""Seconds of one kernel on one device: the slowest of arithmetic, memory and launch.

Products run in waves of tiles; elementwise kernels and moves are bound by the memory unless the
rate of elementwise arithmetic is known and lower. An elementwise kernel that is the only reader of
a tensor runs in the epilogue of its maker: neither writes nor reads it in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from meshwright.cost.compute import Engine, matmul_compute_s
from meshwright.dataflow.machine import Machine
from meshwright.dataflow.splits import local_sizes
from meshwright.graph.dataflow.graph import DataflowGraph, Edge
from meshwright.graph.dataflow.kernel import Kernel, Unit, num_elements, single_dims


def fused_edges(graph: DataflowGraph) -> tuple[Edge, ...]:
    """Return the tensors that stay on the chip: read once, by an elementwise kernel."""
    reads = Counter(edge.producer for edge in graph.edges)
    outputs = {graph.number[name] for name in graph.outputs}
    return tuple(
        edge
        for edge in graph.edges
        if reads[edge.producer] == 1
        and edge.producer not in outputs
        and graph.kernels[edge.consumer].unit is Unit.VECTOR
        and graph.kernels[edge.producer].unit is not Unit.NONE
    )


@dataclass(frozen=True)
class Roofline:
    """What the kernels of a graph take on one device of a group."""

    graph: DataflowGraph
    machine: Machine
    degree: int

    @cached_property
    def engine(self) -> Engine:
        """What a device does in a second."""
        return self.machine.engine(self.graph)

    @cached_property
    def fused(self) -> tuple[Edge, ...]:
        """Tensors that stay on the chip."""
        return fused_edges(self.graph)

    @cached_property
    def _kept(self) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
        """Kernels whose output stays on the chip, and the reads of these."""
        written = frozenset(edge.producer for edge in self.fused)
        return written, frozenset((edge.consumer, edge.place) for edge in self.fused)

    def kernel_s(self, number: int, dim: str | None) -> float:
        """Return the seconds of a kernel that is split over a dim [s]."""
        kernel, engine = self.graph.kernels[number], self.engine
        sizes = local_sizes(self.graph.sizes, dim, self.degree)
        is_vector = kernel.unit is Unit.VECTOR
        rate = engine.elementwise_bytes_per_s if is_vector else engine.memory_bytes_per_s
        moved_s = self._moved_bytes(number, sizes) / float(rate)
        return max(self._arithmetic_s(kernel, sizes), moved_s, self._launch_s(number))

    def materialised_s(self, edge: Edge, dims: tuple[str | None, str | None]) -> float:
        """Return what a fused tensor takes when it has to change its layout on the way [s].

        It is written in the shards of its maker and read in those of its reader.
        """
        kernels = (self.graph.kernels[edge.producer], self.graph.kernels[edge.consumer])
        tensors = (kernels[0].dims, kernels[1].inputs[edge.place].dims)
        moved = sum(
            num_elements(tensor, local_sizes(self.graph.sizes, dim, self.degree))
            for tensor, dim in zip(tensors, dims, strict=True)
        )
        return self._word(kernels[0]) * moved / float(self.engine.elementwise_bytes_per_s)

    def _arithmetic_s(self, kernel: Kernel, sizes: Mapping[str, int]) -> float:
        if kernel.unit is Unit.MATRIX:
            shape = product_shape(kernel, sizes)
            return float(matmul_compute_s(*shape, self.engine.matmul_flops_per_s, self.engine))
        rate = self.machine.vector_flops_per_s(self.graph)
        return kernel.flops(sizes) / rate if rate else 0.0

    def _moved_bytes(self, number: int, sizes: Mapping[str, int]) -> float:
        """Return what a kernel moves between memory and chip: each tensor once [bytes].

        A lookup reads no more of a weight than it writes.
        """
        kernel = self.graph.kernels[number]
        written, read = self._kept
        local = replace(self.graph, sizes=sizes)
        output = local.tensor_bytes(kernel)
        weights = [local.weight_bytes(weight) for weight in kernel.weights]
        if kernel.unit is Unit.NONE:
            weights = [min(weight, output) for weight in weights]
        moved = sum(weights) + (0.0 if number in written else output)
        for place, operand in enumerate(kernel.inputs):
            if (number, place) not in read:
                maker = self.graph.number.get(operand.source)
                word = self._word(None if maker is None else self.graph.kernels[maker])
                moved += word * num_elements(operand.dims, sizes)
        return moved

    def _launch_s(self, number: int) -> float:
        is_fused = any(consumer == number for consumer, _ in self._kept[1])
        return 0.0 if is_fused else float(self.engine.launch_s)

    def _word(self, kernel: Kernel | None) -> float:
        own = None if kernel is None else kernel.word_bytes
        return self.graph.word_bytes if own is None else own


def product_shape(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[Any, Any, Any, Any]:
    """Return (count, rows, inner, columns) of a product of its first two operands.

    A further operand is added to the result; a product with itself has one.
    """
    operands = [single_dims(read.dims) for read in kernel.inputs]
    operands += [single_dims(weight.dims) for weight in kernel.weights]
    first, second = operands[0], operands[1] if len(operands) > 1 else ()
    written = single_dims(kernel.dims)

    def size(dims: Collection[str]) -> float:
        return prod(float(sizes[dim]) for dim in dims)

    return (
        size([dim for dim in written if dim in first and dim in second]),
        size([dim for dim in written if dim in first and dim not in second]),
        size(kernel.contracted),
        size([dim for dim in written if dim not in first]),
    )
