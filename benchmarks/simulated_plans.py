"""Writes a table of docs/explanation/simulation.md: simulated over contended steps of plans.

Run: python benchmarks/simulated_plans.py [--small | --write]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import meshwright as mw

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "simulation.md"
Case = tuple[str, str, int, int]
CASES: tuple[Case, ...] = (
    ("llama3-70b", "wafer-4x8", 4096, 128),
    ("gpt3-175b", "wafer-8x8", 2048, 512),
    ("gpt3-6.7b", "wafer-4x8", 2048, 128),
    ("llama2-7b", "wafer-6x8", 4096, 128),
    ("gpt3-76b", "wafer-6x8", 2048, 128),
    ("llama3-8b", "wafer-4x4", 8192, 64),
    ("llama3-8b", "tpu-v5p-4x4x4", 8192, 256),
    ("llama3-8b", "tpu-v5e-16x16", 4096, 1024),
)
SMALL: tuple[Case, ...] = (("gpt2-medium", "wafer-4x4", 1024, 32),)
BEGIN, END = "<!-- benchmarks/simulated_plans.py -->\n", "<!-- end -->\n"


def more_than_priced(model: str, system: str, tokens: int, batch: int) -> list[float]:
    """Return how much longer the simulated step of each leading plan is [1]; best price first."""
    found = mw.plan(model, on=system, seq=tokens, global_batch=batch)
    leading = sorted((found.best, *found.runners_up), key=lambda one: one.estimate.step_time_s)
    return [
        one.simulated_s / one.estimate.step_time_s - 1.0
        for one in leading
        if one.simulated_s is not None
    ]


def line(model: str, system: str, tokens: int, batch: int) -> str:
    """Return a line of the table."""
    shown = (f"{100 * more:+.1f} %" for more in more_than_priced(model, system, tokens, batch))
    return f"| {model} on {system}, {tokens}, {batch} | {' | '.join(shown)} |\n"


def table(cases: Sequence[Case] = CASES) -> str:
    """Return the table of some cases."""
    head = "| model and system, tokens, batch | 1st | 2nd | 3rd | 4th | 5th |\n|---|" + "---:|" * 5
    return head + "\n" + "".join(line(*case) for case in cases)


def main(arguments: list[str]) -> None:
    """Print the table, or put it where the page has it."""
    found = table(SMALL if "--small" in arguments else CASES)
    if "--write" in arguments:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + found + END + rest.partition(END)[2], "utf-8")
    print(found, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
