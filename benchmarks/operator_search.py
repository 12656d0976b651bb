"""Search time of plans with a strategy for each operator, with both gaps, and of Alpa's program.

    python benchmarks/operator_search.py

CPU seconds of this process, one core, warm. The integer program gets the tables of level 1 of the
same run, without a memory budget and with the 12 options that are fastest for some group: with all
of them it does not end in minutes.
"""

import os
import time
from collections.abc import Callable
from typing import TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from meshwright.planner.question import make_problem, training
from meshwright.pricing.placed.price import physical_network
from meshwright.pricing.problem import Problem
from meshwright.search.operators.assignment import graph_of
from meshwright.search.operators.elimination import cheapest
from meshwright.search.operators.frames import likely_bases
from meshwright.search.operators.plan import Planned, plan_operators
from meshwright.search.operators.program import solve_program

Result = TypeVar("Result")
CASES = (
    ("gpt3-76b", "wafer-6x8", 2048), ("gpt3-76b", "wafer-8x8", 2048),
    ("gpt3-76b", "wafer-8x10", 2048), ("llama3-70b", "wafer-4x8", 4096),
    ("gpt3-175b", "wafer-4x8", 2048),
)  # fmt: skip
NUM_PROGRAM_OPTIONS = 12


def asked(model: str, system: str, length: int) -> Problem:
    work = training(system, sequence_length=length, global_batch_size=128)
    return make_problem(model, system, work, "uncalibrated")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start_s = time.process_time()
    result = work()
    return result, time.process_time() - start_s


def program_times(found: Planned) -> tuple[float, float, bool]:
    """Return the seconds of dynamic programming and of the integer program on equal tables."""
    model = found.level_one.model
    total = np.min([node.time_s for node in model.graph_nodes(0.0)], axis=0)
    rows = np.sort(np.argsort(total, kind="stable")[:NUM_PROGRAM_OPTIONS])
    graph = graph_of(model.every_way, model.rows[rows], model.resharding).graph()
    best, dynamic_s = timed(lambda: cheapest(graph))
    solved, program_s = timed(lambda: solve_program(graph, limit_s=300.0))
    assert not solved.is_proven or abs(solved.time_s - best.value_s) <= 1e-6 * best.value_s
    return dynamic_s, program_s, solved.is_proven


def main() -> None:
    warm = asked(*CASES[0])
    plan_operators(warm, likely_bases(warm, 1), physical_network(warm))
    print(f"{'case':<24}{'frames':>8}{'plan':>8}{'step':>10}{'gap 1':>8}{'gap 2':>8}{'whole':>8}"
          f"{'DP':>10}{'ILP':>10}{'ratio':>8}")  # fmt: skip
    for case in CASES:
        problem = asked(*case)
        bases, frames_s = timed(lambda p=problem: likely_bases(p, 1))
        found, plan_s = timed(lambda p=problem, b=bases: plan_operators(p, b, physical_network(p)))
        dynamic_s, program_s, is_proven = program_times(found)
        print(
            f"{case[0] + ' ' + case[1]:<24}{frames_s:>6.2f} s{plan_s:>6.2f} s"
            f"{found.time_s:>8.3f} s{found.level_one.gap:>8.2%}{found.level_two.gap:>8.2%}"
            f"{found.gap:>8.1%}{dynamic_s * 1e3:>7.1f} ms{program_s:>8.2f} s"
            f"{program_s / dynamic_s:>7.0f}x{'' if is_proven else ' (not proven)'}"
        )


if __name__ == "__main__":
    main()
