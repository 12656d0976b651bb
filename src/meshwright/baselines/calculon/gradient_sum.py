"""What the sum of gradients over the data axis leaves exposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import smaller, where
from meshwright.baselines.calculon.block_cost import BlockCost, Pair
from meshwright.baselines.calculon.hardware import Links
from meshwright.baselines.calculon.memory import Layout
from meshwright.baselines.calculon.optimizer_cost import OptimizerCost
from meshwright.baselines.calculon.step_time import StageTime


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
