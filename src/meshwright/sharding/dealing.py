"""How the layers of a model are dealt over the chunks of a pipeline.

Layers are dealt in equal runs. The embedding belongs to the first chunk and the head to the last
one; where they count as layers (:class:`~meshwright.sharding.strategy.PlanOptions`), these chunks
hold as many layers less. Where the sum does not divide, the last chunk, then the first, then the
others from the end hold one layer less.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from meshwright.base.arrays import IntArray, read_only
from meshwright.sharding.strategy import PlanOptions


def chunk_lengths(num_layers: int, num_chunks: int, structure: PlanOptions) -> IntArray:
    """Return the layers of each chunk of the model, in its order: (chunks,).

    Negative where the embedding or the head counts for more layers than a chunk holds.
    """
    return dealt(num_layers, num_chunks, structure.embedding_layers, structure.head_layers)


@lru_cache(maxsize=4096)
def dealt(
    num_layers: int, num_chunks: int, embedding_layers: int = 0, head_layers: int = 0
) -> IntArray:
    """Return the layers of each chunk, where the edges count as so many layers: (chunks,)."""
    num_dealt = num_layers + embedding_layers + head_layers
    longest = -(-num_dealt // num_chunks)
    lengths = np.full(num_chunks, longest, dtype=np.int64)
    order = [num_chunks - 1, 0, *range(num_chunks - 2, 0, -1)]
    lengths[order[: num_chunks * longest - num_dealt]] -= 1
    lengths[0] -= embedding_layers
    lengths[-1] -= head_layers
    return read_only(lengths)


def is_dealt(lengths: IntArray, num_stages: int) -> bool:
    """Return whether each stage holds a layer, and each chunk between the two ends.

    The first chunk of several of a stage may be the embedding alone, the last one the head.
    """
    ends = lengths[[0, -1]]
    least = 1 if len(lengths) == num_stages else 0
    return bool(ends.min() >= least and lengths[1:-1].min(initial=1) >= 1)
