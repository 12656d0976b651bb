"""Writes the table of docs/explanation/baselines.md: the best plan of each recipe on wafers.

Run: python benchmarks/baselines.py [--small | --write]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import meshwright as mw

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "baselines.md"
RECIPES = ("product-stream", "line-stream", "cycle-ring", "temp", "megatron-3")
Case = tuple[str, str, int]
CASES: tuple[Case, ...] = (
    ("gpt3-76b", "6x8", 2048),
    ("gpt3-76b", "8x8", 2048),
    ("gpt3-76b", "8x10", 2048),
    ("llama3-70b", "4x8", 4096),
    ("gpt3-175b", "4x8", 2048),
    ("llama3-8b", "4x8", 8192),
)
SMALL: tuple[Case, ...] = (("gpt2-medium", "4x4", 1024),)
BEGIN, END = "<!-- benchmarks/baselines.py -->\n", "<!-- end -->\n"


def line(model: str, shape: str, tokens: int) -> str:
    """Return a line of the table; seconds, - where nothing fits."""
    found = mw.compare(
        model, on=f"wafer-{shape}", seq=tokens, global_batch=128, against=list(RECIPES)
    )
    entries = {entry.recipe: entry for entry in found.entries}
    best = [entries[name].best for name in RECIPES] + [found.ours.best]
    times = ["-" if one is None else f"{one.estimate.step_time_s:#.3g}" for one in best]
    return f"| {model}, {shape}, {tokens} | {' | '.join(times)} |\n"


def table(cases: Sequence[Case] = CASES) -> str:
    """Return the table of some cases."""
    head = f"| model, wafer, tokens | {' | '.join((*RECIPES, 'ours'))} |\n"
    rule = f"|---|{'---:|' * (len(RECIPES) + 1)}\n"
    return head + rule + "".join(line(*case) for case in cases)


def main(arguments: list[str]) -> None:
    """Print the table, or put it where the page has it."""
    found = table(SMALL if "--small" in arguments else CASES)
    if "--write" in arguments:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + found + END + rest.partition(END)[2], "utf-8")
    print(found, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
