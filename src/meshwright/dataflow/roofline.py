"""Seconds of a kernel on a device, by the roofline, and of collectives on the links of a system.

A kernel takes the slowest of arithmetic, memory and launch. Products run in waves of tiles, and of
few tiles each sum is cut into parts;
elementwise kernels and moves are bound by the memory unless the rate of elementwise arithmetic is
known and lower. An elementwise kernel that is the only reader of a tensor runs in the epilogue of
its maker: neither writes nor reads it in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from meshwright.base.arrays import ceil_div
from meshwright.base.errors import Fault, SpecError
from meshwright.collectives.group import make_group
from meshwright.collectives.registry import best_affine_candidates
from meshwright.cost.communication import level_efficiencies
from meshwright.cost.operator import (
    ACCUMULATOR_BYTES,
    DeviceRates,
    device_rates,
    matmul_compute_s,
    stated_rate,
)
from meshwright.dataflow.layouts import local_sizes
from meshwright.graph.kernels.graph import DataflowGraph, Edge
from meshwright.graph.kernels.kernel import Kernel, Unit, num_elements, single_dims
from meshwright.graph.op import Phase
from meshwright.spec.calibration import Calibration
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import ChipSpec, DType, SystemSpec
from meshwright.spec.workload import BYTES_OF, Precision, SoftwareStack

DTYPE_OF_NUMBER: dict[float, DType] = {1.0: "fp8", 2.0: "bf16", 4.0: "fp32", 8.0: "fp64"}


@dataclass(frozen=True)
class Links:
    """Links of the groups of one axis; each collective runs by its fastest algorithm."""

    degree: int
    forms: dict[CollectiveKind, tuple[tuple[float, float], ...]]
    """Fixed seconds and seconds per byte of each algorithm that may be the fastest."""
    launch_s: float

    def time_s(self, kind: CollectiveKind, num_bytes: float) -> float:
        """Return the time of a collective; bytes are those of the full tensor on one rank [s]."""
        if self.degree == 1 or num_bytes == 0.0:
            return 0.0
        return self.launch_s + min(fixed + num_bytes * slope for fixed, slope in self.forms[kind])


@dataclass(frozen=True)
class CalibratedSystem:
    """A system with the constants that measurements settle."""

    spec: SystemSpec
    calibration: Calibration

    @cached_property
    def usable_bytes(self) -> float:
        """Memory of a device that a plan may fill [bytes]."""
        constants = self.calibration
        capacity = self.spec.chip.main_memory.capacity_bytes
        margin = constants.memory_margin_fraction * capacity
        return capacity - margin - constants.communication_buffer_bytes

    def engine(self, graph: DataflowGraph, number_bytes: float | None = None) -> DeviceRates:
        """Return the rates of a device, in the word of a graph.

        Parameters
        ----------
        number_bytes
            Bytes of the numbers of products; if the chip has no rate for them, that of wider ones
            is taken.

        Raises
        ------
        SpecError
            When the chip has no rate for products of such words.
        """
        chip = self.spec.chip
        dtype = _dtype_of(graph, chip)
        if number_bytes not in (None, graph.widest_product_bytes):
            dtype = dtype_of_product(chip, number_bytes or 0.0) or dtype
        precision = Precision(matmul=dtype, activation=dtype)
        return device_rates(
            chip, precision, SoftwareStack(), self.calibration,
            speed_factor=self.spec.slowest_speed_factor,
        )  # fmt: skip

    def peak_flops_per_s(self, graph: DataflowGraph) -> float:
        """Return the dense rate of all devices in the numbers of a graph [FLOP/s].

        That of elementwise arithmetic for a graph without products, where it is known.
        """
        chip = self.spec.chip
        vector = None if _has_products(graph) else self.vector_flops_per_s(graph)
        each = stated_rate(chip, _dtype_of(graph, chip)) if vector is None else vector
        return self.spec.num_alive * each

    def vector_flops_per_s(self, graph: DataflowGraph) -> float | None:
        """Return the rate of elementwise arithmetic [FLOP/s]; None: not known, memory decides.

        Raises
        ------
        SpecError
            When the numbers are wider than any that the chip has.
        """
        chip = self.spec.chip
        dtype = DTYPE_OF_NUMBER.get(graph.number_bytes, "fp32")
        rates = chip.vector_flops_per_s
        names: tuple[DType, ...] = (dtype, "fp32")
        is_wide = graph.number_bytes > BYTES_OF["fp32"]
        if is_wide and (dtype == "fp32" or dtype not in rates):
            message = f"{chip.name} has no rate for numbers of {graph.number_bytes:g} bytes"
            raise SpecError(Fault("word_bytes", message), origin=graph.name)
        return next((rates[name] for name in names if name in rates), None)

    def links(self, stride: int, degree: int) -> Links:
        """Return the links of groups with members ``stride`` devices apart."""
        if degree == 1:
            return Links(1, {}, 0.0)
        efficiencies = level_efficiencies(self.spec, self.calibration)
        group = make_group(self.spec.levels, float(stride), float(degree), efficiencies)
        forms = {
            kind: tuple(
                (float(fixed), float(slope))
                for _, fixed, slope in best_affine_candidates(kind, group)
            )
            for kind in CollectiveKind
        }
        return Links(degree, forms, self.calibration.collective_launch_s)


def _dtype_of(graph: DataflowGraph, chip: ChipSpec) -> DType:
    """Return the type of the numbers of a graph, as far as products need its rate."""
    if not _has_products(graph):
        return next(iter(chip.matmul_flops_per_s))
    if graph.widest_product_bytes not in DTYPE_OF_NUMBER:
        width = graph.widest_product_bytes
        message = f"{chip.name} has no rate for products of {width:g}-byte numbers"
        raise SpecError(Fault("word_bytes", message, "1, 2, 4 or 8"), origin=graph.name)
    dtype = DTYPE_OF_NUMBER[graph.widest_product_bytes]
    return chip.word if dtype == "bf16" else dtype


def dtype_of_product(chip: ChipSpec, number_bytes: float) -> DType | None:
    """Return the narrowest type of at least some bytes for which a chip has a rate of products."""
    for width, dtype in DTYPE_OF_NUMBER.items():
        named = chip.word if dtype == "bf16" else dtype
        if width >= number_bytes and named in chip.matmul_flops_per_s:
            return named
    return None


def _has_products(graph: DataflowGraph) -> bool:
    return any(kernel.unit is Unit.MATRIX for kernel in graph.kernels)


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
    """Times of the kernels of a graph on one device of a group."""

    graph: DataflowGraph
    system: CalibratedSystem
    degree: int
    bytes_per_row: float | None = None
    """State of a row of a table that an update reads and writes with it; None: no such rows."""

    @cached_property
    def engine(self) -> DeviceRates:
        """Rates of a device for the widest products of the graph."""
        return self.system.engine(self.graph)

    @cached_property
    def product_engines(self) -> dict[float, DeviceRates]:
        """Rates of a device by the bytes of the numbers multiplied, for all products."""
        kernels = (kernel for kernel in self.graph.kernels if kernel.unit is Unit.MATRIX)
        widths = set(map(self.graph.product_bytes, kernels))
        return {width: self.system.engine(self.graph, width) for width in widths}

    @cached_property
    def fused(self) -> tuple[Edge, ...]:
        """Tensors that stay on the chip."""
        return fused_edges(self.graph)

    @cached_property
    def _kept(self) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
        """Kernels with an output that stays on the chip, and the reads of these."""
        written = frozenset(edge.producer for edge in self.fused)
        return written, frozenset((edge.consumer, edge.place) for edge in self.fused)

    def kernel_s(self, number: int, dim: str | None, cut: Collection[Edge] = ()) -> float:
        """Return the seconds of a kernel that is split over a dim [s].

        ``cut`` are tensors that would stay on the chip, were maker and reader on the same devices.
        """
        kernel, engine = self.graph.kernels[number], self.engine
        sizes = local_sizes(self.graph.sizes, dim, self.degree)
        is_vector = kernel.unit is Unit.VECTOR
        rate = engine.elementwise_bytes_per_s if is_vector else engine.memory_bytes_per_s
        moved_s = self.moved_bytes(number, sizes, cut) / float(rate)
        is_fused = any(edge.consumer == number and edge not in cut for edge in self.fused)
        least_s = moved_s if is_fused else max(moved_s, float(engine.launch_s))
        if kernel.unit is Unit.MATRIX:
            engine = self.product_engines[self.graph.product_bytes(kernel)]
            return product_s(product_shape(kernel, sizes), engine, least_s)
        flops_per_s = self.system.vector_flops_per_s(self.graph)
        return max(least_s, kernel.flops(sizes) / flops_per_s if flops_per_s else 0.0)

    def materialised_s(self, edge: Edge, dims: tuple[str | None, str | None]) -> float:
        """Return the time of a fused tensor that has to change its layout on the way [s].

        Its reader is then a separate kernel, with a launch.
        """
        moved_s = self.materialised_bytes(edge, dims) / float(self.engine.elementwise_bytes_per_s)
        return max(moved_s, float(self.engine.launch_s))

    def materialised_bytes(self, edge: Edge, dims: tuple[str | None, str | None]) -> float:
        """Return the memory traffic of a fused tensor that changes its layout [bytes].

        It is written in the shards of its maker and read in those of its reader.
        """
        kernels = (self.graph.kernels[edge.producer], self.graph.kernels[edge.consumer])
        tensors = (kernels[0].dims, kernels[1].inputs[edge.place].dims)
        return self.graph.word_of(kernels[0]) * sum(
            num_elements(tensor, local_sizes(self.graph.sizes, dim, self.degree))
            for tensor, dim in zip(tensors, dims, strict=True)
        )

    def moved_bytes(
        self, number: int, sizes: Mapping[str, int], cut: Collection[Edge] = ()
    ) -> float:
        """Return the traffic of a kernel between memory and chip: each tensor once [bytes].

        A lookup reads the rows that it is asked for, or a small table once. Its gradient updates
        those rows at once where tables keep a state of their rows.
        """
        kernel = self.graph.kernels[number]
        written, read = self._kept
        if cut:
            written = written - {edge.producer for edge in cut}
            read = read - {(edge.consumer, edge.place) for edge in cut}
        output, rows = self.graph.tensor_bytes(kernel, sizes), num_elements(kernel.points, sizes)
        weights = [self.graph.tensor_bytes(weight, sizes) for weight in kernel.weights]
        if kernel.unit is Unit.NONE:
            read_bytes = self.graph.word_bytes * rows
            weights = [min(weight, read_bytes) for weight in weights]
            if kernel.phase is Phase.WEIGHT_GRADIENT and self.bytes_per_row is not None:
                state = self.bytes_per_row * rows / num_elements(kernel.row, sizes)
                weights, output = [2.0 * (read_bytes + state)], 0.0
        moved = sum(weights) + (0.0 if number in written else output)
        for place, operand in enumerate(kernel.inputs):
            if (number, place) not in read:
                maker = self.graph.number.get(operand.source)
                word = self.graph.word_bytes
                if maker is not None:
                    word = self.graph.word_of(self.graph.kernels[maker])
                moved += word * num_elements(operand.dims, sizes)
        return moved


def product_s(
    shape: tuple[float, float, float, float], engine: DeviceRates, least_s: float = 0.0
) -> float:
    """Return the seconds of products with sums cut into the best number of parts [s].

    Few tiles of outputs leave cores idle. With k parts there are k times as many tiles, each with
    inner / k of the sum, and k partial results that memory writes and reads once more:

        max(least_s, waves(k count, rows, inner / k, columns)) + (k > 1) 2 k 4 B count rows columns
        / memory rate

    Source: fixed splits in Osama et al. 2023, "Stream-K" (arXiv 2301.03598), section 3.

    Parameters
    ----------
    shape
        Count, rows, inner and columns.
    least_s
        Least time of the product for any arithmetic: its tensors, its launch [s].

    Valid for: k a power of two or as many as fill the cores once; partial sums in FP32 that no
    cache holds, which prices them high.
    """
    count, rows, inner, columns = shape
    tiles = count * ceil_div(rows, engine.tile_rows) * ceil_div(columns, engine.tile_columns)
    most = max(1.0, min(engine.num_cores // tiles, inner))
    parts = np.array([*(2.0 ** np.arange(int(most).bit_length())), most])
    arithmetic_s = matmul_compute_s(
        count * parts, rows, ceil_div(inner, parts), columns, engine.matmul_flops_per_s, engine
    )
    partial_bytes = np.where(parts > 1, 2.0 * ACCUMULATOR_BYTES * parts * count * rows * columns, 0)
    seconds = np.maximum(least_s, arithmetic_s) + partial_bytes / engine.memory_bytes_per_s
    return float(seconds.min())


def product_shape(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[float, float, float, float]:
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
