"""The peer's search space for a number of processors: divisions, and the choices of each.

A division gives each axis its degree; its choices form a product, which is counted without being
written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright_papers.baselines.calculon.declarations import Application, System
from meshwright_papers.baselines.calculon.executions import (
    ALL_REDUCE,
    ATTENTION_RECOMPUTE,
    FULL_RECOMPUTE,
    NO_OVERLAP,
    NO_RECOMPUTE,
    PIPE_OVERLAP,
    RING_OVERLAP,
    SEQUENCE_PARALLEL,
    SPLIT_AT_STAGE_ENDS,
)
from meshwright_papers.baselines.calculon.memory import Offload


@dataclass(frozen=True)
class Space:
    """Every plan that the peer's search looks at: float types, activation fused, training."""

    application: Application
    system: System
    num_processors: int
    max_batch_size: int
    """The batch of a division is the largest multiple of its data degree up to this."""
    data_type: str = "float16"
    tensor_overlap: bool = True
    """Also plans whose tensor-parallel transfers hide behind tiles."""

    @property
    def has_host_memory(self) -> bool:
        """Whether plans may offload."""
        return self.system.host_memory.capacity_bytes > 0


@dataclass(frozen=True)
class Division:
    """The degrees of the axes, and what follows from them."""

    tp: int
    pp: int
    dp: int
    global_batch_size: int
    virtual_stages: tuple[int, ...]
    micro_batch_sizes: tuple[int, ...]

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Degrees of the tensor, pipeline and data axes."""
        return self.tp, self.pp, self.dp

    def network_choices(self, num_networks: int) -> list[tuple[int, int, int]]:
        """Return the network tiers of the three axes; an axis of degree 1 uses none."""
        tiers = [range(num_networks if degree > 1 else 1) for degree in self.degrees]
        return [(tensor, pipeline, data) for tensor, pipeline, data in product(*tiers)]


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a whole number, rising."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def divisions(space: Space) -> Iterator[Division]:
    """Yield the divisions of the processors that the peer considers.

    The tensor degree divides hidden size and heads, the pipeline degree the blocks; the data axis
    takes the rest and may not exceed the batch.
    """
    app, total = space.application, space.num_processors
    for tp in divisors(total):
        if app.hidden_size % tp or app.num_heads % tp:
            continue
        for pp in divisors(min(total // tp, app.num_blocks)):
            dp = total // (tp * pp)
            if total % (tp * pp) or app.num_blocks % pp or dp > space.max_batch_size:
                continue
            batch = space.max_batch_size // dp * dp
            yield Division(
                tp, pp, dp, batch,
                virtual_stages=divisors(app.num_blocks // pp) if pp > 1 else (1,),
                micro_batch_sizes=tuple(
                    size for size in divisors(batch // dp) if size * app.sequence_size % tp == 0
                ),
            )  # fmt: skip


_FORMS = tuple(
    (recompute, communication, again)
    for recompute in (FULL_RECOMPUTE, ATTENTION_RECOMPUTE, NO_RECOMPUTE)
    for communication in (ALL_REDUCE, SPLIT_AT_STAGE_ENDS, SEQUENCE_PARALLEL)
    for again in (True, False)
    if not again or (communication == SEQUENCE_PARALLEL and recompute != FULL_RECOMPUTE)
)
"""Recomputation, communication, and whether gathered activations are gathered again."""


@dataclass(frozen=True)
class BlockKeys:
    """The choices on which the cost of a block depends, as columns."""

    overlap: IntArray
    recompute: IntArray
    communication: IntArray
    gather_again: BoolArray
    micro_batch_size: FloatArray

    def take(self, rows: NDArray[Any]) -> BlockKeys:
        """Return some of the columns."""
        return BlockKeys(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def block_keys(overlaps: tuple[int, ...], micro_batch_sizes: tuple[int, ...]) -> BlockKeys:
    """Return the product of overlap, form and micro-batch size."""
    rows = [
        (overlap, *form, size)
        for overlap, form, size in product(overlaps, _FORMS, micro_batch_sizes)
    ]
    overlap, recompute, communication, again, size = zip(*rows, strict=True)
    return BlockKeys(
        np.array(overlap, dtype=np.int64),
        np.array(recompute, dtype=np.int64),
        np.array(communication, dtype=np.int64),
        np.array(again, dtype=np.bool_),
        np.array(size, dtype=np.float64),
    )


@dataclass(frozen=True)
class OffloadKeys:
    """What is offloaded, as columns, each with the row of its block key."""

    block_row: IntArray
    weights: BoolArray
    activations: BoolArray
    optimizer: BoolArray

    def take(self, rows: NDArray[Any]) -> OffloadKeys:
        """Return some of the columns."""
        return OffloadKeys(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @property
    def offload(self) -> Offload:
        """What lives in the host's memory, as flags."""
        return Offload.of(self.weights, self.activations, self.optimizer)

    @property
    def any(self) -> BoolArray:
        """Whether anything is offloaded."""
        return self.weights | self.activations | self.optimizer


def offload_keys(keys: BlockKeys, block_rows: IntArray, has_host_memory: bool) -> OffloadKeys:
    """Return each block key with each way to offload; with full recompute activations stay."""
    choices = (False, True) if has_host_memory else (False,)
    weights, activations, optimizer = np.array(list(product(choices, repeat=3))).T
    row = np.repeat(block_rows, weights.size)
    tiled = [np.tile(flags, block_rows.size) for flags in (weights, activations, optimizer)]
    legal = ~((keys.recompute[row] == FULL_RECOMPUTE) & tiled[1])
    return OffloadKeys(row, *tiled).take(np.flatnonzero(legal))


def overlap_panels(space: Space, division: Division) -> tuple[tuple[int, ...], ...]:
    """Return the overlap modes of a division, by the layers that they give a block."""
    if division.tp == 1 or not space.tensor_overlap:
        return ((NO_OVERLAP,),)
    return ((NO_OVERLAP,), (RING_OVERLAP, PIPE_OVERLAP))


def yes_and_no(allowed: bool) -> tuple[bool, ...]:
    """Return both answers where something is allowed, and only no where not."""
    return (True, False) if allowed else (False,)
