"""Fusion as an integer program for HiGHS, with the rules of DFModel, to compare with.

Every kernel takes one number of cores in one step. A step holds the kernels of one partition; its
time is at least that of its slowest kernel, of its DRAM traffic and of its partial sums.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from meshwright.dataflow.fusion.problem import FusionProblem

Terms = list[tuple[int, float]]
"""Variables and their factors."""


class FusionProgram:
    """The program of a problem for one micro-batch, in so many steps."""

    def __init__(self, problem: FusionProblem, micro_batch: int, num_steps: int) -> None:
        self.problem, self.micro_batch = problem, micro_batch
        self.steps = range(num_steps)
        self.costs: list[float] = []
        self.upper: list[float] = []
        self.integer: list[bool] = []
        self.rows: list[tuple[Terms, float, float]] = []
        self.time = [self.variable(1.0, np.inf, is_integer=False) for _ in self.steps]
        self.chosen = {
            (kernel, step): [self.variable() for _ in problem.choices[kernel][0]]
            for kernel, step in product(range(problem.num_kernels), self.steps)
        }
        self.moved: Terms = []
        self.order_kernels()
        for step in self.steps:
            self.bound_cores(step)
            self.bound_tensors(step)
        held = [(place, factor * micro_batch) for place, factor in self.moved]
        self.at_most(held, problem.spare_dram_bytes)

    def variable(self, cost: float = 0.0, upper: float = 1.0, *, is_integer: bool = True) -> int:
        """Add a variable and return its place."""
        self.costs.append(cost)
        self.upper.append(upper)
        self.integer.append(is_integer)
        return len(self.costs) - 1

    def at_most(self, terms: Terms, most: float, least: float = -np.inf) -> None:
        """Add a row."""
        self.rows.append((terms, least, most))

    def runs(self, kernel: int, step: int, factor: float = 1.0) -> Terms:
        """Return the terms that are ``factor`` where a kernel runs in a step."""
        return [(place, factor) for place in self.chosen[kernel, step]]

    def order_kernels(self) -> None:
        """Run every kernel once, and not before what it needs."""
        problem = self.problem
        for kernel in range(problem.num_kernels):
            once = [term for step in self.steps for term in self.runs(kernel, step)]
            self.at_most(once, 1.0, least=1.0)
            for other in np.flatnonzero(problem.needs[kernel]).tolist():
                between = [
                    *(term for step in self.steps for term in self.runs(other, step, step)),
                    *(term for step in self.steps for term in self.runs(kernel, step, -step)),
                ]
                is_new_phase = problem.phase[kernel] > problem.phase[other]
                self.at_most(between, -1.0 if is_new_phase else 0.0)

    def bound_cores(self, step: int) -> None:
        """Share out the cores of a step; its time is at least that of computation and network."""
        problem, time = self.problem, (self.time[step], -1.0)
        pace = problem.num_tiles / problem.grid.frequency_hz
        cores: Terms = []
        network: Terms = []
        for kernel in range(problem.num_kernels):
            counts, cycles = problem.choices[kernel]
            places = self.chosen[kernel, step]
            cores += zip(places, counts.tolist(), strict=True)
            self.at_most([*zip(places, (cycles * pace).tolist(), strict=True), time], 0.0)
            network += self.runs(kernel, step, float(problem.network_s[kernel]))
        self.at_most(cores, problem.grid.num_cores)
        self.at_most([*network, time], 0.0)

    def bound_tensors(self, step: int) -> None:
        """Fit the buffers of a step into the SRAM; its time is at least that of its traffic."""
        problem, tensors = self.problem, self.problem.tensors
        sram: Terms = []
        moved: Terms = []
        tables: Terms = []
        for kernel in range(problem.num_kernels):
            sram += self.runs(kernel, step, float(problem.held_bytes[kernel]))
            tables += self.runs(kernel, step, float(problem.looked_up_bytes[kernel]))
        for number, writer in enumerate(tensors.writer.tolist()):
            (reader,) = tensors.readers[number].tolist()
            whole, stays = float(tensors.sequence_bytes[number]), self.variable()
            both = [*self.runs(writer, step), *self.runs(reader, step)]
            for kernel in (writer, reader):
                self.at_most([(stays, 1.0), *self.runs(kernel, step, -1.0)], 0.0)
            self.at_most([*both, (stays, -1.0)], 1.0)
            moved += [*((place, whole) for place, _ in both), (stays, -2.0 * whole)]
            out, back = float(tensors.written_bytes[number]), float(tensors.read_bytes[number, 0])
            sram += [*self.runs(writer, step, out), *self.runs(reader, step, back)]
            sram.append((stays, float(tensors.inside_bytes[number, 0]) - out - back))
        self.at_most(sram, problem.grid.sram_bytes)
        rate = problem.grid.dram_bytes_per_s
        traffic = [(place, factor / rate) for place, factor in [*moved, *tables]]
        self.at_most([*traffic, (self.time[step], -1.0)], 0.0)
        self.moved += moved

    def solve(self, *, gap: float = 1e-9) -> float:
        """Return the seconds of a sequence, infinite where nothing fits."""
        entries = [
            (row, place, factor)
            for row, (terms, _, _) in enumerate(self.rows)
            for place, factor in terms
        ]
        rows, places, factors = zip(*entries, strict=True)
        shape = (len(self.rows), len(self.costs))
        matrix = csr_array((factors, (rows, places)), shape=shape)
        least, most = (np.array([row[side] for row in self.rows]) for side in (1, 2))
        found = milp(
            np.array(self.costs),
            constraints=LinearConstraint(matrix, least, most),
            bounds=Bounds(np.zeros(len(self.costs)), np.array(self.upper)),
            integrality=np.array(self.integer),
            options={"mip_rel_gap": gap},
        )
        if found.status != 0:
            return np.inf
        return max(found.fun + self.problem.total_setup_s / self.micro_batch, self.problem.send_s)
