"""Bytes of a plan on one processor, in the near memory and in the host's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, smaller, where
from meshwright_papers.baselines.calculon.block_cost import BlockCost, OptimizerCost


@dataclass(frozen=True)
class Layout:
    """How the blocks are dealt out; every count is a column."""

    pp: Any
    num_blocks: Any
    """Blocks of one stage, the largest one."""
    num_missing_blocks: Any
    """Blocks that the other stages have fewer, together."""
    num_virtual_stages: Any
    num_micro_batches: Any

    @property
    def blocks_per_chunk(self) -> Any:
        """Blocks of one stage that a micro-batch passes in a row."""
        return self.num_blocks // self.num_virtual_stages

    @property
    def micro_batches_in_flight(self) -> Any:
        """Micro-batches whose activations are held, of one stage, one forward one backward.

        Interleaving holds (pp - 1) / (v * pp) more of each.
        """
        held = smaller(self.num_micro_batches, self.pp)
        more = (self.pp - 1) / (self.num_virtual_stages * self.pp)
        return held * where(self.num_virtual_stages > 1, 1 + more, 1.0)


@dataclass(frozen=True)
class Offload:
    """What lives in the host's memory: flags of 0 or 1."""

    weights: Any
    activations: Any
    optimizer: Any

    @classmethod
    def of(cls, weights: BoolArray, activations: BoolArray, optimizer: BoolArray) -> Offload:
        """Return the flags of columns of truth values."""
        return cls(*(column.astype(np.float64) for column in (weights, activations, optimizer)))


@dataclass(frozen=True)
class Memory:
    """Bytes of one processor by use; the two sums say what is held where."""

    weight_bytes: Any
    activation_bytes: Any
    checkpoint_bytes: Any
    activation_gradient_bytes: Any
    weight_gradient_bytes: Any
    optimizer_bytes: Any
    near_bytes: Any
    host_bytes: Any


def memory_of(
    block: BlockCost,
    optimizer: OptimizerCost,
    layout: Layout,
    offload: Offload,
    *,
    is_training: bool,
) -> Memory:
    """Return the memory of a plan [B].

    What is offloaded keeps two blocks in the near memory: one at work, one on its way.
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
