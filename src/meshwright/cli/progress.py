"""How a long search tells how it goes: one line on a terminal, when it takes over two seconds."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

FIRST_S, NEXT_S = 2.0, 0.5
"""From the start to the first line, and from line to line."""


class ProgressLine:
    """The one line of a terminal that is written over, and wiped before a result is printed."""

    def __init__(self) -> None:
        self.width = 0

    def tell(self, text: str) -> None:
        """Show a text in place of the one before, cut to the terminal."""
        self.width = min(shutil.get_terminal_size().columns, 100) - 1
        sys.stderr.write(f"\r{text[: self.width]:<{self.width}}")
        sys.stderr.flush()

    def wipe(self) -> None:
        """Leave the line empty, where anything was shown."""
        if self.width:
            sys.stderr.write(f"\r{'':<{self.width}}\r")
            sys.stderr.flush()
        self.width = 0


LINE = ProgressLine()


class Pace:
    """Decides whether it is time to tell something."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.on_terminal = sys.stderr.isatty()

    def is_due(self) -> bool:
        """Whether a line is due on a terminal; then the next one is due a while later."""
        now = time.monotonic()
        if not self.on_terminal or now - self.started < FIRST_S or now - self.last < NEXT_S:
            return False
        self.last = now
        return True


class Reporter:
    """Tells how a search over strategies goes."""

    def __init__(self) -> None:
        self.pace = Pace()

    def __call__(self, counts: Any, best: Any, left_s: float) -> None:
        """Tell what was priced, the best, and the bound."""
        if self.pace.is_due():
            found = f"{best.times_s[0]:.3g} s" if len(best.times_s) else "none"
            bound = f"bound {left_s:.3g} s; Ctrl-C: best so far"
            LINE.tell(f"{counts.priced:,} priced, best {found}, {bound}")


class Counter:
    """Tells how many things of a known number are done."""

    def __init__(self, things: str, note: str = "") -> None:
        self.pace, self.things, self.note = Pace(), things, note

    def __call__(self, done: int, number: int) -> None:
        """Tell it."""
        if self.pace.is_due():
            LINE.tell(f"{done:,} of {number:,} {self.things}{self.note}")
