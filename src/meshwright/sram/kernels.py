"""Kernels of any graph as a row to cut: what each holds, needs while it runs, and hands on.

A row is the kernels of the graph in their order, repetition after repetition. Nothing is stated
beside the graph: activations are the tensors alive while a kernel runs, buffers its sums before
they are rounded, and a cut sends every tensor that is still read behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.units import format_bytes
from meshwright.cost.operator import ACCUMULATOR_BYTES
from meshwright.dataflow.roofline import CalibratedSystem, Roofline
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import num_elements
from meshwright.spec.calibration import FREE_SUMS, SramConstants
from meshwright.sram.question import LayerSequence


@dataclass(frozen=True)
class Lifetime:
    """A tensor from the first kernel of the row that writes or reads it to the last that reads."""

    num_bytes: float
    first: int
    last: int
    is_in_place: bool = False
    """It overwrites a tensor that its writer reads: it takes no memory of its own until then."""


def lifetimes(graph: DataflowGraph) -> Iterator[Lifetime]:
    """Yield the tensors of a row of kernels, each with the kernels between which it is alive.

    Inputs of the graph arrive where they are first read. Outputs leave where they are written,
    unless the next repetition reads them.
    """
    count = len(graph.kernels)
    reads: dict[int, int] = {}
    inputs: dict[tuple[str, int], tuple[int, int]] = {}
    for turn in range(graph.repeats):
        for number, kernel in enumerate(graph.kernels):
            at = turn * count + number
            for operand in kernel.inputs:
                source = operand.source
                if source in graph.number:
                    reads[turn * count + graph.number[source]] = at
                elif turn and source in graph.carried:
                    reads[(turn - 1) * count + graph.carried[source]] = at
                else:
                    first, _ = inputs.get((source, turn), (at, at))
                    inputs[source, turn] = first, at
    for (name, _), (first, last) in inputs.items():
        num_bytes = graph.word_bytes * num_elements(graph.inputs[name], graph.sizes)
        yield Lifetime(num_bytes, first, last)
    for at in range(graph.repeats * count):
        kernel = graph.kernels[at % count]
        yield Lifetime(graph.tensor_bytes(kernel), at, reads.get(at, at), kernel.in_place)


def alive_bytes(tensors: list[Lifetime], count: int) -> tuple[FloatArray, FloatArray]:
    """Return the bytes alive while each kernel of a row runs, and those that a cut behind it sends.

    A tensor of b bytes that kernel i writes and kernel k reads last is alive at i .. k, and crosses
    the cuts behind i .. k - 1. Of a chain of three kernels with tensors of 4, 2 and 1 bytes, 8 read
    by the first: 12, 6 and 3 alive; 4, 2 and 0 sent.
    """
    alive, sent = np.zeros(count + 1), np.zeros(count + 1)
    for tensor in tensors:
        alive[tensor.first + tensor.is_in_place] += tensor.num_bytes
        alive[max(tensor.last + 1, tensor.first + tensor.is_in_place)] -= tensor.num_bytes
        sent[tensor.first] += tensor.num_bytes
        sent[tensor.last] -= tensor.num_bytes
    return np.cumsum(alive)[:-1], np.cumsum(sent)[:-1]


def kernel_row(
    graph: DataflowGraph, machine: CalibratedSystem | None = None, level: int = 0,
    sums: SramConstants = FREE_SUMS,
) -> LayerSequence:  # fmt: skip
    """Return the kernels of a graph as a row of layers on one device each.

    A kernel that sums holds its results in FP32 until they are rounded: 4 bytes an element. One
    whose weight others read too holds a copy.

    Parameters
    ----------
    machine
        Devices on which a kernel takes the time of the roofline; None: times are not known.
    level
        Level of their memory, near to far, whose rate counts.
    sums
        Seconds of a sum over the cores of a chip that serves from SRAM; kernels that sum wait.
    """
    count, repeats = len(graph.kernels), graph.repeats
    alive, sent = alive_bytes(list(lifetimes(graph)), count * repeats)

    def column(values: list[float]) -> FloatArray:
        return np.tile(np.array(values, dtype=np.float64), repeats)

    weights = [sum(map(graph.tensor_bytes, kernel.weights)) for kernel in graph.kernels]
    buffers = [
        ACCUMULATOR_BYTES * num_elements(kernel.dims, graph.sizes)
        if kernel.contracted and graph.word_of(kernel) < ACCUMULATOR_BYTES
        else 0.0
        for kernel in graph.kernels
    ]
    times: dict[str, FloatArray] = {}
    if machine is not None:
        roofline = Roofline(graph, _recorded(machine, level), degree=1)
        waits = [sums.reduction_s if kernel.contracted else 0.0 for kernel in graph.kernels]
        times = {
            "kernels_s": column([roofline.kernel_s(n, None) for n in range(count)]),
            "reduction_s": column(waits),
        }
    return LayerSequence(
        names=tuple(
            kernel.name if repeats == 1 else f"{turn}.{kernel.name}"
            for turn in range(repeats)
            for kernel in graph.kernels
        ),
        resident_bytes={"weights": column(weights)},
        transient_bytes={"activations": alive, "buffers": column(buffers)},
        kept_bytes=np.zeros(count * repeats),
        time_parts_s=times,
        output_bytes=sent,
    )


def _recorded(machine: CalibratedSystem, level: int) -> CalibratedSystem:
    """Return devices whose last memory is this level, and whose kernels are recorded."""
    chip = machine.spec.chip
    held = chip.model_copy(update={"memories": chip.memories[: level + 1]})
    system = machine.spec.model_copy(update={"chip": held})
    return CalibratedSystem(system, replace(machine.calibration, launch_s=0.0))


def row_notes(graph: DataflowGraph) -> Iterator[str]:
    """Yield what the row of a graph counts in a way of its own."""
    held = [weight for kernel in graph.kernels for weight in kernel.weights]
    once = {weight.name: graph.tensor_bytes(weight) for weight in held}
    copies = graph.repeats * (sum(map(graph.tensor_bytes, held)) - sum(once.values()))
    if copies:
        yield (f"kernels that read the same weight hold a copy each: {format_bytes(copies)} more "
               "than the weights")  # fmt: skip
