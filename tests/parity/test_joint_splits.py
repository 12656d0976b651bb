"""Splits and partitions chosen together, beside every split fused by itself."""

from dataclasses import replace
from itertools import product

import pytest
from sampled import sampled

from meshwright.dataflow.branches import least_of_branches
from meshwright.dataflow.degrees import DegreePricing
from meshwright.dataflow.fusion.cores import CoreGrid, MemoryTier
from meshwright.dataflow.fusion.fuse import fuse_graph, fused_stage_time
from meshwright.dataflow.fusion.problem import DeviceShare, fusion_problem
from meshwright.dataflow.fusion.question import FusionQuestion, Target
from meshwright.dataflow.fusion.search import fuse
from meshwright.dataflow.fusion.splits import LINKS_ONLY, ChipRing
from meshwright.dataflow.search import calibrated_system
from meshwright.dataflow.stages import StageWork
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
        for kept in (False, True):  # weights may stay in the SRAM
            alone = fusion_problem(graph, GRID, replace(share, keeps_weights=kept))
            found.append(fuse(alone).time_s)
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


def small_system(speed: float):
    """Return two SN10 of 16 small cores each, which compute at some speed."""
    found = calibrated_system("2xSN10")
    chip = found.spec.chip
    sram, dram, *_ = chip.memories
    small = replace_model(
        chip, num_cores=16, array_rows=4, array_columns=2,
        matmul_flops_per_s=dict.fromkeys(chip.matmul_flops_per_s, 256000000000.0 * speed),
        memories=(
            replace_model(sram, capacity_bytes=1e6),
            replace_model(dram, bandwidth_bytes_per_s=1e9),
        ),
    )  # fmt: skip
    calibration = replace(found.calibration, launch_s=1e-9)
    return replace(found, spec=replace_model(found.spec, chip=small), calibration=calibration)


def replace_model(model, **changes):
    """Return a declaration with other values."""
    return model.model_copy(update=changes)


BRANCHED = [("softmax", 1.0), *product(["network", "attention"], [0.01, 1.0, 100.0])]


@pytest.mark.parametrize("case", sampled(BRANCHED, 1), ids=str)
def test_no_split_is_faster_than_the_bound_of_a_stage(case, monkeypatch):
    name, speed = case
    system = small_system(speed)
    stage_time = fused_stage_time(system)
    graph = GRAPHS.get(name) or part({name, "qk"})
    pricing = DegreePricing(graph, system, 1, hides_network=True, stage_time=stage_time)
    works = []
    branched = recorded(DegreePricing._bound_of_branches, works)
    monkeypatch.setattr(DegreePricing, "_bound_of_branches", branched)
    plan = pricing.priced(2, 1, 1)
    work, open_s, bound_s = works[0]
    best_s = min(
        price.time_s
        for ways in product(*(range(len(splits)) for splits in work.sharding.tables.splits))
        for price in [stage_time.price(at(work, ways))]
        if price is not None
    )
    assert open_s <= bound_s <= best_s * (1 + 1e-9)
    assert best_s <= plan.stage_s * (1 + 1e-9)


def at(work: StageWork, ways) -> StageWork:
    return replace(work, sharding=work.sharding.at(ways), most_s=float("inf"))


def recorded(method, works):
    def bound(self, price, work, plain):
        found = method(self, price, work, plain)
        works.append((work, price.bound_s, found))
        return found

    return bound


def test_a_branch_is_divided_until_none_is_better_than_the_known_answer():
    # three kernels with two splits each cost 1 or 3; while a split is open, its kernel counts half
    dims = {"a": ("x", "y"), "b": ("x", "y"), "c": ("x", "y")}
    cost = {"x": 1.0, "y": 3.0}

    def bound_s(chosen):
        return sum(cost[d[0]] if len(d) == 1 else 0.5 for d in chosen.values())

    assert least_of_branches(dims, ["a", "b", "c"], bound_s, 10.0) == 3.0
    assert least_of_branches(dims, ["a"], bound_s, 10.0) == 2.0
    assert least_of_branches(dims, ["a", "b", "c"], bound_s, 2.25) == 2.25
