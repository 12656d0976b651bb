"""The price of a design in units of DFModel."""

import pytest

from meshwright.catalog.design import Design, build
from meshwright.sweep.systems import network_dims, price_units

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
