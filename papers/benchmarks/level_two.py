"""Three ways to choose options on shared links, on the same tables: time found, and its price.

    python papers/benchmarks/level_two.py [--small]

Exact choices on demand are the default. Each method begins with what level 1 chose; CPU seconds of
this process, one core, warm. Gaps are to the bound of the options in the table.
"""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from operator_search import CASES, SMALL, asked

from meshwright.wafer.operators.assignment import (
    Assignment,
    SharedTable,
    assign,
    graph_of,
    model_graph,
    on_demand,
)
from meshwright.wafer.operators.model import Assigned
from meshwright.wafer.operators.options import likely_bases
from meshwright.wafer.price import physical_network

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from oracles.operator_refining import descent, genetic


def by_default(table: SharedTable) -> Assigned:
    return on_demand(table).assigned


METHODS = {"on demand": by_default, "descent": descent, "genetic": genetic}


def widened(alone: Assignment) -> Assignment:
    """Return level 1 with all options that the default takes in, none of them priced yet."""
    table = SharedTable(alone)
    on_demand(table)
    rows = table.model.rows
    model = graph_of(alone.model.every_way, rows, alone.model.resharding)
    known = assign(model)
    assert known is not None
    return known


def main() -> None:
    print(
        f"{'case':<24}{'options':>8}  {'method':<10}{'CPU':>8}{'priced':>8}{'step':>10}{'gap':>8}"
    )
    for case in SMALL if "--small" in sys.argv else CASES:
        problem = asked(*case)
        base = likely_bases(problem, 1)[0]
        model = model_graph(problem, base.frame, physical_network(problem))
        assert model is not None
        level_one = assign(model)
        assert level_one is not None
        alone = widened(level_one)
        bound_s = on_demand(SharedTable(alone)).lower_bound_s
        for name, method in METHODS.items():
            table = SharedTable(alone)
            start_s = time.process_time()
            step_s = method(table).total_s
            cpu_s = time.process_time() - start_s
            print(
                f"{case[0] + ' ' + case[1]:<24}{len(alone.model.rows):>8}  {name:<10}"
                f"{cpu_s:>6.2f} s{table.num_priced:>8}"
                f"{step_s:>8.4f} s{step_s / bound_s - 1.0:>8.2%}"
            )


if __name__ == "__main__":
    main()
