"""What an axis of the mesh has to say: which dims it splits, what it streams, what it refuses."""

from __future__ import annotations

from typing import ClassVar

from meshwright.base.registry import Registry
from meshwright.graph.op import Tensor
from meshwright.sharding.algebra import Side
from meshwright.sharding.calls import CollectiveCall
from meshwright.sharding.rules import Rule
from meshwright.sharding.strategy import PlanOptions
from meshwright.spec.collective import CollectiveKind

INNER_DIMS = frozenset(
    {
        "query", "key", "value", "key_content", "heads", "query_heads",
        "ffn", "ffn_in", "shared_ffn", "shared_ffn_in", "vocab",
    }
)  # fmt: skip
"""Dims between a column-split and a row-split product; heads stay whole on one rank."""

EXPERT_INNER_DIMS = frozenset({"expert_ffn", "expert_ffn_in"})


class Axis:
    """One axis; a subclass states what differs from an axis that does nothing.

    Shardings are stated for tensors at rest: what an operator needs beyond that, and the
    collectives between, follow from the four-case rule.
    """

    degrees: ClassVar[tuple[str, ...]] = ()
    """Fields of the strategy that make up the degree."""
    replicates_weights: ClassVar[bool] = False
    """Weight gradients are summed over it once per step: a data axis."""
    splits_sequence: ClassVar[bool] = False
    """Where it splits tokens, it splits within sequences, not between them."""
    rules: ClassVar[tuple[Rule, ...]] = ()

    def activation_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the dim of an activation at rest that this axis splits."""
        return None

    def weight_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the dim of a weight that this axis splits."""
        return None

    def operand_to_gather(self, weight_dim: str, structure: PlanOptions) -> Side:
        """Return the answer to case 4: the activation (left) or the weight (right)."""
        return "left"

    def is_streamed(self, kind: CollectiveKind, structure: PlanOptions) -> bool:
        """Return whether gathers and scatters move piece by piece beside the computation."""
        return False

    def overlaps(self, call: CollectiveCall, structure: PlanOptions) -> bool:
        """Return whether a call over this axis may run beside computation."""
        return call.streamed


axes: Registry[Axis] = Registry("axis")


def is_routed(tensor: Tensor) -> bool:
    """Return whether a tensor belongs to the routed experts."""
    return "routed_tokens" in tensor.dims or "experts" in tensor.dims


def first_of(dims: frozenset[str], tensor: Tensor) -> str | None:
    """Return the first dim of a tensor that is among the given ones."""
    return next((dim for dim in tensor.dims if dim in dims), None)
