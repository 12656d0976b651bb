"""What fills the memory of one device that serves, and how many sequences it has room for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from meshwright.base.arrays import positive_part, where
from meshwright.cost.memory import num_axes
from meshwright.sharding.strategy import StrategyOf


@dataclass(frozen=True)
class ServingMemory:
    """Memory of one device [bytes]; the parts sum to ``total_bytes``."""

    weights_bytes: Any
    kv_cache_bytes: Any
    """Keys and values of all sequences in flight."""
    working_bytes: Any
    """Largest transient of an operator, and the residual streams that arrive and leave."""
    buffers_bytes: Any
    """Runtime and communication library."""
    margin_bytes: Any
    """Left free for fragmentation."""

    @property
    def total_bytes(self) -> Any:
        """All of it [bytes]."""
        return reduce(add, [getattr(self, name) for name in SERVING_MEMORY_PARTS])


SERVING_MEMORY_PARTS = tuple(entry.name for entry in fields(ServingMemory))


def buffers_bytes(
    strategy: StrategyOf[Any], runtime_bytes: Any, communicator_bytes: Any
) -> Any:  # fmt: skip
    """Return what runtime and communication library take on one device of a replica [bytes].

    Replicas do not speak with each other, so only axes inside of one have communicators.
    """
    axes = num_axes(strategy.tp, strategy.cp, strategy.ep, strategy.pp)
    return runtime_bytes + communicator_bytes * axes


def most_sequences(use: ServingMemory, cache_bytes: Any, capacity_bytes: float) -> Any:
    """Return the sequences whose cache has room beside all else; infinity without any cache.

    Parameters
    ----------
    cache_bytes
        Cache of one sequence on this device [bytes].
    """
    free = positive_part(capacity_bytes - (use.total_bytes - use.kv_cache_bytes))
    return where(cache_bytes > 0, np.floor(free / where(cache_bytes > 0, cache_bytes, 1.0)), np.inf)
