"""The product of two streams on a block: legal, as large as stated, equal to the dense layer."""

from collections import Counter

import numpy as np
import pytest
from oracles.product_stream import ProductStream, enumerate_block, play_product
from oracles.stream_legality import violations
from oracles.stream_transfers import product_received_bytes, square_break_even

from meshwright.streams.forms import LineStream, streams

PRODUCTS = {
    "ring": ProductStream(streams["ring"], streams["ring"]),
    "folded_ring": ProductStream(streams["folded_ring"], streams["folded_ring"]),
    "hold": ProductStream(streams["hold"], streams["hold"]),
    "stream": ProductStream(streams["hold"], streams["stream"]),
    "knob": ProductStream(streams["hold"], LineStream(1.0)),
    "cycle": ProductStream(streams["cycle"], streams["cycle"]),
    "line and cycle": ProductStream(streams["hold"], streams["cycle"]),
}
SHAPES = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 5), (5, 1), (2, 3), (3, 2), (3, 3), (4, 2), (4, 4)]
ALL_SHAPES = [(r, n // r) for n in range(4, 65) for r in range(2, n) if n % r == 0]
"""Single rows and columns are streams, which have a kit of their own."""


def held_from(homes, sends):
    """Return for each device and item the round from which it is there, and check each send."""
    there = dict.fromkeys(homes, 0)
    for send in sorted(sends):
        assert there[send.source, send.item] <= send.first_round
        arrival = send.first_round + send.num_rounds
        assert send.is_weight or (send.destination, send.item) not in there
        there.setdefault((send.destination, send.item), arrival)
    return there


def check_uses(product, num_rows, num_columns):
    """Condition 1: each pair of a row's inputs and a column's weights once, one product a round."""
    block = enumerate_block(product, num_rows, num_columns)
    parts = block.rows.num_parts * block.columns.num_parts
    for member in np.ndindex(num_rows, num_columns):
        pairs = Counter()
        for turn in range(block.num_rounds):
            used = block.uses(turn, member)
            formed = [(i, j) for i in used.inputs for j in used.weights]
            assert len(formed) == parts
            pairs.update(formed)
        assert set(pairs.values()) == {1}
        assert len(pairs) == block.rows.num_items * block.columns.num_items
    assert block.num_rounds == product.num_rounds(num_rows, num_columns)


def check_residency(block):
    """Condition 2: what is used or sent is there; inputs come once and stay."""
    num_rows, num_columns = block.columns.num_members, block.rows.num_members
    sends = block.sends()
    members = list(np.ndindex(num_rows, num_columns))
    inputs = held_from(
        [
            ((a, block.rows.home(i)), i)
            for a in range(num_rows)
            for i in range(block.rows.num_items)
        ],
        [send for send in sends if not send.is_weight],
    )
    weights = held_from(
        [
            ((block.columns.home(j), b), j)
            for b in range(num_columns)
            for j in range(block.columns.num_items)
        ],
        [send for send in sends if send.is_weight],
    )
    for turn in range(block.num_rounds):
        for member in members:
            used = block.uses(turn, member)
            assert all(inputs[member, i] <= turn for i in used.inputs)
            assert all(weights[member, j] <= turn for j in used.weights)
    return inputs


def check_links(block, product):
    """Conditions 3 and 4: neighbours of a row or a column, one item a link, direction and round."""
    load, crossed = Counter(), Counter()
    for send in block.sends():
        same = send.source[0] == send.destination[0], send.source[1] == send.destination[1]
        assert same == ((False, True) if send.is_weight else (True, False))
        along = block.columns if send.is_weight else block.rows
        a, b = (end[0] if send.is_weight else end[1] for end in (send.source, send.destination))
        distance = abs(a - b)
        if along.is_cycle:
            distance = min(distance, along.num_members - distance)
        assert 1 <= distance <= along.num_hops
        crossed[send.is_weight] += distance / along.num_parts
        for turn in range(send.first_round, send.first_round + send.num_rounds):
            load[turn, send.source, send.destination, send.is_weight] += 1
    assert set(load.values()) <= {1}
    stated = product.transfers(block.columns.num_members, block.rows.num_members)
    assert (crossed[False], crossed[True]) == stated


def check_shape(product, num_rows, num_columns):
    """Check conditions 1 to 5 and the count of transfers on one block."""
    block = enumerate_block(product, num_rows, num_columns)
    check_uses(product, num_rows, num_columns)
    inputs = check_residency(block)
    check_links(block, product)
    foreign = Counter(member for (member, item) in inputs if block.rows.home(item) != member[1])
    kept = max(foreign.values(), default=0) / block.rows.num_parts
    assert kept == product.resident_inputs(num_columns)
    assert violations(block.columns, product.weight_buffers(num_rows)) == []
    assert violations(block.rows, product.inputs.buffers(num_columns)) == []


@pytest.mark.parametrize("name", PRODUCTS)
def test_blocks_are_legal_and_held_as_stated(name):
    for shape in SHAPES:
        check_shape(PRODUCTS[name], *shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stream", "cycle"])
def test_all_blocks_are_legal_and_held_as_stated(name):
    for shape in ALL_SHAPES:
        check_shape(PRODUCTS[name], *shape)


def check_layer(product, num_rows, num_columns):
    """Condition 6, and the elements that travel are those of the closed form."""
    block = enumerate_block(product, num_rows, num_columns)
    tokens, outs = num_rows * block.rows.num_items, num_columns * block.columns.num_items
    rng = np.random.default_rng(tokens)
    inputs, weights = rng.normal(size=(tokens, 3)), rng.normal(size=(3, outs))
    gradient = rng.normal(size=(tokens, outs))
    layer = play_product(block, inputs, weights, gradient)
    np.testing.assert_allclose(layer.output, inputs @ weights, atol=1e-12)
    np.testing.assert_allclose(layer.input_gradient, gradient @ weights.T, atol=1e-11)
    np.testing.assert_allclose(layer.weight_gradient, inputs.T @ gradient, atol=1e-11)
    sent = len(block.columns.sends) / block.columns.num_parts
    repeats = sent / max(num_rows * (num_rows - 1), 1)
    received = layer.num_received_inputs + layer.num_received_weights / max(repeats, 1.0)
    stated = product_received_bytes(
        float(inputs.size), float(weights.size), float(num_rows), float(num_columns)
    )
    assert received / (num_rows * num_columns) == pytest.approx(stated)


@pytest.mark.parametrize("name", PRODUCTS)
def test_layer_on_a_block_equals_the_dense_one(name):
    for shape in SHAPES:
        check_layer(PRODUCTS[name], *shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stream", "cycle"])
def test_layer_on_all_blocks_equals_the_dense_one(name):
    for num_rows, num_columns in ALL_SHAPES:
        if num_rows * num_columns in (*range(4, 17), 24, 36, 64):
            check_layer(PRODUCTS[name], num_rows, num_columns)


def test_transfers_on_three_by_four():
    # rows of four hold: 3 rows of 4 * 3; columns of three stream: 4 columns of 3 * 2 + 1
    product = PRODUCTS["stream"]
    assert product.transfers(3.0, 4.0) == (36, 28)
    assert product.num_rounds(3.0, 4.0) == 12
    assert product.resident_inputs(4.0) == 3
    assert product.weight_buffers(3.0) == streams["stream"].buffers(3.0)


def test_square_block_against_one_stream():
    # N = 16: exactly five times the smaller tensor, not 3.75
    assert square_break_even(16.0) == 5
    for larger, moves_less in ((3.99, True), (4.0, False), (4.01, False)):
        square = product_received_bytes(larger, 1.0, 4.0, 4.0)
        line = product_received_bytes(larger, 1.0, 16.0, 1.0)
        assert (square < line - 1e-12) == moves_less


def test_rows_alone_are_input_streaming_and_columns_alone_weight_streaming():
    assert product_received_bytes(800.0, 10.0, 1.0, 8.0) == 700
    assert product_received_bytes(10.0, 800.0, 8.0, 1.0) == 700
