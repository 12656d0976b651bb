"""Ideals and steps of known graphs, branches that are alike, and graphs that are too wide."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from fusion_problems import random_problem

import meshwright.dataflow.fusion.fewer_kernels as fewer_kernels
import meshwright.dataflow.fusion.lattice as lattices
import meshwright.dataflow.fusion.search as search
import meshwright.dataflow.fusion.wide_graphs as pruned
from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusion.cores import CoreGrid, MemoryTier
from meshwright.dataflow.fusion.lattice import (
    Branches,
    alike_branches,
    chain_of,
    lattice_of,
    limits_of,
    row_keys,
    row_of,
)
from meshwright.dataflow.fusion.price import price_partitions
from meshwright.dataflow.fusion.problem import OWN, DeviceShare, fusion_problem
from meshwright.dataflow.fusion.search import KernelOrders, WeightedProblem, best_of, evaluate, fuse
from meshwright.dataflow.fusion.wide_graphs import search_all_orders
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit, Weight
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL
from meshwright_papers.studies.dfmodel.workloads import gpt_training_layer

GRID = CoreGrid(64, 16, 16, 1e9, 12e6, (MemoryTier(1e12, 100e9),))


def experts(count, length, *, unlike=False):
    """Branches of products in a row, between a kernel that feeds all and one that joins them."""
    row = ("tokens", "hidden")
    kernels = [Kernel("route", Unit.VECTOR, row, (Operand("x", row),))]
    sizes, ends = {"tokens": 256, "hidden": 512}, []
    for branch in range(count):
        source, dim = "route", "hidden"
        for place in range(length):
            name, inner = f"e{branch}.{place}", f"f{branch if unlike else 0}.{place}"
            sizes[inner] = 1024 + (64 * branch if unlike else 0)
            read = Operand(source, ("tokens", dim))
            weight = Weight(f"{name}.weight", (dim, inner))
            kernels.append(Kernel(name, Unit.MATRIX, ("tokens", inner), (read,), (weight,)))
            source, dim = name, inner
        ends.append(Operand(source, ("tokens", dim)))
    kernels.append(Kernel("join", Unit.VECTOR, ends[0].dims, tuple(ends)))
    return DataflowGraph("experts", tuple(kernels), sizes, {"x": row}, ("join",), "tokens")


def problem(graph, rules=DFMODEL, **share):
    return fusion_problem(graph, GRID, DeviceShare(tile=32, **share), rules)


def test_the_training_layer_has_1174_ideals():
    graph = gpt_training_layer(768, 12, 64, 256)
    limits = replace(limits_of(problem(graph)), branches=Branches(()))
    lattice = lattice_of(limits)
    assert len(graph.kernels) == 41
    assert len(lattice.ideals) == 1174
    assert len(set(row_keys(lattice.ideals).tolist())) == 1174


@pytest.mark.parametrize(("count", "length"), [(3, 2), (4, 3), (6, 3), (8, 3)])
def test_alike_branches_count_once_for_each_multiset_of_states(count, length):
    limits = limits_of(problem(experts(count, length)))
    assert [group.shape for group in limits.branches.groups] == [(count, length)]
    assert len(lattice_of(limits).ideals) == comb(count + length, length) + 2


@pytest.mark.parametrize(("count", "length"), [(3, 2), (4, 2), (3, 3)])
def test_alike_branches_leave_the_optimum_as_it_is(count, length):
    asked = problem(experts(count, length))
    every = lattice_of(replace(limits_of(asked), branches=Branches(())))
    assert len(every.ideals) == (length + 1) ** count + 2
    assert fuse(asked).time_s == pytest.approx(
        fuse(asked, KernelOrders(every, 0.0)).time_s, rel=1e-12
    )


def test_branches_of_unlike_sizes_are_not_exchanged():
    assert alike_branches(problem(experts(4, 2, unlike=True))).groups == ()


def test_branches_that_meet_elsewhere_are_not_exchanged():
    graph = experts(2, 2)
    row = graph.kernels[-1].dims
    extra = Kernel("extra", Unit.VECTOR, row, (Operand("e0.1", row), Operand("join", row)))
    assert alike_branches(problem(replace(graph, kernels=(*graph.kernels, extra)))).groups == ()


def test_a_row_of_kernels_has_all_their_intervals_that_fit():
    asked = replace(problem(experts(1, 3)), phase=np.array([0, 0, 0, 1, 1]))
    limits = limits_of(replace(asked, held_bytes=np.array([1.0, 8.0, 5.0, 1.0, 1.0]) * 1e6))
    row = row_of(limits, 100)
    assert [np.flatnonzero(members).tolist() for members in row.sets] == [
        [0], [0, 1], [1], [2], [3], [3, 4], [4],
    ]  # fmt: skip
    assert row.ideals.sum(axis=1).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(row.sets, row.ideals[row.target] & ~row.ideals[row.source])
    assert len(row_of(limits, 5).sets) == 5


def test_kernels_alone_in_their_order_are_found_where_nothing_else_fits(monkeypatch):
    asked = random_problem(11, 7, OWN)
    exact = fuse(asked)
    monkeypatch.setattr(lattices, "MOST_IDEALS", 3)
    monkeypatch.setattr(search, "put_back", lambda *_, **__: chain_of(np.ones((1, 7), bool)))
    assert exact.time_s <= fuse(asked).time_s < np.inf
    assert not price_partitions(asked, np.ones((1, 7), bool)).fits[0]
    monkeypatch.setattr(search, "row_of", lambda *_: chain_of(np.ones((1, 7), bool)))
    with pytest.raises(InfeasibleError, match="of a wide graph not all partitions were tried"):
        fuse(asked)


@pytest.mark.parametrize("size", [70, 130])
def test_keys_of_long_rows_can_be_found_again(size):
    rows = np.random.default_rng(size).random((50, size)) < 0.5
    keys = row_keys(rows)
    order = np.argsort(keys)
    assert order[np.searchsorted(keys, keys, sorter=order)].tolist() == list(range(50))


def test_a_long_chain_of_more_than_64_kernels_is_fused():
    found = fuse(problem(experts(1, 80)))
    assert sum(len(part.kernels) for part in found.partitions) == 82
    assert found.gap == 0.0


@pytest.mark.parametrize(("seed", "span"), [(seed, seed % 3 + 1) for seed in range(12)])
def test_windows_of_a_long_graph_hold_all_steps(seed, span, monkeypatch):
    """The ideals, steps and prices of windows are those of the whole graph in one."""
    asked = replace(random_problem(seed, 8, OWN), spare_dram_bytes=1e9)
    whole, fused = lattice_of(limits_of(asked)), fuse(asked)
    monkeypatch.setattr(lattices, "SPAN", span)
    parts, again = lattice_of(limits_of(asked)), fuse(asked)
    assert len(parts.windows) > len(whole.windows) == 1
    for entry in ("ideals", "source", "target"):
        assert np.array_equal(getattr(parts, entry), getattr(whole, entry))
    assert np.array_equal(parts.sets[parts.partition], whole.sets[whole.partition])
    assert again.time_s == pytest.approx(fused.time_s, rel=1e-12)
    assert [p.kernels for p in again.partitions] == [p.kernels for p in fused.partitions]


def test_equal_blocks_of_a_row_share_one_window():
    """40 blocks of two kernels: the first windows differ by their ends, the others are one."""
    found = lattice_of(limits_of(problem(experts(1, 80))))
    assert len(found.windows) > 2
    assert len({id(window.sets) for window in found.windows[1:-2]}) <= 1


def test_a_wide_graph_says_so_and_gives_its_gap(monkeypatch):
    asked = problem(experts(5, 2, unlike=True))
    exact = fuse(asked)
    for limits in (lattices, fewer_kernels):
        monkeypatch.setattr(limits, "MOST_IDEALS", 100)
    found = fuse(asked)
    assert exact.counts.num_kept is None
    assert found.counts.num_kept < 12
    assert found.bound_s <= exact.time_s <= found.time_s
    assert 0 < found.gap < 0.2


@pytest.mark.parametrize("seed", range(12))
def test_all_orders_pruned_hold_the_optimum(seed, monkeypatch):
    asked = replace(random_problem(seed, 6), micro_batches=(2,), spare_dram_bytes=1e9)
    exact = fuse(asked)
    seen = search_all_orders(asked, limits_of(asked), 2.0 * exact.time_s)
    assert seen.bound_s == pytest.approx(exact.time_s)
    assert evaluate(asked, seen.sets).time_s == pytest.approx(exact.time_s)
    assert search_all_orders(asked, limits_of(asked), exact.time_s).sets is None
    for most in ("MOST_IDEALS", "MOST_STEPS"):
        with monkeypatch.context() as limited:
            limited.setattr(pruned, most, 0)
            assert (
                search_all_orders(asked, limits_of(asked), 2.0 * exact.time_s).bound_s
                <= exact.time_s
            )


@pytest.mark.slow
def test_candidates_beyond_the_best_are_pruned_and_the_rest_share_a_lattice():
    graph = gpt_training_layer(256, 4, 64, 256)
    asked = [
        fusion_problem(graph, GRID, DeviceShare(tile=tile), DFMODEL)
        for tile in (16, 32, 64, 128, 256)
    ]
    found = best_of(WeightedProblem(entry, 2.0) for entry in asked)
    alone = [fuse(entry).time_s for entry in asked]
    assert found.number == int(np.argmin(alone))
    assert found.weighted_s == pytest.approx(2.0 * min(alone))
    assert found.num_fused + found.num_pruned + len(found.refused) == len(asked)
