"""``meshwright plan MODEL --on SYSTEM``: the best plan of the whole space, with the proof."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from meshwright.cli.question import add_fixed, add_question, allowed_of, workload_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the question, what is fixed, and where the plan goes."""
    add_question(parser)
    add_fixed(parser, several=True)
    parser.add_argument("--top", type=int, default=5, metavar="N", help="candidates shown (5)")
    parser.add_argument("--out", metavar="FILE", help="write the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Search, write, print."""
    from pathlib import Path

    from meshwright import planner, plans
    from meshwright.cli.output import show
    from meshwright.report.plan import plan_lines

    workload = workload_of(args)
    plan = planner.plan(
        args.model, args.on, workload,
        allowed=allowed_of(args), top=args.top, calibration=args.calibration,
        progress=None if args.json else Reporter(), command=" ".join(["meshwright", *sys.argv[1:]]),
    )  # fmt: skip
    if args.out:
        plans.save(plan, Path(args.out))
    if args.json:
        show((), plans.to_data(plan), as_json=True)
    else:
        show(plan_lines(plan, planner.what_would_change(plan)), None, as_json=False)
    return 0


class Reporter:
    """Tells how a search goes, on a terminal, when it takes more than two seconds."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.on_terminal = sys.stderr.isatty()

    def __call__(self, counts: Any, best: Any, left_s: float) -> None:
        """Print one line that replaces the one before."""
        now = time.monotonic()
        if not self.on_terminal or now - self.started < 2.0 or now - self.last < 0.5:
            return
        self.last = now
        found = f"{best.times_s[0]:.3g} s" if len(best.times_s) else "none"
        text = f"{counts.priced:,} priced, best {found}, bound {left_s:.3g} s; Ctrl-C for the best so far"
        sys.stderr.write(f"\r{text:<98}")
        sys.stderr.flush()
