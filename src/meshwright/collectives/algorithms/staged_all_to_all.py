"""All-to-all in stages over the levels; on grids by shifts, all dimensions at once.

Each stage moves S bytes per member along one level and sends few, large messages. On several grid
dimensions the data is cut into as many parts, each with its own order, so that every link works
in every phase and the time comes near the bisection bound. Along a line without a wrap link each
parcel is a message of its own, or what comes from one member is relayed together: fewer messages,
which is better for few bytes.
Source: Thakur, Rabenseifner and Gropp 2005 (stages); hop counts of shifts derived here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.base.arrays import Num, larger
from meshwright.collectives.exchanges import (
    all_to_all_transfers,
    exchange_affine,
    num_exchange_chunks,
)
from meshwright.collectives.group import Group
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.collectives.stages import shape_of
from meshwright.spec.collective import CollectiveKind


class Staged(Algorithm):
    """An all-to-all in stages along one level at a time."""

    kind = CollectiveKind.ALL_TO_ALL
    replay_slack = 0.5

    def __init__(self, *, relays: bool) -> None:
        self.relays = relays
        """Whether a line hands on together what comes from one member."""

    def may_apply(self, group: Group[Any]) -> bool:
        """Return whether there is a line to relay along, where it does."""
        return not self.relays or any(span.is_grid for span in group.spans)


@collective("hierarchical_all_to_all", relays=False)
@collective("hierarchical_relay_all_to_all", relays=True)
class HierarchicalAllToAll(Staged):
    """One stage after the other, innermost level first."""

    def affine(self, group: Group[Num]) -> tuple[Num, Num]:
        """Return the sum of the stages."""
        fixed_s: Any = 0.0
        slope: Any = 0.0
        for span in group.spans:
            stage_s, stage_slope = exchange_affine(span, relays=self.relays)
            fixed_s, slope = fixed_s + stage_s, slope + stage_slope
        return where_it_applies(True, group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return two halves for each member."""
        return num_exchange_chunks(group, 1)

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of all stages."""
        return all_to_all_transfers(
            num_bytes, group, [tuple(range(len(group.spans)))], relays=self.relays
        )


@collective("rotated_all_to_all", relays=False)
@collective("rotated_relay_all_to_all", relays=True)
class RotatedAllToAll(Staged):
    """Parts of the data that visit the grid dimensions in rotated orders."""

    def affine(self, group: Group[Num]) -> tuple[Num, Num]:
        """Return as many phases as dimensions, each as long as its slowest one."""
        grids_only: Any = True
        phases: Any = 0.0
        fixed_s: Any = 0.0
        slope: Any = 0.0
        for span in group.spans:
            stage_s, stage_slope = exchange_affine(span, relays=self.relays)
            grids_only = grids_only & ((span.size == 1.0) | span.is_grid)
            phases = phases + (span.size > 1.0)
            fixed_s, slope = larger(fixed_s, stage_s), larger(slope, stage_slope)
        applies = grids_only & (phases > 1.0)
        return where_it_applies(applies, group, fixed_s * phases, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return two halves of each part for each member."""
        return num_exchange_chunks(group, len(self._orders(group)))

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of all parts and stages."""
        return all_to_all_transfers(num_bytes, group, self._orders(group), relays=self.relays)

    def _orders(self, group: Group[float]) -> list[tuple[int, ...]]:
        """Return an order for each spanned dimension to begin with."""
        spanned = [level for level, size in enumerate(shape_of(group)) if size > 1] or [0]
        return [(*spanned[k:], *spanned[:k]) for k in range(len(spanned))]
