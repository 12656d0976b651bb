"""Questions a second over workers: one process, two, Dask, Ray; by the length of a question.

    python benchmarks/cluster.py                        where Dask and Ray are installed, they too
    python benchmarks/cluster.py --number 100000 --only local:1,local:2
    python benchmarks/cluster.py --plan deepseek-v3,1024xH100,4096,4096

Each line: the workers, the seconds that a question computes, questions, wall-clock seconds, the
overhead of a question beside what its worker computes, and the share of the workers' time that
computes. One worker is the baseline of two.

The last column but one is the processor time of the process that asks, for a question: other
programs of the machine do not change it. With ``--plan MODEL,SYSTEM,SEQ,BATCH`` the processor time
of one plan instead, of the process that asks and of its workers together, and the wall-clock time.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing import active_children
from pathlib import Path

import meshwright as mw
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
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])
    with ExitStack() as stack:
        for words in (
            ["dask_scheduler", "--host", "127.0.0.1", "--port", str(PORT), "--no-dashboard"],
            *[["dask_worker", f"tcp://127.0.0.1:{PORT}", "--nthreads", "1", "--no-dashboard"]]
            * number,
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{words[0]}", *words[1:]],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={"PYTHONPATH": path},
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
        started, asks_s = time.perf_counter(), time.process_time()
        done = sum(len(block) for block in answers(cluster, busy, [seconds] * number))
        took_s, asks_s = time.perf_counter() - started, time.process_time() - asks_s
    assert done == number
    computes_s = seconds * number / cluster.num_workers
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{where:28} {seconds * 1e3:6.1f} ms {number:8,} {took_s:8.2f} s "
        f"{(took_s - computes_s) / number * 1e3:8.3f} ms {computes_s / took_s:6.1%} "
        f"{asks_s / number * 1e3:8.3f} ms {peak:6.0f} MiB"
    )


def planned(where: str, model: str, system: str, seq: str, batch: str) -> str:
    """Print one line; return the plan with its proof."""
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    started = time.perf_counter()
    found = mw.plan(model, on=system, seq=seq, global_batch=batch, on_cluster=where)
    took_s = time.perf_counter() - started
    for worker in active_children():
        worker.join()
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    asks_s, work_s = (now.ru_utime + now.ru_stime - then.ru_utime - then.ru_stime
                      for now, then in zip(after, before, strict=True))  # fmt: skip
    print(f"{where:12} {asks_s:8.1f} s asks {work_s:8.1f} s works {took_s:8.1f} s in all")
    return f"{found.best.text} {found.best.estimate.step_time_s} {found.coverage.lower_bound_s}"


def main() -> None:
    """Print all lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int)
    parser.add_argument("--only")
    parser.add_argument("--plan")
    asked = parser.parse_args()
    if asked.plan:
        wheres = asked.only.split(",") if asked.only else ["local:1", "local:2"]
        print("equal" if len({planned(one, *asked.plan.split(",")) for one in wheres}) == 1
              else "different")  # fmt: skip
        return
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
