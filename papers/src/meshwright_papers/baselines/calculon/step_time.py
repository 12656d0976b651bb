"""Seconds of one step: blocks composed into chunks, stages and micro-batches.

A chunk is what a micro-batch passes on one stage in a row: base blocks, then the edge block, which
also sends to the next stage. Gradients are summed after the step, or behind its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import positive_part, smaller, where
from meshwright_papers.baselines.calculon.block_cost import BlockCost, OptimizerCost, Pair
from meshwright_papers.baselines.calculon.declarations import Application
from meshwright_papers.baselines.calculon.hardware import Column, Links, Machine
from meshwright_papers.baselines.calculon.memory import Layout, Offload


@dataclass(frozen=True)
class StepTime:
    """Parts of one step [s]; they sum to the whole."""

    forward_s: Any
    backward_s: Any
    optimizer_s: Any
    forward_offload_s: Any
    backward_offload_s: Any
    recompute_s: Any
    repeated_tensor_s: Any
    bubble_s: Any
    tensor_s: Any
    pipeline_s: Any
    data_s: Any

    @property
    def total_s(self) -> Column:
        """The whole step [s]."""
        total: Column = (
            self.forward_s + self.backward_s + self.optimizer_s + self.recompute_s
            + self.forward_offload_s + self.backward_offload_s + self.repeated_tensor_s
            + self.bubble_s + self.tensor_s + self.pipeline_s + self.data_s
        )  # fmt: skip
        return total


@dataclass(frozen=True)
class StageTime:
    """What a stage does with one micro-batch, base and edge block [s]."""

    forward: Pair
    backward: Pair
    forward_offload: Pair
    """Excess of the offload traffic over the block's own time."""
    backward_offload: Pair
    send_forward_s: Any
    send_backward_s: Any

    def forward_chunk_s(self, layout: Layout) -> Any:
        """Forward time of a chunk [s]."""
        return self.forward.of_chunk(layout.blocks_per_chunk)

    def backward_chunk_s(self, layout: Layout) -> Any:
        """Backward time of a chunk [s]."""
        return self.backward.of_chunk(layout.blocks_per_chunk)


def sent_bytes(
    application: Application, word: float, tp: Any, pp: Any, micro_batch_size: Any, is_split: Any
) -> Any:
    """Return what a stage sends to the next one per micro-batch [B]; 0 without stages.

    Split activations (``is_split``) are sent by shard; ``word`` is the element size [B].
    """
    tokens = micro_batch_size * application.sequence_size
    return where(is_split, tokens // tp, tokens) * application.hidden_size * word * (pp > 1)


def stage_time(
    machine: Machine, block: BlockCost, optimizer: OptimizerCost, offload: Offload,
    send_bytes: Any, links: Links, *, is_training: bool,
) -> StageTime:  # fmt: skip
    """Return what a stage does with one micro-batch.

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


def _excess(needed_s: Any, own: Pair) -> Pair:
    return Pair(positive_part(needed_s - own.base), positive_part(needed_s - own.edge))


def bubble_s(stage: StageTime, layout: Layout) -> Any:
    """Return the idle time of the first stage [s].

    pp - 1 chunks; with v chunks per stage and a last group of micro-batches that does not fill
    the pipeline, (v - 1) chunks more for each missing micro-batch; less what uneven stages lack.
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
    block: BlockCost, optimizer: OptimizerCost, stage: StageTime, layout: Layout, data_s: Any,
    *, is_training: bool,
) -> StepTime:  # fmt: skip
    """Return one step; ``data_s`` is what the sum of gradients leaves exposed."""
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

    dp: Any
    links: Links
    shards_optimizer: Any
    shares_tensor_network: Any
    shares_pipeline_network: Any


def block_sum_s(block: BlockCost, axis: DataAxis) -> Any:
    """Return the time to sum the gradients of one block [s]; 0 without the axis.

    All-reduce, or reduce-scatter and all-gather where the optimizer is sharded.
    """
    size, links = block.weight_bytes, axis.links
    split_s = links.seconds("reduce_scatter", size, axis.dp) + links.seconds(
        "all_gather", size, axis.dp
    )
    whole_s = links.seconds("all_reduce", size, axis.dp)
    return where(axis.shards_optimizer, split_s, whole_s) * (axis.dp > 1)


@dataclass(frozen=True)
class _Window:
    """What can hide the sum of gradients: per base and edge block, and its compute [s]."""

    blocks: Pair
    compute_s: Any
    optimizer_s: Any
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
) -> Any:
    """Return what stays exposed when the sum runs behind the backward pass [s].

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
