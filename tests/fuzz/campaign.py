"""Asks the questions of many seeds, in worker processes one after the other.

``python -m fuzz.campaign FOLDER FIRST LAST`` prints those that end otherwise than they may as they
are found, then how many ran of each command and kind of file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
IN_ONE = 2000
"""Questions of one process."""


def bad_ends(folder: Path, first: int, last: int, kinds: Counter[str]) -> Iterator[str]:
    """Yield the questions of some seeds that end otherwise than they may; count them by kind."""
    while first < last:
        yield from _of_one_worker(folder, first, min(last, first + IN_ONE), kinds)
        first += IN_ONE


def _of_one_worker(folder: Path, first: int, last: int, kinds: Counter[str]) -> Iterator[str]:
    place = folder / f"from-{first}"
    place.mkdir(parents=True)
    words = [sys.executable, "-m", "fuzz.worker", str(folder), str(first), str(last)]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        words, cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    told, failed = [json.loads(line) for line in done.stdout.splitlines()], done.stderr[-500:]
    asked = {one["seed"]: one["words"] for one in told if "words" in one}
    ends = {one["seed"]: (one["end"], one["text"]) for one in told if "end" in one}
    for seed, words in asked.items():
        kinds[_kind(words)] += 1
        end, text = ends.get(seed, (f"killed {done.returncode}", failed))
        if end not in ("0", "2", "3"):
            yield f"{seed}: {end}: {' '.join(words)[:160]!r}: {text[-160:]!r}"
    if done.returncode and len(ends) == len(asked):
        yield f"after {first}: {done.returncode}: {failed}"
    if asked and max(asked) < last - 1:
        yield from _of_one_worker(folder, max(asked) + 1, last, kinds)


def _kind(words: list[str]) -> str:
    """Return the command, and the kind of the file that is damaged."""
    suffix = next((Path(word).suffix for word in words if Path(word).stem == "damaged"), "options")
    return f"{words[0]} {suffix}"


def main() -> None:
    """Ask the questions of the seeds that the command line names."""
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kinds: Counter[str] = Counter()
    for bad in bad_ends(folder, first, last, kinds):
        sys.stdout.write(f"{bad}\n")
        sys.stdout.flush()
    counts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    sys.stdout.write(f"{kinds.total()} asked: {counts}\n")


if __name__ == "__main__":
    main()
