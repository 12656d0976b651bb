"""Order ideals: sets of kernels that hold all that their members read, as bits of whole numbers.

Kernels cut into parts that run one after the other are a chain of ideals, from none of the kernels
to all of them: part c is what ideal c has beyond ideal c - 1. Bit k stands for kernel k.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.errors import UnsupportedError
from meshwright.graph.dataflow.graph import DataflowGraph

MOST_IDEALS = 200_000
"""Ideals beyond which a graph is too wide to look at each of them."""


def reads_of(graph: DataflowGraph) -> tuple[int, ...]:
    """Return, for each kernel, the set of kernels that it reads."""
    found = [0] * len(graph.kernels)
    for edge in graph.edges:
        found[edge.consumer] |= 1 << edge.producer
    return tuple(found)


def order_ideals(reads: Sequence[int], *, most: int = MOST_IDEALS) -> tuple[int, ...]:
    """Return all order ideals, the smaller ones first: from the empty set to all kernels.

    Parameters
    ----------
    reads
        For each kernel, the set of kernels that must be in every ideal that holds it.
    most
        Ideals that may be found.

    Raises
    ------
    UnsupportedError
        When there are more: too many branches lie side by side.
    """
    found, latest = [0], {0}
    while latest:
        latest = {
            ideal | 1 << kernel
            for ideal in latest
            for kernel, needed in enumerate(reads)
            if not ideal >> kernel & 1 and needed & ~ideal == 0
        }
        if len(found) + len(latest) > most:
            message = f"more than {most} order ideals: too many branches lie side by side"
            raise UnsupportedError(message)
        found += sorted(latest)
    return tuple(found)


def members(kernels: int) -> tuple[int, ...]:
    """Return the numbers of the kernels in a set."""
    return tuple(place for place in range(kernels.bit_length()) if kernels >> place & 1)
