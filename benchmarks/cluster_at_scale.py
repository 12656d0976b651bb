"""One process that asks 10 to 10,000 workers that are not there: where it would be too slow.

    python benchmarks/cluster_at_scale.py
    python benchmarks/cluster_at_scale.py --workers 10000 --point 0.05 --losses 1e-3

The dealing, the answers and the store are those of a sweep, and their processor time counts; the
workers are simulated: each answers its calls one after another in simulated time, some are slow,
some end, some come back. Each line: workers, simulated seconds, the share of the workers' time that
computes, the share of the simulated time in which the process that asks is busy, its time for a
block, blocks, workers lost, and the peak of its memory.
"""

from __future__ import annotations

import argparse
import heapq
import random
import resource
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshwright.base import cluster as clusters
from meshwright.base.cluster import Cluster, WorkerLostError, state_of_code
from meshwright.sweep.run import run
from meshwright.sweep.stores import SqliteStore

MESSAGE_S, BACK_S = 1e-3, 60.0
"""Time of a message, and of a lost worker until another one has its place [s]."""
SLOW, SLOWER = 0.05, 10.0
"""Share of slow workers, and their time for a point as a multiple of that of others."""


class SimulatedWorkers(Cluster):
    """Workers in simulated time; it stands still where nothing is asked and nothing ends."""

    def __init__(self, number: int, point_s: float, losses: float, seed: int = 0) -> None:
        rng = random.Random(seed)
        self.num_workers, self.point_s, self.losses, self.rng = number, point_s, losses, rng
        self.speeds = [SLOWER if rng.random() < SLOW else 1.0 for _ in range(number)]
        self.free = [(0.0, worker) for worker in range(number)]
        self.events: list[tuple[float, int, Future[Any], Any]] = []
        self.now_s = self.asking_s = self.busy_s = 0.0
        self.num_blocks = self.num_lost = 0
        self.spent_s = time.process_time()

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        """Return the future result of a call on the worker that is free first."""
        self._asked()
        future: Future[Any] = Future()
        _, answer, items = given
        free_s, worker = heapq.heappop(self.free)
        took_s = len(items) * self.point_s * self.speeds[worker]
        starts_s = max(free_s, self.now_s + MESSAGE_S)
        self.num_blocks += 1
        if self.rng.random() < self.losses:
            self.num_lost += 1
            ends_s = starts_s + self.rng.random() * took_s
            heapq.heappush(self.free, (ends_s + BACK_S, worker))
            result: Any = WorkerLostError("lost")
        else:
            ends_s = starts_s + took_s
            self.busy_s += took_s
            heapq.heappush(self.free, (ends_s, worker))
            result = [answer(item) for item in items], took_s
        heapq.heappush(self.events, (ends_s + MESSAGE_S, self.num_blocks, future, result))
        self.spent_s = time.process_time()  # the time of the simulation is nobody's
        return future

    def check(self) -> None:
        """Go on to the next end of a call, and to all that ended while the process was busy."""
        self._asked()
        if not self.events:
            return
        self.now_s = max(self.now_s, self.events[0][0])
        while self.events and self.events[0][0] <= self.now_s:
            _, _, future, result = heapq.heappop(self.events)
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        self.spent_s = time.process_time()

    def _asked(self) -> None:
        """Add the time that the process that asks has spent since the last call."""
        spent_s = time.process_time() - self.spent_s
        self.now_s, self.asking_s = self.now_s + spent_s, self.asking_s + spent_s
        self.spent_s = time.process_time()


def squared(point: Any) -> dict[str, Any]:
    """Return an answer as long as that of a plan."""
    return {"status": "found", "x": point["x"] ** 2, **{f"value_{n}": 0.1 * n for n in range(12)}}


def swept(number: int, point_s: float, losses: float, each: int) -> SimulatedWorkers:
    """Return the workers after a sweep with a number of points for each of them."""
    points = [{"x": x, "model": x % 100} for x in range(number * each)]
    workers = SimulatedWorkers(number, point_s, losses)
    with TemporaryDirectory() as folder, SqliteStore(Path(folder) / "kept.db") as store:
        workers.spent_s = time.process_time()
        found = run("plan", squared, points, store, version=state_of_code(), cluster=workers)
    assert [result["x"] for result in found.results] == [x * x for x in range(len(points))]
    return workers


def main() -> None:
    """Print all lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=lambda text: [int(one) for one in text.split(",")],
                        default=[10, 100, 1000, 10_000])  # fmt: skip
    parser.add_argument("--point", type=float, default=0.5)
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--losses", type=float, default=1e-3)
    asked = parser.parse_args()
    clusters.HEARTBEAT_S = 0.0  # the simulation goes on when nothing has come
    for number in asked.workers:
        done = swept(number, asked.point, asked.losses, asked.each)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{number:7,} workers {done.now_s:8.1f} s {done.busy_s / done.now_s / number:6.1%} "
            f"{done.asking_s / done.now_s:6.1%} {done.asking_s / done.num_blocks * 1e3:7.3f} ms "
            f"{done.num_blocks:8,} {done.num_lost:4} {peak:6.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
