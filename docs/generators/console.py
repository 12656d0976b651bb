"""Console blocks: commands, and lines of what they print, which are those of this version.

    ```console
    $ ./mw map dlrm-a --on 128xA100
    plan      tp128 pp1 dp1: 5.75 ms a step, 173.8 passes/s
    ...
    ```

A ``text`` block right behind holds lines of the last command as well. Lines may be left out
(``...``), in the order of the screen. ``python docs/generators/console.py PAGE.md ...`` writes the
lines of pages anew: each becomes the next one that begins with the same word. The tests of the docs
compare them.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

BLOCK = re.compile(
    r"(?P<head>^```console\n)(?P<lines>.*?)(?P<end>^```)"
    r"(?:(?P<next>\n\n```text\n)(?P<screen>(?:(?!\$ |```)[^\n]*\n)*)(?P<last>^```))?",
    re.MULTILINE | re.DOTALL,
)  # fmt: skip
SHOWN_FILE = re.compile(r"^```\w+ title=(\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROMPT, LEFT_OUT, SCREEN = "$ ", "...", "\f"
"""Beginnings of a command and of lines that are left out; the border between both blocks."""


def shown_calls(page: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words of each command of a page, and the lines shown below it."""
    for found in BLOCK.finditer(page):
        yield from calls(found["lines"] + (found["screen"] or ""))


def calls(block: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words of each command of a block, and the lines shown below it."""
    lines: list[str] = []
    words: list[str] | None = None
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith(PROMPT):
            if words is not None:
                yield words, lines
            words, lines = shlex.split(line.removeprefix(PROMPT)), []
        elif line.strip() not in ("", LEFT_OUT):
            lines.append(line.rstrip())
    if words is not None:
        yield words, lines


def absent(shown: Sequence[str], printed: str) -> list[str]:
    """Return the shown lines that are not printed, or not in this order."""
    rest = iter([line.rstrip() for line in printed.splitlines()])
    return [line for line in shown if line not in rest]


def renewed(page: str, run: Callable[[list[str]], str]) -> str:
    """Return a page with the lines that its commands print now.

    A shown line becomes the next printed one that begins with the same word. It stays as it is
    where none does, so that the comparison names it. All commands run: one may need the file of
    another.
    """

    def written(found: re.Match[str]) -> str:
        lines: list[str] = []
        rest: list[str] = []
        screen = found["screen"] or ""
        asked = iter(calls(found["lines"] + screen))
        is_command = False
        for line in [*found["lines"].splitlines(), SCREEN, *screen.splitlines()]:
            if line.startswith(PROMPT):
                ask, _ = next(asked)
                rest = run(ask).splitlines()
            if line.startswith(PROMPT) or is_command:
                is_command = line.endswith("\\")
            elif line.strip() not in ("", LEFT_OUT) and rest:
                same = (n for n, other in enumerate(rest) if other.split()[:1] == line.split()[:1])
                at = next(same, None)
                if at is not None:
                    line, rest = rest[at].rstrip(), rest[at + 1 :]
            lines.append(line)
        before, _, after = "".join(f"{line}\n" for line in lines).partition(f"{SCREEN}\n")
        behind = f"{found['next']}{after}{found['last']}" if found["next"] else ""
        return f"{found['head']}{before}{found['end']}{behind}"

    return BLOCK.sub(written, page) if any(shown for _, shown in shown_calls(page)) else page


def printed(words: list[str], folder: str) -> str:
    """Return what a command prints in a folder, 100 columns wide; others than ours do not run."""
    if words[0] != "./mw":
        return ""
    command = [sys.executable, "-m", "meshwright", *words[1:]]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def write(path: Path) -> None:
    """Write the shown lines of a page anew; its commands run beside the files that it shows."""
    page = path.read_text("utf-8")
    with TemporaryDirectory() as folder:
        for name, text in SHOWN_FILE.findall(page):
            Path(folder, name).write_text(text, encoding="utf-8")
        path.write_text(renewed(page, lambda words: printed(words, folder)), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
