"""What the search finds by itself on a transformer block: Megatron's parallelism, and others."""

import pytest

from meshwright.dataflow.layouts import REPLICATED, splits_of
from meshwright.dataflow.price import volume_tables, weights_split
from meshwright.dataflow.sharding import choose_sharding
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.workloads import fft
from meshwright.spec.collective import CollectiveKind
from meshwright_papers.studies.dfmodel.workloads import dlrm_a, gpt_layer

GPT3 = (12288, 96, 128, 2048)
STREAM = 2048 * 12288 * 2
"""Bytes of the residual stream."""
MEGATRON = {
    **dict.fromkeys(["add0", "ln1", "drop2", "add1", "ln2", "drop3", "add2"], "tokens"),
    **dict.fromkeys(["q", "k", "v", "qk", "softmax", "drop1", "av", "proj"], "heads"),
    **dict.fromkeys(["ffn0", "gelu", "ffn1"], "ffn"),
}


def kinds(found):
    return [(change.producer, change.change.kind) for change in found.changes]


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_a_block_is_megatron_with_sequence_parallelism(degree):
    """Ring bytes 4 (n - 1)/n V: two all-gathers and two reduce-scatters of the stream."""
    tables = volume_tables(gpt_layer(*GPT3, repeats=96), degree, splits=weights_split)
    found = choose_sharding(tables)
    assert found.cost == pytest.approx(4 * (degree - 1) / degree * STREAM)
    assert found.gap < 1e-6
    assert found.dims == MEGATRON
    assert kinds(found) == [
        ("ln1", CollectiveKind.ALL_GATHER),
        ("proj", CollectiveKind.REDUCE_SCATTER),
        ("ln2", CollectiveKind.ALL_GATHER),
        ("ffn1", CollectiveKind.REDUCE_SCATTER),
    ]
    assert found.changes[0].readers == ("q", "k", "v")


def whole_stream(kernel):
    """Return the ways that split neither tokens nor the width of the stream."""
    return tuple(s for s in weights_split(kernel) if s.dim not in ("tokens", "hidden"))


def test_with_a_whole_stream_it_is_two_all_reduces_of_as_many_ring_bytes():
    tables = volume_tables(gpt_layer(*GPT3, repeats=96), 8, splits=whole_stream)
    found = choose_sharding(tables)
    assert found.cost == pytest.approx(3.5 * STREAM)
    assert kinds(found) == [
        ("proj", CollectiveKind.ALL_REDUCE), ("ffn1", CollectiveKind.ALL_REDUCE),
    ]  # fmt: skip
    assert sum(change.num_bytes for change in found.changes) == 100_663_296


def test_a_training_layer_is_four_all_reduces_when_gradients_are_added_before_they_are_summed():
    """Q, K and V each bring a part of one gradient: open sums are added on every device."""
    graph = with_backward(gpt_layer(*GPT3, repeats=80), vector_saves=False)
    found = choose_sharding(volume_tables(graph, 8, splits=whole_stream))
    assert found.cost == pytest.approx(2 * 3.5 * STREAM)
    reduced = [c for c in found.changes if c.change.kind is CollectiveKind.ALL_REDUCE]
    assert [change.producer for change in reduced] == ["proj", "ffn1", "ffn0.grad.ln2", "ln1.grad"]
    assert sum(change.num_bytes for change in reduced) == 201_326_592


def test_with_whole_weights_allowed_nothing_is_sent():
    found = choose_sharding(volume_tables(gpt_layer(*GPT3, repeats=96), 8))
    assert found.cost == 0.0


def test_memory_buys_weights_that_are_split():
    """Between all weights whole and all split lie plans that split as many as they must."""
    tables = volume_tables(gpt_layer(*GPT3, repeats=96), 8)
    free = choose_sharding(tables)
    lean = choose_sharding(tables, 0.2 * free.held_bytes)
    assert free.cost < lean.cost <= 3.5 * STREAM
    assert lean.gap < 1e-6


def test_a_transform_is_three_all_to_alls():
    points = 2**20
    tables = volume_tables(fft(1024, 1024), 8, splits=lambda kernel: splits_of(kernel)[1:])
    found = choose_sharding(tables)
    assert [kind for _, kind in kinds(found)] == [CollectiveKind.ALL_TO_ALL] * 3
    assert found.cost == pytest.approx(3 * 16 * points / 8 * 7 / 8)


def test_embedding_tables_meet_dense_layers_in_an_all_to_all():
    graph = dlrm_a()
    tables = volume_tables(graph, 128)
    room = 0.05 * sum(graph.tensor_bytes(w) for k in graph.kernels for w in k.weights)
    found = choose_sharding(tables, room)
    assert kinds(found) == [("pooled", CollectiveKind.ALL_TO_ALL)]
    assert found.dims["pooled"] == "tables"
    assert found.dims["top0"] == "samples"
    pooled = graph.tensor_bytes(graph.kernels[graph.number["pooled"]])
    assert found.cost == pytest.approx(pooled / 128 * 127 / 128)


def test_partial_sums_that_leave_the_graph_are_summed():
    graph = gpt_layer(*GPT3)
    tables = volume_tables(graph, 8, splits=weights_split)
    found = choose_sharding(tables)
    assert not found.splits[graph.number["add2"]].writes.is_partial
    assert found.splits[graph.number["q"]].reads == (REPLICATED,)
