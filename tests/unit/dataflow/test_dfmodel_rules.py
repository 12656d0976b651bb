"""The peer: published bytes of its sharding step, prices of networks, and its collectives."""

import pytest

from meshwright.dataflow.dfmodel_rules import (
    DimKind,
    NetworkDim,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    gather_s,
    network_price,
    peer_tables,
    send_s,
)
from meshwright.dataflow.layouts import REPLICATED
from meshwright.dataflow.price import ring_bytes
from meshwright.dataflow.sharding import choose_sharding
from meshwright.graph.kernels.workloads import gpt_layer, gpt_training_layer
from meshwright.spec.collective import CollectiveKind

GPT3 = (12288, 96, 128, 2048)
ONE_SUM = 2048 * 12288 * 2


def dims(kinds, sizes, links):
    return [
        NetworkDim(DimKind(kind), size, 1e9 * rate)
        for kind, size, rate in zip(kinds, sizes, links, strict=True)
    ]


@pytest.mark.parametrize("sums_are_free", [False, True])
def test_a_layer_pays_two_all_reduces_as_in_the_public_log(sums_are_free):
    found = choose_sharding(peer_tables(gpt_layer(*GPT3), 8, sums_are_free=sums_are_free))
    assert found.cost == 2 * ONE_SUM == 100_663_296
    assert found.gap == 0.0
    assert found.dims["proj"] in ("heads", "head_dim")
    assert found.dims["ffn1"] == "ffn"


def test_a_training_layer_pays_for_each_gradient_of_the_projections_alone():
    """Forward 2, network backward 1, and 3 where Q, K and V each bring a gradient of one tensor."""
    found = choose_sharding(peer_tables(gpt_training_layer(*GPT3), 8))
    assert found.cost == 6 * ONE_SUM


def test_the_peer_has_no_open_sums_and_never_splits_tiles_or_leaves_weights_whole():
    tables = peer_tables(gpt_training_layer(*GPT3), 8)
    for kernel, ways in zip(tables.graph.kernels, tables.splits, strict=True):
        assert all(not split.writes.is_partial for split in ways)
        assert all(split.dim != "tokens" for split in ways)
        assert not kernel.weights or all(split.dim is not None for split in ways)


def test_each_reader_pays_although_another_one_asks_for_the_same():
    """Q, K and V would gather a norm that is split three times, so it stays whole."""
    found = choose_sharding(peer_tables(gpt_layer(*GPT3), 8))
    ln1 = found.splits[found.tables.graph.number["ln1"]]
    assert ln1.writes == REPLICATED


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


def test_a_ring_takes_half_of_what_it_sends():
    ring = NetworkDim(DimKind.RING, 8, 1e9)
    sent = ring_bytes(CollectiveKind.ALL_REDUCE, 1e6, 8)
    assert all_reduce_s(1e6, ring) == pytest.approx(sent / 1e9 / 2)
    assert gather_s(1e6, ring) == pytest.approx(all_reduce_s(1e6, ring) / 2)
    assert send_s(1e6, ring) == pytest.approx(1e-3)
    assert broadcast_s(1e6, ring) == pytest.approx(3.5e-3)


def test_fully_connected_members_send_side_by_side():
    full = NetworkDim(DimKind.FULL, 8, 1e9)
    assert all_reduce_s(1e6, full) == pytest.approx(2 * 1e6 / 8 / 1e9)
    assert broadcast_s(1e6, full) == pytest.approx(0.5e-3)


def test_an_all_to_all_is_what_crosses_the_middle():
    """Messages of 1 byte, links of 1 byte/s: N^2/4 messages over the links in the middle."""
    one = 1e-9
    assert all_to_all_s(1, dims(["ring"], [8], [one])) == pytest.approx(64 / 4 / 2)
    torus = dims(["ring", "ring"], [4, 2], [one, one])
    assert all_to_all_s(1, torus) == pytest.approx(64 / 4 / 2)
    assert all_to_all_s(1, dims(["switch"], [8], [one])) == pytest.approx(64 / 4 / 8)
    assert all_to_all_s(1, dims(["fully_connected"], [8], [one])) == pytest.approx(1)
    mixed = dims(["ring", "fully_connected"], [4, 2], [one, one])
    assert all_to_all_s(1, mixed) == pytest.approx(max(16 / 4 / 2, 64 / 4 / 1))
