"""One forward pass through a layer, and through any number of layers, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any

from meshwright.base.arrays import larger
from meshwright.cost.communication import CommCost, OpSums
from meshwright.cost.device import DeviceRates, exposed_launch_s
from meshwright.cost.local import LocalLayer
from meshwright.cost.operator import OpCost
from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor
from meshwright.serve.operators import ForwardCost, PassShape, forward_cost, score_bytes
from meshwright.spec.calibration import ServingConstantsOf

_TRANSIENT = "working_bytes"


@dataclass(frozen=True)
class PassCost:
    """A forward pass through one layer (or an edge) on one device; numbers or columns."""

    matmul_compute_s: Any
    """Matrix products that arithmetic limits [s]."""
    matmul_memory_s: Any
    """Matrix products that memory traffic limits [s]."""
    attention_s: Any
    elementwise_s: Any
    launch_s: Any
    """What launching kernels adds [s]."""
    tp_comm_s: Any
    cp_comm_s: Any
    ep_comm_s: Any
    flops: Any
    """Executed [FLOP]."""
    traffic_bytes: Any
    """Across the main memory [bytes]."""
    link_bytes: Any
    """Sent by the device inside the stage [bytes]."""
    working_bytes: Any
    """Largest transient [bytes]."""
    weight_bytes: Any
    """Resident weights [bytes]."""
    cache_bytes: Any
    """Key-value cache of one sequence at full length [bytes]."""

    @property
    def total_s(self) -> Any:
        """Seconds of the pass: the sum of its parts."""
        return reduce(add, [getattr(self, name) for name in PASS_TIME_PARTS])


PASS_PARTS = tuple(entry.name for entry in fields(PassCost))
PASS_TIME_PARTS = tuple(name for name in PASS_PARTS if name.endswith("_s"))


def sum_of_passes(costs: Sequence[PassCost], counts: Sequence[Any]) -> PassCost:
    """Return ``counts[k]`` passes of each kind k, one by one; the largest transient stays."""
    totals: dict[str, Any] = {}
    for name in PASS_PARTS:
        largest = name == _TRANSIENT
        weights = [(count > 0) * 1.0 for count in counts] if largest else counts
        terms = [getattr(cost, name) * weight for cost, weight in zip(costs, weights, strict=True)]
        totals[name] = reduce(larger if largest else add, terms)
    return PassCost(**totals)


def forward_sum(costs: Sequence[ForwardCost]) -> ForwardCost:
    """Return the sum of operator prices."""
    names = [entry.name for entry in fields(ForwardCost)]
    return ForwardCost(**{name: reduce(add, [getattr(c, name) for c in costs]) for name in names})


def layer_forward(
    layer: LayerGraph, local: LocalLayer, rates: DeviceRates, shape: PassShape
) -> tuple[ForwardCost, OpSums]:
    """Return all operators of a layer added up, and the windows beside which communication runs."""
    costs = [(op, forward_cost(op, local, rates, shape)) for op in layer.ops]
    total = forward_sum([cost for _, cost in costs])
    core_s: Any = 0.0
    matmul_s: Any = 0.0
    for op, cost in costs:
        core_s = core_s + cost.busy_s if op.kind is OpKind.ATTENTION else core_s
        matmul_s = matmul_s + cost.busy_s if op.kind is OpKind.MATMUL else matmul_s
    windows = OpSums(
        everything=OpCost(forward_s=total.busy_s),
        attention=OpCost(forward_s=core_s),
        matmul_forward_s=matmul_s,
    )
    return total, windows


def pass_cost(
    total: ForwardCost, comm: CommCost, rates: DeviceRates, working_bytes: Any, weight_bytes: Any,
    cache_bytes: Any, zero: Any,
) -> PassCost:  # fmt: skip
    """Return the pass through one layer; ``zero`` gives every part the length of the columns."""
    return PassCost(
        matmul_compute_s=total.matmul_compute_s + zero,
        matmul_memory_s=total.matmul_memory_s + zero,
        attention_s=total.attention_s + zero,
        elementwise_s=total.elementwise_s + zero,
        launch_s=exposed_launch_s(total.busy_s, total.num_kernels, rates) + zero,
        tp_comm_s=comm.tp_s + zero,
        cp_comm_s=comm.cp_s + zero,
        ep_comm_s=comm.ep_s + zero,
        flops=total.flops + zero,
        traffic_bytes=total.traffic_bytes + zero,
        link_bytes=comm.link_bytes + zero,
        working_bytes=working_bytes + zero,
        weight_bytes=weight_bytes + zero,
        cache_bytes=cache_bytes + zero,
    )


def host_s(constants: ServingConstantsOf[Any], num_sequences: Any) -> Any:
    """Return what the server takes beside the kernels of a pass [s]."""
    return constants.host_step_s + constants.host_sequence_s * num_sequences


def live_bytes(op: Op, local: LocalLayer, rates: DeviceRates, shape: PassShape) -> Any:
    """Return the bytes of what an operator reads and writes, which live together [bytes]."""

    def size(tensor: Tensor) -> Any:
        word = rates.activation_bytes if tensor.word_bytes is None else tensor.word_bytes
        rows = local.routed_rows if "routed_tokens" in tensor.dims else local.rows_of(op)
        return word * rows * local.width(tensor)

    scores = score_bytes(op, local, rates, shape)
    return scores + sum(size(tensor) for tensor in (*op.inputs, *op.outputs))
