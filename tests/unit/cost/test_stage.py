"""Layers dealt to stages, and the stage that decides the time."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.layer import LayerCost
from meshwright.cost.pipeline import deal_layers, mean_of_others, slowest_stage, stage_layout
from meshwright.sharding.dealing import chunk_lengths, dealt, is_dealt
from meshwright.sharding.strategy import PlanOptions, lengths_text


def layers_of(num_layers, stages, chunks=1, embedding=0, head=0):
    plan_options = PlanOptions(embedding_layers=embedding, head_layers=head)
    counts = deal_layers((0,) * num_layers, 1, stages, chunks, plan_options)
    return counts[:, 0].tolist()


def test_llama_405b_has_seven_layers_at_both_ends():
    """126 layers on 16 stages: 14 stages of 8 and 2 of 7; the edges carry logits and embedding."""
    assert layers_of(126, 16) == [7] + [8] * 14 + [7]


@pytest.mark.parametrize(
    ("num_layers", "stages", "chunks", "expected"),
    [
        (8, 4, 1, [2, 2, 2, 2]),
        (7, 4, 1, [2, 2, 2, 1]),
        (6, 4, 1, [1, 2, 2, 1]),
        (5, 4, 1, [1, 2, 1, 1]),
        (8, 2, 2, [4, 4]),
        (8, 1, 1, [8]),
    ],
)
def test_missing_layers_leave_the_last_stage_then_the_first(num_layers, stages, chunks, expected):
    assert layers_of(num_layers, stages, chunks) == expected


@pytest.mark.parametrize(
    ("num_layers", "stages", "embedding", "head", "expected"),
    [
        (126, 16, 1, 1, [7] + [8] * 14 + [7]),
        (127, 16, 1, 0, [7] + [8] * 15),
        (127, 16, 0, 1, [8] * 15 + [7]),
        (32, 4, 0, 2, [8, 9, 9, 6]),
        (78, 8, 2, 8, [9, 11, 11, 11, 11, 11, 11, 3]),
    ],
)
def test_edges_count_as_layers(num_layers, stages, embedding, head, expected):
    """32 layers and a head for two: 34 over 4 stages of at most 9, two of them one short."""
    assert layers_of(num_layers, stages, 1, embedding, head) == expected


def test_llama_405b_interleaves_with_an_embedding_and_a_head_of_their_own():
    """126 layers on 16 x 8 chunks of at most one: the first chunk and the last one hold none."""
    lengths = dealt(126, 128)
    assert lengths.tolist() == [0] + [1] * 126 + [0]
    assert lengths.tolist() == dealt(126, 128, 1, 1).tolist()
    assert layers_of(126, 16, 8) == [7] + [8] * 14 + [7]
    assert layers_of(126, 8, 8) == [15] + [16] * 6 + [15]


def test_stated_layers_lie_where_they_are_stated():
    """Ends may hold more than the middle; of interleaved stages each holds its own chunks."""
    stated = PlanOptions(stage_layers=(9, 7, 7, 9))
    assert chunk_lengths(32, 4, stated).tolist() == [9, 7, 7, 9]
    assert deal_layers((0,) * 32, 1, 2, 2, stated).tolist() == [[16], [16]]
    assert deal_layers((0,) * 32, 1, 4, 1, stated).tolist() == [[9], [7], [7], [9]]
    assert lengths_text((9, 7, 7, 9)) == "9+7*2+9"


@pytest.mark.parametrize("embedding", [0, 1, 3])
@pytest.mark.parametrize("head", [0, 2])
@pytest.mark.parametrize("chunks", [1, 2, 6, 7, 12])
def test_all_layers_are_dealt_and_as_evenly_as_they_can_be(chunks, embedding, head):
    lengths = dealt(61, chunks, embedding, head).astype(float)
    assert lengths.sum() == 61
    lengths[0] += embedding
    lengths[-1] += head
    assert lengths.max() - lengths.min() <= 1


def test_chunks_of_a_stage_lie_apart_in_the_model():
    """Kinds 0 0 0 0 1 1 1 1, two stages of two chunks: runs of two, each stage gets one of each."""
    assert deal_layers((0,) * 4 + (1,) * 4, 2, 2, 2, PlanOptions()).tolist() == [[2, 2], [2, 2]]
    assert deal_layers((0,) * 4 + (1,) * 4, 2, 2, 1, PlanOptions()).tolist() == [[4, 0], [0, 4]]


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("num_layers", [7, 12, 61])
def test_every_layer_has_one_stage(num_layers, stages):
    pattern = tuple(i % 3 for i in range(num_layers))
    counts = deal_layers(pattern, 3, stages, 1, PlanOptions())
    assert counts.sum(axis=0).tolist() == [pattern.count(kind) for kind in range(3)]
    assert counts.sum(axis=1).max() - counts.sum(axis=1).min() <= 1


def layer(**given):
    known = {entry.name: 0.0 for entry in fields(LayerCost)}
    return LayerCost(**(known | given))


def layout(num_layers, stages, **counted):
    plan_options = PlanOptions(**counted)
    return stage_layout(
        (0,) * num_layers, (1.0,), np.array([stages * 1.0]), np.ones(1), plan_options
    )


def transient(working_bytes):
    return layer(working_bytes=working_bytes)


def priced(costs, stages):
    """Return the slowest stage, its layers, and the mean of the others."""
    slowest, num_layers = slowest_stage(costs, stages)
    return slowest, num_layers, mean_of_others(costs, stages, slowest)


LAYER = layer(forward_s=1.0, input_gradient_s=2.0, weight_gradient_s=3.0, forward_total_s=1.0)


def test_edges_belong_to_the_first_and_the_last_stage():
    one, three = layout(9, 1), layout(9, 3)
    assert [one.counts[p][-2][0] for p in ("first", "middle", "last")] == [1, 0, 0]
    assert [one.counts[p][-1][0] for p in ("first", "middle", "last")] == [1, 0, 0]
    assert [three.counts[p][-2][0] for p in ("first", "middle", "last")] == [1, 0, 0]
    assert [three.counts[p][-1][0] for p in ("first", "middle", "last")] == [0, 0, 1]


def middle_of(pattern, weights, stages, chunks):
    """Return the layers of each kind of the fullest middle stage."""
    pair = (np.array([stages * 1.0]), np.array([chunks * 1.0]))
    found = stage_layout(pattern, weights, *pair, PlanOptions())
    return [float(count[0]) for count in found.counts["middle"][:-2]]


def test_the_fullest_middle_stage_is_one_that_exists():
    """DeepSeek-V3: 3 dense layers, then 58 of experts, on 16 x 2 chunks of at most two.

    The second stage has two dense layers and two others, most stages four of experts.
    """
    pattern = (0,) * 3 + (1,) * 58
    assert middle_of(pattern, (1.0, 20.0), 16, 2) == [0, 4]
    assert middle_of(pattern, (20.0, 1.0), 16, 2) == [2, 2]
    assert middle_of(pattern, (1.0, 20.0), 16, 1) == [0, 4]


def test_stages_of_equal_weight_hold_the_most_of_each_kind():
    """Kinds 0 0 1 again and again, four layers a stage: 3 1, then 2 2, then 3 1."""
    assert middle_of((0, 0, 1) * 8, (1.0, 1.0), 6, 1) == [3, 2]


def test_a_heavy_head_makes_the_last_stage_the_slowest():
    """Three stages of three layers of 6 s and a head of 10 s: 28 s; the others take 18 s each."""
    head = layer(forward_s=4.0, input_gradient_s=3.0, weight_gradient_s=3.0, forward_total_s=4.0)
    slowest, num_layers, others = priced([LAYER, layer(), head], layout(9, 3))
    assert slowest.total_s[0] == 28
    assert num_layers[0] == 3
    assert others[0][0] == 3
    assert others[1][0] == 6
    assert others[2][0] == 9


def test_a_heavy_head_that_counts_as_layers_is_balanced():
    """Twelve layers of 6 s and a head of 12 s: 4 4 4 takes 24 + 12 s at the end.

    With the head as two layers 14 are dealt, 5 5 4 at the least: 4 layers or 5, 30 s at most.
    """
    head = layer(forward_s=6.0, input_gradient_s=3.0, weight_gradient_s=3.0, forward_total_s=6.0)
    plain, _, _ = priced([LAYER, layer(), head], layout(12, 3))
    counted, _, _ = priced([LAYER, layer(), head], layout(12, 3, head_layers=2))
    assert (plain.total_s[0], counted.total_s[0]) == (36, 30)


@given(
    num_layers=st.integers(12, 130), stages=st.integers(2, 12), chunks=st.integers(1, 4),
    embedding=st.integers(0, 2), head=st.integers(0, 4), weight=st.integers(0, 30),
)  # fmt: skip
def test_no_dealing_is_faster_than_an_even_one_could_be(
    num_layers, stages, chunks, embedding, head, weight
):
    """The slowest stage takes no less than the mean of all, however layers are dealt."""
    plan_options = PlanOptions(embedding_layers=embedding, head_layers=head)
    if not is_dealt(chunk_lengths(num_layers, stages * chunks, plan_options), stages):
        return
    columns = [np.array([float(number)]) for number in (stages, chunks)]
    costs = [LAYER, layer(), layer(forward_s=1.0 * weight, forward_total_s=1.0 * weight)]
    dealt_layers = stage_layout((0,) * num_layers, (1.0,), *columns, plan_options)
    slowest, _ = slowest_stage(costs, dealt_layers)
    assert slowest.total_s[0] * stages >= (6 * num_layers + weight) * (1 - 1e-12)


def test_a_light_head_leaves_the_fullest_middle_stage_the_slowest():
    """Five stages of 12 layers are 2 3 3 2 2 ... with the ends short; 3 layers of 6 s decide."""
    slowest, _, others = priced([LAYER, layer(), layer()], layout(12, 5))
    assert layers_of(12, 5) == [2, 3, 3, 2, 2]
    assert slowest.total_s[0] == 18
    assert others[0][0] == 9 / 4


def test_one_stage_has_no_others():
    embedding = layer(forward_s=1.0, forward_total_s=1.0)
    slowest, _, others = priced([LAYER, embedding, layer()], layout(4, 1))
    assert slowest.total_s[0] == 25
    assert others[0][0] == 0


def test_the_largest_transient_is_kept_not_summed():
    costs = [layer(working_bytes=5.0, kept_bytes=2.0), *map(transient, (3.0, 9.0))]
    slowest, _, _ = priced(costs, layout(4, 1))
    assert slowest.working_bytes[0] == 9
    assert slowest.kept_bytes[0] == 8
