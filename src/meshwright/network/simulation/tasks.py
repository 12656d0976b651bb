"""What has to be done, and what must be done before it: computations, transfers, dependencies.

A computation occupies a serial resource: one task at a time on each track of a device. A transfer
takes bandwidth on every link of its route at one rate: along a path, or down a multicast tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.network.routes import Routes


@dataclass(frozen=True)
class TaskGraph:
    """Tasks as columns; what each of them waits for stands in compressed rows."""

    names: tuple[str, ...]
    device: IntArray
    """Device that computes or sends."""
    track: IntArray
    """Index in ``tracks``: compute, or the axis that communicates."""
    tracks: tuple[str, ...]
    is_transfer: BoolArray
    duration_s: FloatArray
    """How long a computation takes [s]; 0 for transfers."""
    num_bytes: FloatArray
    """Payload of a transfer [bytes]; 0 for computations."""
    overhead_bytes: FloatArray
    """What a message occupies its links for beside its payload: m_half [bytes]."""
    latency_s: FloatArray
    """From the start of a transfer to its first byte [s]; 0 for computations."""
    routes: Routes
    """Links of each transfer, each link once; an empty row for computations."""
    start_s: FloatArray
    """When a task may start at the earliest [s]."""
    needs_offsets: IntArray
    needs: IntArray
    """Task i waits for ``needs[needs_offsets[i]:needs_offsets[i + 1]]``."""

    def __len__(self) -> int:
        return len(self.device)


def offsets_of(counts: IntArray) -> IntArray:
    """Return where the compressed rows of these lengths begin, and where the last one ends."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def flow_graph(
    routes: Routes, num_bytes: FloatArray, latency_s: FloatArray, start_s: FloatArray
) -> TaskGraph:
    """Return transfers that wait for nothing but their start, without a message overhead."""
    count = len(routes)
    none = np.zeros(count, dtype=np.int64)
    return TaskGraph(
        names=("",) * count,
        device=none,
        track=none,
        tracks=("transfer",),
        is_transfer=np.ones(count, dtype=bool),
        duration_s=np.zeros(count),
        num_bytes=num_bytes,
        overhead_bytes=np.zeros(count),
        latency_s=latency_s,
        routes=routes,
        start_s=start_s,
        needs_offsets=np.zeros(count + 1, dtype=np.int64),
        needs=np.zeros(0, dtype=np.int64),
    )
