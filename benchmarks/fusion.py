"""Fused partitions: time of the search, beside an integer program; a sweep of degrees and tiles.

    python benchmarks/fusion.py              # minutes; the integer program takes most of them
    python benchmarks/fusion.py --no-program

The case is the published run of DFModel (Ko et al. 2024, arXiv 2412.16432): a layer of GPT-3 175B
forward on 8 SN10, TP4 PP2, tiles of 64 tokens, with its rules. Its log records 107.7 s of Gurobi
10.0.3 on 128 threads of 72 cores, stopped by hand with a gap of 7.0 %: recorded, not measured here.
Seconds are CPU time of this process on one core, the least of several.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fusion_program import FusionProgram

from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusion.fuse import fuse_graph, problem_of
from meshwright.dataflow.fusion.problem import OWN, FusionProblem, Rules
from meshwright.dataflow.fusion.question import FusionQuestion
from meshwright.dataflow.fusion.search import WeightedProblem, best_of, fuse
from meshwright.dataflow.question import load_graph
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.graph import DataflowGraph, chained
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit, Weight
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL, target_named
from meshwright_papers.studies.dfmodel.workloads import gpt_layer, gpt_training_layer

STEPS = 5
"""Partitions that the integer program may use, as in the published run."""
NAMES = {OWN: "own", DFMODEL: "dfmodel"}
DEGREES, TILES = (2, 4, 8, 16, 32), (32, 64, 128, 256, 512, 1024, 2048)


def best_s(call: Callable[[], object], times: int = 5) -> float:
    """Return the shortest of several runs [s]."""
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def asked(
    graph: DataflowGraph, chip: str, tp: int, pp: int, tile: int, rules: Rules
) -> FusionProblem:
    """Return one problem."""
    target = target_named(chip)
    return problem_of(FusionQuestion(graph, target, tp, pp, tile, rules=rules), tile)


def single_cases() -> Iterator[str]:
    """Yield the published layer, and the same layer with its backward pass."""
    size = (12288, 96, 128, 2048)
    peer = gpt_training_layer(*size, repeats=96)
    for graph, tp, rules in (
        (load_graph("gpt3-175b-layer"), 4, DFMODEL),
        (load_graph("gpt3-175b-layer"), 4, OWN),
        (peer, 4, DFMODEL),
        (peer, 8, DFMODEL),
        (with_backward(gpt_layer(*size, repeats=96)), 8, OWN),
    ):
        problem = asked(graph, "SN10", tp, 8 // tp, 64, rules)
        found, seconds = fuse(problem), best_s(lambda problem=problem: fuse(problem))
        yield (
            f"{len(graph.kernels)} kernels, tp {tp}, {NAMES[rules]:<7}: "
            f"{found.time_s * 1e3:8.3f} ms, "
            f"gap {found.gap:.1%}, {found.counts.num_ideals} ideals, "
            f"{found.counts.num_steps} steps, {1e3 * seconds:6.1f} ms to find"
        )


def program_case() -> Iterator[str]:
    """Yield the published layer by both ways, in one run."""
    problem = asked(load_graph("gpt3-175b-layer"), "SN10", 4, 2, 64, DFMODEL)
    ours = best_s(lambda: fuse(problem))
    found = fuse(problem)
    start = time.process_time()
    program = FusionProgram(problem, found.micro_batch, STEPS)
    seconds = program.solve()
    theirs = time.process_time() - start
    yield (
        f"ours {found.time_s * 1e9:,.3f} ns in {1e3 * ours:.1f} ms; HiGHS {seconds * 1e9:,.3f} ns "
        f"in {theirs:.1f} s ({len(program.costs)} variables, {len(program.rows)} rows, micro-batch "
        f"fixed at {found.micro_batch}, {STEPS} partitions)"
    )
    yield "recorded: Gurobi 10.0.3, 128 threads: 7,323,254.784 ns in 107.7 s, gap 7.0 %"


def sweep_case() -> Iterator[str]:
    """Yield a training layer of 1T parameters on 1,024 chips, every degree and tile of it."""
    size = (24576, 128, 192, 2048)
    peer, own = gpt_training_layer(*size, repeats=128), gpt_layer(*size, repeats=128)
    for rules, graph in ((DFMODEL, peer), (OWN, with_backward(own))):
        start = time.process_time()
        cases = [(tp, tile) for tp in DEGREES for tile in TILES]
        problems = [asked(graph, "SN30", tp, 16, tile, rules) for tp, tile in cases]
        ready = time.process_time()
        weighted = (
            WeightedProblem(problem, float(tp))
            for problem, (tp, _) in zip(problems, cases, strict=True)
        )
        choice = best_of(weighted)
        pruned = time.process_time()
        every = [one for problem in problems if (one := fused(problem)) is not None]
        done = time.process_time()
        tp, tile = cases[choice.number]
        yield (
            f"{NAMES[rules]:<7}: {len(cases)} pairs, best tp {tp} tile {tile}, gap "
            f"{choice.weighted_s / choice.bound_s - 1:.1%}; splits {ready - start:.1f} s, search "
            f"{pruned - ready:.1f} s ({choice.num_fused} fused, {choice.num_pruned} pruned, "
            f"{len(choice.refused)} do not fit); all {len(every)} one by one {done - pruned:.1f} s"
        )


def long_cases() -> Iterator[str]:
    """Yield rows of equal blocks, all tiles of all dims."""
    for blocks in (125, 625):
        row = chained("row", [block(blocks)])
        start = time.process_time()
        found = fuse_graph(FusionQuestion(row, target_named("SN10")))
        yield (
            f"{len(row.kernels)} kernels: {found.time_s * 1e3:.3f} ms, gap {found.gap:.1%}, "
            f"{found.counts.num_steps} steps, {time.process_time() - start:.1f} s"
        )


def block(repeats: int) -> DataflowGraph:
    """Return a gated feed-forward block of eight kernels."""
    row, wide = ("tokens", "hidden"), ("tokens", "ffn")
    listed = (
        ("norm", row, ("x",), ()),
        ("gate", wide, ("norm",), ("hidden", "ffn")),
        ("up", wide, ("norm",), ("hidden", "ffn")),
        ("silu", wide, ("gate",), ()),
        ("product", wide, ("silu", "up"), ()),
        ("down", row, ("product",), ("ffn", "hidden")),
        ("scale", row, ("down",), ()),
        ("add", row, ("scale", "x"), ()),
    )
    dims_of = {"x": row, **{name: dims for name, dims, _, _ in listed}}
    kernels = tuple(
        Kernel(
            name, Unit.MATRIX if weight else Unit.VECTOR, dims,
            tuple(Operand(read, dims_of[read]) for read in reads),
            (Weight(f"{name}.weight", weight),) if weight else (),
        )
        for name, dims, reads, weight in listed
    )  # fmt: skip
    sizes = {"tokens": 1024, "hidden": 1024, "ffn": 4096}
    return DataflowGraph("block", kernels, sizes, {"x": row}, ("add",), "tokens", repeats=repeats)


def fused(problem: FusionProblem) -> float | None:
    """Return the seconds of a problem, None where it does not fit."""
    try:
        return fuse(problem).time_s
    except InfeasibleError:
        return None


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--no-program", action="store_true", help="leave out the integer program")
    args = parser.parse_args()
    tables = [single_cases, sweep_case, long_cases]
    if not args.no_program:
        tables.insert(1, program_case)
    for table in tables:
        print(f"{(table.__doc__ or '').removeprefix('Yield ')}", flush=True)
        for line in table():
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
