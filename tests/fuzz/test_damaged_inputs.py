"""Whatever is read or asked ends with 0, 2 or 3, without a traceback, in time and in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
IN_ONE = 500
"""Questions of one process."""


def bad_ends(folder: Path, first: int, last: int) -> Iterator[str]:
    """Yield the questions of some seeds that end otherwise than they may."""
    place = folder / f"from-{first}"
    place.mkdir(parents=True)
    words = [sys.executable, "-m", "fuzz.worker", str(folder), str(first), str(last)]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    with subprocess.Popen(
        words, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = [json.loads(line) for line in process.stdout]
        assert process.stderr is not None
        failed = process.stderr.read()[-500:]
    asked = {one["seed"]: one["words"] for one in told if "words" in one}
    ends = {one["seed"]: (one["end"], one["text"]) for one in told if "end" in one}
    for seed, words in asked.items():
        end, text = ends.get(seed, (f"killed {process.returncode}", failed))
        if end not in ("0", "2", "3"):
            yield f"{seed}: {end}: {' '.join(words)[:160]!r}: {text[-160:]!r}"
    if process.returncode and len(ends) == len(asked):
        yield f"after {first}: {process.returncode}: {failed}"
    if asked and max(asked) < last - 1:
        yield from bad_ends(folder, max(asked) + 1, last)


def test_damaged_inputs_of_a_sample_end_as_they_may(tmp_path):
    assert list(bad_ends(tmp_path, 0, 60)) == []


@pytest.mark.nightly
def test_damaged_inputs_end_as_they_may(tmp_path):
    number = int(os.environ.get("FUZZED", "100000"))
    found = [
        one for first in range(0, number, IN_ONE)
        for one in bad_ends(tmp_path, first, min(first + IN_ONE, number))
    ]  # fmt: skip
    assert found == []
