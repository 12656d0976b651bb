"""The best degrees for a graph on a system: devices that share kernels, stages, and replicas.

Every way to write the devices as ``tp x pp x dp`` is priced or refused for a reason. Devices of a
group for ``tp`` are neighbours; those of ``dp`` come next, those of ``pp`` are farthest apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.dataflow.candidates import SLOWER, Candidates, GraphPlan, Refusal
from meshwright.dataflow.machine import Machine
from meshwright.dataflow.work import StageTime
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.op import Phase
from meshwright.sharding.space import factorizations
from meshwright.spec.workload import OptimizerPreset

Degrees = tuple[int, int, int]
Progress = Callable[[int, int], None]
"""Hears how many are done, and of how many."""
PROVEN = 1e-6
"""Gap at which nothing more is tried."""


@dataclass(frozen=True)
class GraphPlans:
    """Plans in the order of their time, how the space was covered, and a bound for all of it."""

    plans: tuple[GraphPlan, ...]
    refused: Mapping[str, int]
    """Degrees by the reason why they have no plan."""
    lower_bound_s: float
    """No plan of the space takes less [s]."""

    @property
    def best(self) -> GraphPlan:
        """The fastest plan."""
        return self.plans[0]

    @property
    def gap(self) -> float:
        """How far the best plan may lie above the best possible, as a fraction."""
        if self.best.step_s <= self.lower_bound_s:
            return 0.0
        return self.best.step_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0.0 else inf


def plan_graph(
    graph: DataflowGraph,
    machine: Machine,
    *,
    num_passes: int = 1,
    optimizer: OptimizerPreset | None = None,
    hides_network: bool = False,
    stage_time: StageTime | None = None,
    is_allowed: Callable[[int, int, int], bool] = lambda tp, pp, dp: True,
    only_best: bool = False,
    progress: Progress | None = None,
) -> GraphPlans:
    """Return the plans of a graph on all devices of a system, the fastest first.

    Parameters
    ----------
    num_passes
        Passes of one step over all replicas: samples, where the graph is one sample.
    optimizer
        What a parameter takes in training; asked for where the graph makes gradients of weights.
    hides_network
        Whether collectives run beside the computation of other inputs, as on chips through which
        tiles flow; else one waits for the other.
    stage_time
        Prices a stage once its kernels are split, in place of the roofline: fusion on a chip.
    is_allowed
        Whether degrees (tp, pp, dp) are looked at.
    only_best
        Whether degrees that a bound shows to be slower are left out, and a gap that a limit on
        memory leaves stays open where ``stage_time`` prices stages: for many questions.
    progress
        Hears of the degrees.

    Raises
    ------
    SpecError
        For what cannot be asked: no passes, training without an optimizer.
    InfeasibleError
        Where nothing fits; counts the reasons.
    """
    _check(graph, num_passes, optimizer)
    candidates = Candidates(
        graph, machine, num_passes, optimizer, hides_network, stage_time, only_best
    )
    every = factorizations(machine.system.num_alive, 3)
    degrees = [(int(a), int(b), int(c)) for a, b, c in every if is_allowed(a, b, c)]
    priced = _first_prices(candidates, degrees, progress)
    if stage_time is None or not only_best:
        _close_gaps(candidates, priced)
    return _ordered(candidates, priced)


def _ordered(candidates: Candidates, priced: Mapping[Degrees, GraphPlan | Refusal]) -> GraphPlans:
    """Return the plans among what was priced, the fastest first, and the bound of all."""
    plans = [plan for plan in priced.values() if isinstance(plan, GraphPlan)]
    refused = Counter(plan.reason for plan in priced.values() if isinstance(plan, Refusal))
    if not plans:
        raise InfeasibleError(_why_nothing_fits(candidates.graph, candidates.machine, refused))
    ordered = sorted(plans, key=lambda plan: (plan.step_s, plan.held_bytes, plan.degrees))
    bound_s = min(plan.lower_bound_s for plan in priced.values())
    return GraphPlans(tuple(ordered), dict(refused), min(bound_s, ordered[0].step_s))


def _first_prices(
    candidates: Candidates, degrees: list[Degrees], progress: Progress | None
) -> dict[Degrees, GraphPlan | Refusal]:
    """Return plans that may still be improved, graphs that are cut between repetitions first."""
    priced: dict[Degrees, GraphPlan | Refusal] = {}
    bounds = {
        each: candidates.repeated_least_s(*each) if candidates.only_best else 0.0
        for each in degrees
    }
    ordered = sorted(degrees, key=lambda each: (not candidates.is_repeated(each[1]), bounds[each]))
    for done, each in enumerate(ordered):
        if progress is not None:
            progress(done, len(ordered))
        best_s = _best_s(priced)
        if bounds[each] >= best_s:
            priced[each] = Refusal(SLOWER, bounds[each])
            continue
        priced[each] = candidates.priced(*each, is_final=False, enough_s=best_s)
    return priced


def _close_gaps(candidates: Candidates, priced: dict[Degrees, GraphPlan | Refusal]) -> None:
    """Look closely at all degrees that may hold a better plan than the best one so far."""
    closed: set[Degrees] = set()
    while True:
        open_ = [
            (plan.lower_bound_s, degrees)
            for degrees, plan in priced.items()
            if isinstance(plan, GraphPlan)
            and degrees not in closed
            and plan.lower_bound_s < min(_best_s(priced), plan.step_s * (1.0 - PROVEN))
        ]
        if not open_:
            return
        degrees = min(open_)[1]
        priced[degrees] = candidates.priced(*degrees)
        closed.add(degrees)


def _best_s(priced: Mapping[Degrees, GraphPlan | Refusal]) -> float:
    found = (plan.step_s for plan in priced.values() if isinstance(plan, GraphPlan))
    return min(found, default=inf)


def _why_nothing_fits(graph: DataflowGraph, machine: Machine, refused: Counter[str]) -> str:
    if not refused:
        devices = f"no allowed tp x pp x dp makes up {machine.system.num_alive} devices"
        return f"{graph.name} on {machine.system.name}: {devices}"
    reasons = ", ".join(f"{reason}: {count}" for reason, count in refused.most_common())
    return f"{graph.name} fits {machine.system.name} in no way ({reasons})"


def _check(graph: DataflowGraph, num_passes: int, optimizer: OptimizerPreset | None) -> None:
    faults = []
    if num_passes < 1:
        faults.append(Fault("num_passes", f"found {num_passes}", "at least 1"))
    trains = any(kernel.phase is Phase.WEIGHT_GRADIENT for kernel in graph.kernels)
    if trains and optimizer is None:
        faults.append(Fault("optimizer", "missing, but the graph makes gradients of weights"))
    if faults:
        raise SpecError(faults, origin=graph.name)
