"""Moving a tensor from one layout to another: what each device lacks, and the links it crosses.

A layout is the part of the tensor that each device holds: an interval of each of its dims. What a
device needs and does not hold comes from those who hold it, in equal parts where there are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.placement.demands import Demands
from meshwright.placement.ranks import Ranks
from meshwright.placement.routing import default_routes
from meshwright.topology.network import Network

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Split = Sequence[Sequence[str]]
"""For each dim of a tensor, the axes that split it, outermost first."""


def tiles(ranks: Ranks, split: Split) -> FloatArray:
    """Return the part of a tensor on each rank: (ranks, dims, 2), bounds between 0 and 1.

    Ranks count the innermost axis first, as ``ranks.device`` does when it is flattened.
    """
    place = np.indices(ranks.device.shape).reshape(ranks.device.ndim, -1, order="F")
    bounds = np.zeros((ranks.num_devices, len(split), 2))
    for dim, axes in enumerate(split):
        index, parts = np.zeros(ranks.num_devices, dtype=np.int64), 1
        for axis in axes:
            number = ranks.axes.index(axis)
            degree = ranks.device.shape[number]
            index, parts = index * degree + place[number], parts * degree
        bounds[:, dim, 0], bounds[:, dim, 1] = index / parts, (index + 1) / parts
    return bounds


WHOLE = np.array([0.0, 1.0])
"""Bounds of a dim that is not split."""


@dataclass(frozen=True)
class Way:
    """The routes between all pairs of the devices in use, as a table of the links they cross."""

    devices: IntArray
    """In the order of the tiles."""
    crossed: csr_array
    """(pairs, links): the seconds for each byte that a pair sends over a link [s/byte]."""
    latency_s: FloatArray
    """Of each pair: all links of its route [s]."""


def all_ways(network: Network, devices: IntArray) -> Way:
    """Return the default routes between all pairs of some devices."""
    from scipy.sparse import csr_array

    number = len(devices)
    source, target = np.repeat(devices, number), np.tile(devices, number)
    demands = Demands(
        source=source,
        destination=target,
        num_bytes=np.ones(len(source)),
        payload=np.arange(len(source)),
        operation=np.zeros(len(source), dtype=np.int64),
    )
    routes = default_routes(network, demands)
    crossed = csr_array(
        (
            (1.0 / network.bandwidth_bytes_per_s[routes.links]).astype(np.float32),
            routes.links,
            routes.offsets,
        ),
        shape=(len(source), network.num_links),
    )
    return Way(devices, crossed, routes.latency_s(network))


@dataclass(frozen=True)
class Overlaps:
    """What the devices of some layouts hold in common, dim by dim."""

    layouts: FloatArray
    """(layouts, devices, dims, 2), in one order of the devices."""

    @cached_property
    def _split_dims(self) -> list[Any]:
        """The bounds of each dim that any layout splits: (layouts, devices, 2)."""
        single = self.layouts.astype(np.float32)
        dims = (single[:, :, dim] for dim in range(single.shape[2]))
        return [bounds for bounds in dims if not (bounds == WHOLE).all()]

    @cached_property
    def is_partition(self) -> bool:
        """Whether every layout holds every part once: gradients return as activations came."""
        volumes = (self.layouts[..., 1] - self.layouts[..., 0]).prod(axis=-1).sum(axis=-1)
        return bool(np.allclose(volumes, 1.0))

    def with_all(self, first: int) -> FloatArray:
        """Return what holders under one layout have of what users need: (layouts, from, to).

        In single precision: bounds are ratios of small whole numbers.
        """
        number, devices = self.layouts.shape[:2]
        common: FloatArray | None = None
        for bounds in self._split_dims:
            mine, theirs = bounds[first, None, :, None], bounds[:, None, :]
            length = np.minimum(mine[..., 1], theirs[..., 1])
            length -= np.maximum(mine[..., 0], theirs[..., 0])
            np.maximum(length, 0.0, out=length)
            common = length if common is None else np.multiply(common, length, out=common)
        return np.ones((number, devices, devices)) if common is None else common

    def moved(self, first: int) -> FloatArray:
        """Return what each device sends to each other one on the way to each layout.

        Shares of the tensor, (layouts, senders, receivers). What a device holds itself is not sent
        to it; the rest comes in equal parts from its holders.
        """
        common = self.with_all(first)
        device = np.arange(common.shape[-1])
        own = common[:, device, device]
        common[:, device, device] = 0.0
        if self.is_partition:
            return common
        needed = (self.layouts[..., 1] - self.layouts[..., 0]).prod(axis=-1)
        offered = common.sum(axis=-2)
        lacking = np.maximum(needed - own, 0.0)
        share = np.divide(lacking, offered, out=np.zeros_like(offered), where=offered > 0)
        common *= np.minimum(share, 1.0)[:, None, :]
        return common


def busiest_s(moved: FloatArray, way: Way) -> tuple[FloatArray, FloatArray]:
    """Return seconds of the busiest link for each byte of the tensor, and the longest latency [s].

    Parameters
    ----------
    moved
        Shares that are moved in each of some cases: (cases, senders, receivers).
    """
    flat = moved.reshape(len(moved), prod(moved.shape[1:]))
    busy: FloatArray = (flat @ way.crossed).max(axis=1, initial=0.0)
    latency: FloatArray = ((flat > 0) * way.latency_s).max(axis=1, initial=0.0)
    return busy, latency
