"""``meshwright show optimizer NAME``: bytes per parameter of a framework's optimizer preset."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which preset."""
    parser.add_argument("optimizer", nargs="?", help="preset; without one, the names")


def run(args: argparse.Namespace) -> int:
    """Print one preset, or the names of all."""
    from meshwright.catalog.workloads import load_optimizer, optimizer_file, optimizer_names
    from meshwright.cli.show_model import show
    from meshwright.report.declared_values import declared_values, value_lines, value_record

    if args.optimizer is None:
        show(optimizer_names(), list(optimizer_names()), args.json)
        return 0
    preset = load_optimizer(args.optimizer)
    origins = optimizer_file().provenance
    entries = list(declared_values(preset, origins, f"presets.{preset.name}"))
    lines = (f"{preset.name}: {preset.source}", "", *value_lines(entries))
    values = [value_record(entry) for entry in entries]
    show(lines, {"name": preset.name, "source": preset.source, "values": values}, args.json)
    return 0
