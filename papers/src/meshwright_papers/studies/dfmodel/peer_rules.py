"""Dataflow graphs under the published rules of a peer, DFModel (Ko et al. 2024, arXiv 2412.16432).

One side of the comparison tables. meshwright itself prices a graph differently. Here all kinds of
collectives cost the same for each byte, nothing has latency, and a ring takes half of its time in
one direction.

In the step of sharding a product over a dim that is summed over pays its output at once and leaves
it whole: partial sums are no layout. A tensor is copied for each reader, and each one pays for its
own change. The dim that passes in tiles is never split, weights always are, and a norm may be split
along the row that it needs whole. Source: the public implementation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import Field

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.files import load_file
from meshwright.dataflow.fusion.cores import CoreGrid, MemoryTier
from meshwright.dataflow.fusion.problem import Rules, SplitOfRules
from meshwright.dataflow.fusion.question import Target
from meshwright.dataflow.fusion.splits import LINKS
from meshwright.dataflow.layouts import (
    PARTIAL,
    REPLICATED,
    KernelSplit,
    TensorLayout,
    payload_bytes,
    splits_of,
)
from meshwright.dataflow.price import ring_bytes
from meshwright.dataflow.sharding import SplitTables, choose_sharding
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel
from meshwright.spec.collective import CollectiveKind
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
        """The accelerator as a grid of cores, as fusion sees it."""
        return CoreGrid(
            num_cores=self.num_cores,
            array_rows=self.array_rows,
            array_columns=self.array_columns,
            frequency_hz=self.frequency_hz,
            sram_bytes=self.sram_bytes,
            outside=(MemoryTier(self.dram_capacity_bytes, self.dram_bytes_per_s),),
        )


class Accelerators(Declaration):
    """All entries of the peer's inputs that are kept."""

    name: str
    sources: Mapping[str, Source]
    accelerators: Mapping[str, Accelerator]


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Return all accelerators by name."""
    return load_file(Accelerators, Path(__file__).with_name("accelerators.yaml")).accelerators


def target_named(name: str, link_bytes_per_s: float | None = None) -> Target:
    """Return an accelerator as the target of a fusion."""
    found = accelerator_named(name)
    return Target(name, found.grid, link_bytes_per_s or found.link_bytes_per_s)


def accelerator_named(name: str) -> Accelerator:
    """Return an accelerator, such as ``SN10``."""
    known = accelerators()
    if name not in known:
        raise UnknownNameError("accelerator of DFModel", name, known)
    return known[name]


def peer_tables(graph: DataflowGraph, degree: int) -> SplitTables:
    """Return the splits of all kernels in the peer's bytes."""
    found = [_splits(kernel, graph.tiled) for kernel in graph.kernels]
    return SplitTables(
        graph=replace(graph, repeats=1),
        degree=degree,
        splits=tuple(tuple(map(_closed, splits)) for splits in found),
        costs=tuple(
            np.array([graph.tensor_bytes(kernel) * split.writes.is_partial for split in splits])
            for kernel, splits in zip(graph.kernels, found, strict=True)
        ),
        held_bytes=tuple(np.zeros(len(splits)) for splits in found),
        change_cost=_change_bytes,
        charges_each_reader=True,
    )


def _splits(kernel: Kernel, tiled: str) -> list[KernelSplit]:
    """Return the splits of a kernel, sums still open."""
    splits = [
        split
        for split in splits_of(replace(kernel, whole=frozenset()))
        if split.dim != tiled and PARTIAL not in split.reads
    ]
    return splits[1:] if kernel.weights else splits


def _closed(split: KernelSplit) -> KernelSplit:
    """Return a split that leaves no partial sums."""
    return replace(split, writes=REPLICATED) if split.writes.is_partial else split


def _change_bytes(num_bytes: float, have: TensorLayout, want: TensorLayout) -> float:
    """Return the bytes of the tensor; 0 if it is in that layout already, or whole."""
    return 0.0 if have in (want, REPLICATED) else num_bytes


def fewest_bytes(graph: DataflowGraph, degree: int, link: float) -> SplitOfRules:
    """Return the split of fewest bytes."""
    sharding = choose_sharding(peer_tables(graph, degree))
    if sharding is None:
        raise SpecError(Fault("--tp", f"{graph.name} cannot be split over {degree} chips"))
    sent_s: dict[str, float] = defaultdict(float)

    def send(kind: CollectiveKind, kernel: str, num_bytes: float) -> None:
        sent_s[kernel] += ring_bytes(kind, num_bytes, degree) / (LINKS * link)

    for placed in sharding.changes:
        if (kind := placed.change.kind) is not None:
            send(kind, placed.producer, payload_bytes(kind, placed.num_bytes, degree))
    for kernel, costs, way in zip(graph.kernels, sharding.tables.costs, sharding.ways, strict=True):
        if costs[way] > 0:
            send(CollectiveKind.ALL_REDUCE, kernel.name, float(costs[way]))
    return sharding.dims, sent_s, sharding.gap


DFMODEL = Rules(
    writes_once=False, counts_ends=False, holds_reads=False, frees_tensors=False,
    counts_fill=False, rereads=False, loads_ahead=False, most_sequences=65_536,
    uses_all_lanes=False, has_one_tile=True, split=fewest_bytes,
)  # fmt: skip
"""The rules of the public implementation of DFModel."""
