"""Times of collectives, derived by hand."""

import pytest
from oracles.best_time import best_time_s

from meshwright.base.errors import UnknownNameError
from meshwright.collectives.group import Group, Span, make_group
from meshwright.collectives.registry import (
    best_affine_candidates,
    best_algorithm,
    collective_algorithms,
)
from meshwright.collectives.tree import binary_tree, ceil_log2, second_tree
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import NetworkLevel


def span(size, kind="switch", bandwidth=1e9, latency_s=0.0, half=0.0, adds=False):
    closes = 0.0 if kind == "mesh" else 1.0
    return Span(float(size), bandwidth, latency_s, half, closes, kind != "switch", adds)


def time_s(name, num_bytes, *spans):
    return float(collective_algorithms[name].time_s(num_bytes, Group(spans)))


def test_ring_of_eight_on_nvlink():
    """2 x 7 messages of 64 MB / 8 = 8 MB at 450 GB/s, each 1 us late: 14 (17.78 + 1) us."""
    group = span(8, bandwidth=450e9, latency_s=1e-6)
    assert time_s("ring_all_reduce", 64e6, group) == pytest.approx(14 * (8e6 / 450e9 + 1e-6))


def test_each_message_pays_half_of_a_message_more():
    """7 messages of 1 MB + 0.5 MB at 1 GB/s."""
    assert time_s("ring_all_gather", 8e6, span(8, half=0.5e6)) == pytest.approx(7 * 1.5e-3)


@pytest.mark.parametrize("family", ["ring", "hierarchical"])
def test_all_reduce_is_reduce_scatter_and_all_gather(family):
    spans = (span(4),) if family == "ring" else (span(4), span(2, latency_s=1e-6))
    parts = [time_s(f"{family}_{kind}", 1e6, *spans) for kind in ("reduce_scatter", "all_gather")]
    assert time_s(f"{family}_all_reduce", 1e6, *spans) == pytest.approx(sum(parts))


def test_hierarchical_over_eight_by_eight():
    """Outer: 64 MB / 8 inside x 7/8 at 50 GB/s = 140 us; inner: 64 MB x 7/8 at 450 GB/s = 124.4 us.

    One piece after the other takes the sum and 7 + 7 latencies, 32 pieces the outer level and 1/32
    of the inner one.
    """
    spans = (span(8, bandwidth=450e9, latency_s=1e-6), span(8, bandwidth=50e9, latency_s=5e-6))
    inner, outer = 56e6 / 450e9, 7e6 / 50e9
    latency_s = 7 * 1e-6 + 7 * 5e-6
    whole = time_s("hierarchical_all_gather", 64e6, *spans)
    assert whole == pytest.approx(inner + outer + latency_s)
    pieces = time_s("pipelined_hierarchical_all_gather", 64e6, *spans)
    assert pieces == pytest.approx(outer + inner / 32 + latency_s)


def test_torus_sends_both_ways_and_a_line_does_not():
    """Four blocks of 1 MB: 1 + 1/2 rounds on the ring (the farthest in halves), 3 on the line."""
    assert time_s("two_way_ring_all_gather", 4e6, span(4, "torus")) == pytest.approx(1.5e-3)
    assert time_s("line_all_gather", 4e6, span(4, "mesh")) == pytest.approx(3e-3)
    assert time_s("two_way_ring_all_gather", 5e6, span(5, "torus")) == pytest.approx(2e-3)


def test_two_way_ring_needs_half_of_the_latencies():
    assert time_s("two_way_ring_all_gather", 0.0, span(8, "torus", latency_s=1e-6)) == 4e-6
    assert time_s("line_all_gather", 0.0, span(8, "mesh", latency_s=1e-6)) == 7e-6


def test_bucket_on_a_mesh_of_six_by_eight():
    """Two halves, in units of S/(2 N): 7 steps along rows of 8, then the larger of 5 x 8 and 7 x 6.

    (7 + 42) / 96 of S, as (C - 1)(R + 1) / (2 N); the bound is 47/96.
    """
    mesh = (span(8, "mesh"), span(6, "mesh"))
    assert time_s("bucket_all_gather", 96e6, *mesh) == pytest.approx(49e-3)


def test_bucket_on_a_cubic_torus_reaches_the_bound():
    """63/64 of S over six links: 63/384."""
    torus = (span(4, "torus"), span(4, "torus"), span(4, "torus"))
    assert time_s("bucket_all_gather", 384e6, *torus) == pytest.approx(63e-3)


def test_tree_counts_two_ways_of_log_n_hops():
    """64 members: 12 hops, then 31 more pieces of S/64 at a quarter of 1 GB/s."""
    group = span(64, latency_s=5e-6)
    assert time_s("tree_all_reduce", 0.0, group) == pytest.approx(12 * 5e-6)
    piece_s = 64e6 / 64 / 0.25e9
    expected = 43 * piece_s + 60e-6
    assert time_s("pipelined_tree_all_reduce", 64e6, group) == pytest.approx(expected)


def test_in_network_reduction_sends_the_bytes_once():
    """33 pieces of S/32, up and down at the same time, against 2 x 7/8 of a ring."""
    group = span(8, latency_s=1e-6, adds=True)
    expected = 33 / 32 * 32e-3 + 2e-6
    assert time_s("pipelined_in_network_all_reduce", 32e6, group) == pytest.approx(expected)


def test_direct_all_to_all_leaves_a_host_by_its_own_link():
    """8 hosts of 8: 56/64 of 64 MB leave at 50 GB/s while 7/64 stay inside at 450 GB/s."""
    spans = (span(8, bandwidth=450e9), span(8, bandwidth=50e9))
    assert time_s("direct_all_to_all", 64e6, *spans) == pytest.approx(56e6 / 50e9)


def test_all_to_all_by_shifts_loads_the_middle_of_a_line():
    """Six members, parcels of 1 MB: 3 x 3 cross the middle of a line, half of them each way round

    a ring of which each link carries 1 + 2 full hops and half of the farthest ones: 4.5.
    """
    assert time_s("hierarchical_all_to_all", 6e6, span(6, "mesh")) == pytest.approx(9e-3)
    assert time_s("hierarchical_all_to_all", 6e6, span(6, "torus")) == pytest.approx(4.5e-3)


def test_rotated_all_to_all_reaches_the_bisection_bound():
    """6 x 8 mesh: S x 8/4 through the links of the middle, both dimensions at work."""
    mesh = (span(8, "mesh"), span(6, "mesh"))
    assert time_s("rotated_all_to_all", 1e6, *mesh) == pytest.approx(2e-3)


def test_send_crosses_the_slowest_level():
    spans = (span(2, bandwidth=450e9, latency_s=1e-6), span(4, bandwidth=50e9, latency_s=5e-6))
    assert time_s("neighbour_send", 50e6, *spans) == pytest.approx(1e-3 + 5e-6)


def test_broadcast_in_pieces_costs_the_chain_once():
    """Seven hops and 31 more pieces of S/32."""
    group = span(8)
    assert time_s("pipelined_chain_broadcast", 32e6, group) == pytest.approx(38e-3)
    assert time_s("binomial_broadcast", 32e6, group) == pytest.approx(3 * 32e-3)


@pytest.mark.parametrize("size", range(1, 70))
def test_both_trees_are_log_deep_and_share_no_inner_member_twice(size):
    trees = [binary_tree(size), second_tree(size)]
    streams = [0] * size
    for parents in trees:
        assert parents.count(None) == 1
        for rank in range(size):
            steps, at = 0, rank
            while parents[at] is not None:
                at, steps = parents[at], steps + 1
            assert steps <= (size - 1).bit_length() == ceil_log2(float(size))
        for rank, parent in enumerate(parents):
            if parent is not None:
                streams[rank] += 1
                streams[parent] += 1
    assert max(streams) <= 4


def test_the_best_algorithm_changes_with_the_size():
    """64 strided members on rails: latency decides for the tree, bandwidth for the ring."""
    hosts = NetworkLevel(name="hosts", size=8, bandwidth_bytes_per_s=450e9, latency_s=1e-6)
    rails = NetworkLevel(name="rails", size=64, bandwidth_bytes_per_s=50e9, latency_s=5e-6)
    group = make_group((hosts, rails), 8.0, 64.0)
    assert best_algorithm(CollectiveKind.ALL_REDUCE, 1e3, group) == "pipelined_tree_all_reduce"
    assert best_algorithm(CollectiveKind.ALL_REDUCE, 1e9, group) == "ring_all_reduce"


def test_the_best_time_is_the_least_over_all_algorithms():
    group = Group((span(4, latency_s=1e-6, half=1e4), span(4, latency_s=5e-6, half=1e5)))
    for num_bytes in (0.0, 1e3, 1e5, 1e7, 1e9):
        times = [
            float(collective_algorithms[name].time_s(num_bytes, group))
            for name in collective_algorithms
            if collective_algorithms[name].kind is CollectiveKind.ALL_REDUCE
        ]
        assert float(best_time_s(CollectiveKind.ALL_REDUCE, num_bytes, group)) == min(times)


def test_algorithms_that_never_win_are_left_out():
    names = [
        name for name, *_ in best_affine_candidates(CollectiveKind.ALL_GATHER, Group((span(8),)))
    ]
    assert names == ["ring_all_gather"]


def test_an_unknown_algorithm_is_told_with_the_near_ones():
    with pytest.raises(UnknownNameError, match="did you mean ring_all_reduce"):
        collective_algorithms["ring_allreduce"]


def test_tree_over_rings_has_few_latencies_and_uses_every_nic():
    """8 x 64: two rings of 7 messages inside, trees of 12 hops across; S/8 leaves by each NIC.

    16 pieces: 12 + 15 occupations of S/8/32 at a quarter of 50 GB/s, and 2 x 7/8 of S inside.
    """
    spans = (span(8, bandwidth=450e9, latency_s=1e-6), span(64, bandwidth=50e9, latency_s=5e-6))
    latency_s = 14 * 1e-6 + 12 * 5e-6
    bytes_s = 27 * (64e6 / 8 / 32) / 12.5e9 + 2 * 56e6 / 450e9
    expected = pytest.approx(latency_s + bytes_s)
    assert time_s("pipelined_tree_over_rings_all_reduce", 64e6, *spans) == expected
    hierarchical = time_s("pipelined_hierarchical_all_reduce", 64e6, *spans)
    assert time_s("pipelined_tree_over_rings_all_reduce", 64e6, *spans) < hierarchical
