"""What travels beside each operator of a layer, over tatp and tp: the derived calls, sorted.

Layouts say which tensor travels; nothing is listed by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.cost.compute import Engine
from meshwright.graph.op import LayerGraph, Op, OpKind, Phase
from meshwright.sharding.calls import CollectiveCall, call_elements
from meshwright.sharding.layout import weight_home
from meshwright.sharding.local_sizes import FLAT, degree_of
from meshwright.sharding.strategy import StrategyOf, Streamed, Structure
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.volumes import Transfer

AXIS = "tatp"
ROWS = "tp"
"""Axis of the rows of a block whose columns stream weights: inputs and sums travel along them."""


@dataclass(frozen=True)
class Travel:
    """Sub-tensors that travel beside one operator: what one member owns of each [bytes]."""

    transfer: Transfer
    forward_item_bytes: Any = 0.0
    """Copies that go round: weights, inputs, or keys and values."""
    forward_sum_bytes: Any = 0.0
    """Accumulators that come home: sums of outputs."""
    backward_item_bytes: Any = 0.0
    backward_sum_bytes: Any = 0.0
    """Gradients of what went round."""

    @property
    def forward_bytes(self) -> Any:
        """All that one member owns of the forward pass [bytes]."""
        return self.forward_item_bytes + self.forward_sum_bytes

    @property
    def backward_bytes(self) -> Any:
        """All that one member owns of the backward pass [bytes]."""
        return self.backward_item_bytes + self.backward_sum_bytes


def transfer_of(op: Op, structure: Structure, axis: str = AXIS) -> Transfer:
    """Return what travels for an operator, from the dim of its weight that an axis splits.

    Logits gather their tokens whole: their part of the table is too large to be read in each
    round.
    """
    if op.kind is OpKind.ATTENTION:
        return Transfer.WEIGHTS
    if op.kind is not OpKind.MATMUL:
        return Transfer.NOTHING
    dim = weight_home(op.weights[0], structure).dim_of(axis)
    if dim in (None, "vocab"):
        return Transfer.NOTHING
    if dim == FLAT:
        return Transfer.WEIGHTS
    return Transfer.SUMS if dim in op.contracted else Transfer.INPUTS


def beside(
    calls: Sequence[CollectiveCall], layer: LayerGraph, structure: Structure
) -> list[Op | None]:
    """Return for each call the product or attention core in whose rounds it travels; else None.

    Sums of outputs belong to their maker, those of input gradients to whoever gathered the input:
    of several readers that is the first one, which is the last one in the backward pass. Along the
    rows of a block something travels only where a weight streams along the columns.
    """
    works = [op for op in layer.ops if _computes(op)]
    named = {op.name: op for op in works}
    makers = {tensor.name: op for op in works for tensor in op.outputs}
    takers: dict[tuple[str, str], Op | None] = {}
    found: list[Op | None] = []
    for call in calls:
        worker = None
        if _is_cut(call, structure):
            if call.kind is CollectiveKind.ALL_GATHER or call.of_weight:
                worker = named.get(call.site.partition(":")[0])
                takers.setdefault((call.axis, f"{call.tensor.name}.gradient"), worker)
            elif call.phase is Phase.FORWARD or call.replayed:
                worker = makers.get(call.tensor.name)
            else:
                worker = takers.get((call.axis, call.tensor.name))
        if call.axis == ROWS and worker is not None and not _streams_weight(worker, structure):
            worker = None
        found.append(worker)
    return found


def _is_cut(call: CollectiveCall, structure: Structure) -> bool:
    """Return whether a call is cut into pieces, one of which passes in each round."""
    if call.axis == AXIS:
        return call.streamed
    is_gather_or_scatter = call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    along_rows = structure.streamed is Streamed.BOTH and call.axis == ROWS
    return along_rows and is_gather_or_scatter and not (call.of_weight or call.per_step)


def _streams_weight(op: Op, structure: Structure) -> bool:
    return op.kind is OpKind.MATMUL and transfer_of(op, structure) is Transfer.WEIGHTS


def _computes(op: Op) -> bool:
    """Return whether an operator works round by round."""
    is_product = op.kind is OpKind.MATMUL and "vocab" not in op.output.dims
    return is_product or op.kind is OpKind.ATTENTION


def call_word_bytes(call: CollectiveCall, engine: Engine, gradient_bytes: float) -> float:
    """Return the bytes of one element of a call: of a weight, of its gradient, or an activation.

    Sums of activations travel in the type of the activations.
    """
    if call.of_weight and call.streamed:
        is_gradient = call.phase is Phase.WEIGHT_GRADIENT
        return gradient_bytes if is_gradient else engine.matmul_word_bytes
    word = call.tensor.word_bytes
    return engine.activation_bytes if word is None else word


def layer_travels(
    layer: LayerGraph, calls: Sequence[CollectiveCall], structure: Structure,
    sizes: Mapping[str, Any], strategy: StrategyOf[Any], engine: Engine, gradient_bytes: float,
    axis: str = AXIS,
) -> dict[str, Travel]:  # fmt: skip
    """Return what travels beside each operator of a layer that works round by round, by name.

    Parameters
    ----------
    sizes
        Sizes of all dims, with the token dims bound (``LayerGraph.bind``).
    gradient_bytes
        Of a travelling gradient of a weight [bytes].
    axis
        Along which it travels.
    """
    found: dict[str, dict[str, Any]] = {}
    for op in layer.ops:
        transfer = transfer_of(op, structure, axis)
        if op.kind is OpKind.MATMUL and transfer is not Transfer.NOTHING:
            found[op.name] = {"transfer": transfer}
    for call, worker in zip(calls, beside(calls, layer, structure), strict=True):
        if worker is None or call.replayed or call.axis != axis:
            continue
        parts = found.setdefault(worker.name, {"transfer": transfer_of(worker, structure, axis)})
        direction = "forward" if call.phase is Phase.FORWARD else "backward"
        what = "item" if call.kind is CollectiveKind.ALL_GATHER else "sum"
        name = f"{direction}_{what}_bytes"
        word = call_word_bytes(call, engine, gradient_bytes)
        owned = word * call_elements(call, sizes, strategy) / degree_of(axis, strategy)
        parts[name] = parts.get(name, 0.0) + owned
    return {name: Travel(**parts) for name, parts in found.items()}
