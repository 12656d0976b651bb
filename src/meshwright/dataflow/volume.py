"""Bytes as the price: what one device sends when collectives run round a ring.

This is what the textbook argument for sequence parallelism counts. It knows no latency and no
topology; :mod:`meshwright.dataflow.seconds` does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.dataflow.changes import collective_of, payload_bytes
from meshwright.dataflow.memory import Holdings
from meshwright.dataflow.splits import WHOLE, KernelSplit, Layout, splits_of
from meshwright.dataflow.tables import SplitTables
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Kernel, single_dims
from meshwright.graph.dataflow.readings import ends
from meshwright.spec.collective import CollectiveKind

_TIMES_ROUND = {CollectiveKind.ALL_REDUCE: 2.0}
Splits = Callable[[Kernel], tuple[KernelSplit, ...]]


def ring_bytes(kind: CollectiveKind, num_bytes: float, degree: int) -> float:
    """Return what a device sends to its neighbour on a ring: (n - 1)/n, twice for an all-reduce.

    Bytes are those of the full tensor on one rank. Source: Patarasuk and Yuan 2009.
    """
    return _TIMES_ROUND.get(kind, 1.0) * num_bytes * (degree - 1) / degree


def volume_tables(graph: DataflowGraph, degree: int, *, splits: Splits = splits_of) -> SplitTables:
    """Return the ways to split a graph, priced by the bytes that a device sends.

    What leaves the graph for good has no open sums. Memory is that of weights and of what kernels
    write, in the word of the graph.
    """
    ways = tuple(splits(kernel) for kernel in graph.kernels)
    holdings, last = Holdings(graph, degree), ends(graph)

    def change_cost(tensor_bytes: float, have: Layout, want: Layout) -> float:
        kind = collective_of(have, want)
        if kind is None:
            return 0.0
        return ring_bytes(kind, payload_bytes(kind, tensor_bytes, degree), degree)

    def sum_cost(number: int, split: KernelSplit) -> float:
        is_open = number in last and split.writes.is_partial
        tensor_bytes = graph.tensor_bytes(graph.kernels[number])
        return change_cost(tensor_bytes, split.writes, WHOLE) if is_open else 0.0

    return SplitTables(
        graph=graph,
        degree=degree,
        splits=ways,
        costs=tuple(
            np.array([sum_cost(number, split) for split in found])
            for number, found in enumerate(ways)
        ),
        held_bytes=tuple(
            np.array([holdings.kernel_bytes(number, split) for split in found])
            for number, found in enumerate(ways)
        ),
        change_cost=change_cost,
    )


def weights_split(kernel: Kernel) -> tuple[KernelSplit, ...]:
    """Return the ways in which no device holds a whole weight, where a kernel has any."""
    held = {dim for weight in kernel.weights for dim in single_dims(weight.dims)}
    ways = splits_of(kernel)
    return tuple(split for split in ways if split.dim in held) if held else ways
