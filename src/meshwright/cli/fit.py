"""``meshwright fit MODEL --on SYSTEM --tp 8``: does it fit, and what fills the memory."""

from __future__ import annotations

import argparse

from meshwright.cli.output import add_detail, question_line, show_screen
from meshwright.cli.question import add_fixed, add_question, strategy_question


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the question and the strategy."""
    add_question(parser)
    add_fixed(parser, several=False)
    add_detail(parser)


def run(args: argparse.Namespace) -> int:
    """Price the memory of one strategy and print it."""
    from meshwright import api
    from meshwright.report.answer_file import plain_data
    from meshwright.train.report import fit_screen
    from meshwright.train.report_detail import device_lines

    asked, strategy, structure = strategy_question(args)
    plan = api.estimate(
        asked.model, asked.system, asked.workload, strategy, structure,
        calibration=args.calibration, is_placed=False,
    )  # fmt: skip
    price = plan.best.estimate
    advice = [] if price.fits else api.what_would_fit(plan)
    data = {
        "plan": plan.best.text,
        "fits": price.fits,
        "memory_bytes": price.memory_bytes,
        "memory_capacity_bytes": price.memory_capacity_bytes,
        "memory_parts_bytes": dict(price.memory_parts_bytes),
        "fullest_stage": price.fullest_stage,
        "host_bytes_per_device": price.host_bytes_per_device,
        "would_fit": [plain_data(entry) for entry in advice],
    }
    show_screen(
        lambda: fit_screen(plan, advice, next_command=question_line(args)),
        lambda: device_lines(plan.best), lambda: data, args,
    )  # fmt: skip
    return 0 if price.fits else 3
