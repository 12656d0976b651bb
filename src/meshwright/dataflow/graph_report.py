"""A graph on the screen: the work, traffic and memory of each kernel, and its splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from typing_extensions import TypedDict

from meshwright.base.units import format_si
from meshwright.dataflow.layouts import splits_of
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Dims, Kernel, Unit, num_elements
from meshwright.view.screen import Bars, Screen
from meshwright.view.words import counted

COLUMNS = 100
MOST_INPUTS = 4
MOST_LETTERS = 44
"""Longest name of a kernel without its own line."""


class KernelRecord(TypedDict):
    """A kernel of a graph, of one repetition."""

    name: str
    phase: str
    unit: str
    reads: Sequence[str]
    dims: Sequence[str]
    flops: float
    written_bytes: float
    weight_bytes: float
    splits: Sequence[str]
    """Dims over which the kernel may be split."""


class GraphRecord(TypedDict):
    """A graph, one repetition but for the totals."""

    name: str
    repeats: int
    tiled: str
    dims: Mapping[str, int]
    num_kernels: int
    num_tensors: int
    num_parameters: float
    flops: float
    kernels: Sequence[KernelRecord]


def graph_record(graph: DataflowGraph) -> GraphRecord:
    """Return a graph as data."""
    return {
        "name": graph.name,
        "repeats": graph.repeats,
        "tiled": graph.tiled,
        "dims": graph.sizes,
        "num_kernels": len(graph.kernels),
        "num_tensors": len(graph.edges),
        "num_parameters": graph.num_parameters,
        "flops": graph.flops,
        "kernels": [_kernel_record(graph, kernel) for kernel in graph.kernels],
    }


def graph_screen(graph: DataflowGraph, *, next_command: str = "") -> Screen:
    """Return the screen of a graph, its kernels with the most work first."""
    shown = graph.inputs.keys() - set(graph.constants)
    often = f", {graph.repeats} times" if graph.repeats > 1 else ""
    kernels, tensors = counted(len(graph.kernels), "kernel"), counted(len(graph.edges), "tensor")
    screen = Screen(f"{graph.name}: {kernels}, {tensors}{often}")
    screen.gap()
    work = {kernel.name: graph.repeats * kernel.flops(graph.sizes) for kernel in graph.kernels}
    products = sum(work[k.name] for k in graph.kernels if k.unit is Unit.MATRIX)
    screen.add("work", f"{format_si(graph.flops, 'FLOP')}, {format_si(products, 'FLOP')} of it in "
               "products", style="bold green")  # fmt: skip
    held = f"{graph.num_parameters:,.0f} parameters, numbers of {graph.word_bytes:g} bytes"
    screen.add("weights", held)
    inputs = [_tensor(graph, name, dims) for name, dims in graph.inputs.items() if dims]
    screen.add("reads", ", ".join(inputs[:MOST_INPUTS]) + (", ..." * (len(inputs) > MOST_INPUTS)))
    made = (graph.kernels[graph.number[name]] for name in graph.outputs[:MOST_INPUTS])
    screen.add("writes", ", ".join(_tensor(graph, k.name, k.dims) for k in made))
    screen.add("tiled", graph.tiled + (f"; gradients of {', '.join(shown)}" if shown else ""))
    screen.gap()
    screen.add("kernels", Bars(work, lambda flops: format_si(flops, "FLOP"), most=8), spare=1)
    if next_command:
        screen.gap()
        screen.add("next", next_command, style="bold")
    return screen


def _tensor(graph: DataflowGraph, name: str, dims: Dims) -> str:
    """Return a tensor with the size of each dim."""
    sizes = (f"{dim} {num_elements((dim,), graph.sizes):.0f}" for dim in dims)
    return f"{name}[{', '.join(sizes)}]"


def graph_lines(graph: DataflowGraph) -> Iterator[str]:
    """Yield a table of the kernels."""
    often = f", {graph.repeats} times" if graph.repeats > 1 else ""
    kernels, tensors = counted(len(graph.kernels), "kernel"), counted(len(graph.edges), "tensor")
    yield f"{graph.name}: {kernels}, {tensors}{often}"
    yield f"{graph.num_parameters:,.0f} parameters, {format_si(graph.flops, 'FLOP')} in all"
    sizes = ", ".join(f"{dim} {size}" for dim, size in graph.sizes.items())
    yield from wrap(f"dims: {sizes}", COLUMNS, subsequent_indent=" " * 6)
    yield ""
    records = [_kernel_record(graph, kernel) for kernel in graph.kernels]
    width = min(max(len("kernel"), *(len(record["name"]) for record in records)), MOST_LETTERS)
    head = f"{'kernel':<{width}} {'unit':<6} {'FLOP':>7} {'writes B':>8} {'holds B':>7}  "
    yield f"{head}may be split over"
    for record in records:
        yield from _kernel_lines(record, width, len(head))


def _kernel_lines(record: KernelRecord, width: int, indent: int) -> Iterator[str]:
    """Yield a kernel on one line, and on further ones where its dims are many."""
    counts = record["flops"], record["written_bytes"], record["weight_bytes"]
    flops, written, held = map(_short, counts)
    name = record["name"]
    if len(name) > width:
        yield name
        name = ""
    head = f"{name:<{width}} {record['unit']:<6} {flops:>7} {written:>8} {held:>7}  "
    splits = wrap(", ".join(record["splits"]), max(COLUMNS - indent, 20)) or ["none of its dims"]
    yield f"{head}{splits[0]}"
    yield from (" " * indent + line for line in splits[1:])


def _kernel_record(graph: DataflowGraph, kernel: Kernel) -> KernelRecord:
    splits = (split.dim for split in splits_of(kernel))
    return {
        "name": kernel.name,
        "phase": kernel.phase.value,
        "unit": kernel.unit.value,
        "reads": [read.source for read in kernel.inputs],
        "dims": list(kernel.dims),
        "flops": kernel.flops(graph.sizes),
        "written_bytes": graph.tensor_bytes(kernel),
        "weight_bytes": sum(graph.tensor_bytes(weight) for weight in kernel.weights),
        "splits": [dim for dim in splits if dim is not None],
    }


def _short(number: float) -> str:
    """Return a count with its prefix, or a dash for nothing."""
    return format_si(number, "").strip() if number else "-"
