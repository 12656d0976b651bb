"""How a kernel may be split over one group of devices, and in which layouts its tensors then lie.

Four layouts of a tensor: whole on every device, split along one dim, or a sum that is still open.
Which of them a split needs and leaves follows from where its dim stands: an input that has the dim
is read split there, any other is read whole; an output that has it is left split, one that lacks
it is a partial sum: a reduction that is no sum keeps its dims whole, and a move adds nothing up.
Adding up needs no closed sums: what it makes of partial sums is a partial sum.
A dim that stands behind another inside one (``heads*head_dim`` by ``head_dim``) is in pieces there,
so it cannot be split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.graph.dataflow.kernel import Dims, Kernel, Unit, factors, single_dims


@dataclass(frozen=True)
class Layout:
    """How one tensor lies on a group: ``place`` numbers the dim of its maker that is split."""

    place: int | None = None
    is_partial: bool = False

    def __str__(self) -> str:
        if self.is_partial:
            return "partial"
        return "whole" if self.place is None else f"split {self.place}"


WHOLE = Layout()
PARTIAL = Layout(is_partial=True)


@dataclass(frozen=True)
class KernelSplit:
    """One way to split a kernel: the dim, the layouts of its inputs, and that of its output."""

    dim: str | None
    """None: every device does all of it."""
    reads: tuple[Layout, ...]
    writes: Layout


def splits_of(kernel: Kernel) -> tuple[KernelSplit, ...]:
    """Return all ways to split a kernel over one group, the unsplit one first."""
    alone = KernelSplit(None, (WHOLE,) * len(kernel.inputs), WHOLE)
    found = (_split(kernel, dim) for dim in kernel.points if dim not in kernel.whole)
    ways = (alone, *(split for split in found if split is not None))
    return (*ways, _open_sum(kernel)) if _adds_up(kernel) else ways


def _split(kernel: Kernel, dim: str) -> KernelSplit | None:
    """Return what a split over a dim needs and leaves; None where the dim lies in pieces."""
    tensors = (kernel.dims, *(operand.dims for operand in kernel.inputs))
    if any(_in_pieces(dims, dim) for dims in tensors):
        return None
    reads = tuple(Layout(place_of(operand.dims, dim)) for operand in kernel.inputs)
    place = place_of(kernel.dims, dim)
    if place is not None:
        return KernelSplit(dim, reads, Layout(place))
    return None if kernel.unit is Unit.NONE else KernelSplit(dim, reads, PARTIAL)


def _adds_up(kernel: Kernel) -> bool:
    return kernel.is_sum and all(read.dims == kernel.dims for read in kernel.inputs)


def _open_sum(kernel: Kernel) -> KernelSplit:
    """Return the way in which every device adds up its own partial sums."""
    return KernelSplit(None, (PARTIAL,) * len(kernel.inputs), PARTIAL)


def place_of(dims: Dims, dim: str) -> int | None:
    """Return the place of a tensor that a dim leads, if any: where a split over it cuts."""
    return next((place for place, name in enumerate(dims) if factors(name)[0] == dim), None)


def _in_pieces(dims: Dims, dim: str) -> bool:
    return dim in single_dims(dims) and place_of(dims, dim) is None


def local_sizes(sizes: Mapping[str, int], dim: str | None, degree: int) -> dict[str, int]:
    """Return the sizes on the largest shard, where one dim is split over so many devices."""
    return {name: -(-size // degree) if name == dim else size for name, size in sizes.items()}
