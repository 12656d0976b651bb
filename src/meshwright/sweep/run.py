"""The points of a sweep: their fields, their runs, and the file of the results."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

from meshwright.base.cluster import HERE, MOST_IN_BLOCK, Cluster, Failed, answers
from meshwright.base.files import opened
from meshwright.catalog.files import load_file
from meshwright.spec.sweep import SweepSpec, Value
from meshwright.sweep.stores import FAILED, Result, Store

Point = Mapping[str, Value]
WAITING = "not asked yet"


def load_sweep(path: Path) -> SweepSpec:
    """Return the sweep of a YAML file, or all of its faults."""
    return load_file(SweepSpec, path)


def points_of(sweep: SweepSpec) -> list[Point]:
    """Return all combinations; the last field of the file changes fastest."""
    names = list(sweep.sides)
    found: list[Point] = []
    for values in product(*sweep.sides.values()):
        point = {**sweep.fixed, **dict(zip(names, values, strict=True))}
        for name, cases in sweep.cases.items():
            point = {**point, **cases[str(point[name])]}
        found.append(point)
    return found


def key_of(ask: str, point: Point, version: str) -> str:
    """Return the key of a point: equal questions of one version have one key."""
    files = [_contents(str(value)) for _, value in sorted(point.items())]
    text = json.dumps([ask, sorted(point.items()), version, files])
    return hashlib.sha256(text.encode()).hexdigest()


def _contents(value: str) -> list[str]:
    """Return the hashes of the files of a value, and of the files that they name.

    A value is a file, a folder with the files of a model, or a function of a file.
    """
    left, seen, found = [Path(value), Path(value.rpartition(":")[0])], set(), []
    while left:
        path = left.pop()
        with suppress(OSError, ValueError):  # not a path
            status = path.stat()
            place = status.st_dev, status.st_ino
            if place in seen:
                continue
            seen.add(place)
            if stat.S_ISREG(status.st_mode):
                content, inner = _content(path.absolute(), status.st_mtime_ns, status.st_size)
                found.append(content)
                left += [path.parent / name for name in inner]
            elif path.name and stat.S_ISDIR(status.st_mode):
                left += path.glob("*.json")
    return sorted(found)


@lru_cache(1024)
def _content(path: Path, changed_ns: int, size: int) -> tuple[str, list[str]]:
    """Return the hash of a file as it is now, and the files that it may name."""
    with opened(path) as file:
        content = file.read()
    inner = [name.decode() for name in _FILE.findall(content)]
    inner += [f"{name.decode()}.py" for name in _MODULE.findall(content) if path.suffix == ".py"]
    return hashlib.sha256(content).hexdigest(), inner


_FILE = re.compile(rb"[\w./-]+\.(?:ya?ml|json)\b", re.ASCII)
_MODULE = re.compile(rb"^\s*(?:from|import)\s+(\w+)", re.ASCII | re.MULTILINE)
"""Modules that a program imports and that may lie beside it."""


Progress = Callable[[int, int], None]
Evaluate = Callable[[Point], Result]


@dataclass(frozen=True)
class Swept:
    """The points of a sweep with their results."""

    points: tuple[Point, ...]
    results: tuple[Result | None, ...]
    """Results of the points; None where an interrupt came first."""
    num_new: int
    """Number of points without a result in the file."""

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """Each point with its result."""
        return [{**point, **(result if result is not None else {"status": WAITING})}
                for point, result in zip(self.points, self.results, strict=True)]  # fmt: skip

    @property
    def num_points(self) -> int:
        """Number of points."""
        return len(self.points)

    @property
    def is_complete(self) -> bool:
        """Whether every point has its result."""
        return all(result is not None for result in self.results)


SHARED = ("model", "graph", "on", "network", "devices", "chip", "memory")
"""Fields of points that are answered by one worker in a row, where they are equal."""


def run(
    ask: str, evaluate: Evaluate, points: Sequence[Point], store: Store, *,
    version: str, cluster: Cluster = HERE, progress: Progress | None = None, seconds: float = inf,
    most_in_block: int = MOST_IN_BLOCK,
) -> Swept:  # fmt: skip
    """Return the results of all points; stored results are not computed again.

    A point that fails three times, or ends its worker three times, has the status ``failed`` and
    its error; the next run asks it again.

    Parameters
    ----------
    evaluate
        Function that answers one point; of a module where other processes work.
    cluster
        Workers that answer; this process if not given.
    progress
        Called with the number of points that are done, and of all.
    seconds
        Time after which no answer is waited for [s]: points far apart then come first. With 0 the
        stored results come back.
    most_in_block
        Most points that are stored together, once the last of them is done.
    """
    keys = [key_of(ask, point, version) for point in points]
    known = store.known(keys)
    order = far_apart(points) if 0 < seconds < inf else range(len(points))
    missing = list({keys[at]: at for at in order if keys[at] not in known}.values())
    asked = [points[index] for index in missing]
    groups = [tuple(point.get(field) for field in SHARED) for point in asked]
    num_new = 0
    with suppress(KeyboardInterrupt, _Interrupted), _answering_interrupts():
        grouped = groups if seconds == inf else None
        for batch in answers(cluster, evaluate, asked, grouped, seconds, most_in_block):
            found = [
                (missing[at], _failed(one) if isinstance(one, Failed) else one) for at, one in batch
            ]
            store.add([(keys[index], points[index], result) for index, result in found])
            known |= {keys[index]: result for index, result in found}
            num_new += len(found)
            if progress is not None:
                progress(len(points) - len(missing) + num_new, len(points))
    return Swept(tuple(points), tuple(known.get(key) for key in keys), num_new)


def far_apart(points: Sequence[Point]) -> list[int]:
    """Return the order of points in which each part of the order covers all sides evenly.

    The values of a side come first, last, in the middle, and so on between those that are there; a
    point comes when all of its values have come.
    """
    turns: dict[str, dict[object, int]] = {}
    for name in points[0] if points else ():
        values = list(dict.fromkeys(point.get(name) for point in points))
        turns[name] = {values[place]: turn for turn, place in enumerate(_halved(len(values)))}
    comes = [sorted((turns[name][point.get(name)] for name in turns), reverse=True)
             for point in points]  # fmt: skip
    return sorted(range(len(points)), key=lambda at: (comes[at], at))


def _halved(number: int) -> list[int]:
    """Return the places of a row: its ends, then the middles between places that are there."""
    found = list(dict.fromkeys((0, number - 1)))
    gaps = deque([(0, number - 1)])
    while gaps:
        first, last = gaps.popleft()
        middle = (first + last) // 2
        if first < middle:
            found.append(middle)
            gaps += [(first, middle), (middle, last)]
    return found


def _failed(found: Failed) -> Result:
    return {"status": FAILED, "reason": found.reason}


class _Interrupted(BaseException):
    """Ctrl-C in a sweep: no search inside a point catches it and goes on."""


@contextmanager
def _answering_interrupts() -> Iterator[None]:
    """Have the first Ctrl-C raise an exception that only a sweep catches."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and callable(before)):  # in a thread, or where Ctrl-C is ignored
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        raise _Interrupted

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
