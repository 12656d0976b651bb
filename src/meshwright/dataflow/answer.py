"""The answer for a graph on a system: plans, refusals, the bound, and all of it as data (SI)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from meshwright.base.records import Brief, Rows, Shown
from meshwright.base.units import format_bytes, format_seconds
from meshwright.dataflow.layouts import TensorLayout, payload_bytes
from meshwright.dataflow.roofline import CalibratedSystem, fused_edges
from meshwright.dataflow.sharding import GraphSharding
from meshwright.dataflow.stages import Stage
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, factors
from meshwright.view.notebook import figure
from meshwright.view.words import counted

if TYPE_CHECKING:
    from meshwright.view.notebook import AltairChart
    from meshwright.view.parts import Page

SLOWER = "slower by its bound"


@dataclass(frozen=True)
class RefusedDegrees(Brief):
    """Degrees without a plan."""

    reason: str
    lower_bound_s: float = inf
    """Lower bound of the step of a plan that was not found but may exist [s]."""


@dataclass(frozen=True)
class GraphPlan(Brief):
    """Degrees, splits of the kernels, and the time of a step."""

    tp: int
    pp: int
    dp: int
    layers: int
    """Repetitions of the graph on the fullest stage; 1 where the graph itself is cut."""
    sharding: GraphSharding | None
    """Splits of one repetition; None where the graph is cut."""
    stages: tuple[Stage, ...]
    """Stages of the graph, where the graph itself is cut."""
    num_passes: int
    """Passes of each replica in a step."""
    stage_s: float
    """Time of one pass through the slowest stage [s]."""
    send_s: float
    """Time to send a pass to the next stage, overlapped with the rest [s]."""
    bubble_s: float
    """Time to fill and drain the stages: one pass through all the others [s]."""
    gradient_s: float
    """Time of the gradient sums over replicas, once a step [s]."""
    update_s: float
    """Time of the update of the weights, once a step [s]."""
    held_bytes: float
    """Memory of the fullest device [bytes]."""
    lower_bound_s: float
    """Lower bound of the step of any plan of these degrees [s]."""

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Devices that share kernels, stages, replicas."""
        return self.tp, self.pp, self.dp

    @property
    def pass_s(self) -> float:
        """Time between two passes [s]."""
        return max(self.stage_s, self.send_s)

    @property
    def step_s(self) -> float:
        """Time of a step, all parts summed [s]."""
        return sum(self.parts_s.values())

    @property
    def parts_s(self) -> Mapping[str, float]:
        """Parts of the time of a step; they sum to it [s]."""
        return {
            "passes_s": self.num_passes * self.pass_s,
            "bubble_s": self.bubble_s,
            "gradient_sums_s": self.gradient_s,
            "update_s": self.update_s,
        }

    @property
    def passes_per_s(self) -> float:
        """Passes per second over all replicas [1/s]."""
        return self.num_passes * self.dp / self.step_s

    def brief(self) -> str:
        """Return degrees, time and memory."""
        return (
            f"tp{self.tp} pp{self.pp} dp{self.dp}: {format_seconds(self.step_s)} a step, "
            f"{format_bytes(self.held_bytes)} on the fullest device"
        )


@dataclass(frozen=True)
class Traffic(Brief):
    """Traffic of all devices together in one step."""

    memory_bytes: float
    """Traffic in and out of the main memories [bytes]."""
    link_bytes: float
    """Traffic between devices [bytes]."""


@dataclass(frozen=True)
class GraphPlans(Brief):
    """Plans in the order of their time, the coverage of the space, and a bound for all of it."""

    plans: tuple[GraphPlan, ...]
    refused: Mapping[str, int]
    """Degrees by the reason why they have no plan."""
    lower_bound_s: float
    """Lower bound of the step over the whole space [s]."""
    moved: Traffic
    """Traffic of the fastest plan."""

    @property
    def best(self) -> GraphPlan:
        """The fastest plan."""
        return self.plans[0]

    @property
    def gap(self) -> float:
        """Largest possible distance of the best plan from the optimum, as a fraction."""
        if self.best.step_s <= self.lower_bound_s:
            return 0.0
        return self.best.step_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0.0 else inf

    def brief(self) -> str:
        """Return the number of plans, and the fastest."""
        return f"{counted(len(self.plans), 'plan')}, gap {self.gap:.1%}; {self.best.brief()}"


@dataclass(frozen=True)
class GraphAnswer(Shown):
    """Plans of a computation that is no transformer, with the question."""

    graph: DataflowGraph
    machine: CalibratedSystem
    plans: GraphPlans
    power_w: Mapping[str, float | None]
    """Power of chips, memory and links under the best plan; None: not known [W]."""
    version: str = ""
    command: str = ""

    def page(self) -> Page:
        """Return the report as data."""
        from meshwright.dataflow.page import graph_page

        return graph_page(self)

    def brief(self) -> str:
        """Return the fastest plan, and its proof."""
        often = f" x {self.graph.repeats}" if self.graph.repeats > 1 else ""
        return (
            f"{self.graph.name}{often} on {self.machine.spec.name}\n{self.plans.best.brief()}\n"
            f"{counted(len(self.plans.plans), 'plan')} priced, gap {self.plans.gap:.1%}"
        )

    def rows(self) -> Rows:
        """Return the plans, the fastest first."""
        rows = [plan_record(plan) for plan in self.plans.plans]
        return [{name: value for name, value in row.items() if isinstance(value, int | float)}
                for row in rows]  # fmt: skip

    def plot_time(self) -> AltairChart:
        """Draw the parts of a step [s]."""
        from meshwright.dataflow.page import time_of

        return figure(time_of(self))

    def plot_memory(self) -> AltairChart:
        """Draw the memory of the fullest device by part, against its capacity [GiB]."""
        from meshwright.dataflow.page import memory_of

        return figure(memory_of(self.machine, self.plans.best.held_bytes))

    def plot_kernels(self) -> AltairChart:
        """Draw the time of each kernel in one pass [s]."""
        from meshwright.dataflow.page import kernels_of

        return figure(kernels_of(self), "the graph is cut into stages: plot_stages()")

    def plot_stages(self) -> AltairChart:
        """Draw the time of each stage in one pass [s]."""
        from meshwright.dataflow.page import stages_of

        return figure(stages_of(self), "the graph is not cut into stages: plot_kernels()")

    def plot_ranking(self) -> AltairChart:
        """Draw the step of the leading degrees in its parts [s]."""
        from meshwright.dataflow.page import ranking_of

        return figure(ranking_of(self), "only one plan fits")

    def plot_power(self) -> AltairChart:
        """Draw the mean power of chips, memory and links over a step [W]."""
        from meshwright.dataflow.page import power_of

        return figure(power_of(self), f"power of {self.machine.spec.chip.name} is not known")


class DegreesRecord(TypedDict):
    """Degrees, seconds and memory of a plan of a graph."""

    layers_per_stage: int
    tp: int
    pp: int
    dp: int
    num_passes: int
    step_s: float
    passes_per_s: float
    parts_s: Mapping[str, float]
    """Parts of the time of a step; they sum to ``step_s``."""
    stage_s: float
    send_s: float
    held_bytes: float
    lower_bound_s: float
    """Lower bound of the step of any plan of these degrees."""


class CollectiveRecord(TypedDict):
    """A collective behind a kernel."""

    kind: str
    num_bytes: float
    time_s: float
    readers: Sequence[str]
    """Kernels that need the output of the collective."""
    leaves: bool
    """Whether the output leaves the graph."""


class SplitKernelRecord(TypedDict):
    """Time and split of a kernel."""

    name: str
    time_s: float
    """Time of its own launch, or time that it adds to the kernel that it is fused with."""
    fused_with: str | None
    """Kernel with the launch in which this one runs; the result of that kernel never leaves the
    chip."""
    split: str | None
    """The dim that is split."""
    writes: str
    leaves: str | None
    """Layout in which the output leaves the graph."""
    collectives: Sequence[CollectiveRecord]


class StageRecord(TypedDict):
    """Kernels of one stage of a graph that is cut."""

    kernels: Sequence[str]
    busy_s: float
    send_s: float


class BestGraphPlanRecord(DegreesRecord):
    """The best plan of a graph in full."""

    moved: Traffic
    power_w: Mapping[str, float | None]
    """Power of chips, memory and links."""
    kernels: Sequence[SplitKernelRecord]
    stages: Sequence[StageRecord]


class GraphPlansRecord(TypedDict):
    """The best plan of a graph in full, and the next ones in short."""

    graph: str
    repeats: int
    system: str
    fidelity: str
    is_calibrated: bool
    lower_bound_s: float
    """Lower bound of the step over the whole space."""
    gap: float
    num_priced: int
    refused: Mapping[str, int]
    """Degrees by the reason why they have no plan."""
    best: BestGraphPlanRecord
    others: Sequence[DegreesRecord]


def plans_record(
    graph: DataflowGraph,
    system: CalibratedSystem,
    plans: GraphPlans,
    power_w: Mapping[str, float | None],
    *,
    top: int,
) -> GraphPlansRecord:
    """Return the best plan in full, and the next ones in short."""
    return {
        "graph": graph.name,
        "repeats": graph.repeats,
        "system": system.spec.name,
        "fidelity": "closed_form",
        "is_calibrated": system.calibration.is_calibrated,
        "lower_bound_s": plans.lower_bound_s,
        "gap": plans.gap,
        "num_priced": len(plans.plans),
        "refused": plans.refused,
        "best": {
            **plan_record(plans.best),
            "moved": plans.moved,
            "power_w": power_w,
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


def plan_record(plan: GraphPlan) -> DegreesRecord:
    """Return degrees, seconds and memory of a plan."""
    return {
        "layers_per_stage": plan.layers,
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.dp,
        "num_passes": plan.num_passes,
        "step_s": plan.step_s,
        "passes_per_s": plan.passes_per_s,
        "parts_s": plan.parts_s,
        "stage_s": plan.stage_s,
        "send_s": plan.send_s,
        "held_bytes": plan.held_bytes,
        "lower_bound_s": plan.lower_bound_s,
    }


def kernel_records(graph: DataflowGraph, plan: GraphPlan) -> Iterator[SplitKernelRecord]:
    """Yield the time of each kernel, its split, and the collectives behind it."""
    if plan.sharding is None:
        return
    sent: dict[str, list[CollectiveRecord]] = defaultdict(list)
    for placed in plan.sharding.changes:
        if (kind := placed.change.kind) is not None:
            sent[placed.producer].append(
                {
                    "kind": kind.value,
                    "num_bytes": payload_bytes(kind, placed.num_bytes, plan.tp),
                    "time_s": placed.cost,
                    "readers": list(placed.readers),
                    "leaves": placed.leaves,
                }
            )
    tables, ways = plan.sharding.tables, plan.sharding.ways
    leaving, seconds = tables.leaving(ways), tables.costs_of_kernels(ways)
    splits = plan.sharding.splits
    fused = {
        edge.consumer: graph.kernels[edge.producer].name
        for edge in fused_edges(graph)
        if splits[edge.producer].writes == splits[edge.consumer].reads[edge.place]
    }
    for number, (kernel, split) in enumerate(zip(graph.kernels, plan.sharding.splits, strict=True)):
        yield {
            "name": kernel.name,
            "time_s": seconds[number],
            "fused_with": fused.get(number),
            "split": split.dim,
            "writes": _named(kernel, split.writes),
            "leaves": _named(kernel, leaving[number]) if number in leaving else None,
            "collectives": sent.get(kernel.name, []),
        }


def _named(kernel: Kernel, layout: TensorLayout) -> str:
    """Return a layout with the name of the dim that is split."""
    place = layout.place
    return str(layout) if place is None else f"by {factors(kernel.dims[place])[0]}"
