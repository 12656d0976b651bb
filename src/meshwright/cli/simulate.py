"""``meshwright simulate PLAN.json``: the step of a plan, played; ``flows FILE.json``: flows."""

from __future__ import annotations

import argparse

FLOWS = "flows"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is simulated."""
    parser.add_argument("what", metavar="PLAN.json", help="a plan, or the word: flows")
    parser.add_argument("file", metavar="FILE.json", nargs="?", help="after flows: links and flows")
    parser.add_argument("--trace", metavar="FILE", help="write a Perfetto trace (.json, .json.gz)")


def run(args: argparse.Namespace) -> int:
    """Simulate the step of a plan, or the scenarios of a flow file."""
    from meshwright.cli.failures import UsageError

    if args.what != FLOWS:
        if args.file is not None:
            raise UsageError(f"{args.file!r} is one too many: simulate PLAN.json")
        return run_plan(args.what, args.trace, as_json=args.json)
    if args.trace is not None:
        raise UsageError("--trace is of use with a plan only")
    if args.file is None:
        raise UsageError("a file is missing: simulate flows FILE.json")
    return run_flows(args.file, as_json=args.json)


def run_plan(path: str, trace: str | None, *, as_json: bool) -> int:
    """Print the simulated step of a plan, and write its trace."""
    import sys

    from meshwright import api
    from meshwright.cli.output import show
    from meshwright.cli.reading import output_file
    from meshwright.frameworks.perfetto import write_trace
    from meshwright.wafer.report import simulation_data, simulation_lines

    target = output_file("--trace", trace) if trace is not None else None
    plan = api.load_plan(path)
    if sys.stderr.isatty() and not as_json:
        sys.stderr.write("playing the step: a few seconds, more the first time\n")
    played = api.simulate(plan)
    if target is not None:
        graph = played.step.graph
        notes = {"plan": plan.best.text, "fidelity": "simulated"}
        write_trace(
            played.step.timeline, played.network, target,
            num_bytes=graph.num_bytes, routes=graph.routes, notes=notes,
        )  # fmt: skip
    lines = simulation_lines(plan, played.step, played.network)
    show(lines, simulation_data(plan, played.step, played.network), as_json)
    return 0


def run_flows(path: str, *, as_json: bool) -> int:
    """Print when each flow of each scenario of a file ends."""
    import sys

    from meshwright import api
    from meshwright.cli.output import show
    from meshwright.report.flows import flow_lines, flow_record

    file = api.load_flows(path)
    for warning in file.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    runs = [(scenario, api.simulate_flows(scenario)) for scenario in file.scenarios]
    lines = [line for scenario, timeline in runs for line in flow_lines(scenario, timeline)]
    records = [flow_record(scenario, timeline) for scenario, timeline in runs]
    show(lines, {"scenarios": records}, as_json)
    return 0
