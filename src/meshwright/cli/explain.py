"""``meshwright explain PLAN.json``: why this plan, why not another, what would change it."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which plan."""
    parser.add_argument("plan", metavar="PLAN.json", help="a plan written by plan --out")


def run(args: argparse.Namespace) -> int:
    """Explain a plan."""
    from dataclasses import asdict

    from meshwright import planner, plans
    from meshwright.cli.output import show
    from meshwright.report.explain import explain_lines

    plan = planner.load_plan(args.plan)
    explanation = planner.explain(plan)
    data = {
        "plan": plan.best.text,
        "limits": dict(explanation.shares),
        "would_change": [asdict(change) for change in explanation.changes],
        "why_not": [plans.why_not_data(why) for why in explanation.why_not],
        "not_possible": dict(explanation.not_possible),
    }
    show(explain_lines(plan, explanation), data, args.json)
    return 0
