"""Communication derived from shardings: the four-case rule on named dims.

A matrix product of two sharded operands needs, axis by axis,

1. nothing, where the axis splits a free dim of one operand, or a batch dim of both;
2. a gather of the operand whose contracted (or batch) dim it splits alone;
3. a reduction of the output, where it splits the contracted dim of both;
4. a gather of one operand, where free dims of both claim the axis. Which one is a structural
   choice: the activations (Megatron sequence parallelism, TATP input streaming) or the weights
   (fully sharded data parallelism, TATP weight streaming).

Everything else about communication follows from this rule and from where tensors live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from meshwright.graph.op import Phase, Tensor
from meshwright.spec.collective import CollectiveKind

Split = Mapping[str, tuple[str, ...]]
"""The axes that split each dim; dims that are whole are absent."""
FLAT = "elements"
"""Key of a split that cuts a weight as a flat row of elements, wherever a cut falls: the shards
of ZeRO, and the parts of a weight that travel in a stream."""


@dataclass(frozen=True)
class Sharding:
    """Sharding of a tensor: axes that split its dims, and axes over which it is a sum.

    An axis splits one dim at most. A tensor that is ``partial`` over an axis equals the sum of the
    tensors on the ranks of that axis.
    """

    split: Split = field(default_factory=dict)
    partial: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that split a dim."""
        return tuple(axis for axes in self.split.values() for axis in axes)

    def dim_of(self, axis: str) -> str | None:
        """Return the dim that an axis splits, if any."""
        return next((dim for dim, axes in self.split.items() if axis in axes), None)

    def without(self, axis: str) -> Sharding:
        """Return the sharding without an axis: it splits nothing and no sum over it is pending."""
        split = {dim: tuple(a for a in axes if a != axis) for dim, axes in self.split.items()}
        kept = {dim: axes for dim, axes in split.items() if axes}
        return Sharding(kept, tuple(a for a in self.partial if a != axis))

    def along(self, axis: str, dim: str) -> Sharding:
        """Return the sharding with an axis splitting one dim and nothing else."""
        base = self.without(axis)
        return Sharding({**base.split, dim: (*base.split.get(dim, ()), axis)}, base.partial)

    @property
    def summed(self) -> Sharding:
        """The split of this sharding, after its partial sums are reduced."""
        return Sharding(self.split)


@dataclass(frozen=True)
class Move:
    """One change of a tensor's layout over one axis; ``kind`` is None for a local slice."""

    kind: CollectiveKind | None
    axis: str
    source: str | None = None
    """Dim that the axis split before."""
    target: str | None = None
    """Dim that the axis splits afterwards."""

    def apply(self, layout: Sharding) -> Sharding:
        """Return the layout after this move."""
        if self.target is None:
            return layout.without(self.axis)
        return layout.along(self.axis, self.target)


def reshard(have: Sharding, want: Sharding) -> list[Move]:
    """Return the moves from one layout to another: slices first, gathers last.

    That order keeps each message small. ``want`` may leave sums open only where ``have`` does.
    """
    moves = [
        Move(None, axis, None, want.dim_of(axis))
        for axis in want.axes
        if axis not in have.axes and axis not in have.partial
    ]
    open_sums = [axis for axis in have.partial if axis not in want.partial]
    scattered = [axis for axis in open_sums if want.dim_of(axis) is not None]
    moves += [
        Move(CollectiveKind.REDUCE_SCATTER, axis, None, want.dim_of(axis)) for axis in scattered
    ]
    for axis in have.axes:
        source, target = have.dim_of(axis), want.dim_of(axis)
        if target is not None and target != source:
            moves.append(Move(CollectiveKind.ALL_TO_ALL, axis, source, target))
    moves += [Move(CollectiveKind.ALL_REDUCE, axis) for axis in open_sums if axis not in scattered]
    gathered = [axis for axis in have.axes if want.dim_of(axis) is None]
    moves += [Move(CollectiveKind.ALL_GATHER, axis, have.dim_of(axis)) for axis in gathered]
    return moves


def payload(before: Sharding, move: Move) -> Sharding:
    """Return the layout of the full tensor that a move handles, as byte counts mean "full".

    Before a reduction, after a gather; for an all-to-all the side on which the axis splits no
    tokens, which is the larger one where heads are replicated.
    """
    if move.kind is CollectiveKind.ALL_TO_ALL:
        to_tokens = move.target is not None and move.target.endswith("tokens")
        return (before if to_tokens else move.apply(before)).summed
    return before.without(move.axis).summed


def walk(layout: Sharding, moves: list[Move]) -> Iterator[tuple[Sharding, Move]]:
    """Yield each move with the layout that it finds."""
    for move in moves:
        yield layout, move
        layout = move.apply(layout)


@dataclass(frozen=True)
class ShardedOperand:
    """One side of a matrix product: its dims in order, and its sharding."""

    dims: tuple[str, ...]
    layout: Sharding


@dataclass(frozen=True)
class ProductMoves:
    """Moves that a matrix product needs for each operand, and the sharding of its output."""

    left_moves: list[Move]
    right_moves: list[Move]
    local: Sharding
    """Layout of the output as computed, before pending sums are reduced."""


Side = Literal["left", "right"]
Arbiter = Callable[[str, str, str], Side]
"""Function that chooses the operand to gather, from the axis and the free dims that claim it."""


def matmul(
    left: ShardedOperand,
    right: ShardedOperand,
    output_dims: tuple[str, ...],
    arbiter: Arbiter = lambda axis, left_dim, right_dim: "left",
) -> ProductMoves:
    """Apply the four-case rule to ``output = left @ right``, summed over the other shared dims.

    Parameters
    ----------
    arbiter
        The structural choice of case 4: activations are gathered and weights stay, unless stated.
    """
    gathered: dict[Side, list[Move]] = {"left": [], "right": []}
    local = Sharding()
    shared = set(left.dims) & set(right.dims)
    for axis in dict.fromkeys((*left.layout.axes, *right.layout.axes)):
        dims: dict[Side, str | None] = {
            "left": left.layout.dim_of(axis),
            "right": right.layout.dim_of(axis),
        }
        for side in _to_gather(axis, dims["left"], dims["right"], shared, arbiter):
            gathered[side].append(Move(CollectiveKind.ALL_GATHER, axis, dims[side]))
            dims[side] = None
        remaining = dims["left"] or dims["right"]
        if remaining in output_dims:
            local = local.along(axis, remaining)
        elif remaining is not None:
            local = Sharding(local.split, (*local.partial, axis))
    return ProductMoves(gathered["left"], gathered["right"], local)


def _to_gather(
    axis: str, left: str | None, right: str | None, shared: set[str], arbiter: Arbiter
) -> list[Side]:
    """Return the operands to gather over an axis, given the dims that it splits."""
    if left == right:
        return []
    sides: list[Side] = []
    if left in shared:
        sides.append("left")
    if right in shared:
        sides.append("right")
    if not sides and left is not None and right is not None:
        sides.append(arbiter(axis, left, right))
    return sides


@dataclass(frozen=True)
class CollectiveCall:
    """One collective of a layer: its tensor, axis, phase, and reason.

    ``axis`` is one axis, or a group of several written as their product (``dp_shard*cp``); see
    :func:`~meshwright.sharding.local_sizes.degree_of`.
    """

    kind: CollectiveKind
    axis: str
    tensor: Tensor
    phase: Phase
    site: str
    """The operator that needs the collective, and the side: ``attention.qkv: input``."""
    split: Split = field(default_factory=dict)
    """Remaining split of the tensor while it is full over ``axis``: an all-gather over tp of
    tokens that are also split over cp moves the cp shard only."""
    is_regather: bool = False
    """Whether the tensor is gathered again in the backward pass because only the shard was kept."""
    replayed: bool = False
    """Whether the call is part of the forward pass that recomputation runs again."""
    streamed: bool = False
    """Moved piece by piece round the group while the pieces are computed on: the ring
    of cp, and the tensor streams of tatp. A streamed reduce-scatter moves accumulators."""
    per_step: bool = False
    """Whether the call runs once for each optimizer step, not once for each micro-batch."""
    of_weight: bool = False
    """Whether the tensor is a weight or its gradient, not an activation."""
