"""``meshwright plan MODEL --on SYSTEM``: the best plan of the whole space, with the proof."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from meshwright.cli.graph_plan import GRAPH_ONLY, add_graph, run_graph
from meshwright.cli.measuring import add_measured_file, factors_of
from meshwright.cli.output import add_detail, next_command, show_screen
from meshwright.cli.progress import SearchProgress
from meshwright.cli.question import (
    ASKED,
    FIXED,
    Question,
    add_fixed,
    add_question,
    question_of,
    refuse_idle,
)
from meshwright.cli.reading import Reading, needed, output_file, whole_number
from meshwright.cli.serving import SERVING_ONLY, add_serving, is_serving, run_serving

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.train.answer import Plan
    from meshwright.train.measured.factors import Factors

ABOUT_GRAPHS = ("on", "seq", "global_batch", "optimizer", "tp", "pp", "dp")
NOT_FOR_GRAPHS = (
    *(name for name in (*ASKED, *FIXED) if name not in ABOUT_GRAPHS), *SERVING_ONLY,
    "decode", "prefill", "pareto", "per_operator", "out", "without", "measured",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the question, what is fixed, and where the plan goes."""
    add_question(parser, is_needed=False)
    add_fixed(parser, several=True)
    add_serving(parser)
    add_graph(parser)
    add_measured_file(parser)
    add_detail(parser)
    parser.add_argument("--top", metavar="N", help="candidates shown (5)")
    parser.add_argument("--out", metavar="FILE", help="write the plan as JSON")
    parser.add_argument("--pareto", action="store_true", help="time, memory, energy, money at once")
    parser.add_argument("--per-operator", action="store_true",
                        help="on a grid: a strategy for each operator, too")  # fmt: skip
    parser.add_argument("--from", dest="origin", metavar="PLAN.json", help="an earlier plan")
    parser.add_argument("--without", metavar="N", help="with --from: devices lost")


def run(args: argparse.Namespace) -> int:
    """Search, write, print."""
    reading = Reading()
    _refuse_idle(reading, args)
    path = reading.value(output_file, "--out", args.out) if args.out is not None else None
    top = reading.value(whole_number, "--top", args.top) if args.top is not None else 5
    if args.origin is not None:
        return _run_replan(reading, args, path)
    if args.graph is not None:
        return run_graph(reading, args, top)
    if is_serving(args):
        return run_serving(reading, args, path, top)
    asked = reading.value(question_of, args)
    reading.done()
    factors = factors_of(args, asked.system.chip.family)
    if args.pareto:
        return _run_front(args, asked, factors)
    from meshwright import api
    from meshwright.train import plan_file as files
    from meshwright.train.report import plan_screen
    from meshwright.train.report_detail import plan_lines

    plan = api.plan(
        asked.model, asked.system, asked.workload,
        allowed=asked.allowed, top=top, calibration=args.calibration, factors=factors,
        per_operator=args.per_operator,
        progress=_progress(args), command=" ".join(["meshwright", *sys.argv[1:]]),
    )  # fmt: skip
    _save(plan, path)
    show_screen(
        lambda: plan_screen(plan, next_command=next_command(args)),
        lambda: plan_lines(plan, api.what_would_change(plan)), lambda: files.to_data(plan), args,
    )  # fmt: skip
    return 0


def _run_front(args: argparse.Namespace, asked: Question, factors: Factors | None) -> int:
    """Print the front of the whole space."""
    from meshwright import api
    from meshwright.report.answer_file import plain_data
    from meshwright.train.report import front_screen
    from meshwright.train.report_detail import front_lines

    found, unknown = api.front(
        asked.model, asked.system, asked.workload,
        allowed=asked.allowed, calibration=args.calibration, factors=factors,
        progress=_progress(args),
    )  # fmt: skip
    show_screen(
        lambda: front_screen(found, unknown), lambda: front_lines(found, unknown),
        lambda: {"front": [plain_data(c) for c in found], "left_out": list(unknown)},
        args,
    )  # fmt: skip
    return 0


def _run_replan(reading: Reading, args: argparse.Namespace, path: Path | None) -> int:
    """Plan again for the devices that are left."""
    from meshwright import api
    from meshwright.train import plan_file as files
    from meshwright.train.report import replan_screen
    from meshwright.train.report_detail import plan_lines

    without = reading.value(needed, "--without", args.without, _number_lost)
    before = reading.value(api.load_plan, args.origin)
    reading.done()
    changed = api.replan(before, without=without, progress=_progress(args))
    _save(changed.plan, path)
    data = {
        "num_lost": changed.num_lost,
        "throughput_fraction": changed.throughput_fraction,
        "changed": list(changed.changed),
        "moved_bytes_per_device": changed.moved_bytes_per_device,
        "plan": files.to_data(changed.plan),
    }
    show_screen(
        lambda: replan_screen(changed, next_command=next_command(args)),
        lambda: plan_lines(changed.plan, api.what_would_change(changed.plan)), lambda: data, args,
    )  # fmt: skip
    return 0


def _number_lost(text: str) -> int:
    return whole_number("--without", text)


def _save(plan: Plan, path: Path | None) -> None:
    """Write a plan where the user asked for it."""
    from meshwright.train import plan_file as files

    if path is not None:
        files.save(plan, path)


def _refuse_idle(reading: Reading, args: argparse.Namespace) -> None:
    """Keep a complaint for each option that would change nothing beside the others."""
    if args.graph is not None and args.origin is None:
        refuse_idle(reading, args, NOT_FOR_GRAPHS, "says nothing about a graph")
        return
    refuse_idle(reading, args, GRAPH_ONLY, "is of use with --graph only")
    if args.origin is not None:
        given = (
            *ASKED, *FIXED, *SERVING_ONLY, "decode", "prefill", "top", "pareto", "per_operator",
            "graph", "measured",
        )  # fmt: skip
        refuse_idle(reading, args, given, "with --from, the earlier plan states this")
        return
    refuse_idle(reading, args, ("without",), "is of use with --from only")
    if is_serving(args):
        names = ("seq", "global_batch", "workload", "optimizer", "tokens", "async_tp", "dropout",
                 "measured")  # fmt: skip
        refuse_idle(reading, args, (*names, "pareto", "per_operator"), "is of use in training only")
    else:
        refuse_idle(reading, args, SERVING_ONLY, "is of use with --decode or --prefill only")
    if args.pareto:
        given = ("out", "top", "per_operator")
        refuse_idle(reading, args, given, "a front is no plan, and is whole")


def _progress(args: argparse.Namespace) -> SearchProgress | None:
    return None if args.json else SearchProgress()
