"""Graphs one behind the other as one graph: layers unrolled, or a whole model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.base.errors import Fault, SpecError
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Kernel, Operand


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
