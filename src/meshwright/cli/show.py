"""``meshwright show ...``: the contents of the catalog, and numbers that follow at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.cli.main import command_line, show, show_answer

SCHEMAS = {
    "plan": ("train.answer", "Plan"),
    "front": ("train.answer", "Front"),
    "replan": ("train.answer", "Replan"),
    "deadline": ("train.answer", "Deadline"),
    "serving-plan": ("serve.answer", "ServingPlan"),
    "disaggregated-plan": ("serve.answer", "DisaggregatedPlan"),
    "traffic-plan": ("serve.traffic.answer", "TrafficPlan"),
    "loop-plan": ("loop.answer", "LoopPlan"),
    "graph-plans": ("dataflow.answer", "GraphAnswer"),
    "linpack": ("dataflow.linpack", "GridRuns"),
    "fit": ("train.answer", "Fit"),
    "check": ("train.answer", "Check"),
    "comparison": ("train.answer", "Comparison"),
    "explanation": ("train.answer", "Explanation"),
    "diagnosis": ("train.measured.diagnose", "Diagnosis"),
    "profile": ("frameworks.profiled", "ProfiledStep"),
    "timeline": ("train.timeline", "StepTimeline"),
    "simulation": ("wafer.answer", "SimulatedPlan"),
    "placement": ("wafer.answer", "PlacedPlan"),
    "placements": ("wafer.answer", "Placements"),
    "flows": ("show.flows", "PlayedFlows"),
    "routes": ("show.flows", "ShownRoutes"),
    "partition-plan": ("sram.answer", "PartitionPlan"),
    "fusion": ("dataflow.fusion.answer", "FusionAnswer"),
    "job": ("frameworks.reading.job", "ReadJob"),
    "graph": ("dataflow.answer", "GraphSummary"),
    "sweep": ("sweep.answer", "SweepAnswer"),
    "validation": ("calibration.validation", "Validation"),
    "calibration": ("calibration.fit.report", "FittedRecord"),
    "measurement": ("measure.run", "MeasuredMachine"),
    "run": ("run.answer", "Executed"),
    "collectives": ("show.networks", "Collectives"),
    "topologies": ("show.networks", "Topologies"),
    "walk": ("show.walks.walk", "Walk"),
    "failure": ("show.failure", "Failure"),
}
"""Module and name of the record of each answer, by schema; other distributions add theirs in the
entry points ``meshwright.schemas``."""


def _is_listed(name: str | None, names: Iterable[str], args: Any, *, refuses: str = "") -> bool:
    """Return whether no entry is named; then print the names, with their descriptions if known.

    Parameters
    ----------
    refuses
        Kind of the entry whose options are refused then.
    """
    if name is not None:
        return False
    if refuses:
        reading = args.reading()
        args.refuse_idle(reading, args.options, f"applies only with a {refuses}")
        reading.done()
    about = names if isinstance(names, dict) else {}
    lines = [f"{one:<38} {about[one]}" if about else one for one in names]
    show(lines, about or list(names), args.json)
    return True


def show_model(args: Any) -> int:
    """Print one model, or the names of the catalog."""
    from meshwright.catalog.models import model_names

    if _is_listed(args.model, model_names(), args):
        return 0
    from meshwright.catalog.models import load_model
    from meshwright.graph.transformer import build_graph
    from meshwright.show.model import shown_model

    model = load_model(args.model)
    show_answer(shown_model(model, build_graph(model)), args, detail=True)
    return 0


def show_chip(args: Any) -> int:
    """Print one chip, or the names of the catalog."""
    from meshwright.catalog.systems import chip_names, load_chip
    from meshwright.show.declared import declared

    if _is_listed(args.chip, chip_names(), args):
        return 0
    chip = load_chip(args.chip)
    about = {"name": chip.name, "vendor": chip.vendor}
    also = f", also called {', '.join(chip.also_called)}" if chip.also_called else ""
    title = f"{chip.name} of {chip.vendor}{also}"
    found = declared(chip, about, title, chip.sources)
    show_answer(found, args, data=found.data(), detail=True)
    return 0


def show_system(args: Any) -> int:
    """Print one system, or the names of the catalog."""
    from meshwright.catalog.systems import load_system, system_names
    from meshwright.show.declared import declared
    from meshwright.show.networks import network_of_topology, single_wires
    from meshwright.topology.levels import topology_of

    if _is_listed(args.system, system_names(), args):
        return 0
    system = load_system(args.system)
    about = {"name": system.name, "chip": system.chip.name, "num_alive": system.num_alive}
    title = f"{system.name}: {system.num_devices} x {system.chip.name}, innermost level first"
    topology = topology_of(system)
    faults = system.dead_links, system.slow_links, system.failed_lanes
    is_whole = topology.num_devices == system.num_alive and not any(faults)
    network = network_of_topology(topology) if is_whole and system.levels else None
    found = declared(system, about, title, system.sources, network,
                     single_wires(system))  # fmt: skip
    show_answer(found, args, data=found.data(), detail=True)
    return 0


def show_optimizer(args: Any) -> int:
    """Print one preset, or the names of all."""
    from meshwright.catalog.workloads import load_optimizer, optimizer_names, preset_file
    from meshwright.show.declared import Declared
    from meshwright.view.declared_values import declared_values

    if _is_listed(args.optimizer, optimizer_names(), args):
        return 0
    preset = load_optimizer(args.optimizer)
    origins = preset_file("optimizers").provenance
    entries = list(declared_values(preset, origins, f"presets.{preset.name}"))
    about = {"name": preset.name, "source": preset.source}
    found = Declared(about, f"{preset.name}: {preset.source}", entries)
    show_answer(found, args, data=found.data(), detail=True)
    return 0


def show_framework(args: Any) -> int:
    """Print one framework or server, or the names and versions of all."""
    from meshwright.catalog.files import find_name
    from meshwright.catalog.frameworks import framework_names, framework_versions, load_framework
    from meshwright.catalog.workloads import load_server, server_names, server_sources
    from meshwright.show.declared import framework_shown, server_shown

    if args.framework is None:
        versions = {name: framework_versions(name) for name in framework_names()}
        servers = [load_server(name) for name in server_names()]
        versions |= {one.name: (one.version,) for one in servers if one.launches is not None}
        lines = [f"{name:20} {', '.join(filter(None, held))}" for name, held in versions.items()]
        show([line.rstrip() for line in lines], versions, args.json)
        return 0
    if find_name(args.framework.partition("==")[0], server_names()) is not None:
        server = load_server(args.framework)
        answer = server_shown(server, server_sources(server))
        show_answer(answer, args, data=server.model_dump(mode="json"), detail=True)
        return 0
    framework = load_framework(args.framework)
    record = framework.model_dump(mode="json", exclude={"provenance"})
    show_answer(framework_shown(framework), args, data=record, detail=True)
    return 0


def show_schema(args: Any) -> int:
    """Print the JSON Schema of an answer, or the names of all."""
    from importlib import import_module

    from meshwright.base.registry import load_entry_points
    from meshwright.view.schema import schema_of

    others = load_entry_points("schemas")
    names = [*SCHEMAS, *others]
    if _is_listed(args.schema, names, args):
        return 0
    if args.schema in SCHEMAS:
        module, kind = SCHEMAS[args.schema]
        record = getattr(import_module(f"meshwright.{module}"), kind)
    elif args.schema in others:
        record = others[args.schema]
    else:
        raise UnknownNameError("schema", args.schema, names)
    show((), schema_of(record, args.schema), as_json=True)
    return 0


def show_collectives(args: Any) -> int:
    """Print the algorithms of every kind of collective that apply, fastest first.

    Times of groups that are blocks of the levels are in closed form; those of other devices, and of
    systems with wires that differ from their level, are played.
    """
    from meshwright.ask.declared import system_of
    from meshwright.collectives.bounds import timed_algorithms
    from meshwright.collectives.group import is_block, make_group
    from meshwright.network.placed_collectives import placed_algorithms
    from meshwright.show.networks import Collectives, spans_of
    from meshwright.spec.collective import CollectiveKind
    from meshwright.topology.levels import network_of

    system = system_of(args)
    num_bytes, devices = _group_asked(args, system.num_devices)
    is_listed = "," in args.group
    size, sides = len(devices), [level.size for level in system.levels]
    are_alike = not (system.dead_links or any(system.single_links.values()))
    if not is_listed and are_alike and is_block(sides, args.stride, size):
        group = make_group(system.levels, float(args.stride), float(size))
        spans = spans_of(system.levels, group)
        timed = {str(kind): timed_algorithms(kind, num_bytes, group) for kind in CollectiveKind}
    else:
        spans, network = [], network_of(system)
        timed = {
            str(kind): placed_algorithms(kind, num_bytes, devices, network)
            for kind in CollectiveKind
            if kind is not CollectiveKind.SEND
        }
    fidelity = "closed_form" if spans else "simulated"
    found = Collectives(system.name, args.stride, num_bytes, fidelity, devices, spans, timed)
    show_answer(found, args, detail=True)
    return 0


def _group_asked(args: Any, num_devices: int) -> tuple[float, tuple[int, ...]]:
    """Return the size in bytes, and the devices of the group; all faults are one error."""
    from meshwright.ask.reading import faults_of
    from meshwright.network.placed_collectives import MOST_MEMBERS

    faults, num_bytes = [fault for error in args.errors for fault in faults_of(error)], args.size
    if args.stride is None:
        raise SpecError(faults)
    words, stride = [word.strip() for word in args.group.split(",")], args.stride
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)]
    if wrong:
        fix = "such as 8, or 0,1,2,8"
        raise SpecError(
            [*faults, Fault("--group", f"{wrong[0]!r} is not a number of a device", fix)]
        )
    listed = tuple(map(int, words))
    if len(listed) > 1:
        faults += _faults_of_list(listed, num_devices)
        if stride != 1:
            faults.append(Fault("--stride", "a list of devices has no stride"))
    elif listed[0] < 2:
        faults.append(Fault("--group", f"{listed[0]} is too small for a group; at least 2 members"))
    elif listed[0] * stride > num_devices:
        faults.append(
            Fault(
                "--group",
                f"{listed[0]} members {stride} apart need {listed[0] * stride} "
                f"devices; the system has {num_devices}",
                f"at most {num_devices // stride} members at this stride",
            )
        )
    if len(listed) > MOST_MEMBERS:
        faults.append(Fault("--group", f"{len(listed)} devices", f"at most {MOST_MEMBERS}"))
    if faults:
        raise SpecError(faults)
    if len(listed) > 1:
        return num_bytes, listed
    return num_bytes, tuple(range(0, listed[0] * stride, stride))


def _faults_of_list(listed: tuple[int, ...], num_devices: int) -> list[Fault]:
    """Return the faults of a list of devices: those that do not exist, or occur twice."""
    faults = [
        Fault("--group", f"device {one}; the system has {num_devices}", f"0 to {num_devices - 1}")
        for one in listed
        if one >= num_devices
    ]
    twice = sorted({one for one in listed if listed.count(one) > 1})
    return faults + [Fault("--group", f"device {one} is named twice") for one in twice]


def show_walk(args: Any) -> int:
    """Print a walk frame by frame, or the names of all; write its page."""
    from meshwright.show.walks.named import walk_names

    if _is_listed(args.walk, walk_names(), args, refuses="walk"):
        return 0
    from meshwright.catalog.models import load_model
    from meshwright.sharding.strategy import Streamed
    from meshwright.show.walks.named import (
        WalkQuestion,
        form_of,
        idle_options,
        shape_of_text,
        walk_of,
        walks_beside,
    )
    from meshwright.show.walks.view import walk_page
    from meshwright.view.html import write_page

    if args.walk not in walk_names():
        raise UnknownNameError("walk", args.walk, walk_names())
    reading = args.reading()
    for fault in idle_options(args.walk, args.stated):
        reading.fault(fault.path, fault.message, fault.fix)
    question = WalkQuestion(
        name=args.walk,
        shape=None if args.group is None else reading.value(shape_of_text, args.group),
        model=reading.value(load_model, args.model or "gpt3-175b"),
        num_tokens=args.seq or 2048,
        num_bytes=args.size or 2.0**26,
        form=reading.value(form_of, args.form),
        streamed=None if args.streamed is None else Streamed(args.streamed),
    )
    reading.done()
    walk = walk_of(question)
    if args.report is not None:
        page = walk_page(walk, walks_beside(question), command_line())
        write_page(page, args.report, force=args.force)
    show_answer(walk, args, detail=True)
    return 0


def show_graph(args: Any) -> int:
    """Print one graph, or the names of the catalog."""
    from meshwright.ask.declared import program_of
    from meshwright.catalog.graphs.files import graph_names, graph_yaml
    from meshwright.dataflow.answer import summary
    from meshwright.dataflow.question import load_graph
    from meshwright.graph.kernels.declared import to_spec

    if _is_listed(args.graph, graph_names(), args, refuses="graph"):
        return 0
    if args.yaml and args.json:
        raise SpecError(Fault("--json", "has no effect with --yaml", "take one of them"))
    graph = load_graph(args.graph, tokens=args.tokens, **program_of(args))
    if args.yaml:
        show([graph_yaml(to_spec(graph)).rstrip()], None, as_json=False, is_file=True)
        return 0
    show_answer(summary(graph), args, detail=True)
    return 0


def show_topologies(args: Any) -> int:
    """Print every topology in its usual shape for a number of devices."""
    from meshwright.show.networks import shaped_topologies
    from meshwright.topology.network import LinkSpec, topologies

    link = LinkSpec(1.0)
    shaped = {name: topologies[name](args.devices, link) for name in topologies}
    show_answer(shaped_topologies(args.devices, shaped), args, detail=True)
    return 0
