"""What travels over tatp beside each operator of a layer: the derived calls, sorted by operator.

Layouts say which tensor travels; nothing is listed by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.cost.compute import Engine
from meshwright.graph.op import LayerGraph, Op, OpKind, Phase
from meshwright.spec.collective import CollectiveKind
from meshwright.strategy.calls import CollectiveCall, call_elements
from meshwright.strategy.layout import weight_home
from meshwright.strategy.local_sizes import FLAT
from meshwright.strategy.strategy import StrategyOf, Structure
from meshwright.streams.policy import Transfer

AXIS = "tatp"


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


def transfer_of(op: Op, structure: Structure) -> Transfer:
    """Return what travels for an operator, from the dim of its weight that tatp splits.

    Logits gather their tokens whole: their part of the table is too large to be read in each
    round.
    """
    if op.kind is OpKind.ATTENTION:
        return Transfer.WEIGHTS
    if op.kind is not OpKind.MATMUL:
        return Transfer.NOTHING
    dim = weight_home(op.weights[0], structure).dim_of(AXIS)
    if dim in (None, "vocab"):
        return Transfer.NOTHING
    if dim == FLAT:
        return Transfer.WEIGHTS
    return Transfer.SUMS if dim in op.contracted else Transfer.INPUTS


def beside(calls: Sequence[CollectiveCall], layer: LayerGraph) -> list[Op | None]:
    """Return for each call the product or attention core in whose rounds it travels; else None.

    Sums of outputs belong to their maker, those of input gradients to whoever gathered the input:
    of several readers that is the first one, which is the last one in the backward pass.
    """
    works = [op for op in layer.ops if _computes(op)]
    named = {op.name: op for op in works}
    makers = {tensor.name: op for op in works for tensor in op.outputs}
    takers: dict[str, Op | None] = {}
    found: list[Op | None] = []
    for call in calls:
        worker = None
        if call.axis == AXIS and call.streamed:
            if call.kind is CollectiveKind.ALL_GATHER or call.of_weight:
                worker = named.get(call.site.partition(":")[0])
                takers.setdefault(f"{call.tensor.name}.gradient", worker)
            elif call.phase is Phase.FORWARD or call.replayed:
                worker = makers.get(call.tensor.name)
            else:
                worker = takers.get(call.tensor.name)
        found.append(worker)
    return found


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
) -> dict[str, Travel]:  # fmt: skip
    """Return what travels beside each operator of a layer that works round by round, by name.

    Parameters
    ----------
    sizes
        Sizes of all dims, with the token dims bound (``LayerGraph.bind``).
    gradient_bytes
        Of a travelling gradient of a weight [bytes].
    """
    found: dict[str, dict[str, Any]] = {}
    for op in layer.ops:
        if op.kind is OpKind.MATMUL and transfer_of(op, structure) is not Transfer.NOTHING:
            found[op.name] = {"transfer": transfer_of(op, structure)}
    for call, worker in zip(calls, beside(calls, layer), strict=True):
        if worker is None or call.replayed:
            continue
        parts = found.setdefault(worker.name, {"transfer": transfer_of(worker, structure)})
        direction = "forward" if call.phase is Phase.FORWARD else "backward"
        what = "item" if call.kind is CollectiveKind.ALL_GATHER else "sum"
        name = f"{direction}_{what}_bytes"
        word = call_word_bytes(call, engine, gradient_bytes)
        owned = word * call_elements(call, sizes, strategy) / strategy.tatp
        parts[name] = parts.get(name, 0.0) + owned
    return {name: Travel(**parts) for name, parts in found.items()}
