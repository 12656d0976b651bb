"""All collectives of a layer, derived by running the four-case rule over its operators.

Nothing is listed by hand: the forward pass walks the operators in order, the backward pass walks
them in reverse with the layouts of the gradients, and weight gradients are summed where they are
left as partial sums.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from meshwright.graph.op import LayerGraph, OpGraph, Phase
from meshwright.sharding.backward import backward_calls, sync_calls
from meshwright.sharding.calls import CollectiveCall
from meshwright.sharding.forward import forward_calls
from meshwright.sharding.strategy import PlanOptions, Recompute
from meshwright.sharding.tensor_sharding import activation_sharding
from meshwright.spec.collective import CollectiveKind


def derive_calls(
    layer: LayerGraph, structure: PlanOptions, axes: Collection[str] | None = None
) -> tuple[CollectiveCall, ...]:
    """Return every collective of one layer: forward, backward, and gradients once per step.

    Parameters
    ----------
    axes
        Axes of more than one device; calls over no other axis are made. None: all axes, so that
        calls over an axis of one device have a group of one and cost nothing.
    """
    forward = forward_calls(layer, structure)
    calls = [
        *forward,
        *_replayed(layer, structure, forward),
        *backward_calls(layer, structure),
        *sync_calls(layer, structure),
    ]
    return tuple(call for call in calls if axes is None or _is_active(call, axes))


def _replayed(
    layer: LayerGraph, structure: PlanOptions, forward: list[CollectiveCall]
) -> list[CollectiveCall]:
    """Return the forward calls that recomputation runs again in the backward pass."""
    if structure.recompute is Recompute.NONE:
        return []
    again = forward
    if structure.recompute is Recompute.SELECTIVE:
        sites = {op.name for op in layer.ops if op.is_recomputed_selectively}
        again = [call for call in forward if call.site.split(":")[0] in sites and call.streamed]
    return [replace(call, phase=Phase.INPUT_GRADIENT, replayed=True) for call in again]


def _is_active(call: CollectiveCall, active: Collection[str]) -> bool:
    """Return whether a call crosses an axis of more than one device."""
    return any(_in_use(axis, active) for axis in call.axis.split("/")[0].split("*"))


def _in_use(axis: str, active: Collection[str]) -> bool:
    parts = {
        "dp": ("dp", "dp_shard", "dp_replicate"),
        "dp_shard": ("dp", "dp_shard"),
        "dp_replicate": ("dp", "dp_replicate"),
        "edp": ("edp", "dp", "dp_shard", "dp_replicate", "cp", "tp"),
        "edp_shard": ("edp", "dp", "dp_shard", "cp", "tp"),
    }
    return any(name in active for name in parts.get(axis, (axis,)))


def stage_boundary_calls(graph: OpGraph, structure: PlanOptions) -> tuple[CollectiveCall, ...]:
    """Return what passes between two pipeline stages for one micro-batch: forward and backward.

    The residual stream crosses in the layout in which it rests, so that sequence parallelism
    divides it by tp.
    """
    stream = graph.layers[0].input
    split = activation_sharding(stream, structure).split
    return tuple(
        CollectiveCall(CollectiveKind.SEND, "pp", stream, phase, "stage boundary", split)
        for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT)
    )
