"""``meshwright check MODEL --on SYSTEM --tp 8``: is a strategy legal, and what is the nearest."""

from __future__ import annotations

import argparse

from meshwright.cli.question import add_fixed, add_question, strategy_question


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the question and the strategy."""
    add_question(parser)
    add_fixed(parser, several=False)


def run(args: argparse.Namespace) -> int:
    """Print each broken rule with its fix; 0 when legal, 2 otherwise."""
    from meshwright import api
    from meshwright.cli.output import show
    from meshwright.sharding.strategy import plan_string

    asked, strategy, structure = strategy_question(args)
    faults = api.check(asked.model, asked.system, asked.workload, strategy, structure)
    text = plan_string(strategy, structure)
    data = {
        "plan": text,
        "is_legal": not faults,
        "faults": [{"rule": f.path, "message": f.message, "fix": f.fix} for f in faults],
    }
    verdict = "legal" if not faults else f"refused by {len(faults)} rule(s)"
    lines = [f"{text}: {verdict}"]
    lines += [
        f"  {f.path}: {f.message}" + (f"\n    nearest legal: {f.fix}" if f.fix else "")
        for f in faults
    ]
    show(lines, data, args.json)
    return 2 if faults else 0
