"""``meshwright explain``: why this plan, why not another; and where a measured step loses time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from meshwright.cli.launched import add_script, with_script
from meshwright.cli.measuring import measured_bytes, measured_step_s
from meshwright.cli.output import add_detail, show_screen
from meshwright.cli.question import (
    ASKED,
    FIXED,
    add_fixed,
    add_question,
    refuse_idle,
    strategy_question,
)
from meshwright.cli.reading import Reading, needed, picture_file

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.train.answer import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which plan, and what was measured of it."""
    add_question(
        parser, is_needed=False,
        model_help="a plan written by plan --out; with --on: the model of a strategy given here",
    )  # fmt: skip
    add_fixed(parser, several=False)
    add_detail(parser)
    group = parser.add_argument_group("a job that ran")
    add_script(group)
    group.add_argument("--measured", metavar="TIME", help="of a step: 8.1s, or 412k tokens/s")
    group.add_argument("--measured-memory", metavar="SIZE", help="of the fullest device: 61 GB")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the grid and its link heat")
    parser.add_argument("--colors", metavar="AXIS", help="with --picture: groups of this axis")


def run(args: argparse.Namespace) -> int:
    """Explain a plan, or what was measured of it."""
    reading = Reading()
    path = reading.value(picture_file, args.picture) if args.picture else None
    _refuse_idle(reading, args)
    plan = reading.value(_plan, args)
    reading.done()
    if args.measured is not None:
        return _run_measured(args, plan)
    return _run_plan(args, plan, path)


def _plan(args: argparse.Namespace) -> Plan:
    """Return the plan of a file, or the price of the strategy that the options state."""
    from meshwright import api

    if args.on is None:
        return needed("PLAN.json", args.model, api.load_plan)
    asked, strategy, structure = strategy_question(with_script(args))
    return api.estimate(
        asked.model, asked.system, asked.workload, strategy, structure,
        calibration=args.calibration,
    )  # fmt: skip


def _refuse_idle(reading: Reading, args: argparse.Namespace) -> None:
    """Keep a complaint for each option that would change nothing beside the others."""
    if args.on is None:
        names = (*ASKED, *FIXED, "script")
        stated = [name for name in names if name not in ("model", "on")]
        refuse_idle(reading, args, stated, "is of use with --on only: the plan file states this")
    if args.picture is None:
        refuse_idle(reading, args, ("colors",), "is of use with --picture only")
    if args.measured is None:
        refuse_idle(reading, args, ("measured_memory",), "is of use with --measured only")
    else:
        refuse_idle(reading, args, ("picture",), "with --measured nothing is drawn")


def _run_measured(args: argparse.Namespace, plan: Plan) -> int:
    """Say where a measured step loses time, and what would win it back."""
    from meshwright import api
    from meshwright.cli.output import show
    from meshwright.train.measured.diagnose import diagnosis_data
    from meshwright.train.measured.report import diagnosis_lines

    reading = Reading()
    step_s = reading.value(measured_step_s, args.measured, plan)
    memory = args.measured_memory
    size = None if memory is None else reading.value(measured_bytes, memory, plan)
    reading.done()
    found = api.diagnose(plan, step_s, measured_memory_bytes=size)
    show(diagnosis_lines(plan, found), diagnosis_data(found) if args.json else None, args.json)
    return 0


def _run_plan(args: argparse.Namespace, plan: Plan, path: Path | None) -> int:
    """Say why a plan is what it is."""
    from dataclasses import asdict
    from itertools import chain

    from meshwright import api
    from meshwright.cli.output import write_whole
    from meshwright.report.answer_file import plain_data
    from meshwright.train.report import explain_screen
    from meshwright.train.report_detail import explain_lines
    from meshwright.wafer.map.svg import wafer_svg
    from meshwright.wafer.map.text import wafer_text

    picture = api.draw(plan, args.colors) if plan.best.placement or path else None
    if path is not None and picture is not None:
        write_whole(path, wafer_svg(picture))
    explanation = api.explain(plan)
    trials = None if plan.robustness is None else plan.robustness.trials
    data = {
        "plan": plan.best.text,
        "limits": dict(explanation.shares),
        "would_change": [asdict(change) for change in explanation.changes],
        "why_not": [plain_data(why) for why in explanation.why_not],
        "not_possible": dict(explanation.not_possible),
        "trials": None if trials is None else asdict(trials),
    }
    drawn = [] if picture is None else [*wafer_text(picture), ""]
    after = f"meshwright export {args.model if args.on is None else 'plan.json'} megatron"
    show_screen(
        lambda: explain_screen(plan, explanation, next_command=after),
        lambda: chain(explain_lines(plan, explanation), drawn), lambda: data, args,
    )  # fmt: skip
    return 0
