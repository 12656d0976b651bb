"""Stages by dynamic programming, and by trying all cuts, all layouts that cross and all ways."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from dataflow_graphs import SIZE, random_tables
from sampled import sampled

from meshwright.dataflow.ideals import as_bits, members, order_ideals
from meshwright.dataflow.layouts import cheapest_changes
from meshwright.dataflow.stages import Cuts, cut_stages

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
    """Return the best slowest stage over all chains of ideals and layouts of what crosses."""
    tables = sums[0]
    cuts = Cuts(tuple(sums))
    ideals = as_bits(order_ideals(tables.graph.reads, 1_000))
    best, known = np.inf, {}
    for count in range(num_stages):
        for chain in combinations(ideals[1:-1], count):
            steps = (0, *chain, ideals[-1])
            if any(a & ~b for a, b in pairwise(steps)):
                continue
            crossing = sorted({n for ideal in chain for n in cuts.crossing(ideal)})
            for layouts in product(*(cuts.layouts[n] for n in crossing)):
                lies = dict(zip(crossing, layouts, strict=True))
                best = min(best, slowest(sums, cuts, steps, lies, known))
    return best


def slowest(sums, cuts, steps, lies, known):
    worst = 0.0
    for before, after in pairwise(steps):
        coming = {n: lies[n] for n in cuts.crossing(before)}
        going = {n: lies[n] for n in cuts.crossing(after)}
        key = (before, after, tuple(coming.items()), tuple(going.items()))
        if key not in known:
            busy = stage_cost(sums, members(after & ~before), coming, going)
            degree = sums[0].degree
            sends = sum(
                send(TENSOR / (1 if layout.place is None else degree))
                for layout in (coming | going).values()
            )
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
