"""``meshwright show system 64xH100|NAME|PATH``: devices and levels, each value with its source."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which system."""
    parser.add_argument(
        "system",
        nargs="?",
        help="64xH100, wafer-6x8, a catalog name or a YAML file; without one, the names",
    )


def run(args: argparse.Namespace) -> int:
    """Print one system, or the names of the catalog."""
    from meshwright.catalog.systems import load_system, system_names
    from meshwright.cli.output import show
    from meshwright.report.declared_values import declaration_lines, declaration_record
    from meshwright.report.topologies import network_line, network_record
    from meshwright.topology.hierarchical import topology_of

    if args.system is None:
        show(system_names(), list(system_names()), args.json)
        return 0
    system = load_system(args.system)
    about = {"name": system.name, "chip": system.chip.name, "num_alive": system.num_alive}
    title = f"{system.name}: {system.num_devices} x {system.chip.name}, innermost level first"
    record = declaration_record(system, about, system.sources)
    lines = declaration_lines(system, title, system.sources)
    topology = topology_of(system)
    is_whole = topology.num_devices == system.num_alive and not system.dead_links
    if is_whole and system.levels:
        lines.insert(1, network_line(topology))
        record["network"] = network_record(topology)
    show(lines, record, args.json)
    return 0
