"""The reports of a graph on a system, and of Linpack on a grid of devices."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.dataflow.answer import (
    GraphAnswer,
    GraphPlan,
    SplitKernelRecord,
    kernel_records,
)
from meshwright.dataflow.energy import total_w
from meshwright.dataflow.linpack import GridRun, GridRuns
from meshwright.dataflow.report import degrees
from meshwright.dataflow.roofline import CalibratedSystem
from meshwright.spec.calibration import constants_of
from meshwright.view import charts
from meshwright.view.parts import Chart, Code, Page, Part, Section, Table, Text, Tile
from meshwright.view.pieces import (
    GIB,
    constants,
    count_chart,
    largest,
    memory_chart,
    provenance,
    ranked,
    time_chart,
)
from meshwright.view.words import counted, rent_rate, words

MOST_KERNELS = 24
"""Kernels that have a bar."""
MOST_PLANS = 20
"""Plans that have a row."""


def graph_page(found: GraphAnswer) -> Page:
    """Return the report of the plans of a computation."""
    graph, best = found.graph, found.plans.best
    often = f", {graph.repeats} times" if graph.repeats > 1 else ""
    kernels = list(kernel_records(graph, best))
    sections = (
        Section("plan", "The plan", [Code(degrees(best), "degrees"), Text(_plan_text(best))]),
        Section("memory", "Does it fit?", [memory_of(found.machine, best.held_bytes)]),
        Section("time", "How fast, and what limits it?", list(_time_parts(found))),
        Section("kernels", "What does each kernel do?", list(_kernel_parts(kernels))),
        Section("others", "Why not another plan?", list(filter(None, [ranking_of(found)]))),
        Section("space", "What was searched?", list(_space_parts(found))),
        Section("sure", "How sure is it?", _sure(found.machine)),
        Section("power", "What power does it draw?", list(_power_parts(found))),
    )
    return Page(
        title=f"{graph.name} on {found.machine.spec.name}",
        subtitle=f"{counted(len(graph.kernels), 'kernel')}{often}, {format_si(graph.flops, 'FLOP')}"
        f"; {counted(best.num_passes, 'pass', 'passes')} of each replica in a step",
        tiles=list(_graph_tiles(found)),
        sections=[section for section in sections if section.parts],
        command=found.command,
        version=found.version,
    )


def _graph_tiles(found: GraphAnswer) -> Iterator[Tile]:
    plans, best, machine = found.plans, found.plans.best, found.machine
    yield _fit_tile(machine, best.held_bytes)
    yield Tile("How fast is it?", f"{format_seconds(best.step_s)} a step",
               f"{best.passes_per_s:.4g} passes/s; closed-form model", "time")  # fmt: skip
    yield Tile("What limits it?", largest(best.parts_s, best.step_s), "share of a step", "time")
    searched = f"{len(plans.plans)} of {_num_degrees(found)} degrees priced, gap {plans.gap:.1%}"
    if len(plans.plans) > 1:
        slower = plans.plans[1].step_s / best.step_s - 1.0
        yield Tile("Why not another plan?", f"The next one is {slower:.1%} slower", searched,
                   "others")  # fmt: skip
    else:
        yield Tile("Why not another plan?", "No other one fits", searched, "space")
    yield _sure_tile(machine)
    drawn = total_w(found.power_w)
    if drawn is not None:
        yield Tile("What power does it draw?", format_si(drawn, "W"),
                   rent_rate(machine.spec.chip, machine.spec.num_alive), "power")  # fmt: skip


def _num_degrees(found: GraphAnswer) -> int:
    return len(found.plans.plans) + sum(found.plans.refused.values())


def _plan_text(best: GraphPlan) -> str:
    parts = []
    if best.tp > 1:
        parts.append(f"kernels are split over {best.tp} devices")
    if best.stages:
        parts.append(f"the graph is cut into {counted(len(best.stages), 'stage')}")
    elif best.pp > 1:
        parts.append(f"{best.pp} stages with {counted(best.layers, 'repetition')} at most")
    if best.dp > 1:
        parts.append(f"{best.dp} replicas")
    text = "; ".join(parts) or "One device does it all"
    return f"{text[:1].upper()}{text[1:]}."


def time_of(found: GraphAnswer) -> Chart:
    """Return the chart of the parts of a step."""
    best = found.plans.best
    return time_chart("Time of a step", best.parts_s, best.step_s)


def kernels_of(found: GraphAnswer) -> Chart | None:
    """Return the time of each kernel in one pass; None: the graph is cut into stages."""
    kernels = list(kernel_records(found.graph, found.plans.best))
    if not kernels:
        return None
    ordered = sorted(kernels, key=lambda record: -record["time_s"])[:MOST_KERNELS]
    names = [record["name"] for record in ordered]
    times = [record["time_s"] for record in ordered]
    left = len(kernels) - len(ordered)
    return Chart(
        "Time of each kernel, in one pass",
        f"The longest: {names[0]}, {format_seconds(times[0])}"
        + (f"; {left} shorter ones are in the table of kernels" if left else ""),
        charts.bars(names, times, [format_seconds(time) for time in times], "time [s]"),
    )


def stages_of(found: GraphAnswer) -> Chart | None:
    """Return the time of each stage in one pass; None: the graph is not cut."""
    best = found.plans.best
    if not best.stages:
        return None
    names = [f"stage {number}" for number in range(1, len(best.stages) + 1)]
    parts = {"busy": [stage.busy for stage in best.stages],
             "send": [stage.send for stage in best.stages]}  # fmt: skip
    rows = [
        (name, format_seconds(stage.busy), format_seconds(stage.send),
         ", ".join(found.graph.kernels[number].name for number in stage.kernels))
        for name, stage in zip(names, best.stages, strict=True)
    ]  # fmt: skip
    return Chart(
        "Time of each stage, in one pass",
        f"The slowest takes {format_seconds(best.stage_s)}; sending overlaps the other passes",
        charts.stacked(names, parts, "time [s]", row_title=""),
        Table(("", "busy>", "sends>", "kernels"), rows),
    )


def _time_parts(found: GraphAnswer) -> Iterator[Part]:
    best = found.plans.best
    yield time_of(found)
    if best.sharding is not None:
        sent_s = best.layers * sum(change.cost for change in best.sharding.changes)
        yield Text(f"A pass through a stage takes {format_seconds(best.stage_s)}; changes of "
                   f"layout in it {format_seconds(sent_s)}.")  # fmt: skip
    yield from filter(None, [kernels_of(found), stages_of(found)])


def _kernel_parts(kernels: list[SplitKernelRecord]) -> Iterator[Part]:
    if not kernels:
        return
    rows = []
    for record in kernels:
        sent = "; ".join(
            f"{one['kind'].replace('_', '-')} of {format_bytes(one['num_bytes'])}, "
            f"{format_seconds(one['time_s'])}"
            for one in record["collectives"]
        )
        leaves = f", leaves {record['leaves']}" if record["leaves"] else ""
        rows.append((record["name"], format_seconds(record["time_s"]), record["split"] or "",
                     f"{record['writes']}{leaves}", sent))  # fmt: skip
    yield Table(("kernel", "time>", "split over", "writes", "collectives behind it"), rows)


def ranking_of(found: GraphAnswer) -> Chart | None:
    """Return the step of the leading degrees in its parts; None: there is one plan."""
    plans = found.plans.plans
    if len(plans) == 1:
        return None
    shown = plans[:MOST_PLANS]
    names = [degrees(plan) for plan in shown]
    parts = [ranked(plan.parts_s) for plan in shown]
    every = list(dict.fromkeys(name for one in parts for name in one))
    left = len(plans) - len(shown)
    rest = f"; {left} slower ones are left out" if left else ""
    return Chart(
        "Time of a step, by degrees",
        f"{names[0]} {format_seconds(shown[0].step_s)}; {names[1]} "
        f"{format_seconds(shown[1].step_s)}{rest}",
        charts.stacked(names, {name: [one.get(name, 0.0) for one in parts] for name in every},
                       "time of a step [s]", row_title="", limit=shown[0].step_s,
                       limit_name="this plan [s]"),
        Table(("degrees", "step>", "passes/s>", "GiB>", "no plan of them is faster than>"),
              [(degrees(plan), format_seconds(plan.step_s), f"{plan.passes_per_s:.4g}",
                f"{plan.held_bytes / GIB:.2f}", format_seconds(plan.lower_bound_s))
               for plan in shown]),
    )  # fmt: skip


def _space_parts(found: GraphAnswer) -> Iterator[Part]:
    plans = found.plans
    yield Text(
        f"{len(plans.plans)} of {_num_degrees(found)} degrees were priced; nothing takes less than "
        f"{format_seconds(plans.lower_bound_s)} (gap {plans.gap:.1%}). The proof is of the model "
        "of cost."
    )
    if plans.refused:
        counts = {"priced": len(plans.plans), **plans.refused}
        yield count_chart("What became of the degrees", counts, "degrees")


def power_of(found: GraphAnswer) -> Chart | None:
    """Return the mean power over a step; None: it is not known."""
    known = {words(name.removesuffix("_w")): part
             for name, part in found.power_w.items() if part is not None}  # fmt: skip
    if not known:
        return None
    shown = [format_si(part, "W") for part in known.values()]
    return Chart(
        "Mean power over a step",
        "; ".join(f"{name} {text}" for name, text in zip(known, shown, strict=True)),
        charts.bars(list(known), list(known.values()), shown, "power [W]",
                    colour=charts.COLOURS[1]),
    )  # fmt: skip


def _power_parts(found: GraphAnswer) -> Iterator[Part]:
    yield from filter(None, [power_of(found)])
    moved = found.plans.moved
    yield Text(f"All devices together move {format_bytes(moved.memory_bytes)} in and out of their "
               f"memories and {format_bytes(moved.link_bytes)} over links in a step.")  # fmt: skip


# ------------------------------------------------------------------------------ what both pages say


def memory_of(machine: CalibratedSystem, held_bytes: float) -> Chart:
    """Return the chart of the memory of the fullest device."""
    capacity = machine.spec.chip.main_memory.capacity_bytes
    parts = {"weights and tensors": held_bytes,
             "margin and buffers": capacity - machine.usable_bytes}  # fmt: skip
    return memory_chart("Memory of the fullest device", parts, capacity)


def _fit_tile(machine: CalibratedSystem, held_bytes: float) -> Tile:
    usable = machine.usable_bytes
    answer = f"{format_bytes(held_bytes)} of {format_bytes(usable)}"
    fits = held_bytes <= usable
    return Tile("Does it fit?", f"{'Yes' if fits else 'No'}, {answer}",
                "what a plan may fill of the fullest device", "memory",
                "good" if fits else "bad")  # fmt: skip


def _sure_tile(machine: CalibratedSystem) -> Tile:
    known = machine.calibration.is_calibrated
    note = "constants fitted to measurements of training" if known else \
        "the constants of this chip were not fitted to measurements"  # fmt: skip
    return Tile("How sure is it?", "Calibrated" if known else "Not calibrated", note, "sure")


def _sure(machine: CalibratedSystem) -> list[Part]:
    return [Text("Fidelity: closed-form. There is no interval: graphs have no measured rows."),
            provenance(machine.spec),
            constants(constants_of(machine.calibration), machine.calibration.source)]  # fmt: skip


# ----------------------------------------------------------------------------------------- Linpack


def linpack_page(found: GridRuns) -> Page:
    """Return the report of Linpack on grids of devices."""
    best, machine = found.best, found.system
    memory = memory_of(machine, best.held_bytes)
    sections = (
        Section("plan", "The grid", [Code(str(best.grid), "rows x columns of devices")]),
        Section("memory", "Does it fit?", [memory]),
        Section("time", "How fast, and what limits it?",
                [run_of(found)]),
        Section("others", "Why not another grid?", list(filter(None, [grids_of(found)]))),
        Section("sure", "How sure is it?", _sure(machine)),
    )  # fmt: skip
    return Page(
        title=f"Linpack of {found.size:,} on {machine.spec.name}",
        subtitle=f"hpl-{found.size}x{found.block}: {found.size:,} equations, blocks of "
        f"{found.block:,}, double precision",
        tiles=list(_grid_tiles(found)),
        sections=[section for section in sections if section.parts],
        command=found.command,
        version=found.version,
    )


def run_of(found: GridRuns) -> Chart:
    """Return the chart of the parts of the run."""
    return time_chart("Time of the run", found.best.parts_s, found.best.run_s)


def _grid_tiles(found: GridRuns) -> Iterator[Tile]:
    best, machine = found.best, found.system
    yield _fit_tile(machine, best.held_bytes)
    yield Tile("How fast is it?", format_si(found.flops_per_s, "FLOP/s"),
               f"{format_seconds(best.run_s)} the run; closed-form model", "time")  # fmt: skip
    yield Tile("What limits it?", largest(best.parts_s, best.run_s), "share of the run", "time")
    searched = f"{len(found.runs)} grids priced, {found.num_refused} over memory"
    if len(found.runs) > 1:
        slower = found.runs[1].run_s / best.run_s - 1.0
        yield Tile("Why not another grid?", f"{found.runs[1].grid}: {slower:.1%} slower", searched,
                   "others")  # fmt: skip
    else:
        yield Tile("Why not another grid?", "None other fits", searched, "plan")
    yield _sure_tile(machine)
    yield Tile("What to run?", f"P {best.grid.rows}, Q {best.grid.columns}, NB {found.block}",
               "of HPL.dat; PMAP row" if best.grid.is_row_major else "of HPL.dat; PMAP column",
               "plan")  # fmt: skip


def grids_of(found: GridRuns) -> Chart | None:
    """Return the run on the leading grids in its parts; None: there is one grid."""
    if len(found.runs) == 1:
        return None
    shown: tuple[GridRun, ...] = found.runs[:MOST_PLANS]
    parts = [ranked(run.parts_s) for run in shown]
    every = list(dict.fromkeys(name for one in parts for name in one))
    return Chart(
        "Time of the run, by grid",
        f"{shown[0].grid} {format_seconds(shown[0].run_s)}; work alone takes "
        f"{format_seconds(found.lower_bound_s)} (the line)",
        charts.stacked([str(run.grid) for run in shown],
                       {name: [one.get(name, 0.0) for one in parts] for name in every},
                       "time [s]", row_title="", limit=found.lower_bound_s,
                       limit_name="work alone [s]"),
        Table(("grid", "run>", "GiB>"),
              [(str(run.grid), format_seconds(run.run_s), f"{run.held_bytes / GIB:.2f}")
               for run in shown]),
    )  # fmt: skip
