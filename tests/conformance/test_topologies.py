"""Every topology: its closed forms are those of the network that it builds."""

from itertools import pairwise

import numpy as np
import pytest
from network_cuts import flow_between, halves, smallest_bisection
from oracles.hops import hop_distances
from sampled import one_in, sampled, slow_where

from meshwright.spec.system import NetworkLevel
from meshwright.topology.grid import mesh, torus
from meshwright.topology.levels import hierarchical
from meshwright.topology.network import LinkSpec, connected_components, topologies
from meshwright.topology.switched import dragonfly, fat_tree, leaf_spine
from meshwright.topology.wafer import Wafer, one_wafer, wafers_in_a_row

LINK = LinkSpec(2.0, 1e-6, 1024.0)
SLOW, FAST = LinkSpec(1.0), LinkSpec(5.0)


def level(kind, size, bandwidth=2.0, **fields):
    """Return a level of a system."""
    return NetworkLevel(
        name=f"{kind}{size}{bandwidth}",
        kind=kind,
        size=size,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=1e-6,
        **fields,
    )


USUAL = [
    topology
    for name in topologies
    for n in range(1, 13)
    if (topology := topologies[name](n, LINK)) is not None
]
SMALL = [
    *USUAL,
    *(
        grid(sides, LINK)
        for grid in (mesh, torus)
        for sides in [(3, 3), (5, 2), (2, 5), (1, 7), (13,), (2, 7), (2, 2, 2), (2, 2, 3),
                      (3, 2, 2), (3, 1, 4), (2, 1, 1, 2)]
    ),
    *(
        grid(sides, links)
        for grid in (mesh, torus)
        for sides in [(3, 4), (4, 3), (2, 5), (3, 3)]
        for links in [(SLOW, FAST), (FAST, SLOW)]
    ),
    *(leaf_spine(*shape, LINK, spines, ratio)
      for shape in [(2, 6), (3, 4), (4, 3), (5, 2), (3, 3), (1, 5), (6, 1)]
      for spines, ratio in [(1, 1.0), (2, 2.0), (3, 4.0)]),
    *(dragonfly(*shape, LINK, across)
      for shape in [(1, 2, 1), (2, 2, 1), (1, 3, 1), (1, 2, 2), (4, 1, 2), (3, 1, 3), (1, 1, 6)]
      for across in (LINK, FAST, SLOW)),
    *(one_wafer(Wafer(sides, (SLOW, FAST))) for sides in [(3, 4), (2, 5)]),
    *(wafers_in_a_row(count, Wafer(sides, (LINK, LINK)), LinkSpec(seam))
      for count, sides in [(2, (2, 3)), (3, (2, 2)), (2, (3, 2)), (3, (1, 4)), (3, (3, 1)),
                           (4, (1, 3)), (1, (3, 3))]
      for seam in (1.5, 6.0)),
    *(hierarchical(levels) for levels in [
        (level("mesh", 4), level("mesh", 3)),
        (level("torus", 3), level("mesh", 4), ),
        (level("torus", 2), level("mesh", 5, 1.0), ),
        (level("switch", 4, 5.0), level("switch", 3)),
        (level("switch", 3, 5.0), level("switch", 4, oversubscription=3.0)),
        (level("switch", 2, 5.0), level("switch", 6, rail_optimized=True)),
        (level("switch", 4, 5.0), level("switch", 3, rail_optimized=True, oversubscription=2.0)),
        (level("switch", 3, 1.0), level("switch", 4, rail_optimized=True, oversubscription=4.0)),
        (level("fully_connected", 4), level("fully_connected", 3, links_per_device=4.0)),
        (level("fully_connected", 3), level("switch", 4)),
        (level("switch", 4, 5.0), level("fully_connected", 3)),
        (level("mesh", 3), level("mesh", 2), level("switch", 2, 1.0)),
        (level("mesh", 2), level("torus", 3), level("switch", 2, 1.0, oversubscription=2.0)),
        (level("torus", 6, 0.5), level("switch", 2, rail_optimized=True)),
        (level("switch", 3), level("torus", 4)),
        (level("switch", 2, 6.0), level("switch", 2), level("switch", 3, 1.0)),
        (level("switch", 6, oversubscription=2.0), level("fully_connected", 2)),
        (level("fat_tree", 8),), (level("fat_tree", 12, radix=4),), (level("fat_tree", 5),),
        (level("switch", 2, 5.0), level("fat_tree", 4, radix=4)),
        (level("fully_connected", 4, 9.0), level("fat_tree", 3, radix=6)),
        *((level("dragonfly", p * a * (a * h + 1), devices_per_router=p, routers_per_group=a,
                 global_links_per_router=h),)
          for p, a, h in [(2, 2, 1), (1, 3, 1), (1, 2, 2), (4, 1, 2)]),
        (level("switch", 2, 9.0), level("dragonfly", 6, devices_per_router=2, routers_per_group=2,
                                        global_links_per_router=1)),
    ]),
]  # fmt: skip
LARGE = [
    mesh((6, 8), LINK), mesh((32, 32), LINK), mesh((5, 6, 7), LINK),
    torus((16, 16), LINK), torus((4, 4, 8), LINK), torus((3, 5), LINK),
    fat_tree(4, LINK), fat_tree(8, LINK), leaf_spine(9, 8, LINK, 4, 3.0),
    dragonfly(2, 4, 2, LINK, LINK), dragonfly(3, 6, 3, LINK, LINK),
    one_wafer(Wafer((6, 8), (LINK, LINK))), wafers_in_a_row(4, Wafer((4, 8), (LINK, LINK)), LINK),
    *(topologies[name](64, LINK) for name in ("ring", "switch", "fully_connected")),
    hierarchical((level("switch", 8, 9.0), level("switch", 16, rail_optimized=True))),
    hierarchical((level("fully_connected", 8), level("fully_connected", 8))),
    hierarchical((level("torus", 4), level("torus", 4), level("switch", 4, 0.5))),
    hierarchical((level("switch", 8, 9.0), level("fat_tree", 16))),
    hierarchical((level("switch", 4, 9.0), level(
        "dragonfly", 36, devices_per_router=4, routers_per_group=4, global_links_per_router=2))),
]  # fmt: skip


def words(topology):
    return topology.shape


@pytest.mark.parametrize("name", topologies)
def test_every_topology_is_tried(name):
    assert any(topologies[name](n, LINK) is not None for n in range(1, 13))


@pytest.mark.parametrize("topology", [*one_in(4, SMALL), *sampled(LARGE, 4)], ids=words)
class TestTopology:
    def test_counts_are_those_of_the_network(self, topology):
        network = topology.build()
        assert network.num_devices == topology.num_devices
        assert network.num_links == topology.num_links
        assert len(network.forwards) == len(network.position_m) == network.num_nodes

    def test_every_wire_has_both_directions_and_two_ends(self, topology):
        network = topology.build()
        there, back = slice(0, None, 2), slice(1, None, 2)
        assert (network.source[there] == network.target[back]).all()
        assert (network.target[there] == network.source[back]).all()
        for column in (network.bandwidth_bytes_per_s, network.latency_s, network.level):
            assert (column[there] == column[back]).all()
        assert (network.source != network.target).all()
        assert (network.bandwidth_bytes_per_s > 0).all()

    def test_diameter_is_the_longest_of_the_shortest_ways(self, topology):
        network = topology.build()
        devices = range(0, network.num_devices, 1 + network.num_devices // 128)
        hops = [hop_distances(network, n)[: network.num_devices] for n in devices]
        assert np.min(hops) >= 0
        assert np.max(hops) == topology.diameter

    def test_all_nodes_are_connected_and_stand_apart(self, topology):
        network = topology.build()
        assert not connected_components(network).any()
        assert np.isfinite(network.position_m).all()
        places = network.position_m[np.lexsort(network.position_m.T)]
        assert all(np.abs(a - b).max() > 1e-4 for a, b in pairwise(places))


@pytest.mark.parametrize(
    "topology", slow_where(SMALL, lambda topology: topology.num_devices == 12), ids=words
)
def test_bisection_is_the_smallest_of_all_halves(topology):
    smallest = smallest_bisection(topology.build())
    if topology.bisection_is_exact:
        assert topology.bisection_bytes_per_s == pytest.approx(smallest)
    else:
        assert topology.bisection_bytes_per_s >= smallest * (1 - 1e-9)


@pytest.mark.slow
def test_bounds_on_the_bisection_are_seldom_loose():
    """Of those that are not proven exact, nearly all are."""
    stated = [topology for topology in SMALL if not topology.bisection_is_exact]
    tight = [t.bisection_bytes_per_s <= smallest_bisection(t.build()) * (1 + 1e-9) for t in stated]
    assert np.mean(tight) > 0.8


@pytest.mark.parametrize("topology", sampled(LARGE, 4), ids=words)
def test_no_half_drawn_at_random_has_a_smaller_cut_where_it_is_exact(topology):
    network, generator = topology.build(), np.random.default_rng(1)
    half = topology.num_devices // 2
    drawn = [np.arange(half), *(generator.permutation(topology.num_devices)[:half] for _ in "ab")]
    if topology.bisection_is_exact:
        for side in drawn:
            assert flow_between(network, side) >= topology.bisection_bytes_per_s * (1 - 1e-9)


@pytest.mark.slow
def test_the_bisection_of_a_fat_tree_is_full():
    """k = 4: no half of the sixteen devices is cut in less than its eight links."""
    tree = fat_tree(4, LINK)
    network = tree.build()
    cuts = [flow_between(network, np.flatnonzero(side)) for side in halves(16)]
    assert tree.bisection_bytes_per_s == min(cuts) == 16.0


@pytest.mark.parametrize("topology", [SMALL[k] for k in range(0, len(SMALL), 7)], ids=words)
def test_trying_all_halves_agrees_with_flows(topology):
    network = topology.build()
    sides = halves(topology.num_devices)
    drawn = sides[:: 1 + len(sides) // 60]
    flow = min((flow_between(network, np.flatnonzero(side)) for side in drawn), default=0.0)
    if len(drawn) == len(sides) and topology.num_devices > 1:
        assert smallest_bisection(network) == pytest.approx(flow)
    else:
        assert smallest_bisection(network) <= flow * (1 + 1e-9)
