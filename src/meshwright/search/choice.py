"""Which of several nearly equal plans to recommend."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.search.best import TIE
from meshwright.search.exhaustive import Found
from meshwright.strategy.strategy import AXES


def num_axes_in_use(found: Found) -> int:
    """Return how many axes have more than one device, virtual stages counted as one more."""
    axes = sum(getattr(found.strategy, name) > 1 for name in AXES)
    return axes + (found.strategy.num_virtual_stages > 1)


def in_order_of_preference(found: Sequence[Found]) -> list[Found]:
    """Return candidates, preferred ones first: within a tie of the fastest, headroom decides.

    Ties (1 % of time) are ordered by memory, in steps of a GiB, then by the number of axes in use,
    then by time; the others follow in order of time.
    """
    if not found:
        return []
    limit_s = found[0].time_s * (1.0 + TIE)
    ties = [f for f in found if f.time_s <= limit_s]
    ties.sort(key=lambda f: (f.memory_bytes // 2**30, num_axes_in_use(f), f.time_s))
    return ties + [f for f in found if f.time_s > limit_s]
