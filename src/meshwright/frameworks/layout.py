"""What every target needs of a plan as whole numbers: degrees, mesh dims, layers, micro-batches."""

from __future__ import annotations

from meshwright.cost.stage import deal_layers
from meshwright.sharding.strategy import DEGREES
from meshwright.train.answer import Plan

MESH_AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
"""Axes of a device mesh on a cluster, innermost first in the default order of Megatron."""
GRADIENT_AXES = ("dp_replicate", "dp_shard", "cp")
"""Axes over which the gradients of a weight are summed."""
SHARD_AXES = ("dp_shard", "cp")
"""Axes over which ZeRO shards."""


def degrees(plan: Plan) -> dict[str, int]:
    """Return the degrees of the plan by name, and dp, the product of its two axes."""
    strategy = plan.best.strategy
    return {name: int(getattr(strategy, name)) for name in DEGREES} | {"dp": int(strategy.dp)}


def mesh_dims(plan: Plan) -> dict[str, int]:
    """Return name and size of each mesh dim, outermost first; dims of size one are kept."""
    sizes = degrees(plan)
    order = [axis for axis in reversed(plan.best.structure.axis_order) if axis in MESH_AXES]
    return {axis: sizes[axis] for axis in order}


def axes_in_use(plan: Plan) -> tuple[str, ...]:
    """Return the axes of degree above one, innermost first."""
    return tuple(axis for axis, size in reversed(mesh_dims(plan).items()) if size > 1)


def ordered_as(plan: Plan, order: tuple[str, ...]) -> bool:
    """Return whether the axes in use lie on the devices as in an order, innermost first."""
    used = axes_in_use(plan)
    return used == tuple(axis for axis in order if axis in used)


def chunk_lengths(plan: Plan) -> list[int]:
    """Return the layers of each run of the pipeline, first to last, as they were priced."""
    sizes = degrees(plan)
    runs = sizes["pp"] * sizes["num_virtual_stages"]
    counts = deal_layers((0,) * plan.model.num_layers, 1, runs, 1)
    return [int(count) for count in counts[:, 0]]


def micro_batches(plan: Plan) -> int:
    """Return the micro-batches of one data-parallel rank, for a batch that divides."""
    sizes = degrees(plan)
    return plan.workload.global_batch_size // (sizes["dp"] * sizes["micro_batch_size"])


def num_experts(plan: Plan) -> int:
    """Return the routed experts of one layer; 0 for a dense model."""
    kinds = plan.model.layer_kinds
    return max((kind.experts.num_experts for kind in kinds if kind.experts), default=0)
