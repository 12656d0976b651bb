"""Graphs too wide for all orders: what fusion finds, its bound, and how long both take.

    python benchmarks/wide_graphs.py              # programs need PyTorch and transformers
    python benchmarks/wide_graphs.py --no-programs

CPU seconds of this process, one core; SN10. Layers have tiles of 64 and are split over tp as `fuse`
finds it; of programs all tiles are tried, and reading them is not counted.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Iterator
from pathlib import Path

from meshwright.dataflow.fusion.fuse import problem_of
from meshwright.dataflow.fusion.price import bound_s
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.fusion.question import FusionQuestion, target_named, tiles_of
from meshwright.dataflow.fusion.search import WeightedProblem, best_of
from meshwright.dataflow.question import load_graph

TILE, LINK = 64, 25e9
LAYERS = (
    ("mixtral-8x7b", True, 8), ("mixtral-8x7b", True, 2), ("deepseek-v2-lite.layer1", False, 4),
    ("deepseek-v2-lite.layer1", True, 4), ("deepseek-v3.layer1", False, 8),
    ("gpt-oss-20b.layer1", True, 4), ("llama4-maverick.layer1", True, 8),
)  # fmt: skip
PROGRAMS = ("swin", "mamba", "qwen3")


def layers() -> Iterator[tuple[str, list[FusionProblem]]]:
    """Yield layers of the catalog: one tile, split over chips."""
    target = target_named("SN10", LINK)
    for name, trains, tp in LAYERS:
        graph = load_graph(name, training=trains)
        tile = min(TILE, graph.sizes[graph.tiled])
        asked = FusionQuestion(graph, target, tp=tp, pp=graph.repeats, tile=tile)
        yield f"{name}{', training' if trains else ''}, tp {tp}", [problem_of(asked, tile)]


def programs() -> Iterator[tuple[str, list[FusionProblem]]]:
    """Yield programs: all tiles, on one chip."""
    target = target_named("SN10")
    for name in PROGRAMS:
        graph = load_graph(f"{Path(__file__).with_name('programs.py')}:{name}")
        yield name, [problem_of(FusionQuestion(graph, target), tile) for tile in tiles_of(graph)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-programs", action="store_true", help="leave out what needs PyTorch")
    args = parser.parse_args()
    print("| | kernels | all orders of | found | bound by phase | bound | gap | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for source in (layers,) if args.no_programs else (layers, programs):
        for name, problems in source():
            start = time.process_time()
            choice = best_of(map(WeightedProblem, problems))
            search_s = time.process_time() - start
            kernels, phases_s = problems[0].num_kernels, min(map(bound_s, problems))
            print(f"| {name} | {kernels} | {choice.fusion.counts.num_kept or kernels} "
                  f"| {1e3 * choice.weighted_s:.4g} ms | {1e3 * phases_s:.4g} ms "
                  f"| {1e3 * choice.bound_s:.4g} ms "
                  f"| {choice.weighted_s / choice.bound_s - 1.0:.1%} "
                  f"| {search_s:.1f} |")  # fmt: skip


if __name__ == "__main__":
    main()
