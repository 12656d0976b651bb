"""The answer for a graph on a system: plans, refusals, the bound, and all of it as data (SI)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, ClassVar, Literal

from meshwright.base.arrays import gap_of
from meshwright.base.records import Brief, Rows, Shown, scalars
from meshwright.base.units import format_bytes, format_seconds
from meshwright.dataflow.layouts import TensorLayout, payload_bytes, splits_of
from meshwright.dataflow.roofline import CalibratedSystem, fused_edges
from meshwright.dataflow.sharding import GraphSharding
from meshwright.dataflow.solution import SolutionPrice, product_flops
from meshwright.dataflow.stages import KernelStage
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, factors

SLOWER = "slower by its bound"


@dataclass(frozen=True)
class RefusedDegrees(Brief):
    """Degrees without a plan."""

    reason: str
    lower_bound_s: float = inf
    """Lower bound of the step of a plan that was not found but may exist [s]."""


@dataclass(frozen=True, kw_only=True)
class GraphPlan(Brief):
    """Degrees, seconds and memory of a plan of a graph."""

    DERIVED: ClassVar[Mapping[str, str]] = {"step_s": "step_s", "passes_per_s": "passes_per_s"}
    tp: int
    """Devices over which kernels are split."""
    pp: int
    """Stages."""
    dp: int
    """Replicas."""
    layers_per_stage: int
    """Repetitions of the graph on the fullest stage; 1 where the graph itself is cut."""
    num_passes: int
    """Passes of each replica in a step."""
    batch_parts: int = 1
    """Replicas that share the batch of one pass: each has a part of it."""
    parts_s: Mapping[str, float]
    """Parts of the time of a step; they sum to ``step_s`` [s]."""
    stage_s: float
    """Time of one pass through the slowest stage [s]."""
    send_s: float
    """Time to send a pass to the next stage, overlapped with the rest [s]."""
    held_bytes: float
    """Memory of the fullest device [bytes]."""
    lower_bound_s: float
    """Lower bound of the step of any plan of these degrees [s]."""

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Devices that share kernels, stages, replicas."""
        return self.tp, self.pp, self.dp

    @property
    def text(self) -> str:
        """Degrees as text, such as ``tp8 pp1 dp1``."""
        return f"tp{self.tp} pp{self.pp} dp{self.dp}"

    @property
    def step_s(self) -> float:
        """Time of a step, all parts summed [s]."""
        return sum(self.parts_s.values())

    @property
    def passes_per_s(self) -> float:
        """Passes per second over all replicas [1/s]."""
        return self.num_passes * self.dp / self.batch_parts / self.step_s

    def brief(self) -> str:
        """Return degrees, time and memory."""
        return (
            f"{self.text}: {format_seconds(self.step_s)} a step, "
            f"{format_bytes(self.held_bytes)} on the fullest device"
        )


@dataclass(frozen=True, kw_only=True)
class SplitPlan(GraphPlan):
    """A plan of the search, with the splits of its kernels."""

    sharding: GraphSharding | None = None
    """Splits of one repetition; None where the graph is cut."""
    stages: tuple[KernelStage, ...] = ()
    """Stages of the graph, where the graph itself is cut."""

    @property
    def data(self) -> dict[str, Any]:
        """Fields of the plan as data, without the splits."""
        return {entry.name: getattr(self, entry.name) for entry in fields(GraphPlan)}


def parts_of_step(
    *, num_passes: int, pass_s: float, bubble_s: float, gradient_s: float = 0.0,
    update_s: float = 0.0,
) -> dict[str, float]:  # fmt: skip
    """Return the parts of the time of a step [s].

    Parameters
    ----------
    num_passes, pass_s
        Passes of each replica; time between two passes [s].
    bubble_s
        Time to fill and drain the stages: one pass through all the others [s].
    gradient_s
        Time of the gradient sums over replicas that the backward pass does not hide, once a step
        [s].
    update_s
        Time of the update of the weights, once a step [s].
    """
    return {
        "passes_s": num_passes * pass_s,
        "bubble_s": bubble_s,
        "gradient_sums_s": gradient_s,
        "update_s": update_s,
    }


@dataclass(frozen=True)
class Traffic(Brief):
    """Traffic of all devices together in one step."""

    memory_bytes: float
    """Traffic in and out of the main memories [bytes]."""
    link_bytes: float
    """Traffic between devices [bytes]."""


@dataclass(frozen=True)
class LevelEnergy(Brief):
    """Accesses of one level in a step of all devices, and their energy."""

    DERIVED: ClassVar[Mapping[str, str]] = {"energy_j": "energy_j"}
    name: str
    """``arithmetic``, a memory of the chip, near to far, or ``links``."""
    of: Literal["FLOP", "byte"]
    """Unit of an access."""
    accesses: float
    """FLOPs or bytes of a step."""
    energy_j_per_access: float | None
    """Energy of a FLOP or of a byte; None: the chip does not state it [J]."""

    @property
    def energy_j(self) -> float | None:
        """Energy of all accesses [J]; None: not known."""
        return None if (each := self.energy_j_per_access) is None else self.accesses * each


@dataclass(frozen=True)
class GraphPlans(Brief):
    """Plans in the order of their time, the coverage of the space, and a bound for all of it."""

    plans: tuple[SplitPlan, ...]
    refused: Mapping[str, int]
    """Degrees by the reason why they have no plan."""
    lower_bound_s: float
    """Lower bound of the step over the whole space [s]."""
    moved: Traffic
    """Traffic of the fastest plan."""

    @property
    def best(self) -> SplitPlan:
        """The fastest plan."""
        return self.plans[0]

    @property
    def gap(self) -> float:
        """Largest possible distance of the best plan from the optimum, as a fraction."""
        return gap_of(self.best.step_s, self.lower_bound_s)


@dataclass(frozen=True)
class KernelCollective(Brief):
    """A collective behind a kernel."""

    kind: str
    num_bytes: float
    time_s: float
    readers: tuple[str, ...]
    """Kernels that need the output of the collective."""
    leaves: bool
    """Whether the output leaves the graph."""


@dataclass(frozen=True)
class SplitKernel(Brief):
    """Time and split of a kernel."""

    name: str
    time_s: float
    """Time of its own launch, or time that it adds to the kernel that it is fused with [s]."""
    fused_with: str | None
    """Kernel with the launch in which this one runs; the result of that kernel never leaves the
    chip."""
    split: str | None
    """The dim that is split."""
    writes: str
    leaves: str | None
    """Layout in which the output leaves the graph."""
    collectives: tuple[KernelCollective, ...]


@dataclass(frozen=True)
class GraphStage(Brief):
    """Kernels of one stage of a graph that is cut."""

    kernels: tuple[str, ...]
    busy_s: float
    send_s: float


@dataclass(frozen=True, kw_only=True)
class BestGraphPlan(GraphPlan):
    """The best plan of a graph in full."""

    moved: Traffic
    power_w: Mapping[str, float | None]
    """Power of chips, memory and links; None: not known [W]."""
    energy: tuple[LevelEnergy, ...]
    """Accesses and energy of a step by level, arithmetic first, links last."""
    kernels: tuple[SplitKernel, ...]
    """Kernels of one repetition; empty where the graph is cut."""
    stages: tuple[GraphStage, ...]
    """Stages, where the graph itself is cut."""


@dataclass(frozen=True, kw_only=True)
class GraphAnswer(Shown):
    """Plans of a computation that is no transformer: the best in full, the next ones in short."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "graph": "graph",
        "repeats": "repeats",
        "num_kernels": "num_kernels",
        "flops": "flops",
        "product_flops": "product_flops",
        "system": "system",
        "fidelity": "fidelity",
        "is_calibrated": "machine.calibration.is_calibrated",
        "lower_bound_s": "lower_bound_s",
        "gap": "gap",
        "num_priced": "num_priced",
        "refused": "refused",
        "best": "best",
        "others": "others",
        "solution": "solution",
        "version": "version",
        "command": "command",
    }
    graph: str
    repeats: int
    num_kernels: int
    flops: float
    """Work of one pass through all repetitions [FLOP]."""
    machine: CalibratedSystem
    fidelity: str = "closed_form"
    lower_bound_s: float
    """Lower bound of the step over the whole space [s]."""
    num_priced: int
    refused: Mapping[str, int]
    """Degrees by the reason why they have no plan."""
    best: BestGraphPlan
    others: tuple[GraphPlan, ...]
    """The next plans, the fastest first."""
    solution: SolutionPrice | None = None
    """Sharding of another planner for the same computation, at the same prices."""
    product_flops: float = 0.0
    """Work of one pass in products, over all repetitions [FLOP]."""
    version: str = ""
    command: str = ""

    @property
    def system(self) -> str:
        """Name of the system."""
        return self.machine.spec.name

    @property
    def gap(self) -> float:
        """Largest possible distance of the best plan from the optimum, as a fraction."""
        return gap_of(self.best.step_s, self.lower_bound_s)

    def leading(self, count: int) -> GraphAnswer:
        """Return the answer with the fastest plans alone."""
        return replace(self, others=self.others[: count - 1])

    def rows(self) -> Rows:
        """Return the plans, the fastest first."""
        return [scalars(plan) for plan in (self.best, *self.others)]


def graph_answer(
    graph: DataflowGraph,
    system: CalibratedSystem,
    plans: GraphPlans,
    power_w: Mapping[str, float | None],
    energy: tuple[LevelEnergy, ...] = (),
) -> GraphAnswer:
    """Return the plans of a search as data."""
    best = plans.best
    stages = tuple(
        GraphStage(tuple(graph.kernels[k].name for k in stage.kernels), stage.busy, stage.send)
        for stage in best.stages
    )
    return GraphAnswer(
        graph=graph.name, repeats=graph.repeats, num_kernels=len(graph.kernels),
        flops=graph.flops, product_flops=product_flops(graph), machine=system,
        lower_bound_s=plans.lower_bound_s,
        num_priced=len(plans.plans), refused=plans.refused,
        best=BestGraphPlan(
            **best.data, moved=plans.moved, power_w=power_w, energy=energy,
            kernels=tuple(split_kernels(graph, best)), stages=stages,
        ),
        others=tuple(GraphPlan(**plan.data) for plan in plans.plans[1:]),
    )  # fmt: skip


def split_kernels(graph: DataflowGraph, plan: SplitPlan) -> Iterator[SplitKernel]:
    """Yield the time of each kernel, its split, and the collectives behind it."""
    if plan.sharding is None:
        return
    graph = graph.part_of_batch(plan.batch_parts)
    sent: dict[str, list[KernelCollective]] = defaultdict(list)
    for placed in plan.sharding.changes:
        if (kind := placed.change.kind) is not None:
            num_bytes = payload_bytes(kind, placed.num_bytes, plan.tp)
            sent[placed.producer].append(KernelCollective(
                kind.value, num_bytes, placed.cost, tuple(placed.readers), placed.leaves
            ))  # fmt: skip
    tables, ways = plan.sharding.tables, plan.sharding.ways
    leaving, seconds = tables.leaving(ways), tables.costs_of_kernels(ways)
    splits = plan.sharding.splits
    fused = {
        edge.consumer: graph.kernels[edge.producer].name
        for edge in fused_edges(graph)
        if splits[edge.producer].writes == splits[edge.consumer].reads[edge.place]
    }
    for number, (kernel, split) in enumerate(zip(graph.kernels, splits, strict=True)):
        yield SplitKernel(
            kernel.name, seconds[number], fused.get(number), split.dim,
            writes=_named(kernel, split.writes),
            leaves=_named(kernel, leaving[number]) if number in leaving else None,
            collectives=tuple(sent.get(kernel.name, ())),
        )  # fmt: skip


def _named(kernel: Kernel, layout: TensorLayout) -> str:
    """Return a layout with the name of the dim that is split."""
    place = layout.place
    return str(layout) if place is None else f"by {factors(kernel.dims[place])[0]}"


@dataclass(frozen=True)
class GraphKernel(Brief):
    """A kernel of a graph, of one repetition."""

    name: str
    phase: str
    unit: str
    reads: tuple[str, ...]
    dims: tuple[str, ...]
    flops: float
    written_bytes: float
    weight_bytes: float
    splits: tuple[str, ...]
    """Dims over which the kernel may be split."""


@dataclass(frozen=True, kw_only=True)
class GraphSummary(Shown):
    """Work, traffic and memory of a graph, one repetition but for the totals."""

    name: str
    repeats: int
    tiled: str
    dims: Mapping[str, int]
    word_bytes: float
    """Bytes of a number."""
    num_kernels: int
    num_tensors: int
    num_parameters: float
    flops: float
    inputs: Mapping[str, tuple[str, ...]]
    """Dims of each input."""
    with_gradients: tuple[str, ...]
    """Inputs that have a gradient."""
    outputs: tuple[str, ...]
    """Kernels with results that leave the graph."""
    kernels: tuple[GraphKernel, ...]

    def rows(self) -> Rows:
        """Return the kernels."""
        return [scalars(kernel) for kernel in self.kernels]


def summary(graph: DataflowGraph) -> GraphSummary:
    """Return a graph as data."""
    return GraphSummary(
        name=graph.name, repeats=graph.repeats, tiled=graph.tiled, dims=graph.sizes,
        word_bytes=graph.word_bytes, num_kernels=len(graph.kernels),
        num_tensors=len(graph.edges), num_parameters=graph.num_parameters, flops=graph.flops,
        inputs={name: tuple(dims) for name, dims in graph.inputs.items()},
        with_gradients=tuple(name for name in graph.inputs if name not in graph.constants),
        outputs=tuple(graph.outputs),
        kernels=tuple(
            GraphKernel(
                kernel.name, kernel.phase.value, kernel.unit.value,
                tuple(read.source for read in kernel.inputs), tuple(kernel.dims),
                flops=kernel.flops(graph.sizes),
                written_bytes=graph.tensor_bytes(kernel),
                weight_bytes=sum(graph.tensor_bytes(weight) for weight in kernel.weights),
                splits=tuple(one.dim for one in splits_of(kernel) if one.dim is not None),
            )
            for kernel in graph.kernels
        ),
    )  # fmt: skip
