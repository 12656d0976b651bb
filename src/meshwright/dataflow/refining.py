"""Splits changed kernel by kernel for as long as their fusion gets faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.choices import SplitChoices
from meshwright.dataflow.fusion.bound import bound_s
from meshwright.dataflow.fusion.choosing import KnownOrders, shared_orders
from meshwright.dataflow.fusion.fusion import fuse
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.fusion.result import Fusion
from meshwright.dataflow.ring import NETWORK, Ring
from meshwright.dataflow.splitting import Split

MOST_STEPS = 20_000
"""Between ideals of the graph: fusion of larger ones takes too long to be done for each kernel."""


def refined(
    ring: Ring, split: Split, fusion: Fusion, problem_of: Callable[[Split], FusionProblem]
) -> tuple[Split, Fusion]:
    """Return a split, and its fusion, that no other way of a single kernel makes faster.

    Parameters
    ----------
    split, fusion
        Where the search starts; of a large graph they are returned as they are.
    problem_of
        What is fused for a split.
    """
    if fusion.counts.num_steps > MOST_STEPS:
        return split, fusion
    known: KnownOrders = {}
    is_better = True
    while is_better:
        is_better = False
        for other in list(_neighbours(ring, split)):
            found = _faster(problem_of(other), fusion.time_s, known)
            if found is not None:
                split, fusion, is_better = other, found, True
                break
    return split, fusion


def _faster(problem: FusionProblem, enough_s: float, known: KnownOrders) -> Fusion | None:
    """Return the fusion of a problem where it takes less than is known."""
    if bound_s(problem) >= enough_s:
        return None
    try:
        found = fuse(problem, shared_orders(problem, known))
    except InfeasibleError:
        return None
    return found if found.time_s < enough_s else None


def _neighbours(ring: Ring, split: Split) -> Iterator[Split]:
    """Yield the splits in which one kernel is split in another way."""
    tables = ring.tables(NETWORK, splits_weights=ring.trains)
    network, kernels = SplitChoices(tables), ring.graph.kernels
    ways = [
        next(n for n, way in enumerate(listed) if way.dim == split.dims[kernel.name])
        for kernel, listed in zip(kernels, tables.splits, strict=True)
    ]
    for number, (kernel, listed) in enumerate(zip(kernels, tables.splits, strict=True)):
        for way, other in enumerate(listed):
            if other.dim != split.dims[kernel.name]:
                changed = [*ways[:number], way, *ways[number + 1 :]]
                yield Split(
                    {**split.dims, kernel.name: other.dim}, network.costs_by_kernel(changed)
                )
