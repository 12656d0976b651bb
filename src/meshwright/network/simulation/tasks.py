"""What has to be done, and what must be done before it: computations, transfers, dependencies.

A computation occupies a serial resource: one task at a time on each track of a device. A transfer
takes bandwidth on every link of its route at one rate: along a path, or down a multicast tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.network.routing import Routes
from meshwright.network.simulation.trees import deepest_latency_s
from meshwright.topology.network import Network


@dataclass(frozen=True)
class TaskGraph:
    """Tasks as columns; what each of them waits for is in compressed rows."""

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
    """What a message occupies its links for in addition to its payload: m_half [bytes]."""
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


NONE = -1
"""Instead of a task to wait for: there is none."""
_NO_ROUTE = Routes(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class _Block:
    """Tasks that were added together, as columns."""

    name: str
    track: int
    device: IntArray
    duration_s: FloatArray
    num_bytes: FloatArray
    overhead_bytes: FloatArray
    latency_s: FloatArray
    routes: Routes
    start_s: FloatArray


class TaskGraphBuilder:
    """Collects blocks of tasks in order; each call returns the numbers of its tasks.

    Arguments are one value for all tasks of a block, or one for each. ``after`` lists what they
    wait for: each entry is one task for all, or one for each, -1 where there is none.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._tracks: dict[str, int] = {}
        self._blocks: list[_Block] = []
        self._waiting: list[IntArray] = []
        self._needed: list[IntArray] = []
        self._count = 0

    def compute(
        self,
        device: IntArray,
        duration_s: float | FloatArray,
        *,
        after: Iterable[int | IntArray] = (),
        track: str = "compute",
        name: str = "",
        start_s: float = 0.0,
    ) -> IntArray:
        """Add one computation on each device, and return their numbers."""
        zeros = np.zeros(len(device))
        routes = Routes(np.zeros(len(device) + 1, dtype=np.int64), _NO_ROUTE.links)
        block = _Block(name, self._track(track), device, zeros + duration_s, zeros, zeros, zeros,
                       routes, zeros + start_s)  # fmt: skip
        return self._add(block, after)

    def transfer(
        self,
        routes: Routes,
        num_bytes: float | FloatArray,
        *,
        after: Iterable[int | IntArray] = (),
        track: str = "transfer",
        name: str = "",
        start_s: float = 0.0,
    ) -> IntArray:
        """Add one transfer over each path or tree, and return their numbers.

        It arrives the latency of its longest way later, and occupies its links for m_half of the
        first one, which begins at the sender, in addition to its bytes.
        """
        zeros = np.zeros(len(routes))
        moves = routes.num_hops > 0
        first = routes.links[routes.offsets[:-1][moves]]
        device, overhead = np.zeros(len(routes), dtype=np.int64), zeros.copy()
        device[moves] = self.network.source[first]
        overhead[moves] = self.network.message_half_bytes[first]
        latency_s = deepest_latency_s(routes, self.network)
        block = _Block(name, self._track(track), device, zeros, zeros + num_bytes, overhead,
                       latency_s, routes, zeros + start_s)  # fmt: skip
        return self._add(block, after)

    def _track(self, name: str) -> int:
        return self._tracks.setdefault(name, len(self._tracks))

    def _add(self, block: _Block, after: Iterable[int | IntArray]) -> IntArray:
        """Add a block and what it waits for."""
        count = len(block.device)
        tasks = np.arange(self._count, self._count + count)
        for needed in after:
            column = np.broadcast_to(np.asarray(needed, dtype=np.int64), count)
            waits = column != NONE
            self._waiting.append(tasks[waits])
            self._needed.append(column[waits])
        self._blocks.append(block)
        self._count += count
        return tasks

    def build(self) -> TaskGraph:
        """Return the graph of everything that was added."""
        waiting = _joined(self._waiting, np.int64)
        order = np.argsort(waiting, kind="stable")
        sizes = [len(block.device) for block in self._blocks]
        repeated = list(zip(self._blocks, sizes, strict=True))
        track = np.repeat([block.track for block in self._blocks], sizes)
        hops = _joined([block.routes.num_hops for block in self._blocks], np.int64)
        routed = _joined([block.routes.links for block in self._blocks], np.int64)
        floats = {
            field: _joined([getattr(block, field) for block in self._blocks], np.float64)
            for field in ("duration_s", "num_bytes", "overhead_bytes", "latency_s", "start_s")
        }
        return TaskGraph(
            names=tuple(block.name for block, size in repeated for _ in range(size)),
            device=_joined([block.device for block in self._blocks], np.int64),
            track=track.astype(np.int64),
            tracks=tuple(self._tracks),
            is_transfer=hops > 0,
            routes=Routes(offsets_of(hops), routed),
            needs_offsets=offsets_of(np.bincount(waiting, minlength=self._count)),
            needs=_joined(self._needed, np.int64)[order],
            **floats,
        )


def _joined(columns: list[Any], kind: type[np.generic]) -> Any:
    """Return columns after one another; an empty one where there are none."""
    return np.concatenate(columns).astype(kind) if columns else np.zeros(0, dtype=kind)
