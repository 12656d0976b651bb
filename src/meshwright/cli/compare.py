"""``meshwright compare MODEL --on SYSTEM``: the best plan of each recipe, side by side."""

from __future__ import annotations

import argparse

from meshwright.cli.measuring import add_measured_file, factors_of
from meshwright.cli.output import add_detail, show_screen
from meshwright.cli.progress import SearchProgress
from meshwright.cli.question import add_fixed, add_question, question_of
from meshwright.cli.reading import Reading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the question, what is fixed for all, and what to compare with."""
    add_question(parser)
    add_fixed(parser, several=True)
    add_measured_file(parser)
    add_detail(parser)
    parser.add_argument(
        "--against", metavar="NAME,NAME", help="recipes such as megatron-3,fsdp (all of them)"
    )


def run(args: argparse.Namespace) -> int:
    """Search each recipe, and print; 3 where nothing fits, whatever is free."""
    from meshwright import api
    from meshwright.train.compare import comparison_data
    from meshwright.train.report import comparison_screen
    from meshwright.train.report_detail import comparison_lines

    reading = Reading()
    against = reading.value(recipes_of, args.against) if args.against is not None else None
    asked = reading.value(question_of, args)
    reading.done()
    found = api.compare(
        asked.model, asked.system, asked.workload, against=against, allowed=asked.allowed,
        calibration=args.calibration, factors=factors_of(args, asked.system.chip.family),
        progress=None if args.json else SearchProgress(),
    )  # fmt: skip
    show_screen(
        lambda: comparison_screen(found), lambda: comparison_lines(found),
        lambda: comparison_data(found), args,
    )  # fmt: skip
    return 0 if found.ours.best is not None else 3


def recipes_of(text: str) -> tuple[str, ...]:
    """Return the names of recipes in a list.

    Raises
    ------
    UnknownNameError
        A name that no recipe has.
    """
    from meshwright.train.compare import recipes

    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        recipes[name]
    return names
