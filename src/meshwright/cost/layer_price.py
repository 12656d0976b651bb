"""From operators and derived collectives to the price of a layer, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any, TypeVar, cast

from meshwright.base.arrays import larger, where
from meshwright.collectives.bounds import least_sent_bytes
from meshwright.cost.compute import Engine, launch_bound_s
from meshwright.cost.data_parallel import Exposure, overlapped, plain
from meshwright.cost.layer import LayerCost
from meshwright.cost.local import LocalLayer
from meshwright.cost.matmul import OpCost
from meshwright.cost.operator import op_cost
from meshwright.cost.streamed.rounds import LayerStreams
from meshwright.cost.streamed.travels import AXIS
from meshwright.graph.op import LayerGraph, Op, OpKind, Phase, Tensor
from meshwright.sharding.calls import CollectiveCall, call_elements
from meshwright.sharding.derivation import SavedTensor
from meshwright.sharding.layout import weight_home
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import Recompute, StrategyOf, Structure
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import SelectiveRecompute

CallTime = Callable[[CollectiveKind, str, Any], Any]
"""Seconds of a collective of a kind over an axis, for a number of bytes."""


@dataclass(frozen=True)
class OpSums:
    """Sums over the operators of a layer, and those of its attention core alone."""

    everything: OpCost
    attention: OpCost
    matmul_forward_s: Any
    selected: OpCost = field(default_factory=OpCost)
    """What selective recomputation repeats."""

    def again(self, recompute: Recompute) -> OpCost:
        """Return the forward computation that the backward pass repeats."""
        return {
            Recompute.NONE: OpCost(),
            Recompute.SELECTIVE: self.selected,
            Recompute.FULL: self.everything,
        }[recompute]


def sum_of(costs: Sequence[_Sum], of: type[_Sum]) -> _Sum:
    """Return the sum of prices, part by part."""
    total: dict[str, Any] = {entry.name: 0.0 for entry in fields(of)}
    for cost in costs:
        for name, so_far in total.items():
            total[name] = so_far + getattr(cost, name)
    return of(**total)


def _scaled(cost: OpCost, share: float) -> OpCost:
    """Return a share of a price."""
    return OpCost(**{entry.name: share * getattr(cost, entry.name) for entry in fields(OpCost)})


def op_sums(
    layer: LayerGraph, local: LocalLayer, engine: Engine, streams: LayerStreams | None, *,
    causal: bool, selective: SelectiveRecompute = "attention",
) -> OpSums:  # fmt: skip
    """Return the prices of all operators of a layer, or of a block of one, added up.

    Parameters
    ----------
    selective
        What selective recomputation repeats: the attention core; every second product and all
        elementwise operators; or all but the products.
    """
    costs = [(op, op_cost(op, local, engine, streams, causal=causal)) for op in layer.ops]
    matmuls = [cost for op, cost in costs if op.kind is OpKind.MATMUL]
    core = [cost for op, cost in costs if op.is_recomputed_selectively]
    apart = (OpKind.MATMUL, OpKind.ATTENTION)
    others = [cost for op, cost in costs if op.kind not in apart]
    selected = {
        "attention": core,
        "half_of_products": [*others, *(_scaled(cost, 0.5) for cost in matmuls)],
        "all_but_products": [*others, *core],
    }[selective]
    return OpSums(
        everything=sum_of([cost for _, cost in costs], OpCost),
        attention=sum_of(core, OpCost),
        selected=sum_of(selected, OpCost),
        matmul_forward_s=sum_of(matmuls, OpCost).forward_s,
    )


def joined_sums(blocks: Sequence[OpSums]) -> OpSums:
    """Return the sums over all blocks of a layer."""
    return OpSums(
        everything=sum_of([block.everything for block in blocks], OpCost),
        attention=sum_of([block.attention for block in blocks], OpCost),
        selected=sum_of([block.selected for block in blocks], OpCost),
        matmul_forward_s=sum(block.matmul_forward_s for block in blocks),
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
    """That each rank sends at the least [bytes]."""
    hidden_s: Any = 0.0
    """What runs beside computation, of all axes."""


_Sum = TypeVar("_Sum", OpCost, CommCost)
_PART_OF_AXIS = {"tp": "tp_s", "etp": "tp_s", "cp": "cp_s", "ep": "ep_s", "tatp": "stream_s"}


def comm_cost(
    calls: Sequence[CollectiveCall], sums: OpSums, sizes: Mapping[str, Any],
    strategy: StrategyOf[Any], structure: Structure, call_time: CallTime, word_bytes: float,
    together: Sequence[CollectiveCall] = (),
) -> CommCost:  # fmt: skip
    """Return the communication of a layer, exposed; calls that travel in rounds left out.

    A ring of keys and values runs beside the attention core and leaves at least one of its steps
    exposed. Decomposed collectives of tp run beside the matrix products of the layer and leave one
    of their pieces exposed. What runs beside the same computation shares it: a window is spent
    once. Sums over data axes are not priced here.

    Parameters
    ----------
    sums
        Of the whole layer, which has the windows.
    together
        All calls of the layer, where ``calls`` are those of a block: they share the windows.
    """
    parts: dict[str, Any] = {entry.name: 0.0 for entry in fields(CommCost)}
    overlaps = structure.overlap_tensor_parallel
    beside = Counter(
        _window(call)
        for call in together or calls
        if runs_beside(call, overlaps_tensor_parallel=overlaps)
    )
    for call in calls:
        axis = call.axis.split("/")[0].split("*")[0]
        if axis not in _PART_OF_AXIS or (call.streamed and call.of_weight):
            continue
        word = word_bytes if call.tensor.word_bytes is None else call.tensor.word_bytes
        num_bytes = word * call_elements(call, sizes, strategy)
        time_s = call_time(call.kind, call.axis, num_bytes)
        if call.per_step:
            parts["per_step_s"] = parts["per_step_s"] + time_s
            continue
        exposure = plain(time_s)
        if runs_beside(call, overlaps_tensor_parallel=overlaps):
            exposure = _exposure(call, axis, time_s, sums, strategy, beside[_window(call)])
        exposed_s = exposure.exposed_s
        parts["hidden_s"] = parts["hidden_s"] + exposure.hidden_s
        parts[_PART_OF_AXIS[axis]] = parts[_PART_OF_AXIS[axis]] + exposed_s
        if call.phase is Phase.FORWARD:
            parts["forward_s"] = parts["forward_s"] + exposed_s
        members = degree_of(call.axis, strategy, sizes)
        parts["link_bytes"] = parts["link_bytes"] + least_sent_bytes(call.kind, num_bytes, members)
    return CommCost(**parts)


def runs_beside(call: CollectiveCall, *, overlaps_tensor_parallel: bool) -> bool:
    """Return whether a call runs beside computation of its layer; over tatp only rounds do."""
    if call.per_step or call.of_weight or call.axis == AXIS:
        return False
    cut = call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    decomposed = call.axis == "tp" and overlaps_tensor_parallel and cut
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
        elements = local_elements(entry.tensor, entry.split, sizes, strategy)
        total = total + entry.share * word * elements
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
    """Return the bytes of the outputs of an operator and their gradients, which live together.

    With sequence parallelism also what is gathered of the input of a product, and its gradient.
    """

    def size(tensor: Tensor, rows: Any) -> Any:
        word = word_bytes if tensor.word_bytes is None else tensor.word_bytes
        return word * rows * local.width(tensor)

    rows = local.rows_of(op)
    outputs = sum(size(tensor, rows) for tensor in op.outputs)
    if op.kind is not OpKind.MATMUL or "hidden" not in op.contracted:
        return 2.0 * outputs
    gathered = sum(size(tensor, local.tokens - local.token_shard) for tensor in op.inputs)
    return 2.0 * (outputs + gathered)


@dataclass(frozen=True)
class BlockCost:
    """A part of a layer between two additions to the residual stream, on one device."""

    everything: OpCost
    again: OpCost
    """What of it the backward pass repeats."""
    comm: CommCost
    kept_bytes: Any
    recomputed_bytes: Any
    """Activations that full recomputation brings back [bytes]."""
    transient_bytes: Any
    dense_params: Any
    expert_params: Any

    @property
    def stream_s(self) -> Any:
        """What links add to operators that work in rounds [s]."""
        total, again = self.everything, self.again
        return total.stream_forward_s + total.stream_backward_s + again.stream_forward_s

    def total_s(self, engine: Engine) -> Any:
        """Return one micro-batch through the block alone, both passes [s]."""
        total, again, comm = self.everything, self.again, self.comm
        ahead_s = total.forward_s
        back_s = total.input_gradient_s + total.weight_gradient_s + again.forward_s
        ahead_s = ahead_s + launch_bound_s(ahead_s, total.forward_kernels, engine)
        kernels = total.backward_kernels + again.forward_kernels
        back_s = back_s + launch_bound_s(back_s, kernels, engine)
        return ahead_s + back_s + self.stream_s + comm.tp_s + comm.cp_s + comm.ep_s + comm.stream_s


def chosen_block(takes_second: Any, first: BlockCost, second: BlockCost) -> BlockCost:
    """Return the second of two prices of a block where it is to be taken, else the first."""
    return cast(BlockCost, _chosen(takes_second, first, second))


def _chosen(takes_second: Any, first: Any, second: Any) -> Any:
    """Return numbers, columns or dataclasses of them, chosen row by row."""
    if not isinstance(first, BlockCost | OpCost | CommCost):
        return where(takes_second, second, first)
    parts = {
        entry.name: _chosen(takes_second, getattr(first, entry.name), getattr(second, entry.name))
        for entry in fields(first)
    }
    return type(first)(**parts)


def layer_cost(blocks: Sequence[BlockCost], engine: Engine, zero: Any) -> LayerCost:
    """Return the price of a layer; ``zero`` gives every part the length of the columns."""
    total = sum_of([block.everything for block in blocks], OpCost)
    again = sum_of([block.again for block in blocks], OpCost)
    comm = sum_of([block.comm for block in blocks], CommCost)
    launch_forward = launch_bound_s(total.forward_s, total.forward_kernels, engine)
    backward_s = total.input_gradient_s + total.weight_gradient_s + again.forward_s
    backward_kernels = total.backward_kernels + again.forward_kernels
    launch = launch_forward + launch_bound_s(backward_s, backward_kernels, engine)
    ahead_s = total.forward_s + launch_forward + comm.forward_s + total.stream_forward_s
    parts = {
        "forward_s": total.forward_s,
        "input_gradient_s": total.input_gradient_s,
        "weight_gradient_s": total.weight_gradient_s,
        "recompute_s": again.forward_s,
        "launch_s": launch,
        "tp_s": comm.tp_s,
        "cp_s": comm.cp_s,
        "ep_s": comm.ep_s,
        "stream_s": comm.stream_s + sum(block.stream_s for block in blocks),
        "forward_share": ahead_s,
        "per_step_s": comm.per_step_s,
        "kept_bytes": sum(block.kept_bytes for block in blocks),
        "working_bytes": reduce(larger, [block.transient_bytes for block in blocks])
        + sum(block.recomputed_bytes for block in blocks),
        "dense_params": sum(block.dense_params for block in blocks),
        "expert_params": sum(block.expert_params for block in blocks),
        "flops": total.forward_flops + total.backward_flops + again.forward_flops,
        "memory_traffic_bytes": total.forward_traffic_bytes
        + total.backward_traffic_bytes
        + again.forward_traffic_bytes,
        "hidden_s": comm.hidden_s,
        "link_traffic_bytes": comm.link_bytes
        + total.forward_link_bytes
        + total.backward_link_bytes
        + again.forward_link_bytes,
    }
    return LayerCost(**{name: part + zero for name, part in parts.items()})
