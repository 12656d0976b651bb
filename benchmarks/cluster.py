"""Questions a second over workers: one process, two, Dask, Ray; by the length of a question.

    python benchmarks/cluster.py                        where Dask and Ray are installed, they too
    python benchmarks/cluster.py --number 100000 --only local:1,local:2

Each line: the workers, the seconds that a question computes, questions, wall-clock seconds, the
overhead of a question beside what its worker computes, and the share of the workers' time that
computes. One worker is the baseline of two.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from meshwright.base.cluster import answers, open_cluster

PORT = 18799


def busy(seconds: float) -> float:
    """Compute for some seconds."""
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        pass
    return seconds


@contextmanager
def dask_of(number: int) -> Iterator[str]:
    """Run a scheduler and workers as processes of their own."""
    path = str(Path(__file__).parent)
    with ExitStack() as stack:
        for words in (
            ["dask_scheduler", "--host", "127.0.0.1", "--port", str(PORT), "--no-dashboard"],
            *[["dask_worker", f"tcp://127.0.0.1:{PORT}", "--nthreads", "1", "--no-dashboard"]]
            * number,
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{words[0]}", *words[1:]],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={"PYTHONPATH": path},
            )  # fmt: skip
            stack.callback(process.kill)
        yield f"dask://127.0.0.1:{PORT}"


def timed(where: str, seconds: float, number: int) -> None:
    """Print one line."""
    with open_cluster(where) as cluster:
        deadline = time.monotonic() + 30
        while where.startswith("dask") and cluster.num_workers < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
            cluster.renew()
        list(answers(cluster, busy, [0.0] * 50))  # workers have started
        started = time.perf_counter()
        done = sum(len(block) for block in answers(cluster, busy, [seconds] * number))
        took_s = time.perf_counter() - started
    assert done == number
    computes_s = seconds * number / cluster.num_workers
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{where:28} {seconds * 1e3:6.1f} ms {number:8,} {took_s:8.2f} s "
        f"{(took_s - computes_s) / number * 1e3:8.3f} ms {computes_s / took_s:6.1%} {peak:6.0f} MiB"
    )


def main() -> None:
    """Print all lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int)
    parser.add_argument("--only")
    asked = parser.parse_args()
    kinds = ["local:1", "local:2", *(["dask"] if find_spec("distributed") else []),
             *(["ray://local"] if find_spec("ray") else [])]  # fmt: skip
    for where in asked.only.split(",") if asked.only else kinds:
        for seconds, number in ((0.0, 100_000), (0.001, 10_000), (0.01, 1_000)):
            if where == "dask":
                with dask_of(2) as address:
                    time.sleep(5)
                    timed(address, seconds, asked.number or number)
            else:
                timed(where, seconds, asked.number or number)


if __name__ == "__main__":
    main()
