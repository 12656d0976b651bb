"""Runs the points that have no result yet, several at a time, and keeps each as it comes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from meshwright.sweep.points import Point, key_of
from meshwright.sweep.store import Result, Store

Progress = Callable[[int, int], None]
Evaluate = Callable[[Point], Result]


@dataclass(frozen=True)
class Swept:
    """The points of a sweep with what is known of each."""

    points: tuple[Point, ...]
    results: tuple[Result | None, ...]
    """None where an interrupt came first."""
    num_new: int

    @property
    def is_complete(self) -> bool:
        """Whether every point has its result."""
        return all(result is not None for result in self.results)


def run(
    ask: str, evaluate: Evaluate, points: Sequence[Point], store: Store, *,
    version: str, num_workers: int = 1, progress: Progress | None = None,
) -> Swept:  # fmt: skip
    """Return the results of all points; those that the store holds are not asked again.

    Parameters
    ----------
    evaluate
        Answers one point; a function of a module where several processes work.
    progress
        Called with the number of points that are done, and of all.
    """
    keys = [key_of(ask, point, version) for point in points]
    known = store.known(keys)
    missing = [index for index, key in enumerate(keys) if key not in known]
    num_new = 0

    def keep(index: int, result: Result) -> None:
        nonlocal num_new
        store.add(keys[index], points[index], result)
        known[keys[index]] = result
        num_new += 1
        if progress is not None:
            progress(len(points) - len(missing) + num_new, len(points))

    try:
        if num_workers > 1 and len(missing) > 1:
            with ProcessPoolExecutor(num_workers, initializer=_leave_interrupts) as pool:
                _in_processes(pool, evaluate, points, missing, keep)
        else:
            for index in missing:
                keep(index, evaluate(points[index]))
    except KeyboardInterrupt:
        pass
    return Swept(tuple(points), tuple(known.get(key) for key in keys), num_new)


def _leave_interrupts() -> None:
    """Leave Ctrl-C to the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _in_processes(
    pool: Executor, evaluate: Evaluate, points: Sequence[Point],
    missing: Sequence[int], keep: Callable[[int, Result], None],
) -> None:  # fmt: skip
    """Answer points in other processes; what has not begun when one fails is dropped."""
    asked = {pool.submit(evaluate, points[index]): index for index in missing}
    try:
        for done in as_completed(asked):
            keep(asked[done], done.result())
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
