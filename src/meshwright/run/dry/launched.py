"""Words of the command that an exported script starts."""

from __future__ import annotations

import shlex
from pathlib import Path


def words_behind(script: Path, program: str) -> list[str]:
    """Return the words of a script behind the word that names its program."""
    text = script.read_text("utf-8").replace("\\\n", "")
    words = shlex.split(text, comments=True)
    return [word for word in words[words.index(program) + 1 :] if word != "$@"]
