"""How close TCME comes to the proven bound on random demand sets, with XY and GMap beside it.

Run: python benchmarks/tcme_gaps.py [--sets 500] [--paths 1] [--lp 30000]

Each set is drawn from one of seven families on a mesh of 4x4 to 8x8. The bound is the best of
cut, dual and (where a gap is left and the program is small) LP. XY, GMap and "placed" are measured
against the same bound. On sets of several axes GMap takes the order of the axes with the least
bytes times hops and does not choose routes, and "placed" takes the order that TCME routes best;
both may fall below the bound of the order that was given. On all other sets GMap is the better of
XY and YX, and "placed" is TCME.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import collective_algorithms
from meshwright.network.routing import xy_routes
from meshwright.network.tcme.moves import make_messages
from meshwright.network.tcme.optimiser import RoutedClass, optimise
from meshwright.network.traffic import Demands
from meshwright.streams.forms import enumerate_rounds, streams
from meshwright.topology import grid
from meshwright.topology.network import LinkSpec, Network

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.operations import (
    ConcurrencyClass,
    MemberSends,
    Operation,
    collective_sends,
    stream_sends,
)
from oracles.routing_bounds import best_of, with_lp

LP_COLUMNS = 30_000
Axes = list[tuple[int, MemberSends]]


def mesh(rows: int, columns: int) -> Network:
    """Return a grid whose links carry a byte a second."""
    return grid.mesh((rows, columns), LinkSpec(1.0)).build()


def demands(rows: list[tuple[int, int, float, int]]) -> Demands:
    """Return rows of source, destination, bytes, payload as demands."""
    table = np.array(rows, dtype=float).reshape(-1, 4).T
    ends = table[[0, 1, 3]].astype(np.int64)
    return Demands(ends[0], ends[1], table[2], ends[2], np.zeros(len(rows), dtype=np.int64))


def permutation(size: int, random: np.random.Generator, sizes: np.ndarray) -> Demands:
    """Return one to four random permutations, with bytes drawn from some sizes."""
    rows = [
        (device, int(other), float(random.choice(sizes)))
        for _ in range(random.integers(1, 5))
        for device, other in enumerate(random.permutation(size))
    ]
    return demands([(*row, index) for index, row in enumerate(rows)])


def rings(network: Network, random: np.random.Generator) -> Demands:
    """Return random rings that cover the mesh, and chains along its columns."""
    size, columns = network.num_devices, network.grid_shape[1]
    length = int(random.choice([s for s in (4, 7, 8) if size % s == 0] or [size]))
    groups = random.permutation(size).reshape(-1, length)
    pairs = [(int(a), int(b)) for g in groups for a, b in zip(g, np.roll(g, -1), strict=True)]
    pairs += [(device, device + columns) for device in range(size - columns)]
    if random.random() < 0.5:
        pairs += [(device + columns, device) for device in range(size - columns)]
    return demands([(a, b, 1.0, index) for index, (a, b) in enumerate(pairs)])


def hotspots(size: int, random: np.random.Generator) -> Demands:
    """Return a permutation, and messages of many devices to a few."""
    hot = random.choice(size, random.integers(1, 5), replace=False)
    pairs = list(enumerate(random.permutation(size).tolist()))
    pairs += [(int(d), int(random.choice(hot))) for d in random.choice(size, size // 2)]
    return demands([(a, b, 1.0, index) for index, (a, b) in enumerate(pairs)])


def multicasts(size: int, random: np.random.Generator) -> Demands:
    """Return data that several devices need; some of it is held by two."""
    rows = []
    for payload in range(random.integers(size // 4, size)):
        members = random.choice(size, random.integers(3, 8), replace=False).tolist()
        num_holders = int(random.integers(1, 3))
        num_bytes = float(random.choice([1.0, 2.0]))
        for index, receiver in enumerate(members[num_holders:]):
            rows.append((members[index % num_holders], receiver, num_bytes, payload))
    return demands(rows)


def axis_sends(degree: int, random: np.random.Generator) -> MemberSends:
    """Return what the groups of an axis do: a gather, a reduction, a stream, sends or a shuffle."""
    num_bytes = float(random.choice([1, 2, 4])) * degree
    name = str(random.choice(["gather", "reduce", "stream", "send", "shuffle"]))
    if name == "stream":
        return stream_sends(enumerate_rounds(streams["stream"], degree), num_bytes)
    algorithm = {
        "gather": "ring_all_gather",
        "reduce": "ring_reduce_scatter",
        "send": "neighbour_send",
        "shuffle": "direct_all_to_all",
    }[name]
    group = Group((Span(float(degree), 1.0, 0.0, 0.0, 1.0, False, False),))
    return collective_sends(collective_algorithms[algorithm].transfers(num_bytes, group))


def mixed_axes(size: int, random: np.random.Generator) -> Axes:
    """Return two or three axes that fill the mesh, and what each of them sends."""
    degrees: list[int] = []
    left = size
    while left > 1 and len(degrees) < 3:
        choices = [d for d in (2, 3, 4, 5, 7, 8) if left % d == 0] or [left]
        degrees.append(left if len(degrees) == 2 else int(random.choice(choices)))
        left //= degrees[-1]
    return [(degree, axis_sends(degree, random)) for degree in degrees if degree <= 16]


def placed(axes: Axes, order: tuple[int, ...], size: int) -> Demands:
    """Return the demands of all axes, nested in an order (outermost first)."""
    degrees = [axes[axis][0] for axis in order]
    inner = size // int(np.prod(degrees))
    devices = np.arange(size).reshape(*degrees, inner)
    operations = []
    for place, axis in enumerate(order):
        groups = np.moveaxis(devices, place, -1).reshape(-1, degrees[place])
        operations.append(Operation(str(axis), groups, axes[axis][1]))
    return ConcurrencyClass(tuple(operations)).demands()


@dataclass(frozen=True)
class Case:
    """One demand set, and the same operations in all orders of the axes."""

    family: str
    network: Network
    demands: Demands
    orders: tuple[Demands, ...] = ()


def xy_s(network: Network, asked: Demands, *, rows_first: bool = False) -> float:
    """Return the time of the busiest link under dimension order [s]."""
    routes, _ = xy_routes(network, asked, rows_first=rows_first)
    return float(routes.link_load_bytes(asked.num_bytes, network).max())


def hop_bytes(network: Network, asked: Demands) -> float:
    """Return bytes times hops under dimension order [bytes]."""
    routes, _ = xy_routes(network, asked)
    return float(asked.num_bytes @ routes.num_hops)


def make_case(index: int) -> Case:
    """Return the set of a number; equal numbers give equal sets."""
    random = np.random.default_rng(index)
    rows, columns = int(random.integers(4, 9)), int(random.integers(4, 9))
    network, size = mesh(rows, columns), rows * columns
    family = FAMILIES[index % len(FAMILIES)]
    if family == "mixed axes":
        axes = mixed_axes(size, random)
        orders = list(permutations(range(len(axes))))
        asked = placed(axes, orders[int(random.integers(len(orders)))], size)
        return Case(family, network, asked, tuple(placed(axes, o, size) for o in orders))
    asked = {
        "permutations": lambda: permutation(size, random, np.array([1.0])),
        "three sizes": lambda: permutation(size, random, np.array([1.0, 2.0, 4.0])),
        "any sizes": lambda: permutation(size, random, random.lognormal(size=1000)),
        "rings": lambda: rings(network, random),
        "hotspots": lambda: hotspots(size, random),
        "multicasts": lambda: multicasts(size, random),
    }[family]()
    return Case(family, network, asked)


def gmap_s(case: Case) -> float:
    """Return what dimension order makes of the order with the least bytes times hops [s]."""
    if not case.orders:
        turned = (False, True)
        return min(xy_s(case.network, case.demands, rows_first=first) for first in turned)
    best = min(case.orders, key=lambda asked: hop_bytes(case.network, asked))
    return xy_s(case.network, best)


FAMILIES = (
    "permutations", "three sizes", "any sizes", "rings", "hotspots", "multicasts", "mixed axes"
)  # fmt: skip


def lp_columns(network: Network, asked: Demands) -> int:
    """Return how many variables the linear program of a set has."""
    messages, _ = make_messages(asked, network.num_nodes)
    receivers = np.diff(messages.receiver_offsets)
    is_unicast = (receivers == 1) & (np.diff(messages.holder_offsets) == 1)
    sources = np.unique(messages.holders[messages.holder_offsets[:-1][is_unicast]])
    return int(len(sources) + (receivers[~is_unicast] + 1).sum()) * network.num_links


@dataclass(frozen=True)
class Outcome:
    """Gaps of one set [1], and how long the routing took [s]."""

    family: str
    tcme: float
    xy: float
    gmap: float
    placed: float
    method: str
    took_s: float


def outcome(case: Case, *, num_paths: int = 1, lp_limit: int = LP_COLUMNS) -> Outcome:
    """Route one set; ask the linear program where a gap is left and it is small enough."""
    start = time.perf_counter()
    routed: RoutedClass = optimise(case.network, case.demands, max_paths=num_paths)
    took_s = time.perf_counter() - start
    open_gap = routed.certificate.gap > 1e-9
    if open_gap and lp_columns(case.network, case.demands) <= lp_limit:
        routed = with_lp(routed, case.network, case.demands)
    proven = routed.certificate
    placed_s = routed.z_s
    if case.orders:
        placed_s = best_of(case.network, case.orders, max_paths=num_paths).routed.z_s
    assert routed.z_s <= routed.default_z_s * (1 + 1e-9)
    return Outcome(
        case.family,
        proven.gap,
        routed.default_z_s / proven.bound_s - 1,
        gmap_s(case) / proven.bound_s - 1,
        placed_s / proven.bound_s - 1,
        proven.method,
        took_s,
    )


def line(title: str, outcomes: list[Outcome]) -> str:
    """Return one line of the table."""
    cells = "".join(
        f"{100 * np.median(gaps):>8.1f}{100 * np.percentile(gaps, 90):>8.1f}"
        for gaps in (
            [getattr(o, name) for o in outcomes] for name in ("tcme", "placed", "xy", "gmap")
        )
    )
    worst = max(o.tcme for o in outcomes)
    proven = sum(o.tcme < 1e-6 for o in outcomes) / len(outcomes)
    took_ms = 1e3 * float(np.median([o.took_s for o in outcomes]))
    return f"{title:<14}{len(outcomes):>5}{cells}{100 * worst:>8.1f}{proven:>9.0%}{took_ms:>8.0f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=500)
    parser.add_argument("--paths", type=int, default=1)
    parser.add_argument("--lp", type=int, default=LP_COLUMNS, help="columns of the largest program")
    chosen = parser.parse_args()
    outcomes = [
        outcome(make_case(index), num_paths=chosen.paths, lp_limit=chosen.lp)
        for index in range(chosen.sets)
    ]
    print("Gap to the bound in per cent: median and 90th percentile")
    head = "".join(f"{name:>10}   p90" + "   " for name in ("TCME", "placed", "XY", "GMap"))
    print(f"{'family':<14}{'sets':>5}{head}{'worst':>5}{'optimal':>9}{'ms':>8}")
    for family in FAMILIES:
        print(line(family, [o for o in outcomes if o.family == family]))
    print(line("all", outcomes))
    methods = sorted({o.method for o in outcomes})
    print("bounds: " + "; ".join(f"{m}: {sum(o.method == m for o in outcomes)}" for m in methods))


if __name__ == "__main__":
    main()
