"""A placement: the device of each rank of a logical grid, and how far apart its groups lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.base.errors import InfeasibleError
from meshwright.topology.network import Network


@dataclass(frozen=True)
class Placement:
    """The device of each rank; ranks count the first axis fastest."""

    axis_names: tuple[str, ...]
    """Innermost axis first."""
    devices: IntArray
    """Device at each coordinate; one dimension for each axis, as long as its degree."""
    name: str
    """How the ranks were laid out, in words."""

    @property
    def num_ranks(self) -> int:
        """Devices in use."""
        return self.devices.size

    @property
    def degrees(self) -> dict[str, int]:
        """Members of a group of each axis."""
        return dict(zip(self.axis_names, self.devices.shape, strict=True))

    @property
    def device_of_rank(self) -> IntArray:
        """Device of each rank, (num_ranks,)."""
        return self.devices.ravel(order="F")

    def groups(self, axis: str) -> IntArray:
        """Return the devices that differ in one axis only, in its order: (num_groups, degree)."""
        index = self.axis_names.index(axis)
        along = np.moveaxis(self.devices, index, 0)
        return along.reshape(along.shape[0], -1, order="F").T

    def hops(self, axis: str, distances: IntArray) -> IntArray:
        """Return the hops from each member to the next, from the last to the first: per group.

        Parameters
        ----------
        distances
            Hops between any two devices, of :func:`hop_distances`; -1 where there is no way.
        """
        groups = self.groups(axis)
        return distances[groups, np.roll(groups, -1, axis=1)]

    def are_lines(self, axis: str, distances: IntArray) -> BoolArray:
        """Return for each group whether its consecutive members are neighbours."""
        is_line: BoolArray = (self.hops(axis, distances)[:, :-1] == 1).all(axis=1)
        return is_line

    def are_cycles(self, axis: str, distances: IntArray) -> BoolArray:
        """Return for each group whether it is a line and its last member next to its first."""
        is_cycle: BoolArray = (self.hops(axis, distances) == 1).all(axis=1)
        return is_cycle


def hop_distances(network: Network) -> IntArray:
    """Return the fewest links from each device to each other, (num_devices, num_devices).

    -1 where there is no way. Nodes that do not forward begin and end ways only.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    size = network.num_nodes
    begins = network.source + np.where(network.forwards[network.source] > 0, 0, size)
    ones = np.ones(network.num_links)
    graph = csr_array((ones, (begins, network.target)), shape=(2 * size, 2 * size))
    devices = np.arange(network.num_devices)
    starts = devices + np.where(network.forwards[devices] > 0, 0, size)
    hops = shortest_path(graph, unweighted=True, indices=starts)[:, devices]
    hops[devices, devices] = 0
    return np.where(np.isfinite(hops), hops, -1).astype(np.int64)


def sequential(degrees: Mapping[str, int], network: Network) -> Placement:
    """Return the ranks on the working devices in the order of their numbers.

    On a whole grid that is row-major order: rank n on device n.
    """
    chosen = working_devices(degrees, network)
    grid = chosen.reshape(tuple(degrees.values()), order="F")
    return Placement(tuple(degrees), grid, "in the order of the device numbers")


def working_devices(degrees: Mapping[str, int], network: Network) -> IntArray:
    """Return the first working devices, one for each rank.

    Raises
    ------
    InfeasibleError
        Where too few devices work.
    """
    num_ranks = prod(degrees.values())
    if num_ranks > len(network.alive):
        wanted = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items())
        raise InfeasibleError(
            f"{wanted} needs {num_ranks} devices; {len(network.alive)} of "
            f"{network.num_devices} work"
        )
    return network.alive[:num_ranks]
