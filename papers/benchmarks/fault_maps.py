"""Ten thousand random fault maps without a crash, and what faults cost on average and at worst.

Run: python benchmarks/fault_maps.py [--small]

Maps of dead links, devices, rows and cores on wafers of 4x8 and 6x8; stream groups of eight start
as blocks of 2x4. A stream counts compute and its own links: t_m = 0.8 t_c before the faults.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.network.faults import FaultRates, balanced_rows, random_faults
from meshwright.topology.grid import mesh
from meshwright.topology.network import LinkSpec, Network
from meshwright_papers.studies.temp.fault_curves import (
    core_fault_curve,
    link_fault_curve,
    stream_throughput,
)
from meshwright_papers.studies.temp.grid_groups import nested_blocks
from meshwright_papers.studies.temp.recovery import Action, recover

WAFERS = ((4, 8), (6, 8))
BLOCK = (2, 4)
LINK_RATES = (0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.40)
CORE_RATES = (0.0, 0.05, 0.10, 0.15, 0.20, 0.25)
NUM_ROWS = 8 * 256
LINK_SHARE = 0.8


@dataclass(frozen=True)
class Case:
    """A wafer and its stream groups."""

    network: Network
    groups: IntArray

    @property
    def title(self) -> str:
        """Rows x columns."""
        return "x".join(str(side) for side in self.network.grid_shape)


def make_case(shape: tuple[int, int]) -> Case:
    """Return a mesh whose groups are blocks of 2x4."""
    network = mesh(shape, LinkSpec(2e12, 200e-9)).build()
    tiles = {"tatp": BLOCK, "dp": (shape[0] // BLOCK[0], shape[1] // BLOCK[1])}
    return Case(network, nested_blocks(tiles, network).groups("tatp"))


def rates_of(seed: int) -> FaultRates:
    """Return every kind of fault in turn, at any rate up to a third; then all of them at once."""
    link, device, row, core = np.random.default_rng(seed).random(4) / 3
    kinds = [
        FaultRates(link=link),
        FaultRates(device=device),
        FaultRates(row=row),
        FaultRates(core=core, num_cores=4),
        FaultRates(link / 3, device / 3, row / 3, core, num_cores=4),
    ]
    return kinds[seed % len(kinds)]


def survived(cases: list[Case], num_maps: int) -> Counter[Action]:
    """Recover from each map and split the rows anew; return what was done how often."""
    done: Counter[Action] = Counter()
    for seed in range(num_maps):
        case = cases[seed % len(cases)]
        broken = random_faults(case.network, rates_of(seed), seed).applied(case.network)
        found = recover(broken, case.groups)
        done[found.action] += 1
        if found.action is not Action.IMPOSSIBLE:
            for group in found.groups:
                assert balanced_rows(NUM_ROWS, broken.speed_factor[group]).sum() == NUM_ROWS
    return done


def link_rows(case: Case, num_maps: int) -> list[str]:
    """Return the table of the link-fault curves."""
    num_groups, size = case.groups.shape
    throughput = stream_throughput(num_groups, size, LINK_SHARE)
    curve = link_fault_curve(case.network, case.groups, LINK_RATES, range(num_maps), throughput)
    return [
        f"{case.title:5} {p.rate:5.0%} {p.connected:9.3f} {p.fixed_groups:9.3f} {p.fixed:9.3f} "
        f"{p.regrouped:9.3f} {p.undecided:9.3f} {p.throughput.mean:7.3f} "
        f"{p.throughput.percentile_5:6.3f} {p.throughput_if_connected.mean:7.3f} "
        f"{p.throughput_if_connected.percentile_5:6.3f}"
        for p in curve
    ]


def core_rows(case: Case, num_maps: int, num_cores: int, compute_share: float) -> list[str]:
    """Return the table of a core-fault curve."""
    curve = core_fault_curve(
        case.network, case.groups, CORE_RATES, range(num_maps), num_cores=num_cores,
        rows_per_device=NUM_ROWS // 8, compute_share=compute_share,
    )  # fmt: skip
    return [
        f"{case.title:5} {num_cores:5d} {compute_share:7.0%} {p.rate:6.0%} "
        + " ".join(
            f"{each.mean:8.3f} {each.percentile_5:6.3f}"
            for each in (p.equal, p.balanced_in_groups, p.balanced)
        )
        for p in curve
    ]


def main(words: list[str]) -> None:
    """Print the counts and the curves."""
    num_maps, num_links, num_cores = (20, 4, 4) if "--small" in words else (10_000, 1_000, 1_000)
    cases = [make_case(shape) for shape in WAFERS]
    start = time.perf_counter()
    done = survived(cases, num_maps)
    counts = ", ".join(f"{done[action]} {action}" for action in Action)
    print(f"{num_maps} maps, no crash: {counts} ({time.perf_counter() - start:.0f} s)\n")
    print(
        f"Link faults, {num_links} maps a point: share of maps, throughput (mean, 5th percentile)"
    )
    print(
        "wafer  rate connected one block all fixed regrouped undecided     all maps   if connected"
    )
    for case in cases:
        print(*link_rows(case, num_links), sep="\n")
    print(f"\nCore faults, {num_cores} maps a point: throughput (mean, 5th percentile)")
    print("wafer cores compute   rate      equal rows  in each group     over all")
    for case in cases:
        for cores, compute_share in ((64, 1.0), (64, 0.8), (4, 0.8)):
            print(*core_rows(case, num_cores, cores, compute_share), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
