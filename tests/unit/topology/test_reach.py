"""Hops and pieces of networks small enough to follow by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.hops import hop_distances
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path

from meshwright.topology.grid import mesh, ring
from meshwright.topology.network import LinkSpec, connected_components
from meshwright.topology.switched import fully_connected, switch

LINK = LinkSpec(1.0)


def test_hops_on_a_ring():
    assert list(hop_distances(ring(6, LINK).build(), 1)) == [1, 0, 1, 2, 3, 2]


def test_devices_under_a_switch_pass_nothing_on():
    network = switch(4, LINK).build()
    assert list(hop_distances(network, 0)) == [0, 2, 2, 2, 1]
    cut = fully_connected(3, LINK).build().without(dead_links=[(0, 1)])
    assert list(hop_distances(cut, 0)) == [0, -1, 1]


@given(st.sets(st.integers(0, 11)), st.sets(st.integers(0, 16)))
def test_hops_on_a_broken_mesh_are_those_of_a_general_search(dead, cut):
    whole = mesh((3, 4), LINK).build()
    wires = list(zip(whole.source[::2].tolist(), whole.target[::2].tolist(), strict=True))
    network = whole.without(dead, [wires[k] for k in cut])
    ones = np.ones(network.num_links)
    graph = coo_array((ones, (network.source, network.target)), shape=(12, 12))
    expected = shortest_path(graph.tocsr(), unweighted=True)
    ours = np.array([hop_distances(network, n) for n in range(12)])
    assert (np.where(ours < 0, np.inf, ours) == expected).all()
    piece = connected_components(network)
    assert ((piece[:, None] == piece) == (ours >= 0)).all()


@pytest.mark.parametrize(
    ("dead_links", "pieces"), [([], [0] * 4), ([(0, 1)], [0] * 4), ([(0, 1), (2, 3)], [0, 1, 1, 0])]
)
def test_pieces_of_a_ring(dead_links, pieces):
    network = ring(4, LINK).build().without(dead_links=dead_links)
    assert list(connected_components(network)) == pieces
