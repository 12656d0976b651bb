"""The best of many problems, such as all tiles and degrees: pruned by bound, with shared work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusion.bound import bound_s
from meshwright.dataflow.fusion.fusion import fuse
from meshwright.dataflow.fusion.lattice.lattice import limits_of
from meshwright.dataflow.fusion.lattice.windows import Orders, orders_of
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.fusion.result import Fusion

KnownOrders = dict[tuple[object, ...], tuple[Orders, ...]]
"""Orders by the limits that they follow from."""


@dataclass(frozen=True)
class Candidate:
    """A problem, and what a second of it costs: seconds of the whole, repetitions and devices."""

    problem: FusionProblem
    weight: float = 1.0


@dataclass(frozen=True)
class Choice:
    """The best candidate, and what became of all."""

    number: int
    """Among the candidates, in their order."""
    fusion: Fusion
    weighted_s: float
    bound_s: float
    """No candidate is faster; the same as ``weighted_s`` where no graph was too wide."""
    num_fused: int
    num_pruned: int
    """Candidates whose bound was no better than the best."""
    refused: tuple[str, ...]
    """Why others do not fit."""


def best_of(
    candidates: Iterable[Candidate], progress: Callable[[int, int], None] | None = None
) -> Choice:
    """Return the candidate of the least weighted seconds, those of the lowest bound tried first.

    There is at least one candidate. ``progress`` hears how many of them are done.

    Raises
    ------
    InfeasibleError
        When none fits; says why for the first one.
    """
    listed = list(candidates)
    bounds = [entry.weight * bound_s(entry.problem) for entry in listed]
    known: KnownOrders = {}
    best: tuple[float, int, Fusion] | None = None
    least, num_fused, num_pruned = float("inf"), 0, 0
    refused: dict[int, str] = {}
    ordered = sorted(range(len(listed)), key=lambda number: bounds[number])
    for done, number in enumerate(ordered):
        if progress is not None:
            progress(done, len(ordered))
        if best is not None and bounds[number] >= best[0]:
            num_pruned += 1
            continue
        entry = listed[number]
        try:
            fusion = fuse(entry.problem, shared_orders(entry.problem, known))
        except InfeasibleError as error:
            refused[number] = str(error)
            continue
        num_fused += 1
        least = min(least, entry.weight * fusion.bound_s)
        if best is None or entry.weight * fusion.time_s < best[0]:
            best = (entry.weight * fusion.time_s, number, fusion)
    if best is None:
        raise InfeasibleError(_why_none_fits(refused))
    weighted, number, fusion = best
    bound = min(least, weighted)
    return Choice(number, fusion, weighted, bound, num_fused, num_pruned, tuple(refused.values()))


def _why_none_fits(refused: dict[int, str]) -> str:
    """Return why the first candidate does not fit, and how many others do not either."""
    first, others = refused[min(refused)], len(refused) - 1
    return f"{first}; {others} more that were tried do not fit either" if others else first


def shared_orders(problem: FusionProblem, known: KnownOrders) -> tuple[Orders, ...]:
    """Return the orders of a problem, found once for all with the same limits."""
    if problem.runs_by_kernel:
        return ()
    limits = limits_of(problem)
    if limits.key not in known:
        known[limits.key] = orders_of(limits)
    return known[limits.key]
