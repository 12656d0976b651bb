"""Runs cases within a budget of time; all processes agree on the cases, and when to stop.

A case that does not fit into memory or into its share of the time is left out by its name. An
interrupt ends the run after the case that is under way: measured rows stay.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.measure.cases import Probe, Run
from meshwright.measure.device import Device, Ranks
from meshwright.spec.measured import Timing

Progress = Callable[[int, int], None]
FEWEST_SAMPLES, MOST_SAMPLES = 3, 15
MOST_RUNS = 20_000
"""Most runs in one sample."""
MEMORY_SHARE = 0.25


@dataclass
class Session:
    """One run of ``measure``: its processes, its clock, its rows."""

    device: Device
    ranks: Ranks
    memory_bytes: float
    progress: Progress | None = None
    timings: list[Timing] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    is_stopped: bool = False
    started: float = field(default_factory=time.monotonic)
    _per_work: dict[tuple[object, ...], float] = field(default_factory=dict)

    @property
    def taken_s(self) -> float:
        """Since the start [s]."""
        return time.monotonic() - self.started

    def measure(self, kinds: Sequence[Sequence[Probe]], until_s: float) -> None:
        """Measure cases of several kinds, each kind the shortest first, in its share of the time.

        Parameters
        ----------
        until_s
            When to be done, since the start of the session [s].
        """
        done, total = 0, sum(map(len, kinds))
        with self._interruptible() as is_interrupted:
            for cases in kinds:
                (late_s,) = self.ranks.largest([self.taken_s - until_s])
                kind_until_s = self.taken_s + max(-late_s, 0.0) * len(cases) / (total - done)
                for index, case in enumerate(cases):
                    left_s = kind_until_s - self.taken_s
                    stop, late_s = self.ranks.largest((is_interrupted(), -left_s))
                    if self.progress is not None:
                        self.progress(done + index, total)
                    if stop:
                        self.is_stopped = True
                        self.left_out.append(f"{total - done - index} more: interrupted")
                        return
                    if not self._measure(case, -late_s, len(cases) - index):
                        break
                done += len(cases)

    @contextmanager
    def _interruptible(self) -> Iterator[Callable[[], bool]]:
        """Note interrupts instead of stopping at once, where Python may do so."""
        caught: list[int] = []
        before: dict[signal.Signals, Any] = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, lambda got, _: caught.append(got))
        except ValueError:  # not the main thread: interrupts go where they went before
            pass
        try:
            yield lambda: bool(caught)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _measure(self, case: Probe, left_s: float, number: int) -> bool:
        """Measure one of the cases that are left of a kind; say why not where that goes for all."""
        if case.num_bytes > MEMORY_SHARE * self.memory_bytes:
            return self._leave_out(case, f"needs {case.num_bytes / 2**30:.1f} GiB")
        expected_s = max(self._expected_s(case), self.device.sample_s)
        if FEWEST_SAMPLES * expected_s > left_s and self._expected_s(case):
            return self._leave_out(case, "no time")
        run, refused = self._prepared(case)
        if any(self.ranks.largest([run is None])):
            return self._leave_out(case, refused or "another process cannot run it")
        assert run is not None
        clock = self.device.host_seconds if case.on_host else self.device.seconds
        (once_s,) = self.ranks.largest([clock(run, 1)])
        once_s = max(once_s, 1e-9)
        runs = min(max(math.ceil(self.device.sample_s / once_s), 1), MOST_RUNS)
        samples = min(max(int(left_s / number / (runs * once_s)), FEWEST_SAMPLES), MOST_SAMPLES)
        combine = self.ranks.largest if case.is_collective else self.ranks.mean
        found = combine([clock(run, runs) for _ in range(samples)])
        like = (case.kernel, case.dtype, case.group, case.stride)
        self._per_work[like] = float(np.median(found)) / case.work
        if case.kernel == "send":
            found = [seconds / 2.0 for seconds in found]
        p25, median, p75 = (float(value) for value in np.quantile(found, (0.25, 0.5, 0.75)))
        self.timings.append(Timing(
            kernel=case.kernel, dtype=case.dtype, shape=case.shape, group=case.group,
            stride=case.stride, median_s=median, p25_s=p25, p75_s=p75, num_samples=samples,
        ))  # fmt: skip
        return True

    def _leave_out(self, case: Probe, why: str) -> bool:
        self.left_out.append(f"{case.text} and longer: {why}")
        return False

    def _prepared(self, case: Probe) -> tuple[Run | None, str]:
        """Return the kernel to time, run once; None and the reason where it cannot run."""
        try:
            run = case.prepare()
            run()
            self.device.synchronize()
        except (RuntimeError, AttributeError, TypeError) as error:
            return None, str(error).splitlines()[0][:80] if str(error) else type(error).__name__
        return run, ""

    def _expected_s(self, case: Probe) -> float:
        """Return the time of a run from the last case of its kind; 0: not known [s]."""
        like = (case.kernel, case.dtype, case.group, case.stride)
        return self._per_work.get(like, 0.0) * case.work
