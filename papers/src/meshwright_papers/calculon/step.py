"""A plan by the formulas of the peer: bytes in both memories, the time of a step, refusals."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshwright.base.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    Num,
    ceil_div,
    positive_part,
    smaller,
    where,
)
from meshwright_papers.calculon.block import BlockStructure, block_choices
from meshwright_papers.calculon.block_cost import (
    BlockCost,
    OptimizerCost,
    Pair,
    block_cost,
    optimizer_cost,
)
from meshwright_papers.calculon.executions import (
    ALL_REDUCE,
    ATTENTIONS,
    DATA_TYPES,
    NO_OVERLAP,
    Executions,
    check_executions,
)
from meshwright_papers.calculon.machine import (
    Application,
    Links,
    Machine,
    System,
    machine_of,
)


@dataclass(frozen=True)
class Layout:
    """Layout of the blocks over stages; every count is a column."""

    pp: Num
    num_blocks: Num
    """Blocks of one stage, the largest one."""
    num_missing_blocks: Num
    """Blocks that all other stages lack together."""
    num_virtual_stages: Num
    num_micro_batches: Num

    @property
    def blocks_per_chunk(self) -> Num:
        """Blocks of one stage that a micro-batch passes in a row."""
        return self.num_blocks // self.num_virtual_stages

    @property
    def micro_batches_in_flight(self) -> Num:
        """Micro-batches with activations held in one stage, one forward one backward.

        Interleaving holds (pp - 1) / (v * pp) more of each.
        """
        held = smaller(self.num_micro_batches, self.pp)
        more = (self.pp - 1) / (self.num_virtual_stages * self.pp)
        return held * where(self.num_virtual_stages > 1, 1 + more, 1.0)


@dataclass(frozen=True)
class Offload:
    """Tensors in the host's memory: flags of 0 or 1."""

    weights: Any
    activations: Any
    optimizer: Any

    @classmethod
    def of(cls, weights: BoolArray, activations: BoolArray, optimizer: BoolArray) -> Offload:
        """Return the flags of columns of truth values."""
        return cls(*(column.astype(np.float64) for column in (weights, activations, optimizer)))


@dataclass(frozen=True)
class Memory:
    """Bytes of one processor by use; the two sums are those of each memory."""

    weight_bytes: Num
    activation_bytes: Num
    checkpoint_bytes: Num
    activation_gradient_bytes: Num
    weight_gradient_bytes: Num
    optimizer_bytes: Num
    near_bytes: Num
    host_bytes: Num


def memory_of(
    block: BlockCost,
    optimizer: OptimizerCost,
    layout: Layout,
    offload: Offload,
    *,
    is_training: bool,
) -> Memory:
    """Return the memory of a plan [B].

    Offloaded tensors keep two blocks in the near memory: one in use, one in transfer.
    Source: Calculon 0.1.0 (commit caa4b11). Embedding, logits and loss are not counted there.
    """
    blocks, trains = layout.num_blocks, float(is_training)
    held = blocks * layout.micro_batches_in_flight
    checkpoints = block.checkpoint_bytes * held * trains
    activations = block.working_bytes + trains * (block.kept_bytes * (held - 1))
    if not is_training:
        activations = block.working_bytes
    weights = block.weight_bytes * blocks
    shards = optimizer.gradient_bytes
    gradients = trains * (optimizer.whole_gradient_bytes + shards * (blocks - 1))
    states = trains * (optimizer.state_bytes * blocks)
    activation_pair = block.working_bytes + block.kept_bytes + 2 * block.checkpoint_bytes * trains
    optimizer_pair = trains * (optimizer.whole_gradient_bytes + shards + 2 * optimizer.state_bytes)
    near = (
        where(offload.weights, 2 * block.weight_bytes, weights)
        + where(offload.activations, activation_pair, activations + checkpoints)
        + where(offload.optimizer, optimizer_pair, gradients + states)
        + block.gradient_bytes
    )
    away = checkpoints + where(block.checkpoint_bytes > 0, 0.0, activations)
    host = (
        where(offload.weights, weights, 0.0)
        + where(offload.activations, away, 0.0)
        + where(offload.optimizer, trains * shards * blocks + states, 0.0)
    )
    return Memory(
        weights, activations, checkpoints, block.gradient_bytes, gradients, states, near, host
    )


@dataclass(frozen=True)
class StepTime:
    """Parts of one step [s]; they sum to the whole."""

    forward_s: Num
    backward_s: Num
    optimizer_s: Num
    forward_offload_s: Num
    backward_offload_s: Num
    recompute_s: Num
    repeated_tensor_s: Num
    bubble_s: Num
    tensor_s: Num
    pipeline_s: Num
    data_s: Num

    @property
    def total_s(self) -> FloatArray:
        """The whole step [s]."""
        total: Num = (
            self.forward_s + self.backward_s + self.optimizer_s + self.recompute_s
            + self.forward_offload_s + self.backward_offload_s + self.repeated_tensor_s
            + self.bubble_s + self.tensor_s + self.pipeline_s + self.data_s
        )  # fmt: skip
        return np.asarray(total)


@dataclass(frozen=True)
class StageTime:
    """Time of a stage for one micro-batch, base and edge block [s]."""

    forward: Pair
    backward: Pair
    forward_offload: Pair
    """Excess of the offload traffic over the block's own time."""
    backward_offload: Pair
    send_forward_s: Num
    send_backward_s: Num

    def forward_chunk_s(self, layout: Layout) -> Num:
        """Forward time of a chunk [s]."""
        return self.forward.of_chunk(layout.blocks_per_chunk)

    def backward_chunk_s(self, layout: Layout) -> Num:
        """Backward time of a chunk [s]."""
        return self.backward.of_chunk(layout.blocks_per_chunk)


def sent_bytes(
    application: Application, word: float, tp: Num, pp: Num, micro_batch_size: Num, is_split: Any
) -> Num:
    """Return the bytes that a stage sends to the next one per micro-batch [B]; 0 without stages.

    Split activations (``is_split``) are sent by shard; ``word`` is the element size [B].
    """
    tokens = micro_batch_size * application.sequence_size
    sent: Num = where(is_split, tokens // tp, tokens)
    return sent * application.hidden_size * word * (pp > 1)


def stage_time(
    machine: Machine, block: BlockCost, optimizer: OptimizerCost, offload: Offload,
    send_bytes: Num, links: Links, *, is_training: bool,
) -> StageTime:  # fmt: skip
    """Return the time of a stage for one micro-batch [s].

    Offload traffic shares the near memory with the block, so a block takes at least its memory
    time plus the offload time.
    """
    send_forward_s = links.seconds("p2p", send_bytes, 2)
    send_backward_s = links.seconds("p2p", send_bytes * is_training, 2)
    away = offload.activations * (block.kept_bytes + block.checkpoint_bytes)
    weights = offload.weights * block.weight_bytes
    forward = block.forward.exposed.plus(
        block.forward.busy_s, block.forward.busy_s + send_forward_s
    )
    written_s = machine.host_memory.seconds(where(weights > away, weights, away))
    forward_excess = _excess(written_s + block.forward.memory_s, forward)
    gradients = block.input_gradient + block.weight_gradient
    busy_s = block.again.busy_s + gradients.busy_s
    exposed = block.again.exposed + gradients.exposed
    backward = exposed.plus(busy_s, busy_s + send_backward_s)
    read_bytes = weights + away + offload.optimizer * optimizer.state_bytes
    read_s = machine.host_memory.seconds(read_bytes) * is_training
    backward_excess = _excess(read_s + gradients.memory_s, backward)
    return StageTime(
        forward=forward + forward_excess,
        backward=backward + backward_excess,
        forward_offload=forward_excess,
        backward_offload=backward_excess * is_training,
        send_forward_s=send_forward_s,
        send_backward_s=send_backward_s,
    )


def _excess(needed_s: Num, own: Pair) -> Pair:
    return Pair(positive_part(needed_s - own.base), positive_part(needed_s - own.edge))


def bubble_s(stage: StageTime, layout: Layout) -> Num:
    """Return the idle time of the first stage [s].

    pp - 1 chunks; with v chunks per stage and a last group of micro-batches that does not fill
    the pipeline, (v - 1) chunks more for each missing micro-batch; less the blocks that uneven
    stages lack.
    """
    chunk_s = stage.forward_chunk_s(layout) + stage.backward_chunk_s(layout)
    left = layout.num_micro_batches % layout.pp
    missing = where(left != 0, layout.pp - left, 0.0)
    extra = (layout.num_virtual_stages - 1) * missing
    base_s, edge_s = (
        stage.forward.base + stage.backward.base,
        stage.forward.edge + stage.backward.edge,
    )
    cut_s = where(layout.blocks_per_chunk > 1, (base_s + edge_s) / 2, edge_s)
    return (layout.pp - 1 + extra) * chunk_s - layout.num_missing_blocks * cut_s


def step_time(
    block: BlockCost, optimizer: OptimizerCost, stage: StageTime, layout: Layout, data_s: Num,
    *, is_training: bool,
) -> StepTime:  # fmt: skip
    """Return one step; ``data_s`` is the exposed time of the sum of gradients."""
    passes = layout.num_blocks * layout.num_micro_batches
    chunks = layout.num_virtual_stages * layout.num_micro_batches
    in_chunk = layout.blocks_per_chunk
    sends_s = (stage.send_forward_s + stage.send_backward_s * is_training) * (layout.pp > 1)
    tensor = block.forward.exposed + block.input_gradient.exposed
    return StepTime(
        forward_s=passes * block.forward.busy_s,
        backward_s=passes * (block.input_gradient.busy_s + block.weight_gradient.busy_s),
        optimizer_s=layout.num_blocks * optimizer.busy_s * is_training,
        forward_offload_s=chunks * stage.forward_offload.of_chunk(in_chunk),
        backward_offload_s=chunks * stage.backward_offload.of_chunk(in_chunk),
        recompute_s=passes * block.again.busy_s,
        repeated_tensor_s=chunks * block.again.exposed.of_chunk(in_chunk),
        bubble_s=bubble_s(stage, layout),
        tensor_s=chunks * tensor.of_chunk(in_chunk),
        pipeline_s=chunks * sends_s,
        data_s=data_s,
    )


@dataclass(frozen=True)
class DataAxis:
    """The data axis of a plan: columns, flags of 0 or 1."""

    dp: Num
    links: Links
    shards_optimizer: Any
    shares_tensor_network: Any
    shares_pipeline_network: Any


def block_sum_s(block: BlockCost, axis: DataAxis) -> Num:
    """Return the time to sum the gradients of one block [s]; 0 without the axis.

    All-reduce, or reduce-scatter and all-gather where the optimizer is sharded.
    """
    size, links = block.weight_bytes, axis.links
    split_s = links.seconds("reduce_scatter", size, axis.dp) + links.seconds(
        "all_gather", size, axis.dp
    )
    whole_s = links.seconds("all_reduce", size, axis.dp)
    summed_s: Num = where(axis.shards_optimizer, split_s, whole_s)
    return summed_s * (axis.dp > 1)


@dataclass(frozen=True)
class _Window:
    """Time that can hide the sum of gradients: per base and edge block, and its compute [s]."""

    blocks: Pair
    compute_s: Num
    optimizer_s: Num
    """The part of the optimizer step that can hide transfers; none of a sharded one."""


def _window(
    block: BlockCost, optimizer: OptimizerCost, stage: StageTime, axis: DataAxis
) -> _Window:
    """Return the backward pass less its memory time, and less transfers of the same network."""
    gradients = block.input_gradient + block.weight_gradient
    whole = 1 - axis.shards_optimizer
    optimizer_s = whole * (optimizer.busy_s - optimizer.memory_s)
    memory_s = gradients.memory_s + block.again.memory_s
    blocks = stage.backward.plus(optimizer_s - memory_s, optimizer_s - memory_s)
    tensor = (block.again.link + block.input_gradient.link) * axis.shares_tensor_network
    compute_s = gradients.compute_s + block.again.compute_s + whole * optimizer.compute_s
    return _Window(blocks - tensor, compute_s, optimizer_s)


def overlapped_sum_s(
    block: BlockCost, optimizer: OptimizerCost, stage: StageTime, layout: Layout, axis: DataAxis
) -> Num:
    """Return the exposed time of a sum of gradients behind the backward pass [s].

    One block is always exposed. The chunks but the last hide behind pp micro-batches of
    backward work, the last one behind its own blocks. Where a transfer hides it still takes
    ``processor_usage`` of the engine. Transfers to the next stage collide with it on a shared
    network, at most once per micro-batch in the group.

    Source: Calculon 0.1.0 (commit caa4b11).
    """
    window, usage = _window(block, optimizer, stage, axis), axis.links.processor_usage
    in_chunk, sum_s = layout.blocks_per_chunk, block_sum_s(block, axis)
    chunk_window_s, chunk_sum_s = window.blocks.of_chunk(in_chunk), in_chunk * sum_s
    collisions = 0.0
    if _any(axis.shares_pipeline_network):
        left = layout.num_micro_batches % layout.pp
        most = where(left != 0, left, layout.pp)
        passed = chunk_sum_s // stage.backward_chunk_s(layout)
        collisions = axis.shares_pipeline_network * smaller(passed, most)
    excess_s = (
        chunk_sum_s
        - (layout.pp * chunk_window_s - collisions * stage.send_backward_s)
        + layout.pp * in_chunk * window.compute_s * usage
    )
    per_chunk_s = where(excess_s > 0, excess_s, chunk_sum_s * usage)
    last_sum_s = (in_chunk - 1) * sum_s
    last_window_s = (
        chunk_window_s
        - stage.send_backward_s
        - (stage.backward.base + stage.backward.edge) / 2
        + window.optimizer_s
    )
    last_excess_s = last_sum_s + window.compute_s * usage - where(in_chunk > 1, last_window_s, 0.0)
    last_s = where(last_excess_s > 0, last_excess_s, last_sum_s * usage)
    return sum_s + (layout.num_virtual_stages - 1) * per_chunk_s + last_s


def _any(flags: Any) -> bool:
    """Tell whether a flag, or any of a column, is set."""
    return bool(flags.any()) if hasattr(flags, "any") else bool(flags)


REFUSALS = ("", "network", "interleaving", "offload", "memory")
FITS, NETWORK, INTERLEAVING, OFFLOAD, MEMORY = range(5)
LEAST_OFFLOAD_BLOCKS = 3


@dataclass(frozen=True)
class Evaluation:
    """Plans and their costs, as columns; a refused plan has its numbers too."""

    time: StepTime
    memory: Memory
    refusal: IntArray
    """Index in ``REFUSALS``; the first rule that a plan breaks."""
    total_s: FloatArray
    samples_per_s: FloatArray
    utilization: FloatArray
    """Useful FLOPs of the blocks over the matrix peak; the optimizer step is counted once per
    micro-batch, as the peer does."""

    @property
    def fits(self) -> BoolArray:
        """Whether the peer accepts the plan."""
        return np.asarray(self.refusal == FITS)


def evaluate(application: Application, system: System, executions: Executions) -> Evaluation:
    """Return the cost of each plan under the peer's assumptions.

    Parameters
    ----------
    application
        The model: a stack of equal blocks.
    system
        Its engines, memories and networks.
    executions
        The plans, one per row; see :func:`executions_from_rows`.

    Raises
    ------
    SpecError
        When a plan is malformed (degrees that do not divide, ...). A plan that does not fit is
        no error: its ``refusal`` says why.
    """
    check_executions(executions, application, len(system.networks))
    kinds = np.stack(
        [executions.data_type, executions.attention, executions.overlap != NO_OVERLAP,
         executions.is_training]
    )  # fmt: skip
    groups, group_of_row = np.unique(kinds, axis=1, return_inverse=True)
    rows_of = [np.flatnonzero(group_of_row.ravel() == g) for g in range(groups.shape[1])]
    results = [_evaluate_group(application, system, executions.take(rows)) for rows in rows_of]
    merged: Evaluation = _scattered(results, rows_of, len(executions))
    return merged


def _scattered(results: list[Any], rows_of: list[IntArray], num_rows: int) -> Any:
    """Return the columns of the groups at the rows they came from."""
    first = results[0]
    if hasattr(first, "__dataclass_fields__"):
        return type(first)(
            **{
                f.name: _scattered([getattr(r, f.name) for r in results], rows_of, num_rows)
                for f in fields(first)
            }
        )
    column = np.empty(num_rows, dtype=np.asarray(first).dtype)
    for values, rows in zip(results, rows_of, strict=True):
        column[rows] = values
    return column


def structure_of(executions: Executions) -> BlockStructure:
    """Return the block structure of the first plan and all of its kind."""
    return BlockStructure(
        is_multiquery=ATTENTIONS[int(executions.attention[0])] == "multiquery",
        is_tiled=bool(executions.overlap[0] != NO_OVERLAP),
        is_training=bool(executions.is_training[0]),
    )


def layout_of(application: Application, e: Executions) -> Layout:
    """Return the layout of the blocks of each plan over stages."""
    blocks = ceil_div(application.num_blocks, e.pp)
    return Layout(
        pp=e.pp,
        num_blocks=blocks,
        num_missing_blocks=blocks * e.pp - application.num_blocks,
        num_virtual_stages=e.num_virtual_stages,
        num_micro_batches=e.global_batch_size / e.dp / e.micro_batch_size,
    )


def _evaluate_group(application: Application, system: System, e: Executions) -> Evaluation:
    """Return the cost of plans of one structure."""
    machine = machine_of(system, DATA_TYPES[int(e.data_type[0])])
    structure = structure_of(e)
    trains = structure.is_training
    choices = block_choices(e, e.tp, machine.links(e.tp_network), e.fused_activation)
    block = block_cost(application, machine, structure, choices)
    optimizer = optimizer_cost(machine, block.weights, where(e.shard_optimizer, e.dp, 1.0))
    layout = layout_of(application, e)
    offload = Offload.of(e.offload_weights, e.offload_activations, e.offload_optimizer)
    memory = memory_of(block, optimizer, layout, offload, is_training=trains)
    sent = sent_bytes(
        application, machine.bytes_per_element, e.tp, e.pp,
        e.micro_batch_size, e.communication != ALL_REDUCE,
    )  # fmt: skip
    stage = stage_time(
        machine, block, optimizer, offload, sent,
        machine.links(e.pp_network), is_training=trains,
    )  # fmt: skip
    axis = data_axis(machine, e)
    plain_s = layout.num_blocks * block_sum_s(block, axis)
    hidden_s = overlapped_sum_s(block, optimizer, stage, layout, axis)
    data_s = where(e.overlap_gradients, hidden_s, plain_s) * trains
    time = step_time(block, optimizer, stage, layout, data_s, is_training=trains)
    total_s = time.total_s
    useful = layout.num_blocks * layout.num_micro_batches * _useful_flops(block, optimizer, trains)
    return Evaluation(
        time=_full(time, len(e)),
        memory=_full(memory, len(e)),
        refusal=_refusals(machine, layout, memory, e),
        total_s=total_s,
        samples_per_s=e.global_batch_size / total_s,
        utilization=useful / machine.matrix.peak_per_s / total_s,
    )


def _useful_flops(block: BlockCost, optimizer: OptimizerCost, is_training: bool) -> Num:
    return block.useful_flops + optimizer.flops * is_training


def _full(record: Any, num_rows: int) -> Any:
    """Return a record with a column in every entry."""
    return type(record)(
        **{f.name: getattr(record, f.name) + np.zeros(num_rows) for f in fields(record)}
    )


def data_axis(machine: Machine, e: Executions) -> DataAxis:
    """Return the data axis of each plan."""
    return DataAxis(
        dp=e.dp,
        links=machine.links(e.dp_network),
        shards_optimizer=e.shard_optimizer.astype(np.float64),
        shares_tensor_network=(e.dp_network == e.tp_network).astype(np.float64),
        shares_pipeline_network=(e.dp_network == e.pp_network).astype(np.float64),
    )


def network_fits(machine: Machine, degrees: Any, tiers: Any) -> Any:
    """Tell whether each network tier can hold the axes that are put on it.

    The product of the degrees on a tier may not exceed its size, and must divide it where the
    tier has to be filled. An axis of degree 1 uses no network.

    Parameters
    ----------
    degrees, tiers
        Per axis (tensor, pipeline, data), its degree and its network tier; columns.
    """
    fits: Any = True
    for tier in range(machine.num_networks):
        product: Num = 1.0
        for degree, used in zip(degrees, tiers, strict=True):
            product = product * where(used == tier, degree, 1.0)
        size = machine.network_sizes[tier]
        divides = (size % product == 0) | (machine.must_be_filled[tier] == 0)
        fits = fits & (product <= size) & divides
    return fits


def _refusals(machine: Machine, layout: Layout, memory: Memory, e: Executions) -> IntArray:
    """Return why each plan is refused, in the order in which the peer looks."""
    tiers = (e.tp_network, e.pp_network, e.dp_network)
    offloads = e.offload_weights | e.offload_activations | e.offload_optimizer
    too_much = (memory.near_bytes > machine.memory_capacity_bytes) | (
        memory.host_bytes > machine.host_capacity_bytes
    )
    return np.select(
        [
            ~network_fits(machine, (e.tp, e.pp, e.dp), tiers),
            layout.num_blocks % e.num_virtual_stages != 0,
            offloads & (layout.num_blocks < LEAST_OFFLOAD_BLOCKS),
            np.broadcast_to(too_much, e.tp.shape),
        ],
        [NETWORK, INTERLEAVING, OFFLOAD, MEMORY],
        default=FITS,
    )
