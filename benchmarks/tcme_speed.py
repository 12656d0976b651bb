"""How long TCME takes with all axes in flight at once, its bound included.

Run: python benchmarks/tcme_speed.py [--small]

One class holds a TATP stream, gathers and reductions of tp, cp and dp, sends of pp and a shuffle of
the experts over dp and cp, on a mesh that the axes fill in row-major order. The kernels are
compiled before, on a small mesh. Messages are whole, and of one size within an operation.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import collective_algorithms
from meshwright.network.tcme.optimiser import optimise
from meshwright.streams.forms import enumerate_rounds, streams
from meshwright.topology.grid import mesh
from meshwright.topology.network import LinkSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.operations import (
    ConcurrencyClass,
    MemberSends,
    Operation,
    collective_sends,
    stream_sends,
)

CASES = {
    "4x4": ((4, 4), {"dp": 2, "pp": 1, "cp": 2, "tp": 2, "tatp": 2}),
    "6x8": ((6, 8), {"dp": 2, "pp": 2, "cp": 2, "tp": 2, "tatp": 3}),
    "16x16": ((16, 16), {"dp": 4, "pp": 2, "cp": 2, "tp": 4, "tatp": 4}),
    "32x32": ((32, 32), {"dp": 4, "pp": 2, "cp": 4, "tp": 4, "tatp": 8}),
}
"""Sides of the mesh, and the degree of each axis, outermost first."""


def collective(name: str, degree: int, num_bytes: float) -> MemberSends:
    """Return the sends of one group that counts as a switch: any two members are neighbours."""
    group = Group((Span(float(degree), 1.0, 0.0, 0.0, 1.0, False, False),))
    return collective_sends(collective_algorithms[name].transfers(num_bytes, group))


def all_axes(sides: tuple[int, int], degrees: dict[str, int]) -> ConcurrencyClass:
    """Return the class; a gather brings each member 12 bytes for each of the others."""
    names = list(degrees)
    devices = np.arange(sides[0] * sides[1]).reshape(list(degrees.values()))

    def groups(*axes: str) -> np.ndarray:
        chosen = [names.index(axis) for axis in axes]
        members = np.moveaxis(devices, chosen, range(-len(chosen), 0))
        return members.reshape(-1, int(np.prod([degrees[axis] for axis in axes])))

    operations = []
    for axis in ("tp", "cp", "dp"):
        for kind in ("ring_all_gather", "ring_reduce_scatter"):
            sends = collective(kind, degrees[axis], 12.0 * degrees[axis])
            operations.append(Operation(f"{axis} {kind}", groups(axis), sends))
    sends = collective("neighbour_send", degrees["pp"], 12.0)
    operations.append(Operation("pp send", groups("pp"), sends))
    experts = degrees["dp"] * degrees["cp"]
    sends = collective("direct_all_to_all", experts, 4.0 * experts)
    operations.append(Operation("ep shuffle", groups("dp", "cp"), sends))
    rounds = enumerate_rounds(streams["stream"], degrees["tatp"])
    sends = stream_sends(rounds, 12.0 * degrees["tatp"])
    operations.append(Operation("tatp stream", groups("tatp"), sends))
    return ConcurrencyClass(tuple(operations))


def row(name: str) -> str:
    """Return one line of the table."""
    sides, degrees = CASES[name]
    network = mesh(sides, LinkSpec(1.0)).build()
    demands = all_axes(sides, degrees).demands()
    start, cpu = time.perf_counter(), time.process_time()
    routed = optimise(network, demands)
    took_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    proven = routed.certificate
    return (
        f"{name:<8}{len(demands):>9,}{routed.default_z_s:>8.0f}{routed.z_s:>8.0f}"
        f"{proven.bound_s:>8.1f}{proven.gap:>8.1%}{took_s:>9.3f}{cpu_s:>9.3f}  {proven.method}"
    )


def main(arguments: list[str]) -> None:
    """Print the table."""
    row("4x4")
    print(f"{'mesh':<8}{'messages':>9}{'XY s':>8}{'TCME s':>8}{'bound s':>8}{'gap':>8}"
          f"{'took s':>9}{'CPU s':>9}  bound by")  # fmt: skip
    for name in list(CASES)[: 2 if "--small" in arguments else None]:
        print(row(name))


if __name__ == "__main__":
    main(sys.argv[1:])
