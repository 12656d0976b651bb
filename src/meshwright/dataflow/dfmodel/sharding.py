"""The peer's step of sharding: every byte costs one, whatever collective moves it.

A product over a dim that is summed over pays its output at once and leaves it whole: partial sums
are no layout. A tensor is copied for each reader, and each one pays for its own change. The dim
that passes in tiles is never split, weights always are, and a norm may be split along the row that
it needs whole. Source: the public implementation of Ko et al. 2024 (arXiv 2412.16432).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.dataflow.splits import PARTIAL, WHOLE, KernelSplit, Layout, splits_of
from meshwright.dataflow.tables import SplitTables
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import Kernel


def peer_tables(graph: DataflowGraph, degree: int, *, sums_are_free: bool = False) -> SplitTables:
    """Return the ways of all kernels in the peer's bytes.

    Parameters
    ----------
    sums_are_free
        Whether a product of two activations over a dim that is summed over pays nothing, as in one
        stored version: an error of the peer.
    """
    found = [_ways(kernel, graph.tiled) for kernel in graph.kernels]
    costs = []
    for kernel, ways in zip(graph.kernels, found, strict=True):
        is_free = sums_are_free and not kernel.weights
        paid = 0.0 if is_free else graph.tensor_bytes(kernel)
        costs.append(np.array([paid * split.writes.is_partial for split in ways]))
    return SplitTables(
        graph=replace(graph, repeats=1),
        degree=degree,
        splits=tuple(tuple(map(_closed, ways)) for ways in found),
        costs=tuple(costs),
        held_bytes=tuple(np.zeros(len(ways)) for ways in found),
        change_cost=_change_bytes,
        charges_each_reader=True,
    )


def _ways(kernel: Kernel, tiled: str) -> list[KernelSplit]:
    """Return the ways of a kernel, sums still open."""
    ways = [
        split
        for split in splits_of(replace(kernel, whole=frozenset()))
        if split.dim != tiled and PARTIAL not in split.reads
    ]
    return ways[1:] if kernel.weights else ways


def _closed(split: KernelSplit) -> KernelSplit:
    """Return a way that leaves no partial sums."""
    return replace(split, writes=WHOLE) if split.writes.is_partial else split


def _change_bytes(num_bytes: float, have: Layout, want: Layout) -> float:
    """Return the bytes of the tensor, unless it is there already or whole."""
    return 0.0 if have in (want, WHOLE) else num_bytes
