"""Linpack on a P x Q grid of devices, in place: block-cyclic, as the reference program runs it.

Blocks of the matrix are dealt out in turns over the rows and the columns of the grid. Of each panel
one column of the grid makes the factor L, which is broadcast along the rows of the grid; the chosen
rows change places along its columns and come together there as U, and every device updates its part
of the remaining matrix. The factors take the place of the matrix. A run ends with the solution of
the triangle. No panel is looked ahead to: steps of different panels do not overlap.

Sources: Petitet et al., HPL 2.3, netlib.org/benchmark/hpl (algorithm; scalability); the
manual page of HPL_pdfact: a panel takes b log2(P) (latency + (2 b + 4) words) + b^2 (M - b/3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from meshwright.base.arrays import FloatArray, ceil_div
from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.base.records import Brief, Rows, Shown, scalars
from meshwright.base.registry import version
from meshwright.base.units import format_bytes
from meshwright.cost.operator import matmul_compute_s
from meshwright.dataflow.roofline import CalibratedSystem, Links
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.workloads import hpl
from meshwright.spec.collective import CollectiveKind

NEIGHBOURS: tuple[Literal["row", "column"], ...] = ("row", "column")
"""Directions along which ranks are counted."""
WORD_BYTES = 8.0
"""Bytes of a number: Linpack runs in double precision."""


@dataclass(frozen=True)
class ProcessGrid:
    """P rows and Q columns of devices; neighbours share a row, or a column."""

    rows: int
    columns: int
    neighbours: Literal["row", "column"] = "row"
    """Direction along which ranks are counted."""

    def __str__(self) -> str:
        """Return P x Q and the direction of neighbours."""
        order = "" if min(self.rows, self.columns) == 1 else \
            f", neighbours in {self.neighbours}s"  # fmt: skip
        return f"{self.rows}x{self.columns}{order}"


def held(length: FloatArray, block: int, count: int) -> FloatArray:
    """Return the numbers that the first of ``count`` owners holds of blocks dealt out in turns.

    It has ceil(B / count) of the B blocks, the last of which may be short; no owner has more.
    """
    blocks = ceil_div(length, block)
    is_last = (blocks - 1) % count == 0
    missing = np.where(is_last, blocks * block - length, 0.0)
    return np.where(length > 0, block * ceil_div(blocks, count) - missing, 0.0)


def panel_flops(rows: FloatArray, width: FloatArray) -> FloatArray:
    """Return the work of LU of a panel that holds its diagonal [FLOP].

    Column j divides rows - j - 1 numbers and updates the columns behind it: in all
    m b - b (b + 1) / 2 + (m - b) b (b - 1) + b (b - 1) (2 b - 1) / 3, near b^2 (m - b / 3).
    """
    m, b = rows, width
    return m * b - b * (b + 1) / 2 + (m - b) * b * (b - 1) + b * (b - 1) * (2 * b - 1) / 3


@dataclass(frozen=True)
class Panels:
    """Work of the fullest device of a grid for each panel; columns over the panels."""

    size: int
    block: int
    grid: ProcessGrid

    @cached_property
    def side(self) -> FloatArray:
        """Side of the remaining matrix before each panel [1]."""
        return self.size - self.block * np.arange(-(-self.size // self.block), dtype=float)

    @cached_property
    def width(self) -> FloatArray:
        """Width of each panel; the last may be narrower [1]."""
        return np.minimum(self.side, self.block)

    @cached_property
    def rows(self) -> FloatArray:
        """Rows of the remaining matrix behind each panel, on the device with the most [1]."""
        return held(self.side - self.width, self.block, self.grid.rows)

    @cached_property
    def columns(self) -> FloatArray:
        """Columns of the remaining matrix behind each panel, on the device with the most [1]."""
        return held(self.side - self.width, self.block, self.grid.columns)

    @cached_property
    def panel_rows(self) -> FloatArray:
        """Rows of each panel on the device that holds its diagonal [1]."""
        return held(self.side, self.block, self.grid.rows)

    @property
    def factored_flops(self) -> FloatArray:
        """Work of a panel on the device with most of it [FLOP]: below the diagonal, b^2 a row."""
        whole = panel_flops(self.panel_rows, self.width)
        return whole if self.grid.rows == 1 else np.maximum(whole, self.rows * self.width**2)

    @property
    def factor_words(self) -> FloatArray:
        """Words broadcast along a grid row: the triangle, and the rows below it on a device [1]."""
        return (self.rows + self.width) * self.width

    @property
    def swapped_words(self) -> FloatArray:
        """Words of U on a device: rows that change places, and are then whole on each [1]."""
        return self.width * self.columns

    @property
    def held_words(self) -> float:
        """Words held on the fullest device: the matrix, one panel and its rows of U [1]."""
        side = np.array([float(self.size)])
        rows, columns = (held(side, self.block, n)[0] for n in (self.grid.rows, self.grid.columns))
        buffers = float(self.factor_words[0] + self.swapped_words[0])
        return float(rows * columns) + buffers


def solution_flops(size: int) -> float:
    """Return the work of the factors and of the triangle that is solved last [FLOP].

    2/3 n^3 - n^2 / 2 - n / 6, and n^2.
    """
    return 2.0 / 3.0 * size**3 + size**2 / 2.0 - size / 6.0


@dataclass(frozen=True)
class GridRun(Brief):
    """A run on one grid of processes."""

    DERIVED: ClassVar[Mapping[str, str]] = {"run_s": "run_s"}
    rows: int
    columns: int
    neighbours: Literal["row", "column"]
    """Direction along which ranks are counted."""
    parts_s: Mapping[str, float]
    """Parts of the time of the run [s]."""
    held_bytes: float
    """Memory of the fullest device [bytes]."""

    @property
    def grid(self) -> ProcessGrid:
        """The grid of the run."""
        return ProcessGrid(self.rows, self.columns, self.neighbours)

    @property
    def run_s(self) -> float:
        """Time of the run, all parts summed [s]."""
        return sum(self.parts_s.values())


@dataclass(frozen=True, kw_only=True)
class GridRuns(Shown):
    """Runs of Linpack on grids of processes, the fastest first."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "graph": "graph",
        "size": "size",
        "block": "block",
        "system": "system",
        "fidelity": "fidelity",
        "is_calibrated": "machine.calibration.is_calibrated",
        "num_priced": "num_priced",
        "refused": "refused",
        "lower_bound_s": "lower_bound_s",
        "flops_per_s": "flops_per_s",
        "runs": "runs",
        "version": "version",
        "command": "command",
    }
    size: int
    """Number of equations."""
    block: int
    machine: CalibratedSystem
    fidelity: str = "closed_form"
    num_priced: int
    refused: Mapping[str, int]
    """Grids by the reason why they do not run."""
    lower_bound_s: float
    """Lower bound of the time on any grid, and of any other even division of the work [s]."""
    runs: tuple[GridRun, ...]
    version: str = ""
    command: str = ""

    @property
    def graph(self) -> str:
        """Name of the problem."""
        return f"hpl-{self.size}x{self.block}"

    @property
    def system(self) -> str:
        """Name of the system."""
        return self.machine.spec.name

    @property
    def best(self) -> GridRun:
        """The fastest run."""
        return self.runs[0]

    @property
    def flops_per_s(self) -> float:
        """Rate as Linpack reports it: 2/3 n^3 + 3/2 n^2 over the time [FLOP/s]."""
        return (2.0 / 3.0 * self.size**3 + 1.5 * self.size**2) / self.best.run_s

    def leading(self, count: int) -> GridRuns:
        """Return the answer with the fastest runs alone."""
        return replace(self, runs=self.runs[:count])

    def rows(self) -> Rows:
        """Return the grids, the fastest first."""
        return [scalars(run) for run in self.runs]


def run_on(size: int, block: int, grid: ProcessGrid, system: CalibratedSystem) -> GridRun:
    """Return a run on a grid: the sum over its panels of the work of the fullest device.

    * factor: its work, or the panel read and written once; b columns choose a pivot, each an
      all-reduce of two rows of the panel over the P devices of a column;
    * broadcast: L along the Q devices of a row;
    * swap: outgoing rows are sent, incoming rows are gathered by all P; memory reads and writes
      both;
    * update: U by a triangle, then the product;
    * solve: the triangle once through memory, and for each block of the solution a broadcast
      along a column and a sum along a row.

    Valid for: sums of a panel that are not cut over idle cores.
    """
    panels = Panels(size, block, grid)
    engine = system.engine(_words(size))
    b, rate, memory = panels.width, engine.matmul_flops_per_s, float(engine.memory_bytes_per_s)
    down, along = _links(grid, system)

    def product_s(rows: FloatArray, inner: FloatArray, columns: FloatArray) -> FloatArray:
        return np.asarray(matmul_compute_s(1.0, rows, inner, columns, rate, engine))

    most_rows = np.maximum(panels.panel_rows, panels.rows)
    share = panels.factored_flops / (2.0 * most_rows * b**2)
    factor_s = np.maximum(
        share * product_s(most_rows, b, b), 2.0 * WORD_BYTES * most_rows * b / memory
    )
    pivot_s = b * _times(down, CollectiveKind.ALL_REDUCE, 2.0 * b)
    broadcast_s = _times(along, CollectiveKind.BROADCAST, panels.factor_words)
    swapped = panels.swapped_words
    swap_s = _times(down, CollectiveKind.SEND, swapped * (1.0 - 1.0 / grid.rows))
    swap_s = swap_s + _times(down, CollectiveKind.ALL_GATHER, swapped)
    swap_s = swap_s + 4.0 * WORD_BYTES * swapped / memory
    triangle_s = product_s(b, b, panels.columns) * (b - 1) / (2.0 * b)
    moved = 2.0 * panels.rows * panels.columns + panels.factor_words + swapped
    update_s = np.maximum(product_s(panels.rows, b, panels.columns), WORD_BYTES * moved / memory)
    each_s = _times(down, CollectiveKind.BROADCAST, b) + _times(along, CollectiveKind.ALL_REDUCE, b)
    read_s = WORD_BYTES * most_rows * b / memory
    launches = float(engine.launch_s) * len(b)
    return GridRun(
        grid.rows,
        grid.columns,
        grid.neighbours,
        {
            "factor_s": float(factor_s.sum()) + launches,
            "pivots_s": float(pivot_s.sum()),
            "broadcast_s": float(broadcast_s.sum()),
            "swap_s": float(swap_s.sum()),
            "update_s": float((triangle_s + update_s).sum()) + 2.0 * launches,
            "solve_s": float((each_s + read_s).sum()) + launches,
        },
        WORD_BYTES * panels.held_words,
    )


def least_s(size: int, block: int, system: CalibratedSystem) -> float:
    """Return a bound of all grids [s]: the longer of two, shared by all devices evenly.

    The remaining matrix passes through the memories for each panel; all work is done at the full
    rate.
    """
    engine, devices = system.engine(_words(size)), float(system.spec.num_alive)
    left = Panels(size, block, ProcessGrid(1, 1))
    moved_s = (
        WORD_BYTES
        * float((2.0 * left.rows * left.columns).sum())
        / float(engine.memory_bytes_per_s)
    )
    work_s = (solution_flops(size) - size * size) / float(engine.matmul_flops_per_s)
    return max(moved_s, work_s) / devices


def plan_linpack(
    size: int, block: int, system: CalibratedSystem, wanted: tuple[int, int] | None = None, *,
    command: str = "",
) -> GridRuns:  # fmt: skip
    """Return a run of Linpack on every grid of all devices, or on the one that is wanted.

    Raises
    ------
    SpecError
        Where the grid has another number of devices, or a block is wider than the matrix.
    InfeasibleError
        Where the matrix fits no grid.
    """
    devices = system.spec.num_alive
    shapes = [(n, devices // n) for n in range(1, devices + 1) if devices % n == 0]
    if wanted is not None and wanted not in shapes:
        allowed = ", ".join(f"{p}x{q}" for p, q in shapes)
        message = f"{wanted[0]}x{wanted[1]} does not make up {devices} devices"
        raise SpecError(Fault("--process-grid", message, f"one of {allowed}"))
    if not 1 <= block <= size:
        raise SpecError(Fault("block", f"found {block}", f"from 1 to {size}"))
    grids = [
        ProcessGrid(p, q, neighbours)
        for p, q in ([wanted] if wanted else shapes)
        for neighbours in NEIGHBOURS[: 1 if min(p, q) == 1 else 2]
    ]
    every = [run_on(size, block, grid, system) for grid in grids]
    runs = [run for run in every if run.held_bytes <= system.usable_bytes]
    if not runs:
        needs = min(run.held_bytes for run in every)
        message = f"hpl-{size}x{block} needs {format_bytes(needs)} of a device"
        raise InfeasibleError(
            f"{message}; {system.spec.name} has {format_bytes(system.usable_bytes)}"
        )
    runs.sort(key=lambda run: (run.run_s, run.held_bytes, run.rows))
    bound_s = least_s(size, block, system)
    refused = {"memory": len(every) - len(runs)} if len(runs) < len(every) else {}
    return GridRuns(
        size=size, block=block, machine=system, num_priced=len(runs), refused=refused,
        lower_bound_s=bound_s, runs=tuple(runs), version=version(), command=command,
    )  # fmt: skip


def _links(grid: ProcessGrid, system: CalibratedSystem) -> tuple[Links, Links]:
    """Return the links down a column of the grid and along a row."""
    down, along = (grid.columns, 1) if grid.neighbours == "row" else (1, grid.rows)
    return system.links(down, grid.rows), system.links(along, grid.columns)


def _times(links: Links, kind: CollectiveKind, words: FloatArray) -> FloatArray:
    """Return the seconds of a collective for each panel [s]."""
    return np.array([links.time_s(kind, WORD_BYTES * float(each)) for each in words])


def _words(size: int) -> DataflowGraph:
    """Return the product of the update, which states the type of the numbers."""
    return hpl(size, size, word_bytes=WORD_BYTES)
