"""The rules of DFModel: its collectives, and sweeps under them."""

import pytest

from meshwright.catalog.design import Design, build
from meshwright.dataflow.load import load_graph
from meshwright.dataflow.price import ring_bytes
from meshwright.graph.kernels.workloads import gpt_layer
from meshwright.spec.collective import CollectiveKind
from meshwright.sweep.systems import DimKind, NetworkDim
from meshwright_papers.studies.dfmodel.rules import all_reduce_s, peer_passes_per_s, send_s

LAYER = gpt_layer(2048, 16, 128, 512, repeats=8)


def design(network, chip="A100", number=64):
    return build(Design(chip, network, ("NVLink4",), number, memory="DDR5"))


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


def test_a_ring_takes_half_of_what_it_sends():
    ring = NetworkDim(DimKind.RING, 8, 1e9)
    assert all_reduce_s(1e6, ring) == pytest.approx(
        ring_bytes(CollectiveKind.ALL_REDUCE, 1e6, 8) / 2e9
    )
    assert send_s(1e6, ring) == pytest.approx(1e-3)


def test_fully_connected_members_send_side_by_side():
    full = NetworkDim(DimKind.FULL, 8, 1e9)
    assert all_reduce_s(1e6, full) == pytest.approx(2 * 1e6 / 8 / 1e9)
