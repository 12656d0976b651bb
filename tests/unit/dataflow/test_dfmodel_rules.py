"""The peer: published bytes of its sharding step."""

from dataclasses import replace

import pytest

from meshwright.dataflow.layouts import REPLICATED
from meshwright.dataflow.sharding import choose_sharding
from meshwright_papers.studies.dfmodel.peer_rules import peer_tables
from meshwright_papers.studies.dfmodel.workloads import gpt_layer, gpt_training_layer

GPT3 = (12288, 96, 128, 2048)
ONE_SUM = 2048 * 12288 * 2


@pytest.mark.parametrize("sums_are_free", [False, True])
def test_a_layer_pays_two_all_reduces_as_in_the_public_log(sums_are_free):
    """One stored version of the peer charges nothing for the open sum of two activations."""
    tables = peer_tables(gpt_layer(*GPT3), 8)
    if sums_are_free:
        kernels = zip(tables.graph.kernels, tables.costs, strict=True)
        tables = replace(tables, costs=tuple(c if k.weights else 0.0 * c for k, c in kernels))
    found = choose_sharding(tables)
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
