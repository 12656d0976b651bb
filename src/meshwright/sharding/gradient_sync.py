"""Sums of weight gradients: within the layer's own axes, and over the data axes once per step.

A weight gradient is left as a partial sum over every axis that split the tokens (or heads) which
it sums over. Streams bring their accumulators home; replicated weights are all-reduced; data axes
follow the ZeRO stage.

Source: Rajbhandari et al. 2020 (ZeRO), section 5; Korthikanti et al. 2022, section 4.2.2 (norms
and biases under sequence parallelism).
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.graph.op import LayerGraph, Op, OpKind, Phase, Tensor
from meshwright.sharding.axes.tatp import streams_inputs
from meshwright.sharding.axis import axes
from meshwright.sharding.backward import (
    gradient_of,
    logical_gradient_axes,
    product_weight_gradients,
)
from meshwright.sharding.calls import CollectiveCall
from meshwright.sharding.forward import Ledger
from meshwright.sharding.layout import vectors, weight_home
from meshwright.sharding.local_sizes import FLAT
from meshwright.sharding.sharding import Sharding, Split, reshard
from meshwright.sharding.strategy import Structure
from meshwright.spec.collective import CollectiveKind


def sync_calls(layer: LayerGraph, structure: Structure) -> list[CollectiveCall]:
    """Return the collectives that complete the weight gradients of a layer, and ZeRO's gathers."""
    calls: list[CollectiveCall] = []
    for op in layer.ops:
        for weight, made in weight_gradients(op, structure):
            calls += _inner_sums(op, weight, made, structure)
            calls += _data_sums(op, weight, made, structure)
        calls += _key_head_sums(op, layer, structure)
    return calls


def weight_gradients(op: Op, structure: Structure) -> list[tuple[Tensor, Sharding]]:
    """Return each weight of an operator with the layout in which its gradient arises."""
    found: list[tuple[Tensor, Sharding]] = []
    if op.kind in (OpKind.MATMUL, OpKind.EMBEDDING):
        found += product_weight_gradients(op, Ledger(structure, Phase.WEIGHT_GRADIENT))
    for weight, output in vectors(op):
        split_by = logical_gradient_axes(output, structure)
        rest = weight_home(weight, structure)
        open_axes = tuple(axis for axis in split_by if axis not in rest.axes)
        found.append((weight, Sharding(rest.split, open_axes)))
    return found


def _inner_sums(
    op: Op, weight: Tensor, made: Sharding, structure: Structure
) -> list[CollectiveCall]:
    """Return the sums over axes that are no data axes: streams in each pass, others per step."""
    data = tuple(axis for axis in made.partial if axes[axis].replicates_weights)
    want = Sharding(weight_home(weight, structure).split, data)
    ledger = Ledger(structure, Phase.WEIGHT_GRADIENT)
    moves = reshard(made, want)
    ledger.move(gradient_of(weight), made, moves, f"{op.name}: weight gradient", of_weight=True)
    return [call if call.streamed else replace(call, per_step=True) for call in ledger.calls]


def _data_sums(
    op: Op, weight: Tensor, made: Sharding, structure: Structure
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
    split = weight_home(weight, structure).split
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
    group: str, weight: Tensor, op: Op, split: Split, structure: Structure, *, again: bool = False
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


def _key_head_sums(op: Op, layer: LayerGraph, structure: Structure) -> list[CollectiveCall]:
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
            weight_home(weight, structure).split,
            per_step=True,
        )
        for weight in replicated
    ]
