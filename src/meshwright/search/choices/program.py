"""The same choices as an integer program, in the form that Alpa solves: a baseline and a witness.

One 0/1 variable for each choice of a node and one for each pair of choices of an edge, whose rows
and columns sum to the choices of its ends. Source: Zheng et al. 2022 (Alpa), section 4.2, with the
marginal rows of its linearisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.search.choices.graph import ChoiceGraph

GAP = 1e-9


@dataclass(frozen=True)
class ProgramResult:
    """What the solver found, and what it proved."""

    choices: tuple[int, ...] | None
    """None where nothing fits the budget, or none was found in time."""
    time_s: float
    lower_bound_s: float
    is_proven: bool


def solve_program(
    graph: ChoiceGraph, budget_bytes: float = float("inf"), *, limit_s: float = 60.0
) -> ProgramResult:
    """Return the choices of least time within a memory budget.

    Parameters
    ----------
    limit_s
        Wall-clock time after which the best so far comes back [s].
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    cost, held, rows, sums = _rows(graph)
    scale = max(float(np.abs(cost).max(initial=0.0)), 1e-300)
    limits = [LinearConstraint(rows, sums, sums)]
    if np.isfinite(budget_bytes):
        weight = max(float(np.abs(held).max(initial=0.0)), 1.0)
        limits.append(LinearConstraint(held[None, :] / weight, -np.inf, budget_bytes / weight))
    found = milp(
        cost / scale,
        constraints=limits,
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, 1),
        options={"time_limit": limit_s, "mip_rel_gap": GAP},
    )
    bound = found.get("mip_dual_bound")
    lower_s = -np.inf if bound is None else float(bound) * scale
    if found.x is None:
        return ProgramResult(None, np.inf, lower_s, found.status == 2)
    choices = _choices(graph, found.x)
    return ProgramResult(choices, graph.time_s(choices), lower_s, found.status == 0)


def _rows(graph: ChoiceGraph) -> tuple[FloatArray, FloatArray, object, FloatArray]:
    """Return time and bytes of each variable, and the rows that tie them together."""
    from scipy.sparse import coo_array

    sizes = [len(load.time_s) for load in graph.nodes]
    first = np.concatenate([[0], np.cumsum(sizes)])
    row, column, value = [], [], []
    for node, size in enumerate(sizes):
        row.append(np.full(size, node))
        column.append(first[node] + np.arange(size))
        value.append(np.ones(size))
    num_rows, start = len(sizes), int(first[-1])
    costs = [load.time_s for load in graph.nodes]
    bytes_ = [load.num_bytes for load in graph.nodes]
    for (u, v), load in graph.edges.items():
        pair = start + np.arange(load.time_s.size).reshape(load.time_s.shape)
        for node, lines in ((u, pair), (v, pair.T)):
            for choice, line in enumerate(lines):
                row.append(np.full(len(line) + 1, num_rows))
                column.append(np.append(line, first[node] + choice))
                value.append(np.append(np.ones(len(line)), -1.0))
                num_rows += 1
        start += load.time_s.size
        costs.append(load.time_s.reshape(-1))
        bytes_.append(load.num_bytes.reshape(-1))
    entries = (np.concatenate(value), (np.concatenate(row), np.concatenate(column)))
    sums = np.zeros(num_rows)
    sums[: len(sizes)] = 1.0
    table = coo_array(entries, shape=(num_rows, start)).tocsr()
    return np.concatenate(costs), np.concatenate(bytes_), table, sums


def _choices(graph: ChoiceGraph, values: FloatArray) -> tuple[int, ...]:
    """Return the choice of each node from the variables."""
    choices, start = [], 0
    for load in graph.nodes:
        choices.append(int(values[start : start + len(load.time_s)].argmax()))
        start += len(load.time_s)
    return tuple(choices)
