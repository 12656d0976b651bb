"""How fast the search covers spaces of plans, with and without pruning.

Run: python benchmarks/search_speed.py [--small] [--wafers [NAME ...]]

Times are CPU seconds of one process, imports of the package left out; the catalog is read before.
Peak memory is that of a fresh process that runs one search. With ``--wafers`` whole plans of
wafers, healthy and faulty, each in a fresh process with its imports; loops are compiled before.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshwright.catalog.systems import load_system
from meshwright.search.exhaustive import Counts
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import plan_string
from meshwright.train.question import make_problem, training
from meshwright.train.search import search
from meshwright.train.space import SearchSpace


@dataclass(frozen=True)
class Case:
    """One question: a model on a system with a batch."""

    model: str
    system: str
    sequence_length: int
    global_batch_size: int

    @property
    def title(self) -> str:
        """Model and system in one word."""
        return f"{self.model} {self.system}"


CASES = {
    "small": Case("llama3-8b", "8xH100", 8192, 64),
    "llama3-70b": Case("llama3-70b", "64xH100", 8192, 1024),
    "gpt3-175b": Case("gpt3-175b", "512xA100", 2048, 1536),
    "131072": Case("llama3.1-405b", "131072xH100", 8192, 131_072),
}


@dataclass(frozen=True)
class Wafer:
    """A model on a wafer with faults."""

    model: str
    system: str
    faults: Mapping[str, object]
    global_batch_size: int = 128

    @property
    def title(self) -> str:
        """Model, system and faults in one line."""
        return " ".join([self.model, self.system, *(f"{k} {v}" for k, v in self.faults.items())])


WAFERS = {
    "small": Wafer("gpt3-6.7b", "wafer-2x4", {"dead_devices": (5,)}, 64),
    "6x8": Wafer("gpt3-76b", "wafer-6x8", {}),
    "8x8": Wafer("gpt3-76b", "wafer-8x8", {}),
    "4x6x8": Wafer("gpt3-175b", "4xwafer-6x8", {}),
    "20x20": Wafer("gpt3-175b", "wafer-20x20", {}, 1024),
    "6x8-dead": Wafer("gpt3-76b", "wafer-6x8", {"dead_devices": (10, 37)}),
    "8x8-dead": Wafer(
        "gpt3-76b", "wafer-8x8", {"dead_devices": (10, 37), "dead_links": ((20, 21),)}
    ),
    "4x8-dead": Wafer("gpt3-6.7b", "wafer-4x8", {"dead_devices": (3, 12, 21, 30)}),
    "5x6-slow": Wafer("gpt3-6.7b", "wafer-5x6", {"speed_factors": {7: 0.79, 22: 0.9}}),
}


def placed(case: Wafer) -> str:
    """Return the plan of a wafer."""
    from meshwright.wafer.training import plan

    system = load_system(case.system).model_copy(update=dict(case.faults))
    work = training(system, sequence_length=2048, global_batch_size=case.global_batch_size)
    best = plan(case.model, system, work).best
    return f"{best.text}, {best.estimate.step_time_s:.9g} s, simulated {best.simulated_s:.9g} s"


@dataclass(frozen=True)
class Covered:
    """One space, covered."""

    counts: Counts
    cpu_s: float
    best: str


def covered(case: Case, *, prune: bool) -> Covered:
    """Search one space and return the CPU time of it."""
    work = training(
        case.system,
        sequence_length=case.sequence_length,
        global_batch_size=case.global_batch_size,
    )
    problem = make_problem(case.model, case.system, work, "uncalibrated")
    start = time.process_time()
    result = search(SearchSpace(problem, Choices({})), prune=prune)
    cpu_s = time.process_time() - start
    best = next((plan_string(f.strategy, f.plan_options) for f in result.found), "nothing fits")
    return Covered(result.counts, cpu_s, best)


def row(case: Case, *, prune: bool) -> str:
    """Return one line of the table."""
    run = covered(case, prune=prune)
    counts = run.counts
    over_memory = counts.does_not_fit + counts.pruned_by_memory
    figures = (
        counts.total, counts.refused.total(), over_memory, counts.pruned_by_bound,
        counts.dominated, counts.priced,
    )  # fmt: skip
    cells = "".join(f"{number:>13,}" for number in figures)
    evaluated = counts.priced + counts.does_not_fit if not prune else counts.total
    rate = f"{evaluated / run.cpu_s / 1e6:>10.2f}"
    how = "pruned" if prune else "all"
    return f"{case.title:<27}{how:<7}{cells}{run.cpu_s:>9.2f}{rate}  {run.best}"


def alone(title: str, call: str) -> str:
    """Return CPU seconds and peak memory of a fresh process that makes a call, imports too.

    The peak is that of the largest process so far: ask for the largest space last, and before
    this process itself has grown.
    """
    places = [str(Path(__file__).parent), *filter(None, sys.path)]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = os.environ | one_thread | {"PYTHONPATH": os.pathsep.join(places)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = f"import search_speed as s; print(s.{call})"
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, stdout=subprocess.PIPE, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = f"{cpu_s:>8.2f} CPU s, peak {after.ru_maxrss / 2**20:.2f} GiB"
    return f"{title:<34}{peak}  {run.stdout.strip()}".rstrip()


HEAD = (
    f"{'space':<27}{'':<7}{'candidates':>13}{'refused':>13}{'over memory':>13}{'beyond bound':>13}"
    f"{'dominated':>13}{'priced':>13}{'CPU s':>9}{'M/CPU s':>10}  best"
)


def main(arguments: list[str]) -> None:
    """Print the tables."""
    if "--wafers" in arguments:
        asked = [name for name in arguments if name in WAFERS] or list(WAFERS)
        for name in asked:
            print(alone(WAFERS[name].title, f"placed(s.WAFERS[{name!r}])"), flush=True)
        return
    names = ["small"] if "--small" in arguments else ["llama3-70b", "gpt3-175b", "131072"]
    print("Fresh processes, imports included:")
    for name in names:
        print(alone(CASES[name].title, f"covered(s.CASES[{name!r}], prune=True).best"))
    print()
    print(HEAD)
    for name in names:
        print(row(CASES[name], prune=True))
        if name != "131072":
            print(row(CASES[name], prune=False))
    print("M/CPU s: millions covered (pruned), or priced at least in memory (all), per CPU second")


if __name__ == "__main__":
    main(sys.argv[1:])
