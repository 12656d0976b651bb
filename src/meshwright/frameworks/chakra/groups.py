"""The ranks of a plan and the groups that they form, numbered in the order of the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import Strategy

PIPELINE_ENDS = "pp ends"
"""The first and the last stage of each pipeline."""
_DENSE_AXES = ("tp", "cp", "dp_shard", "dp_replicate")
"""Dense axes; the experts use their devices again."""
_EXPERT_AXES = ("edp_replicate", "edp_shard", "ep", "etp")
"""Axes of the experts, outermost first."""
_PRODUCTS = {"dp": ("dp_shard", "dp_replicate"), "edp": ("edp_shard", "edp_replicate")}


MOST_GROUPS_PER_RANK = 16
"""Most groups of a rank: axes and products of axes."""


class RankMesh:
    """Ranks 0 to n - 1 on the axes of a strategy; the first axis of the order changes fastest.

    Experts have another order of the devices of a stage: etp changes fastest, then ep, then copies.
    """

    def __init__(self, strategy: Strategy, axis_order: Sequence[str]) -> None:
        self.strategy = strategy
        self.axes = tuple(reversed(axis_order))
        sizes = [int(getattr(strategy, axis)) for axis in self.axes]
        self.ranks: IntArray = np.arange(prod(sizes)).reshape(sizes)
        """Ranks by their coordinates, outermost axis first."""
        self.names: dict[tuple[int, ...], int] = {}
        """Numbers of the groups asked for, all with the same number of digits."""
        self._first_name = 10 ** len(str(MOST_GROUPS_PER_RANK * self.ranks.size))
        self._groups: dict[tuple[str, int], dict[int, tuple[int, ...]]] = {}

    def coordinate(self, rank: int, axis: str) -> int:
        """Return the place of a rank along an axis."""
        return int(np.unravel_index(rank, self.ranks.shape)[self.axes.index(axis)])

    def along(self, rank: int, axis: str) -> list[int]:
        """Return the ranks with the coordinates of a rank on all other axes, in order."""
        place: list[int | slice] = [int(i) for i in np.unravel_index(rank, self.ranks.shape)]
        place[self.axes.index(axis)] = slice(None)
        return [int(member) for member in self.ranks[tuple(place)]]

    def groups(self, axis: str, sizes: Mapping[str, int] | None = None) -> IntArray:
        """Return the groups of an axis, or of several (``a*b``): one in each row, ascending.

        ``tp/kv_heads`` are the ranks of tp that hold the same key head: neighbours of a group.
        """
        if axis == PIPELINE_ENDS:
            return self.groups("pp")[:, [0, -1]]
        names, _, is_shared = axis.partition("/")
        listed = [part for name in names.split("*") for part in _PRODUCTS.get(name, (name,))]
        array, axes = self.ranks, self.axes
        if set(listed) & set(_EXPERT_AXES):
            array, axes = self._regrouped()
        places = [axes.index(name) for name in listed]
        moved = np.moveaxis(array, places, range(-len(places), 0))
        degree = prod(array.shape[place] for place in places)
        members: IntArray = np.sort(moved.reshape(-1, degree), axis=1)
        if is_shared:
            members = members.reshape(-1, int(degree_of(axis, self.strategy, sizes)))
        return members

    def _regrouped(self) -> tuple[IntArray, tuple[str, ...]]:
        """Return the ranks by the axes of the experts."""
        others = tuple(axis for axis in self.axes if axis not in _DENSE_AXES)
        dense = [axis for axis in self.axes if axis in _DENSE_AXES]
        first = np.moveaxis(self.ranks, [self.axes.index(a) for a in dense], range(-len(dense), 0))
        sizes = [int(degree_of(axis, self.strategy)) for axis in _EXPERT_AXES]
        return first.reshape(*first.shape[: len(others)], *sizes), (*others, *_EXPERT_AXES)

    def group_of(
        self, rank: int, axis: str, sizes: Mapping[str, int] | None = None
    ) -> tuple[int, tuple[int, ...]]:
        """Return name and members of the group of a rank; equal groups have one name.

        A lone rank needs no name: 0.
        """
        degree = 2 if axis == PIPELINE_ENDS else int(degree_of(axis, self.strategy, sizes))
        key = (axis, degree)
        if key not in self._groups:
            rows = [tuple(row) for row in self.groups(axis, sizes).tolist()]
            self._groups[key] = {member: row for row in rows for member in row}
            for row in rows:
                if len(row) > 1:
                    self.names.setdefault(row, self._first_name + len(self.names))
        members = self._groups[key][rank]
        return self.names.get(members, 0), members

    def groups_as(self, rank: int, other: int) -> dict[int, int]:
        """Return the names of the groups of another rank by those of a rank, axis by axis."""
        found = {}
        for members in self._groups.values():
            if len(members[rank]) > 1:
                found[self.names[members[rank]]] = self.names[members[other]]
        return found
