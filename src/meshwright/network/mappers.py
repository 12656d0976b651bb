"""Mappers: how a tool chooses the placement of a strategy, one entry for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from meshwright.base.registry import Registry
from meshwright.network.demands import Demands
from meshwright.network.embeddings import embeddings, regrouped, ring_volume
from meshwright.network.placement import Placement, sequential, working_devices
from meshwright.network.tcme.optimiser import best_of
from meshwright.topology.network import Network

MOST_ROUTED = 24
"""Embeddings whose messages are routed, those of least bytes times hops."""


class Mapper(Protocol):
    """Chooses where the ranks of a strategy go."""

    def place(
        self, degrees: Mapping[str, int], traffic_bytes: Mapping[str, float], network: Network
    ) -> Placement:
        """Return a placement.

        Parameters
        ----------
        degrees
            Members of a group of each axis, innermost axis first.
        traffic_bytes
            What a rank sends to the next member of its group in a step, by axis [bytes].

        Raises
        ------
        InfeasibleError
            Where fewer devices work than the degrees need.
        """


mappers: Registry[Mapper] = Registry("mapper")


class SMap:
    """Sequential: a fixed order of the axes, ranks on devices in the order of their numbers.

    Source: TEMP (Wang et al. 2025, arXiv 2512.14256), baseline mapper of section VIII-A.
    """

    def place(
        self, degrees: Mapping[str, int], traffic_bytes: Mapping[str, float], network: Network
    ) -> Placement:
        """Return rank n on the n-th working device, whatever is sent."""
        return sequential(degrees, network)


class GMap:
    """Tries the orders of the axes and the shapes of their blocks; least bytes times hops wins.

    It does not see that messages share links. Around dead devices it looks for a rectangle that
    works, then for a path for each group of the innermost axis.

    Source: TEMP (arXiv 2512.14256), section VIII-A, after Gemini (Cai et al., HPCA 2024): variable
    order, no regard to contention. The score is ours: neither paper states one.
    """

    def place(
        self, degrees: Mapping[str, int], traffic_bytes: Mapping[str, float], network: Network
    ) -> Placement:
        """Return the embedding with the least bytes times hops; the first one of several."""
        working_devices(degrees, network)
        if len(network.grid_shape) != 2:
            return sequential(degrees, network)
        ranked = sorted(
            embeddings(degrees, network.grid_shape),
            key=lambda embedding: ring_volume(embedding, traffic_bytes),
        )
        placed = (embedding.placement(degrees, network) for embedding in ranked)
        whole = next((placement for placement in placed if placement is not None), None)
        return whole or regrouped(degrees, network) or sequential(degrees, network)


class TMap:
    """Routes the messages of the best embeddings by bytes times hops; the least busy link wins.

    It sees that messages share links: those of all axes are in flight together, round the ring of
    each group, and are routed around hot links. GMap's placement is always among those compared.

    Source: TCME of TEMP (arXiv 2512.14256), section VI: placement and routes chosen together.
    """

    def place(
        self, degrees: Mapping[str, int], traffic_bytes: Mapping[str, float], network: Network
    ) -> Placement:
        """Return the placement whose busiest link is done first."""
        simple = GMap().place(degrees, traffic_bytes, network)
        if len(network.grid_shape) != 2:
            return simple
        ranked = sorted(
            embeddings(degrees, network.grid_shape),
            key=lambda embedding: ring_volume(embedding, traffic_bytes),
        )
        placed = (embedding.placement(degrees, network) for embedding in ranked[:MOST_ROUTED])
        candidates = [simple, *(placement for placement in placed if placement is not None)]
        demands = [ring_demands(placement, traffic_bytes) for placement in candidates]
        return candidates[best_of(network, demands).index]


def ring_demands(placement: Placement, traffic_bytes: Mapping[str, float]) -> Demands:
    """Return what is in flight when every axis sends round the rings of its groups.

    Half of the bytes go to the next member and half to the one before, as on a two-way ring.
    """
    axes = [axis for axis in placement.axis_names if placement.degrees[axis] > 1]
    source, destination, num_bytes, operation = [], [], [], []
    for index, axis in enumerate(axes):
        groups = placement.groups(axis)
        for step in (1, -1):
            source.append(groups.reshape(-1))
            destination.append(np.roll(groups, -step, axis=1).reshape(-1))
            num_bytes.append(np.full(groups.size, traffic_bytes[axis] / 2.0))
            operation.append(np.full(groups.size, index))
    count = sum(len(column) for column in source)
    empty = np.zeros(0, dtype=np.int64)
    return Demands(
        source=np.concatenate([empty, *source]),
        destination=np.concatenate([empty, *destination]),
        num_bytes=np.concatenate([np.zeros(0), *num_bytes]),
        payload=np.arange(count),
        operation=np.concatenate([empty, *operation]),
        operation_names=tuple(axes) or ("",),
    )


mappers.register("smap")(SMap())
mappers.register("gmap")(GMap())
mappers.register("tmap")(TMap())
