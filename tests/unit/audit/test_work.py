"""Least work of layers and models by hand: matrices alone, without norms, biases or padding."""

import pytest
from small_problems import dense, experts, gqa, mla, model, states

from meshwright.audit.work import ModelWork, layer_work

HIDDEN = 64.0


def test_a_dense_layer_with_grouped_heads():
    """4 heads of 16 over 2 key heads: q 64 x 64, k and v 64 x 32 each, o 64 x 64; 3 of 64 x 128."""
    work = layer_work(dense(gqa(4, 2), ffn=128), HIDDEN)
    assert work.dense_params == 4096 + 2 * 2048 + 4096 + 3 * 8192 == 36_864
    assert work.active_params == work.dense_params
    # q k^T and scores v: 2 FLOPs for each of 64 + 64 elements
    assert work.score_flops == 2 * (64 + 64)
    assert (work.cache_elements, work.cache_heads) == (64, 2)
    # inputs of q k v (64), of attention (q 64, k and v 64, o 64), of the network (64 and 128)
    assert work.product_inputs == 64 + 64 + 64 + 64 + 64 + 128
    assert work.summed_outputs == 2.0


def test_a_layer_with_latent_attention():
    """Ranks 32 and 16, 4 heads of 16 + 8 and values of 16.

    q: 64 x 32 and 32 x 96; the latent and its rotated part: 64 x 24; from it k and v: 16 x 4 x 32;
    o: 64 x 64.
    """
    work = layer_work(dense(mla(4), ffn=128), HIDDEN)
    attention = 32 * (64 + 96) + 64 * 24 + 16 * 4 * (16 + 16) + 64 * 64
    assert attention == 12_800
    assert work.dense_params == attention + 3 * 64 * 128
    assert work.score_flops == 2 * (96 + 64)
    assert (work.cache_elements, work.cache_heads) == (24, 1)
    assert work.product_inputs == 64 + 24 + 64 + (64 + 128)


def test_a_layer_of_experts():
    """8 experts of 3 matrices 64 x 64, of which a token meets 2; one shared; a router of 64 x 8."""
    found, ffn = layer_work(experts(8, 2, shared=96), HIDDEN), 64
    assert found.expert_params == 8 * 3 * 64 * ffn
    assert found.routed_share == 0.25
    attention, shared = 4096 + 2 * 2048 + 4096, 3 * 64 * 96 + 64 * 8
    assert found.dense_params == attention + shared
    assert found.active_params == attention + shared + 2 * 3 * 64 * ffn


def test_a_recurrence():
    """8 heads of 16 are 128 wide: two products in and one out; 4 groups of 32 states, B and C."""
    work = layer_work(states(state_size=32), HIDDEN)
    assert work.dense_params == 64 * (3 * 128 + 2 * 128) == 40_960
    assert (work.product_inputs, work.summed_outputs) == (64, 1)


@pytest.mark.parametrize(
    ("window", "kind", "mean"),
    [(None, "sliding", 50.0), (40, "sliding", 40 - 40 * 40 / 200), (40, "chunked", 20.0)],
)
def test_tokens_that_a_token_attends_to(window, kind, mean):
    """Of 100 causal tokens: half of all; 40 but for the first 40; half of a chunk of 40."""
    work = layer_work(dense(gqa(window=window, window_kind=kind)), HIDDEN)
    assert work.attended(100.0) == pytest.approx(mean)


def test_a_model_of_three_layers():
    narrow = dense(gqa(4, 2, window=10), ffn=128)
    work = ModelWork(model(dense(gqa(4, 2), ffn=128), narrow, num_layers=3, vocab_size=100))
    hidden = work.model.hidden_size
    assert [layer.window for layer in work.layers] == [float("inf"), 10.0, float("inf")]
    each = [layer.dense_params for layer in work.layers]
    assert work.layer_flops == 2 * sum(each)
    assert work.table_params == 100 * hidden
    assert work.head_flops == 2 * 100 * hidden
    assert work.num_tables == (1.0 if work.model.tied_embeddings else 2.0)
    # 64 elements of each of 50 tokens, 10 of them in the window; heads of two ranks halve it
    assert work.cache_elements(50.0) == 64 * (50 + 10 + 50)
    assert work.cache_elements(50.0, 2.0) == 64 * (50 + 10 + 50) / 2
    assert work.cache_elements(50.0, 8.0) == 64 * (50 + 10 + 50) / 2
    assert work.score_flops(50.0) == pytest.approx(256 * (25 + (10 - 1) + 25))


def test_the_least_of_layers_and_of_layers_in_a_row():
    work, table = ModelWork(model(dense(), num_layers=5)), (5.0, 1.0, 2.0, 2.0, 9.0)
    assert work.least(lambda _: 3.0, 2) == 6.0
    assert work.least(lambda _: 3.0, -1) == 0.0

    def counted(place):
        numbers = iter(table)
        return work.least_in_row(lambda _: next(numbers), 2, place)

    assert counted("first") == 5.0 + 1.0
    assert counted("last") == 2.0 + 9.0
    assert counted("middle") == 2.0 + 2.0
