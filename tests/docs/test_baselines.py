"""The table of docs/explanation/baselines.md is what its command writes."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import baselines  # noqa: E402


def shown() -> str:
    """Return the table of the page."""
    page = baselines.PAGE.read_text(encoding="utf-8")
    return page.partition(baselines.BEGIN)[2].partition(baselines.END)[0]


def test_the_page_has_a_line_for_each_case():
    lines = shown().splitlines()[2:]
    cases = [f"| {model}, {shape}, {tokens} |" for model, shape, tokens in baselines.CASES]
    assert [line[: len(case)] for line, case in zip(lines, cases, strict=True)] == cases


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(baselines.CASES)))
def test_the_page_has_what_the_command_writes(number):
    assert shown().splitlines(keepends=True)[2 + number] == baselines.line(*baselines.CASES[number])
