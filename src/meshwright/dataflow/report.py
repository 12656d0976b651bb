"""Plans of a graph on the screen: degrees, time, proof, and each kernel with its layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.dataflow.answer import GraphPlan, GraphPlans, kernel_records
from meshwright.dataflow.roofline import CalibratedSystem
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.view.screen import memory_lines, time_lines, wrapped
from meshwright.view.words import counted

SHOWN_GAP = 0.0005
"""A smaller one would be printed as nothing."""


def plans_lines(
    graph: DataflowGraph,
    system: CalibratedSystem,
    plans: GraphPlans,
    power_w: Mapping[str, float | None],
    *,
    top: int,
) -> Iterator[str]:
    """Yield the best plan in full, and the next ones in short."""
    best, spec = plans.best, system.spec
    often = f" x {graph.repeats}" if graph.repeats > 1 else ""
    yield f"{graph.name}{often} on {spec.name}: {degrees(best)}"
    yield _speed(best)
    yield from _proof(plans, system)
    yield ""
    yield from time_lines("one step", best.parts_s, best.step_s)
    if best.sharding is not None:
        sent_s = best.layers * sum(change.cost for change in best.sharding.changes)
        stage, sent = format_seconds(best.stage_s), format_seconds(sent_s)
        yield f"a pass through a stage: {stage}; changes of layout in it: {sent}"
    yield ""
    capacity = spec.chip.main_memory.capacity_bytes
    yield from memory_lines({"weights and tensors": best.held_bytes}, best.held_bytes, capacity,
                            spec.chip.main_memory.name)  # fmt: skip
    known = {name.removesuffix("_w"): part for name, part in power_w.items() if part is not None}
    if known:
        drawn = ", ".join(f"{name} {format_si(part, 'W')}" for name, part in known.items())
        yield f"mean power: {drawn}"
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


def _proof(plans: GraphPlans, system: CalibratedSystem) -> Iterator[str]:
    """Yield the proof that nothing is faster."""
    gap = f"at most {plans.gap:.1%} from the best" if plans.gap >= SHOWN_GAP else "proven: gap 0.0%"
    refused = ", ".join(f"{reason} {count}" for reason, count in plans.refused.items())
    every = len(plans.plans) + sum(plans.refused.values())
    counts = f"{len(plans.plans)} of {every} degrees priced"
    counts += f"; refused: {refused}" if refused else ""
    known = "" if system.calibration.is_calibrated else ", uncalibrated"
    yield from wrapped("", f"fidelity closed_form{known}, {gap} ({counts})")


def _kernels(graph: DataflowGraph, plan: GraphPlan) -> Iterator[str]:
    """Yield a row for each kernel, and one for each collective behind it."""
    records = list(kernel_records(graph, plan))
    width = max(len("kernel"), *(len(record["name"]) for record in records))
    yield f"{'kernel':<{width}}  {'time':>9}  {'split over':<14} writes"
    for record in records:
        out = f", leaves {record['leaves']}" if record["leaves"] else ""
        maker, took = record["fused_with"], format_seconds(record["time_s"])
        head = f"{record['name']:<{width}}  {f'+{took}' if maker else took:>9}"
        within = f", in the launch of {maker}" if maker else ""
        yield f"{head}  {record['split'] or '-':<14} {record['writes']}{out}{within}"
        for sent in record["collectives"]:
            kind, num_bytes = sent["kind"].replace("_", "-"), format_bytes(sent["num_bytes"])
            outside = ["the outside"] if sent["leaves"] else []
            readers = ", ".join([*sent["readers"], *outside]) or "other layouts"
            took = format_seconds(sent["time_s"])
            yield from wrapped(f"    {kind} of {num_bytes}, {took}: ", readers)


def _stages(graph: DataflowGraph, plan: GraphPlan) -> Iterator[str]:
    """Yield a row for each stage of a graph that is cut."""
    yield f"{'stage':<7}{'busy':>9}{'sends':>9}  kernels"
    for number, stage in enumerate(plan.stages, start=1):
        names = ", ".join(graph.kernels[kernel].name for kernel in stage.kernels)
        head = f"{number:<7}{format_seconds(stage.busy):>9}{format_seconds(stage.send):>9}  "
        yield from wrapped(head, names)
