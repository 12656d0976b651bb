"""Plans of a dataflow graph for a reader: degrees, time, proof, and each kernel with its layout."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds
from meshwright.dataflow.candidates import GraphPlan
from meshwright.dataflow.machine import Machine
from meshwright.dataflow.plan import GraphPlans
from meshwright.dataflow.record import kernel_records
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.report.screen import counted, memory_lines, time_lines, wrapped

SHOWN_GAP = 0.0005
"""A smaller one would be printed as nothing."""


def plans_lines(
    graph: DataflowGraph, machine: Machine, plans: GraphPlans, *, top: int
) -> Iterator[str]:
    """Yield the best plan in full, and the next ones in short."""
    best, system = plans.best, machine.system
    often = f" x {graph.repeats}" if graph.repeats > 1 else ""
    yield f"{graph.name}{often} on {system.name}: {degrees(best)}"
    yield _speed(best)
    yield from _proof(plans, machine)
    yield ""
    yield from time_lines("one step", best.parts_s, best.step_s)
    if best.sharding is not None:
        sent_s = best.layers * sum(change.cost for change in best.sharding.changes)
        stage, sent = format_seconds(best.stage_s), format_seconds(sent_s)
        yield f"a pass through a stage: {stage}; changes of layout in it: {sent}"
    yield ""
    capacity = system.chip.main_memory.capacity_bytes
    yield from memory_lines({"weights and tensors": best.held_bytes}, best.held_bytes, capacity,
                            system.chip.main_memory.name)  # fmt: skip
    yield ""
    yield from _stages(graph, best) if best.stages else _kernels(graph, best)
    if len(plans.plans) > 1 and top > 1:
        yield ""
        yield f"{'next plans':<24}{'step':>10}{'memory':>12}"
        for plan in plans.plans[1:top]:
            step, held = format_seconds(plan.step_s), format_bytes(plan.held_bytes)
            yield f"  {degrees(plan):<22}{step:>10}{held:>12}"


def degrees(plan: GraphPlan) -> str:
    """Return the degrees of a plan."""
    return f"tp{plan.tp} pp{plan.pp} dp{plan.dp}"


def _speed(plan: GraphPlan) -> str:
    layers = f", {plan.layers} repetitions on a stage" if plan.layers > 1 else ""
    passes = counted(plan.num_passes, "pass", "passes")
    return (
        f"{format_seconds(plan.step_s)} a step of {passes} for each replica, "
        f"{plan.passes_per_s:.4g} passes/s{layers}"
    )


def _proof(plans: GraphPlans, machine: Machine) -> Iterator[str]:
    """Yield how sure it is that nothing is faster."""
    gap = f"at most {plans.gap:.1%} from the best" if plans.gap >= SHOWN_GAP else "proven: gap 0.0%"
    refused = ", ".join(f"{reason} {count}" for reason, count in plans.refused.items())
    every = len(plans.plans) + sum(plans.refused.values())
    counts = f"{len(plans.plans)} of {every} degrees priced"
    counts += f"; refused: {refused}" if refused else ""
    known = "" if machine.calibration.is_calibrated else ", uncalibrated"
    yield from wrapped("", f"fidelity closed_form{known}, {gap} ({counts})")


def _kernels(graph: DataflowGraph, plan: GraphPlan) -> Iterator[str]:
    """Yield a row for each kernel, and one for each collective behind it."""
    records = list(kernel_records(graph, plan))
    width = max(len("kernel"), *(len(record["name"]) for record in records))
    yield f"{'kernel':<{width}}  {'split over':<14} leaves"
    for record in records:
        yield f"{record['name']:<{width}}  {record['split'] or '-':<14} {record['writes']}"
        for sent in record["collectives"]:
            kind, num_bytes = sent["kind"].replace("_", "-"), format_bytes(sent["num_bytes"])
            readers = ", ".join(sent["readers"]) or "other layouts"
            took = format_seconds(sent["time_s"])
            yield from wrapped(f"    {kind} of {num_bytes}, {took}: ", readers)


def _stages(graph: DataflowGraph, plan: GraphPlan) -> Iterator[str]:
    """Yield a row for each stage of a graph that is cut."""
    yield f"{'stage':<7}{'busy':>9}{'sends':>9}  kernels"
    for number, stage in enumerate(plan.stages, start=1):
        names = ", ".join(graph.kernels[kernel].name for kernel in stage.kernels)
        head = f"{number:<7}{format_seconds(stage.busy):>9}{format_seconds(stage.send):>9}  "
        yield from wrapped(head, names)
