"""Which plan to take among the fastest: by closed form, with contention, or by the surrogate.

Run: python papers/benchmarks/surrogate_ranking.py [--configurations 8] [--plans 10]

On configurations that no row was drawn from, the fastest plans of the whole space in closed form
are placed, and each is simulated. An order is judged by the simulated time of its first plan over
that of the best one, and by how many plans it takes to come to the best one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from meshwright.cost.problem import Problem
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import plan_string
from meshwright.train.search import search
from meshwright.train.space import SearchSpace
from meshwright.wafer.price import physical_network
from meshwright.wafer.search import place
from meshwright.wafer.simulation import simulate_step
from meshwright_papers.surrogate.estimator import shipped
from meshwright_papers.surrogate.sampling import draw_problem

SEED = 1_000_003
NAMES = ("closed form", "with contention", "surrogate")


def main() -> None:
    """Print the mean of both figures for each order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configurations", type=int, default=8)
    parser.add_argument("--plans", type=int, default=10)
    asked = parser.parse_args()
    tables = []
    number = 0
    while len(tables) < asked.configurations:
        problem = draw_problem(np.random.default_rng([SEED, number]))
        number += 1
        rows = np.array(list(priced(problem, asked.plans)))
        if len(rows) >= 4:
            tables.append(rows)
            print(number, problem.system.name, len(rows), told(rows), flush=True)
    print(f"{'order':<18}{'first over best':>18}{'plans until the best':>22}")
    for column, name in enumerate(NAMES):
        regret, until = np.mean([judged(rows, column) for rows in tables], axis=0)
        print(f"{name:<18}{regret:>18.4f}{until:>22.2f}")


def told(rows: np.ndarray) -> str:
    return "  ".join("{:.3f} {:.0f}".format(*judged(rows, column)) for column in range(len(NAMES)))


def judged(rows: np.ndarray, column: int) -> tuple[float, int]:
    """Return the first plan over the best one, and the plans until the best one."""
    simulated = rows[np.argsort(rows[:, column], kind="stable"), -1]
    return simulated[0] / simulated.min(), int(np.argmin(simulated)) + 1


def priced(problem: Problem, num: int) -> Iterator[tuple[float, float, float, float]]:
    """Yield the step of the fastest plans: each way of ``NAMES``, and simulated [s]."""
    found = search(SearchSpace(problem, Choices()), top=num).found
    physical, surrogate = physical_network(problem), shipped(problem)
    seen = set()
    for at in found:
        text = plan_string(at.strategy, at.plan_options)
        if text in seen or len(seen) >= num:
            continue
        seen.add(text)
        placing = place(problem, at.plan_options, at.strategy, physical)
        if placing is None:
            continue
        learned = surrogate.step_s(at.plan_options, at.strategy, [placing.price.nesting])
        step = simulate_step(problem, placing.price, physical)
        yield at.time_s, placing.time_s, float(learned[0]), step.step_time_s


if __name__ == "__main__":
    main()
