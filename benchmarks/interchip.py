"""Dataflow graphs over devices: elimination beside an integer program, and whole plans.

    python benchmarks/interchip.py [--small]

CPU seconds of this process, one core. Both solve the same tables; building them is timed apart.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.dataflow.degrees import DegreePricing
from meshwright.dataflow.price import Residency, SplitTimes, volume_tables, weights_split
from meshwright.dataflow.roofline import CalibratedSystem
from meshwright.dataflow.search import plan_graph
from meshwright.dataflow.sharding import SplitTables
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.workloads import fft, hpl
from meshwright.search.choices.budget import solve_program
from meshwright.search.choices.elimination import cheapest
from meshwright_papers.studies.dfmodel.peer_rules import peer_tables
from meshwright_papers.studies.dfmodel.workloads import dlrm_a, gpt_layer, gpt_training_layer

Result = TypeVar("Result")
GPT3 = (12288, 96, 128, 2048)
LLM_1T = (24576, 128, 192, 2048)
PROGRAM_LIMIT_S = 120.0
CASES = 1 if "--small" in sys.argv else None
"""Cases of each kind; None: all."""


def machine(name: str) -> CalibratedSystem:
    system = load_system(name)
    return CalibratedSystem(system, load_calibration(system.chip.family))


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start_s = time.process_time()
    return work(), time.process_time() - start_s


def sharding_cases() -> Iterator[tuple[str, Callable[[], SplitTables]]]:
    layer, training = gpt_layer(*GPT3, repeats=96), with_backward(gpt_layer(*GPT3, repeats=96))
    peer, own = gpt_training_layer(*GPT3), machine("8xA100")
    yield "peer, 18 kernels [bytes]", lambda: peer_tables(gpt_layer(*GPT3), 8)
    yield "peer, 41 kernels [bytes]", lambda: peer_tables(peer, 8)
    yield "18 kernels [ring bytes]", lambda: volume_tables(layer, 8, splits=weights_split)
    yield "44 kernels [ring bytes]", lambda: volume_tables(training, 8, splits=weights_split)
    yield "18 kernels [s]", lambda: SplitTimes(layer, own, 8, Residency()).tables()
    yield "44 kernels [s]", lambda: SplitTimes(training, own, 8, Residency()).tables()
    yield "dlrm-a, 45 kernels [s]", lambda: SplitTimes(dlrm_a(), own, 8, Residency()).tables()
    graph = hpl(16384, 1024, word_bytes=2.0)
    yield "hpl, 64 kernels [s]", lambda: SplitTimes(graph, own, 8, Residency()).tables()


def shardings() -> None:
    print(f"{'sharding':<28}{'tables':>10}{'elimination':>13}{'program':>11}{'optimum':>16}")
    for name, make in islice(sharding_cases(), CASES):
        graph, tables_s = timed(lambda make=make: make().choices)
        best, dynamic_s = timed(lambda graph=graph: cheapest(graph))
        solved, program_s = timed(lambda graph=graph: solve_program(graph, limit_s=PROGRAM_LIMIT_S))
        same = abs(solved.time_s - best.value_s) <= 1e-6 * abs(best.value_s) + 1e-12
        note = "" if same else f" (program: {solved.time_s:g}, proven: {solved.is_proven})"
        print(f"{name:<28}{tables_s * 1e3:>7.1f} ms{dynamic_s * 1e3:>10.2f} ms{program_s:>9.3f} s"
              f"{best.value_s:>16.9g}{note}")  # fmt: skip


def plan_cases() -> Iterator[tuple[str, DataflowGraph, str, dict[str, Any]]]:
    adam = load_optimizer("megatron-adam")
    layer, large = gpt_layer(*GPT3, repeats=96), gpt_layer(*LLM_1T, repeats=128)
    yield "gpt3-175b forward", layer, "64xA100", {"num_passes": 64}
    yield "the same, tiles flow", layer, "64xA100", {"num_passes": 64, "hides_network": True}
    trained = {"num_passes": 1536, "optimizer": adam}
    yield "gpt3-175b training", with_backward(layer), "512xA100", trained
    trained = {"num_passes": 8192, "optimizer": adam}
    yield "1T training", with_backward(large), "1024xA100", trained
    yield "1T training", with_backward(large), "4096xH100", trained
    yield "one layer, in stages", gpt_layer(*GPT3), "8xA100", {"num_passes": 2}
    yield "dlrm-a", dlrm_a(), "128xA100", {}
    yield "fft 16384 x 16384", fft(2**14, 2**14), "8xA100", {}
    yield "hpl 16384", hpl(16384, 1024, grid_columns=8, word_bytes=2.0), "8xA100", {}


def plans() -> None:
    print(f"\n{'plan':<24}{'on':<12}{'search':>9}{'tp pp dp':>14}{'step':>12}{'gap':>9}"
          f"{'priced':>8}{'refused':>9}")  # fmt: skip
    for name, graph, system, asked in islice(plan_cases(), CASES):
        on = machine(system)
        found, search_s = timed(lambda g=graph, m=on, a=asked: plan_graph(DegreePricing(g, m, **a)))
        best = found.best
        print(f"{name:<24}{system:<12}{search_s:>7.2f} s{'{} {} {}'.format(*best.degrees):>14}"
              f"{best.step_s:>10.4f} s{found.gap:>9.1e}{len(found.plans):>8}"
              f"{sum(found.refused.values()):>9}")  # fmt: skip


if __name__ == "__main__":
    shardings()
    plans()
