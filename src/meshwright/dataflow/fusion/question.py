"""The question of fusion: a graph, chips with their links, degrees, a tile and a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod

from meshwright.base.errors import Fault, SpecError
from meshwright.base.records import Brief
from meshwright.catalog.calibration import DEFAULT, load_calibration
from meshwright.catalog.systems import load_chip, load_system
from meshwright.dataflow.fusion.answer import Objective
from meshwright.dataflow.fusion.cores import CoreGrid, grid_of, tileable_dims
from meshwright.dataflow.fusion.problem import OWN, Rules
from meshwright.dataflow.roofline import dtype_of_product
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.spec.system import DType

LEAST_TILE = 16
"""The smallest tile that is tried where none is given, of dims that are much longer."""
MOST_POINTS = 2**60
"""Most points of one kernel: cycles are whole numbers of 64 bits."""


@dataclass(frozen=True)
class Target(Brief):
    """A chip, and one direction of the links between such chips."""

    name: str
    grid: CoreGrid
    link_bytes_per_s: float | None = None
    dtype: DType = "bf16"
    """Type of the numbers for which the rate of products is stated."""


@dataclass(frozen=True)
class FusionQuestion(Brief):
    """Graph, chips and limits of a fusion."""

    graph: DataflowGraph
    target: Target
    tp: int = 1
    """Chips over which kernels are split."""
    pp: int = 1
    """Stages over which repetitions are spread."""
    tile: int | None = None
    """Length of a tile; None: the best power of two."""
    micro_batch: int | None = None
    """Sequences of a micro-batch; None: the best."""
    rules: Rules = OWN
    runs_by_kernel: bool = False
    objective: Objective = "throughput"
    """Goal of the search: passes a second of a stream, or the latency of one pass alone."""
    num_passes: int | None = None
    """Passes of the stream; None: without end."""

    @property
    def repeats(self) -> int:
        """Repetitions of the graph on one chip."""
        return -(-self.graph.repeats // self.pp)


def target_named(
    name: str, link_bytes_per_s: float | None = None, number_bytes: float = 2.0
) -> Target:
    """Return a chip of the catalog or a file.

    Its rate is that of products of such numbers; of wider ones where the chip states none for them,
    and of 16 bits where it states none for those either.
    """
    chip = load_chip(name)
    dtype = dtype_of_product(chip, number_bytes) or chip.word
    launch_s = float(load_calibration(chip.family, DEFAULT).launch_s)
    host = load_system(chip.standard_system).host if chip.standard_system else None
    return Target(chip.name, grid_of(chip, launch_s, dtype, host), link_bytes_per_s, dtype)


def check_question(question: FusionQuestion) -> None:
    """Refuse a question that cannot be fused.

    Raises
    ------
    SpecError
        With all its faults.
    """
    graph, faults = question.graph, []
    length = graph.sizes[graph.tiled]
    for kernel in graph.kernels:
        points = prod(graph.sizes[dim] for dim in kernel.points)
        if points > MOST_POINTS:
            message = f"runs over {points:.3g} points"
            faults.append(Fault(f"kernels.{kernel.name}", message, f"at most {MOST_POINTS:.3g}"))
    if question.tile is not None and question.tile > length:
        message = f"{question.tile} is longer than {graph.tiled}"
        faults.append(Fault("--tile", message, f"at most {length}"))
    if question.pp > graph.repeats:
        message = f"{question.pp} stages, but {graph.name} stands {graph.repeats} times in a row"
        faults.append(Fault("--pp", message, f"at most {graph.repeats}"))
    if max(question.tp, question.pp) > 1 and question.target.link_bytes_per_s is None:
        message = "is needed where several chips share the work"
        faults.append(Fault("--link", message, "such as 25GB/s, one direction of one link"))
    if question.objective == "latency":
        told = {"--micro-batch": question.micro_batch, "--passes": question.num_passes}
        faults += [
            Fault(name, f"found {number}, but one pass alone has the latency", "1")
            for name, number in told.items()
            if number is not None and number > 1
        ]
    elif (question.micro_batch or 1) > (question.num_passes or inf):
        message = f"{question.micro_batch} passes in flight of a stream of {question.num_passes}"
        faults.append(Fault("--micro-batch", message, f"at most {question.num_passes}"))
    if faults:
        raise SpecError(faults)


def tilings(graph: DataflowGraph, tile: int | None = None) -> list[tuple[DataflowGraph, int]]:
    """Return the tiles from which partitions choose: of each dim that may pass so, a graph of it.

    A tile that is given is of the dim that the graph states.
    """
    if tile is not None:
        return [(graph, tile)]
    graphs = [replace(graph, tiled=dim) for dim in tileable_dims(graph)]
    return [(of_dim, size) for of_dim in graphs for size in tiles_of(of_dim)]


def tiles_of(graph: DataflowGraph) -> list[int]:
    """Return the tiles to try: powers of two and the whole length.

    Of dims of up to ``LEAST_TILE`` such tiles all powers are tried: images are few and large.
    """
    length = graph.sizes[graph.tiled]
    least = LEAST_TILE if length > LEAST_TILE**2 else 1
    powers = [1 << power for power in range(length.bit_length())]
    return sorted({size for size in powers if least <= size < length} | {length})
