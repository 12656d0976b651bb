"""How long cuts of long rows of layers take, on one core.

Run: python benchmarks/contiguous_partition.py [--small]

Random sizes in bytes; a device holds 1.1 times the mean stage. The sums over the layers are part of
each time. CPU milliseconds of one process, the least of five runs; imports are left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from meshwright.sram.contiguous import (
    LayerLoads,
    LayerTimes,
    StageCapacities,
    StageRuns,
    balanced_stops,
    greedy_stops,
)

CASES = ((10_000, 512), (10_000, 64), (2_000, 64), (126, 19))
SMALL = ((200, 8),)
RUNS = 5


def least_ms(work: Callable[[], object]) -> float:
    """Return the least CPU time of a few runs [ms]."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


TRANSIENTS = {"none": 0, "small": 10**6, "as layers": 10**9, "larger": 10**11}
"""Kinds of transients, and the largest of each [bytes]."""


def measure(num_layers: int, num_stages: int, most_bytes: int) -> tuple[float, float, float]:
    """Return the times of the greedy, the balanced and the time-bound cut of one row [ms]."""
    rng = np.random.default_rng(num_layers + num_stages)
    sizes = rng.integers(1, 10**9, num_layers).astype(float)
    largest = rng.integers(0, most_bytes, num_layers, endpoint=True)
    stage_capacities = StageCapacities((1.1 * sizes.sum() / num_stages + 1e9 + most_bytes,))
    times = [LayerTimes(sizes * 1e-12, np.zeros(num_layers), largest * 1e-12)]

    def row() -> LayerLoads:
        return LayerLoads(sizes, largest.astype(float), np.zeros(num_layers))

    return (
        least_ms(lambda: greedy_stops(row(), stage_capacities)),
        least_ms(lambda: balanced_stops(row(), stage_capacities, num_stages)),
        least_ms(lambda: StageRuns(row(), stage_capacities, times, num_stages).best(np.maximum)),
    )


def main() -> None:
    """Print a line for each case."""
    print(f"{'layers':>8} {'stages':>7} {'transients':>11} {'greedy ms':>10} {'balance ms':>11}"
          f" {'time ms':>9}")  # fmt: skip
    for num_layers, num_stages in SMALL if "--small" in sys.argv else CASES:
        for kind, most_bytes in TRANSIENTS.items():
            greedy, balance, bound = measure(num_layers, num_stages, most_bytes)
            print(f"{num_layers:>8} {num_stages:>7} {kind:>11} {greedy:>10.2f} {balance:>11.2f}"
                  f" {bound:>9.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
