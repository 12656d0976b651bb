"""Nested blocks: what they look like, how many there are, how far neighbours lie."""

import numpy as np
import pytest
from grid_networks import grid
from oracles.mappers import embeddings, hop_volume, regrouped, ring_volume

from meshwright.network.embeddings import AxisBlock, Embedding, block_embedding, hop_distances

CASES = [
    ((4, 8), {"tatp": 8, "cp": 2, "dp": 2}),
    ((4, 8), {"tatp": 8, "tp": 1, "dp": 4}),
    ((6, 8), {"tatp": 6, "dp": 8}),
    ((6, 9), {"tatp": 6, "cp": 3, "dp": 3}),
    ((4, 6), {"tatp": 6, "dp": 3}),
]


def test_blocks_by_hand():
    inner, outer = AxisBlock("tatp", 2, 2, "cycle"), AxisBlock("dp", 1, 2, "snake")
    plain, turned = Embedding((inner, outer)), Embedding((inner, outer), is_reflected=True)
    degrees, network = {"tatp": 4, "dp": 2}, grid(2, 4)
    assert plain.placement(degrees, network).groups("tatp").tolist() == [
        [0, 1, 5, 4], [2, 3, 7, 6],
    ]  # fmt: skip
    assert turned.placement(degrees, network).groups("tatp").tolist() == [
        [0, 1, 5, 4], [3, 2, 6, 7],
    ]  # fmt: skip
    assert plain.name == "tatp 2x2 cycle, dp 1x2 line"
    assert turned.name == "tatp 2x2 cycle, dp 1x2 line, reflected"


def test_the_order_of_nesting_is_not_that_of_the_axes():
    inner, outer = AxisBlock("dp", 1, 2, "snake"), AxisBlock("tatp", 1, 2, "snake")
    placement = Embedding((inner, outer)).placement({"tatp": 2, "dp": 2}, grid(1, 4))
    assert placement.axis_names == ("tatp", "dp")
    assert placement.groups("tatp").tolist() == [[0, 2], [1, 3]]
    assert placement.groups("dp").tolist() == [[0, 1], [2, 3]]


def test_two_reflected_axes_make_one_snake():
    """Members of an inner line and the blocks around them, counted together, are neighbours."""
    blocks = (AxisBlock("cp", 1, 4, "snake"), AxisBlock("dp", 3, 1, "snake"))
    placement = Embedding(blocks).placement({"cp": 4, "dp": 3}, grid(3, 4))
    distances = hop_distances(grid(3, 4))
    assert placement.hops("dp", distances)[:, :-1].max() == 1
    lines = (AxisBlock("cp", 1, 2, "snake"), AxisBlock("dp", 1, 3, "snake"))
    turned = Embedding(lines, is_reflected=True).placement({"cp": 2, "dp": 3}, grid(1, 6))
    plain = Embedding(lines).placement({"cp": 2, "dp": 3}, grid(1, 6))
    assert turned.groups("dp").tolist() == [[0, 3, 4], [1, 2, 5]]
    assert plain.groups("dp").tolist() == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(("shape", "degrees"), CASES)
def test_all_embeddings_are_legal_and_distinct(shape, degrees):
    network = grid(*shape)
    seen = set()
    for embedding in embeddings(degrees, shape):
        placement = embedding.placement(degrees, network)
        assert placement.degrees == degrees
        assert len(set(placement.device_of_rank.tolist())) == placement.num_ranks
        key = placement.devices.tobytes()
        assert key not in seen, embedding.name
        seen.add(key)
    assert len(seen) > 10


def test_count_by_hand():
    """Two axes of 2 on 2x2: the first along a row or a column; nothing else differs."""
    names = [embedding.name for embedding in embeddings({"a": 2, "b": 2}, (2, 2))]
    assert names == ["a 2x1 line, b 1x2 line", "b 2x1 line, a 1x2 line"]


def test_the_cap():
    assert len(list(embeddings({"a": 8, "b": 8}, (8, 8), most=5))) == 5


@pytest.mark.parametrize(("shape", "degrees"), CASES)
def test_hops_are_those_of_the_enumeration(shape, degrees):
    network = grid(*shape)
    distances = hop_distances(network)
    traffic_bytes = {axis: 1.0 + index for index, axis in enumerate(degrees)}
    for embedding in embeddings(degrees, shape):
        placement = embedding.placement(degrees, network)
        for block in embedding.blocks:
            hops = placement.hops(block.axis, distances)
            assert embedding.mean_hops(block.axis) == pytest.approx(hops.mean(), rel=1e-12)
            assert embedding.longest_hop(block.axis) == hops[:, :-1].max()
        counted = hop_volume(placement, traffic_bytes, distances)
        assert ring_volume(embedding, traffic_bytes) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (4, 4), (2, 3), (3, 3), (1, 8)])
def test_innermost_blocks_are_lines_and_cycles_where_there_are(shape):
    network = grid(6, 8)
    size = shape[0] * shape[1]
    placement = block_embedding({"tatp": shape}).placement({"tatp": size}, network)
    distances = hop_distances(network)
    assert placement.are_lines("tatp", distances).all()
    assert placement.are_cycles("tatp", distances).all() == (min(shape) > 1 and size % 2 == 0)


def test_a_rectangle_that_works_is_found():
    embedding = block_embedding({"tatp": (2, 2)})
    placement = embedding.placement({"tatp": 4}, grid(3, 3).without([1]))
    assert placement.devices.tolist() == [3, 4, 7, 6]
    assert embedding.placement({"tatp": 4}, grid(3, 3).without([4])) is None
    assert embedding.placement({"tatp": 4}, grid(1, 9)) is None


def test_groups_around_a_dead_device():
    network = grid(3, 3).without([4])
    placement = regrouped({"tatp": 4, "dp": 2}, network)
    distances = hop_distances(network)
    assert sorted(placement.device_of_rank.tolist()) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert placement.are_lines("tatp", distances).all()
    assert regrouped({"tatp": 8, "dp": 1}, network, is_closed=True).are_cycles("tatp", distances)
    assert regrouped({"tatp": 4, "dp": 2}, network, is_closed=True) is None
    assert regrouped({"tatp": 3, "dp": 3}, network) is None


def test_no_axis_is_one_device():
    embedding = next(embeddings({"dp": 1}, (2, 2)))
    assert embedding.name == "one device"
    assert embedding.placement({"dp": 1}, grid(2, 2)).devices.tolist() == [0]
    assert np.array_equal(embedding.cells(), [0, 0])
