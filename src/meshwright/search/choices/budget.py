"""The cheapest choices that fit a memory budget, and a proof of their quality.

Memory gets a price, the dual of the budget: the one at which the best choices on both sides of the
budget have equal cost, until none are cheaper at it. At each price the choices are exact, so the
best dual value is a bound. The choices of both sides are spliced: the first operators as on one
side, the others as on the other. A gap that is left goes to the integer program, if that is small.

Graphs that are too wide for exact choices have bounds instead: the same steps, and a gap.

The integer program has the form that Alpa solves: one 0/1 variable for each choice of a node and
one for each pair of choices of an edge; the rows and columns of an edge sum to the choices of its
ends. Source: Zheng et al. 2022 (Alpa), section 4.2, with the marginal rows of its linearisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, gap_of
from meshwright.search.choices.elimination import MOST_ENTRIES, ChoiceGraph, cheapest

MOST_PRICES = 60
GAP = 1e-9
"""Gap at which the integer program stops."""
KINK = 1e-12
"""Largest share by which choices may lie below a line through two others that is the bound."""
MOST_VARIABLES = 20_000
"""Most variables of an integer program for the rest of a gap."""
PROGRAM_LIMIT_S = 20.0
ROW_SIZE = 1e3
"""Largest entry of the row of the budget: solvers keep it to 1e-6, a share of 1e-9 then."""


@dataclass(frozen=True)
class Chosen:
    """Choices within a budget, and a bound that no choices within it can beat."""

    choices: tuple[int, ...]
    time_s: float
    num_bytes: float
    lower_bound_s: float

    @property
    def gap(self) -> float:
        """Share by which it may lie above the best possible."""
        return gap_of(self.time_s, self.lower_bound_s)


TOLERANCE = 1e-6
"""Gap above which the integer program is asked [1]."""


def cheapest_within(
    graph: ChoiceGraph, budget_bytes: float, *, uses_program: bool = True,
    most_entries: int = MOST_ENTRIES,
) -> Chosen | None:  # fmt: skip
    """Return the cheapest choices within a budget; None where nothing fits.

    Parameters
    ----------
    uses_program
        Whether the integer program may be asked, where it is small enough.
    most_entries
        Entries of a table of elimination, beyond which choices are bounded in place of exact.
    """
    dual = _Dual(graph, budget_bytes, most_entries)
    found = dual.solve()
    num_variables = sum(load.time_s.size for load in (*graph.nodes, *graph.edges.values()))
    if not uses_program or num_variables > MOST_VARIABLES:
        return found
    if (found is None and dual.is_exact) or (found is not None and found.gap <= TOLERANCE):
        return found
    solved = solve_program(graph, budget_bytes, limit_s=PROGRAM_LIMIT_S)
    bound_s = (
        solved.lower_bound_s if found is None else max(found.lower_bound_s, solved.lower_bound_s)
    )
    if solved.choices is not None and (found is None or solved.time_s < found.time_s):
        held = graph.num_bytes(solved.choices)
        found = Chosen(solved.choices, solved.time_s, held, bound_s)
    return found and replace(found, lower_bound_s=min(bound_s, found.time_s))


@dataclass
class _Dual:
    """The price of memory at which the budget is kept."""

    graph: ChoiceGraph
    budget_bytes: float
    most_entries: int
    is_exact: bool = True
    """Whether all choices so far were exact: where they were not, some may fit that were missed."""

    def solve(self) -> Chosen | None:
        """Return the best choices that were found on the way to that price."""
        over = self.at(0.0)
        if over.num_bytes <= self.budget_bytes:
            return replace(over, lower_bound_s=min(over.lower_bound_s, over.time_s))
        lean = self.at(_steep_price(self.graph))
        if lean.num_bytes > self.budget_bytes:
            return None
        return self._between(over, lean)

    def _between(self, over: Chosen, lean: Chosen) -> Chosen:
        """Return the best choices between fast ones that do not fit and lean ones that do."""
        bound_s, best = over.lower_bound_s, lean
        for _ in range(MOST_PRICES):
            price = max((lean.time_s - over.time_s) / (over.num_bytes - lean.num_bytes), 0.0)
            found = self.at(price)
            bound_s = max(bound_s, found.lower_bound_s - price * self.budget_bytes)
            is_kink = found.choices in (over.choices, lean.choices) or (
                found.lower_bound_s >= (over.time_s + price * over.num_bytes) * (1.0 - KINK)
            )
            if found.num_bytes <= self.budget_bytes:
                best = min(best, found, key=lambda chosen: chosen.time_s)
                lean = lean if is_kink else found
            else:
                over = over if is_kink else found
            splices = _splices(self.graph, over, lean, self.budget_bytes)
            best = min(best, *splices, key=lambda chosen: chosen.time_s)
            if is_kink:
                break
        return Chosen(best.choices, best.time_s, best.num_bytes, min(bound_s, best.time_s))

    def at(self, s_per_byte: float) -> Chosen:
        """Return the cheapest choices at a price of memory; the bound is their cost at it."""
        best = cheapest(self.graph, s_per_byte, most_entries=self.most_entries)
        self.is_exact &= best.is_exact
        choices = best.choices if best.is_exact else descend(self.graph, best.choices, s_per_byte)
        time_s, num_bytes = self.graph.time_s(choices), self.graph.num_bytes(choices)
        return Chosen(choices, time_s, num_bytes, best.value_s)


def _steep_price(graph: ChoiceGraph) -> float:
    """Return a price at which memory alone decides [s/byte]."""
    nodes = [(load, len(at)) for load, at in graph.equal_nodes]
    loads = nodes + [(load, at.shape[1]) for load, at in graph.equal_edges]
    whole_s = sum(float(np.ptp(load.time_s)) * number for load, number in loads)
    steps = [np.diff(np.unique(load.num_bytes)) for load, _ in loads]
    least = min((float(s[s > 0].min()) for s in steps if (s > 0).any()), default=1.0)
    return 1.0 + 10.0 * whole_s / max(least, 1.0)


def _splices(graph: ChoiceGraph, over: Chosen, lean: Chosen, budget_bytes: float) -> list[Chosen]:
    """Return the fastest choices within the budget that follow one side up to some operator."""
    found = []
    for first, rest in ((over, lean), (lean, over)):
        times, held = _along_cuts(graph, first.choices, rest.choices)
        fits = np.flatnonzero(held <= budget_bytes)
        if len(fits):
            cut = int(fits[times[fits].argmin()])
            choices = (*first.choices[:cut], *rest.choices[cut:])
            found.append(Chosen(choices, graph.time_s(choices), graph.num_bytes(choices), 0.0))
    return [chosen for chosen in found if chosen.num_bytes <= budget_bytes]


def _along_cuts(
    graph: ChoiceGraph, first: Sequence[int], rest: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Return time and bytes when the operators before each cut follow ``first``, (cuts,)."""
    size = len(graph.nodes) + 1
    one, two = np.asarray(first), np.asarray(rest)
    change, start = np.zeros((2, size)), np.zeros(2)
    for load, at in graph.equal_nodes:
        for row, table in enumerate((load.time_s, load.num_bytes)):
            change[row, at + 1] += table[one[at]] - table[two[at]]
            start[row] += table[two[at]].sum()
    for load, (u, v) in graph.equal_edges:
        for row, table in enumerate((load.time_s, load.num_bytes)):
            before, across = table[two[u], two[v]], table[one[u], two[v]]
            np.add.at(change[row], u + 1, across - before)
            np.add.at(change[row], v + 1, table[one[u], one[v]] - across)
            start[row] += before.sum()
    along = start[:, None] + np.cumsum(change, axis=1)
    return along[0], along[1]


def descend(graph: ChoiceGraph, choices: Sequence[int], s_per_byte: float = 0.0) -> tuple[int, ...]:
    """Return choices that no change of a single node makes cheaper, from some that are given."""
    found = list(choices)
    alone = [load.at_price(s_per_byte) for load in graph.nodes]
    bonds: list[list[tuple[int, FloatArray]]] = [[] for _ in alone]
    for (u, v), load in graph.edges.items():
        priced = load.at_price(s_per_byte)
        bonds[u].append((v, priced.T))
        bonds[v].append((u, priced))
    has_changed = True
    while has_changed:
        has_changed = False
        for node, costs in enumerate(alone):
            total = costs + sum(table[found[other]] for other, table in bonds[node])
            best = int(total.argmin())
            if total[best] < total[found[node]]:
                found[node], has_changed = best, True
    return tuple(found)


@dataclass(frozen=True)
class ProgramResult:
    """Result of the solver, with its proof."""

    choices: tuple[int, ...] | None
    """Choice of each node; None where nothing fits the budget, or none was found in time."""
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
        weight = float(np.abs(held).max(initial=0.0)) / ROW_SIZE or 1.0
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
