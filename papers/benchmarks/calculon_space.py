"""How fast the compatibility preset covers the peer's search spaces, beside the peer's own figures.

Run: python papers/benchmarks/calculon_space.py [--small]
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from meshwright_papers.calculon.machine import application_named, system_named
from meshwright_papers.calculon.search import Counts, Space, search

ROOT = Path(__file__).parents[2]
RUNS = json.loads((ROOT / "papers/tests/data/calculon_spaces.json").read_text(encoding="utf-8"))
BATCH = 1536
REPEATS = 3
LOGGER_FACTOR = 10.1 / 1.56
"""CPU of one evaluation as the peer's search runs it, over the same with its logger off (measured
on Calculon 0.1.0, commit caa4b11: 10.1 ms and 1.56 ms)."""
SAMPLED_PER_CPU_S = {512: 297.2, 1024: None, 4096: 394.9}
"""Configurations per CPU second of the peer's search with offload and overlap, from a sample of
3,938 (512 processors) and 2,209 (4096): not run to its end."""
COLD = """
from meshwright_papers.calculon.machine import application_named, system_named
from meshwright_papers.calculon.search import Space, search
system = system_named("a100_80g").without_host_memory()
search(Space(application_named("gpt3-175B"), system, {num}, 1536, tensor_overlap=False))
"""


@dataclass(frozen=True)
class Timing:
    """One space, covered."""

    counts: Counts
    cpu_s: float
    best_samples_per_s: float


def covered(space: Space) -> Timing:
    """Return the least CPU time of a few runs."""
    least = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        result = search(space)
        least = min(least, time.process_time() - start)
    return Timing(result.counts, least, result.best[0].samples_per_s)


def cold_cpu_s(num_processors: int) -> float:
    """Return the CPU time of a fresh process that covers a published space, imports included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COLD.format(num=num_processors)]
    subprocess.run(command, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tell(title: str, timing: Timing, peer_cpu_s: float | None, how: str) -> None:
    """Print one space."""
    counts = timing.counts
    print(f"\n{title}")
    print(
        f"  {counts.configurations:>12,} configurations: {counts.feasible:,} feasible, "
        f"{counts.network_refused:,} refused by network, {counts.memory_refused:,} by memory"
    )
    rate = counts.configurations / timing.cpu_s
    priced = counts.feasible / timing.cpu_s
    print(
        f"  {timing.cpu_s:>12.3f} CPU s here: {rate:,.0f} configurations per CPU s covered, "
        f"{priced:,.0f} of them priced in full"
    )
    print(f"  {timing.best_samples_per_s:>12.3f} samples/s at best")
    if peer_cpu_s is not None:
        ratio = peer_cpu_s / timing.cpu_s
        print(f"  {peer_cpu_s:>12,.1f} CPU s of the peer, {how}: {ratio:,.0f} times ours")


def published_spaces() -> None:
    """Cover the two spaces that the peer itself was run through to the end."""
    application = application_named("gpt3-175B")
    system = system_named("a100_80g").without_host_memory()
    for run in RUNS["runs"]:
        num = run["gpus"]
        timing = covered(Space(application, system, num, BATCH, tensor_overlap=False))
        title = f"GPT-3 175B, {num} A100, no offload, no tensor overlap"
        tell(title, timing, run["cpu_s"], "measured with its logger off")
        as_run_s = run["cpu_s"] * LOGGER_FACTOR
        print(f"  {as_run_s:>12,.1f} CPU s of the peer as its own search runs (logger on)")
        print(f"  {cold_cpu_s(num):>12.3f} CPU s here in a fresh process, imports included")
        expected = (run["configs"], run["feasible"], run["top20"][0]["samples_per_s"])
        found = (timing.counts.configurations, timing.counts.feasible, timing.best_samples_per_s)
        print(f"               same counts and best as the peer: {agree(found, expected)}")


def agree(found: tuple[int, int, float], expected: tuple[int, int, float]) -> bool:
    """Tell whether counts are equal and rates the same to a part in 1e12."""
    same_rate = abs(found[2] / expected[2] - 1) < 1e-12
    return found[:2] == expected[:2] and same_rate


def whole_spaces() -> None:
    """Cover the spaces with the host-memory tier and every overlap mode."""
    application, system = application_named("gpt3-175B"), system_named("a100_80g")
    for num, rate in SAMPLED_PER_CPU_S.items():
        timing = covered(Space(application, system, num, BATCH))
        peer_s = timing.counts.configurations / rate if rate else None
        title = f"GPT-3 175B, {num} A100, with offload and tensor overlap"
        tell(title, timing, peer_s, "extrapolated from a sample")


def main() -> None:
    """Cover all spaces and print."""
    if "--small" in sys.argv:
        del RUNS["runs"][1:]
        published_spaces()
    else:
        published_spaces()
        whole_spaces()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of this process: {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
