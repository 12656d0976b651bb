"""The points of a sweep: their fields, their runs, and the file of the results."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from multiprocessing import active_children
from pathlib import Path
from types import FrameType
from typing import Any, Self

from meshwright.base.errors import Fault, MeshwrightError, SpecError
from meshwright.base.files import opened
from meshwright.base.registry import version
from meshwright.catalog.files import load_file
from meshwright.spec.sweep import SweepSpec, Value

Point = Mapping[str, Value]


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


@cache
def state_of_code() -> str:
    """Return the hash of the code and the data of this package: it separates versions."""
    digest = hashlib.sha256(version().encode())
    for path in sorted(Path(__file__).parents[1].rglob("*")):
        if path.suffix in (".py", ".yaml", ".json") and path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


Result = Mapping[str, Any]


class Store:
    """A file of results, or their place in memory where no file is given.

    Parameters
    ----------
    path
        None keeps them in memory.

    Raises
    ------
    SpecError
        Where the file holds something else, or cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is None or path.exists():
            self._open()
            return
        try:
            self._open("cannot be written")
        except SpecError:
            for kind in ("", "-wal", "-shm", "-journal"):  # files that SQLite leaves on a full disk
                path.with_name(path.name + kind).unlink(missing_ok=True)
            raise

    def _open(self, trouble: str = "is not a file of results") -> None:
        """Open the file, or create it."""
        path = self._path
        with self._told(trouble):
            self._base = sqlite3.connect(":memory:" if path is None else path)
            tables = self._base.execute("SELECT name FROM sqlite_master").fetchall()
            if tables and ("results",) not in tables:
                raise sqlite3.DatabaseError("it holds other tables")
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS results "
                "(key TEXT PRIMARY KEY, point TEXT NOT NULL, result TEXT NOT NULL)"
            )
            self._base.execute("SELECT key, point, result FROM results LIMIT 1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._base.close()

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Name the file in the fault of a failed access."""
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            fault = Fault("--out", f"{str(self._path)!r} {what}: {error}")
            raise SpecError(fault) from None

    def known(self, keys: Iterable[str]) -> dict[str, Result]:
        """Return the stored results, by key."""
        asked = set(keys)
        with self._told("cannot be read"):
            rows = self._base.execute("SELECT key, result FROM results")
            return {key: json.loads(result) for key, result in rows if key in asked}

    def add(self, key: str, point: Mapping[str, Any], result: Result) -> None:
        """Store one result; it is on the disk when this returns."""
        with self._told("takes no more, and keeps its results"), self._base:
            self._base.execute(
                "INSERT OR REPLACE INTO results VALUES (?, ?, ?)",
                (key, json.dumps(dict(point)), json.dumps(dict(result))),
            )


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

    @property
    def num_points(self) -> int:
        """Number of points."""
        return len(self.points)

    @property
    def is_complete(self) -> bool:
        """Whether every point has its result."""
        return all(result is not None for result in self.results)


def run(
    ask: str, evaluate: Evaluate, points: Sequence[Point], store: Store, *,
    version: str, num_workers: int = 1, progress: Progress | None = None,
) -> Swept:  # fmt: skip
    """Return the results of all points; stored results are not computed again.

    Parameters
    ----------
    evaluate
        Function that answers one point; of a module where several processes work.
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

    with suppress(KeyboardInterrupt, _Interrupted), _answering_interrupts():
        if num_workers > 1 and len(missing) > 1:
            _in_processes(num_workers, evaluate, points, missing, keep)
        else:
            for index in missing:
                keep(index, evaluate(points[index]))
    return Swept(tuple(points), tuple(known.get(key) for key in keys), num_new)


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


def _in_processes(
    num_workers: int, evaluate: Evaluate, points: Sequence[Point],
    missing: Sequence[int], keep: Callable[[int, Result], None],
) -> None:  # fmt: skip
    """Answer points in other processes; a failure or Ctrl-C ends them all at once."""
    others = active_children()
    with ProcessPoolExecutor(num_workers, initializer=_leave_interrupts) as pool:
        asked = {pool.submit(evaluate, points[index]): index for index in missing}
        try:
            for done in as_completed(asked):
                keep(asked[done], done.result())
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():
                if worker not in others:
                    worker.terminate()
            if isinstance(error, BrokenExecutor):
                why = "a process of the sweep was ended from outside, as where memory is short"
                raise MeshwrightError(f"{why}; run again with fewer --workers") from error
            raise


def _leave_interrupts() -> None:
    """Leave Ctrl-C to the parent process; end on its request, and with it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
