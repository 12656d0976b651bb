"""Figs. 7 and 20: groups without a ring, dead links, dead cores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright.base.arrays import IntArray
from meshwright.topology import grid
from meshwright.topology.network import LinkSpec, Network
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    claim_lines,
    judged,
    judged_range,
    records,
    studies,
)
from meshwright_papers.studies.temp.fault_curves import (
    core_fault_curve,
    link_fault_curve,
    stream_throughput,
)
from meshwright_papers.studies.temp.grid_groups import hop_distances, nested_blocks, row_major
from meshwright_papers.studies.temp.setup import SOURCE, wafer

NUM_MAPS = 200
LINK_RATES = (0.0, 0.1, 0.2, 0.3, 0.35, 0.4)
CORE_RATES = (0.0, 0.1, 0.25)
NUM_CORES, COMPUTE_SHARE, ROWS = 64, 0.8, 4096
LINK_SHARE = 0.8
"""Time of a message over that of its computation before the faults."""
FRAGMENT_SHAPE, FRAGMENT_GROUP = (6, 9), 6
PUBLISHED_BROKEN, PUBLISHED_CLIFF, PUBLISHED_CORES = 6, 0.35, 0.8


Row = tuple[float, ...]
LINK_NAMES = ("dead_links", "connected", "groups_with_path", "regrouped", "throughput",
              "throughput_p5", "throughput_if_connected")  # fmt: skip
CORE_NAMES = ("dead_cores", "equal_rows", "rebalanced")


LINK_CHART = Drawing(
    "How much throughput is left where links are dead?",
    f"{NUM_MAPS} seeded maps of a 4x8 wafer, over the whole wafer; TEMP Fig. 20",
    "lines", ("throughput", "throughput_p5", "throughput_if_connected"), "dead_links",
    measure="throughput, of a whole wafer",
)  # fmt: skip
CORE_CHART = Drawing(
    "How much throughput is left where cores are dead?",
    f"{NUM_MAPS} seeded maps of a 4x8 wafer, over the whole wafer; TEMP Fig. 20",
    "lines", ("equal_rows", "rebalanced"), "dead_cores", measure="throughput, of a whole wafer",
)  # fmt: skip


def mesh(rows: int, columns: int) -> Network:
    """Return the links of a wafer with the latency of Table I."""
    return grid.mesh((rows, columns), LinkSpec(2e12, 200e-9)).build()


def groups_without_ring() -> tuple[int, int, int]:
    """Return groups of six without a ring on 6x9: in the order of the numbers, and in blocks.

    And how many of those in the order of the numbers are lines in one row.
    """
    network = mesh(*FRAGMENT_SHAPE)
    distances = hop_distances(network)
    number = network.num_devices // FRAGMENT_GROUP
    in_order = row_major({"tatp": FRAGMENT_GROUP, "dp": number})
    placed = nested_blocks({"tatp": (2, 3), "dp": (3, 3)}, network)
    broken = [int((~p.are_cycles("tatp", distances)).sum()) for p in (in_order, placed)]
    rows = in_order.groups("tatp") // FRAGMENT_SHAPE[1]
    return broken[0], broken[1], int((rows.min(axis=1) == rows.max(axis=1)).sum())


@studies.register("temp-faults")
class Faults:
    """Row-major groups on a 6x9 array, and seeded fault maps of a 4x8 wafer."""

    title = "TEMP Figs. 7 and 20: broken groups, dead links, dead cores"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Count the groups, and average over the maps."""
        links, cores = link_rows(), core_rows()
        claims = (*_fragment_claims(), *_fault_claims(links, cores))
        lines = ["dead links  " + "".join(f"{name[:13]:>15}" for name in LINK_NAMES[1:6])]
        lines += [
            f"{row[0]:<12.0%}" + "".join(f"{value:>15.3f}" for value in row[1:6]) for row in links
        ]
        lines += ["", *claim_lines(claims)]
        return StudyResult(
            machine=wafer(),
            lines=tuple(lines),
            data={
                "links": records(LINK_NAMES, links),
                "cores": records(CORE_NAMES, cores),
            },
            tables=(
                Table("fig20_links", LINK_NAMES, links, LINK_CHART),
                Table("fig20_cores", CORE_NAMES, cores, CORE_CHART),
            ),
            claims=claims,
            assumptions=f"{NUM_MAPS} seeded maps of a 4x8 mesh, groups of 2x4; messages take "
            f"{LINK_SHARE:.0%} of the computation beside them; {COMPUTE_SHARE:.0%} of a step "
            "computes; 64 cores a die",
        )


def stream_groups(network: Network) -> IntArray:
    """Return four groups of 2x4 devices on a 4x8 mesh."""
    return nested_blocks({"tatp": (2, 4), "dp": (2, 2)}, network).groups("tatp")


def link_rows() -> tuple[Row, ...]:
    """Return the link-fault curves: one row for each rate."""
    network = mesh(4, 8)
    groups = stream_groups(network)
    rate = stream_throughput(len(groups), groups.shape[1], LINK_SHARE)
    return tuple(
        (p.rate, p.connected, p.fixed_groups, p.regrouped, p.throughput.mean,
         p.throughput.percentile_5, p.throughput_if_connected.mean)
        for p in link_fault_curve(network, groups, LINK_RATES, range(NUM_MAPS), rate)
    )  # fmt: skip


def core_rows() -> tuple[Row, ...]:
    """Return the core-fault curve: one row for each rate."""
    network = mesh(4, 8)
    groups = stream_groups(network)
    curve = core_fault_curve(
        network, groups, CORE_RATES, range(NUM_MAPS), num_cores=NUM_CORES,
        rows_per_device=ROWS // groups.shape[1], compute_share=COMPUTE_SHARE,
    )  # fmt: skip
    return tuple((p.rate, p.equal.mean, p.balanced.mean) for p in curve)


def _fragment_claims() -> tuple[Claim, ...]:
    """Return the claims of the paper on broken groups, beside our figures."""
    broken, in_blocks, lines = groups_without_ring()
    number = FRAGMENT_SHAPE[0] * FRAGMENT_SHAPE[1] // FRAGMENT_GROUP
    return (
        Claim("Fig. 7", "groups of six without a ring on 6x9", f"up to {PUBLISHED_BROKEN} of 9",
              "seed", f"{broken} of 9 in the order of the numbers, {in_blocks} in 2x3 blocks",
              judged(float(broken), float(PUBLISHED_BROKEN)),
              f"in the order of the numbers {lines} groups are lines, which have no ring, and "
              f"{number - lines} break over two rows: {number - broken} of {number} have one, "
              f"{number - in_blocks} of {number} blocks of 2x3 do"),
    )  # fmt: skip


def _fault_claims(links: Sequence[Row], cores: Sequence[Row]) -> tuple[Claim, ...]:
    """Return the claims of the paper on faults, beside our figures."""
    falls = [before[4] - after[4] for before, after in pairwise(links)]
    steepest = links[falls.index(max(falls)) + 1][0]
    _, equal, balanced = cores[-1]
    return (
        Claim("Fig. 20", "rate of dead links at which throughput falls most",
              f"{PUBLISHED_CLIFF:.0%}", "seed", f"{steepest:.0%}",
              judged(steepest, PUBLISHED_CLIFF),
              "whole groups lose their path, and the wafer its connection, long before"),
        Claim("Fig. 20", "throughput with a quarter of the cores dead",
              f"nearly {PUBLISHED_CORES:.0%}", "seed",
              f"{balanced:.0%} rebalanced, {equal:.0%} with equal rows",
              judged_range(balanced, balanced, (0.75, PUBLISHED_CORES)),
              "what communicates is not slowed by dead cores"),
    )  # fmt: skip
