"""A long search shows a progress bar on standard error: on a terminal, after two seconds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

FIRST_S, NEXT_S = 2.0, 0.5
"""From the start to the first bar, and from one update to the next."""


class ProgressBar:
    """A bar, or a spinner where no total is known; wiped before a result is printed."""

    shown: Progress | None = None
    """The one that is on the terminal."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.on_terminal = sys.stderr.isatty()

    def update(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Show how far it is, where that is due."""
        now = time.monotonic()
        if not self.on_terminal or now - self.started < FIRST_S or now - self.last < NEXT_S:
            return
        self.last = now
        progress = ProgressBar.shown or _start()
        ProgressBar.shown = progress
        progress.update(progress.task_ids[0], description=text, completed=done or 0, total=total)
        progress.refresh()


def _start() -> Progress:
    """Return a bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    progress = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(),
        console=Console(stderr=True), transient=True, auto_refresh=False,
    )  # fmt: skip
    progress.add_task("", total=None)
    progress.start()
    return progress


def wipe() -> None:
    """Take the bar from the terminal, where one is shown."""
    if ProgressBar.shown is not None:
        ProgressBar.shown.stop()
        ProgressBar.shown = None


class SearchProgress(ProgressBar):
    """How a search over strategies goes."""

    def __call__(self, counts: Any, best: Any, left_s: float) -> None:
        """Show what was priced, the best, and the bound."""
        found = f"{best.times_s[0]:.3g} s" if len(best.times_s) else "none"
        self.update(
            f"{counts.priced:,} priced, best {found}, bound {left_s:.3g} s; Ctrl-C: best so far"
        )


class Counter(ProgressBar):
    """How many things of a known number are done."""

    def __init__(self, things: str, note: str = "") -> None:
        super().__init__()
        self.things, self.note = things, note

    def __call__(self, done: int, number: int) -> None:
        """Show it."""
        self.update(f"{done:,} of {number:,} {self.things}{self.note}", done, number)
