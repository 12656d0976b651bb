"""How an error reaches the user: text on standard error or a JSON object, and an exit status."""

from __future__ import annotations

import re
import sys
import textwrap

from meshwright.base.errors import InfeasibleError, MeshwrightError, SpecError, UnsupportedError
from meshwright.cli.progress import wipe

BAD_INPUT = 2
NOTHING_FITS = 3


class UsageError(MeshwrightError):
    """A command line that cannot be read."""


def exit_status(error: Exception) -> int:
    """Return 3 where nothing fits, 2 for any other complaint."""
    return NOTHING_FITS if isinstance(error, InfeasibleError) else BAD_INPUT


def report_failure(error: Exception, *, as_json: bool) -> None:
    """Print an error for a person, or for a program."""
    from meshwright.report.screen import screen_width

    wipe()
    if as_json:
        import json

        print(json.dumps({"error": failure_record(error)}, indent=2))
        return
    text = f"error: {message_of(error)}"
    if sys.stderr.isatty():
        width = screen_width(sys.stderr)
        lines = [
            textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
            for line in text.splitlines()
        ]
        text = "\n".join(lines)
    print(text, file=sys.stderr)


def failure_record(error: Exception) -> dict[str, object]:
    """Return the error as data: its kind, its message, and each fault with path and fix."""
    faults = error.faults if isinstance(error, SpecError | UnsupportedError) else ()
    return {
        "kind": kind_of(error),
        "message": message_of(error),
        "faults": [
            {"path": fault.path, "message": fault.message, "fix": fault.fix} for fault in faults
        ],
    }


def kind_of(error: Exception) -> str:
    """Return the kind in lower case: ``spec``, ``unknown_name``, ``infeasible``, ``usage``."""
    if isinstance(error, OSError):
        return "file"
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def message_of(error: Exception) -> str:
    """Return the message; a file error starts with the file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
