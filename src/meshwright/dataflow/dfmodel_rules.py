"""Accelerators as the published runs of DFModel enter them (Ko et al. 2024, arXiv 2412.16432)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from math import prod

import numpy as np
from pydantic import Field

from meshwright.base.errors import UnknownNameError
from meshwright.catalog.peers import load_peer
from meshwright.dataflow.fusion.cores import CoreGrid
from meshwright.dataflow.layouts import PARTIAL, REPLICATED, KernelSplit, TensorLayout, splits_of
from meshwright.dataflow.sharding import SplitTables
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel
from meshwright.spec.declaration import Bytes, BytesPerSecond, Count, Declaration, Hertz, Source


class Accelerator(Declaration):
    """One accelerator: cores, SRAM, DRAM, and one direction of a link of its first dimension."""

    num_cores: Count
    array_rows: Count
    array_columns: Count
    frequency_hz: Hertz
    sram_bytes: Bytes
    dram_capacity_bytes: Bytes
    dram_bytes_per_s: BytesPerSecond = Field(alias="dram_rate")
    link_bytes_per_s: BytesPerSecond | None = None

    @property
    def grid(self) -> CoreGrid:
        """The accelerator as fusion sees it."""
        return CoreGrid(
            num_cores=self.num_cores,
            array_rows=self.array_rows,
            array_columns=self.array_columns,
            frequency_hz=self.frequency_hz,
            sram_bytes=self.sram_bytes,
            dram_bytes=self.dram_capacity_bytes,
            dram_bytes_per_s=self.dram_bytes_per_s,
        )


class Accelerators(Declaration):
    """Everything that is kept of the peer's inputs."""

    name: str
    sources: Mapping[str, Source]
    accelerators: Mapping[str, Accelerator]


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Return all accelerators by name."""
    return load_peer(Accelerators, "dfmodel").accelerators


def accelerator_named(name: str) -> Accelerator:
    """Return an accelerator, such as ``SN10``."""
    known = accelerators()
    if name not in known:
        raise UnknownNameError("accelerator of DFModel", name, known)
    return known[name]


DRAM_PRICE, LINK_PRICE, SWITCH_PRICE = 1.0, 2.0, 24.0
"""Of each GB/s, in units of the peer."""
_GB = 1e9


class DimKind(StrEnum):
    """How the members along one dimension of a network are joined."""

    RING = "ring"
    FULL = "fully_connected"
    SWITCH = "switch"


@dataclass(frozen=True)
class NetworkDim:
    """One dimension of a network."""

    kind: DimKind
    size: int
    bandwidth_bytes_per_s: float
    """Of one link."""


def all_reduce_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of an all-reduce: (n - 1)/n S/B, 2 S/(n B) where fully connected [s]."""
    n = dim.size
    share = 2.0 / n if dim.kind is DimKind.FULL else (n - 1) / n
    return share * num_bytes / dim.bandwidth_bytes_per_s


def gather_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of an all-gather or a reduce-scatter: half an all-reduce [s]."""
    return all_reduce_s(num_bytes, dim) / 2.0


def broadcast_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of a broadcast: (n - 1)/2 S/B on a ring, S/(2 B) elsewhere [s]."""
    share = (dim.size - 1) / 2.0 if dim.kind is DimKind.RING else 0.5
    return share * num_bytes / dim.bandwidth_bytes_per_s


def send_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of a message to a neighbour: S/B [s]."""
    return num_bytes / dim.bandwidth_bytes_per_s


def all_to_all_s(message_bytes: float, dims: Sequence[NetworkDim]) -> float:
    """Return the time of an all-to-all: what crosses the middle of each dimension over its links.

    Each of N devices sends a message to each other one. The messages across a middle are N^2/4,
    for the first dimension of a network that is no torus n^2/4 of its own n devices.
    """
    is_torus = all(dim.kind is DimKind.RING for dim in dims)
    total = prod(dim.size for dim in dims)
    times = []
    for place, dim in enumerate(dims):
        size = total if is_torus or place else dim.size
        links = _links_across(dims, place)
        times.append(message_bytes * size**2 / 4.0 / (dim.bandwidth_bytes_per_s * links))
    return max(times)


def _links_across(dims: Sequence[NetworkDim], place: int) -> float:
    """Return the links over the middle of a dimension."""
    dim = dims[place]
    if dim.kind is DimKind.SWITCH:
        return dim.size
    if dim.kind is DimKind.FULL:
        return dim.size**2 / 4.0
    is_torus = len(dims) > 1 and all(other.kind is DimKind.RING for other in dims)
    return prod(other.size for other in dims if other is not dim) if is_torus else 2.0


def network_price(dims: Sequence[NetworkDim], dram_bytes_per_s: float) -> float:
    """Return the price of memories, links and switches of all devices, chips left out."""
    total = prod(dim.size for dim in dims)
    price = DRAM_PRICE * total * dram_bytes_per_s / _GB
    for place, dim in enumerate(dims):
        links, switches = _parts(dim, total, is_inner=place == 0)
        rate = dim.bandwidth_bytes_per_s / _GB
        price += rate * (LINK_PRICE * links + SWITCH_PRICE * switches)
    return price


def _parts(dim: NetworkDim, total: int, *, is_inner: bool) -> tuple[float, float]:
    """Return the links and the ports of switches of a dimension.

    A ring pays two ports. Outer groups that are fully connected are joined once, by switches.
    """
    n = dim.size
    if dim.kind is DimKind.RING:
        return total, 2.0 * total / n
    if dim.kind is DimKind.SWITCH:
        return total, total
    return (n * (n - 1) * total / n, 0.0) if is_inner else (n * (n - 1), n**2)


def peer_tables(graph: DataflowGraph, degree: int, *, sums_are_free: bool = False) -> SplitTables:
    """Return the ways of all kernels in the peer's bytes.

    Parameters
    ----------
    sums_are_free
        Whether a product of two activations over a dim that is summed over pays nothing, as in one
        stored version: an error of the peer.
    """
    found = [_ways(kernel, graph.tiled) for kernel in graph.kernels]
    costs = []
    for kernel, ways in zip(graph.kernels, found, strict=True):
        is_free = sums_are_free and not kernel.weights
        paid = 0.0 if is_free else graph.tensor_bytes(kernel)
        costs.append(np.array([paid * split.writes.is_partial for split in ways]))
    return SplitTables(
        graph=replace(graph, repeats=1),
        degree=degree,
        splits=tuple(tuple(map(_closed, ways)) for ways in found),
        costs=tuple(costs),
        held_bytes=tuple(np.zeros(len(ways)) for ways in found),
        change_cost=_change_bytes,
        charges_each_reader=True,
    )


def _ways(kernel: Kernel, tiled: str) -> list[KernelSplit]:
    """Return the ways of a kernel, sums still open."""
    ways = [
        split
        for split in splits_of(replace(kernel, whole=frozenset()))
        if split.dim != tiled and PARTIAL not in split.reads
    ]
    return ways[1:] if kernel.weights else ways


def _closed(split: KernelSplit) -> KernelSplit:
    """Return a way that leaves no partial sums."""
    return replace(split, writes=REPLICATED) if split.writes.is_partial else split


def _change_bytes(num_bytes: float, have: TensorLayout, want: TensorLayout) -> float:
    """Return the bytes of the tensor, unless it is there already or whole."""
    return 0.0 if have in (want, REPLICATED) else num_bytes
