"""From layers to pipeline stages: which stage decides the time, which one the memory.

Layers are dealt to the chunks of the pipeline in equal runs; where they do not divide, the last
chunk, then the first, then the others from the end hold one layer less, because the edge stages
also carry the logits and the embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, Num, groups_of, larger, read_only, where
from meshwright.cost.layer import LayerCost, weighted_part, weighted_sum

POSITIONS = ("first", "middle", "last")


@dataclass(frozen=True)
class StageLayout:
    """Layers of each kind in the first, the fullest middle and the last stage, and in all.

    Each is one number, or one column, for each kind of layer. ``is_last`` is 1.0 at the position
    that carries the head: the first one where there is a single stage.
    """

    first: tuple[Num, ...]
    middle: tuple[Num, ...]
    last: tuple[Num, ...]
    total: tuple[Num, ...]
    num_stages: Num

    def layers_of(self, position: str) -> tuple[Num, ...]:
        """Return the layers of each kind at a position."""
        return {"first": self.first, "middle": self.middle, "last": self.last}[position]

    def edges_of(self, position: str) -> tuple[Num, Num]:
        """Return whether a position carries the embedding and the head, as 1.0 or 0.0."""
        alone = (self.num_stages == 1) * 1.0
        if position == "first":
            return alone * 0.0 + 1.0, alone
        return alone * 0.0, (1.0 - alone) * float(position == "last")


def run_lengths(num_layers: int, num_runs: int) -> IntArray:
    """Return the layers of each chunk of the model, in its order: (runs,)."""
    longest = -(-num_layers // num_runs)
    lengths = np.full(num_runs, longest, dtype=np.int64)
    missing = num_runs * longest - num_layers
    order = [num_runs - 1, 0, *range(num_runs - 2, 0, -1)]
    lengths[order[:missing]] -= 1
    return lengths


@lru_cache(maxsize=4096)
def deal_layers(
    pattern: tuple[int, ...], num_kinds: int, num_stages: int, num_chunks: int
) -> FloatArray:
    """Return the number of layers of each kind in each stage, shape (stages, kinds).

    ``num_chunks`` is the number of runs of layers of one device; chunk c of the model belongs to
    stage c mod ``num_stages``.
    """
    runs = num_stages * num_chunks
    run_of_layer = np.repeat(np.arange(runs), run_lengths(len(pattern), runs))
    counts = np.zeros((num_stages, num_kinds))
    np.add.at(counts, (run_of_layer % num_stages, np.asarray(pattern)), 1.0)
    return read_only(counts)


def stage_layout(
    pattern: tuple[int, ...], num_kinds: int, num_stages: FloatArray, num_chunks: FloatArray
) -> StageLayout:
    """Return the layout of each pair of stages and chunks, as columns.

    The fullest middle stage holds, of each kind, the most layers that any middle stage holds:
    exact for models of one kind, at most one layer too many for alternating kinds.
    """
    pairs = np.stack([num_stages, num_chunks]).astype(np.int64)
    distinct, pair_of = groups_of(pairs)
    pairs = pairs[:, distinct]
    table = np.zeros((3, num_kinds, pairs.shape[1]))
    for column, (stages, chunks) in enumerate(pairs.T.tolist()):
        counts = deal_layers(pattern, num_kinds, stages, chunks)
        table[0, :, column] = counts[0]
        if stages > 1:
            table[2, :, column] = counts[-1]
        if stages > 2:
            table[1, :, column] = counts[1:-1].max(axis=0)
    columns = table[:, :, pair_of]
    total = tuple(float(sum(1 for kind in pattern if kind == k)) for k in range(num_kinds))
    first, middle, last = (tuple(columns[p, k] for k in range(num_kinds)) for p in range(3))
    return StageLayout(first, middle, last, total, num_stages)


@dataclass(frozen=True)
class StageCost:
    """One micro-batch through the stage that decides the time, and through all the others."""

    bottleneck: LayerCost
    """The slowest stage: its layers and edges added up."""
    layers_of_bottleneck: Num
    others_forward_s: Num
    """Mean over the other stages, forward [s]."""
    others_backward_input_s: Num
    others_backward_weight_s: Num


def stage_cost(
    kinds: Sequence[LayerCost], embedding: LayerCost, head: LayerCost, layout: StageLayout
) -> StageCost:
    """Return the slowest stage and the mean of the others.

    The step of a pipeline takes m times the slowest stage, plus one micro-batch through each of
    the other stages (filling and draining).
    """
    all_costs = (*kinds, embedding, head)
    times = []
    for position in POSITIONS:
        counts = (*layout.layers_of(position), *layout.edges_of(position))
        terms = [cost.total_s * count for cost, count in zip(all_costs, counts, strict=True)]
        times.append(sum(terms[1:], terms[0]))
    middle_wins = (times[1] > times[0]) & (times[1] >= times[2])
    last_wins = (times[2] > times[0]) & np.logical_not(middle_wins)

    def pick(first: Num, middle: Num, last: Num) -> Num:
        return where(last_wins, last, where(middle_wins, middle, first))

    by_position = [(*layout.layers_of(p), *layout.edges_of(p)) for p in POSITIONS]
    chosen = [pick(*counts) for counts in zip(*by_position, strict=True)]
    slowest = weighted_sum(all_costs, chosen)
    whole = (*layout.total, 1.0, 1.0)
    forward_s = weighted_part(all_costs, whole, "forward_total_s")
    gradient_s = weighted_part(all_costs, whole, "weight_gradient_s")
    total_s = weighted_part(all_costs, whole, "total_s")
    others = larger(layout.num_stages - 1.0, 1.0)
    layers = sum(chosen[1 : len(kinds)], chosen[0])
    slowest_input_s = slowest.total_s - slowest.forward_total_s - slowest.weight_gradient_s
    return StageCost(
        bottleneck=slowest,
        layers_of_bottleneck=layers,
        others_forward_s=(forward_s - slowest.forward_total_s) / others,
        others_backward_input_s=(total_s - forward_s - gradient_s - slowest_input_s) / others,
        others_backward_weight_s=(gradient_s - slowest.weight_gradient_s) / others,
    )
