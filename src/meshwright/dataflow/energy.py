"""Traffic of a plan through memories and over links, and the power of chips, memory and links.

Bytes of memory are those of kernels that run one after the other, each tensor once, and of the
update of the weights; a chip that fuses its kernels moves less, and none more than its memory can
give. Bytes of links are those that devices send round a ring, the least of all algorithms. A byte
takes the energy that memory and links state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from meshwright.base.arrays import Num, ceil_div
from meshwright.dataflow.answer import LevelEnergy, SplitPlan, Traffic
from meshwright.dataflow.layouts import TensorLayout, collective_of, local_sizes, payload_bytes
from meshwright.dataflow.price import Residency, SplitTimes, gradient_sums, ring_bytes
from meshwright.dataflow.roofline import CalibratedSystem, Roofline, product_shape
from meshwright.dataflow.stages import sent_bytes
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Unit
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import OptimizerPreset


def traffic(
    graph: DataflowGraph,
    system: CalibratedSystem,
    plan: SplitPlan,
    optimizer: OptimizerPreset | None = None,
) -> Traffic:
    """Return the traffic of a plan in a step [bytes].

    For each repetition and pass on the devices of a group: the tensors of each kernel, n - 1 of n
    parts of each collective, and messages. Once a step: sums of gradients, and the update.

    Valid for: tensors that cross between the stages of a graph that is cut count as collectives
    where their layout changes, and as nothing where it does not.
    """
    graph = graph.part_of_batch(plan.batch_parts)
    rows = optimizer.row_state_bytes if optimizer is not None and graph.trains else None
    tp, often = plan.tp, graph.repeats * plan.num_passes * plan.dp
    seconds = SplitTimes(graph, system, tp, Residency(bytes_per_row=rows))
    ways = plan.sharding.ways if plan.sharding else _ways_of_stages(plan)
    tables = plan.sharding.tables if plan.sharding else seconds.tables()
    splits = [listed[way] for listed, way in zip(seconds.splits, ways, strict=True)]
    roofline = Roofline(graph, system, tp, rows)
    moved = sum(
        roofline.moved_bytes(number, local_sizes(graph.sizes, split.dim, tp))
        for number, split in enumerate(splits)
    )
    for edge in roofline.fused:
        maker, reader = splits[edge.producer], splits[edge.consumer]
        if maker.writes != reader.reads[edge.place]:
            moved += roofline.materialised_bytes(edge, (maker.dim, reader.dim))

    def sent(num_bytes: float, have: TensorLayout, want: TensorLayout) -> float:
        kind = collective_of(have, want)
        return 0.0 if kind is None else ring_bytes(kind, payload_bytes(kind, num_bytes, tp), tp)

    passed = sum(one.cost for one in replace(tables, change_cost=sent).changes(ways))
    passed += sum(
        message.num_bytes * (tp - 1) / tp for kernel in graph.kernels for message in kernel.messages
    )
    once = 0.0
    for (first, second), sums in gradient_sums(graph, seconds.splits, sent):
        is_lookup = graph.kernels[second].unit is Unit.NONE
        once += sums[ways[first]][ways[second]] / (1 if is_lookup else plan.num_passes)
    link_bytes = often * tp * (passed + once)
    if plan.sharding is not None:
        crossing = sent_bytes(graph, tp, plan.sharding) if plan.pp > 1 else 0.0
        link_bytes += plan.num_passes * plan.dp * (plan.pp - 1) * tp * crossing
    memory_bytes, devices = often * tp * moved, tp * plan.pp * plan.dp
    if optimizer is not None and plan.parts_s["update_s"] > 0.0:
        updated = plan.parts_s["update_s"] * float(system.engine(graph).memory_bytes_per_s)
        gradients = updated / optimizer.step_traffic_bytes_per_param
        gradients *= optimizer.reduced_gradient_bytes_per_param
        memory_bytes += devices * updated
        link_bytes += devices * ring_bytes(CollectiveKind.ALL_REDUCE, gradients, plan.dp)
    rate = system.spec.chip.main_memory.bandwidth_bytes_per_s or inf
    return Traffic(min(memory_bytes, devices * rate * plan.step_s), link_bytes)


def _ways_of_stages(plan: SplitPlan) -> tuple[int, ...]:
    """Return the split of each kernel of a graph that is cut."""
    chosen = {
        kernel: way for stage in plan.stages
        for kernel, way in zip(stage.kernels, stage.ways, strict=True)
    }  # fmt: skip
    return tuple(chosen[kernel] for kernel in sorted(chosen))


def local_kernels(
    graph: DataflowGraph, system: CalibratedSystem, plan: SplitPlan
) -> Iterator[tuple[Kernel, dict[str, int]]]:
    """Yield each kernel of a repetition with the sizes of its dims on a device of a plan."""
    graph = graph.part_of_batch(plan.batch_parts)
    listed = SplitTimes(graph, system, plan.tp, Residency()).splits
    ways = plan.sharding.ways if plan.sharding else _ways_of_stages(plan)
    for kernel, splits, way in zip(graph.kernels, listed, ways, strict=True):
        yield kernel, dict(local_sizes(graph.sizes, splits[way].dim, plan.tp))


def product_access_bytes(
    shape: tuple[Num, Num, Num, Num], tile_rows: Num, tile_columns: Num, word_bytes: Num
) -> Num:
    """Return the bytes that products move between the nearest memory and their arrays [bytes].

    Each tile of outputs stays in its array while both operands stream past it, so an operand is
    read once for every tile across the other one, and results are written once:

        count (inner (rows ceil(columns / tile columns) + columns ceil(rows / tile rows))
        + rows columns) word bytes

    128 x 64 by 64 x 256 in tiles of 64 x 64 and words of 2 bytes: 64 (128 4 + 256 2) + 128 256
    words are 196,608 bytes.

    Parameters
    ----------
    shape
        Count, rows, inner and columns.

    Source: output stationary reuse in Sze et al. 2017, "Efficient Processing of Deep Neural
    Networks" (arXiv 1703.09039), section V.

    Valid for: sums that stay in the array; other dataflows move more of one operand and less of
    another.
    """
    count, rows, inner, columns = shape
    reads = inner * (rows * ceil_div(columns, tile_columns) + columns * ceil_div(rows, tile_rows))
    moved: Num = count * (reads + rows * columns) * word_bytes
    return moved


def level_energies(
    graph: DataflowGraph, system: CalibratedSystem, plan: SplitPlan, moved: Traffic
) -> tuple[LevelEnergy, ...]:
    """Return the accesses of a step by level, and their energy where the chip states it.

    The nearest memory serves the arrays, tile by tile, and all other kernels; what comes from the
    main memory passes each memory between. A chip with one memory counts it once.
    """
    chip, tp, graph = system.spec.chip, plan.tp, graph.part_of_batch(plan.batch_parts)
    roofline = Roofline(graph, system, tp)
    near = 0.0
    for number, (kernel, sizes) in enumerate(local_kernels(graph, system, plan)):
        if kernel.unit is Unit.MATRIX:
            tile = (
                float(chip.array_rows or chip.tile_rows),
                float(chip.array_columns or chip.tile_columns),
            )
            word = graph.product_bytes(kernel)
            near += float(product_access_bytes(product_shape(kernel, sizes), *tile, word))
        else:
            near += roofline.moved_bytes(number, sizes, roofline.fused)
    often = graph.repeats * plan.num_passes * plan.dp
    passes = plan.num_passes * plan.dp
    found = [LevelEnergy("arithmetic", "FLOP", passes * graph.flops, chip.energy_j_per_flop)]
    for place, memory in enumerate(chip.memories):
        num_bytes = moved.memory_bytes if place else often * tp * near
        found.append(LevelEnergy(memory.name, "byte", num_bytes, memory.energy_j_per_byte))
    link_j = system.spec.link_energy_j_per_byte
    return (*found, LevelEnergy("links", "byte", moved.link_bytes, link_j))


def power_parts_w(
    graph: DataflowGraph, system: CalibratedSystem, plan: SplitPlan, moved: Traffic
) -> Mapping[str, float | None]:
    """Return the mean power of chips, memory and links over a step [W]; None: not known.

    * chips: idle power, and the rest of the peak power as far as they compute; hosts, fans and
      switches as a share of it;
    * memory, links: bytes times their energy. Where a system states none, the power of the chip
      counts its own memory and links already.
    """
    spec, chip = system.spec, system.spec.chip
    idle, peak = chip.idle_power_w, chip.peak_power_w
    chips = None
    if idle is not None and peak is not None:
        busy = graph.flops * plan.passes_per_s / system.peak_flops_per_s(graph)
        each = idle + (peak - idle) * min(busy, 1.0)
        chips = spec.num_alive * each * (1.0 + spec.overhead_power_fraction)
    memory, link = chip.main_memory.energy_j_per_byte, spec.link_energy_j_per_byte
    return {
        "chips_w": chips,
        "memory_w": None if memory is None else moved.memory_bytes * memory / plan.step_s,
        "links_w": None if link is None else moved.link_bytes * link / plan.step_s,
    }


def total_w(parts: Mapping[str, float | None]) -> float | None:
    """Return the sum of the known parts [W]; None where the power of the chips is not known."""
    if parts["chips_w"] is None:
        return None
    return sum(part for part in parts.values() if part is not None)
