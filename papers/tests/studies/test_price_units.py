"""The price of a design in units of DFModel."""

import pytest

from meshwright.catalog.design import Design, build
from meshwright_papers.studies.dfmodel.networks import (
    DimKind,
    NetworkDim,
    network_dims,
    network_price,
    price_units,
)

NVLINK, DDR = 450.0, 460.8


def design(network, chip="A100", number=64):
    return build(Design(chip, network, ("NVLink4",), number, memory="DDR5"))


@pytest.mark.parametrize(
    ("network", "links", "ports"),
    [
        ("torus-2d", 2 * 64, 2 * (8 + 8)),
        ("torus-3d", 3 * 64, 2 * (16 + 16 + 16)),
        ("dgx-1", 2 * 64, 2 * 8 + 64),
        ("dgx-2", 2 * 64, 2 * 64),
        ("fat-tree", 64, 64),
        ("fully-connected", 64, 0),
        # Inner pairs share the rate of a device; outer groups are joined by switches of 8 ports.
        ("dragonfly", 2 * 64, 64 * 8 / 7),
    ],
)
def test_prices_count_links_and_ports(network, links, ports):
    expected = 64 * DDR + NVLINK * (2 * links + 24 * ports)
    assert price_units(design(network)) == pytest.approx(expected)


def test_links_between_all_share_the_rate_of_a_device():
    inner, outer = network_dims(design("dragonfly"))
    assert inner.bandwidth_bytes_per_s * 7 == pytest.approx(450e9)
    assert outer.bandwidth_bytes_per_s * 7 == pytest.approx(450e9)


def dims(kinds, sizes, links):
    return [
        NetworkDim(DimKind(kind), size, 1e9 * rate)
        for kind, size, rate in zip(kinds, sizes, links, strict=True)
    ]


@pytest.mark.parametrize(
    ("sizes", "links", "dram", "total"),
    [
        ((10, 64, 6), (900, 50, 50), 3000, 37_468_800),
        ((10, 64, 6), (50, 50, 50), 3000, 15_273_600),
        ((8, 8, 24), (600, 25, 25), 2039, 10_965_504),
    ],
)
def test_prices_of_three_tori_are_those_of_the_public_logs(sizes, links, dram, total):
    assert network_price(dims(["ring"] * 3, sizes, links), 1e9 * dram) == total


def test_prices_of_other_networks_by_hand():
    """Four by two devices at 10 and 5 GB/s, without memory: links at 2, ports at 24."""

    def price(*kinds):
        return network_price(dims(kinds, (4, 2), (10, 5)), 0.0)

    ring = 10 * (2 * 8 + 24 * 4)
    assert price("ring", "switch") == ring + 5 * (2 * 8 + 24 * 8)
    assert price("switch", "switch") == 10 * (2 * 8 + 24 * 8) + 5 * (2 * 8 + 24 * 8)
    assert price("fully_connected", "fully_connected") == 10 * 2 * 24 + 5 * (2 * 2 + 24 * 4)
    assert price("ring", "fully_connected") == ring + 5 * (2 * 2 + 24 * 4)
