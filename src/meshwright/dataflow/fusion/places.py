"""Places of kernels on the mesh of cores of a chip, by the traffic between them.

The kernels of a partition follow one another along a path that winds through the mesh row by row,
each on the next cores, so that neighbours on the path touch. A tensor lies evenly on the cores of
its writer and goes to those of each reader along XY routes; what happens inside a region is part of
the price of its kernel. The order along the path is searched: the least load of the busiest link,
then the fewest bytes times hops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import isqrt

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.dataflow.fusion.answer import FusedPartition, Fusion, PlacedPartition
from meshwright.network.routing import default_routes
from meshwright.network.traffic import Demands
from meshwright.topology import grid
from meshwright.topology.network import LinkSpec, Network

MOST_EXACT = 5
"""Kernels of a partition up to which every order is tried; of more, pairs are swapped."""
MOST_ROUNDS = 20
Places = tuple[float, float, tuple[int, ...]]
"""Bytes of the busiest link, bytes times hops, and the kernels along the path."""


@dataclass(frozen=True)
class Region:
    """A partition on a mesh: cores of each kernel, and the tensors between them."""

    mesh: Network
    path: IntArray
    """Cores along the path."""
    cores: tuple[int, ...]
    """Number of cores of each kernel."""
    tensors: tuple[tuple[int, int, float], ...]
    """Writer, reader and bytes, for each reader of a tensor inside the partition."""

    def load(self, order: tuple[int, ...]) -> Places:
        """Return the loads of the links where the kernels follow the path in this order."""
        first = np.zeros(len(self.cores), dtype=np.int64)
        first[list(order)] = np.cumsum([0, *(self.cores[kernel] for kernel in order[:-1])])
        source, target, size = [], [], []
        for writer, reader, num_bytes in self.tensors:
            own, other = self.cores[writer], self.cores[reader]
            pieces = np.arange(max(own, other))
            source.append(self.path[first[writer] + pieces * own // len(pieces)])
            target.append(self.path[first[reader] + pieces * other // len(pieces)])
            size.append(np.full(len(pieces), num_bytes / len(pieces)))
        if not source:
            return 0.0, 0.0, order
        sizes, flow = np.concatenate(size), np.arange(sum(map(len, size)))
        demands = Demands(np.concatenate(source), np.concatenate(target), sizes, flow, 0 * flow)
        routes = default_routes(self.mesh, demands)
        busiest = float(routes.link_load_bytes(sizes, self.mesh).max(initial=0.0))
        return busiest, float(routes.num_hops @ sizes), order

    def best(self) -> Places:
        """Return the order of least load: the best of all of few kernels, else of all swaps."""
        count = len(self.cores)
        if count <= MOST_EXACT:
            return min(map(self.load, permutations(range(count))))
        found = self.load(tuple(range(count)))
        for _ in range(MOST_ROUNDS):
            near = min(map(self.load, _swapped(found[2])))
            if near[:2] >= found[:2]:
                break
            found = near
        return found


def _swapped(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for first, second in combinations(range(len(order)), 2):
        changed = list(order)
        changed[first], changed[second] = order[second], order[first]
        yield tuple(changed)


def mesh_of(num_cores: int, noc_bytes_per_s: float) -> tuple[Network, IntArray]:
    """Return the cores as a mesh that is as square as their number allows, and a winding path."""
    rows = next(n for n in range(isqrt(num_cores), 0, -1) if num_cores % n == 0)
    mesh = grid.mesh((rows, num_cores // rows), LinkSpec(noc_bytes_per_s, 0.0, 0.0)).build()
    numbers = np.arange(num_cores).reshape(rows, -1)
    numbers[1::2] = numbers[1::2, ::-1]
    return mesh, numbers.ravel()


def placed(fusion: Fusion) -> tuple[PlacedPartition, ...]:
    """Return the places of all partitions; none where the chip states no links of its cores."""
    rate = fusion.problem.grid.noc_bytes_per_s
    if rate is None:
        return ()
    mesh, path = mesh_of(fusion.problem.grid.num_cores, rate)
    found = []
    for part in fusion.partitions:
        names = [kernel.name for kernel in part.kernels]
        cores = tuple(kernel.cores for kernel in part.kernels)
        region = Region(mesh, path, cores, tuple(_tensors(fusion, part, names)))
        busiest, hops, order = region.best()
        found.append(PlacedPartition(
            order=tuple(names[kernel] for kernel in order), noc_s=busiest / rate,
            byte_hops=hops, exposed_s=max(busiest / rate - part.busy_s, 0.0),
        ))  # fmt: skip
    return tuple(found)


def _tensors(
    fusion: Fusion, part: FusedPartition, names: Sequence[str]
) -> Iterator[tuple[int, int, float]]:
    """Yield writer, reader and bytes of a sequence, of the tensors inside of a partition."""
    tensors, all_names = fusion.problem.tensors, fusion.problem.names
    place = {all_names.index(name): number for number, name in enumerate(names)}
    for tensor, writer in enumerate(tensors.writer.tolist()):
        if writer in place:
            for slot, reader in enumerate(tensors.readers[tensor].tolist()):
                if tensors.is_slot[tensor, slot] and reader in place:
                    yield place[writer], place[reader], float(tensors.sequence_bytes[tensor])
