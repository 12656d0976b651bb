"""Which of several nearly equal plans to recommend."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.search.best import TIE
from meshwright.search.exhaustive import Found
from meshwright.strategy.strategy import AXES, Offload


def num_axes_in_use(found: Found) -> int:
    """Return how many axes have more than one device, virtual stages counted as one more."""
    axes = [name for name in AXES if getattr(found.strategy, name) > 1]
    return len(axes) + int(found.strategy.num_virtual_stages > 1)


def _preference(found: Found) -> tuple[bool, float, int, float]:
    """Return what decides among ties: no offload, memory in GiB, number of axes, time."""
    offloads = found.structure.offload is not Offload.NONE
    return offloads, found.memory_bytes // 2**30, num_axes_in_use(found), found.time_s


def in_order_of_preference(found: Sequence[Found]) -> list[Found]:
    """Return candidates, preferred ones first: within a tie of the fastest, headroom decides.

    Ties (1 % of time) that need no host memory come first; then less memory in steps of a GiB,
    then fewer axes, then time decides. The others follow in order of time.
    """
    if not found:
        return []
    limit_s = found[0].time_s * (1.0 + TIE)
    ties = [f for f in found if f.time_s <= limit_s]
    ties.sort(key=_preference)
    return ties + [f for f in found if f.time_s > limit_s]
