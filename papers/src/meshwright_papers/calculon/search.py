"""The whole space of the peer's search, priced in factored portions.

The cost of a block is priced once per tensor degree and network (a small table), then gathered and
composed: the interleaving of a division runs along one side of an array, all other choices along
the other. Networks are refused first, memory second; time is priced for the rest. The formulas
are those of :mod:`step`, so any row evaluated alone gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright_papers.calculon.block import BlockStructure, block_choices
from meshwright_papers.calculon.block_cost import (
    BlockCost,
    OptimizerCost,
    block_cost,
    optimizer_cost,
)
from meshwright_papers.calculon.executions import (
    ALL_REDUCE,
    ATTENTION_RECOMPUTE,
    DATA_TYPES,
    FULL_RECOMPUTE,
    NO_OVERLAP,
    NO_RECOMPUTE,
    PIPE_OVERLAP,
    RING_OVERLAP,
    SEQUENCE_PARALLEL,
    SPLIT_AT_STAGE_ENDS,
    Executions,
)
from meshwright_papers.calculon.machine import (
    Application,
    Machine,
    System,
    machine_of,
)
from meshwright_papers.calculon.step import (
    LEAST_OFFLOAD_BLOCKS,
    DataAxis,
    Layout,
    Offload,
    block_sum_s,
    memory_of,
    network_fits,
    overlapped_sum_s,
    sent_bytes,
    stage_time,
    step_time,
)


@dataclass(frozen=True)
class Space:
    """Every plan of the peer's search: float types, activation fused, training."""

    application: Application
    system: System
    num_processors: int
    max_batch_size: int
    """The batch of a division is the largest multiple of its data degree up to this."""
    data_type: str = "float16"
    tensor_overlap: bool = True
    """Whether plans that hide tensor-parallel transfers behind tiles are included."""

    @property
    def has_host_memory(self) -> bool:
        """Whether plans may offload."""
        return self.system.host_memory.capacity_bytes > 0


@dataclass(frozen=True)
class Division:
    """Degrees of the axes, and quantities derived from them."""

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
    """Offloaded tensors, as columns, each with the row of its block key."""

    block_row: IntArray
    weights: BoolArray
    activations: BoolArray
    optimizer: BoolArray

    def take(self, rows: NDArray[Any]) -> OffloadKeys:
        """Return some of the columns."""
        return OffloadKeys(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @property
    def offload(self) -> Offload:
        """Tensors in the host's memory, as flags."""
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


@dataclass(frozen=True)
class Counts:
    """Numbers of plans of a space by outcome."""

    configurations: int = 0
    network_refused: int = 0
    offload_refused: int = 0
    memory_refused: int = 0
    feasible: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.configurations + other.configurations,
            self.network_refused + other.network_refused,
            self.offload_refused + other.offload_refused,
            self.memory_refused + other.memory_refused,
            self.feasible + other.feasible,
        )


@dataclass(frozen=True)
class PricedBlock:
    """A rectangle of plans: interleavings down, all choices of ``keys`` across."""

    space: Space
    division: Division
    networks: tuple[int, int, int]
    shards_optimizer: bool
    overlaps_gradients: bool
    block_keys: BlockKeys
    keys: OffloadKeys
    total_s: FloatArray
    near_bytes: FloatArray
    fits: BoolArray

    def executions(self, places: NDArray[Any]) -> Executions:
        """Return the plans at flat places of the rectangle."""
        down, across = np.unravel_index(places, self.total_s.shape)
        keys = self.keys.take(across)
        block = self.block_keys.take(keys.block_row)
        n, part = len(places), self.division

        def same(value: Any, kind: Any = np.float64) -> Any:
            return np.full(n, value, dtype=kind)

        return Executions(
            num_processors=same(self.space.num_processors),
            tp=same(part.tp), pp=same(part.pp), dp=same(part.dp),
            tp_network=same(self.networks[0], np.int64),
            pp_network=same(self.networks[1], np.int64),
            dp_network=same(self.networks[2], np.int64),
            global_batch_size=same(part.global_batch_size),
            micro_batch_size=block.micro_batch_size,
            data_type=same(DATA_TYPES.index(self.space.data_type), np.int64),
            fused_activation=same(True, np.bool_),
            attention=same(0, np.int64),
            recompute=block.recompute,
            num_virtual_stages=np.array(part.virtual_stages, dtype=np.float64)[down],
            shard_optimizer=same(self.shards_optimizer, np.bool_),
            communication=block.communication,
            overlap=block.overlap,
            gather_again=block.gather_again,
            overlap_gradients=same(self.overlaps_gradients, np.bool_),
            offload_weights=keys.weights,
            offload_activations=keys.activations,
            offload_optimizer=keys.optimizer,
            is_training=same(True, np.bool_),
        )  # fmt: skip


@dataclass(frozen=True)
class _Tables:
    """Block costs by tensor degree, network and overlap; priced once, on first use."""

    space: Space
    machine: Machine
    micro_batch_sizes: dict[int, tuple[int, ...]]
    """All that occur with a tensor degree."""
    known: dict[tuple[int, int, tuple[int, ...]], BlockCost] = field(default_factory=dict)

    def keys(self, tp: int, overlaps: tuple[int, ...]) -> BlockKeys:
        """Return the rows of a table."""
        return block_keys(overlaps, self.micro_batch_sizes[tp])

    def costs(self, tp: int, network: int, overlaps: tuple[int, ...]) -> BlockCost:
        """Return the costs of a table."""
        key = (tp, network, overlaps)
        if key not in self.known:
            keys = self.keys(tp, overlaps)
            structure = BlockStructure(is_tiled=overlaps != (NO_OVERLAP,))
            choices = block_choices(
                keys,
                np.float64(tp),  # type: ignore[arg-type]
                self.machine.links(network),
                np.ones(keys.overlap.size, dtype=np.bool_),
            )
            application = self.space.application
            self.known[key] = block_cost(application, self.machine, structure, choices)
        return self.known[key]


def _tables(space: Space, parts: list[Division]) -> _Tables:
    sizes: dict[int, set[int]] = {}
    for part in parts:
        sizes.setdefault(part.tp, set()).update(part.micro_batch_sizes)
    rising = {tp: tuple(sorted(found)) for tp, found in sizes.items()}
    return _Tables(space, machine_of(space.system, space.data_type), rising)


@dataclass(frozen=True)
class Portion:
    """The plans of a division that share the layers of a block and the optimizer's form."""

    tables: _Tables
    division: Division
    overlaps: tuple[int, ...]
    shards_optimizer: bool
    networks: tuple[tuple[int, int, int], ...]
    """Those that can hold the axes."""
    block_keys: BlockKeys
    keys: OffloadKeys
    optimizer: OptimizerCost
    near_bytes: FloatArray
    fits: BoolArray
    counts: Counts

    def blocks(self) -> Iterator[PricedBlock]:
        """Yield the time of each plan that fits in memory, in rectangles."""
        across = np.flatnonzero(self.fits.any(axis=0))
        if not across.size:
            return
        for networks in self.networks:
            yield from self._priced(networks, across)

    def _priced(self, networks: tuple[int, int, int], across: IntArray) -> Iterator[PricedBlock]:
        """Yield the rectangles of one choice of networks: gradients overlapped, and not."""
        machine, part, space = self.tables.machine, self.division, self.tables.space
        keys = self.keys.take(across)
        chosen = self.block_keys.take(keys.block_row)
        block = self.tables.costs(part.tp, networks[0], self.overlaps).take(keys.block_row)
        layout = _layout(space, part, chosen.micro_batch_size)
        sent = sent_bytes(
            space.application, machine.bytes_per_element, part.tp, part.pp,
            chosen.micro_batch_size, chosen.communication != ALL_REDUCE,
        )  # fmt: skip
        stage = stage_time(
            machine, block, self.optimizer, keys.offload, sent,
            machine.links(networks[1]), is_training=True,
        )  # fmt: skip
        axis = DataAxis(
            dp=float(part.dp),
            links=machine.links(networks[2]),
            shards_optimizer=float(self.shards_optimizer),
            shares_tensor_network=float(networks[0] == networks[2]),
            shares_pipeline_network=float(networks[1] == networks[2]),
        )
        rest = step_time(block, self.optimizer, stage, layout, 0.0, is_training=True)
        for overlapped in yes_and_no(part.dp > 1):
            data_s = (
                overlapped_sum_s(block, self.optimizer, stage, layout, axis)
                if overlapped
                else layout.num_blocks * block_sum_s(block, axis)
            )
            yield PricedBlock(
                space, part, networks, self.shards_optimizer, overlapped, self.block_keys, keys,
                total_s=rest.total_s + data_s,
                near_bytes=self.near_bytes[:, across],
                fits=self.fits[:, across],
            )  # fmt: skip


def _layout(space: Space, part: Division, micro_batch_size: FloatArray) -> Layout:
    """Return the layouts of a division: interleavings down, micro-batches across."""
    return Layout(
        pp=float(part.pp),
        num_blocks=float(space.application.num_blocks // part.pp),
        num_missing_blocks=0.0,
        num_virtual_stages=np.array(part.virtual_stages, dtype=np.float64)[:, None],
        num_micro_batches=part.global_batch_size / part.dp / micro_batch_size,
    )


def portions(space: Space) -> Iterator[Portion]:
    """Yield the space in portions with priced memory and counted plans."""
    parts = list(divisions(space))
    tables = _tables(space, parts)
    for part in parts:
        choices = part.network_choices(tables.machine.num_networks)
        legal = tuple(n for n in choices if network_fits(tables.machine, part.degrees, n))
        for overlaps in overlap_panels(space, part):
            for shards in yes_and_no(part.dp > 1):
                yield _portion(tables, part, overlaps, shards, legal, len(choices))


def _portion(
    tables: _Tables, part: Division, overlaps: tuple[int, ...], shards_optimizer: bool,
    networks: tuple[tuple[int, int, int], ...], num_choices: int,
) -> Portion:  # fmt: skip
    """Return a portion with its memory; it depends on no network and no gradient overlap."""
    space, machine = tables.space, tables.machine
    keys = tables.keys(part.tp, overlaps)
    rows = np.flatnonzero(np.isin(keys.micro_batch_size, part.micro_batch_sizes))
    offloads = offload_keys(keys, rows, space.has_host_memory)
    costs = tables.costs(part.tp, networks[0][0] if networks else 0, overlaps)
    optimizer = optimizer_cost(machine, costs.weights, float(part.dp if shards_optimizer else 1))
    layout = _layout(space, part, keys.micro_batch_size[offloads.block_row])
    block = costs.take(offloads.block_row)
    memory = memory_of(block, optimizer, layout, offloads.offload, is_training=True)
    allowed = ~offloads.any | (layout.num_blocks >= LEAST_OFFLOAD_BLOCKS)
    holds = (memory.near_bytes <= machine.memory_capacity_bytes) & (
        memory.host_bytes <= machine.host_capacity_bytes
    )
    fits = holds & allowed
    counts = _counts(part, allowed, fits, len(networks), num_choices)
    return Portion(
        tables, part, overlaps, shards_optimizer, networks, keys, offloads, optimizer,
        np.broadcast_to(memory.near_bytes, fits.shape), fits, counts,
    )  # fmt: skip


def _counts(
    part: Division, allowed: BoolArray, fits: BoolArray, num_legal: int, num_choices: int
) -> Counts:
    """Return the counts of plans of a portion by outcome, over networks and gradient overlap."""
    modes = len(yes_and_no(part.dp > 1))
    not_allowed = int((~allowed).sum()) * fits.shape[0]
    feasible = int(fits.sum())
    return Counts(
        configurations=fits.size * num_choices * modes,
        network_refused=fits.size * (num_choices - num_legal) * modes,
        offload_refused=not_allowed * num_legal * modes,
        memory_refused=(fits.size - not_allowed - feasible) * num_legal * modes,
        feasible=feasible * num_legal * modes,
    )


@dataclass(frozen=True)
class Ranked:
    """One of the best plans."""

    samples_per_s: float
    total_s: float
    near_bytes: float
    order: int
    """Place in the enumeration, which orders equal rates."""
    block: PricedBlock
    place: int

    @property
    def execution(self) -> dict[str, Any]:
        """The plan under the peer's field names."""
        return self.block.executions(np.array([self.place])).row(0)


@dataclass(frozen=True)
class SearchResult:
    """The counts of a space, and its best plans by samples per second."""

    counts: Counts
    best: tuple[Ranked, ...]


def search(space: Space, num_best: int = 20) -> SearchResult:
    """Price every plan of the space and return the best.

    Parameters
    ----------
    space
        Space to search.
    num_best
        Number of plans to return; equal rates in the order of the enumeration.
    """
    counts, order = Counts(), 0
    best: list[Ranked] = []
    for portion in portions(space):
        counts = counts + portion.counts
        for block in portion.blocks():
            least = best[-1].samples_per_s if len(best) == num_best else 0.0
            best = _merged(best, _candidates(block, least, order, num_best), num_best)
            order += block.total_s.size
    return SearchResult(counts, tuple(best))


def _merged(best: list[Ranked], new: list[Ranked], num_best: int) -> list[Ranked]:
    if not new:
        return best
    return sorted([*best, *new], key=lambda plan: (-plan.samples_per_s, plan.order))[:num_best]


def _candidates(block: PricedBlock, least: float, order: int, num_best: int) -> list[Ranked]:
    """Return the plans of a rectangle that beat a rate, the best of them only."""
    rates = np.where(block.fits, block.division.global_batch_size / block.total_s, 0.0).ravel()
    places = np.flatnonzero(rates > least)
    if places.size > num_best:
        chosen = np.argsort(-rates[places], kind="stable")[:num_best]
        places = places[chosen]
    total_s, near_bytes = block.total_s.ravel(), block.near_bytes.ravel()
    return [
        Ranked(
            float(rates[p]), float(total_s[p]), float(near_bytes[p]), order + int(p), block, int(p)
        )
        for p in places
    ]
