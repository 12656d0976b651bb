"""``meshwright plan MODEL --on SYSTEM``: the best plan of the whole space, with the proof."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from meshwright.cli.question import add_fixed, add_question, allowed_of, workload_of
from meshwright.cli.serving import add_serving, is_serving, run_serving

if TYPE_CHECKING:
    from meshwright.plans import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the question, what is fixed, and where the plan goes."""
    add_question(parser, is_needed=False)
    add_fixed(parser, several=True)
    add_serving(parser)
    parser.add_argument("--top", type=int, default=5, metavar="N", help="candidates shown (5)")
    parser.add_argument("--out", metavar="FILE", help="write the plan as JSON")
    parser.add_argument("--pareto", action="store_true", help="time, memory, energy, money at once")
    parser.add_argument("--from", dest="origin", metavar="PLAN.json", help="an earlier plan")
    parser.add_argument("--without", type=int, metavar="N", help="with --from: devices lost")


def run(args: argparse.Namespace) -> int:
    """Search, write, print."""
    if args.origin:
        return _run_replan(args)
    if is_serving(args):
        return run_serving(args)
    workload = workload_of(args)
    if args.pareto:
        return _run_front(args, workload)
    from meshwright import planner, plans
    from meshwright.cli.output import show
    from meshwright.report.plan import plan_lines

    plan = planner.plan(
        args.model, args.on, workload,
        allowed=allowed_of(args), top=args.top, calibration=args.calibration,
        progress=_progress(args), command=" ".join(["meshwright", *sys.argv[1:]]),
    )  # fmt: skip
    _save(plan, args.out)
    if args.json:
        show((), plans.to_data(plan), as_json=True)
    else:
        show(plan_lines(plan, planner.what_would_change(plan)), None, as_json=False)
    return 0


def _run_front(args: argparse.Namespace, workload: Any) -> int:
    """Print the front of the whole space."""
    from meshwright import planner, plans
    from meshwright.cli.output import show
    from meshwright.report.plan import front_lines

    found, unknown = planner.front(
        args.model, args.on, workload,
        allowed=allowed_of(args), calibration=args.calibration, progress=_progress(args),
    )  # fmt: skip
    data = {"front": [plans.candidate_data(c) for c in found], "left_out": list(unknown)}
    show(front_lines(found, unknown), data, args.json)
    return 0


def _run_replan(args: argparse.Namespace) -> int:
    """Plan again for the devices that are left."""
    from meshwright import planner, plans
    from meshwright.base.errors import Fault, SpecError
    from meshwright.cli.output import show
    from meshwright.report.plan import replan_lines

    if args.without is None:
        raise SpecError(Fault("--without", "is needed with --from", "the number of devices lost"))
    changed = planner.replan(
        planner.load_plan(args.origin), without=args.without, progress=_progress(args)
    )
    _save(changed.plan, args.out)
    data = {
        "num_lost": changed.num_lost,
        "throughput_fraction": changed.throughput_fraction,
        "changed": list(changed.changed),
        "moved_bytes_per_device": changed.moved_bytes_per_device,
        "plan": plans.to_data(changed.plan),
    }
    lines = replan_lines(changed, planner.what_would_change(changed.plan))
    show(lines, data, args.json)
    return 0


def _save(plan: Plan, path: str | None) -> None:
    """Write a plan where the user asked for it."""
    from pathlib import Path

    from meshwright import plans

    if path:
        plans.save(plan, Path(path))


def _progress(args: argparse.Namespace) -> Reporter | None:
    return None if args.json else Reporter()


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
        text = f"{counts.priced:,} priced, best {found}, bound {left_s:.3g} s; Ctrl-C: best so far"
        sys.stderr.write(f"\r{text:<98}")
        sys.stderr.flush()
