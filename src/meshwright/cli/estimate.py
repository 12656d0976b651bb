"""``meshwright estimate MODEL --on SYSTEM --tp 8 --pp 4``: the price of one given strategy."""

from __future__ import annotations

import argparse
import sys

from meshwright.cli.measuring import add_measured_file, factors_of
from meshwright.cli.output import add_detail, next_command, question_line, show_screen
from meshwright.cli.question import add_fixed, add_question, strategy_question
from meshwright.cli.reading import output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the question and the strategy."""
    add_question(parser)
    add_fixed(parser, several=False)
    add_measured_file(parser)
    add_detail(parser)
    parser.add_argument("--out", metavar="FILE", help="write the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Price, write, print."""
    from meshwright import api
    from meshwright.train import plan_file as files
    from meshwright.train.report import plan_screen
    from meshwright.train.report_detail import plan_lines

    path = output_file("--out", args.out) if args.out is not None else None
    asked, strategy, structure = strategy_question(args)
    plan = api.estimate(
        asked.model, asked.system, asked.workload, strategy, structure,
        calibration=args.calibration, factors=factors_of(args, asked.system.chip.family),
        command=" ".join(["meshwright", *sys.argv[1:]]),
    )  # fmt: skip
    if path is not None:
        files.save(plan, path)
    show_screen(
        lambda: plan_screen(
            plan, others=api.what_would_fit(plan) if not plan.best.estimate.fits else (),
            next_command=next_command(args) if plan.best.estimate.fits else question_line(args),
        ),
        lambda: plan_lines(plan, api.what_would_change(plan)), lambda: files.to_data(plan), args,
    )  # fmt: skip
    return 0 if plan.best.estimate.fits else 3
