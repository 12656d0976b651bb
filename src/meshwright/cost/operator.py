"""One operator on one device: the record of its price, and memory-bound operators."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.arrays import Num
from meshwright.cost.device import DeviceRates
from meshwright.graph.op import Op, OpKind
from meshwright.sharding.local_sizes import LocalLayer


def _memory_bound_cost(op: Op, layer: LocalLayer, rates: DeviceRates) -> OpCost:
    """Return a norm, an elementwise operator, a lookup, a permutation or the loss."""
    num_bytes: Num = 0.0
    for tensor in op.traffic:
        word = rates.activation_bytes if tensor.word_bytes is None else tensor.word_bytes
        num_bytes = num_bytes + word * layer.rows_of(op) * layer.width(tensor)
    if op.kind is OpKind.ROUTE:
        num_bytes = num_bytes * rates.expert_passes
    forward, backward = (words * num_bytes for words in op.words_per_element)
    return OpCost(
        forward_s=traffic_s(forward, rates),
        input_gradient_s=traffic_s(backward, rates),
        forward_traffic_bytes=forward,
        backward_traffic_bytes=backward,
        forward_kernels=1.0,
        backward_kernels=1.0,
    )


def traffic_s(num_bytes: Num, rates: DeviceRates) -> Num:
    """Return the seconds of a memory-bound kernel that moves ``num_bytes``."""
    return num_bytes / rates.elementwise_bytes_per_s


@dataclass(frozen=True)
class OpCost:
    """One operator on one device and one micro-batch; what an operator lacks is 0.0.

    Computation includes what the main memory adds to it; ``stream_*`` is what links add.
    """

    forward_s: Num = 0.0
    input_gradient_s: Num = 0.0
    weight_gradient_s: Num = 0.0
    stream_forward_s: Num = 0.0
    stream_backward_s: Num = 0.0
    forward_flops: Num = 0.0
    backward_flops: Num = 0.0
    forward_traffic_bytes: Num = 0.0
    backward_traffic_bytes: Num = 0.0
    forward_link_bytes: Num = 0.0
    """What streams beside the operator, each link that it crosses counted."""
    backward_link_bytes: Num = 0.0
    forward_kernels: Num = 0.0
    backward_kernels: Num = 0.0
    forward_waits: Num = 0.0
    """1 where what streams travels before or after the computation, not beside it."""
    backward_waits: Num = 0.0
