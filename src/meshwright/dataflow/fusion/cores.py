"""A chip as fusion sees it: equal cores, cycles of a kernel on some of them, and their division.

A kernel is a product of (rows x inner) by (inner x columns) for each tile. It is cut by ``lanes``
along its rows and by ``stages`` along its columns, and takes
ceil(rows / (lanes * array rows)) * ceil(columns / (stages * array columns)) * inner cycles on
lanes * stages cores. An elementwise kernel uses the rows of an array alone.
Source: Ko et al. 2024 (DFModel, arXiv 2412.16432).

There a tile passes elementwise kernels column by column, also one that has no other rows, such as
the mean of each token. Spread, its results lie on lanes in any order; and where lanes outnumber
them, each sum is cut over several, whose parts are added in a tree: ceil(inner / parts) +
ceil(log2 parts) cycles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, read_only
from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.calibration import SRAM
from meshwright.dataflow.roofline import DTYPE_OF_NUMBER, dtype_of_product
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Unit, factors, single_dims
from meshwright.graph.op import Phase
from meshwright.spec.system import ChipSpec, DType, HostLink


@dataclass(frozen=True)
class MemoryTier:
    """A memory outside of the chip: its room, and the rate of its reads and writes."""

    num_bytes: float
    bytes_per_s: float


@dataclass(frozen=True)
class CoreGrid:
    """Equal cores under one clock, the SRAM that they share, and the memories outside."""

    num_cores: int
    array_rows: int
    """Multiply-adds along the rows of a product, and lanes of an elementwise kernel."""
    array_columns: int
    """Multiply-adds along its columns."""
    frequency_hz: float
    sram_bytes: float
    outside: tuple[MemoryTier, ...] = ()
    """Memories behind the SRAM, near to far: none, DRAM, or DRAM and the memory of a host."""
    sram_bytes_per_s: float = np.inf
    noc_bytes_per_s: float | None = None
    """One direction of a link between two cores; None: the chip does not state it."""
    launch_s: float = 0.0
    """Least time from the start of one partition to the next: the time of a launch [s]."""
    slowdowns: tuple[tuple[float, float], ...] = ()
    """Bytes of other numbers than those of the rate, and cycles of their products over the
    rate's."""

    def slowdown(self, number_bytes: float) -> float:
        """Return the cycles of a product of such numbers, over those of the chip's rate [1]."""
        return dict(self.slowdowns).get(number_bytes, 1.0)

    @property
    def main(self) -> MemoryTier:
        """The memory of tensors between partitions: the nearest one outside, else the SRAM."""
        return (
            self.outside[0] if self.outside else MemoryTier(self.sram_bytes, self.sram_bytes_per_s)
        )

    @property
    def dram_bytes(self) -> float:
        """Room of the main memory."""
        return self.main.num_bytes

    @property
    def dram_bytes_per_s(self) -> float:
        """Rate of the main memory."""
        return self.main.bytes_per_s

    def at_dram_rate(self, bytes_per_s: float) -> CoreGrid:
        """Return the grid with DRAM of another rate."""
        near, *far = self.outside
        return replace(self, outside=(replace(near, bytes_per_s=bytes_per_s), *far))

    @property
    def far_bytes(self) -> float:
        """Room of the memories behind the main one: for weights alone."""
        return sum(tier.num_bytes for tier in self.outside[1:])

    def weight_byte_s(self, far_bytes: float, num_bytes: float) -> float:
        """Return the seconds of a byte of weights that come into the SRAM.

        max(1 / rate of DRAM, share / rate of each memory behind it): all weights pass the DRAM, and
        those that wait behind it come there at the same time; ``far_bytes`` of ``num_bytes`` do,
        and the nearer memories are full. Of 4 GB 1 GB in a host, at 2 TB/s and 0.1 TB/s:
        max(0.5, 0.25 / 0.1) = 2.5 ps a byte.
        """
        seconds, left = 1.0 / self.dram_bytes_per_s, far_bytes
        for tier in self.outside[1:]:
            taken = min(left, tier.num_bytes)
            seconds, left = max(seconds, taken / num_bytes / tier.bytes_per_s), left - taken
        return seconds

    @property
    def flops_per_s(self) -> float:
        """Dense peak: two FLOP for each multiply-add and clock [FLOP/s]."""
        return 2.0 * self.num_cores * self.array_rows * self.array_columns * self.frequency_hz


def grid_of(
    chip: ChipSpec, launch_s: float, dtype: DType = "bf16", host: HostLink | None = None
) -> CoreGrid:
    """Return a chip as fusion sees it; ``launch_s`` is that of its family in the calibration.

    The clock is the one at which its cores reach the peak: rate / (2 cores rows columns); where the
    chip states the clock and no cores, their number follows. Arrays are those of a core where the
    chip states them, otherwise its output tile. The memory of a ``host`` stands behind DRAM; a chip
    without DRAM keeps everything in its SRAM.

    Raises
    ------
    SpecError
        With all values that fusion needs and the chip does not state.
    """
    on_chip, *beyond = chip.memories
    traffic = beyond[0] if beyond else on_chip
    rows, columns = chip.array_rows or chip.tile_rows, chip.array_columns or chip.tile_columns
    rate, num_cores = chip.matmul_flops_per_s.get(dtype), chip.num_cores
    if num_cores is None and rate is not None and chip.clock_hz is not None:
        num_cores = round(rate / (2.0 * rows * columns * chip.clock_hz))
    needed = {
        "num_cores": num_cores is not None,
        f"matmul_rate.{dtype}": rate is not None,
        "memories: one on the chip": bool(beyond) or on_chip.name == SRAM,
        f"memories[{traffic.name}].bandwidth": traffic.bandwidth_bytes_per_s is not None,
    }
    missing = [Fault(name, "is unknown, but fusion needs it") for name, is_there in needed.items()
               if not is_there]  # fmt: skip
    if missing or num_cores is None or rate is None:
        raise SpecError(missing, origin=f"chip {chip.name}")
    tiers = [(level.capacity_bytes, level.bandwidth_bytes_per_s or 0.0) for level in beyond]
    if beyond and host is not None:
        rates = (host.bandwidth_bytes_per_s, host.memory_bandwidth_bytes_per_s or np.inf)
        tiers.append((host.capacity_bytes, min(rates)))
    return CoreGrid(
        num_cores=num_cores,
        array_rows=rows,
        array_columns=columns,
        frequency_hz=rate / (2.0 * num_cores * rows * columns),
        sram_bytes=on_chip.capacity_bytes,
        outside=tuple(MemoryTier(*tier) for tier in tiers),
        sram_bytes_per_s=on_chip.bandwidth_bytes_per_s or np.inf,
        noc_bytes_per_s=chip.noc_bytes_per_s,
        launch_s=launch_s,
        slowdowns=tuple(
            (width, rate / chip.matmul_flops_per_s[other])
            for width in DTYPE_OF_NUMBER
            if (other := dtype_of_product(chip, width)) not in (None, dtype)
        ),
    )


class TileShape(NamedTuple):
    """A product (rows x inner) by (inner x columns), or an elementwise kernel of inner size 1."""

    rows: int
    inner: int
    columns: int
    unit: Unit
    is_spread: bool = False
    """Whether the results of an elementwise kernel lie on lanes in any order, and sums are cut over
    lanes."""
    slowdown: float = 1.0
    """Cycles of a multiply-add of a product, for the numbers that it multiplies."""


def passing_dims(graph: DataflowGraph, num_tiles: int) -> dict[str, int]:
    """Return the dims that pass in tiles, and the parts of each: that of the graph and its aliases.

    A move may read a passing dim under another name, as rows of tokens become slots of experts.
    Where it reads them as several dims side by side, the outer one passes first, and one behind it
    where there are more tiles than that has elements.
    """
    made = {**graph.inputs, **{kernel.name: kernel.dims for kernel in graph.kernels}}
    found = {graph.tiled: num_tiles}
    for kernel in graph.kernels:
        if kernel.unit is Unit.NONE:
            for operand in kernel.inputs:
                for original, taken in zip(made[operand.source], operand.dims, strict=False):
                    if found.keys() & set(factors(original)):
                        found |= _parts(factors(taken), graph.sizes, num_tiles)
    return found


def tileable_dims(graph: DataflowGraph) -> tuple[str, ...]:
    """Return the dims that may pass in tiles: the one that is stated, then the others.

    Neither another dim nor the dims that moves make of it may be needed whole, or be summed over:
    the reader of the sum would have to wait for the last tile.
    """

    def passes(dim: str) -> bool:
        passing = passing_dims(replace(graph, tiled=dim), 2).keys()
        return not any(
            passing & kernel.whole or passing & set(kernel.contracted)
            for kernel in graph.kernels
            if kernel.phase is not Phase.WEIGHT_GRADIENT
        )

    written = {dim for kernel in graph.kernels for dim in single_dims(kernel.dims)}
    others = [dim for dim, size in graph.sizes.items() if size > 1 and dim in written]
    return (graph.tiled, *(dim for dim in others if dim != graph.tiled and passes(dim)))


def _parts(names: Sequence[str], sizes: Mapping[str, int], num_tiles: int) -> dict[str, int]:
    """Return the parts of dims side by side that pass together in some tiles."""
    if len(names) == 1:
        return {names[0]: num_tiles}
    found: dict[str, int] = {}
    for name in names:
        if num_tiles > 1:
            found[name] = min(sizes[name], num_tiles)
            num_tiles = -(-num_tiles // sizes[name])
    return found


def tile_shape(
    kernel: Kernel,
    sizes: Mapping[str, int],
    passing: Collection[str],
    *,
    is_spread: bool = False,
    slowdown: float = 1.0,
) -> TileShape:
    """Return the shape of one tile of a kernel.

    Parameters
    ----------
    kernel
        The kernel of the tile.
    sizes
        Sizes of the dims on one device; of those that pass in tiles, the part in one tile.
    passing
        The dims that pass in tiles. Where the kernel writes one, it makes the columns; where it
        sums over one, the columns are the dims that only its first operand has.
    is_spread
        Whether elementwise kernels may use lanes in any order.
    slowdown
        Cycles of a multiply-add of a product, for the numbers that it multiplies.
    """
    written = single_dims(kernel.dims)
    columns = tuple(dim for dim in written if dim in passing)
    if not columns and kernel.unit is Unit.MATRIX:
        columns = _first_only(kernel)
    size = {dim: sizes[dim] for dim in kernel.points}
    return TileShape(
        rows=prod(size[dim] for dim in written if dim not in columns),
        inner=prod(size[dim] for dim in kernel.contracted),
        columns=prod(size[dim] for dim in columns),
        unit=kernel.unit,
        is_spread=is_spread and kernel.unit is Unit.VECTOR,
        slowdown=slowdown if kernel.unit is Unit.MATRIX else 1.0,
    )


def _first_only(kernel: Kernel) -> tuple[str, ...]:
    """Return the written dims that the first operand has and no other operand."""
    read = [operand.dims for operand in kernel.inputs]
    operands = [*read, *(weight.dims for weight in kernel.weights)]
    first = {dim for dims in operands[:1] for dim in single_dims(dims)}
    shared = {dim for dims in operands[1:] for dim in single_dims(dims)}
    return tuple(dim for dim in single_dims(kernel.dims) if dim in first - shared)


CoreChoices = tuple[IntArray, FloatArray]
"""Numbers of cores, rising, and the cycles of one tile on each, falling."""


@lru_cache(maxsize=4096)
def core_choices(shape: TileShape, grid: CoreGrid) -> CoreChoices:
    """Return every number of cores at which a kernel becomes faster, and its cycles there."""
    if shape.unit is Unit.NONE:
        return read_only(np.ones(1, np.int64)), read_only(np.zeros(1))
    if shape.is_spread:
        return _spread_choices(shape.rows * shape.columns, shape.inner, grid)
    rows = -(-shape.rows // grid.array_rows)
    is_matrix = shape.unit is Unit.MATRIX
    columns = -(-shape.columns // grid.array_columns) if is_matrix else 1
    depth = shape.inner * shape.slowdown if is_matrix else shape.inner * shape.columns
    lanes, stages = _useful_parts(rows, grid.num_cores), _useful_parts(columns, grid.num_cores)
    cores = np.multiply.outer(lanes, stages).ravel()
    cycles = np.multiply.outer(-(-rows // lanes), -(-columns // stages)).ravel() * float(depth)
    fits = cores <= grid.num_cores
    return _falling(cores[fits], cycles[fits])


def _spread_choices(results: int, inner: int, grid: CoreGrid) -> CoreChoices:
    """Return the choices of an elementwise kernel with results on lanes in any order."""
    rounds = -(-results // grid.array_rows)
    cores = _useful_parts(rounds, grid.num_cores)
    cycles: FloatArray = np.array(-(-rounds // cores) * inner, np.float64)
    if rounds <= grid.num_cores:
        parts = _useful_parts(inner, grid.num_cores * grid.array_rows // results)
        cores = np.append(cores, -(-parts * results // grid.array_rows))
        cycles = np.append(cycles, -(-inner // parts) + np.ceil(np.log2(parts)))
    return _falling(cores, cycles)


@lru_cache(maxsize=4096)
def least_choices(shapes: tuple[TileShape, ...], grid: CoreGrid) -> CoreChoices:
    """Return the fewest cycles for each number of cores, over several shapes of a kernel."""
    found = [core_choices(shape, grid) for shape in shapes]
    if len(found) == 1:
        return found[0]
    cores, cycles = (np.concatenate(column) for column in zip(*found, strict=True))
    return _falling(cores, cycles)


def _falling(cores: IntArray, cycles: FloatArray) -> CoreChoices:
    """Return the numbers of cores, rising, at which cycles fall."""
    order = np.lexsort((cycles, cores))
    cores, cycles = cores[order], cycles[order]
    least = np.minimum.accumulate(cycles)
    is_better = np.append(True, least[1:] < least[:-1])
    return read_only(cores[is_better]), read_only(cycles[is_better])


def _useful_parts(length: int, most: int) -> IntArray:
    """Return the numbers of parts at which ceil(length / parts) falls: at most 2 sqrt(length)."""
    small = np.arange(1, min(int(length**0.5), most) + 2, dtype=np.int64)
    found = np.unique(np.concatenate((small, -(-length // small))))
    found = found[found <= min(length, most)]
    rounds = -(-length // found)
    useful: IntArray = found[np.append(True, rounds[1:] < rounds[:-1])]
    return useful


def least_cycles(choices: Sequence[CoreChoices], num_cores: int, members: BoolArray) -> FloatArray:
    """Return the cycles of one tile of each set under the best division of the cores.

    The slowest kernel of a set decides. Within c cycles, kernel k needs need_k(c) cores, the least
    of its choices that is as fast; a set fits into c cycles when the needs of its members sum to
    the cores of the chip or less. That falls with c, so bisection over the cycles of all choices
    finds the least: no integer program is needed.

    Parameters
    ----------
    choices
        One entry for each kernel, from :func:`core_choices`.
    members
        Sets of kernels, shape (sets, kernels).

    Returns
    -------
    FloatArray
        Shape (sets,) [cycles]; infinite where there are more kernels than cores.
    """
    kinds, kind_of = _kinds(choices)
    fastest, size = np.array([taken[-1] for _, taken in kinds]), members.sum(axis=1)
    found, is_alone = np.full(len(members), fastest.min()), size == 1
    found[is_alone] = fastest[kind_of[members[is_alone].argmax(axis=1)]]
    several = np.flatnonzero(size > 1)
    for first in range(0, len(several), TOGETHER):
        rows = several[first : first + TOGETHER]
        counts = _counted(members[rows], kind_of)
        here = np.flatnonzero(counts.any(axis=0))
        found[rows] = _bisected([kinds[kind] for kind in here], counts[:, here], num_cores)
    return found


TOGETHER = 4096
"""Sets whose cycles are bisected together."""


def _counted(members: BoolArray, kind_of: IntArray) -> FloatArray:
    """Return the kernels of each kind in each set, shape (sets, kinds)."""
    order = np.argsort(kind_of, kind="stable")
    starts = np.flatnonzero(np.diff(kind_of[order], prepend=-1))
    return np.add.reduceat(members[:, order].astype(np.float64), starts, axis=1)


def _bisected(kinds: Sequence[CoreChoices], counts: FloatArray, num_cores: int) -> FloatArray:
    """Return the least cycles within which each set fits; needs are found where they are asked."""
    cycles = np.unique(np.concatenate([taken for _, taken in kinds]))
    low, high = np.zeros(len(counts), np.int64), np.full(len(counts), len(cycles))
    while len(rows := np.flatnonzero(low < high)):
        middle = (low[rows] + high[rows]) // 2
        asked, place = np.unique(middle, return_inverse=True)
        need = np.stack([cores_needed(kind, cycles[asked], num_cores) for kind in kinds], axis=1)
        fits = np.einsum("sk,sk->s", need[place], counts[rows]) <= num_cores
        low[rows] = np.where(fits, low[rows], middle + 1)
        high[rows] = np.where(fits, middle, high[rows])
    return np.append(cycles, np.inf)[low]


def cores_needed(choices: CoreChoices, cycles: FloatArray, num_cores: int) -> FloatArray:
    """Return the least cores with which a kernel takes at most some cycles.

    More than the chip has where it cannot.
    """
    cores, taken = choices
    place = np.searchsorted(-taken, -cycles, side="left")
    return np.append(cores, num_cores + 1)[place].astype(np.float64)


def _kinds(choices: Sequence[CoreChoices]) -> tuple[list[CoreChoices], IntArray]:
    """Return the different choices, and which of them each kernel has."""
    place: dict[int, int] = {}
    kinds: list[CoreChoices] = []
    for choice in choices:
        if id(choice) not in place:
            place[id(choice)] = len(kinds)
            kinds.append(choice)
    return kinds, np.array([place[id(choice)] for choice in choices])
