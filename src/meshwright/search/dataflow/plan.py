"""The best degrees for a graph on a system: devices that share kernels, stages, and replicas.

Every way to write the devices as ``tp x pp x dp`` is priced or refused for a reason. Devices of a
group for ``tp`` are neighbours; those of ``dp`` come next, those of ``pp`` are farthest apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.base.errors import Fault, InfeasibleError, SpecError, UnsupportedError
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.op import Phase
from meshwright.pricing.dataflow.machine import Machine
from meshwright.search.dataflow.candidates import Candidates, GraphPlan, Refusal
from meshwright.search.dataflow.work import StageTime
from meshwright.spec.workload import OptimizerPreset
from meshwright.strategy.space import factorizations


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
        return max(self.best.step_s / self.lower_bound_s - 1.0, 0.0)


def plan_graph(
    graph: DataflowGraph,
    machine: Machine,
    *,
    num_passes: int = 1,
    optimizer: OptimizerPreset | None = None,
    hides_network: bool = False,
    stage_time: StageTime | None = None,
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

    Raises
    ------
    SpecError
        For what cannot be asked: no passes, training without an optimizer.
    InfeasibleError
        Where nothing fits; counts the reasons.
    """
    _check(graph, num_passes, optimizer)
    candidates = Candidates(graph, machine, num_passes, optimizer, hides_network, stage_time)
    plans: list[GraphPlan] = []
    refused: Counter[str] = Counter()
    bounds: list[float] = []
    for tp, pp, dp in factorizations(machine.system.num_alive, 3).tolist():
        try:
            plan = candidates.priced(int(tp), int(pp), int(dp))
        except UnsupportedError as error:
            plan = Refusal(str(error), 0.0)
        if isinstance(plan, Refusal):
            refused[plan.reason] += 1
        else:
            plans.append(plan)
        bounds.append(plan.lower_bound_s)
    if not plans:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in refused.most_common())
        raise InfeasibleError(f"{graph.name} fits {machine.system.name} in no way ({reasons})")
    ordered = sorted(plans, key=lambda plan: (plan.step_s, plan.held_bytes, plan.degrees))
    return GraphPlans(tuple(ordered), dict(refused), min(min(bounds), ordered[0].step_s))


def _check(graph: DataflowGraph, num_passes: int, optimizer: OptimizerPreset | None) -> None:
    faults = []
    if num_passes < 1:
        faults.append(Fault("num_passes", f"found {num_passes}", "at least 1"))
    trains = any(kernel.phase is Phase.WEIGHT_GRADIENT for kernel in graph.kernels)
    if trains and optimizer is None:
        faults.append(Fault("optimizer", "missing, but the graph makes gradients of weights"))
    if faults:
        raise SpecError(faults, origin=graph.name)
