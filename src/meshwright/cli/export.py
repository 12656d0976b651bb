"""``meshwright export PLAN.json TARGET``: write a plan as launch files, or as traces."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the plan, the target and where the files go."""
    parser.add_argument("plan", nargs="?", help="a plan as JSON; without one, the targets")
    parser.add_argument("target", nargs="?", help="torch, megatron, torchtitan or chakra")
    parser.add_argument("--out", default=".", metavar="FOLDER", help="where the files go")
    parser.add_argument("--force", action="store_true", help="replace files of other content")
    parser.add_argument("--print", action="store_true", help="show the files, write nothing")


def run(args: argparse.Namespace) -> int:
    """Write or print the files of a target, or list the targets."""
    from pathlib import Path

    from meshwright.cli.failures import UsageError
    from meshwright.cli.output import show
    from meshwright.frameworks.registry import exporters, rendered
    from meshwright.frameworks.writing import export
    from meshwright.train.plan_file import load

    titles = {name: exporters[name].title for name in exporters}
    if args.plan is None:
        show([f"{name:<12} {title}" for name, title in titles.items()], titles, args.json)
        return 0
    if args.target is None:
        raise UsageError(f"a target is missing; one of {', '.join(titles)}")
    exporter = exporters[args.target]  # a wrong name is told before the plan is read
    if args.print and not exporter.is_text:
        raise UsageError(f"{exporter.title} are no text: --out FOLDER")
    plan = load(Path(args.plan))
    if args.print:
        files = {name: str(text) for name, text in rendered(plan, args.target).items()}
        show([text.rstrip("\n") for text in files.values()], files, args.json)
        return 0
    paths = [str(path) for path in export(plan, args.target, Path(args.out), force=args.force)]
    show([f"wrote {path}" for path in paths], {"target": args.target, "files": paths}, args.json)
    return 0
