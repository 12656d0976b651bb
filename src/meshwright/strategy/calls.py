"""A collective that the shardings demand, before it has a price."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.graph.op import Phase, Tensor
from meshwright.spec.collective import CollectiveKind as CollectiveKind


@dataclass(frozen=True)
class CollectiveCall:
    """One collective of a layer: which tensor crosses which axis, in which phase, and why.

    ``sharded_by`` lists the axes that still split the tensor while it is full over ``axis``
    (an all-gather over tp of tokens that are also split over cp moves the cp shard only).
    """

    kind: CollectiveKind
    axis: str
    tensor: Tensor
    phase: Phase
    site: str
    """The operator that needs it, and on which side: ``attention.qkv: input``."""
    sharded_by: tuple[str, ...] = ()
    is_regather: bool = False
    """Gathered again in the backward pass because only the shard was kept."""
    replayed: bool = False
    """Part of the forward pass that full recomputation runs again."""
