"""``meshwright study NAME``: rebuild a published figure or question."""

from __future__ import annotations

import argparse

from meshwright.cli.output import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which study."""
    parser.add_argument("name", nargs="?", help="which study; without one they are listed")


def run(args: argparse.Namespace) -> int:
    """Print a study, or the list of them."""
    from meshwright.studies import studies

    if args.name is None:
        titles = {name: studies[name].title for name in studies}
        show(tuple(f"{name:<20} {title}" for name, title in titles.items()), titles, args.json)
        return 0
    result = studies[args.name].run()
    show(result.lines, result.data, args.json)
    return 0
