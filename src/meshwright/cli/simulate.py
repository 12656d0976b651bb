"""``meshwright simulate flows FILE.json``: when flows end that share links."""

from __future__ import annotations

import argparse

FLOWS = "flows"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is simulated."""
    parser.add_argument("what", metavar="WHAT", help="flows: a file of links and flows")
    parser.add_argument("file", metavar="FILE.json", nargs="?", help="the file of flows")


def run(args: argparse.Namespace) -> int:
    """Simulate the scenarios of a flow file."""
    from meshwright.base.errors import nearest
    from meshwright.cli.failures import UsageError

    if args.what != FLOWS:
        raise UsageError(f"{args.what!r} cannot be simulated; {nearest(args.what, [FLOWS])}")
    if args.file is None:
        raise UsageError("a file is missing: simulate flows FILE.json")
    return run_flows(args.file, as_json=args.json)


def run_flows(path: str, *, as_json: bool) -> int:
    """Print when each flow of each scenario of a file ends."""
    import sys

    from meshwright import planner
    from meshwright.cli.output import show
    from meshwright.report.flows import flow_lines, flow_record

    file = planner.load_flows(path)
    for warning in file.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    runs = [(scenario, planner.simulate_flows(scenario)) for scenario in file.scenarios]
    lines = [line for scenario, timeline in runs for line in flow_lines(scenario, timeline)]
    records = [flow_record(scenario, timeline) for scenario, timeline in runs]
    show(lines, {"scenarios": records}, as_json)
    return 0
