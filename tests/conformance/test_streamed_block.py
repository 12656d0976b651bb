"""A whole transformer block under every stream equals the dense one, forward and backward."""

from collections import Counter

import numpy as np
import pytest
from oracles.stream_arrays import (
    reduced_product,
    reduced_product_gradients,
    streamed_product,
    streamed_product_gradients,
    walk_behind,
)
from oracles.stream_links import links_of
from oracles.stream_transfers import (
    attention_backward_bytes,
    attention_forward_bytes,
    input_streaming_bytes_per_token,
    received_bytes,
)
from oracles.token_order import contiguous_tokens, zigzag_tokens
from transformer_block import (
    DenseParts,
    InputStreamed,
    Shape,
    WeightStreamed,
    block_forward_backward,
)

from meshwright.streams.forms import LineStream, enumerate_rounds, streams

FORMS = {name: streams[name] for name in streams} | {"knob": LineStream(1.0)}
LLAMA, GPT = Shape(), Shape(kv_heads=4, norm="layer", activation="gelu")
ONCE = ("hold", "cycle", "ring", "folded_ring")
"""Forms in which each member receives each item once."""


def problem(shape, num_tokens, seed=0):
    """Return the input, the gradient of the output and the parameters of a block."""
    rng = np.random.default_rng(seed)
    x, dy = rng.normal(size=(2, num_tokens, shape.hidden))
    return x, dy, shape.weights(rng)


def assert_same(found, expected):
    for one, other in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)
    assert found[2].keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        np.testing.assert_allclose(found[2][name], gradient, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("shape", [LLAMA, GPT], ids=["llama", "gpt"])
def test_dense_gradients_are_slopes(shape):
    x, dy, params = problem(shape, 5)
    _, dx, gradients = block_forward_backward(DenseParts(shape, 5), x, dy, params)
    rng = np.random.default_rng(1)

    def loss(step, moved):
        inputs = x + step * moved["x"]
        shifted = {name: value + step * moved[name] for name, value in params.items()}
        y = block_forward_backward(DenseParts(shape, 5), inputs, dy, shifted)[0]
        return (y * dy).sum()

    for name in ["x", *params]:
        moved = dict.fromkeys(["x", *params], 0.0)
        moved[name] = rng.normal(size=(x if name == "x" else params[name]).shape)
        slope = (loss(1e-5, moved) - loss(-1e-5, moved)) / 2e-5
        gradient = dx if name == "x" else gradients[name]
        assert slope == pytest.approx((gradient * moved[name]).sum(), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("shape", [LLAMA, GPT], ids=["llama", "gpt"])
def test_block_under_weight_streaming_is_dense(name, n, shape):
    x, dy, params = problem(shape, 4 * n + 3)
    rounds = enumerate_rounds(FORMS[name], n)
    expected = block_forward_backward(DenseParts(shape, len(x)), x, dy, params)
    for order in (zigzag_tokens, contiguous_tokens):
        parts = WeightStreamed(shape, rounds, order(len(x), n, rounds.num_parts))
        assert_same(block_forward_backward(parts, x, dy, params), expected)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("shape", [LLAMA, GPT], ids=["llama", "gpt"])
def test_block_under_input_streaming_is_dense(name, n, shape):
    """With four members and two key-value heads, two members share a replicated head."""
    x, dy, params = problem(shape, 4 * n + 3)
    rounds = enumerate_rounds(FORMS[name], n)
    parts = InputStreamed(shape, rounds, contiguous_tokens(len(x), n, rounds.num_parts))
    expected = block_forward_backward(DenseParts(shape, len(x)), x, dy, params)
    assert_same(block_forward_backward(parts, x, dy, params), expected)


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("n", [2, 4])
def test_what_travels_is_as_stated(name, n):
    """Elements: each word and each accumulator is one byte."""
    shape = Shape(hidden=8, ffn=16, heads=8, kv_heads=8, head_size=1)
    x, dy, params = problem(shape, 8 * n)
    rounds = enumerate_rounds(FORMS[name], n)
    tokens = zigzag_tokens(len(x), n, rounds.num_parts)
    parts = WeightStreamed(shape, rounds, tokens)
    block_forward_backward(parts, x, dy, params)
    weights = sum(value.size for value in params.values() if value.ndim == 2)
    assert parts.received["linear"] / n == received_bytes(3.0 * weights, float(n))
    kv_size = float(shape.kv_heads * shape.head_size)
    sizes = (float(len(x)), kv_size, 1.0)
    assert parts.received["attention"] / n == attention_forward_bytes(*sizes, float(n))
    assert parts.received["attention backward"] / n == attention_backward_bytes(
        *sizes, 1.0, float(n)
    )
    of_inputs = InputStreamed(shape, rounds, tokens)
    block_forward_backward(of_inputs, x, dy, params)
    per_token = input_streaming_bytes_per_token(8.0, 1.0, 1.0)
    assert of_inputs.received["linear"] / n == received_bytes(per_token * len(x), float(n))


@pytest.mark.parametrize("name", FORMS)
def test_rounds_of_the_backward_pass_of_attention(name):
    # on a ring the accumulators walk behind, on a line they turn round at the ends
    n = 6
    x, dy, params = problem(LLAMA, 4 * n)
    rounds = enumerate_rounds(FORMS[name], n)
    parts = WeightStreamed(LLAMA, rounds, zigzag_tokens(4 * n, n, rounds.num_parts))
    block_forward_backward(parts, x, dy, params)
    is_ring = name in ("ring", "folded_ring", "cycle")
    assert parts.num_exchange_rounds == (n + 1 if is_ring else 2 * n - 1)


@pytest.mark.parametrize("name", ["ring", "folded_ring", "cycle"])
def test_accumulators_walk_behind_one_to_a_link(name):
    for n in range(2, 17):
        rounds = enumerate_rounds(streams[name], n)
        behind = walk_behind(rounds)
        load = Counter((s.round, *link) for s in behind for link in links_of(rounds, s))
        assert set(load.values()) == {1}
        assert {s.round for s in behind} == set(range(2, n + 1))
        assert len(behind) == (n - 1) * rounds.num_items


def test_accumulators_cannot_walk_behind_on_a_line():
    with pytest.raises(ValueError, match="one path"):
        walk_behind(enumerate_rounds(streams["hold"], 4))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_vocabulary_split_over_members(name, n):
    """Embedding: its sums stream. Logits: inputs stream, the log-sum-exp over members is exact."""
    rng = np.random.default_rng(n)
    tokens, vocab, hidden = 4 * n, 3 * n + 1, 5
    rounds = enumerate_rounds(FORMS[name], n)
    words, targets = rng.integers(vocab, size=(2, tokens))
    table, head = rng.normal(size=(vocab, hidden)), rng.normal(size=(hidden, vocab))
    lengths = [len(part) for part in np.array_split(words, rounds.num_items)]

    one_hot = np.array_split(np.eye(vocab)[words], n, axis=1)
    looked_up = reduced_product(rounds, one_hot, np.array_split(table, n), lengths).outputs
    np.testing.assert_array_equal(np.concatenate(looked_up), table[words])

    streamed, stationary = [x.T for x in looked_up], np.array_split(head.T, n)
    logits = [part.T for part in streamed_product(rounds, stationary, streamed).outputs]
    top = np.max([part.max(axis=1) for part in logits], axis=0)
    total = sum(np.exp(part - top[:, None]).sum(axis=1) for part in logits)
    log_sum = top + np.log(total)
    dense = table[words] @ head
    np.testing.assert_allclose(log_sum, np.log(np.exp(dense).sum(axis=1)))

    hot = np.array_split(np.eye(vocab)[targets], n, axis=1)
    d_logits = [
        np.exp(part - log_sum[:, None]) - mine for part, mine in zip(logits, hot, strict=True)
    ]
    found = streamed_product_gradients(rounds, stationary, streamed, [d.T for d in d_logits])
    d_dense = np.exp(dense) / np.exp(dense).sum(axis=1, keepdims=True) - np.eye(vocab)[targets]
    np.testing.assert_allclose(
        np.concatenate(found.stationary), d_dense.T @ table[words], atol=1e-12
    )
    back = [part.T for part in found.streamed]
    np.testing.assert_allclose(np.concatenate(back), d_dense @ head.T, atol=1e-12)
    rows = reduced_product_gradients(rounds, one_hot, np.array_split(table, n), back).stationary
    expected = np.zeros_like(table)
    np.add.at(expected, words, d_dense @ head.T)
    np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-12)
