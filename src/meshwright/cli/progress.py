"""How a long search tells how it goes."""

from __future__ import annotations

import sys
import time
from typing import Any


class Reporter:
    """Tells how a search goes, on a terminal, when it takes more than two seconds."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.on_terminal = sys.stderr.isatty()

    def __call__(self, counts: Any, best: Any, left_s: float) -> None:
        """Print one line that replaces the one before."""
        now = time.monotonic()
        if not self.on_terminal or now - self.started < 2.0 or now - self.last < 0.5:
            return
        self.last = now
        found = f"{best.times_s[0]:.3g} s" if len(best.times_s) else "none"
        text = f"{counts.priced:,} priced, best {found}, bound {left_s:.3g} s; Ctrl-C: best so far"
        sys.stderr.write(f"\r{text:<98}")
        sys.stderr.flush()
