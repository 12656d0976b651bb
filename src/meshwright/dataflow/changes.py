"""What has to be sent so that a tensor which lies in one layout also lies in others.

One change is one collective: the rule of shardings (:func:`meshwright.sharding.sharding.reshard`)
on a single axis. A tensor that several readers want is changed once for each layout that is asked
for, from any layout in which it lies by then: what is whole is cut without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

from meshwright.dataflow.splits import WHOLE, Layout
from meshwright.sharding.sharding import Sharding, reshard
from meshwright.spec.collective import CollectiveKind

AXIS = "group"
CostOf = Callable[[Layout, Layout], float]
"""What the change from one layout to another costs."""


@dataclass(frozen=True)
class Change:
    """One change of the layout of a tensor."""

    have: Layout
    want: Layout

    @property
    def kind(self) -> CollectiveKind | None:
        """The collective that does it; None where every device has what it needs."""
        return collective_of(self.have, self.want)


@cache
def collective_of(have: Layout, want: Layout) -> CollectiveKind | None:
    """Return the collective that brings a tensor from one layout to another.

    Any tensor is a partial sum as it lies: of a whole one only the first device adds its own, and
    parts that are split are zero elsewhere.
    """
    if have == want or want.is_partial:
        return None
    moves = reshard(_sharding(have), _sharding(want))
    return moves[0].kind


def _sharding(layout: Layout) -> Sharding:
    if layout.is_partial:
        return Sharding(partial=(AXIS,))
    return Sharding({} if layout.place is None else {str(layout.place): (AXIS,)})


def payload_bytes(kind: CollectiveKind, tensor_bytes: float, degree: int) -> float:
    """Return the bytes that a collective counts for a tensor: the full tensor on one rank.

    In an all-to-all a rank sends what it holds: its shard.
    """
    return tensor_bytes / degree if kind is CollectiveKind.ALL_TO_ALL else tensor_bytes


def cheapest_changes(
    have: Layout, wanted: Collection[Layout], cost: CostOf
) -> tuple[float, tuple[Change, ...]]:
    """Return the cheapest way to have a tensor in all wanted layouts, and what it costs."""
    targets = tuple(sorted(set(wanted), key=str))
    costs, ways = _ways(have, targets, cost)
    full = (1 << len(targets)) - 1
    return costs[full], ways[full]


def costs_of_sets(have: Layout, targets: Sequence[Layout], cost: CostOf) -> list[float]:
    """Return what each set of targets costs; bit k of its number stands for target k."""
    return _ways(have, tuple(targets), cost)[0]


def _ways(
    have: Layout, targets: tuple[Layout, ...], cost: CostOf
) -> tuple[list[float], list[tuple[Change, ...]]]:
    """Return the cheapest way to each set of targets: one layout after the other, from any.

    The tensor may be made whole on the way, although nobody asks for that.
    """
    layouts = targets if WHOLE in targets else (*targets, WHOLE)
    size = 1 << len(layouts)
    costs = [0.0, *([inf] * (size - 1))]
    ways: list[tuple[Change, ...]] = [()] * size
    for reached in range(size):
        there = [have, *(layout for k, layout in enumerate(layouts) if reached >> k & 1)]
        for k, want in enumerate(layouts):
            if not reached >> k & 1:
                least, source = min((cost(layout, want), n) for n, layout in enumerate(there))
                if costs[reached] + least < costs[reached | 1 << k]:
                    costs[reached | 1 << k] = costs[reached] + least
                    ways[reached | 1 << k] = (*ways[reached], Change(there[source], want))
    if WHOLE in targets:
        return costs, ways
    half = size // 2
    best = [k if costs[k] <= costs[k | half] else k | half for k in range(half)]
    return [costs[k] for k in best], [ways[k] for k in best]
