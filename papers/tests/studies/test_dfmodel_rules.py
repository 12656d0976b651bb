"""The rules of DFModel: its collectives, and sweeps under them."""

import pytest

from meshwright.base.errors import UnknownNameError
from meshwright.catalog.design import Design, build
from meshwright.dataflow.fusion.fuse import fuse_graph
from meshwright.dataflow.fusion.question import FusionQuestion
from meshwright.dataflow.price import ring_bytes
from meshwright.dataflow.question import load_graph
from meshwright.spec.collective import CollectiveKind
from meshwright_papers.studies.dfmodel.networks import DimKind, NetworkDim
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL, target_named
from meshwright_papers.studies.dfmodel.rules import all_reduce_s, peer_passes_per_s, send_s
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

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


def fused(*degrees, chips=None, **limits):
    """Return the fused published layer on eight SN10 under the rules of the peer."""
    graph, target = load_graph("gpt3-175b-layer"), target_named("SN10")
    question = FusionQuestion(graph, target, *degrees, rules=DFMODEL, **limits)
    return fuse_graph(question, chips=chips)


def test_the_published_layer_over_all_tiles():
    data = fused(4, 2)
    assert data.tile == 64
    assert data.time_s == pytest.approx(7_323_254.784e-9, rel=1e-12)
    assert data.sequences_per_s == pytest.approx(2.8448, abs=1e-4)
    assert data.compute_share == pytest.approx(0.84777, abs=1e-5)
    assert (data.micro_batch, data.gap, data.fidelity) == (60, 0.0, "closed_form")
    assert sum(data.parts_s.values()) == pytest.approx(data.time_s, rel=1e-12)
    assert data.splits["ffn1"] == "ffn"
    parts = data.partitions
    assert sum(part.time_s for part in parts) == pytest.approx(data.time_s, rel=1e-12)
    assert sum(len(part.kernels) for part in parts) == 18
    assert all(sum(kernel.cores for kernel in part.kernels) <= 640 for part in parts)


def test_the_best_division_of_eight_chips_is_the_published_one():
    data = fused(chips=8)
    assert (data.tp, data.pp, data.tile, data.gap) == (4, 2, 64, 0.0)
    assert data.bound_s == pytest.approx(data.time_s, rel=1e-12)
    alone = fused(chips=8, runs_by_kernel=True)
    assert (alone.tp, alone.pp) == (1, 8)
    assert data.sequences_per_s / alone.sequences_per_s == pytest.approx(3.098, abs=1e-3)


def test_an_accelerator_of_no_published_run_is_named():
    with pytest.raises(UnknownNameError, match="did you mean SN10"):
        target_named("SN1")
