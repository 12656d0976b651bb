"""Prices of sets of kernels as partitions: columns, one entry for each set.

While a partition runs, tiles pass through its kernels in a pipeline, the next tiles come from DRAM
and partial sums travel over the network; the slowest of the three sets the pace. Before it starts,
its weights come from DRAM, once for all sequences of a micro-batch. A partition is one kernel of
the chip: the next one starts no sooner than a launch later.

Bounds hold for all partitions of a problem, in any order: for pruning and for wide graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, ceil_div, larger
from meshwright.dataflow.fusion.cores import least_cycles
from meshwright.dataflow.fusion.problem import FusionProblem, Tensors


@dataclass(frozen=True)
class PartitionPrices:
    """Columns, one entry for each set; seconds and bytes are those of one sequence."""

    fits: BoolArray
    """Whether cores and SRAM hold the set."""
    tile_cycles: FloatArray
    """Cycles of a tile on the slowest kernel, under the best division of the cores."""
    compute_s: FloatArray
    dram_s: FloatArray
    network_s: FloatArray
    rounds: FloatArray
    """Times that the tiles of one sequence run through it, alone; 1 where others are in flight."""
    launch_s: float
    """Time of the launch of a micro-batch, the same for every set."""
    held_bytes: FloatArray
    """Weights and sums that come into the SRAM before it runs, once a micro-batch."""
    stored_s: FloatArray
    """Time to write sums once they are done, of one micro-batch."""
    fill_s: FloatArray
    """Time to fill the pipeline of kernels, of one micro-batch."""
    sram_bytes: FloatArray
    moved_bytes: FloatArray
    """Traffic between DRAM and chip, weights apart."""
    crossing_bytes: FloatArray
    """Bytes of tensors that are read or written, each once."""
    inside_bytes: FloatArray
    """Bytes of tensors that never leave the chip."""
    weight_parts: FloatArray
    """Parts in which the weights come; more than 1 only for a kernel that is alone."""
    number: IntArray
    """Number of the set."""
    tile: IntArray
    """Number of its tile, among those of the problem."""

    @property
    def busy_s(self) -> FloatArray:
        """Time of the slowest of computation, DRAM and network."""
        found: FloatArray = larger(self.compute_s, larger(self.dram_s, self.network_s))
        return found

    def run_s(self, micro_batch: int) -> FloatArray:
        """Return the seconds of one sequence of a micro-batch, once the weights are there.

        rounds busy + (fill + stored)/u: 64 sequences that are busy for 10 ns each, and fill for
        0.1 us, run for 10 + 1.6 = 11.6 ns each.
        """
        once = (self.fill_s + self.stored_s) / micro_batch
        found: FloatArray = self.rounds * self.busy_s + once
        return found

    def spaced_s(self, micro_batch: int) -> FloatArray:
        """Return the least seconds of a sequence between the ends of two partitions.

        max(run, launch/u): those 64 sequences, launched in 5 us, take 78.1 ns each.
        """
        found: FloatArray = larger(self.run_s(micro_batch), self.launch_s / micro_batch)
        return found

    def memory_s(self, micro_batch: int) -> FloatArray:
        """Return the seconds of one sequence in which a partition itself uses the DRAM."""
        found: FloatArray = self.dram_s + self.stored_s / micro_batch
        return found

    def rows(self, chosen: BoolArray | IntArray) -> PartitionPrices:
        """Return the entries of some sets."""
        columns: dict[str, Any] = {name: column[chosen] for name, column in self._columns.items()}
        return replace(self, **columns)

    def spread(self, places: BoolArray) -> PartitionPrices:
        """Return entries for more sets: these at some places; others do not fit and are endless."""
        columns: dict[str, Any] = {}
        for name, column in self._columns.items():
            nothing = np.inf if column.dtype.kind == "f" else 0
            columns[name] = np.full(len(places), nothing, column.dtype)
            columns[name][places] = column
        return replace(self, **{**columns, "number": np.arange(len(places))})

    @classmethod
    def joined(cls, prices: Sequence[PartitionPrices]) -> PartitionPrices:
        """Return the entries of several columns as one."""
        if len(prices) == 1:
            return prices[0]
        every = [one._columns for one in prices]
        columns: dict[str, Any] = {
            name: np.concatenate([one[name] for one in every]) for name in every[0]
        }
        return replace(prices[0], **columns)

    @property
    def _columns(self) -> dict[str, Any]:
        names = [entry.name for entry in fields(self) if entry.name != "launch_s"]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class PartitionTimes:
    """Seconds of sets at one micro-batch, for one sequence: columns, one entry for each set."""

    run_s: FloatArray
    load_s: FloatArray
    """Time to load the weights."""
    memory_s: FloatArray
    """Time in which the set itself uses the DRAM while it runs."""
    room_s: FloatArray
    """Time in which weights fill the SRAM that the set leaves free."""
    launch_s: float

    @classmethod
    def of(
        cls, problem: FusionProblem, prices: PartitionPrices, micro_batch: int, byte_s: float
    ) -> PartitionTimes:
        """Return the seconds of priced sets, where a byte of weights takes some of them."""
        free = larger(problem.grid.sram_bytes - prices.sram_bytes, 0.0)
        if not problem.rules.loads_ahead:
            free = np.zeros(len(free))
        return cls(
            run_s=prices.run_s(micro_batch),
            load_s=prices.held_bytes * (byte_s / micro_batch),
            memory_s=prices.memory_s(micro_batch),
            room_s=free * (byte_s / micro_batch),
            launch_s=prices.launch_s / micro_batch,
        )

    def rows(self, rows: IntArray) -> PartitionTimes:
        """Return the entries of some sets."""
        return PartitionTimes(
            self.run_s[rows], self.load_s[rows], self.memory_s[rows], self.room_s[rows],
            self.launch_s,
        )  # fmt: skip

    def after(self, end: FloatArray, ready: FloatArray) -> tuple[FloatArray, ...]:
        """Return the start and end of each set, and the time from which the next weights may load.

        start = max(end, ready + load), where the set before it ends and loading begins at ready;
        then end = max(start + run, end + launch), ready = max(end - room, start + memory). A set
        that loads for 3 us, runs for 10, uses the DRAM for 4 and leaves room for 5, after one that
        ended at 20 and was ready at 18, starts at 21 and ends at 31; the next weights load from 26.
        """
        start = larger(end, ready + self.load_s)
        after = larger(start + self.run_s, end + self.launch_s)
        return start, after, larger(after - self.room_s, start + self.memory_s)


ROUNDING = 1e-9
"""Relative tolerance by which sums of the same bytes may exceed one SRAM."""
TOGETHER = 1024
"""Sets whose tensors are processed together."""


@dataclass(frozen=True)
class _Flows:
    """Bytes of each set that do not depend on the parts of its weights."""

    buffer_bytes: FloatArray
    read_bytes: FloatArray
    written_bytes: FloatArray
    inside_bytes: FloatArray


def price_partitions(problem: FusionProblem, sets: BoolArray) -> PartitionPrices:
    """Return the price of each set of kernels, shape (sets, kernels), as a partition.

    Sets whose least bytes exceed the SRAM are not priced: their entries are infinite.
    """
    (found,) = _in_each_tile((problem,), sets)
    return found


def _in_each_tile(tiles: Sequence[FusionProblem], sets: BoolArray) -> list[PartitionPrices]:
    """Return the prices of the same sets in each tile; the rows that fill a set are the same."""
    may_fit = [_may_fit(tile, sets) for tile in tiles]
    some, reads, found = np.any(may_fit, axis=0), tiles[0].reads, []
    rows = np.zeros(len(sets))
    if tiles[0].rules.counts_fill:
        rows[some] = _longest(reads, np.ones_like(reads), sets[some])
    for tile, those in zip(tiles, may_fit, strict=True):
        priced = _priced(tile, sets[those], rows[those])
        found.append(priced if those.all() else priced.spread(those))
    return found


def price_windows(
    problem: FusionProblem, windows: Sequence[tuple[int, BoolArray]]
) -> PartitionPrices:
    """Return the prices of all sets of several windows: a first kernel, and sets from there on.

    A set has an entry for each tile in which it fits and that no other tile of it beats. Windows
    with equal kernels and the same sets are priced once.
    """
    known: dict[tuple[object, ...], PartitionPrices] = {}
    found, before = [], 0
    for first, sets in windows:
        whole = sets.shape[1] == problem.num_kernels
        here = problem if whole else problem.within(first, first + sets.shape[1])
        key = (id(sets), here.columns_key)
        if key not in known:
            known[key] = price_tiles(here, sets)
        found.append(replace(known[key], number=before + known[key].number))
        before += len(sets)
    return PartitionPrices.joined(found)


def price_tiles(problem: FusionProblem, sets: BoolArray) -> PartitionPrices:
    """Return the prices of each set in each tile in which it fits and that no other one beats."""
    return in_best_tiles(_in_each_tile(problem.tiles, sets))


def in_best_tiles(priced: Sequence[PartitionPrices]) -> PartitionPrices:
    """Return the prices of sets that fit, of the same sets in each tile, that no other tile beats.

    A tile beats another one that runs, fills and uses the DRAM no shorter, and needs no less SRAM.
    """
    columns = [
        np.stack([one.rounds * one.busy_s, one.fill_s, one.dram_s, one.sram_bytes])
        for one in priced
    ]
    kept = [one.fits.copy() for one in priced]
    for number, ours in enumerate(columns):
        for other, theirs in enumerate(columns):
            if other != number:
                rows = np.flatnonzero(kept[number] & kept[other])
                beaten = np.all(theirs[:, rows] <= ours[:, rows], axis=0)
                kept[number][rows[beaten]] = False
    return PartitionPrices.joined(
        [
            replace(prices.rows(rows), tile=np.full(int(rows.sum()), number))
            for number, (prices, rows) in enumerate(zip(priced, kept, strict=True))
        ]
    )


def _may_fit(problem: FusionProblem, sets: BoolArray) -> BoolArray:
    """Return the sets of one kernel, and those whose weights and own outputs may fit the SRAM.

    A tensor that a set makes has at least the smaller buffer of a reader inside or of its writer.
    """
    tensors, least = problem.tensors, problem.held_bytes.copy()
    inside = tensors.inside_bytes.min(axis=1, initial=np.inf)
    made = np.minimum(inside, tensors.written_bytes)
    is_made = tensors.writer < problem.num_kernels
    np.add.at(least, tensors.writer[is_made], made[is_made])
    # sums of eight kernels at once are looked up: sets are many, and few of them fit
    counted = np.zeros((-(-len(least) // 8) * 8, 2))
    counted[: len(least)] = np.column_stack([least, np.ones(len(least))])
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    sums = bits.astype(np.float64) @ counted.reshape(-1, 8, 2)
    num_bytes, size = np.zeros((2, len(sets)))
    for eight, column in zip(sums, np.packbits(sets, axis=1).T, strict=True):
        num_bytes += eight[column, 0]
        size += eight[column, 1]
    found: BoolArray = (num_bytes <= problem.grid.sram_bytes * (1.0 + ROUNDING)) | (size == 1.0)
    return found


def _priced(problem: FusionProblem, sets: BoolArray, rows: FloatArray) -> PartitionPrices:
    """Return the price of each set of kernels; computation is infinite where SRAM is too small."""
    grid, tiles = problem.grid, float(problem.num_tiles)
    flows = _flows(problem.tensors, sets)
    columns = (problem.held_bytes, problem.looked_up_bytes, problem.network_s, problem.stored_bytes)
    held, tables, network, stored = (sets.astype(np.float64) @ np.stack(columns, axis=1)).T
    # The weights of a kernel that is alone come in parts, so that one part fits.
    is_alone, free = sets.sum(axis=1) == 1, grid.sram_bytes - flows.buffer_bytes
    needed = ceil_div(held, np.where(free > 0, free, np.inf))
    parts: FloatArray = np.where(is_alone, larger(needed, 1.0), 1.0)
    sram = flows.buffer_bytes + ceil_div(held, parts)
    passes = parts if problem.rules.rereads else np.ones(len(sets))
    moved = passes * flows.read_bytes + flows.written_bytes + tables
    is_held = sram <= grid.sram_bytes
    asked = is_held | is_alone
    cycles = np.full(len(sets), np.inf)
    cycles[asked] = least_cycles(problem.choices, grid.num_cores, sets[asked])
    compute, dram = tiles * cycles / grid.frequency_hz, moved / grid.dram_bytes_per_s
    busy = larger(compute, larger(dram, network))
    waits = np.zeros(len(sets))
    if problem.for_latency and problem.waits.any():
        waits = _longest(problem.reads, problem.waits, sets)
    return PartitionPrices(
        fits=is_held & np.isfinite(cycles),
        tile_cycles=cycles,
        compute_s=compute,
        dram_s=dram,
        network_s=network,
        rounds=1.0 + waits,
        launch_s=grid.launch_s,
        held_bytes=held,
        stored_s=stored / grid.dram_bytes_per_s,
        fill_s=rows * np.where(np.isfinite(busy), busy, 0.0) / tiles,
        sram_bytes=sram,
        moved_bytes=moved,
        crossing_bytes=flows.read_bytes + flows.written_bytes,
        inside_bytes=flows.inside_bytes,
        weight_parts=parts,
        number=np.arange(len(sets)),
        tile=np.zeros(len(sets), np.int64),
    )


def least_of_larger(problem: FusionProblem, sets: BoolArray) -> tuple[BoolArray, FloatArray]:
    """Return whether partitions that hold each set, and maybe more, can fit; and their seconds.

    They compute no faster than the set alone, hold its weights, and buffer the tensors between its
    kernels and their inputs: inside or from outside, whichever is less. A kernel may come in parts.
    """
    tensors = problem.tensors
    relaxed = replace(
        tensors,
        read_bytes=np.minimum(tensors.read_bytes, tensors.inside_bytes),
        written_bytes=np.zeros(len(tensors.writer)),
    )
    grid, cycles = problem.grid, least_cycles(problem.choices, problem.grid.num_cores, sets)
    held = sets @ problem.held_bytes + _flows(relaxed, sets).buffer_bytes
    fits = (held <= grid.sram_bytes) | (sets.sum(axis=1) == 1)
    return fits & np.isfinite(cycles), problem.num_tiles * cycles / grid.frequency_hz


def _flows(tensors: Tensors, sets: BoolArray) -> _Flows:
    """Return the buffers and the traffic of the tensors of each set."""
    found = [
        _flows_of(tensors, sets[first : first + TOGETHER].T)
        for first in range(0, max(len(sets), 1), TOGETHER)
    ]
    return _Flows(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _flows_of(tensors: Tensors, members: BoolArray) -> tuple[FloatArray, ...]:
    """Return the columns of :class:`_Flows` for a few sets, shape (kernels, sets).

    All reads of one tensor by a set are joined: its largest buffer counts.
    """
    is_in = np.append(members, np.zeros((1, members.shape[1]), bool), axis=0)
    touched: BoolArray = np.asarray(is_in.any(axis=1))
    tensors = tensors.rows(touched[tensors.writer] | np.any(touched[tensors.readers], axis=1))
    is_made = is_in[tensors.writer]
    is_read, has_all = np.zeros_like(is_made), np.ones_like(is_made)
    buffers = np.zeros(is_made.shape)
    for slot, (readers, is_slot) in enumerate(
        zip(tensors.readers.T, tensors.is_slot.T, strict=True)
    ):
        rows = np.flatnonzero(is_slot)
        reads, made = is_in[readers[rows]], is_made[rows]
        inside, outside = (
            column[rows, slot][:, None] for column in (tensors.inside_bytes, tensors.read_bytes)
        )
        buffers[rows] = np.maximum(buffers[rows], reads * np.where(made, inside, outside))
        is_read[rows] |= reads
        has_all[rows] &= reads
    leaves, whole = is_made & ~has_all, tensors.sequence_bytes
    return (
        buffers.sum(axis=0) + tensors.written_bytes @ leaves,
        whole @ (is_read & ~is_made),
        whole @ leaves,
        whole @ (is_made & has_all),
    )


def _longest(reads: BoolArray, lengths: BoolArray, sets: BoolArray) -> FloatArray:
    """Return the longest path inside each set, over reads of some lengths."""
    is_in = np.ascontiguousarray(sets.T)
    longest = np.zeros(is_in.shape)
    for kernel, members in enumerate(is_in):
        for before in np.flatnonzero(reads[kernel]).tolist():
            through = (longest[before] + lengths[kernel, before]) * is_in[before]
            np.maximum(longest[kernel], through, out=longest[kernel])
        longest[kernel] *= members
    found: FloatArray = longest.max(axis=0)
    return found


def bound_s(problem: FusionProblem) -> float:
    """Return seconds that no partitions undercut, for one sequence.

    A kernel that holds more than the SRAM is a partition of its own, so its time is known. All
    others of a phase take their shares. Weights are read once for the largest micro-batch: before
    partitions, or while the DRAM has nothing else to do. Each of the fewest partitions with SRAM
    for them is launched.
    """
    shares, micro_batch = kernel_bounds(problem), problem.tried_micro_batches[0][1]
    is_shared = shares.alone_s == 0.0
    busy = float(shares.alone_s.sum() + shares.least_s(is_shared[None])[0])
    loads = float(problem.setup_bytes.sum()) * problem.weight_byte_s() / micro_batch
    held = shares.phase @ (problem.held_bytes * is_shared)
    full = np.ceil(held / max(problem.grid.sram_bytes, 1.0) - ROUNDING)
    fewest = np.maximum(full, shares.phase @ is_shared > 0.0)
    launches = float(fewest.sum() + np.sum(~is_shared)) * problem.grid.launch_s / micro_batch
    if problem.rules.loads_ahead:
        memory_s = float(shares.resources_s[:, 1].sum())
        return problem.whole_s(max(busy, launches, memory_s + loads), problem.least_ramp)
    return problem.whole_s(max(busy + loads, launches), problem.least_ramp)


@dataclass(frozen=True)
class KernelBounds:
    """Lower bounds of cores, DRAM and network for each kernel, in any partition."""

    alone_s: FloatArray
    """Whole time of kernels that hold more than the SRAM; 0 for others, shape (kernels,) [s]."""
    resources_s: FloatArray
    """Time on cores, DRAM and network of all others; 0 for those alone, shape (kernels, 3) [s]."""
    phase: FloatArray
    """Kernels of each phase, shape (phases, kernels): ones and zeros."""

    def least_s(self, sets: BoolArray) -> FloatArray:
        """Return seconds that no partitions of each set undercut, shape (sets, kernels).

        A partition lies within a phase, and takes the sums of its kernels of each resource.
        """
        total = sets @ self.alone_s
        for members in self.phase:
            total = total + (sets @ (members[:, None] * self.resources_s)).max(axis=1)
        seconds: FloatArray = total
        return seconds


def kernel_bounds(problem: FusionProblem) -> KernelBounds:
    """Return the shares of all kernels: least cores x cycles, forced DRAM traffic, network.

    Each kernel has the tile in which it takes the least.
    """
    grid, tiles = problem.grid, problem.tiles
    is_alone = problem.held_bytes > max(grid.sram_bytes, 0.0)
    alone, singles = np.zeros(problem.num_kernels), np.eye(problem.num_kernels, dtype=bool)
    if is_alone.any():
        priced = [price_partitions(tile, singles[is_alone]).busy_s for tile in tiles]
        alone[is_alone] = np.min(priced, axis=0)
    area = np.min([tile.core_cycles for tile in tiles], axis=0)
    cores_s = area / (grid.num_cores * grid.frequency_hz)
    dram_s = _forced_bytes(problem, is_alone) / grid.dram_bytes_per_s
    resources = np.stack([cores_s, dram_s, problem.network_s], axis=1)
    resources[is_alone] = 0.0
    phases = np.unique(problem.phase)
    return KernelBounds(alone, resources, (problem.phase == phases[:, None]).astype(float))


def _forced_bytes(problem: FusionProblem, is_alone: BoolArray) -> FloatArray:
    """Return the bytes that each kernel moves at least, those alone apart, shape (kernels,).

    Rows of tables, and tensors that no partition can hold: they come from outside or go there,
    belong to two phases, or have an end that is alone. Each is written once, and read once by the
    kernels of a phase together, which share it out.
    """
    tensors, n = problem.tensors, problem.num_kernels
    found = np.append(problem.looked_up_bytes, 0.0)
    place = np.append(np.where(is_alone, -1, problem.phase), -1)
    writer, readers = place[tensors.writer], place[tensors.readers]
    is_written = np.any(readers != writer[:, None], axis=1)
    np.add.at(found, tensors.writer, np.where(is_written, tensors.sequence_bytes, 0.0))
    for phase in np.unique(problem.phase):
        reads = tensors.is_slot & (readers == phase) & (writer[:, None] != phase)
        each = tensors.sequence_bytes / np.maximum(reads.sum(axis=1), 1)
        np.add.at(found, tensors.readers, reads * each[:, None])
    return found[:n]
