"""Graphs with outputs: the cheapest splits over all layouts in which each output may leave."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from dataflow_graphs import SIZE, random_graph
from sampled import sampled

from meshwright.dataflow.layouts import PARTIAL, REPLICATED, TensorLayout
from meshwright.dataflow.price import Residency, SplitTimes, volume_tables
from meshwright.dataflow.search import calibrated_system
from meshwright.dataflow.sharding import choose_sharding
from meshwright.dataflow.stages import cut_stages
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit
from meshwright.spec.collective import CollectiveKind

EVERY = (REPLICATED, TensorLayout(0), TensorLayout(1), PARTIAL)
CLOSED = EVERY[:3]
TENSOR = 2.0 * SIZE * SIZE


def random_outputs(seed, repeats=1):
    """Return a random graph; some kernels that others read leave too, in stated or free layouts."""
    rng = np.random.default_rng([seed, 7])
    graph = random_graph(seed, 2 + seed % 3, repeats)
    last = graph.kernels[-1].name
    read = {operand.source for kernel in graph.kernels for operand in kernel.inputs}
    names = [k.name for k in graph.kernels]
    outputs = tuple(n for n in names if n not in read or n == last or rng.integers(3) == 0)
    stated = {}
    for name in outputs:
        lies = [*graph.kernels[names.index(name)].dims, "whole", None, None][rng.integers(5)]
        if lies is not None:
            stated[name] = lies
    return replace(graph, outputs=outputs, output_layouts=stated)


def tables_of(graph, seed):
    """Return ring bytes, and a random cost of each split that outweighs them at times."""
    rng = np.random.default_rng([seed, 1])
    tables = volume_tables(graph, 4)
    return replace(tables, costs=tuple(rng.random(len(s)) * 4 * TENSOR for s in tables.splits))


def least_change(tables, have, wanted):
    """Return the cheapest order in which a tensor comes to lie in wanted layouts, maybe more."""
    best = np.inf
    others = [layout for layout in EVERY if layout not in wanted]
    for extra in product([False, True], repeat=len(others)):
        steps = [*wanted, *(layout for layout, is_in in zip(others, extra, strict=True) if is_in)]
        for order in permutations(steps):
            cost, there = 0.0, [have]
            for want in order:
                cost += min(tables.change_cost(TENSOR, layout, want) for layout in there)
                there.append(want)
            best = min(best, cost)
    return best


def everything(tables, graph):
    """Return the least cost over all splits and, for each, all layouts of all outputs."""
    known = {}

    def change(have, wanted):
        if (have, wanted) not in known:
            known[have, wanted] = least_change(tables, have, wanted)
        return known[have, wanted]

    best = np.inf
    for ways in product(*(range(len(splits)) for splits in tables.splits)):
        cost = sum(float(c[way]) for c, way in zip(tables.costs, ways, strict=True))
        for producer, kernel in enumerate(graph.kernels):
            have = tables.splits[producer][ways[producer]].writes
            wanted = frozenset(
                tables.splits[edge.consumer][ways[edge.consumer]].reads[edge.place]
                for edge in graph.all_edges
                if edge.producer == producer
            )
            inside = change(have, wanted)
            if kernel.name not in graph.outputs:
                cost += inside
                continue
            lies = graph.output_layouts.get(kernel.name)
            place = kernel.dims.index(lies) if lies in kernel.dims else None
            allowed = CLOSED if lies is None else [TensorLayout(place)]
            leaving = min(change(have, wanted | {out}) for out in allowed)
            share = 1 / graph.repeats if producer in graph.carried.values() else 1.0
            cost += (1 - share) * inside + share * leaving
        best = min(best, cost)
    return best


def agrees(seed):
    """Assert that elimination finds what trying everything finds; return the sharding."""
    graph = random_outputs(seed, repeats=1 + (seed % 5 == 0))
    tables = tables_of(graph, seed)
    found = choose_sharding(tables)
    assert found.cost == pytest.approx(everything(tables, graph), rel=1e-7, abs=1e-9)
    assert found.gap < 1e-6
    leaving = tables.leaving(found.ways)
    assert set(leaving) == {graph.number[name] for name in graph.outputs}
    assert not any(layout.is_partial for layout in leaving.values())
    for name, lies in graph.output_layouts.items():
        kernel = graph.kernels[graph.number[name]]
        place = None if lies == "whole" else kernel.dims.index(lies)
        assert leaving[graph.number[name]] == TensorLayout(place)
    return found


@pytest.mark.parametrize("seed", sampled(range(400), 40))
def test_outputs_leave_in_the_cheapest_of_all_layouts(seed):
    agrees(seed)


def test_open_sums_leave_in_more_than_one_way():
    found = [agrees(seed) for seed in range(40)]
    kinds = {placed.change.kind for each in found for placed in each.changes if placed.leaves}
    assert {CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE} <= kinds


def with_no_op(graph, seed):
    """Return the graph with a kernel that does nothing behind one kernel, and its name."""
    rng = np.random.default_rng([seed, 3])
    at = int(rng.integers(len(graph.kernels)))
    maker = graph.kernels[at]
    read = (Operand(maker.name, maker.dims),)
    kind = rng.integers(3)
    unit = Unit.NONE if kind == 0 else Unit.VECTOR
    no_op = Kernel("no-op", unit, maker.dims, read, flops_per_point=0.0, is_sum=bool(kind == 2))
    leaves = maker.name in graph.outputs and bool(rng.integers(2))
    after = []
    for kernel in graph.kernels[at + 1 :]:
        reads = tuple(
            replace(operand, source="no-op")
            if operand.source == maker.name and rng.integers(2)
            else operand
            for operand in kernel.inputs
        )
        after.append(replace(kernel, inputs=reads))
    read_there = {operand.source for kernel in after for operand in kernel.inputs}
    renamed = {maker.name: "no-op"} if leaves or "no-op" not in read_there else {}
    if renamed and maker.name not in graph.outputs:
        return None
    return replace(
        graph,
        kernels=(*graph.kernels[: at + 1], no_op, *after),
        outputs=tuple(renamed.get(name, name) for name in graph.outputs),
        output_layouts={renamed.get(n, n): lies for n, lies in graph.output_layouts.items()},
    )


@pytest.mark.parametrize("seed", sampled(range(400), 60))
def test_a_kernel_that_does_nothing_makes_no_plan_faster(seed):
    graph = random_outputs(seed)
    more = with_no_op(graph, seed)
    if more is None:
        pytest.skip("nothing would read the new kernel")
    tables = [volume_tables(one, 4) for one in (graph, more)]
    for least, with_more in (
        [choose_sharding(one).cost for one in tables],
        [cut_stages([one], 2, lambda num_bytes: 0.3 * num_bytes).cost for one in tables],
    ):
        assert with_more >= least * (1 - 1e-9)


@pytest.mark.parametrize("system", ["8xA100", "16xH100", "tpu-v5e-4x4"])
@pytest.mark.parametrize("seed", sampled(range(400), 30))
def test_nor_in_seconds(seed, system):
    machine = calibrated_system(system)
    for size in (512, 8192):
        graph = random_outputs(seed)
        graph = replace(graph, sizes=dict.fromkeys(graph.sizes, size))
        more = with_no_op(graph, seed)
        if more is None:
            pytest.skip("nothing would read the new kernel")
        seconds = [
            choose_sharding(
                SplitTimes(one, machine, machine.spec.num_alive, Residency()).tables()
            ).cost
            for one in (graph, more)
        ]
        assert seconds[1] >= seconds[0] * (1 - 1e-9)
