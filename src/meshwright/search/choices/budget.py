"""The cheapest choices that fit a memory budget, and a proof of how good they are.

Memory gets a price, the dual of the budget: the one at which the best choices on both sides of the
budget cost the same, until none are cheaper at it. At each price the choices are exact, so the best
dual value is a bound. What is found on either side is spliced: the first operators as on one side,
the others as on the other. A gap that is left goes to the integer program, if that is small.

Graphs that are too wide for exact choices have bounds in their place: the same steps, and a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.search.choices.descent import descend
from meshwright.search.choices.elimination import MOST_ENTRIES, cheapest
from meshwright.search.choices.graph import ChoiceGraph
from meshwright.search.choices.program import solve_program

MOST_PRICES = 60
KINK = 1e-12
"""Share by which no choices may lie below a line through two others for it to be the bound."""
MOST_VARIABLES = 20_000
"""Variables of an integer program that is asked for the rest of a gap."""
PROGRAM_LIMIT_S = 20.0


@dataclass(frozen=True)
class Chosen:
    """Choices within a budget, and a bound that no choices within it can beat."""

    choices: tuple[int, ...]
    time_s: float
    num_bytes: float
    lower_bound_s: float

    @property
    def gap(self) -> float:
        """How far it may lie above the best possible, as a fraction."""
        if self.time_s <= self.lower_bound_s:
            return 0.0
        return self.time_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0.0 else np.inf


def cheapest_within(
    graph: ChoiceGraph, budget_bytes: float, *, tolerance: float = 1e-6, uses_program: bool = True,
    most_entries: int = MOST_ENTRIES,
) -> Chosen | None:  # fmt: skip
    """Return the cheapest choices within a budget; None where nothing fits.

    Parameters
    ----------
    tolerance
        Gap above which the integer program is asked, where it is small enough.
    uses_program
        Whether it may be asked at all.
    most_entries
        Entries of a table of elimination, beyond which choices are bounded in place of exact.
    """
    dual = _Dual(graph, budget_bytes, most_entries)
    found = dual.solve()
    if not uses_program or num_variables(graph) > MOST_VARIABLES:
        return found
    if found is None:
        return None if dual.is_exact else _from_program(graph, budget_bytes)
    return found if found.gap <= tolerance else _proven(graph, budget_bytes, found)


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
                best = min(best, found, key=_time_s)
                lean = lean if is_kink else found
            else:
                over = over if is_kink else found
            splices = _splices(self.graph, over, lean, self.budget_bytes)
            best = min(best, *splices, key=_time_s)
            if is_kink:
                break
        return Chosen(best.choices, best.time_s, best.num_bytes, min(bound_s, best.time_s))

    def at(self, s_per_byte: float) -> Chosen:
        """Return the cheapest choices at a price of memory; the bound is what they cost at it."""
        best = cheapest(self.graph, s_per_byte, most_entries=self.most_entries)
        self.is_exact &= best.is_exact
        choices = best.choices if best.is_exact else descend(self.graph, best.choices, s_per_byte)
        time_s, num_bytes = self.graph.time_s(choices), self.graph.num_bytes(choices)
        return Chosen(choices, time_s, num_bytes, best.value_s)


def num_variables(graph: ChoiceGraph) -> int:
    """Return the variables of the integer program of a graph."""
    return sum(load.time_s.size for load in (*graph.nodes, *graph.edges.values()))


def _proven(graph: ChoiceGraph, budget_bytes: float, found: Chosen) -> Chosen:
    """Return the better one of what was found and what the integer program finds."""
    solved = solve_program(graph, budget_bytes, limit_s=PROGRAM_LIMIT_S)
    bound_s = max(found.lower_bound_s, solved.lower_bound_s)
    if solved.choices is not None and solved.time_s < found.time_s:
        held = graph.num_bytes(solved.choices)
        found = Chosen(solved.choices, solved.time_s, held, bound_s)
    return replace(found, lower_bound_s=min(bound_s, found.time_s))


def _from_program(graph: ChoiceGraph, budget_bytes: float) -> Chosen | None:
    """Return what the integer program finds alone."""
    solved = solve_program(graph, budget_bytes, limit_s=PROGRAM_LIMIT_S)
    if solved.choices is None:
        return None
    held = graph.num_bytes(solved.choices)
    return Chosen(solved.choices, solved.time_s, held, min(solved.lower_bound_s, solved.time_s))


def _time_s(chosen: Chosen) -> float:
    return chosen.time_s


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
