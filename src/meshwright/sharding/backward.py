"""The backward pass of a layer: gradients flow in reverse, and find the layouts of their tensors.

The gradient of a tensor rests where the tensor rests. Each consumer leaves a contribution, often
with open sums; they are added first and reduced once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.graph.op import LayerGraph, Op, OpKind, Phase, Tensor
from meshwright.sharding.algebra import Move, Operand, Sharding, Split, matmul, reshard
from meshwright.sharding.axes_all import axes, streams_inputs
from meshwright.sharding.calls import CollectiveCall
from meshwright.sharding.forward import (
    Ledger,
    attention_layout,
    elementwise_input,
    exchange,
    reduce_statistics,
    spread_tokens,
    traveling_axes,
)
from meshwright.sharding.local_sizes import FLAT
from meshwright.sharding.strategy import PlanOptions
from meshwright.sharding.tensor_sharding import (
    activation_sharding,
    arbiter,
    as_operand,
    logical_dims,
    matrices,
    source_operand,
    vectors,
    weight_sharding,
)
from meshwright.spec.collective import CollectiveKind

Contributions = dict[str, list[Sharding]]
"""Layouts in which the consumers of each tensor left their part of its gradient."""


def backward_calls(layer: LayerGraph, structure: PlanOptions) -> list[CollectiveCall]:
    """Return the collectives of the backward pass, in order, weight gradients beside them.

    Sums of weight gradients over data axes are left to the synchronisation once per step.
    """
    ledger = Ledger(structure, Phase.INPUT_GRADIENT)
    contributions: Contributions = {}
    for op in reversed(layer.ops):
        for output in op.outputs:
            settle(output, contributions, ledger, f"{op.name}: output gradient")
        for name, layout in _STEPS[op.kind](op, ledger):
            contributions.setdefault(name, []).append(layout)
    settle(layer.input, contributions, ledger, "layer input gradient")
    return ledger.calls


def gradient_of(tensor: Tensor) -> Tensor:
    """Return the gradient of a tensor."""
    return replace(tensor, name=f"{tensor.name}.gradient")


def settle(tensor: Tensor, contributions: Contributions, ledger: Ledger, site: str) -> None:
    """Bring the contributions to a gradient to rest; equal moves of several are made once."""
    rest = activation_sharding(tensor, ledger.structure)
    for have in contributions.get(tensor.name, []):
        ledger.move(gradient_of(tensor), have, reshard(have, rest), site)


def _product(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Return the input gradient of a product after moving what both of its gradients need.

    dX = dY W^T and dW = X^T dY follow the same rule as the forward pass. What both gather of dY
    is gathered once; X is gathered again, because it was kept as it rests.
    """
    structure = ledger.structure
    left = source_operand(op, structure)
    found: list[tuple[str, Sharding]] = []
    if op.kind is OpKind.EMBEDDING:
        ledger.mark_looked_up(gradient_of(op.output))
    for weight, output in matrices(op):
        gradient, rest = gradient_of(output), activation_sharding(output, structure)
        incoming = as_operand(output, rest)
        held = Operand(weight.dims, weight_sharding(weight, structure))
        site = f"{op.name}: output gradient"
        if op.kind is not OpKind.EMBEDDING:
            back = matmul(incoming, held, left.dims, arbiter=arbiter(structure))
            ledger.move(gradient, rest, back.left_moves, site)
            ledger.move(
                weight,
                held.layout,
                back.right_moves,
                f"{op.name}: weight",
                is_regather=True,
                of_weight=True,
            )
            found.append((op.inputs[0].name, back.local))
        inner = matmul(left, incoming, weight.dims)
        later = Phase.WEIGHT_GRADIENT
        ledger.move(gradient, rest, inner.right_moves, site, phase=later)
        kept = f"{op.name}: kept input"
        moves = inner.left_moves
        ledger.move(op.inputs[0], left.layout, moves, kept, phase=later, is_regather=True)
    return found


def product_weight_gradients(op: Op, ledger: Ledger) -> list[tuple[Tensor, Sharding]]:
    """Return each weight matrix of an operator with the layout in which its gradient arises."""
    left = source_operand(op, ledger.structure)
    return [
        (
            weight,
            matmul(
                left, as_operand(output, activation_sharding(output, ledger.structure)), weight.dims
            ).local,
        )
        for weight, output in matrices(op)
    ]


def _elementwise(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Return the input gradients of an elementwise operator, each with its open sums.

    Where an axis splits the output but not an input, every rank adds to that input's gradient.
    Branches that are added to the residual stream together have one gradient.
    """
    branches = [gradient_of(t) for t in op.inputs[1:] if t.dims == op.output.dims]
    ledger.mark_equal(branches)
    if op.kind is OpKind.NORM:
        reduce_statistics(op, ledger, ("statistics_gradient",))
    out = activation_sharding(op.output, ledger.structure)
    found = []
    for source in op.inputs:
        layout = elementwise_input(op, source, ledger.structure)
        open_axes = tuple(axis for axis in out.axes if axis not in layout.axes)
        found.append((source.name, Sharding(layout.split, open_axes)))
    return found


def _attention(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Return the gradients of queries, keys and values.

    Keys and values are needed once more, and their gradients travel to where they rest.
    """
    structure = ledger.structure
    rest = activation_sharding(op.output, structure)
    steps = reshard(rest, attention_layout(op.output, structure))
    ledger.move(gradient_of(op.output), rest, steps, f"{op.name}: output gradient")
    query, *keys_and_values = op.inputs
    found = [(query.name, attention_layout(query, structure))]
    for source in keys_and_values:
        layout = attention_layout(source, structure)
        traveling = traveling_axes(source, structure)
        again = [Move(CollectiveKind.ALL_GATHER, axis, "tokens") for axis in traveling]
        site = f"{op.name}: keys and values"
        whole = ledger.move(source, layout, again, site, is_regather=True)
        found.append((source.name, Sharding(whole.split, traveling)))
    return found


def _route(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Send the gradients of rows the other way."""
    source, target = op.inputs[0], op.output
    structure = ledger.structure
    others = [(other.name, activation_sharding(other, structure)) for other in op.inputs[1:]]
    if "routed_tokens" in target.dims:
        exchange(gradient_of(target), ledger, f"{op.name}: row gradients")
        return [(source.name, spread_tokens(source, structure)), *others]
    rest = activation_sharding(target, structure)
    steps = reshard(rest, spread_tokens(target, structure))
    ledger.move(gradient_of(target), rest, steps, f"{op.name}: output gradient")
    exchange(gradient_of(source), ledger, f"{op.name}: row gradients")
    return [(source.name, activation_sharding(source, structure)), *others]


def _loss(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Return the gradient of the logits: it needs nothing that is not there."""
    logits = op.inputs[0]
    return [(logits.name, activation_sharding(logits, ledger.structure))]


def logical_gradient_axes(output: Tensor, structure: PlanOptions) -> dict[str, str]:
    """Return the dim that each axis splits of an output and of its gradient."""
    layout = activation_sharding(output, structure)
    dims = logical_dims(output)
    return {axis: dim for dim in dims for axis in layout.split.get(dim, ())}


_STEPS: dict[OpKind, Callable[[Op, Ledger], list[tuple[str, Sharding]]]] = {
    OpKind.MATMUL: _product,
    OpKind.EMBEDDING: _product,
    OpKind.NORM: _elementwise,
    OpKind.ELEMENTWISE: _elementwise,
    OpKind.ATTENTION: _attention,
    OpKind.ROUTE: _route,
    OpKind.LOSS: _loss,
}


def sync_calls(layer: LayerGraph, structure: PlanOptions) -> list[CollectiveCall]:
    """Return the collectives that complete the weight gradients of a layer, and ZeRO's gathers."""
    calls: list[CollectiveCall] = []
    for op in layer.ops:
        for weight, made in weight_gradients(op, structure):
            calls += _inner_sums(op, weight, made, structure)
            calls += _data_sums(op, weight, made, structure)
        calls += _key_head_sums(op, layer, structure)
    return calls


def weight_gradients(op: Op, structure: PlanOptions) -> list[tuple[Tensor, Sharding]]:
    """Return each weight of an operator with the layout in which its gradient arises."""
    found: list[tuple[Tensor, Sharding]] = []
    if op.kind in (OpKind.MATMUL, OpKind.EMBEDDING):
        found += product_weight_gradients(op, Ledger(structure, Phase.WEIGHT_GRADIENT))
    for weight, output in vectors(op):
        split_by = logical_gradient_axes(output, structure)
        rest = weight_sharding(weight, structure)
        open_axes = tuple(axis for axis in split_by if axis not in rest.axes)
        found.append((weight, Sharding(rest.split, open_axes)))
    return found


def _inner_sums(
    op: Op, weight: Tensor, made: Sharding, structure: PlanOptions
) -> list[CollectiveCall]:
    """Return the sums over axes that are no data axes: streams in each pass, others per step."""
    data = tuple(axis for axis in made.partial if axes[axis].replicates_weights)
    want = Sharding(weight_sharding(weight, structure).split, data)
    ledger = Ledger(structure, Phase.WEIGHT_GRADIENT)
    moves = reshard(made, want)
    ledger.move(gradient_of(weight), made, moves, f"{op.name}: weight gradient", of_weight=True)
    return [call if call.streamed else replace(call, per_step=True) for call in ledger.calls]


def _data_sums(
    op: Op, weight: Tensor, made: Sharding, structure: PlanOptions
) -> list[CollectiveCall]:
    """Return reductions of the gradient and gathers of the weight over the data axes.

    Stage 0 all-reduces. Stages 1 and 2 reduce-scatter gradients and gather weights once per step;
    stage 3 does so for each micro-batch, and gathers again for the backward pass where weights
    were dropped after the forward pass. Replicas all-reduce their shards once per step.
    """
    data = [axis for axis in made.partial if axes[axis].replicates_weights]
    if not data:
        return []
    of_experts = "edp" in data
    split = weight_sharding(weight, structure).split
    gradient = gradient_of(weight)
    stage = structure.zero_stage
    if stage == 0:
        group = "edp" if of_experts else "dp*cp"
        return [_data_call(CollectiveKind.ALL_REDUCE, group, gradient, op, split, per_step=True)]
    shard = "edp_shard" if of_experts else "dp_shard*cp"
    per_step = stage < 3
    scatter = _data_call(
        CollectiveKind.REDUCE_SCATTER, shard, gradient, op, split, per_step=per_step
    )
    shards = {**split, FLAT: (*split.get(FLAT, ()), *shard.split("*"))}
    replicas = _data_call(
        CollectiveKind.ALL_REDUCE, "dp_replicate", gradient, op, shards, per_step=True
    )
    gathers = [_gather(shard, weight, op, split, structure)]
    if stage == 3 and structure.reshard_after_forward:
        gathers.append(_gather(shard, weight, op, split, structure, again=True))
    return [*gathers, scatter, replicas]


def _data_call(
    kind: CollectiveKind, group: str, gradient: Tensor, op: Op, split: Split, *, per_step: bool
) -> CollectiveCall:
    """Return one reduction of a gradient over a group of data axes."""
    return CollectiveCall(
        kind=kind,
        axis=group,
        tensor=gradient,
        phase=Phase.WEIGHT_GRADIENT,
        site=f"{op.name}: weight gradient",
        split=split,
        per_step=per_step,
        of_weight=True,
    )


def _gather(
    group: str, weight: Tensor, op: Op, split: Split, structure: PlanOptions, *, again: bool = False
) -> CollectiveCall:
    """Return one gather of a sharded weight."""
    return CollectiveCall(
        kind=CollectiveKind.ALL_GATHER,
        axis=group,
        tensor=weight,
        phase=Phase.INPUT_GRADIENT if again else Phase.FORWARD,
        site=f"{op.name}: weight",
        split=split,
        is_regather=again,
        per_step=structure.zero_stage < 3,
        of_weight=True,
    )


def _key_head_sums(op: Op, layer: LayerGraph, structure: PlanOptions) -> list[CollectiveCall]:
    """Return the sums over ranks that hold the same key head, where tp exceeds their number."""
    if layer.sizes.get("kv_heads") == layer.sizes.get("query_heads"):
        return []
    group = ("tp*tatp" if streams_inputs(structure) else "tp") + "/kv_heads"
    replicated = [w for w in op.weights if w.dims[-1] in ("key", "value")]
    return [
        _data_call(
            CollectiveKind.ALL_REDUCE,
            group,
            gradient_of(weight),
            op,
            weight_sharding(weight, structure).split,
            per_step=True,
        )
        for weight in replicated
    ]
