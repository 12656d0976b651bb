"""Share of the proven bound that collectives reach on blocks of a mesh, by size and shape.

Run: python benchmarks/mesh_collectives.py [--simulate] [--write]

``--simulate`` runs the winners through the flow simulation as well; ``--write``
puts the tables into docs/explanation/mesh_collectives.md, between the marks that stand there.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

import numpy as np

from meshwright.catalog.systems import load_system
from meshwright.collectives.bounds import lower_bound_s
from meshwright.collectives.group import Group, make_group
from meshwright.collectives.registry import affine_candidates, best_algorithm, collective_algorithms
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.spec.collective import CollectiveKind
from meshwright.topology.grid import mesh
from meshwright.topology.network import LinkSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.collective_tasks import collective_tasks
from oracles.occupied_bound import occupied_lower_bound_s

KIB, MIB = 2.0**10, 2.0**20
SHAPES = ((4, 4), (4, 8), (6, 8), (8, 8))
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "16 MiB": 16 * MIB, "64 MiB": 64 * MIB}
KINDS = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_TO_ALL,
)
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "mesh_collectives.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def block(rows: int, columns: int, *, occupied: bool = True) -> Group[float]:
    """Return a block of the wafer of the catalog, with or without occupation by messages."""
    system = load_system("wafer-8x8")
    group = make_group(system.levels, 1.0, 64.0)
    spans = []
    for span, size in zip(group.spans, (columns, rows), strict=True):
        half = span.message_half_bytes if occupied else 0.0
        spans.append(type(span)(**{**vars(span), "size": float(size), "message_half_bytes": half}))
    return Group(tuple(spans))


def time_s(name: str, num_bytes: float, group: Group[float]) -> float:
    """Return the closed form of one algorithm."""
    return float(collective_algorithms[name].time_s(num_bytes, group))


def reduce_and_gather_s(num_bytes: float, group: Group[float]) -> float:
    """Return the least time of a reduce-scatter followed by an all-gather."""
    kinds = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
    return sum(time_s(best_algorithm(kind, num_bytes, group), num_bytes, group) for kind in kinds)


def simulated_s(name: str, num_bytes: float, group: Group[float], rows: int, columns: int) -> float:
    """Return the makespan of the messages of an algorithm on a mesh of its own."""
    span = group.spans[0]
    link = LinkSpec(span.bandwidth_bytes_per_s, span.latency_s, span.message_half_bytes)
    network = mesh((rows, columns), link).build()
    sent = collective_algorithms[name].transfers(num_bytes, group)
    graph = collective_tasks(sent, np.arange(rows * columns), network)
    return simulate_tasks(graph, network).makespan_s


def row(
    kind: CollectiveKind, shape: tuple[int, int], label: str, shards: int, *, simulates: bool
) -> list[str]:
    """Return one line of the table: the winner, its time and its shares of the bounds."""
    rows, columns = shape
    group, num_bytes = block(*shape), SIZES[label] * shards
    name = best_algorithm(kind, num_bytes, group)
    least_s = time_s(name, num_bytes, group)
    cells = [
        f"{rows}x{columns}",
        label,
        name.removesuffix(f"_{kind}"),
        f"{least_s * 1e6:,.1f}",
        f"{lower_bound_s(kind, num_bytes, group) / least_s:.1%}",
        f"{occupied_lower_bound_s(kind, num_bytes, group) / least_s:.1%}",
    ]
    if kind is CollectiveKind.ALL_REDUCE:
        two_s = reduce_and_gather_s(num_bytes, group)
        cells.append(f"{lower_bound_s(kind, num_bytes, group) / two_s:.1%}")
    if simulates:
        run_s = simulated_s(name, num_bytes, group, rows, columns)
        cells.append(f"{lower_bound_s(kind, num_bytes, group) / run_s:.1%}")
    return cells


def table(kind: CollectiveKind, *, whole: bool = False, simulates: bool) -> list[str]:
    """Return the table of one kind of collective; ``whole``: the size is that of the tensor."""
    heads = ["block", "per device", "fastest", "us", "of the bound", "with messages"]
    heads += ["reduce-scatter + all-gather"] * (kind is CollectiveKind.ALL_REDUCE)
    heads += ["simulated"] * simulates
    lines = [[*heads], ["---"] * len(heads)]
    for shape, size in product(SHAPES, SIZES):
        shards = 1 if whole else shape[0] * shape[1]
        lines.append(row(kind, shape, size, shards, simulates=simulates))
    title = str(kind).replace("_", "-") + ", the size being that of the whole tensor" * whole
    return [f"### {title}", "", *["| " + " | ".join(cells) + " |" for cells in lines]]


def without_occupation() -> list[str]:
    """Return the shares of the bound by size when messages cost their latency only."""
    lines = [
        "### Messages without m_half",
        "",
        "Share of the bound with 200 ns for each hop and nothing else beside the bytes.",
        "",
        "| collective | block | " + " | ".join(SIZES) + " |",
        "| --- | --- |" + " --- |" * len(SIZES),
    ]
    for kind, shape in product(KINDS, SHAPES):
        group, shares = block(*shape, occupied=False), []
        for size in SIZES.values():
            num_bytes = size * shape[0] * shape[1]
            least_s = time_s(best_algorithm(kind, num_bytes, group), num_bytes, group)
            shares.append(f"{lower_bound_s(kind, num_bytes, group) / least_s:.1%}")
        name = str(kind).replace("_", "-")
        lines.append(f"| {name} | {shape[0]}x{shape[1]} | " + " | ".join(shares) + " |")
    return lines


def large_messages() -> list[str]:
    """Return the share of the bytes alone: what is left when latency and m_half are paid off."""
    lines = [
        "### Bytes alone",
        "",
        "Seconds per byte of the bound over those of the algorithm.",
        "",
        "| algorithm | " + " | ".join(f"{rows}x{columns}" for rows, columns in SHAPES) + " |",
        "| --- |" + " --- |" * len(SHAPES),
    ]
    groups = [block(*shape, occupied=False) for shape in SHAPES]
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL):
        slopes = [{n: s for n, _, s in affine_candidates(kind, group)} for group in groups]
        names = list(dict.fromkeys(name for found in slopes for name in found))
        for name in names:
            bounds = [float(lower_bound_s(kind, 1e15, group)) / 1e15 for group in groups]
            shares = [
                f"{bound / float(found[name]):.1%}" if name in found else ""
                for bound, found in zip(bounds, slopes, strict=True)
            ]
            lines.append(f"| {name} | " + " | ".join(shares) + " |")
    return lines


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    parts = [table(kind, simulates=args.simulate) for kind in KINDS]
    parts.append(table(CollectiveKind.ALL_REDUCE, whole=True, simulates=args.simulate))
    parts += [without_occupation(), large_messages()]
    text = "\n\n".join("\n".join(part) for part in parts)
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
