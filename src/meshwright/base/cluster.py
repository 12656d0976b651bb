"""Many equal questions over workers: this process, processes beside it, Dask, Ray.

A cluster takes calls and returns futures. :func:`answers` deals questions in blocks, at most two a
worker ahead, and survives its workers: a question that ends its worker three times is given up.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from multiprocessing import active_children, get_context
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeVar

from meshwright.base.errors import Fault, MeshwrightError, SpecError, UnsupportedError
from meshwright.base.registry import extending_packages
from meshwright.base.registry import version as package_version

Item = TypeVar("Item")
Answer = TypeVar("Answer")

BLOCK_S = 0.5
"""Seconds of work in a block, about: long against a message, short against a loss [s]."""
DEALT_S = 1e-3
"""Seconds in which one block is dealt and its answers are stored, about [s]: more workers get
longer blocks, so that none waits for the process that asks."""
MOST_IN_BLOCK = 256
MOST_TRIES = 3
"""Times that a question may end its worker, or fail, before it is given up."""
HEARTBEAT_S = 2.0
"""Seconds between two looks at a cluster that answers nothing [s]."""


CODE_AND_DATA = (".py", ".yaml", ".json", ".txt", ".npz", ".gz")
"""Ends of the names of files that answers depend on."""


@cache
def state_of_code() -> str:
    """Return the hash of the code and the data of this package, and of those that extend it.

    It separates versions.
    """
    digest = hashlib.sha256(package_version().encode())
    for folder in (Path(__file__).parents[1], *map(Path, extending_packages())):
        for path in sorted(folder.rglob("*")):
            if path.suffix in CODE_AND_DATA and path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()


class WrongVersionError(Exception):
    """A worker runs other code, or other constants, than the one that asks."""


class WorkerLostError(Exception):
    """A worker ended before it answered."""


@dataclass(frozen=True)
class Failed:
    """A question that was given up."""

    reason: str


@dataclass(frozen=True)
class _Block(Generic[Item]):
    """Questions that one worker answers in a row."""

    places: tuple[int, ...]
    items: tuple[Item, ...]
    tries: int = 0


def answered(version: str, answer: Callable[[Item], Answer], items: Sequence[Item]) -> Any:
    """Return the answers of a block, or what went wrong, and the seconds that they took.

    Runs on a worker.

    Raises
    ------
    WrongVersionError
        The code of the worker is not that of the version.
    """
    if state_of_code() != version:
        raise WrongVersionError(f"process {os.getpid()} on {socket.gethostname()}")
    started = time.perf_counter()
    found = [_tried(answer, item) for item in items]
    return found, time.perf_counter() - started


def _tried(answer: Callable[[Item], Answer], item: Item) -> Answer | Failed:
    """Return an answer, or the first line of the error in place of it."""
    try:
        return answer(item)
    except Exception as error:  # whatever it is, the other questions go on
        text = str(error).splitlines()
        return Failed(f"{type(error).__name__}: {text[0] if text else 'no message'}")


class Cluster(ABC):
    """Workers that take calls."""

    num_workers = 1
    loses_all = False
    """Whether a worker that ends takes the calls of all others with it."""
    warnings: Sequence[str] = ()

    @property
    def most_under_way(self) -> int:
        """Most calls at a time: one for each worker, and the next one."""
        return 2 * self.num_workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    @abstractmethod
    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        """Return the future result of a call; :class:`WorkerLostError` where a worker ended."""

    def renew(self) -> None:  # noqa: B027
        """Take calls again after workers were lost."""

    def check(self) -> None:  # noqa: B027
        """Raise an error where the cluster itself is gone."""

    def refused(self, worker: str) -> None:
        """Leave out a worker of another version, or raise an error where none is left."""
        raise MeshwrightError(f"{worker} runs another version of meshwright, or other constants")

    def end(self) -> None:  # noqa: B027
        """End the calls under way."""


class Here(Cluster):
    """One process: the one that asks."""

    most_under_way = 1

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        """Return the result of a call."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*given))
        except Exception as error:
            future.set_exception(error)
        return future


HERE = Here()


class LocalProcesses(Cluster):
    """Processes of this machine, started once; they share what was loaded before."""

    loses_all = True

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._others = active_children()
        self._pool = self._processes()

    def renew(self) -> None:
        """Start new processes: not as copies of this one, whose threads may hold locks."""
        self._pool = self._processes("spawn")

    def _processes(self, method: str | None = None) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.num_workers, get_context(method), _end_with_parent, initargs=(os.getpid(),)
        )

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        """Return the future result of a call; a pool that broke says so in it."""
        try:
            return self._pool.submit(call, *given)
        except BrokenExecutor as error:
            broken: Future[Any] = Future()
            broken.set_exception(error)
            return broken

    def end(self) -> None:
        """End all processes at once."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in active_children():
            if worker not in self._others:
                worker.terminate()


class DaskWorkers(Cluster):
    """The workers of a Dask scheduler."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise _lacking("dask") from None
        try:
            self._client = Client(address, timeout="5s", set_as_default=False)
        except OSError:
            raise _not_there(f"dask://{address}", "a Dask scheduler") from None
        self._address, self._told = address, set[str]()
        self._workers: list[str] = []
        self._pinned: dict[Future[Any], tuple[Any, set[str]]] = {}
        self.renew()

    def renew(self) -> None:
        """Take the workers that run this code; the others are left out by name."""
        # A worker without this package, or with an older one, fails the call: it is left out too.
        versions = self._client.run(state_of_code, on_error="return")
        mine = state_of_code()
        self._workers = [one for one, version in versions.items() if version == mine]
        self._told |= versions.keys() - set(self._workers)
        self.warnings = [_other_version(worker) for worker in sorted(self._told)]
        self.num_workers = max(1, len(self._workers))
        if versions and not self._workers:
            raise MeshwrightError("; ".join(self.warnings))

    def refused(self, worker: str) -> None:
        """Leave out workers of other versions."""
        self.renew()

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        """Return the future result of a call."""
        found: Future[Any] = Future()
        # Workers that come back have another address: calls name workers only where some are out.
        workers = list(self._workers) if self._told else None
        inner = self._client.submit(call, *given, pure=False, retries=0, workers=workers)
        if workers is not None:
            self._pinned[found] = inner, set(workers)
            found.add_done_callback(lambda done: self._pinned.pop(done, None))
        inner.add_done_callback(partial(_passed_on, found))
        return found

    def check(self) -> None:
        """Raise an error where the scheduler is gone; drop calls whose workers are all gone."""
        if self._client.status != "running":
            raise _gone(f"the scheduler at {self._address}")
        if self._pinned:
            self.renew()
            for inner, workers in list(self._pinned.values()):
                if not workers & set(self._workers):
                    inner.cancel()

    def end(self) -> None:
        """Cancel the calls under way, and leave the cluster."""
        self._client.close(timeout=2)


class RayWorkers(Cluster):
    """The workers of a Ray cluster."""

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise _lacking("ray") from None
        self._ray = ray
        where = address if address in ("auto", "local") else f"ray://{address}"
        try:
            ray.init(address=where, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, OSError, RuntimeError):
            what = "a Ray cluster; where it asks for a token, set RAY_AUTH_MODE=token"
            raise _not_there(where, what) from None
        self._address = where
        self.num_workers = int(ray.cluster_resources().get("CPU", 1))

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        """Return the future result of a call."""
        found: Future[Any] = Future()
        task = self._ray.remote(call).options(max_retries=0, scheduling_strategy="SPREAD")
        try:
            inner = task.remote(*given).future()
        except ConnectionError:
            raise _gone(f"the head at {self._address}") from None
        inner.add_done_callback(partial(_passed_on, found))
        return found

    def check(self) -> None:
        """Raise an error where the head is gone."""
        try:
            self._ray.cluster_resources()
        except Exception:  # which one depends on when it is asked
            raise _gone(f"the head at {self._address}") from None

    def end(self) -> None:
        """Leave the cluster; calls under way are cancelled."""
        self._ray.shutdown()


def _passed_on(found: Future[Any], inner: Any) -> None:
    """Pass a result of a cluster on; errors that are not those of the call are lost workers."""
    try:
        found.set_result(inner.result())
    except (CancelledError, TimeoutError):
        found.set_exception(WorkerLostError("the cluster dropped the call"))
    except Exception as error:
        cause = getattr(error, "cause", None)
        known = cause if isinstance(cause, WrongVersionError) else error
        is_ours = isinstance(known, WrongVersionError)
        found.set_exception(known if is_ours else WorkerLostError(type(error).__name__))


CLUSTERS: dict[str, Callable[[str], Cluster]] = {"dask": DaskWorkers, "ray": RayWorkers}


def open_cluster(where: str) -> Cluster:
    """Return the workers of ``local:N``, ``dask://HOST:PORT`` or ``ray://HOST:PORT``.

    Raises
    ------
    SpecError
        No such cluster answers.
    UnsupportedError
        Its package is not installed.
    """
    kind, _, address = where.partition("://" if "://" in where else ":")
    if kind in CLUSTERS and address:
        return CLUSTERS[kind](address)
    if kind != "local" or not address.isdecimal() or not 1 <= int(address) <= MOST_LOCAL:
        allowed = "local:N (such as local:4), dask://HOST:PORT or ray://HOST:PORT"
        raise SpecError(Fault("--on-cluster", f"found {where!r}", allowed))
    return LocalProcesses(int(address)) if int(address) > 1 else Here()


MOST_LOCAL = 1024
"""Most processes of this machine."""


def _lacking(package: str) -> UnsupportedError:
    extra = "cluster" if package == "dask" else package
    return UnsupportedError(f"--on-cluster needs {package}: pip install 'meshwright[{extra}]'")


def _not_there(where: str, what: str) -> SpecError:
    return SpecError(Fault("--on-cluster", f"no answer from {where!r}", f"the address of {what}"))


def _gone(what: str) -> MeshwrightError:
    return MeshwrightError(f"{what} is gone; run again to go on where this stopped")


def _other_version(worker: str) -> str:
    return f"{worker} runs another version of meshwright, or other constants: it answers nothing"


def answers(
    cluster: Cluster, answer: Callable[[Item], Answer], items: Sequence[Item],
    groups: Sequence[Hashable] | None = None, seconds: float = inf,
    most_in_block: int = MOST_IN_BLOCK,
) -> Iterator[list[tuple[int, Answer | Failed]]]:  # fmt: skip
    """Yield the answers of questions as they come, each with the place of its question.

    Parameters
    ----------
    answer
        Function of a module, which workers import.
    groups
        What questions share, such as a model and a system: those that are equal go to one worker
        together.
    seconds
        Time after which no answer is waited for [s].
    most_in_block
        Most questions whose answers come together, once the last of them is known.
    """
    version, ends_s = state_of_code(), time.monotonic() + seconds
    order = list(range(len(items)))
    if groups is not None:
        first: dict[Hashable, int] = {}
        for place in order:
            first.setdefault(groups[place], place)
        order.sort(key=lambda place: (first[groups[place]], place))
    left, suspects = deque(order), deque[_Block[Item]]()
    failures: dict[int, int] = {}
    under_way: dict[Future[Any], _Block[Item]] = {}
    finished = SimpleQueue[Future[Any]]()
    spent_s, num_done = 0.0, 0

    def next_block() -> _Block[Item] | None:
        """Return the next questions; one that may have ended its worker runs alone.

        It is alone in its block, and in the cluster where its end would be that of others.
        """
        if suspects and cluster.loses_all:
            return suspects.popleft() if not under_way else None
        if len(under_way) >= cluster.most_under_way:
            return None
        if suspects:
            return suspects.popleft()
        if not left:
            return None
        fair = -(-len(left) // (4 * cluster.num_workers))
        block_s = max(BLOCK_S, DEALT_S * cluster.num_workers)
        fast = block_s * num_done / spent_s if spent_s else 1.0
        size = max(1, min(fair, most_in_block, int(fast)))
        places = tuple(left.popleft() for _ in range(min(size, len(left))))
        return _Block(places, tuple(items[place] for place in places))

    def send(block: _Block[Item]) -> None:
        future = cluster.submit(answered, version, answer, block.items)
        under_way[future] = block
        future.add_done_callback(finished.put)

    def lost(blocks: Sequence[_Block[Item]], error: BaseException) -> list[tuple[int, Failed]]:
        """Ask the questions of lost workers again one by one; return those that are given up."""
        given_up = []
        for block in blocks:
            tries = block.tries + (len(block.items) == 1)
            for place, item in zip(block.places, block.items, strict=True):
                if tries >= MOST_TRIES:
                    reason = f"its worker ended {MOST_TRIES} times ({error or 'killed'})"
                    given_up.append((place, Failed(reason)))
                else:
                    suspects.append(_Block((place,), (item,), tries))
        return given_up

    while (left or suspects or under_way) and (left_s := ends_s - time.monotonic()) > 0:
        while (block := next_block()) is not None:
            send(block)
        done = _all_of(finished, min(HEARTBEAT_S, left_s))
        if not done:
            cluster.check()
        kept: list[tuple[int, Answer | Failed]] = []
        for future in done:
            if future not in under_way:  # its pool broke with another one
                continue
            block = under_way.pop(future)
            try:
                found, took_s = future.result()
            except WrongVersionError as error:
                cluster.refused(str(error))
                left.extendleft(reversed(block.places))
                continue
            except BrokenExecutor as error:  # all calls of the pool are lost
                broken = [block, *under_way.values()]
                under_way.clear()
                cluster.renew()
                kept += lost(broken, error)
                break
            except WorkerLostError as error:
                cluster.check()
                kept += lost([block], error)
                continue
            spent_s, num_done = spent_s + took_s, num_done + len(block.items)
            for place, item, one in zip(block.places, block.items, found, strict=True):
                if isinstance(one, Failed):
                    failures[place] = failures.get(place, 0) + 1
                    if failures[place] < MOST_TRIES:
                        suspects.append(replace(block, places=(place,), items=(item,)))
                        continue
                kept.append((place, one))
        if kept:
            yield kept


def _all_of(finished: SimpleQueue[Future[Any]], seconds: float) -> list[Future[Any]]:
    """Return the calls that have ended, the first within some seconds; empty: none has."""
    found = []
    with suppress(Empty):
        found.append(finished.get(timeout=seconds))
        while True:
            found.append(finished.get_nowait())
    return found


def every_answer(
    cluster: Cluster, answer: Callable[[Item], Answer], items: Sequence[Item]
) -> Iterator[Answer]:
    """Yield the answers of questions in their order, each once it and those before are known.

    Raises
    ------
    MeshwrightError
        A question was given up. Without other workers its own error is raised.
    """
    if isinstance(cluster, Here):
        yield from map(answer, items)
        return
    found: dict[int, Answer] = {}
    following = 0
    for block in answers(cluster, answer, items):
        for place, one in block:
            if isinstance(one, Failed):
                raise MeshwrightError(one.reason)
            found[place] = one
        while following in found:
            yield found.pop(following)
            following += 1


def _end_with_parent(parent: int) -> None:
    """Leave Ctrl-C to the parent process; end on its request, and with it.

    The parent may have ended before this process could ask for its number.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
