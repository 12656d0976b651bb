"""The optimizer step of one block and the bytes of its states: Adam, sharded or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.baselines.calculon.hardware import Machine

ADAM_FLOPS_PER_WEIGHT = 11
FULL_WORD_BYTES = 4.0


@dataclass(frozen=True)
class OptimizerCost:
    """One block on one processor."""

    flops: Any
    compute_s: Any
    memory_s: Any
    busy_s: Any
    state_bytes: Any
    gradient_bytes: Any
    """Gradients of a block at rest, sharded with the optimizer [B]."""
    whole_gradient_bytes: Any
    """Gradients of the block at work, in full precision, never sharded [B]."""


def optimizer_cost(machine: Machine, weights: Sequence[Any], num_shards: Any) -> OptimizerCost:
    """Return the optimizer step of one block, whose layers have these weights [elements].

    Two moments in full precision, and a master copy where the weights themselves are smaller.
    ``num_shards`` is the data-parallel degree with a sharded optimizer, 1 without.
    """
    word = machine.bytes_per_element
    copies = 3 if word < FULL_WORD_BYTES else 2
    flops: Any = 0.0
    compute_s: Any = 0.0
    memory_s: Any = 0.0
    busy_s: Any = 0.0
    for count in weights:
        layer_flops = count / num_shards * ADAM_FLOPS_PER_WEIGHT
        states = count * FULL_WORD_BYTES * copies / num_shards
        layer_compute_s = machine.vector.seconds(layer_flops)
        layer_memory_s = machine.memory.seconds(states)
        flops = flops + layer_flops
        compute_s = compute_s + layer_compute_s
        memory_s = memory_s + layer_memory_s
        busy_s = busy_s + machine.busy_s(layer_compute_s, layer_memory_s)
    total: Any = sum(weights)
    return OptimizerCost(
        flops=flops,
        compute_s=compute_s,
        memory_s=memory_s,
        busy_s=busy_s,
        state_bytes=total * FULL_WORD_BYTES * copies / num_shards,
        gradient_bytes=total * word / num_shards,
        whole_gradient_bytes=total * FULL_WORD_BYTES,
    )
