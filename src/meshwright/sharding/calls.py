"""A collective that the shardings demand, before it has a price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.base.arrays import Num
from meshwright.graph.op import Phase, Tensor
from meshwright.sharding.algebra import Split
from meshwright.sharding.local_sizes import local_elements
from meshwright.sharding.strategy import StrategyOf
from meshwright.spec.collective import CollectiveKind as CollectiveKind


@dataclass(frozen=True)
class CollectiveCall:
    """One collective of a layer: which tensor crosses which axis, in which phase, and why.

    ``axis`` is one axis, or a group of several written as their product (``dp_shard*cp``); see
    :func:`~meshwright.sharding.local_sizes.degree_of`.
    """

    kind: CollectiveKind
    axis: str
    tensor: Tensor
    phase: Phase
    site: str
    """The operator that needs it, and on which side: ``attention.qkv: input``."""
    split: Split = field(default_factory=dict)
    """How the tensor is still split while it is full over ``axis``: an all-gather over tp of
    tokens that are also split over cp moves the cp shard only."""
    is_regather: bool = False
    """Gathered again in the backward pass because only the shard was kept."""
    replayed: bool = False
    """Part of the forward pass that recomputation runs again."""
    streamed: bool = False
    """Moved piece by piece round the group, beside the computation that uses the pieces: the ring
    of cp, and the tensor streams of tatp. A streamed reduce-scatter moves accumulators."""
    per_step: bool = False
    """Once for each optimizer step, whatever the number of micro-batches."""
    of_weight: bool = False
    """The tensor is a weight or its gradient, not an activation."""

    @property
    def sharded_by(self) -> tuple[str, ...]:
        """Axes that still split the tensor while it is full over ``axis``."""
        return tuple(axis for axes in self.split.values() for axis in axes)


def call_elements(call: CollectiveCall, sizes: Mapping[str, Num], strategy: StrategyOf[Num]) -> Num:
    """Return the elements of the full tensor of a call on one rank.

    Parameters
    ----------
    sizes
        Sizes of all dims, with the token dims bound (``LayerGraph.bind``): numbers or columns.
    """
    return local_elements(call.tensor, call.split, sizes, strategy)
