"""The views of a graph, of its plans on a system, and of Linpack on grids of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.dataflow.answer import (
    BestGraphPlan,
    GraphAnswer,
    GraphKernel,
    GraphSummary,
    SplitKernel,
)
from meshwright.dataflow.energy import total_w
from meshwright.dataflow.linpack import GridRun, GridRuns
from meshwright.dataflow.price import ring_bytes
from meshwright.dataflow.roofline import CalibratedSystem
from meshwright.dataflow.solution import SolutionPrice
from meshwright.graph.kernels.kernel import factors
from meshwright.spec.calibration import constants_of
from meshwright.spec.collective import CollectiveKind
from meshwright.view.drawn import largest
from meshwright.view.parts import (
    Cell,
    Page,
    Part,
    Plot,
    Section,
    Table,
    Text,
    Tile,
    Whole,
)
from meshwright.view.pieces import constants, provenance
from meshwright.view.registry import view
from meshwright.view.values import shown
from meshwright.view.words import counted, rent_rate, words

SHOWN_GAP = 0.0005
"""Least gap that is shown; a smaller one is a proof."""
MOST_KERNELS = 24
"""Kernels that have a bar."""
MOST_PLANS = 20
"""Plans, or grids, that have a bar."""
FIRST_KERNELS, FIRST_PLANS = 5, 3
"""Kernels, and further plans, on the first screen."""
MOST_INPUTS = 4
"""Inputs and outputs that are named on the first screen."""


# --------------------------------------------------------------------------------- plans of a graph


@view(GraphAnswer)
def graph_page(found: GraphAnswer) -> Page:
    """Return the page of the plans of a computation."""
    often = f" x {found.repeats}" if found.repeats > 1 else ""
    sections = (
        Section("memory", "Does it fit?", [_memory(found.machine, TENSORS, found.best.held_bytes)]),
        Section("time", "How fast, and what limits it?", list(_time(found))),
        Section("kernels", "What does each kernel do?", list(_kernels(found.best))),
        Section("others", "Why not another plan?", list(_others(found))),
        Section("solution", "How good is the other planner's sharding?", list(_solution(found))),
        Section("sure", "How sure is it?", _sure(found.machine)),
        Section("power", "What power does it draw?", list(_power(found))),
    )
    return Page(
        title=f"{found.graph} on {found.system}",
        subtitle=f"{found.graph}{often} on {found.system}: {counted(found.num_kernels, 'kernel')}, "
        f"{format_si(found.flops, 'FLOP')}",
        tiles=list(_tiles(found)),
        sections=sections,
    )


def _tiles(found: GraphAnswer) -> Iterator[Tile]:
    best, machine = found.best, found.machine
    yield Tile(
        "Which plan is the fastest?", f"{best.text}: {format_seconds(best.step_s)} a step, "
        f"{shown(best.passes_per_s)} passes/s", _plan_text(best), label="plan",
    )  # fmt: skip
    gap = f"at most {found.gap:.1%} from the best" if found.gap >= SHOWN_GAP else \
        f"proven: gap {found.gap:.1%}"  # fmt: skip
    yield Tile("Why not another plan?", f"{gap} {_model(machine)}", _searched(found), "others",
               label="proof")  # fmt: skip
    if found.solution is not None:
        ratio = found.solution.step_s / best.step_s
        yield Tile("How good is the other planner's sharding?",
                   f"{format_seconds(found.solution.step_s)} a step, {ratio:.3g} x this plan",
                   section="solution", label="solution",
                   part=_beside(found, found.solution))  # fmt: skip
    yield _fit_tile(machine, TENSORS, best.held_bytes)
    drawn = total_w(best.power_w)
    if drawn is not None:
        parts = f": {_power_text(best)}" if len(_known_w(best)) > 1 else ""
        yield Tile("What power does it draw?", f"{format_si(drawn, 'W')}{parts}", "", "power",
                   label="power", spare=1)  # fmt: skip
    if rent := rent_rate(machine.spec.chip, machine.spec.num_alive):
        yield Tile("What does it cost?", rent, label="rent", spare=1)
    yield Tile("What limits it?", largest(best.parts_s, best.step_s), "share of a step", "time",
               label="time", part=_step(best))  # fmt: skip
    if best.kernels:
        ranked = sorted(best.kernels, key=lambda kernel: -kernel.time_s)
        yield Tile(
            "Which kernels take longest?", ", ".join(kernel.name for kernel in ranked[:3]),
            section="kernels", label="kernels", spare=3,
            part=_kernel_table(ranked[:FIRST_KERNELS], len(ranked), columns=4),
        )  # fmt: skip
    else:
        yield Tile("What does each stage do?", counted(len(best.stages), "stage"), section="time",
                   label="stages", part=_stage_table(best, FIRST_KERNELS), spare=3)  # fmt: skip
    if found.others:
        slower = found.others[0].step_s / best.step_s - 1.0
        rows = [(plan.text, plan.step_s, plan.held_bytes) for plan in found.others[:FIRST_PLANS]]
        yield Tile(
            "What else would do?", f"The next plan is {slower:.1%} slower", found.others[0].text,
            "others", label="instead", spare=2,
            part=Table(("", "step [s]", "memory [bytes]"), rows),
        )  # fmt: skip


def _solution(found: GraphAnswer) -> Iterator[Part]:
    """Yield the sharding of another planner beside the best plan, and its collectives."""
    theirs = found.solution
    if theirs is None:
        return
    yield _beside(found, theirs)
    if abs(theirs.product_flops - found.product_flops) > SHOWN_GAP * found.product_flops:
        yield Text("The two do not have the same work in products: they may be different "
                   "computations, or of different sizes.")  # fmt: skip
    ranked = sorted(theirs.changes, key=lambda one: -one.time_s)[:MOST_KERNELS]
    if ranked:
        yield Table(
            ("tensor", "for", "collective", "over", "tensor [bytes]", "time [s]"),
            [(one.tensor, one.reader, one.kind.replace("_", "-"), one.axis, one.num_bytes,
              one.time_s) for one in ranked],
            "Collectives of the other planner's sharding, the longest first",
        )  # fmt: skip


def _beside(found: GraphAnswer, theirs: SolutionPrice) -> Table:
    """Return time, memory, work and bytes by axis of both; sums of gradients are other axes."""
    best = found.best
    passes = best.layers_per_stage * best.num_passes
    own = sum(passes * ring_bytes(CollectiveKind(one.kind), one.num_bytes, best.tp)
              for kernel in best.kernels for one in kernel.collectives)  # fmt: skip
    every = best.moved.link_bytes / (best.tp * best.pp * best.dp)
    mesh = " ".join(f"{name}{size}" for name, size in theirs.mesh.items())
    rows: list[tuple[Cell, ...]] = [
        ("degrees", best.text, mesh),
        ("step", format_seconds(best.step_s), format_seconds(theirs.step_s)),
        *((words(part), "", format_seconds(seconds)) for part, seconds in theirs.parts_s.items()),
        ("memory of a device", format_bytes(best.held_bytes), format_bytes(theirs.held_bytes)),
        ("work in products of a pass", format_si(found.product_flops, "FLOP"),
         format_si(theirs.product_flops, "FLOP")),
    ]  # fmt: skip
    is_group = best.dp * best.pp == 1
    sent = {"tp": every} if is_group else {"tp": own, "all other axes": every - own}
    for axis in dict.fromkeys((*sent, *theirs.sent_bytes)):
        both = (side.get(axis) for side in (sent, theirs.sent_bytes))
        rows.append((f"a device sends over {axis}",
                     *("" if each is None else format_bytes(each) for each in both)))  # fmt: skip
    return Table(("", "this plan", "other planner"), rows)


def _searched(found: GraphAnswer) -> str:
    """Return the degrees that were priced, and the reasons against the others."""
    every = found.num_priced + sum(found.refused.values())
    refused = ", ".join(f"{count} {reason}" for reason, count in found.refused.items())
    return f"{found.num_priced} of {every} splits priced" + (refused and f"; left out: {refused}")


def _plan_text(best: BestGraphPlan) -> str:
    """Return the split of the work over the devices in words."""
    parts = []
    if best.tp > 1:
        parts.append(f"kernels are split over {best.tp} devices")
    if best.stages:
        parts.append(f"the graph is cut into {counted(len(best.stages), 'stage')}")
    elif best.pp > 1:
        most = counted(best.layers_per_stage, "repetition")
        parts.append(f"{best.pp} stages with {most} at most")
    elif best.layers_per_stage > 1:
        parts.append(f"{best.layers_per_stage} repetitions on each device")
    if best.dp > 1:
        share = f", each with 1 of {best.batch_parts} parts of the batch"
        parts.append(f"{best.dp} replicas{share if best.batch_parts > 1 else ''}")
    if best.num_passes > 1:
        parts.append(f"{best.num_passes:,} passes of each replica in a step")
    return "; ".join(parts) or "one device does all the work"


def _step(best: BestGraphPlan) -> Whole:
    return Whole("Time of a step", best.parts_s, "s", best.step_s)


def _time(found: GraphAnswer) -> Iterator[Part]:
    best = found.best
    yield _step(best)
    if best.kernels:
        sent_s = best.layers_per_stage * sum(
            sent.time_s for kernel in best.kernels for sent in kernel.collectives
        )
        yield Text(f"A pass through a stage takes {format_seconds(best.stage_s)}; changes of "
                   f"layout in it {format_seconds(sent_s)}.")  # fmt: skip
        ranked = sorted(best.kernels, key=lambda kernel: -kernel.time_s)[:MOST_KERNELS]
        left = len(best.kernels) - len(ranked)
        yield Plot(
            "Time of each kernel, in one pass",
            f"The longest: {ranked[0].name}, {format_seconds(ranked[0].time_s)}"
            + (f"; {left} shorter ones are in the table of kernels" if left else ""), "bars",
            Table(("kernel", "time [s]"), [(kernel.name, kernel.time_s) for kernel in ranked]),
        )  # fmt: skip
    if best.stages:
        yield Plot(
            "Time of each stage, in one pass",
            f"The slowest takes {format_seconds(best.stage_s)}; sending overlaps the other passes",
            "stacked",
            Table(("stage", "busy [s]", "send [s]"),
                  [(f"stage {number}", stage.busy_s, stage.send_s)
                   for number, stage in enumerate(best.stages, start=1)]),
        )  # fmt: skip


def _kernels(best: BestGraphPlan) -> Iterator[Part]:
    if best.stages:
        yield _stage_table(best, len(best.stages))
    if not best.kernels:
        return
    yield _kernel_table(best.kernels, len(best.kernels))
    sent = [
        (kernel.name, one.kind.replace("_", "-"), one.num_bytes, one.time_s,
         ", ".join([*one.readers, *["the outside"] * one.leaves]) or "other layouts")
        for kernel in best.kernels for one in kernel.collectives
    ]  # fmt: skip
    if sent:
        yield Table(("behind", "collective", "tensor [bytes]", "time [s]", "for"), sent,
                    "Collectives behind the kernels")  # fmt: skip


def _kernel_table(kernels: Sequence[SplitKernel], number: int, columns: int = 5) -> Table:
    """Return the first columns on each kernel, and the number of kernels that are left out."""
    rows: list[tuple[Cell, ...]] = []
    for kernel in kernels:
        leaves = f", leaves {kernel.leaves}" if kernel.leaves else ""
        took = format_seconds(kernel.time_s)
        rows.append((kernel.name, f"+{took}" if kernel.fused_with else took, kernel.split or "-",
                     f"{kernel.writes}{leaves}", kernel.fused_with or ""))  # fmt: skip
    if number > len(kernels):
        rows.append(("...", f"{number - len(kernels)} more", "", "", ""))
    head = ("", "time>", "split over", "writes", "in the launch of")
    return Table(head[:columns], [row[:columns] for row in rows])


def _stage_table(best: BestGraphPlan, most: int) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (number, stage.busy_s, stage.send_s, ", ".join(stage.kernels))
        for number, stage in enumerate(best.stages[:most], start=1)
    ]
    if len(best.stages) > most:
        rows.append(("...", None, None, f"{len(best.stages) - most} more"))
    return Table(("", "busy [s]", "send [s]", "kernels"), rows)


def _others(found: GraphAnswer) -> Iterator[Part]:
    yield Text(f"{_searched(found)}. No plan takes less than {format_seconds(found.lower_bound_s)} "
               f"by the model of cost (gap {found.gap:.1%}).")  # fmt: skip
    plans = (found.best, *found.others)[:MOST_PLANS]
    if len(plans) == 1:
        return
    left = found.num_priced - len(plans)
    yield Plot(
        "Time of a step, by degrees",
        f"{plans[0].text} {format_seconds(plans[0].step_s)}; {plans[1].text} "
        f"{format_seconds(plans[1].step_s)}" + (f"; {left} slower plans exist" if left else ""),
        "stacked",
        Table(("degrees", *(f"{words(part)} [s]" for part in plans[0].parts_s)),
              [(plan.text, *plan.parts_s.values()) for plan in plans]),
        limit=plans[0].step_s, limit_name="this plan",
    )  # fmt: skip
    yield Table(
        ("degrees", "step [s]", "passes/s>", "memory [bytes]", "lower bound [s]"),
        [(plan.text, plan.step_s, shown(plan.passes_per_s), plan.held_bytes, plan.lower_bound_s)
         for plan in plans],
    )  # fmt: skip


def _known_w(best: BestGraphPlan) -> dict[str, float]:
    return {name.removesuffix("_w"): part
            for name, part in best.power_w.items() if part is not None}  # fmt: skip


def _power_text(best: BestGraphPlan) -> str:
    return ", ".join(f"{name} {format_si(part, 'W')}" for name, part in _known_w(best).items())


def _power(found: GraphAnswer) -> Iterator[Part]:
    known = _known_w(found.best)
    if known:
        yield Plot("Mean power over a step", _power_text(found.best), "bars",
                   Table(("", "power [W]"), list(known.items())))  # fmt: skip
    if found.best.energy:
        yield Table(
            ("level", "accesses>", "each>", "energy of a step>"),
            [(level.name, format_si(level.accesses, "B" if level.of == "byte" else level.of),
              "not stated" if (each := level.energy_j_per_access) is None
              else f"{1e12 * each:.3g} pJ/{level.of}",
              "not known" if (whole := level.energy_j) is None else format_si(whole, "J"))
             for level in found.best.energy],
        )  # fmt: skip
    moved = found.best.moved
    yield Text(f"All devices together move {format_bytes(moved.memory_bytes)} in and out of their "
               f"memories and {format_bytes(moved.link_bytes)} over links in a step.")  # fmt: skip


# ------------------------------------------------------------------------ shared by plans and grids


TENSORS, MATRIX = "weights and tensors", "matrix and panel"
"""Contents of the memory of a device."""


def _memory(machine: CalibratedSystem, held: str, held_bytes: float) -> Whole:
    memory = machine.spec.chip.main_memory
    parts = {held: held_bytes, "margin and buffers": memory.capacity_bytes - machine.usable_bytes}
    return Whole(f"Memory of the fullest device ({memory.name})", parts, "bytes",
                 capacity=memory.capacity_bytes)  # fmt: skip


def _fit_tile(machine: CalibratedSystem, held: str, held_bytes: float) -> Tile:
    part = _memory(machine, held, held_bytes)
    assert part.capacity is not None
    used = format_bytes(sum(part.parts.values()))
    return Tile(
        "Does the fullest device hold it?", f"{used} of {format_bytes(part.capacity)}",
        section="memory", mood="good", label="memory", part=part,
    )  # fmt: skip


def _model(machine: CalibratedSystem) -> str:
    known = "" if machine.calibration.is_calibrated else ", not calibrated"
    return f"by the closed-form model{known}"


def _sure(machine: CalibratedSystem) -> list[Part]:
    known = "constants fitted to measurements of training" if machine.calibration.is_calibrated \
        else "the constants of this chip were not fitted to measurements"  # fmt: skip
    return [Text(f"Fidelity: closed-form; {known}. There is no interval: graphs have no measured "
                 "rows."),
            provenance(machine.spec),
            constants(constants_of(machine.calibration), machine.calibration.source)]  # fmt: skip


# ----------------------------------------------------------------------------------------- Linpack


@view(GridRuns)
def linpack_page(found: GridRuns) -> Page:
    """Return the page of Linpack on grids of devices."""
    best, machine = found.best, found.machine
    sections = (
        Section("memory", "Does it fit?", [_memory(machine, MATRIX, best.held_bytes)]),
        Section("time", "How fast, and what limits it?", [_run(best)]),
        Section("others", "Why not another grid?", list(_grids(found))),
        Section("sure", "How sure is it?", _sure(machine)),
    )
    return Page(
        title=f"Linpack of {found.size:,} on {found.system}",
        subtitle=f"{found.graph} on {found.system}: {found.size:,} equations, blocks of "
        f"{found.block:,}, double precision",
        tiles=list(_grid_tiles(found)),
        sections=sections,
    )


def _run(best: GridRun) -> Whole:
    return Whole("Time of the run", best.parts_s, "s", best.run_s)


def _grid_tiles(found: GridRuns) -> Iterator[Tile]:
    best, machine = found.best, found.machine
    yield Tile("Which grid is the fastest?", f"grid {best.grid}: {format_seconds(best.run_s)}, "
               f"{format_si(found.flops_per_s, 'FLOP/s')}",
               f"HPL.dat: P {best.rows}, Q {best.columns}, NB {found.block}, PMAP "
               f"{best.neighbours}", label="grid")  # fmt: skip
    refused = "".join(f"; {count} refused: {why}" for why, count in found.refused.items())
    yield Tile("Why not another grid?",
               f"proven: all {counted(found.num_priced, 'grid')} priced {_model(machine)}{refused}",
               f"work alone takes {format_seconds(found.lower_bound_s)}", "others",
               label="proof")  # fmt: skip
    yield _fit_tile(machine, MATRIX, best.held_bytes)
    yield Tile("What limits it?", largest(best.parts_s, best.run_s), "share of the run", "time",
               label="time", part=_run(best))  # fmt: skip
    if len(found.runs) > 1:
        slower = found.runs[1].run_s / best.run_s - 1.0
        rows = [(str(run.grid), run.run_s, run.held_bytes)
                for run in found.runs[1 : 1 + FIRST_PLANS]]  # fmt: skip
        yield Tile("What else would do?", f"{found.runs[1].grid}: {slower:.1%} slower",
                   section="others", label="instead", spare=2,
                   part=Table(("", "run [s]", "memory [bytes]"), rows))  # fmt: skip


def _grids(found: GridRuns) -> Iterator[Part]:
    if len(found.runs) == 1:
        return
    runs = found.runs[:MOST_PLANS]
    yield Plot(
        "Time of the run, by grid",
        f"{runs[0].grid} {format_seconds(runs[0].run_s)}; work alone takes "
        f"{format_seconds(found.lower_bound_s)} (the line)", "stacked",
        Table(("grid", *(f"{words(part)} [s]" for part in runs[0].parts_s)),
              [(str(run.grid), *run.parts_s.values()) for run in runs]),
        limit=found.lower_bound_s, limit_name="work alone",
    )  # fmt: skip
    yield Table(("grid", "run [s]", "memory [bytes]"),
                [(str(run.grid), run.run_s, run.held_bytes) for run in runs])  # fmt: skip


# ----------------------------------------------------------------------------------- a graph alone


@view(GraphSummary)
def summary_page(graph: GraphSummary) -> Page:
    """Return the page of a graph."""
    often = f", {graph.repeats} times" if graph.repeats > 1 else ""
    kernels, tensors = counted(graph.num_kernels, "kernel"), counted(graph.num_tensors, "tensor")
    sizes = ", ".join(f"{dim} {size}" for dim, size in graph.dims.items())
    return Page(
        title=graph.name,
        subtitle=f"{graph.name}: {kernels}, {tensors}{often}",
        tiles=list(_summary_tiles(graph)),
        sections=(
            Section("dims", "Sizes of its dims", [Text(sizes)]),
            Section("kernels", "What does each kernel do?", [
                Table(("kernel", "unit", "work [FLOP]", "writes [bytes]", "weights [bytes]",
                       "may be split over"), list(map(_summary_row, graph.kernels)))]),
        ),
    )  # fmt: skip


def _summary_tiles(graph: GraphSummary) -> Iterator[Tile]:
    work = {kernel.name: graph.repeats * kernel.flops for kernel in graph.kernels}
    products = sum(work[kernel.name] for kernel in graph.kernels if kernel.unit == "matrix")
    yield Tile("How much work is it?", f"{format_si(graph.flops, 'FLOP')}, "
               f"{format_si(products, 'FLOP')} of it in products", section="kernels",
               label="work")  # fmt: skip
    yield Tile("What does it hold?", f"{graph.num_parameters:,.0f} parameters, words of "
               f"{graph.word_bytes:g} bytes", section="kernels", label="weights")  # fmt: skip
    inputs = [_tensor(graph, name, dims) for name, dims in graph.inputs.items() if dims]
    more = ", ..." * (len(inputs) > MOST_INPUTS)
    yield Tile("What does it read?", ", ".join(inputs[:MOST_INPUTS]) + more, section="dims",
               label="reads")  # fmt: skip
    dims_of = {kernel.name: kernel.dims for kernel in graph.kernels}
    outputs = [_tensor(graph, name, dims_of[name]) for name in graph.outputs]
    more = ", ..." * (len(outputs) > MOST_INPUTS)
    yield Tile("What does it write?", ", ".join(outputs[:MOST_INPUTS]) + more, section="dims",
               label="writes")  # fmt: skip
    gradients = ", ".join(graph.with_gradients)
    yield Tile("What passes in tiles?", graph.tiled, gradients and f"gradients of {gradients}",
               "dims", label="tiled")  # fmt: skip
    yield Tile("Which kernels have the most work?", largest(work, sum(work.values()) or 1.0),
               section="kernels", label="kernels", spare=1,
               part=Whole("Work of the kernels", work, "FLOP"))  # fmt: skip


def _tensor(graph: GraphSummary, name: str, dims: Sequence[str]) -> str:
    """Return a tensor with the size of each dim."""
    sizes = (f"{dim} {prod(graph.dims[one] for one in factors(dim))}" for dim in dims)
    return f"{name}[{', '.join(sizes)}]"


def _summary_row(kernel: GraphKernel) -> tuple[Cell, ...]:
    return (
        kernel.name, kernel.unit, kernel.flops or None, kernel.written_bytes or None,
        kernel.weight_bytes or None, ", ".join(kernel.splits) or "none of its dims",
    )  # fmt: skip
