"""Graphs too wide for all orders: what fusion finds, its bound, and how long both take.

    python benchmarks/wide_graphs.py

CPU seconds of this process, one core; SN10, tiles of 64, kernels split over tp as `fuse` finds it.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Iterator

from meshwright.dataflow.fusion.answer import FusionQuestion
from meshwright.dataflow.fusion.fuse import problem_of, target_named
from meshwright.dataflow.fusion.price import bound_s
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.fusion.search import fuse
from meshwright.dataflow.load import load_graph

TILE, LINK = 64, 25e9
CASES = (
    ("mixtral-8x7b", True, 8), ("mixtral-8x7b", True, 2), ("deepseek-v2-lite.layer1", False, 4),
    ("deepseek-v2-lite.layer1", True, 4), ("deepseek-v3.layer1", False, 8),
    ("gpt-oss-20b.layer1", True, 4), ("llama4-maverick.layer1", True, 8),
)  # fmt: skip


def problems() -> Iterator[tuple[str, FusionProblem]]:
    target = target_named("SN10", "own", LINK)
    for name, trains, tp in CASES:
        graph = load_graph(name, training=trains)
        tile = min(TILE, graph.sizes[graph.tiled])
        asked = FusionQuestion(graph, target, tp=tp, pp=graph.repeats, tile=tile)
        yield f"{name}{', training' if trains else ''}, tp {tp}", problem_of(asked, tile)


def main() -> None:
    print(f"{'graph':<40}{'kernels':>8}{'time ms':>10}{'by phase':>10}{'bound ms':>10}{'gap':>8}"
          f"{'search':>9}")  # fmt: skip
    for name, problem in problems():
        start = time.process_time()
        found = fuse(problem)
        search_s = time.process_time() - start
        wide = "" if found.counts.num_kept else "  all orders"
        print(f"{name:<40}{problem.num_kernels:>8}{1e3 * found.time_s:>10.3f}"
              f"{1e3 * bound_s(problem):>10.3f}"
              f"{1e3 * found.bound_s:>10.3f}{found.gap:>8.1%}{search_s:>7.1f} s{wide}")  # fmt: skip


if __name__ == "__main__":
    main()
