"""From operators and derived collectives to the price of a layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from meshwright.base.arrays import larger
from meshwright.cost.compute import Engine, launch_bound_s
from meshwright.cost.data_parallel import Exposure, overlapped, plain
from meshwright.cost.layer import LayerCost
from meshwright.cost.local import LocalLayer
from meshwright.cost.matmul import OpCost, StreamLinks
from meshwright.cost.operator import op_cost
from meshwright.graph.op import LayerGraph, Op, OpKind, Phase, Tensor
from meshwright.spec.collective import CollectiveKind
from meshwright.strategy.calls import CollectiveCall, call_elements
from meshwright.strategy.derivation import SavedTensor
from meshwright.strategy.layout import weight_home
from meshwright.strategy.local_sizes import degree_of, local_elements
from meshwright.strategy.strategy import Recompute, StrategyOf, Structure

CallTime = Callable[[CollectiveKind, str, Any], Any]
"""Seconds of a collective of a kind over an axis, for a number of bytes."""


@dataclass(frozen=True)
class OpSums:
    """Sums over the operators of a layer, and those of its attention core alone."""

    everything: OpCost
    attention: OpCost
    matmul_forward_s: Any


def sum_of(costs: Sequence[OpCost]) -> OpCost:
    """Return the sum of operator prices; the largest stream buffer is kept."""
    total = {entry.name: 0.0 for entry in fields(OpCost)}
    for cost in costs:
        for name, so_far in total.items():
            value = getattr(cost, name)
            total[name] = larger(so_far, value) if name.endswith("buffer_bytes") else so_far + value
    return OpCost(**total)


def op_sums(
    layer: LayerGraph, local: LocalLayer, engine: Engine, links: StreamLinks | None, *, causal: bool
) -> OpSums:
    """Return the prices of all operators of a layer, added up."""
    costs = [(op, op_cost(op, local, engine, links, causal=causal)) for op in layer.ops]
    return OpSums(
        everything=sum_of([cost for _, cost in costs]),
        attention=sum_of([cost for op, cost in costs if op.is_recomputed_selectively]),
        matmul_forward_s=sum_of([c for op, c in costs if op.kind is OpKind.MATMUL]).forward_s,
    )


@dataclass(frozen=True)
class CommCost:
    """Communication of a layer that shows, by axis, and what it costs beside [s]."""

    tp_s: Any = 0.0
    cp_s: Any = 0.0
    ep_s: Any = 0.0
    stream_s: Any = 0.0
    forward_s: Any = 0.0
    """What of it belongs to the forward pass."""
    per_step_s: Any = 0.0
    link_bytes: Any = 0.0
    hidden_s: Any = 0.0
    """What runs beside computation, of all axes."""


_PART_OF_AXIS = {"tp": "tp_s", "etp": "tp_s", "cp": "cp_s", "ep": "ep_s", "tatp": "stream_s"}


def comm_cost(
    calls: Sequence[CollectiveCall],
    sums: OpSums,
    sizes: Mapping[str, Any],
    strategy: StrategyOf[Any],
    structure: Structure,
    call_time: CallTime,
    word_bytes: float,
) -> CommCost:
    """Return the communication of a layer, exposed.

    A ring of keys and values runs beside the attention core and leaves at least one of its steps
    exposed. Decomposed collectives of tp run beside the matrix products of the layer and leave one
    of their pieces exposed. What runs beside the same computation shares it: a window is spent
    once. Sums over data axes are not priced here.
    """
    parts: dict[str, Any] = {entry.name: 0.0 for entry in fields(CommCost)}
    beside = Counter(_window(call) for call in calls if _runs_beside(call, structure))
    for call in calls:
        axis = call.axis.split("/")[0]
        if axis not in _PART_OF_AXIS or (call.streamed and call.of_weight):
            continue
        word = word_bytes if call.tensor.word_bytes is None else call.tensor.word_bytes
        num_bytes = word * call_elements(call, sizes, strategy)
        time_s = call_time(call.kind, call.axis, num_bytes)
        if call.per_step:
            parts["per_step_s"] = parts["per_step_s"] + time_s
            continue
        exposure = plain(time_s)
        if _runs_beside(call, structure):
            exposure = _exposure(call, axis, time_s, sums, strategy, beside[_window(call)])
        exposed_s = exposure.exposed_s
        parts["hidden_s"] = parts["hidden_s"] + exposure.hidden_s
        parts[_PART_OF_AXIS[axis]] = parts[_PART_OF_AXIS[axis]] + exposed_s
        if call.phase is Phase.FORWARD:
            parts["forward_s"] = parts["forward_s"] + exposed_s
        parts["link_bytes"] = parts["link_bytes"] + num_bytes * (degree_of(axis, strategy) > 1)
    return CommCost(**parts)


def _runs_beside(call: CollectiveCall, structure: Structure) -> bool:
    """Return whether a call runs beside computation of its layer."""
    if call.per_step or call.of_weight:
        return False
    cut = call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    decomposed = call.axis == "tp" and structure.overlap_tensor_parallel and cut
    return call.streamed or call.is_regather or decomposed


def _window(call: CollectiveCall) -> tuple[str, Phase, bool]:
    """Return what names the computation beside a call: calls of one window share it."""
    return call.axis if call.streamed else "", call.phase, call.replayed


def _exposure(
    call: CollectiveCall, axis: str, time_s: Any, sums: OpSums, strategy: StrategyOf[Any],
    num_sharing: int,
) -> Exposure:  # fmt: skip
    """Return what of a call the computation beside it hides, and what not.

    Streams run beside the attention core, other calls beside the matrix products: at most a
    quarter of those of the forward pass for each, which has four such calls in a plain layer.
    """
    degree = degree_of(axis, strategy)
    is_forward = call.phase is Phase.FORWARD or call.replayed
    if call.streamed:
        core = sums.attention
        window_s = (core.forward_s if is_forward else core.input_gradient_s) / num_sharing
        steps = larger(degree - 1.0, 1.0)
        return overlapped(time_s, window_s * (steps / degree), steps)
    share = min(0.25, (1.0 if is_forward else 2.0) / num_sharing)
    return overlapped(time_s, share * sums.matmul_forward_s, larger(degree, 1.0))


def kept_bytes(
    saved: Sequence[SavedTensor], sizes: Mapping[str, Any], strategy: StrategyOf[Any],
    word_bytes: float,
) -> Any:  # fmt: skip
    """Return the activations that one micro-batch leaves in a layer [bytes]."""
    total: Any = 0.0
    for entry in saved:
        word = word_bytes if entry.word_bytes is None else entry.word_bytes
        total = total + word * local_elements(entry.tensor, entry.split, sizes, strategy)
    return total


def parameters_on_device(
    layer: LayerGraph, structure: Structure, strategy: StrategyOf[Any]
) -> tuple[Any, Any]:
    """Return the parameters of a layer on one device: outside of routed experts, and in them."""
    dense: Any = 0.0
    expert: Any = 0.0
    for op in layer.ops:
        for weight in op.weights:
            split = weight_home(weight, structure).split
            elements = local_elements(weight, split, layer.sizes, strategy)
            if "experts" in weight.dims:
                expert = expert + elements
            else:
                dense = dense + elements
    return dense, expert


def largest_transient_bytes(op: Op, local: LocalLayer, word_bytes: float) -> Any:
    """Return the bytes of the outputs of an operator and their gradients, which live together."""

    def size(tensor: Tensor) -> Any:
        word = word_bytes if tensor.word_bytes is None else tensor.word_bytes
        rows = local.routed_rows if "routed_tokens" in tensor.dims else local.rows_of(op)
        return word * rows * local.width(tensor)

    return 2.0 * sum(size(tensor) for tensor in op.outputs)


def layer_cost(
    sums: OpSums, comm: CommCost, engine: Engine, recompute: Recompute, kept: Any,
    working_bytes: Any, params: tuple[Any, Any],
) -> LayerCost:  # fmt: skip
    """Return the price of a layer under one kind of recomputation."""
    total, again = sums.everything, _again(sums, recompute)
    launch_forward = launch_bound_s(total.forward_s, total.forward_kernels, engine)
    backward_s = total.input_gradient_s + total.weight_gradient_s + again.forward_s
    backward_kernels = total.backward_kernels + again.forward_kernels
    launch = launch_forward + launch_bound_s(backward_s, backward_kernels, engine)
    stream_s = total.stream_forward_s + total.stream_backward_s + again.stream_forward_s
    zero = 0.0 * kept
    return LayerCost(
        forward_s=total.forward_s + zero,
        input_gradient_s=total.input_gradient_s + zero,
        weight_gradient_s=total.weight_gradient_s + zero,
        recompute_s=again.forward_s + zero,
        launch_s=launch + zero,
        tp_s=comm.tp_s + zero,
        cp_s=comm.cp_s + zero,
        ep_s=comm.ep_s + zero,
        stream_s=comm.stream_s + stream_s + zero,
        forward_share=total.forward_s
        + launch_forward
        + comm.forward_s
        + total.stream_forward_s
        + zero,
        per_step_s=comm.per_step_s + zero,
        kept_bytes=kept,
        working_bytes=working_bytes + total.stream_buffer_bytes * 0.0 + zero,
        dense_params=params[0] + zero,
        expert_params=params[1] + zero,
        flops=total.forward_flops + total.backward_flops + again.forward_flops + zero,
        memory_traffic_bytes=total.forward_traffic_bytes
        + total.backward_traffic_bytes
        + again.forward_traffic_bytes
        + zero,
        hidden_s=comm.hidden_s + zero,
        link_traffic_bytes=comm.link_bytes + total.link_bytes + zero,
    )


def _again(sums: OpSums, recompute: Recompute) -> OpCost:
    """Return the forward computation that the backward pass repeats."""
    return {
        Recompute.NONE: OpCost(),
        Recompute.SELECTIVE: sums.attention,
        Recompute.FULL: sums.everything,
    }[recompute]
