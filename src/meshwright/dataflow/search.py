"""The best degrees for a graph on a system: devices that share kernels, stages, and replicas.

Every way to write the devices as ``tp x pp x dp`` is priced with its best sharding, or refused for
a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from math import inf

from meshwright.audit.laws import lawful
from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.base.units import time_told
from meshwright.catalog.calibration import DEFAULT, load_calibration
from meshwright.catalog.systems import load_system, refuse_mixed_chips, refuse_single_links
from meshwright.catalog.workloads import default_optimizer, load_optimizer
from meshwright.dataflow.answer import SLOWER, GraphPlans, RefusedDegrees, SplitPlan
from meshwright.dataflow.audited import plan_facts
from meshwright.dataflow.degrees import DegreePricing
from meshwright.dataflow.energy import traffic
from meshwright.dataflow.fusion.fuse import fused_stage_time
from meshwright.dataflow.roofline import CalibratedSystem
from meshwright.dataflow.sharding import PROVEN
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.sharding.space import factorizations
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import OptimizerPreset

AXES = ("tp", "pp", "dp")
Degrees = tuple[int, int, int]
Priced = dict[Degrees, SplitPlan | RefusedDegrees]
Progress = Callable[[int, int], None]
"""Called with the number done, and the number of all."""


def optimizer_of(
    graph: DataflowGraph, system: CalibratedSystem, optimizer: str | None
) -> OptimizerPreset | None:
    """Return the optimizer by which parameters are priced; None for a graph without gradients."""
    if not graph.trains:
        return None
    return load_optimizer(optimizer) if optimizer else default_optimizer(system.spec)


def plan_graph(
    pricing: DegreePricing,
    *,
    allowed: Mapping[str, Collection[int]] | None = None,
    progress: Progress | None = None,
) -> GraphPlans:
    """Return the plans of a graph on all devices of a system, the fastest first.

    For the parameters and errors see :func:`plan_dataflow`.
    """
    _check(pricing)
    limits = [None if allowed is None else allowed.get(axis) for axis in AXES]
    degrees = [
        (int(tp), int(pp), int(dp))
        for tp, pp, dp in factorizations(pricing.system.spec.num_alive, 3)
        if all(limit is None or n in limit for limit, n in zip(limits, (tp, pp, dp), strict=True))
    ]
    priced = _first_prices(pricing, degrees, progress)
    if pricing.closes_gaps:
        _close_gaps(pricing, priced)
    return _ordered(pricing, priced)


def _ordered(pricing: DegreePricing, priced: Priced) -> GraphPlans:
    """Return the plans among the priced degrees, the fastest first, and the bound of all."""
    plans = [plan for plan in priced.values() if isinstance(plan, SplitPlan)]
    refused = Counter(plan.reason for plan in priced.values() if isinstance(plan, RefusedDegrees))
    if not plans:
        raise InfeasibleError(_why_nothing_fits(pricing, refused))
    ordered = sorted(plans, key=lambda p: (p.step_s, p.held_bytes, p.batch_parts, p.degrees))
    time_told("a step", ordered[0].step_s, ordered[0].parts_s)
    bound_s = min(plan.lower_bound_s for plan in priced.values())
    moved = traffic(pricing.graph, pricing.system, ordered[0], pricing.optimizer)
    return GraphPlans(tuple(ordered), dict(refused), min(bound_s, ordered[0].step_s), moved)


def _first_prices(
    pricing: DegreePricing, degrees: list[Degrees], progress: Progress | None
) -> Priced:
    """Return plans that may still be improved, graphs that are cut between repetitions first."""
    priced: Priced = {}
    bounds = {
        each: pricing.repeated_least_s(*each) if pricing.only_best else 0.0 for each in degrees
    }
    ordered = sorted(degrees, key=lambda each: (not pricing.is_repeated(each[1]), bounds[each]))
    for done, each in enumerate(ordered):
        if progress is not None:
            progress(done, len(ordered))
        best_s = _best_s(priced)
        if bounds[each] >= best_s:
            priced[each] = RefusedDegrees(SLOWER, bounds[each])
        else:
            priced[each] = pricing.priced(*each, is_final=False, enough_s=best_s)
    return priced


def _close_gaps(pricing: DegreePricing, priced: Priced) -> None:
    """Look closely at all degrees that may hold a better plan than the best one so far."""
    closed: set[Degrees] = set()
    while open_ := [
        (plan.lower_bound_s, degrees)
        for degrees, plan in priced.items()
        if isinstance(plan, SplitPlan)
        and degrees not in closed
        and plan.lower_bound_s < min(_best_s(priced), plan.step_s * (1.0 - PROVEN))
    ]:
        degrees = min(open_)[1]
        priced[degrees] = pricing.priced(*degrees)
        closed.add(degrees)


def _best_s(priced: Priced) -> float:
    return min((p.step_s for p in priced.values() if isinstance(p, SplitPlan)), default=inf)


def _why_nothing_fits(pricing: DegreePricing, refused: Counter[str]) -> str:
    graph, system = pricing.graph.name, pricing.system.spec
    if not refused:
        devices = f"no allowed tp x pp x dp makes up {system.num_alive} devices"
        return f"{graph} on {system.name}: {devices}"
    reasons = ", ".join(f"{reason}: {count}" for reason, count in refused.most_common())
    return f"{graph} fits {system.name} in no way ({reasons})"


def _check(pricing: DegreePricing) -> None:
    graph, faults = pricing.graph, []
    if pricing.num_passes < 1:
        faults.append(Fault("num_passes", f"found {pricing.num_passes}", "at least 1"))
    if graph.trains and pricing.optimizer is None:
        faults.append(Fault("optimizer", "missing, but the graph makes gradients of weights"))
    if faults:
        raise SpecError(faults, origin=graph.name)


def calibrated_system(system: SystemSpec | str, calibration: str = DEFAULT) -> CalibratedSystem:
    """Return a system with its constants, by name or file."""
    spec = load_system(system) if isinstance(system, str) else system
    refuse_mixed_chips(spec)
    refuse_single_links(spec, "a graph")
    return CalibratedSystem(spec, load_calibration(spec.chip.family, calibration))


def plan_dataflow(
    graph: DataflowGraph,
    system: CalibratedSystem,
    *,
    num_passes: int = 1,
    optimizer: str | None = None,
    hides_network: bool = False,
    allowed: Mapping[str, Collection[int]] | None = None,
    only_best: bool = False,
    progress: Progress | None = None,
) -> GraphPlans:
    """Return the plans of a graph on all devices of a system, the fastest first.

    Parameters
    ----------
    num_passes
        Passes through the graph in one step, over all replicas.
    optimizer
        A preset of the catalog; where the graph trains, None means that of the system.
    hides_network
        Whether collectives overlap the computation of other inputs. On a chip that states an
        array of multiply-adds they always do: its kernels are fused.
    allowed
        Values of ``tp``, ``pp`` and ``dp``, where they are limited.
    only_best
        Whether degrees that a bound shows to be slower are left out, which is faster.
    progress
        Called with the number of degrees done, and the number of all.

    Raises
    ------
    SpecError
        With all faults of the question.
    InfeasibleError
        Where nothing fits.
    """
    if optimizer is not None and not graph.trains:
        message = f"{graph.name} makes no gradients of weights"
        raise SpecError(Fault("--optimizer", message, "with --training it does"))
    fused = fused_stage_time(system)
    pricing = DegreePricing(
        graph, system, num_passes, optimizer_of(graph, system, optimizer),
        hides_network=hides_network or fused is not None, stage_time=fused, only_best=only_best,
    )  # fmt: skip
    plans = plan_graph(pricing, allowed=allowed, progress=progress)
    facts = plan_facts(
        graph, system, plans, num_passes=num_passes, optimizer=pricing.optimizer,
        runs_by_kernel=fused is None,
    )  # fmt: skip
    return lawful(plans, facts)
