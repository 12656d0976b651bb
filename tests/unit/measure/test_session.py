"""All kinds within a time, no case too long, and what is there at an interrupt."""

import os
import signal

from meshwright.measure.cases import Probe
from meshwright.measure.session import FEWEST_SAMPLES, Session


class Clock:
    """A device on which a run takes what its case says."""

    sample_s = 0.01

    def __init__(self):
        self.now_s = 0.0

    def seconds(self, run, times):
        taken = sum(run() or 0.0 for _ in range(times))
        self.now_s += taken
        return taken / times

    host_seconds = seconds

    def synchronize(self):
        pass


class Alone:
    """One process."""

    def largest(self, values):
        return [float(value) for value in values]

    mean = largest


class Timed(Session):
    """A session on the clock of its device."""

    @property
    def taken_s(self):
        return self.device.now_s


def case(kernel, seconds, *, num_bytes=0.0, run=None):
    work = max(int(seconds * 1e6), 1)
    return Probe(kernel, "fp32", (work,), lambda: run or (lambda: seconds), float(work), num_bytes)


def session():
    return Timed(Clock(), Alone(), memory_bytes=1e9)


def test_every_kind_has_its_share_of_the_time():
    found = session()
    found.measure([[case("matmul", 4.0**k * 1e-3) for k in range(10)],
                   [case("copy", 1e-3)], [case("launch", 1e-4)]], 10.0)  # fmt: skip
    assert {timing.kernel for timing in found.timings} == {"matmul", "copy", "launch"}
    assert found.taken_s < 12.0
    assert found.left_out == ["matmul 4096000 fp32 and longer: no time"]
    assert all(timing.num_samples >= FEWEST_SAMPLES for timing in found.timings)
    assert all(round(t.median_s * 1e6) == t.shape[0] for t in found.timings)


def test_what_cannot_run_is_left_out_by_its_reason():
    def refuse():
        raise RuntimeError("no such type\non this device")

    found = session()
    found.measure([[case("matmul", 1e-3, run=refuse)], [case("copy", 1e-3, num_bytes=1e9)],
                   [case("launch", 1e-3)]], 1.0)  # fmt: skip
    assert [timing.kernel for timing in found.timings] == ["launch"]
    assert found.left_out == [
        "matmul 1000 fp32 and longer: no such type",
        "copy 1000 fp32 and longer: needs 0.9 GiB",
    ]


def test_an_interrupt_keeps_what_is_there():
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        return 1e-3

    found, before = session(), signal.getsignal(signal.SIGINT)
    found.measure([[case("copy", 1e-3)], [case("triad", 1e-3, run=interrupt)],
                   [case("launch", 1e-3)]], 1.0)  # fmt: skip
    assert found.is_stopped
    assert [timing.kernel for timing in found.timings] == ["copy", "triad"]
    assert found.left_out == ["1 more: interrupted"]
    assert signal.getsignal(signal.SIGINT) is before
