"""Who reads what of whom, within a repetition of a graph and across to the next one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import num_elements
from meshwright.graph.op import Phase


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
