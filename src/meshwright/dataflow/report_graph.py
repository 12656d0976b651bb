"""A graph of kernels: what each of them does, moves and holds, and how it may be split."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from meshwright.base.units import format_si
from meshwright.dataflow.splits import splits_of
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Kernel
from meshwright.report.screen import counted

COLUMNS = 100
MOST_LETTERS = 44
"""A longer name of a kernel has a line of its own."""


def graph_record(graph: DataflowGraph) -> dict[str, Any]:
    """Return a graph as data, in SI units, one repetition but for the totals."""
    return {
        "name": graph.name,
        "repeats": graph.repeats,
        "tiled": graph.tiled,
        "dims": dict(graph.sizes),
        "num_kernels": len(graph.kernels),
        "num_tensors": len(graph.edges),
        "num_parameters": graph.num_parameters,
        "flops": graph.flops,
        "kernels": [_kernel_record(graph, kernel) for kernel in graph.kernels],
    }


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


def _kernel_lines(record: dict[str, Any], width: int, indent: int) -> Iterator[str]:
    """Yield a kernel on one line, and on further ones where its dims are many."""
    flops, written, held = (
        _short(record[key]) for key in ("flops", "written_bytes", "weight_bytes")
    )
    name = record["name"]
    if len(name) > width:
        yield name
        name = ""
    head = f"{name:<{width}} {record['unit']:<6} {flops:>7} {written:>8} {held:>7}  "
    splits = wrap(", ".join(record["splits"]), max(COLUMNS - indent, 20)) or ["none of its dims"]
    yield f"{head}{splits[0]}"
    yield from (" " * indent + line for line in splits[1:])


def _kernel_record(graph: DataflowGraph, kernel: Kernel) -> dict[str, Any]:
    splits = (split.dim for split in splits_of(kernel))
    return {
        "name": kernel.name,
        "phase": kernel.phase.value,
        "unit": kernel.unit.value,
        "reads": [read.source for read in kernel.inputs],
        "dims": list(kernel.dims),
        "flops": kernel.flops(graph.sizes),
        "written_bytes": graph.tensor_bytes(kernel),
        "weight_bytes": sum(graph.weight_bytes(weight) for weight in kernel.weights),
        "splits": [dim for dim in splits if dim is not None],
    }


def _short(number: float) -> str:
    """Return a count with its prefix, or a dash for nothing."""
    return format_si(number, "").strip() if number else "-"
