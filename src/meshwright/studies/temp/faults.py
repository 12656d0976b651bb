"""Figs. 7 and 20: groups without a ring, dead links, dead cores."""

from __future__ import annotations

from itertools import pairwise

from meshwright.placement.embeddings import block_embedding
from meshwright.placement.faults.curves import (
    core_fault_curve,
    link_fault_curve,
    stream_throughput,
)
from meshwright.placement.placement import hop_distances, sequential
from meshwright.studies.claims import Claim, Table, claim_lines, judged, judged_range
from meshwright.studies.registry import StudyResult, studies
from meshwright.studies.temp.cases import SOURCE
from meshwright.topology.mesh import Mesh
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec

NUM_MAPS = 200
LINK_RATES = (0.0, 0.1, 0.2, 0.3, 0.35, 0.4)
CORE_RATES = (0.0, 0.1, 0.25)
NUM_CORES, COMPUTE_SHARE, ROWS = 64, 0.8, 4096
LINK_SHARE = 0.8
"""Time of a message over that of its computation before the faults."""
FRAGMENT_SHAPE, FRAGMENT_GROUP = (6, 9), 6
PUBLISHED_BROKEN, PUBLISHED_CLIFF, PUBLISHED_CORES = 6, 0.35, 0.8


def mesh(rows: int, columns: int) -> Network:
    """Return the links of a wafer with the latency of Table I."""
    return Mesh.uniform((rows, columns), LinkSpec(2e12, 200e-9)).build()


def groups_without_ring() -> tuple[int, int]:
    """Return groups of six without a ring on 6x9: in the order of the numbers, and in blocks."""
    network = mesh(*FRAGMENT_SHAPE)
    distances = hop_distances(network)
    number = network.num_devices // FRAGMENT_GROUP
    in_order = sequential({"tatp": FRAGMENT_GROUP, "dp": number}, network)
    blocks = block_embedding({"tatp": (2, 3), "dp": (3, 3)})
    placed = blocks.placement({"tatp": FRAGMENT_GROUP, "dp": number}, network)
    assert placed is not None
    broken = [int((~p.are_cycles("tatp", distances)).sum()) for p in (in_order, placed)]
    return broken[0], broken[1]


@studies.register("temp-faults")
class Faults:
    """Row-major groups on a 6x9 array, and seeded fault maps of a 4x8 wafer."""

    title = "TEMP Figs. 7 and 20: broken groups, dead links, dead cores"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Count the groups, and average over the maps."""
        network = mesh(4, 8)
        placed = block_embedding({"tatp": (2, 4), "dp": (2, 2)}).placement(
            {"tatp": 8, "dp": 4}, network
        )
        assert placed is not None
        groups, seeds = placed.groups("tatp"), range(NUM_MAPS)
        links = link_fault_curve(
            network,
            groups,
            LINK_RATES,
            seeds,
            stream_throughput(len(groups), groups.shape[1], LINK_SHARE),
        )
        cores = core_fault_curve(
            network, groups, CORE_RATES, seeds, num_cores=NUM_CORES,
            rows_per_device=ROWS // groups.shape[1], compute_share=COMPUTE_SHARE,
        )  # fmt: skip
        broken, in_blocks = groups_without_ring()
        link_rows = tuple(
            (p.rate, p.connected, p.fixed_groups, p.regrouped, p.throughput.mean,
             p.throughput.percentile_5, p.throughput_if_connected.mean)
            for p in links
        )  # fmt: skip
        core_rows = tuple((p.rate, p.equal.mean, p.balanced.mean) for p in cores)
        falls = [a[4] - b[4] for a, b in pairwise(link_rows)]
        steepest = link_rows[falls.index(max(falls)) + 1][0]
        claims = (
            Claim("Fig. 7", "groups of six without a ring on 6x9", f"up to {PUBLISHED_BROKEN} of 9",
                  "seed", f"{broken} of 9 in the order of the numbers, {in_blocks} in 2x3 blocks",
                  judged(float(broken), float(PUBLISHED_BROKEN)),
                  "in the order of the numbers six groups are lines, which have no ring, and three "
                  "break over two rows: none of nine has one; blocks of 2x3 are rings"),
            Claim("Fig. 20", "rate of dead links at which throughput falls most",
                  f"{PUBLISHED_CLIFF:.0%}", "seed", f"{steepest:.0%}",
                  judged(steepest, PUBLISHED_CLIFF),
                  "whole groups lose their path, and the wafer its connection, long before"),
            Claim("Fig. 20", "throughput with a quarter of the cores dead",
                  f"nearly {PUBLISHED_CORES:.0%}", "seed", f"{core_rows[-1][2]:.0%} rebalanced, "
                  f"{core_rows[-1][1]:.0%} with equal rows",
                  judged_range(core_rows[-1][2], core_rows[-1][2], (0.75, PUBLISHED_CORES)),
                  "what communicates is not slowed by dead cores"),
        )  # fmt: skip
        names = ("dead_links", "connected", "groups_with_path", "regrouped", "throughput",
                 "throughput_p5", "throughput_if_connected")  # fmt: skip
        core_names = ("dead_cores", "equal_rows", "rebalanced")
        lines = [f"{'dead links':<12}" + "".join(f"{name[:16]:>18}" for name in names[1:])[:88]]
        lines += [f"{row[0]:<12.0%}" + "".join(f"{v:>18.3f}" for v in row[1:])[:88]
                  for row in link_rows]  # fmt: skip
        lines += ["", *claim_lines(claims)]
        return StudyResult(
            lines=tuple(lines),
            data={
                "links": [dict(zip(names, row, strict=True)) for row in link_rows],
                "cores": [dict(zip(core_names, row, strict=True)) for row in core_rows],
            },
            tables=(
                Table("fig20_links", names, link_rows, ("dead_links",), "throughput"),
                Table("fig20_cores", core_names, core_rows, ("dead_cores",), "rebalanced"),
            ),
            claims=claims,
            assumptions=f"{NUM_MAPS} seeded maps of a 4x8 mesh, groups of 2x4; messages take "
            f"{LINK_SHARE:.0%} of the computation beside them; {COMPUTE_SHARE:.0%} of a step "
            "computes; 64 cores a die",
        )
