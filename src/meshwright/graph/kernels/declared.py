"""Conversion between the declaration of a graph in a file and the graph for solvers."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from meshwright.base.errors import Fault, SpecError
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import (
    Kernel,
    KernelMessage,
    MessageKind,
    Operand,
    Unit,
    Weight,
)
from meshwright.graph.op import Phase
from meshwright.spec.graph import GraphSpec, KernelSpec, MessageSpec, NamedTensor

_SHARED = ("name", "inputs", "outputs", "tiled", "word_bytes", "numbers_per_word", "repeats",
           "constants", "output_layouts")  # fmt: skip
"""Fields of the same name and meaning in a declaration and in a graph."""


def to_graph(spec: GraphSpec) -> DataflowGraph:
    """Return the graph of a declaration, its kernels in an order in which they can run.

    Raises
    ------
    SpecError
        When kernels wait for one another.
    """
    return DataflowGraph(
        kernels=tuple(_kernel(name, spec.kernels[name]) for name in _order(spec)),
        sizes=dict(spec.dims),
        **{name: getattr(spec, name) for name in _SHARED},
    )


def to_spec(graph: DataflowGraph, *, about: str = "") -> GraphSpec:
    """Return the declaration of a graph; :func:`to_graph` returns the same graph again."""
    kernels = {kernel.name: _kernel_spec(kernel) for kernel in graph.kernels}
    shared = {name: getattr(graph, name) for name in _SHARED}
    return GraphSpec(about=about, dims=dict(graph.sizes), kernels=kernels, **shared)


def _order(spec: GraphSpec) -> tuple[str, ...]:
    """Return the kernels, each behind those that it reads, as far as possible in given order."""
    reads: Mapping[str, list[str]] = {
        name: [read.name for read in kernel.reads if read.name in spec.kernels]
        for name, kernel in spec.kernels.items()
    }
    seen: set[str] = set()
    for name, sources in reads.items():
        if not seen.issuperset(sources):
            break
        seen.add(name)
    else:
        return tuple(reads)
    try:
        return tuple(TopologicalSorter(reads).static_order())
    except CycleError as error:
        path = " reads ".join(reversed(error.args[1]))
        raise SpecError(Fault("kernels", f"a cycle: {path}"), origin=spec.name) from None


def _usual_flops(unit: Unit) -> float:
    return 2.0 if unit is Unit.MATRIX else 1.0


def _kernel(name: str, spec: KernelSpec) -> Kernel:
    unit = Unit(spec.unit)
    flops = _usual_flops(unit) if spec.flops_per_point is None else spec.flops_per_point
    return Kernel(
        name=name,
        unit=unit,
        dims=spec.writes,
        inputs=tuple(Operand(read.name, read.dims) for read in spec.reads),
        weights=tuple(Weight(w.name, w.dims, w.word_bytes) for w in spec.weights),
        whole=frozenset(spec.whole),
        flops_per_point=flops,
        word_bytes=spec.word_bytes,
        phase=Phase(spec.phase),
        messages=tuple(KernelMessage(MessageKind(m.kind), m.size_bytes) for m in spec.messages),
        is_sum=spec.is_sum,
        in_place=spec.in_place,
    )


def _kernel_spec(kernel: Kernel) -> KernelSpec:
    is_usual = kernel.flops_per_point == _usual_flops(kernel.unit)
    return KernelSpec(
        unit=kernel.unit.value,
        reads=tuple(NamedTensor(read.source, read.dims) for read in kernel.inputs),
        weights=tuple(NamedTensor(w.name, w.dims, w.word_bytes) for w in kernel.weights),
        writes=kernel.dims,
        whole=tuple(sorted(kernel.whole)),
        flops_per_point=None if is_usual else kernel.flops_per_point,
        word_bytes=kernel.word_bytes,
        phase=kernel.phase.value,
        is_sum=kernel.is_sum,
        in_place=kernel.in_place,
        messages=tuple(
            MessageSpec(kind=message.kind.value, size_bytes=message.num_bytes)
            for message in kernel.messages
        ),
    )
