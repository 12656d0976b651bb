"""Splits and partitions chosen together, beside every split fused by itself."""

from dataclasses import replace
from itertools import product

import pytest

from meshwright.dataflow.fusion.cores import CoreGrid, MemoryTier
from meshwright.dataflow.fusion.fuse import fuse_graph
from meshwright.dataflow.fusion.problem import DeviceShare, fusion_problem
from meshwright.dataflow.fusion.question import FusionQuestion, Target
from meshwright.dataflow.fusion.search import fuse
from meshwright.dataflow.fusion.splits import LINKS_ONLY, ChipRing
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.workloads import fft
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

GRID = CoreGrid(
    num_cores=16, array_rows=4, array_columns=2, frequency_hz=1e9, sram_bytes=1e6,
    outside=(MemoryTier(1e9, 1e9),),
)  # fmt: skip
TILE = 32


def part(names: set[str]) -> DataflowGraph:
    """Return some kernels of a small layer; what they read from others enters the graph."""
    layer = gpt_layer(64, 4, 16, 128)
    kernels = tuple(kernel for kernel in layer.kernels if kernel.name in names)
    made = {kernel.name: kernel.dims for kernel in layer.kernels} | dict(layer.inputs)
    read = {r.source for k in kernels for r in k.inputs}
    inputs = {name: made[name] for name in read - names}
    used = {r.source for k in layer.kernels if k.name not in names for r in k.inputs}
    outputs = tuple(k.name for k in kernels if k.name in used or k.name in layer.outputs)
    return replace(layer, kernels=kernels, inputs=inputs, outputs=outputs)


GRAPHS = {
    "network": part({"ln2", "ffn0", "gelu", "ffn1", "drop3"}),
    "attention": part({"qk", "softmax", "av"}),
    "transform": replace(fft(64, 64), tiled="columns"),
    "training": with_backward(part({"ffn0", "gelu"})),
}


def all_times_s(graph: DataflowGraph, link: float) -> list[float]:
    """Return the seconds of every split over two chips."""
    ring = ChipRing(graph, GRID, 2, link)
    tables = ring.tables(LINKS_ONLY, splits_weights=ring.graph.trains)
    network, found = tables, []
    for ways in product(*(range(len(listed)) for listed in tables.splits)):
        dims = {
            kernel.name: listed[way].dim
            for kernel, listed, way in zip(graph.kernels, tables.splits, ways, strict=True)
        }
        share = DeviceShare(2, dims, network.costs_by_kernel(ways), tile=TILE)
        found.append(fuse(fusion_problem(graph, GRID, share)).time_s)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("link", [1e7, 1e8, 1e10])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_bound_holds_for_every_split_and_the_answer_is_near_the_best(name, link):
    graph = GRAPHS[name]
    best_s = min(all_times_s(graph, link))
    answer = fuse_graph(FusionQuestion(graph, Target("chip", GRID, link), tp=2, tile=TILE))
    time_s = answer.time_s
    assert time_s / (1.0 + answer.sharding_gap) <= best_s * (1 + 1e-9)
    assert time_s == pytest.approx(best_s, rel=0.02)
