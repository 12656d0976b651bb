"""Search time of plans with a strategy for each operator, with both gaps, and of Alpa's program.

    python papers/benchmarks/operator_search.py [--small]

CPU seconds of this process, one core, warm. The integer program gets the tables of level 1 of the
same run, without a memory budget and with the 12 options that are fastest for some group: with all
of them it does not end in minutes.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")


from meshwright.cost.problem import Problem
from meshwright.train.question import make_problem, training
from meshwright.wafer.operators.answer import plan_operators
from meshwright.wafer.operators.options import likely_bases
from meshwright.wafer.price import physical_network
from meshwright_papers.studies.temp.solver import program_times, timed

CASES = (
    ("gpt3-76b", "wafer-6x8", 2048), ("gpt3-76b", "wafer-8x8", 2048),
    ("gpt3-76b", "wafer-8x10", 2048), ("llama3-70b", "wafer-4x8", 4096),
    ("gpt3-175b", "wafer-4x8", 2048),
)  # fmt: skip
SMALL = (("gpt3-6.7b", "wafer-4x4", 2048),)


def asked(model: str, system: str, length: int) -> Problem:
    work = training(system, sequence_length=length, global_batch_size=128)
    return make_problem(model, system, work, "uncalibrated")


def main() -> None:
    cases = SMALL if "--small" in sys.argv else CASES
    warm = asked(*cases[0])
    plan_operators(warm, likely_bases(warm, 1), physical_network(warm))
    print(f"{'case':<24}{'frames':>8}{'plan':>8}{'step':>10}{'gap 1':>8}{'gap 2':>8}{'whole':>8}"
          f"{'DP':>10}{'ILP':>10}{'ratio':>8}")  # fmt: skip
    for case in cases:
        problem = asked(*case)
        bases, frames_s = timed(lambda p=problem: likely_bases(p, 1))
        found, plan_s = timed(lambda p=problem, b=bases: plan_operators(p, b, physical_network(p)))
        dynamic_s, program_s, is_same = program_times(found)
        print(
            f"{case[0] + ' ' + case[1]:<24}{frames_s:>6.2f} s{plan_s:>6.2f} s"
            f"{found.time_s:>8.3f} s{found.level_one.gap:>8.2%}{found.level_two.gap:>8.2%}"
            f"{found.gap:>8.1%}{dynamic_s * 1e3:>7.1f} ms{program_s:>8.2f} s"
            f"{program_s / dynamic_s:>7.0f}x{'' if is_same else ' (not the same)'}"
        )


if __name__ == "__main__":
    main()
