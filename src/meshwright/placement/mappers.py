"""Mappers: how a tool chooses the placement of a strategy, one entry for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from meshwright.base.registry import Registry
from meshwright.placement.embeddings import embeddings, regrouped, ring_volume
from meshwright.placement.placement import Placement, sequential, working_devices
from meshwright.topology.network import Network


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


mappers.register("smap")(SMap())
mappers.register("gmap")(GMap())
