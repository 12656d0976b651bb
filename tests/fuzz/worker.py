"""Asks the questions of a range of seeds in one process under limits; a line of JSON for each.

``python -m fuzz.worker FOLDER FIRST LAST`` in a folder of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from fuzz.questions import PLANS, question

from meshwright.cli import main as cli

MOST_BYTES, MOST_CPU_S = 4 * 10**9, 10
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
NONSENSE = re.compile(
    r"(?<![\w'\"(=.])(nan|inf) ?"
    r"(?:%|[kMGTPE]?i?B\b|[mun]?s\b|x\b|tokens|requests|passes|FLOP|USD|k?Wh?\b|J\b)"
)
"""A quantity that is none; names and titles may have such a word."""


class _SlowError(BaseException):
    """A question takes more CPU time than any may."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _SlowError


def asked(words: list[str]) -> tuple[str, str]:
    """Return how a question ends: an exit status or what is wrong, and what was printed."""
    sys.argv = ["meshwright", *words]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        last = int(used + 2 * MOST_CPU_S) + 1  # of what no signal interrupts: a library's loop
        resource.setrlimit(resource.RLIMIT_CPU, (last, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
        try:
            end = str(cli.main(words))
        except SystemExit as error:
            end = str(error.code or 0)
        except _SlowError:
            where = traceback.extract_tb(sys.exc_info()[2])[-2]  # below the signal
            end = f"slow at {Path(where.filename).name}:{where.lineno}"
        except Exception as error:
            own = [
                e for e in traceback.extract_tb(error.__traceback__) if "meshwright" in e.filename
            ]
            end = f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    for stream in (out, err):
        stream.flush()
    told, failed = (s.buffer.getvalue().decode("utf-8", "replace") for s in (out, err))
    if end in ("0", "2", "3"):
        if "memory is short" in failed:
            end = "memory"
        elif RAW.search(told + failed):
            end = "raw letters"
        elif end == "0" and "--json" not in words and NONSENSE.search(told):
            end = "nonsense"
    return end, told[-400:] + failed[-400:]


def make_plans(folder: Path) -> None:
    """Write the plans of which questions are asked."""
    for name, words in PLANS.items():
        if not (folder / name).exists():
            end, text = asked([*words, "--out", str(folder / name)])
            assert end == "0", text


def main() -> None:
    """Ask the questions of the seeds that the command line names."""
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGPROF, _stop)
    make_plans(folder)
    for name in PLANS:
        Path(name).write_bytes((folder / name).read_bytes())
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in range(first, last):
        words = question(seed, folder)
        sys.stdout.write(json.dumps({"seed": seed, "words": words}) + "\n")
        sys.stdout.flush()
        end, text = asked(words)
        sys.stdout.write(json.dumps({"seed": seed, "end": end, "text": text}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
