"""``meshwright show topologies --devices 64``: links, diameter and bisection of each network."""

from __future__ import annotations

import argparse

MOST_DEVICES = 10_000
"""Beyond this the shapes of a dragonfly take long to try."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the number of devices."""
    parser.add_argument("--devices", type=int, default=16, help="how many to join (default 16)")


def run(args: argparse.Namespace) -> int:
    """Print every topology in its usual shape of so many devices."""
    from meshwright.base.errors import Fault, SpecError
    from meshwright.cli.output import show
    from meshwright.report.topologies import topologies_lines, topologies_record
    from meshwright.topology.registry import LinkSpec, topologies

    if not 1 <= args.devices <= MOST_DEVICES:
        fault = Fault("--devices", f"{args.devices} devices", f"from 1 to {MOST_DEVICES}")
        raise SpecError(fault)
    link = LinkSpec(1.0)
    shaped = {name: topologies[name].of_size(args.devices, link) for name in topologies}
    lines = topologies_lines(args.devices, shaped)
    show(lines, topologies_record(args.devices, shaped), args.json)
    return 0
