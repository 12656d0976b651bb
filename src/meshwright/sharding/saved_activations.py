"""What a layer keeps for its backward pass, under each kind of recomputation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor
from meshwright.graph.transformer import EDGE
from meshwright.sharding.algebra import Split
from meshwright.sharding.axes import activation_sharding
from meshwright.sharding.strategy import PlanOptions, Recompute
from meshwright.spec.workload import SelectiveRecompute

CAST = ".cast"
"""Behind the name of a tensor: its copy in the type of the products."""


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that one layer keeps for its backward pass, and how it is split meanwhile."""

    tensor: Tensor
    split: Split
    share: float = 1.0
    """Part of it that is kept: 0.5 of the outputs of products of which every second is kept."""

    @property
    def dims(self) -> tuple[str, ...]:
        """Dims of the tensor."""
        return self.tensor.dims

    @property
    def word_bytes(self) -> float | None:
        """Bytes of one word; None: the activation type of the workload."""
        return self.tensor.word_bytes


@dataclass(frozen=True)
class CheckpointPolicy:
    """What software keeps where a structure leaves it open."""

    selective: SelectiveRecompute = "attention"
    cast_word_bytes: float | None = None
    """Bytes of a word of the cast inputs that products keep; None: they keep them as they are."""


def saved_elements(
    layer: LayerGraph, structure: PlanOptions, keeping: CheckpointPolicy = CheckpointPolicy()
) -> tuple[SavedTensor, ...]:
    """Return what a layer keeps for the backward pass under the recomputation of the structure.

    None keeps all that its operators save, each tensor once; full keeps the input of the layer
    alone. Selective drops what only the attention core needs; or it keeps, with the input of the
    layer, outputs of products: all of them, or every second one and what the core writes. Tensors
    are kept as they rest: what is gathered for an operator is gathered again.

    Source: Korthikanti et al. 2022, sections 4 and 5; torchtitan, docs/composability.md and
    ``_apply_ac_to_transformer_block``; MaxText, ``remat_policy: minimal``.
    """
    kept: list[tuple[Tensor, float]] = [(layer.input, 1.0)]
    if structure.recompute is Recompute.SELECTIVE and keeping.selective != "attention":
        keeps_half = keeping.selective == "half_of_products"
        kept += _kept_outputs(layer, keeps_half=keeps_half)
    elif structure.recompute is not Recompute.FULL:
        kept = [
            (_as_kept(tensor, op, keeping.cast_word_bytes), 1.0)
            for op in layer.ops
            for tensor in op.saved
            if structure.recompute is Recompute.NONE
            or not op.is_recomputed_selectively
            or tensor in op.inputs
        ]
    unique = {tensor.name: (tensor, share) for tensor, share in kept}
    return tuple(
        SavedTensor(t, activation_sharding(t, structure).split, s) for t, s in unique.values()
    )


def _kept_outputs(layer: LayerGraph, *, keeps_half: bool) -> list[tuple[Tensor, float]]:
    """Return the outputs of products that are kept, and of the core where every second one is.

    A compiler that keeps all of them leaves out what is only added to the residual stream.
    """
    found = []
    share = 0.5 if keeps_half else 1.0
    added = () if keeps_half else layer.ops[-1].inputs
    for op in layer.ops:
        if op.kind is OpKind.MATMUL:
            found += [(output, share) for output in op.outputs if output not in added]
        elif op.kind is OpKind.ATTENTION and keeps_half:
            found += [(tensor, 1.0) for tensor in op.saved if tensor not in op.inputs]
    return found


def _as_kept(tensor: Tensor, op: Op, cast_word_bytes: float | None) -> Tensor:
    """Return a tensor as an operator keeps it: products of a layer may keep their cast input."""
    if op.kind is not OpKind.MATMUL or op.region == EDGE or cast_word_bytes is None:
        return tensor
    return replace(tensor, name=tensor.name + CAST, word_bytes=cast_word_bytes)
