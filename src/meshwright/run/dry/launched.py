"""Arguments of the command in an exported script."""

from __future__ import annotations

import shlex
from pathlib import Path


def words_behind(script: Path, program: str) -> list[str]:
    """Return the arguments that a script passes to its program."""
    text = script.read_text("utf-8").replace("\\\n", "")
    words = shlex.split(text, comments=True)
    return [word for word in words[words.index(program) + 1 :] if word != "$@"]
