"""Mappers: how a tool chooses the placement of a strategy, one entry for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise, permutations, product
from math import prod
from typing import Protocol

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.registry import Registry
from meshwright.network.embeddings import (
    AxisBlock,
    Embedding,
    Extent,
    Placement,
    sequential,
    working_devices,
)
from meshwright.network.regions import cover_region, make_region
from meshwright.network.traffic import Demands
from meshwright.network.visiting_orders import visiting_orders
from meshwright.topology.network import Network
from oracles.routing_bounds import best_of

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


MOST_EMBEDDINGS = 10_000


def embeddings(
    degrees: Mapping[str, int], grid_shape: Sequence[int], most: int = MOST_EMBEDDINGS
) -> Iterator[Embedding]:
    """Yield the distinct embeddings on a grid of rows and columns, at most so many.

    Every order of the axes, every shape of their blocks that fits, every order of visiting a
    block, with and without reflection.
    """
    return islice(_all_embeddings(degrees, (grid_shape[0], grid_shape[1])), most)


def _all_embeddings(degrees: Mapping[str, int], room: Extent) -> Iterator[Embedding]:
    """Yield each embedding once."""
    axes = [axis for axis, degree in degrees.items() if degree > 1]
    for nested in permutations(axes):
        for shapes in _shapes([degrees[axis] for axis in nested], room):
            if _is_repeated(shapes):
                continue
            for orders in product(*(visiting_orders(*shape) for shape in shapes)):
                parts = zip(nested, shapes, orders, strict=True)
                blocks = tuple(AxisBlock(axis, *shape, order) for axis, shape, order in parts)
                yield Embedding(blocks)
                if _has_reflection(shapes):
                    yield Embedding(blocks, is_reflected=True)


def _shapes(degrees: Sequence[int], room: Extent) -> Iterator[tuple[Extent, ...]]:
    """Yield the shapes of blocks of these degrees that fit into the room together."""
    if not degrees:
        yield ()
        return
    for rows in range(1, min(degrees[0], room[0]) + 1):
        columns = degrees[0] // rows
        if rows * columns == degrees[0] and columns <= room[1]:
            left = room[0] // rows, room[1] // columns
            for others in _shapes(degrees[1:], left):
                yield ((rows, columns), *others)


def _is_repeated(shapes: Sequence[Extent]) -> bool:
    """Tell whether a single row of blocks lies right inside a single column of them.

    Either may be nested in the other with the same result; the column comes first.
    """
    return any(inner[0] == 1 and outer[1] == 1 for inner, outer in pairwise(shapes))


def _has_reflection(shapes: Sequence[Extent]) -> bool:
    """Tell whether some block can be turned around: it repeats what is more than one cell long."""
    rows, columns = zip(*shapes, strict=True) if shapes else ((), ())
    return any(sum(side > 1 for side in sides) > 1 for sides in (rows, columns))


def ring_volume(embedding: Embedding, traffic_bytes: Mapping[str, float]) -> float:
    """Return the bytes times hops of one rank when each axis sends round its ring [bytes].

    Parameters
    ----------
    traffic_bytes
        What a rank sends to the next member of its group, by axis.
    """
    terms = (traffic_bytes[b.axis] * embedding.mean_hops(b.axis) for b in embedding.blocks)
    return sum(terms, 0.0)


def regrouped(
    degrees: Mapping[str, int], network: Network, *, is_closed: bool = False
) -> Placement | None:
    """Return a placement on what works of a grid: a path for each group of the innermost axis.

    The groups lie in the largest connected part; their order is that of a sweep across it.

    Parameters
    ----------
    is_closed
        Whether the groups must be cycles.
    """
    size = next(iter(degrees.values()))
    region = make_region(network)
    part = region.of(region.parts[0].tolist()) if region.devices else region
    found = cover_region(part, size, prod(degrees.values()) // size, is_closed=is_closed)
    if found.groups is None:
        return None
    place = {device: index for index, device in enumerate(part.devices)}
    groups = sorted(found.groups, key=lambda group: min(place[device] for device in group))
    devices = np.array(groups, dtype=np.int64).T.reshape(tuple(degrees.values()), order="F")
    kind = "cycle" if is_closed else "path"
    return Placement(tuple(degrees), devices, f"a {kind} for each group around what is dead")


def hop_volume(
    placement: Placement, traffic_bytes: Mapping[str, float], distances: IntArray
) -> float:
    """Return the bytes times hops of one rank, counted on the network [bytes].

    What :func:`ring_volume` gives in closed form.
    """
    means: list[FloatArray] = [
        traffic_bytes[axis] * placement.hops(axis, distances).mean()
        for axis, degree in placement.degrees.items()
        if degree > 1
    ]
    return float(sum(means))
