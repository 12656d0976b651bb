"""What happened when: tasks on devices, and what the links carried over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Timeline:
    """A simulated run, as columns: one row for each task, and one for each change of a link."""

    task_name: tuple[str, ...]
    device: IntArray
    """Device that a task ran on or was sent from."""
    track: IntArray
    """Index in ``tracks``: compute, or the axis that communicates."""
    start_s: FloatArray
    end_s: FloatArray
    tracks: tuple[str, ...]
    link: IntArray
    """Links whose rate changed."""
    change_s: FloatArray
    """When it changed, in order of time [s]."""
    rate_bytes_per_s: FloatArray
    """What the link carries from then on [bytes/s]."""

    @property
    def makespan_s(self) -> float:
        """End of the last task [s]."""
        return float(self.end_s.max(initial=0.0))

    def carried_bytes(self, num_links: int) -> FloatArray:
        """Return the bytes that each link carried in all [bytes]."""
        order = np.argsort(self.link, kind="stable")
        link, at_s, rate = self.link[order], self.change_s[order], self.rate_bytes_per_s[order]
        same = link[1:] == link[:-1]
        carried = (rate[:-1] * np.diff(at_s))[same]
        total: FloatArray = np.bincount(link[:-1][same], carried, num_links).astype(np.float64)
        return total
