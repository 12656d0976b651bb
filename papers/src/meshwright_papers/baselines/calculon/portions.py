"""The whole space of the peer's search, priced in factored portions.

The cost of a block is priced once per tensor degree and network (a small table), then gathered and
composed: the interleaving of a division runs along one side of an array, all other choices along
the other. Networks are refused first, memory second; time is priced for what is left. The formulas
are those of :mod:`evaluate`, so any row evaluated alone gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright_papers.baselines.calculon.block import BlockStructure, block_choices
from meshwright_papers.baselines.calculon.block_cost import (
    BlockCost,
    OptimizerCost,
    block_cost,
    optimizer_cost,
)
from meshwright_papers.baselines.calculon.evaluate import LEAST_OFFLOAD_BLOCKS, network_fits
from meshwright_papers.baselines.calculon.executions import (
    ALL_REDUCE,
    DATA_TYPES,
    NO_OVERLAP,
    Executions,
)
from meshwright_papers.baselines.calculon.hardware import Machine, machine_of
from meshwright_papers.baselines.calculon.memory import Layout, memory_of
from meshwright_papers.baselines.calculon.space import (
    BlockKeys,
    Division,
    OffloadKeys,
    Space,
    block_keys,
    divisions,
    offload_keys,
    overlap_panels,
    yes_and_no,
)
from meshwright_papers.baselines.calculon.step_time import (
    DataAxis,
    block_sum_s,
    overlapped_sum_s,
    sent_bytes,
    stage_time,
    step_time,
)


@dataclass(frozen=True)
class Counts:
    """Plans of a space, by what became of them."""

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
        """Yield the time of each plan whose memory fits, in rectangles."""
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
    """Yield the space in portions whose memory is priced and whose plans are counted."""
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
    """Return what became of the plans of a portion, over networks and gradient overlap."""
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
