"""Cuts of graphs with fused kernels, and tiles of all dims, against trying each of them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from sampled import sampled

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_system
from meshwright.dataflow.answer import SplitPlan
from meshwright.dataflow.degrees import DegreePricing
from meshwright.dataflow.fusion.cores import tileable_dims
from meshwright.dataflow.fusion.fuse import fuse_graph
from meshwright.dataflow.fusion.question import FusionQuestion, target_named, tiles_of
from meshwright.dataflow.price import Residency, SplitTimes
from meshwright.dataflow.roofline import CalibratedSystem, product_s, product_shape
from meshwright.dataflow.stages import ROUNDING, cut_stages
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit, Weight, num_elements
from meshwright.graph.kernels.workloads import fft
from meshwright.sweep.systems import system_of

SYSTEM = CalibratedSystem(load_system("2xH100"), load_calibration("default"))
WORD = 2.0


def random_graph(seed, num_kernels, tokens=(512, 4096)):
    """Return products and functions of each element, each reading one or two of those before it."""
    chance = np.random.default_rng(seed)
    sizes = {"batch": int(chance.integers(2, 9)), "tokens": int(chance.choice(tokens)), "f": 1024}
    kernels, read = [], set()
    for number in range(num_kernels):
        before = [f"k{n}" for n in range(number)] or ["x"]
        unread = [name for name in before if name not in read]
        last = number == num_kernels - 1
        wanted = unread if last and unread else [str(chance.choice(unread or before))]
        if chance.random() < 0.3:
            wanted = list(dict.fromkeys([*wanted, str(chance.choice([*before, "x"]))]))
        read |= set(wanted)
        is_product = chance.random() < 0.4 and len(wanted) == 1
        taken = ("batch", "tokens", f"in{number}") if is_product else ("batch", "tokens", "f")
        if is_product:
            sizes[f"in{number}"] = 1024
        kernels.append(
            Kernel(
                f"k{number}",
                Unit.MATRIX if is_product else Unit.VECTOR,
                ("batch", "tokens", "f"),
                tuple(Operand(name, taken) for name in wanted),
                (Weight(f"w{number}", (f"in{number}", "f")),) if is_product else (),
                flops_per_point=2.0 if is_product else 1.0,
            )
        )
    inputs = {"x": ("batch", "tokens", "f")}
    return DataflowGraph(
        f"random{seed}", tuple(kernels), sizes, inputs, (f"k{num_kernels - 1}",),
        str(chance.choice(["batch", "tokens"])),
    )  # fmt: skip


def kernel_s(graph, number, stage_of):
    """Return the seconds of a kernel by the roofline: what is fused within its stage is not moved.

    An elementwise kernel that alone reads a tensor runs in the launch of who makes it.
    """
    engine, kernel = SYSTEM.engine(graph), graph.kernels[number]

    def alone_read_by(maker):
        readers = [
            (n, k) for n, k in enumerate(graph.kernels) for r in k.inputs if r.source == maker
        ]
        here = graph.number[maker]
        is_fused = len(readers) == 1 and maker not in graph.outputs
        is_fused = is_fused and readers[0][1].unit is Unit.VECTOR
        return readers[0][0] if is_fused and stage_of[readers[0][0]] == stage_of[here] else None

    elements = num_elements(kernel.dims, graph.sizes)
    moved = sum(WORD * num_elements(w.dims, graph.sizes) for w in kernel.weights)
    moved += WORD * elements if alone_read_by(kernel.name) is None else 0.0
    launch = float(engine.launch_s)
    for read in kernel.inputs:
        if read.source in graph.number and alone_read_by(read.source) == number:
            launch = 0.0
        else:
            moved += WORD * num_elements(read.dims, graph.sizes)
    if kernel.unit is Unit.MATRIX:
        least = max(moved / float(engine.memory_bytes_per_s), launch)
        return product_s(product_shape(kernel, graph.sizes), engine, least)
    rate = SYSTEM.vector_flops_per_s(graph)
    work = elements * kernel.flops_per_point / rate if rate else 0.0
    return max(moved / float(engine.elementwise_bytes_per_s), launch, work)


def send(num_bytes):
    return 1e-6 + num_bytes / 400e9


def everything(graph, num_stages):
    """Return the slowest stage of the best of all ways to deal kernels out over stages."""
    count, best = len(graph.kernels), np.inf
    for stage_of in product(range(num_stages), repeat=count):
        if any(stage_of[e.producer] > stage_of[e.consumer] for e in graph.edges):
            continue
        slowest = 0.0
        for stage in set(stage_of):
            busy = sum(kernel_s(graph, n, stage_of) for n in range(count) if stage_of[n] == stage)
            sent = 0.0
            for maker in range(count):
                ends = [stage_of[e.consumer] for e in graph.edges if e.producer == maker]
                if ends and stage_of[maker] <= stage <= max(ends) and stage_of[maker] < max(ends):
                    sent += send(WORD * num_elements(graph.kernels[maker].dims, graph.sizes))
            slowest = max(slowest, busy, sent)
        best = min(best, slowest)
    return best


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("seed", sampled(range(250), 6))
def test_cuts_through_fused_kernels_are_the_best_of_all(seed, num_stages):
    graph = random_graph(seed, 4 + seed % 2)
    tables = SplitTimes(graph, SYSTEM, 1, Residency()).tables()
    found = cut_stages([tables], num_stages, send)
    assert found.cost == pytest.approx(everything(graph, num_stages), rel=1e-12)
    assert found.lower_bound == pytest.approx(found.cost, rel=1e-12)


@pytest.mark.parametrize("seed", sampled(range(300), 6))
def test_no_cut_is_faster_than_the_bound_of_cuts(seed):
    """A tensor that a cut takes off the chip moves beside what its kernels compute.

    One that changes its layout within a stage is priced on its own.
    """
    links, network = ("D2D", "NVLink4")[seed % 2], ("fat-tree", "torus-2d", "dgx-1")[seed % 3]
    design = {"chip": "A100", "memory": "DDR5", "links": links, "network": network, "devices": 16}
    system = CalibratedSystem(system_of(design), load_calibration("uncalibrated"))
    side = 2 ** (8 + seed % 7)
    for graph in (random_graph(seed, 3 + seed % 3), fft(side, side)):
        pricing = DegreePricing(graph, system)
        for tp, pp in ((4, 4), (8, 2)):
            plan = pricing.priced(tp, pp, 1)
            assert not isinstance(plan, SplitPlan) or plan.lower_bound_s <= plan.step_s * ROUNDING


TARGET = target_named("SN10")


@pytest.mark.parametrize("seed", sampled(range(40), 2))
def test_tiles_of_all_dims_are_tried(seed):
    """No tile of any dim is faster than what is called proven, whatever dim the graph states."""
    graph = random_graph(seed, 3, tokens=(24, 512))
    question = FusionQuestion(graph, TARGET, micro_batch=8)
    found = fuse_graph(question)
    assert found.gap == 0.0
    dims = tileable_dims(graph)
    assert {"batch", "tokens"} <= set(dims)
    each = [
        fuse_graph(replace(question, graph=replace(graph, tiled=dim), tile=tile)).time_s
        for dim in dims
        for tile in tiles_of(replace(graph, tiled=dim))
    ]
    assert found.time_s == pytest.approx(min(each), rel=1e-12)
    other = "batch" if graph.tiled == "tokens" else "tokens"
    turned = fuse_graph(replace(question, graph=replace(graph, tiled=other)))
    assert turned.time_s == pytest.approx(found.time_s, rel=1e-12)


def test_one_pass_alone_takes_all_that_many_share():
    """With one in flight the latency is the time of the graph, over its repetitions."""
    graph = replace(random_graph(3, 4), repeats=6)
    alone = fuse_graph(FusionQuestion(graph, TARGET, micro_batch=1))
    assert alone.latency_s == pytest.approx(6 * alone.time_s, rel=1e-12)
    many = fuse_graph(FusionQuestion(graph, TARGET))
    assert many.micro_batch <= 64
    assert many.latency_s >= alone.latency_s * (1 - 1e-12)
    assert many.time_s <= alone.time_s


def test_the_other_objective_has_partitions_and_tiles_of_its_own():
    """Both numbers of an answer are those that each objective finds by itself."""
    graph = random_graph(3, 6)
    question = FusionQuestion(graph, TARGET)
    stream, alone = fuse_graph(question), fuse_graph(replace(question, objective="latency"))
    assert stream.latency_s == alone.latency_s == alone.time_s == stream.other.time_s
    assert stream.sequences_per_s == alone.sequences_per_s == 1.0 / alone.other.time_s
    assert stream.other.partitions == alone.partitions
    assert alone.other.partitions == stream.partitions
    assert (stream.other.gap, stream.other.micro_batch, alone.other.micro_batch) == (0.0, 1, 64)
    assert [part.tile for part in stream.partitions] == [32]
    assert [part.tile for part in alone.partitions] == [16]  # fills in half the time
