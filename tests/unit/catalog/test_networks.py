"""Networks between hosts by name."""

import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.files import data_names
from meshwright.catalog.networks import load_network, networks, with_network
from meshwright.catalog.systems import load_system


@pytest.mark.parametrize(
    ("text", "name", "gbit_per_s"),
    [
        ("100GbE", "100GbE", 100),
        ("10gbe", "10GbE", 10),
        ("100 Gb/s Ethernet", "100GbE", 100),
        ("25G-Ethernet", "25GbE", 25),
        ("HDR", "InfiniBand-HDR", 200),
        ("ndr", "InfiniBand-NDR", 400),
        ("infiniband ndr", "InfiniBand-NDR", 400),
    ],
)
def test_usual_spellings_mean_the_network(text, name, gbit_per_s):
    link = load_network(text)
    assert link.name == name
    assert link.bandwidth_bytes_per_s == gbit_per_s * 1e9 / 8


@pytest.mark.parametrize("name", data_names("links"))
def test_every_spelling_of_a_network_means_it(name):
    if name not in networks():
        with pytest.raises(UnknownNameError, match="100GbE"):
            load_network(name)
        return
    assert {load_network(text).name for text in (name, *networks()[name].also_called)} == {name}


@pytest.mark.parametrize(
    ("text", "network", "host", "sizes"),
    [
        ("16xRTX4090", "100GbE", 8, [8, 2]),
        ("12xH100", "NDR", 8, [8, 2]),
        ("2x4xL4", "25GbE", 4, [4, 2]),
        ("4x1xRTX4090", "25GbE", 1, [4]),
        ("32xV100", "HDR", 16, [16, 2]),
        ("144xGB200", "NDR", 4, [72, 2]),
        ("16xMI250X-GCD", "HDR", 8, [2, 4, 2]),
    ],
)
def test_the_devices_of_a_host_share_one_adapter(text, network, host, sizes):
    before = load_system(text)
    after = with_network(before, network)
    link, level = load_network(network), after.levels[-1]
    assert [one.size for one in after.levels] == sizes
    assert after.levels[:-1] == before.levels[:-1]
    share_bytes_per_s = level.bandwidth_bytes_per_s * level.links_per_device
    assert share_bytes_per_s * host == pytest.approx(link.bandwidth_bytes_per_s)
    assert (level.latency_s, level.message_half_bytes) == (link.latency_s, link.message_half_bytes)
    assert not level.rail_optimized
    assert after.name == f"{before.name} (one {link.name} adapter a host)"


def test_origins_are_those_of_the_network():
    system = with_network(load_system("16xRTX4090"), "25GbE")
    found = system.provenance["levels[1].bandwidth"]
    assert system.sources[found.source].title == "IEEE 802.3, Ethernet: 25 Gb/s (802.3by)"
    assert "one adapter" in system.provenance["levels[1].links_per_device"].note
    assert system.provenance["levels[1].size"].note == "from the size asked for"
    assert "levels[1].oversubscription" not in system.provenance


@pytest.mark.parametrize(
    "text",
    [
        "1xH100",
        "1x4xH100",
        "8xRTX4090",
        "72xGB200",
        "8xMI250X-GCD",
        "wafer-6x8",
        "64xTPU-v5e",
        "2xWSE-3",
    ],
)
def test_systems_without_a_network_between_hosts_are_told(text):
    system = load_system(text)
    with pytest.raises(SpecError, match="no network between hosts") as caught:
        with_network(system, "100GbE")
    assert caught.value.faults[0].path == "network"
    assert system.name in str(caught.value)


def test_unknown_networks_are_told_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 100GbE"):
        load_network("100Gbps")


def test_a_network_in_a_file(tmp_path):
    path = tmp_path / "ours.yaml"
    path.write_text(
        "name: ours\nsources: {S: {title: a letter}}\nsource: S\n"
        "bandwidth: 50 Gb/s\nlatency: 8 us\n"
    )
    level = with_network(load_system("16xL4"), str(path)).levels[-1]
    assert (level.name, level.latency_s) == ("ours", 8e-6)
