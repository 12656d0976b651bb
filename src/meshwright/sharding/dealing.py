"""Assignment of the layers of a model to the chunks of a pipeline.

Layers are dealt in equal runs. The embedding belongs to the first chunk and the head to the last
one; where they count as layers (:class:`~meshwright.sharding.strategy.PlanOptions`), these chunks
hold that many layers fewer. Where the sum does not divide, the last chunk, then the first, then the
others from the end hold one layer less. A plan may also state the layers of each stage.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from meshwright.base.arrays import IntArray, read_only
from meshwright.sharding.strategy import PlanOptions


def chunk_lengths(num_layers: int, num_chunks: int, plan_options: PlanOptions) -> IntArray:
    """Return the layers of each chunk of the model, in its order: (chunks,).

    Negative where the embedding or the head counts for more layers than a chunk holds. Lengths
    that the plan options state for another number of chunks or layers are refused by a rule.
    """
    if len(plan_options.stage_layers) == num_chunks:
        return np.array(plan_options.stage_layers, dtype=np.int64)
    return dealt(num_layers, num_chunks, plan_options.embedding_layers, plan_options.head_layers)


@lru_cache(maxsize=4096)
def dealt(
    num_layers: int, num_chunks: int, embedding_layers: int = 0, head_layers: int = 0
) -> IntArray:
    """Return the layers of each chunk, with the edges counted as some layers: (chunks,)."""
    num_dealt = num_layers + embedding_layers + head_layers
    longest = -(-num_dealt // num_chunks)
    lengths = np.full(num_chunks, longest, dtype=np.int64)
    order = [num_chunks - 1, 0, *range(num_chunks - 2, 0, -1)]
    lengths[order[: num_chunks * longest - num_dealt]] -= 1
    lengths[0] -= embedding_layers
    lengths[-1] -= head_layers
    return read_only(lengths)


def dealing_of(plan_options: PlanOptions) -> PlanOptions:
    """Return the plan options that place and recompute layers; all others at their defaults."""
    return PlanOptions(
        embedding_layers=plan_options.embedding_layers,
        head_layers=plan_options.head_layers,
        stage_layers=plan_options.stage_layers,
        recompute=plan_options.recompute,
        recompute_layers=plan_options.recompute_layers,
        recompute_run=plan_options.recompute_run,
    )


def dealt_kinds(
    pattern: tuple[int, ...], num_kinds: int, lengths: IntArray, plan_options: PlanOptions
) -> IntArray:
    """Return the kind of each layer, with separate kinds under full recomputation: (layers,).

    Where it covers the first layers of each chunk, the others are of kinds of their own, from
    ``num_kinds`` on; where runs of layers keep one input, those behind the first of a run are.
    """
    kinds: IntArray = np.asarray(pattern, dtype=np.int64)
    place: IntArray = np.arange(len(pattern)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    if plan_options.recomputes_some:
        kinds = kinds + num_kinds * (place >= plan_options.recompute_layers)
    elif plan_options.recomputes_runs:
        kinds = kinds + num_kinds * (place % plan_options.recompute_run > 0)
    return kinds


def dealt_layers(
    pattern: tuple[int, ...], num_kinds: int, num_chunks: int, plan_options: PlanOptions
) -> list[IntArray]:
    """Return the kinds of the layers of each chunk of the model, of :func:`dealt_kinds`."""
    lengths = chunk_lengths(len(pattern), num_chunks, plan_options)
    kinds = dealt_kinds(pattern, num_kinds, lengths, plan_options)
    return np.split(kinds, np.cumsum(lengths)[:-1])


def is_dealt(lengths: IntArray, num_stages: int) -> bool:
    """Return whether each stage holds a layer, and each chunk between the two ends.

    The first chunk of several of a stage may be the embedding alone, the last one the head.
    """
    ends = lengths[[0, -1]]
    least = 1 if len(lengths) == num_stages else 0
    return bool(ends.min() >= least and lengths[1:-1].min(initial=1) >= 1)
