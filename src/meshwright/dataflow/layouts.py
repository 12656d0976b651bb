"""Splits of a kernel over one group of devices, and the layouts of its tensors.

Four layouts of a tensor: whole on every device, split along one dim, or a sum that is still open.
Which of them a split needs and leaves follows from where its dim stands: an input that has the dim
is read split there, any other is read whole; an output that has it is left split, one that lacks it
is a partial sum: a reduction that is no sum keeps its dims whole, and a move adds nothing up.
Adding up needs no closed sums: a sum of partial sums is a partial sum. A dim that stands behind
another inside one (``heads*head_dim`` by ``head_dim``) is in pieces there, so it cannot be split.

One change of layout is one collective: the rule of shardings
(:func:`meshwright.sharding.sharding.reshard`) on a single axis. A tensor that several readers want
is changed once for each layout that is asked for, from any layout in which it lies by then: a whole
tensor is cut without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

from meshwright.graph.kernels.kernel import Dims, Kernel, Unit, factors, single_dims
from meshwright.sharding.algebra import Sharding, reshard
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class TensorLayout:
    """Layout of a tensor on a group: ``place`` numbers the dim of its writer that is split."""

    place: int | None = None
    is_partial: bool = False

    def __str__(self) -> str:
        if self.is_partial:
            return "partial"
        return "whole" if self.place is None else f"split {self.place}"


REPLICATED = TensorLayout()
PARTIAL = TensorLayout(is_partial=True)


@dataclass(frozen=True)
class KernelSplit:
    """One way to split a kernel: the dim, the layouts of its inputs, and that of its output."""

    dim: str | None
    """Dim that is split; None: every device does all of the kernel."""
    reads: tuple[TensorLayout, ...]
    writes: TensorLayout


def splits_of(kernel: Kernel) -> tuple[KernelSplit, ...]:
    """Return all ways to split a kernel over one group, the unsplit one first."""
    alone = KernelSplit(None, (REPLICATED,) * len(kernel.inputs), REPLICATED)
    found = (_split(kernel, dim) for dim in kernel.points if dim not in kernel.whole)
    ways = (alone, *(split for split in found if split is not None))
    if kernel.is_sum and all(read.dims == kernel.dims for read in kernel.inputs):
        # Every device may add up its own partial sums.
        return (*ways, KernelSplit(None, (PARTIAL,) * len(kernel.inputs), PARTIAL))
    return ways


def _split(kernel: Kernel, dim: str) -> KernelSplit | None:
    """Return the layouts that a split over a dim needs and leaves; None: the dim is in pieces."""
    tensors = (kernel.dims, *(operand.dims for operand in kernel.inputs))
    if any(_in_pieces(dims, dim) for dims in tensors):
        return None
    reads = tuple(TensorLayout(place_of(operand.dims, dim)) for operand in kernel.inputs)
    place = place_of(kernel.dims, dim)
    if place is not None:
        return KernelSplit(dim, reads, TensorLayout(place))
    return None if kernel.unit is Unit.NONE else KernelSplit(dim, reads, PARTIAL)


def place_of(dims: Dims, dim: str) -> int | None:
    """Return the place in a tensor that a dim leads, if any: a split over the dim cuts there."""
    return next((place for place, name in enumerate(dims) if factors(name)[0] == dim), None)


def closed_layouts(dims: Dims, sizes: Mapping[str, int], degree: int) -> tuple[TensorLayout, ...]:
    """Return the layouts of a tensor without open sums that leave no device without a part."""
    places = (n for n, dim in enumerate(dims) if 1 < degree <= sizes[factors(dim)[0]])
    return (REPLICATED, *map(TensorLayout, places))


@dataclass(frozen=True)
class Exit:
    """Layouts in which a tensor may leave the graph; none with open sums."""

    layouts: tuple[TensorLayout, ...]
    """The stated layout, or every one in which the tensor may leave."""
    share: float = 1.0
    """Share of the repetitions in which the tensor leaves: all of them, or only the last one."""


def _in_pieces(dims: Dims, dim: str) -> bool:
    return dim in single_dims(dims) and place_of(dims, dim) is None


def local_sizes(sizes: Mapping[str, int], dim: str | None, degree: int) -> dict[str, int]:
    """Return the sizes on the largest shard, where one dim is split over ``degree`` devices."""
    split = {} if dim is None else {dim: -(-sizes[dim] // degree)}
    return {**sizes, **split}


AXIS = "group"
CostOf = Callable[[TensorLayout, TensorLayout], float]
"""Function from the layouts before and after a change to its cost."""


@dataclass(frozen=True)
class LayoutChange:
    """One change of the layout of a tensor."""

    have: TensorLayout
    want: TensorLayout

    @property
    def kind(self) -> CollectiveKind | None:
        """The collective that does it; None where every device has what it needs."""
        return collective_of(self.have, self.want)


@cache
def collective_of(have: TensorLayout, want: TensorLayout) -> CollectiveKind | None:
    """Return the collective that brings a tensor from one layout to another.

    Any tensor is a partial sum as it lies: of a whole one only the first device adds its own, and
    parts that are split are zero elsewhere.
    """
    if have == want or want.is_partial:
        return None
    moves = reshard(_sharding(have), _sharding(want))
    return moves[0].kind


def _sharding(layout: TensorLayout) -> Sharding:
    if layout.is_partial:
        return Sharding(partial=(AXIS,))
    return Sharding({} if layout.place is None else {str(layout.place): (AXIS,)})


def payload_bytes(kind: CollectiveKind, tensor_bytes: float, degree: int) -> float:
    """Return the bytes that a collective counts for a tensor: the full tensor on one rank.

    In an all-to-all a rank sends its shard.
    """
    return tensor_bytes / degree if kind is CollectiveKind.ALL_TO_ALL else tensor_bytes


def cheapest_changes(
    have: TensorLayout, wanted: Collection[TensorLayout], cost: CostOf
) -> tuple[float, tuple[LayoutChange, ...]]:
    """Return the cost of a tensor in all wanted layouts, and the cheapest changes to them."""
    targets = tuple(sorted(set(wanted), key=str))
    costs, ways = _ways(have, targets, cost)
    full = (1 << len(targets)) - 1
    return costs[full], ways[full]


def costs_of_sets(have: TensorLayout, targets: Sequence[TensorLayout], cost: CostOf) -> list[float]:
    """Return the cost of each set of targets; bit k of its number stands for target k."""
    return _ways(have, tuple(targets), cost)[0]


def _ways(
    have: TensorLayout, targets: tuple[TensorLayout, ...], cost: CostOf
) -> tuple[list[float], list[tuple[LayoutChange, ...]]]:
    """Return the cheapest way to each set of targets: one layout after the other, from any.

    The tensor may be made whole on the way, even if no reader wants that.
    """
    layouts = targets if REPLICATED in targets else (*targets, REPLICATED)
    size, every = 1 << len(layouts), (have, *layouts)
    prices = [[inf if n == k else cost(a, b) for n, a in enumerate(every)]
              for k, b in enumerate(layouts, start=1)]  # fmt: skip
    costs = [0.0, *([inf] * (size - 1))]
    ways: list[tuple[LayoutChange, ...]] = [()] * size
    for reached in range(size):
        there = [0, *(k for k in range(1, len(every)) if reached >> k - 1 & 1)]
        for k, want in enumerate(layouts):
            if not reached >> k & 1:
                row = prices[k]
                source = min(there, key=row.__getitem__)
                least = row[source]
                if costs[reached] + least < costs[reached | 1 << k]:
                    costs[reached | 1 << k] = costs[reached] + least
                    ways[reached | 1 << k] = (*ways[reached], LayoutChange(every[source], want))
    if REPLICATED in targets:
        return costs, ways
    half = size // 2
    best = [k if costs[k] <= costs[k | half] else k | half for k in range(half)]
    return [costs[k] for k in best], [ways[k] for k in best]
