"""The price of one layer on one device for one micro-batch, by part; and sums of such prices.

A :class:`LayerCost` is the unit that everything above composes: a stage is so many layers of each
kind, a step so many micro-batches through a stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from operator import add
from typing import Any, TypeVar, cast

import numpy as np

from meshwright.base.arrays import larger, where
from meshwright.collectives.bounds import least_sent_bytes
from meshwright.collectives.selection import affine_forms, best_affine_candidates
from meshwright.cost.data_parallel import Exposure, Transfer, overlapped, plain
from meshwright.cost.device import Engine, launch_bound_s
from meshwright.cost.local import LocalLayer
from meshwright.cost.matmul import OpCost
from meshwright.cost.network import AxisNetwork
from meshwright.cost.operator import op_cost
from meshwright.cost.problem import Problem
from meshwright.cost.streamed_layer import AXIS, LayerStreams, Way, ways_to_stream
from meshwright.graph.op import LayerGraph, Op, OpKind, Phase, Tensor
from meshwright.sharding.calls import CollectiveCall, call_elements
from meshwright.sharding.derivation import SavedTensor
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import Recompute, StrategyOf, Streamed, Structure
from meshwright.sharding.tensor_sharding import weight_home
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import SelectiveRecompute

_TRANSIENT = "working_bytes"


@dataclass(frozen=True)
class LayerCost:
    """Seconds, bytes and FLOPs of one layer (or of an edge: embedding, head) on one device.

    Numbers, or columns with one row per way to split the layer. Communication is what shows
    outside of computation. ``kept`` is what a micro-batch leaves behind for its backward pass.
    """

    forward_s: Any
    """Computation of the forward pass [s]."""
    input_gradient_s: Any
    weight_gradient_s: Any
    recompute_s: Any
    """Forward computation that the backward pass repeats [s]."""
    launch_s: Any
    """What launching kernels adds to forward, backward and recomputation [s]."""
    tp_s: Any
    """Communication over tp that shows, all phases [s]."""
    cp_s: Any
    ep_s: Any
    stream_s: Any
    """Tensor streams over tatp: rounds that wait for a link or for HBM [s]."""
    forward_share: Any
    """Seconds of the forward pass, communication and launches included [s]."""
    per_step_s: Any
    """Communication over tp once for each optimizer step [s]."""
    kept_bytes: Any
    """Activations kept for the backward pass [bytes]."""
    working_bytes: Any
    """Largest transient of this layer: recomputed activations, stream buffers, logits [bytes]."""
    dense_params: Any
    """Parameters on this device outside of routed experts [1]."""
    expert_params: Any
    flops: Any
    """FLOPs executed, forward and backward [FLOP]."""
    memory_traffic_bytes: Any
    """Bytes that cross the main memory [bytes]."""
    hidden_s: Any
    """Communication that runs beside computation [s]."""
    link_traffic_bytes: Any
    """Bytes that this device sends at the least, each over one link [bytes]."""

    @property
    def busy_s(self) -> Any:
        """Computation and launches [s]."""
        return (
            self.forward_s
            + self.input_gradient_s
            + self.weight_gradient_s
            + self.recompute_s
            + self.launch_s
        )

    @property
    def exposed_comm_s(self) -> Any:
        """Communication that shows [s]."""
        return self.tp_s + self.cp_s + self.ep_s + self.stream_s

    @property
    def total_s(self) -> Any:
        """Time of one micro-batch through this layer, forward and backward [s]."""
        return self.busy_s + self.exposed_comm_s


LAYER_PARTS = tuple(field.name for field in fields(LayerCost))


def weighted_part(costs: Sequence[LayerCost], counts: Sequence[Any], name: str) -> Any:
    """Return one part of ``counts[k]`` layers of each kind k; of transients the largest."""
    largest = name == _TRANSIENT
    weights = [count > 0 for count in counts] if largest else counts
    terms = [getattr(cost, name) * weight for cost, weight in zip(costs, weights, strict=True)]
    return reduce(larger if largest else add, terms)


def weighted_sum(costs: Sequence[LayerCost], counts: Sequence[Any]) -> LayerCost:
    """Return the price of ``counts[k]`` layers of each kind k; the largest transient is kept."""
    return LayerCost(**{name: weighted_part(costs, counts, name) for name in LAYER_PARTS})


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


@dataclass(frozen=True)
class LayerPrices:
    """Prices of each kind of layer and of both edges, under one kind of recomputation."""

    kinds: tuple[LayerCost, ...]
    embedding: LayerCost
    head: LayerCost


class Collectives:
    """Times of collectives over the axes of columns of strategies; forms are found once.

    With ``all_forms`` every algorithm keeps its place, so that tables of equal shape arise.
    """

    def __init__(self, network: AxisNetwork, launch_s: Any, *, all_forms: bool = False) -> None:
        self.network = network
        self.launch_s = launch_s
        self.candidates = affine_forms if all_forms else best_affine_candidates
        self._transfers: dict[tuple[CollectiveKind, str], Transfer] = {}

    def transfer(self, kind: CollectiveKind, axis: str) -> Transfer:
        """Return the affine forms of a collective over an axis, the start of it included."""
        key = (kind, axis)
        if key not in self._transfers:
            group = self.network.group(axis)
            if not group.spans:
                return Transfer(((0.0 * self.network.strategy.tp, 0.0 * self.network.strategy.tp),))
            size = reduce(np.multiply, [span.size for span in group.spans])
            start_s = self.launch_s * (size > 1)
            forms = self.candidates(kind, group)
            self._transfers[key] = Transfer(
                tuple((fixed_s + start_s, slope) for _, fixed_s, slope in forms)
            )
        return self._transfers[key]

    def time_s(self, kind: CollectiveKind, axis: str, num_bytes: Any) -> Any:
        """Return the seconds of one collective."""
        return self.transfer(kind, axis).time_s(num_bytes, 1.0)


def price_layers(
    problem: Problem,
    structure: Structure,
    network: AxisNetwork,
    recomputes: tuple[Recompute, ...],
    *,
    uses_tatp: bool,
) -> dict[Recompute, LayerPrices]:
    """Return the prices of all pieces of the model, for each kind of recomputation.

    Parameters
    ----------
    network
        Columns of degrees with the groups of their axes; only what a layer sees matters.
    uses_tatp
        Whether any row streams tensors; otherwise the round model is left out.
    """
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    pieces: dict[Recompute, list[LayerCost]] = {recompute: [] for recompute in recomputes}
    for index in range(len(problem.pieces)):
        ways = ways_to_stream(problem, structure, network, index, uses_tatp=uses_tatp)
        priced = [PricedWay(way, collectives) for way in ways]
        alone = on_links_of_their_own(priced)
        for recompute in recomputes:
            again = Recompute.NONE if index >= len(problem.graph.layers) else recompute
            blocks = priced[0].blocks(again)
            if len(priced) > 1:
                takes = takes_inputs(alone, again)
                pairs = zip(takes, blocks, priced[1].blocks(again), strict=True)
                blocks = [chosen_block(*pair) for pair in pairs]
            cost = layer_cost(blocks, problem.engine, 0.0 * network.strategy.tp)
            if index == len(problem.pieces) - 1:
                cost = _with_all_at_work(cost)
            pieces[recompute].append(cost)
    return {r: LayerPrices(tuple(p[:-2]), p[-2], p[-1]) for r, p in pieces.items()}


def _with_all_at_work(head: LayerCost) -> LayerCost:
    """Return the head, which goes backward at once: what it keeps is part of its work."""
    working = head.working_bytes + head.kept_bytes
    return replace(head, working_bytes=working, kept_bytes=head.kept_bytes * 0.0)


@dataclass(frozen=True)
class PricedWay:
    """One kind of layer, or an edge, that streams one tensor, with the prices of its blocks."""

    way: Way
    collectives: Collectives

    @cached_property
    def sums(self) -> list[OpSums]:
        """The operators of each block, added up."""
        way, problem = self.way, self.way.problem
        work = problem.workload
        return [
            op_sums(
                block, way.local, problem.engine, way.streams,
                causal=work.causal, selective=work.software.selective_recompute,
            )
            for block in way.blocks
        ]  # fmt: skip

    @cached_property
    def transient_bytes(self) -> list[Any]:
        """The largest transient of each block [bytes]."""
        way, word = self.way, self.way.problem.engine.activation_bytes
        return [
            reduce(larger, [largest_transient_bytes(op, way.local, word) for op in block.ops])
            for block in way.blocks
        ]

    @cached_property
    def params(self) -> list[tuple[Any, Any]]:
        """Parameters of each block on one device, outside of routed experts and in them [1]."""
        way = self.way
        strategy = way.network.strategy
        return [parameters_on_device(block, way.structure, strategy) for block in way.blocks]

    def blocks(self, recompute: Recompute) -> list[BlockCost]:
        """Return the price of each block."""
        if recompute not in self._known:
            self._known[recompute] = self._blocks(recompute)
        return self._known[recompute]

    @cached_property
    def _known(self) -> dict[Recompute, list[BlockCost]]:
        return {}

    def _blocks(self, recompute: Recompute) -> list[BlockCost]:
        way = self.way
        strategy, word = way.network.strategy, way.problem.engine.activation_bytes
        calls, whole = way.calls_of_blocks(recompute), joined_sums(self.sums)
        together = [call for of_block in calls for call in of_block]

        def bytes_of(saved: Sequence[SavedTensor]) -> Any:
            return kept_bytes(saved, way.sizes, strategy, word)

        kept = way.saved_of_blocks(recompute)
        core_alone = way.problem.keeping.selective == "attention"
        replays = recompute is Recompute.FULL or (
            recompute is Recompute.SELECTIVE and not core_alone
        )
        back = way.saved_of_blocks(Recompute.NONE) if replays else [[] for _ in kept]
        return [
            BlockCost(
                everything=sums.everything,
                again=sums.again(recompute),
                comm=comm_cost(
                    calls[number], whole, way.sizes, strategy, way.structure,
                    self.collectives.time_s, word, together,
                ),
                kept_bytes=bytes_of(kept[number]),
                recomputed_bytes=bytes_of(back[number]),
                transient_bytes=self.transient_bytes[number],
                dense_params=self.params[number][0],
                expert_params=self.params[number][1],
            )
            for number, sums in enumerate(self.sums)
        ]  # fmt: skip


def on_links_of_their_own(priced: Sequence[PricedWay]) -> Sequence[PricedWay]:
    """Return the same ways on links that nobody else uses.

    What streams is decided there, so that a plan is the same one at every fidelity.
    """
    network = priced[0].way.network
    if len(priced) == 1 or not network.slowdown:
        return priced
    private = replace(network, slowdown={})
    collectives = Collectives(private, priced[0].collectives.launch_s)
    ways = ways_to_stream(
        priced[0].way.problem, replace(priced[0].way.structure, streamed=Streamed.AUTO), private,
        priced[0].way.index, uses_tatp=True,
    )  # fmt: skip
    return [PricedWay(way, collectives) for way in ways]


def takes_inputs(priced: Sequence[PricedWay], recompute: Recompute) -> list[Any]:
    """Return for each block whether its inputs stream, for each row.

    They do where that is legal and takes less time in a micro-batch; sums once a step and memory
    do not decide.
    """
    weights, inputs = priced
    engine = weights.way.problem.engine
    pairs = zip(weights.blocks(recompute), inputs.blocks(recompute), strict=True)
    return [
        (two.total_s(engine) < one.total_s(engine)) & is_legal
        for (one, two), is_legal in zip(pairs, inputs.way.is_legal, strict=True)
    ]


def streamed_blocks(
    problem: Problem, structure: Structure, network: AxisNetwork
) -> list[list[tuple[Way, LayerGraph]]]:
    """Return how each block of each piece of the model streams, under one strategy.

    Parameters
    ----------
    network
        The groups of one strategy: columns of one row.
    """
    uses_tatp = bool((network.strategy.tatp > 1).any())
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    found = []
    for index in range(len(problem.pieces)):
        ways = ways_to_stream(problem, structure, network, index, uses_tatp=uses_tatp)
        takes = [False] * len(ways[0].blocks)
        if len(ways) > 1:
            priced = on_links_of_their_own([PricedWay(way, collectives) for way in ways])
            takes = [bool(np.all(taken)) for taken in takes_inputs(priced, structure.recompute)]
        found.append(
            [(ways[int(t)], block) for t, block in zip(takes, ways[0].blocks, strict=True)]
        )
    return found
