"""The network of every system of the catalog, its faults, and several wafers."""

import numpy as np
import pytest
from oracles.hops import hop_distances
from sampled import one_in

from meshwright.base.errors import SpecError, UnsupportedError
from meshwright.catalog.systems import load_system, refuse_single_links, system_names
from meshwright.topology.levels import network_of, topology_of
from meshwright.topology.network import connected_components

MADE = ("64xH100", "60xH100", "144xGB200", "264xGroq-LPU", "1024xTPU-v5e", "16xA100", "8xTrainium2",
        "2xwafer-6x8", "4xwafer-4x8")  # fmt: skip


def neighbours_per_device(level, domain, num_devices):
    """Return how many wires of a level each device has; a ring of two has two to one neighbour."""
    counts = []
    for device in range(num_devices):
        place = device // domain % level.size
        if level.kind == "switch":
            counts.append(1)
            continue
        others = {
            "mesh": [n for n in (place - 1, place + 1) if 0 <= n < level.size],
            "torus": [(place - 1) % level.size, (place + 1) % level.size],
            "fully_connected": [n for n in range(level.size) if n != place],
        }[level.kind]
        there = [device + (other - place) * domain for other in others]
        counts.append(sum(other < num_devices for other in there))
    return np.array(counts)


@pytest.mark.parametrize("name", [*one_in(4, system_names()), *MADE])
class TestCatalogSystem:
    def test_it_has_every_device_and_all_are_connected(self, name):
        system = load_system(name)
        network = network_of(system)
        assert network.num_devices == system.num_devices
        assert not connected_components(network).any()
        assert (network.speed_factor == 1).all()
        if system.num_devices == topology_of(system).num_devices:
            assert network.num_links == topology_of(system).num_links

    def test_each_device_has_the_bandwidth_that_its_levels_declare(self, name):
        """What a device sends into a level: its links of a switch or of all pairs; a mesh link."""
        system = load_system(name)
        network = network_of(system)
        domain = 1
        for index, level in enumerate(system.levels):
            if level.through_io_dies:
                continue
            mine = (network.level == index) & (network.source < network.num_devices)
            inside = mine & ((network.target < network.num_devices) | (level.kind == "switch"))
            sent = np.bincount(
                network.source[inside], network.bandwidth_bytes_per_s[inside], network.num_devices
            )
            all_links = level.bandwidth_bytes_per_s * level.links_per_device
            per_wire = (
                all_links / (level.size - 1) if level.kind == "fully_connected" else all_links
            )
            wires = neighbours_per_device(level, domain, system.num_devices)
            assert sent == pytest.approx(per_wire * wires)
            domain *= level.size

    def test_a_message_through_a_switch_takes_the_latency_of_its_level(self, name):
        system = load_system(name)
        network = network_of(system)
        for index, level in enumerate(system.levels):
            if level.kind == "switch":
                of_device = (network.level == index) & (network.source < network.num_devices)
                assert 2 * network.latency_s[of_device] == pytest.approx(level.latency_s)


@pytest.mark.parametrize(
    ("name", "links", "nodes", "shape"),
    [
        # a wire for each of 6 x 7 and 5 x 8 neighbours
        ("wafer-6x8", 2 * (42 + 40), 48, (6, 8)),
        ("tpu-v4-4x4x8", 3 * 2 * 128, 128, (4, 4, 8)),
        ("tpu-v5e-8x16", 2 * 128 + 2 * 7 * 16, 128, (8, 16)),
        ("dgx-h100", 2 * 8, 9, ()),
        # eight hosts of 8, eight rails of 8 hosts, one spine over the rails
        ("64xH100", 2 * 64 + 2 * 64 + 2 * 8, 64 + 8 + 8 + 1, ()),
        # sixteen hosts, no rails and no oversubscription: one switch
        ("32xV100", 2 * 32 + 2 * 32, 32 + 2 + 1, ()),
        ("mi300x-platform", 8 * 7, 8, ()),
        ("groq-rack", 64 * 7 + 64 * 7, 64, ()),
        ("cerebras-cs3", 0, 1, ()),
        # 2 x 164 in the wafers, 28 IO dies each, 6 rows of the seam
        ("2xwafer-6x8", 2 * 164 + 2 * 2 * 28 + 2 * 6, 96 + 56, ()),
    ],
)
def test_counts_by_hand(name, links, nodes, shape):
    network = network_of(load_system(name))
    assert (network.num_links, network.num_nodes, network.grid_shape) == (links, nodes, shape)


def test_devices_are_numbered_along_the_innermost_level():
    network = network_of(load_system("wafer-6x8"))
    assert set(hop_distances(network, 9).argsort(kind="stable")[1:5]) == {1, 8, 10, 17}
    # columns to the right at 24.99 mm, rows downwards at 33.25 mm
    assert network.position_m[9] == pytest.approx([24.99e-3, 33.25e-3])


def test_a_rail_carries_strided_groups_past_the_spine():
    network = network_of(load_system("64xH100"))
    hops = hop_distances(network, 3)
    assert (hops[0], hops[11], hops[12]) == (2, 2, 4)


def test_oversubscription_thins_the_spine_only():
    system = load_system("64xH100")
    host, net = system.levels
    thin = net.model_copy(update={"oversubscription": 4.0, "rail_optimized": False})
    network = network_of(system.model_copy(update={"levels": (host, thin)}))
    into_spine = (network.level == 1) & (network.source >= 64) & (network.target >= 64)
    # eight devices of 50 GB/s on a leaf, a quarter of that upwards
    assert network.bandwidth_bytes_per_s[into_spine] == pytest.approx(8 * 50e9 / 4)
    assert topology_of(system.model_copy(update={"levels": (host, thin)})).diameter == 4


def test_wafers_share_the_seam_between_their_facing_edges():
    network = network_of(load_system("2xwafer-6x8"))
    seam = network.level == 2
    assert network.bandwidth_bytes_per_s[seam] == pytest.approx(4.5e12 / 6)
    assert seam.sum() == 12
    assert network.latency_s[seam] == pytest.approx(500e-9)
    # last column of the first wafer, first column of the second: three links apart
    hops = hop_distances(network, 7)
    assert [hops[48 + 8 * row] for row in range(6)] == [3, 4, 5, 6, 7, 8]
    assert (network.position_m[48:96, 0] > network.position_m[:48, 0].max()).all()


def test_dead_devices_and_links_and_slow_ones():
    system = load_system("wafer-4x8").model_copy(
        update={
            "dead_devices": (0, 31),
            "dead_links": ((9, 10), (18, 10)),
            "speed_factors": {5: 0.5, 31: 0.75},
        }
    )
    network = network_of(system)
    # both corners lose two wires each, and two more are cut
    assert network.num_links == 104 - 2 * (2 + 2 + 2)
    assert network.num_devices == 32
    assert list(network.alive) == list(range(1, 31))
    assert network.speed_factor[5] == 0.5
    assert network.speed_factor[31] == 0.0
    assert connected_components(network)[0] != connected_components(network)[1]


def test_a_dead_link_that_never_was_is_refused():
    system = load_system("wafer-4x8").model_copy(update={"dead_links": ((0, 1), (0, 9))})
    with pytest.raises(SpecError, match=r"dead_links\[1\]: devices 0 and 9 have no link"):
        network_of(system)


def test_a_slow_link_keeps_a_share_of_its_bandwidth_both_ways():
    whole = load_system("wafer-4x8")
    network = network_of(whole.model_copy(update={"slow_links": ((9, 10, 0.25),)}))
    left = network.bandwidth_bytes_per_s / network_of(whole).bandwidth_bytes_per_s
    slow = {network.link_between[9, 10], network.link_between[10, 9]}
    assert {link for link in range(network.num_links) if left[link] == 0.25} == slow
    assert (left == 1.0).sum() == network.num_links - 2


def test_a_slow_link_that_never_was_is_refused():
    system = load_system("wafer-4x8").model_copy(update={"slow_links": ((0, 9, 0.5),)})
    with pytest.raises(SpecError, match=r"slow_links\[0\]: devices 0 and 9 have no link"):
        network_of(system)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (
            "wafer-4x8",
            {"slow_links": ((0, 1, 0.5), (1, 0, 0.2))},
            r"slow_links\[1\].*state it once",
        ),
        (
            "wafer-4x8",
            {"dead_links": ((1, 0),), "slow_links": ((0, 1, 0.5),)},
            r"slow_links\[0\].*is dead",
        ),
        ("wafer-4x8", {"slow_links": ((0, 1, 1.5),)}, "less than or equal to 1"),
        ("wafer-4x8", {"slow_links": ((0, 32, 0.5),)}, "slow_links: no device 32 of 32"),
        (
            "8xH100",
            {"slow_links": ((0, 1, 0.5),)},
            "elsewhere change the bandwidth",
        ),
    ],
)
def test_slow_links_that_no_price_takes_are_refused(name, fields, message):
    system = load_system(name)
    with pytest.raises(ValueError, match=message):
        type(system)(**(dict(system) | fields))


def test_rooms_without_routes_refuse_single_links():
    system = load_system("wafer-4x8").model_copy(update={"slow_links": ((0, 1, 0.5),)})
    with pytest.raises(UnsupportedError, match="serving is priced by levels"):
        refuse_single_links(system, "serving")


def test_a_part_of_a_wafer_is_refused_beside_others():
    system = load_system("2xwafer-4x8").model_copy(update={"num_devices": 60})
    with pytest.raises(SpecError, match="60 are no 2 of 4x8"):
        network_of(system)


def test_a_link_that_is_too_long_has_the_latency_of_error_correction():
    """The closing links of a wafer torus run back over 7 x 24.99 mm and 5 x 33.25 mm."""
    system = load_system("wafer-6x8")
    rings = [level.model_copy(update={"kind": "torus"}) for level in system.levels]
    network = network_of(system.model_copy(update={"levels": tuple(rings)}))
    assert np.isclose(network.latency_s, 210e-9, atol=0).sum() == 2 * (6 + 8)
    assert np.isclose(network.latency_s, 200e-9, atol=0).sum() == 164


def test_a_large_system():
    system = load_system("131072xH100")
    network = network_of(system)
    assert network.num_links == 2 * 131072 * 2 + 2 * 8
