"""Closed forms of messages, relays and product streams against replays of their events."""

from collections import Counter

import pytest
from oracles.product_stream import ProductStream, enumerate_block
from oracles.stream_links import links_of

from meshwright.streams.forms import enumerate_rounds, reverse, streams
from meshwright.streams.round_model import (
    product_backward_s,
    product_forward_s,
    relay_bytes,
    round_link_s,
)

PRODUCT = ProductStream(streams["ring"], streams["ring"])
"""Every link is busy in every round, as the closed form of the backward pass assumes."""


def replayed_messages_s(num_messages, num_hops, occupied_s, latency_s, *, stores):
    """Send messages over a path of links, each link one message at a time, in order."""
    free_s = [0.0] * num_hops
    arrived_s = 0.0
    for _ in range(num_messages):
        there_s = 0.0
        for hop in range(num_hops):
            start_s = max(there_s, free_s[hop])
            free_s[hop] = start_s + occupied_s
            there_s = start_s + latency_s + (occupied_s if stores else 0.0)
        arrived_s = there_s + (0.0 if stores else occupied_s)
    return arrived_s


@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("num_hops", [1, 2, 7])
@pytest.mark.parametrize("num_chunks", [1, 2, 8])
def test_messages_equal_their_events(num_chunks, num_hops, stores):
    occupied_s = (16.0 / num_chunks + 3.0) / 2.0
    expected = replayed_messages_s(num_chunks, num_hops, occupied_s, 0.25, stores=stores)
    found = round_link_s(
        16.0, 2.0, 0.25, 3.0,
        num_hops=num_hops, num_chunks=num_chunks, store_and_forward=stores,
    )  # fmt: skip
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", streams)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13])
def test_relayed_bytes_are_the_most_that_a_device_moves_in_a_round(name, n):
    rounds = enumerate_rounds(streams[name], n)
    moved = Counter()
    for send in rounds.sends:
        for source, destination in links_of(rounds, send):
            moved[send.round, source] += 1
            moved[send.round, destination] += 1
    for turn, used in enumerate(rounds.uses):
        for member, items in enumerate(used):
            moved[turn, member] += len(items)
    parts = rounds.num_parts
    assert max(moved.values()) / parts == relay_bytes(1.0, float(n), float(parts))


def replayed_product_s(num_rows, num_columns, compute_s, row_s, column_s):
    """Time a block whose rounds end together, sub-weights only each c rounds.

    ``row_s`` and ``column_s`` return the seconds of a link of a row in a round, of a column in
    one of its rounds.
    """
    total_s = 0.0
    for outer in range(num_rows):
        inner_s = [max(compute_s, row_s(outer, inner)) for inner in range(num_columns)]
        total_s += max(sum(inner_s), column_s(outer))
    return total_s


def product_rounds(num_rows, num_columns):
    """Return when rows and columns of a block send items, and when accumulators."""
    block = enumerate_block(PRODUCT, num_rows, num_columns)
    return [
        ({s.round for s in each.sends}, {s.round for s in reverse(each).sends})
        for each in (block.rows, block.columns)
    ]


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (4, 4), (3, 5)])
@pytest.mark.parametrize("times", [(1.0, 0.5, 0.5), (1.0, 3.0, 2.0), (1.0, 1.5, 9.0)])
def test_product_stream_equals_its_rounds(shape, times):
    compute_s, input_s, weight_s = times
    (items, sums), (weights, weight_sums) = product_rounds(*shape)
    expected = replayed_product_s(
        *shape,
        compute_s,
        lambda outer, inner: input_s * (outer == 0 and inner in items),
        lambda outer: weight_s * (outer in weights),
    )
    size = tuple(map(float, shape))
    assert product_forward_s(*size, *times, 0.0).total_s == pytest.approx(expected)
    for ratio in (1.0, 2.0):
        expected = replayed_product_s(
            *shape,
            compute_s,
            lambda outer, inner, ratio=ratio: (
                input_s
                * (
                    (outer == 0 and inner in items)
                    + ratio * (outer == shape[0] - 1 and inner in sums)
                )
            ),
            lambda outer, ratio=ratio: (
                weight_s * ((outer in weights) + ratio * (outer in weight_sums))
            ),
        )
        found = product_backward_s(*size, *times, ratio * input_s, ratio * weight_s, 0.0)
        assert found.total_s == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (4, 4), (3, 5)])
@pytest.mark.parametrize("times", [(1.0, 0.5, 0.5), (1.0, 3.0, 2.0), (1.0, 1.5, 9.0)])
def test_row_layer_of_a_product_stream_equals_its_rounds(shape, times):
    """Sums of the output come home in the last rounds; backward its gradient passes once."""
    compute_s, row_s, weight_s = times
    (items, sums), (weights, weight_sums) = product_rounds(*shape)
    size, last = tuple(map(float, shape)), shape[0] - 1
    expected = replayed_product_s(
        *shape,
        compute_s,
        lambda outer, inner: row_s * (outer == last and inner in sums),
        lambda outer: weight_s * (outer in weights),
    )
    found = product_forward_s(*size, compute_s, 0.0, weight_s, 0.0, row_s)
    assert found.total_s == pytest.approx(expected)
    expected = replayed_product_s(
        *shape,
        compute_s,
        lambda outer, inner: row_s * (outer == 0 and inner in items),
        lambda outer: weight_s * ((outer in weights) + (outer in weight_sums)),
    )
    found = product_backward_s(*size, *times, 0.0, weight_s, 0.0)
    assert found.total_s == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (4, 2), (6, 4), (8, 2)])
@pytest.mark.parametrize("times", [(1.0, 0.5, 2.0), (1.0, 0.5, 9.0)])
def test_columns_on_cycles_share_as_many_rounds_as_their_form_says(shape, times):
    """Items and accumulators of weights on the links of a cycle, one by one."""
    columns = enumerate_rounds(streams["cycle"], shape[0])
    compute_s, _, weight_s = times
    busy = Counter()
    for each in (columns, reverse(columns)):
        for send in each.sends:
            busy.update((send.round, link) for link in links_of(each, send))
    expected = replayed_product_s(
        *shape,
        compute_s,
        lambda outer, inner: 0.0,
        lambda outer: max((weight_s * n for (turn, _), n in busy.items() if turn == outer)),
    )
    found = product_backward_s(
        *map(float, shape), compute_s, 0.0, weight_s, 0.0, weight_s, 0.0,
        streams["cycle"].num_shared_rounds(float(shape[0])),
    )  # fmt: skip
    assert found.total_s == pytest.approx(expected)
