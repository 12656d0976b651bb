"""A system as dataflow graphs see it: what a device does in a second, and what its groups send."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshwright.base.errors import Fault, SpecError
from meshwright.collectives.group import make_group
from meshwright.collectives.selection import best_affine_candidates
from meshwright.cost.compute import Engine
from meshwright.cost.engine import make_engine, stated_rate
from meshwright.cost.network import level_efficiencies
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Unit
from meshwright.spec.calibration import Calibration
from meshwright.spec.chip import ChipSpec, DType
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import BYTES_OF, Precision, SoftwareStack

_DTYPE_OF_NUMBER: dict[float, DType] = {1.0: "fp8", 2.0: "bf16", 4.0: "fp32", 8.0: "fp64"}


@dataclass(frozen=True)
class Links:
    """What the groups of one axis send, each kind by its fastest algorithm."""

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
class Machine:
    """A system with the constants that measurements settle."""

    system: SystemSpec
    calibration: Calibration

    @cached_property
    def room_bytes(self) -> float:
        """Memory of a device that a plan may fill [bytes]."""
        constants = self.calibration
        capacity = self.system.chip.main_memory.capacity_bytes
        margin = constants.memory_margin_fraction * capacity
        return capacity - margin - constants.communication_buffer_bytes

    def engine(self, graph: DataflowGraph) -> Engine:
        """Return what a device does in a second, in the word of a graph.

        Raises
        ------
        SpecError
            When the chip has no rate for products of such words.
        """
        chip = self.system.chip
        dtype = _dtype_of(graph, chip)
        precision = Precision(matmul=dtype, activation=dtype)
        return make_engine(
            chip, precision, SoftwareStack(), self.calibration,
            speed_factor=self.system.slowest_speed_factor,
        )  # fmt: skip

    def peak_flops_per_s(self, graph: DataflowGraph) -> float:
        """Return the dense rate of all devices in the numbers of a graph [FLOP/s].

        That of elementwise arithmetic for a graph without products, where it is known.
        """
        chip = self.system.chip
        vector = None if _has_products(graph) else self.vector_flops_per_s(graph)
        each = stated_rate(chip, _dtype_of(graph, chip)) if vector is None else vector
        return self.system.num_alive * each

    def vector_flops_per_s(self, graph: DataflowGraph) -> float | None:
        """Return the rate of elementwise arithmetic [FLOP/s]; None: not known, memory decides.

        Raises
        ------
        SpecError
            When the numbers are wider than any that the chip has.
        """
        chip = self.system.chip
        dtype = _DTYPE_OF_NUMBER.get(graph.number_bytes, "fp32")
        rates = chip.vector_flops_per_s
        names: tuple[DType, ...] = (dtype, "fp32")
        is_wide = graph.number_bytes > BYTES_OF["fp32"]
        if is_wide and (dtype == "fp32" or dtype not in rates):
            message = f"{chip.name} has no rate for numbers of {graph.number_bytes:g} bytes"
            raise SpecError(Fault("word_bytes", message), origin=graph.name)
        return next((rates[name] for name in names if name in rates), None)

    def links(self, stride: int, degree: int) -> Links:
        """Return the links of groups whose members are ``stride`` devices apart."""
        if degree == 1:
            return Links(1, {}, 0.0)
        efficiencies = level_efficiencies(self.system, self.calibration)
        group = make_group(self.system.levels, float(stride), float(degree), efficiencies)
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
    if graph.number_bytes not in _DTYPE_OF_NUMBER:
        message = f"{chip.name} has no rate for products of {graph.number_bytes:g}-byte numbers"
        raise SpecError(Fault("word_bytes", message, "1, 2, 4 or 8"), origin=graph.name)
    return _DTYPE_OF_NUMBER[graph.number_bytes]


def _has_products(graph: DataflowGraph) -> bool:
    return any(kernel.unit is Unit.MATRIX for kernel in graph.kernels)
