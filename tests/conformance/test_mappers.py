"""Every mapper: legal placements on whole and broken grids and on switches, and the score."""

import numpy as np
import pytest
from grid_networks import grid, star
from oracles.mappers import embeddings, hop_volume, mappers, ring_demands
from sampled import slow_where

from meshwright.base.errors import InfeasibleError
from meshwright.network.embeddings import hop_distances, sequential
from meshwright.network.tcme.optimiser import optimise

NETWORKS = {
    "4x8": grid(4, 8),
    "torus 4x8": grid(4, 8, wraps=True),
    "4x8 with dead devices": grid(4, 8).without([3, 12, 30]),
    "3x5": grid(3, 5),
    "switch": star(32),
}
DEGREES = [
    {"tatp": 8, "cp": 2, "dp": 2},
    {"tatp": 6, "dp": 2},
    {"tatp": 7, "tp": 1, "dp": 4},
    {"dp": 1},
]


@pytest.mark.parametrize("name", mappers)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("degrees", slow_where(DEGREES, lambda d: d.get("tatp", 1) > 6), ids=str)
def test_each_rank_has_a_working_device_of_its_own(name, network, degrees):
    traffic_bytes = dict.fromkeys(degrees, 1.0)
    num_ranks = int(np.prod(list(degrees.values())))
    if num_ranks > len(network.alive):
        with pytest.raises(InfeasibleError):
            mappers[name].place(degrees, traffic_bytes, network)
        return
    placement = mappers[name].place(degrees, traffic_bytes, network)
    assert placement.degrees == degrees
    devices = placement.device_of_rank
    assert len(set(devices.tolist())) == num_ranks
    assert np.isin(devices, network.alive).all()
    again = mappers[name].place(degrees, traffic_bytes, network)
    assert np.array_equal(again.devices, placement.devices)


def test_smap_is_row_major():
    placement = mappers["smap"].place({"tatp": 8, "dp": 4}, {}, grid(4, 8))
    assert placement.device_of_rank.tolist() == list(range(32))


def test_gmap_is_the_best_of_all_by_hops_and_no_worse_than_smap():
    network, degrees = grid(4, 8), {"tatp": 8, "cp": 2, "dp": 2}
    distances = hop_distances(network)
    for traffic_bytes in (
        {"tatp": 10.0, "cp": 1.0, "dp": 1.0},
        {"tatp": 1.0, "cp": 1.0, "dp": 100.0},
    ):
        found = mappers["gmap"].place(degrees, traffic_bytes, network)
        volumes = [
            hop_volume(embedding.placement(degrees, network), traffic_bytes, distances)
            for embedding in embeddings(degrees, network.grid_shape)
        ]
        volume = hop_volume(found, traffic_bytes, distances)
        assert volume == min(volumes)
        assert volume < hop_volume(sequential(degrees, network), traffic_bytes, distances)


def test_gmap_puts_the_busy_axis_inside():
    """The stream on a 2x4 cycle: each of its hops is one link."""
    placement = mappers["gmap"].place({"dp": 4, "tatp": 8}, {"dp": 1.0, "tatp": 100.0}, grid(4, 8))
    assert placement.are_cycles("tatp", hop_distances(grid(4, 8))).all()
    assert placement.name.startswith("tatp")


def test_gmap_goes_around_dead_devices():
    network = grid(4, 8).without([9, 23])
    placement = mappers["gmap"].place({"tatp": 10, "dp": 3}, {"tatp": 1.0, "dp": 1.0}, network)
    assert placement.are_lines("tatp", hop_distances(network)).all()


@pytest.mark.parametrize(
    ("degrees", "traffic_bytes"),
    [
        ({"tatp": 8, "dp": 4}, {"tatp": 1.0, "dp": 1.0}),
        ({"tp": 4, "tatp": 2, "dp": 4}, {"tp": 1.0, "tatp": 2.0, "dp": 1.0}),
        ({"tatp": 4, "dp": 4, "pp": 2}, {"tatp": 1.0, "dp": 3.0, "pp": 0.1}),
    ],
)
def test_tmap_has_the_least_busy_link_of_all_three(degrees, traffic_bytes):
    network = grid(4, 8)
    busiest_s = {
        name: optimise(
            network, ring_demands(mappers[name].place(degrees, traffic_bytes, network),
                                  traffic_bytes)
        ).z_s
        for name in mappers
    }  # fmt: skip
    assert busiest_s["tmap"] <= min(busiest_s["gmap"], busiest_s["smap"]) * (1 + 1e-9)


def test_tmap_beats_hops_where_groups_share_links():
    """On 6x8 two axes of equal bytes: rows and columns of their own share nothing."""
    network, degrees = grid(6, 8), {"tatp": 8, "dp": 6}
    traffic_bytes = {"tatp": 1.0, "dp": 1.0}
    loads = [
        optimise(network, ring_demands(mappers[name].place(degrees, traffic_bytes, network),
                                       traffic_bytes)).z_s
        for name in ("tmap", "gmap")
    ]  # fmt: skip
    assert loads[0] < loads[1]
