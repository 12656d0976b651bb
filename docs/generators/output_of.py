"""``output-of``: the commands of a block are run, and what the last one writes is shown.

In the repository such a block reads as what it is, the commands:

    ```{output-of} a plan for 8 GPUs
    meshwright plan llama3-8b --on 8xH100 --seq 8k --global-batch 64 --report plan.html
    ```

The site shows the file below the commands: a page in a frame, with a link to it alone; a picture
as it is. Commands that need a file of an earlier one stand in one block with it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

FOLDER = "shown"
WRITES = ("--report", "--picture")


class OutputOf(SphinxDirective):
    """Commands, and the file that the last one writes."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Run the commands where the site is HTML, and return the block with what it shows."""
        lines = [line for line in self.content if line.strip()]
        shown: list[nodes.Node] = [nodes.literal_block("\n".join(lines), "\n".join(lines),
                                                       language="console")]  # fmt: skip
        if self.env.app.builder.format != "html":
            return shown
        file = written_file(lines[-1]) if lines else ""
        if not file:
            raise self.error(f"the last command writes no file: {' '.join(lines[-1:])}")
        target = Path(self.env.app.outdir) / FOLDER / self.env.docname.replace("/", "-") / file
        if error := made(lines, file, target):
            raise self.error(error)
        depth = self.env.docname.count("/")
        place = "../" * depth + target.relative_to(self.env.app.outdir).as_posix()
        return [*shown, nodes.raw("", markup(place, self.arguments[0]), format="html")]


def written_file(command: str) -> str:
    """Return the file that a command writes to be looked at; empty: none."""
    words = shlex.split(command)
    return next((name for word, name in pairwise(words) if word in WRITES), "")


def made(commands: list[str], file: str, target: Path) -> str:
    """Run commands in a folder of their own and keep a file; return what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            program, *words = shlex.split(command.removeprefix("$ "))
            if program != "meshwright":
                return f"not a command of meshwright: {command}"
            called = [sys.executable, "-m", "meshwright", *words]
            done = subprocess.run(called, cwd=folder, capture_output=True, text=True, check=False,
                                  env={**os.environ, "COLUMNS": "100"})  # fmt: skip
            if done.returncode:
                return f"{command}: {done.stderr}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((Path(folder) / file).read_bytes())
    return ""


def markup(place: str, title: str) -> str:
    """Return HTML that shows a file."""
    place, title = escape(place), escape(title)
    alone = f'<p class="alone"><a href="{place}">{title}, alone</a></p>'
    if place.endswith(".svg"):
        return f'<figure class="shown"><img src="{place}" alt="{title}"></figure>{alone}'
    return f'<iframe class="shown" src="{place}" title="{title}" loading="lazy"></iframe>{alone}'


def setup(app: Any) -> None:
    """Add the directive."""
    app.add_directive("output-of", OutputOf)
