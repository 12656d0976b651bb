"""``meshwright explain PLAN.json``: why this plan, why not another, what would change it."""

from __future__ import annotations

import argparse

from meshwright.cli.question import refuse_idle
from meshwright.cli.reading import Reading, output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which plan."""
    parser.add_argument("plan", metavar="PLAN.json", help="a plan written by plan --out")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the grid and its link heat")
    parser.add_argument("--colors", metavar="AXIS", help="with --picture: groups of this axis")


def run(args: argparse.Namespace) -> int:
    """Explain a plan."""
    from dataclasses import asdict
    from itertools import chain

    from meshwright import planner, plans
    from meshwright.cli.output import show, write_whole
    from meshwright.report.explain import explain_lines
    from meshwright.report.wafer_map import wafer_svg, wafer_text

    reading = Reading()
    path = reading.value(output_file, "--picture", args.picture) if args.picture else None
    if args.picture is None:
        refuse_idle(reading, args, ("colors",), "is of use with --picture only")
    plan = reading.value(planner.load_plan, args.plan)
    reading.done()
    picture = planner.draw(plan, args.colors) if plan.best.placement or path else None
    if path is not None and picture is not None:
        write_whole(path, wafer_svg(picture))
    explanation = planner.explain(plan)
    data = {
        "plan": plan.best.text,
        "limits": dict(explanation.shares),
        "would_change": [asdict(change) for change in explanation.changes],
        "why_not": [plans.why_not_data(why) for why in explanation.why_not],
        "not_possible": dict(explanation.not_possible),
    }
    drawn = [] if picture is None else [*wafer_text(picture), ""]
    show(chain(explain_lines(plan, explanation), drawn), data, args.json)
    return 0
