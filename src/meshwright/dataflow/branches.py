"""A bound of all splits of the kernels: branch and bound over the splits of the largest ones.

A bound that leaves splits open takes each quantity of a kernel at its least over them: the cycles
of one split, the weights of another. Where the split of a large kernel is known, that mix is gone,
and its collectives count. So the branch of the least bound is divided by the splits of its largest
open kernel, until no branch is better than a known answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

OpenDims = Mapping[str, tuple[str | None, ...]]
"""Dims over which each kernel may be split."""
MOST_BRANCHES = 36
"""Most branches with a bound."""
MOST_STALLED = 16
"""Most of them during which the bound rises by less than a thousandth."""
RISE = 1.001


def least_of_branches(
    open_dims: OpenDims,
    largest: Sequence[str],
    bound_s: Callable[[OpenDims], float],
    known_s: float,
    least_s: float = 0.0,
) -> float:
    """Return seconds that no splits undercut, up to those that are known.

    Parameters
    ----------
    open_dims
        Dims of all kernels.
    largest
        Kernels in the order in which their splits are told apart.
    bound_s
        Function from open dims to seconds that none of their splits undercuts.
    known_s
        Seconds of a known answer.
    least_s
        Seconds that no splits undercut, as far as is known.
    """
    waiting, count, rises = [(least_s, 0, open_dims)], 0, 0
    while waiting[0][0] < known_s and count < MOST_BRANCHES and count - rises < MOST_STALLED:
        kernel = next((name for name in largest if len(waiting[0][2][name]) > 1), None)
        if kernel is None:
            break
        least_s, _, dims = heappop(waiting)
        for dim in dims[kernel]:
            count += 1
            branch = {**dims, kernel: (dim,)}
            heappush(waiting, (max(least_s, bound_s(branch)), count, branch))
        if waiting[0][0] > least_s * RISE:
            rises = count
    return min(waiting[0][0], known_s)
