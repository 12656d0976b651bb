"""Designs in units of DFModel, and its rules beside ours."""

import pytest

from meshwright.catalog.design import Design, build
from meshwright.dataflow.load import load_graph
from meshwright.graph.kernels.workloads import gpt_layer
from meshwright.sweep.peer import peer_passes_per_s
from meshwright.sweep.systems import network_dims, price_units

LAYER = gpt_layer(2048, 16, 128, 512, repeats=8)
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


def test_two_networks_that_differ_in_what_the_rules_leave_out_are_equal():
    torus, switches = (
        peer_passes_per_s(LAYER, design(network), 64) for network in ("torus-2d", "dgx-2")
    )
    assert torus == pytest.approx(switches)


def test_more_memory_rate_is_never_slower_under_the_rules():
    slow, fast = (
        peer_passes_per_s(LAYER, build(Design("A100", "dgx-2", ("NVLink4",), 64, memory)), 64)
        for memory in ("DDR5", "HBM3")
    )
    assert fast >= slow > 0.0


def test_rules_are_not_defined_for_other_chips_and_graphs():
    assert peer_passes_per_s(LAYER, design("dgx-2", "TEMP-die"), 64) is None
    for graph in (load_graph("fft-64x64"), load_graph("hpl-2048x1024")):
        assert peer_passes_per_s(graph, design("dgx-2"), 1) is None
