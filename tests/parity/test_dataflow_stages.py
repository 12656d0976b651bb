"""Stages by dynamic programming, and by trying all cuts, all layouts that cross and all ways."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from dataflow_graphs import SIZE, random_tables
from sampled import sampled

from meshwright.dataflow.layouts import cheapest_changes
from meshwright.dataflow.stages import Cuts, cut_stages
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.op import Phase

TENSOR = 2.0 * SIZE * SIZE


def send(num_bytes):
    return 0.3 * num_bytes


def stage_cost(sums, inside, crossing_in, crossing_out):
    """Return the largest sum of a stage over its best ways, tensors coming and going as given."""
    graph = sums[0].graph
    best = np.inf
    for ways in product(*(range(len(sums[0].splits[n])) for n in inside)):
        way = dict(zip(inside, ways, strict=True))
        best = min(best, max(one_sum(t, graph, way, crossing_in, crossing_out) for t in sums))
    return best


def one_sum(tables, graph, way, crossing_in, crossing_out):
    total = sum(float(tables.costs[n][w]) for n, w in way.items())
    have = {n: tables.splits[n][w].writes for n, w in way.items()} | crossing_in
    for producer, layout in have.items():
        wanted = {
            tables.splits[edge.consumer][way[edge.consumer]].reads[edge.place]
            for edge in graph.edges
            if edge.producer == producer and edge.consumer in way
        }
        if producer in crossing_out and producer in way:
            wanted.add(crossing_out[producer])
        leaves = producer in tables.exits and producer in way
        outside = tables.exits[producer].layouts if leaves else [None]
        total += min(
            cheapest_changes(
                layout,
                wanted | ({out} if out else set()),
                lambda a, b: tables.change_cost(TENSOR, a, b),
            )[0]
            for out in outside
        )
    return total


def everything(sums, num_stages):
    """Return the best slowest stage over all chains of sets and layouts of what crosses."""
    graph, layouts_of = sums[0].graph, Cuts(tuple(sums)).layouts
    sets = downsets(graph)
    best, known = np.inf, {}
    for count in range(num_stages):
        for chain in combinations(sets[1:-1], count):
            steps = (frozenset(), *chain, sets[-1])
            if any(not a <= b for a, b in pairwise(steps)):
                continue
            crossing = sorted({n for cut in chain for n in crosses(graph, cut)})
            for layouts in product(*(layouts_of[n] for n in crossing)):
                lies = dict(zip(crossing, layouts, strict=True))
                best = min(best, slowest(sums, steps, lies, known))
    return best


def downsets(graph):
    """Return all sets of forward kernels that hold what they read, each with its gradients."""
    forward = [n for n, kernel in enumerate(graph.kernels) if kernel.phase is Phase.FORWARD]
    found = []
    for size in range(len(forward) + 1):
        for chosen in map(set, combinations(forward, size)):
            needed = {e.producer for e in graph.edges if e.consumer in chosen}
            if needed <= chosen:
                whole = (n for n, k in enumerate(graph.kernels) if owner(graph, k) in chosen)
                found.append(frozenset(whole))
    return found


def owner(graph, kernel):
    """Return the forward kernel in the name of a kernel; of a sum for the input its reader."""
    return graph.number.get(kernel.name.partition(".grad")[0], 0)


def crosses(graph, cut):
    """Return the producers with a reader on the other side of a cut."""
    return {e.producer for e in graph.edges if (e.producer in cut) != (e.consumer in cut)}


def slowest(sums, steps, lies, known):
    worst, graph = 0.0, sums[0].graph
    for before, after in pairwise(steps):
        inside = after - before
        near = sorted(crosses(graph, before) | crosses(graph, after))
        key = (before, after, tuple(lies[n] for n in near))
        if key not in known:
            read = {e.producer for e in graph.edges if e.consumer in inside}
            coming = {n: lies[n] for n in near if n not in inside and n in read}
            going = {n: lies[n] for n in near if n in inside}
            busy = stage_cost(sums, sorted(inside), coming, going)
            degree = sums[0].degree
            sends = sum(send(TENSOR / (1 if lies[n].place is None else degree)) for n in near)
            known[key] = max(busy, sends)
        worst = max(worst, known[key])
    return worst


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("seed", sampled(range(30), 3))
def test_the_cut_is_the_best_of_all_cuts(seed, num_stages):
    tables = random_tables(seed, 4)
    found = cut_stages([tables], num_stages, send)
    expected = everything([tables], num_stages)
    assert found.cost == pytest.approx(expected)
    assert found.lower_bound == pytest.approx(expected)
    assert sorted(n for stage in found.stages for n in stage.kernels) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", sampled(range(20), 3))
def test_the_largest_of_several_sums_is_bounded_from_both_sides(seed):
    one = random_tables(seed, 4)
    other = replace(one, costs=tuple(c[::-1].copy() for c in one.costs))
    mean = replace(
        one, costs=tuple((a + b) / 2 for a, b in zip(one.costs, other.costs, strict=True))
    )
    sums = [one, other, mean]
    found = cut_stages(sums, 2, send)
    expected = everything(sums, 2)
    assert found.lower_bound <= expected * (1 + 1e-9)
    assert found.cost >= expected * (1 - 1e-9)


@pytest.mark.parametrize("num_kernels", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", sampled(range(30), 4))
def test_backward_kernels_are_on_the_stage_of_their_forward_kernel(seed, num_kernels):
    tables = random_tables(seed, num_kernels, of=with_backward)
    found = cut_stages([tables], 2, send)
    assert found.cost == pytest.approx(everything([tables], 2))
    kernels = tables.graph.kernels
    for stage in found.stages:
        names = {kernels[n].name for n in stage.kernels}
        for name in names - {"in.grad"}:
            assert name.partition(".grad")[0] in names
