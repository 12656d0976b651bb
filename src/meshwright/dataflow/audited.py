"""Plans of a graph as facts for the laws of :mod:`meshwright.audit`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.audit.graphs import FusionFacts, GraphFacts, KernelFacts, PartFacts
from meshwright.audit.laws import gathered
from meshwright.dataflow.answer import GraphPlans, SplitPlan
from meshwright.dataflow.fusion.answer import Fusion
from meshwright.dataflow.fusion.question import FusionQuestion
from meshwright.dataflow.roofline import CalibratedSystem
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Unit, num_elements
from meshwright.graph.op import Phase
from meshwright.spec.workload import OptimizerPreset


def plan_facts(
    graph: DataflowGraph, system: CalibratedSystem, plans: GraphPlans,
    *, num_passes: int, optimizer: OptimizerPreset | None, runs_by_kernel: bool,
) -> Iterator[GraphFacts]:  # fmt: skip
    """Yield the facts of the best plan of a graph.

    Parameters
    ----------
    runs_by_kernel
        Whether kernels run one after the other, each with its own time; else a chip fuses them.
    """
    plan, chip = plans.best, system.spec.chip
    graph = graph.part_of_batch(plan.batch_parts)
    weights = {weight.name: weight for kernel in graph.kernels for weight in kernel.weights}
    yield gathered(
        GraphFacts, plan, plans, graph,
        answer=plan.text,
        layers=plan.layers_per_stage,
        system=system.spec,
        kernels=tuple(_kernels(graph, plan)),
        runs_by_kernel=runs_by_kernel and plan.sharding is not None,
        peak_flops_per_s=max(chip.matmul_flops_per_s.values()),
        launch_s=float(system.engine(graph).launch_s),
        usable_bytes=system.usable_bytes,
        num_params=sum(num_elements(weight.dims, graph.sizes) for weight in weights.values()),
        param_bytes=sum(map(graph.tensor_bytes, weights.values())),
        optimizer=optimizer if graph.trains else None,
        asked_passes=num_passes * plan.batch_parts,
    )  # fmt: skip


def _kernels(graph: DataflowGraph, plan: SplitPlan) -> Iterator[KernelFacts]:
    """Yield the time of each kernel; of a graph that is cut, its work alone."""
    sharding, seconds = plan.sharding, [0.0] * len(graph.kernels)
    if sharding is not None:
        seconds = list(sharding.tables.costs_of_kernels(sharding.ways))
    for kernel, time_s in zip(graph.kernels, seconds, strict=True):
        is_product = kernel.unit is Unit.MATRIX
        held = sum(map(graph.tensor_bytes, kernel.weights)) if is_product else 0.0
        flops = kernel.flops(graph.sizes) if is_product else 0.0
        is_move = kernel.unit is Unit.NONE and kernel.phase is Phase.FORWARD
        written = graph.tensor_bytes(kernel) if is_move else 0.0
        yield KernelFacts(
            kernel.name, flops, held, max(written, _ends_bytes(graph, kernel)),
            is_launched=kernel.unit is not Unit.VECTOR, time_s=time_s,
        )  # fmt: skip


def _ends_bytes(graph: DataflowGraph, kernel: Kernel) -> float:
    """Return the bytes of a kernel that come from outside of the graph or leave it.

    Reads of a lookup are not counted.
    """
    found = graph.tensor_bytes(kernel) if kernel.name in graph.outputs else 0.0
    if kernel.unit is not Unit.NONE:
        read = {operand.source: operand for operand in kernel.inputs}
        for name, operand in read.items():
            if name in graph.inputs:
                found += graph.word_bytes * num_elements(operand.dims, graph.sizes)
    return found


def _fused_ends_bytes(graph: DataflowGraph) -> float:
    """Return the bytes that enter and leave a graph; kernels of one partition share inputs.

    Kernels that hold weights are left out.
    """
    kernels = [kernel for kernel in graph.kernels if not kernel.weights]
    found = {k.name: graph.tensor_bytes(k) for k in kernels if k.name in graph.outputs}
    for kernel in kernels:
        for read in kernel.inputs if kernel.unit is not Unit.NONE else ():
            if read.source in graph.inputs:
                taken = graph.word_bytes * num_elements(read.dims, graph.sizes)
                found[read.source] = max(found.get(read.source, 0.0), taken)
    return sum(found.values())


def fusion_facts(asked: FusionQuestion, alone: Fusion, stream: Fusion) -> Iterator[FusionFacts]:
    """Yield the facts of the partitions of a graph: of a pass that is alone, and of a stream."""
    latency_s = asked.graph.repeats * alone.time_s
    yield _facts_of(asked, alone, latency_s)
    yield _facts_of(asked, stream, None)


def _facts_of(asked: FusionQuestion, fusion: Fusion, latency_s: float | None) -> FusionFacts:
    graph, grid = asked.graph, asked.target.grid
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    problem = fusion.problem
    narrow = min((1.0, *(cycles for _, cycles in grid.slowdowns)))
    return gathered(
        FusionFacts, fusion, grid, asked,
        answer=f"{len(fusion.partitions)} partitions of {graph.name}",
        flops_per_s=grid.flops_per_s / narrow,
        sram_bytes=problem.grid.sram_bytes,
        dram_bytes=problem.grid.dram_bytes + grid.far_bytes,
        weight_bytes=0.0 if problem.resident_bytes else _loaded_bytes(graph, graph.kernels),
        ends_bytes=_fused_ends_bytes(graph),
        moves_ends=asked.rules.counts_ends,
        all_repeats=graph.repeats,
        latency_s=latency_s,
        parts=tuple(
            gathered(
                PartFacts, part,
                cores=sum(placed.cores for placed in part.kernels),
                flops=_product_flops(graph, [kernels[placed.name] for placed in part.kernels]),
            )
            for part in fusion.partitions
        ),
    )  # fmt: skip


def _product_flops(graph: DataflowGraph, kernels: Sequence[Kernel]) -> float:
    """Return the FLOPs of products."""
    return sum(kernel.flops(graph.sizes) for kernel in kernels if kernel.unit is Unit.MATRIX)


def _loaded_bytes(graph: DataflowGraph, kernels: Sequence[Kernel]) -> float:
    """Return the bytes of weights that kernels read, apart from tables: only rows are read."""
    loaded = [kernel for kernel in kernels if kernel.unit is not Unit.NONE]
    weights = {weight.name: weight for kernel in loaded for weight in kernel.weights}
    return sum(map(graph.tensor_bytes, weights.values()))
