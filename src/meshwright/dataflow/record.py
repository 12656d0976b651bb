"""Plans of a dataflow graph as data, in SI units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.dataflow.candidates import GraphPlan
from meshwright.dataflow.changes import payload_bytes
from meshwright.dataflow.machine import Machine
from meshwright.dataflow.plan import GraphPlans
from meshwright.dataflow.sharding import Sharding
from meshwright.dataflow.splits import Layout
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.dataflow.kernel import factors


def plans_record(
    graph: DataflowGraph, machine: Machine, plans: GraphPlans, *, top: int
) -> dict[str, Any]:
    """Return the best plan in full, and the next ones in short."""
    return {
        "graph": graph.name,
        "repeats": graph.repeats,
        "system": machine.system.name,
        "fidelity": "closed_form",
        "is_calibrated": machine.calibration.is_calibrated,
        "lower_bound_s": plans.lower_bound_s,
        "gap": plans.gap,
        "num_priced": len(plans.plans),
        "refused": dict(plans.refused),
        "best": {
            **plan_record(plans.best),
            "kernels": list(kernel_records(graph, plans.best)),
            "stages": [
                {
                    "kernels": [graph.kernels[number].name for number in stage.kernels],
                    "busy_s": stage.busy,
                    "send_s": stage.send,
                }
                for stage in plans.best.stages
            ],
        },
        "others": [plan_record(plan) for plan in plans.plans[1:top]],
    }


def plan_record(plan: GraphPlan) -> dict[str, Any]:
    """Return degrees, seconds and memory of a plan."""
    return {
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.dp,
        "layers_per_stage": plan.layers,
        "num_passes": plan.num_passes,
        "step_s": plan.step_s,
        "passes_per_s": plan.passes_per_s,
        "parts_s": dict(plan.parts_s),
        "stage_s": plan.stage_s,
        "send_s": plan.send_s,
        "held_bytes": plan.held_bytes,
        "lower_bound_s": plan.lower_bound_s,
    }


def kernel_records(graph: DataflowGraph, plan: GraphPlan) -> Iterator[dict[str, Any]]:
    """Yield how each kernel is split, and the collectives behind it."""
    if plan.sharding is None:
        return
    sent: dict[str, list[dict[str, Any]]] = {}
    for placed in plan.sharding.changes:
        kind = placed.change.kind
        if kind is not None:
            sent.setdefault(placed.producer, []).append(
                {
                    "kind": kind.value,
                    "num_bytes": payload_bytes(kind, placed.num_bytes, plan.tp),
                    "time_s": placed.cost,
                    "readers": list(placed.readers),
                }
            )
    for number, kernel in enumerate(graph.kernels):
        split = plan.sharding.splits[number]
        yield {
            "name": kernel.name,
            "split": split.dim,
            "writes": layout_name(plan.sharding, number, split.writes),
            "collectives": sent.get(kernel.name, []),
        }


def layout_name(sharding: Sharding, number: int, layout: Layout) -> str:
    """Return a layout with the name of the dim that it splits."""
    if layout.place is None:
        return str(layout)
    return f"by {factors(sharding.tables.graph.kernels[number].dims[layout.place])[0]}"
