"""The policy by hand on transformer blocks, and against every chain of transfers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.stream_transfers import (
    OperatorPrices,
    attention_bytes,
    cheapest_transfers,
    input_streaming_bytes_per_token,
    linear_bytes,
    received_bytes,
)

from meshwright.streams.round_model import StreamedTensor

prices = st.floats(0.0, 10.0) | st.just(np.inf)
operators = st.builds(OperatorPrices, prices, prices, prices, prices, prices)
LAYOUTS = {  # before and after: tokens or columns
    StreamedTensor.WEIGHTS: ("tokens", "tokens"),
    StreamedTensor.INPUTS: ("tokens", "columns"),
    StreamedTensor.SUMS: ("columns", "tokens"),
    StreamedTensor.NOTHING: ("columns", "columns"),
}


def price_of(chain, transfers, reshards):
    """Return the price of a chain of transfers, infinite where its layouts do not meet."""
    total, layout = 0.0, "tokens"
    for operator, transfer, changes in zip(chain, transfers, reshards, strict=True):
        before, after = LAYOUTS[transfer]
        if before != layout:
            return np.inf
        columns = (operator.weights, operator.inputs, operator.sums, operator.nothing)
        total += columns[transfer] + (operator.reshard if changes else 0.0)
        other = {"tokens": "columns", "columns": "tokens"}[after]
        layout = other if changes else after
    return total if layout == "tokens" else np.inf


@given(st.lists(operators, min_size=1, max_size=4))
def test_policy_is_the_cheapest_of_all_chains(chain):
    ways = itertools.product(
        itertools.product(StreamedTensor, repeat=len(chain)),
        itertools.product((False, True), repeat=len(chain)),
    )
    best = min(price_of(chain, *way) for way in ways)
    found = cheapest_transfers(chain)
    assert found.total == pytest.approx(best)
    if np.isfinite(best):
        transfers = [StreamedTensor(int(each)) for each in found.transfers]
        assert price_of(chain, transfers, found.reshards) == pytest.approx(best)


def mlp(tokens, h=12288.0, n=8.0):
    return [linear_bytes(tokens, h, 4 * h, n), linear_bytes(tokens, 4 * h, h, n)]


def attention(tokens, h=12288.0, kv=12288.0, n=8.0):
    return [
        linear_bytes(tokens, h, h + 2 * kv, n),
        attention_bytes(tokens, h, kv, n),
        linear_bytes(tokens, h, h, n),
    ]


def test_mlp_streams_its_smaller_side():
    # weights 8 h^2 (2 e + e_acc) = 48 h^2 against inputs 6 S h and sums 4 S h: S = 4.8 h
    assert cheapest_transfers(mlp(4.7 * 12288)).transfers == [
        StreamedTensor.INPUTS,
        StreamedTensor.SUMS,
    ]
    assert cheapest_transfers(mlp(4.9 * 12288)).transfers == [StreamedTensor.WEIGHTS] * 2


@pytest.mark.parametrize(
    ("share", "transfers", "reshards"),
    [
        (
            1.6,
            [StreamedTensor.INPUTS, StreamedTensor.NOTHING, StreamedTensor.SUMS],
            [False, False, False],
        ),
        (
            1.8,
            [StreamedTensor.INPUTS, StreamedTensor.NOTHING, StreamedTensor.WEIGHTS],
            [False, True, False],
        ),
        (
            3.9,
            [StreamedTensor.INPUTS, StreamedTensor.NOTHING, StreamedTensor.WEIGHTS],
            [False, True, False],
        ),
        (
            4.1,
            [StreamedTensor.WEIGHTS, StreamedTensor.NOTHING, StreamedTensor.WEIGHTS],
            [True, True, False],
        ),
    ],
)
def test_attention_of_whole_heads_reshards_rather_than_streams_keys(share, transfers, reshards):
    """In units of h^2 with S = share * h on 8 members, an all-to-all 4 S h / 8 for each width h.

    Inputs and sums 10 share; then weights of the output layer 6.5 share + 6: equal at 1.71; then
    all weights 2 share + 24: equal at 4. Keys and values would cost 12 share.
    """
    found = cheapest_transfers(attention(share * 12288))
    assert (found.transfers, found.reshards) == (transfers, reshards)


def test_attention_of_shared_heads_streams_keys_among_few_members():
    # h_kv = h / 8 on 4: weights 13.5 h^2 and keys 1.5 S h, against 10 S h: S = 1.59 h
    h = 8192.0
    few, many = (attention(share * h, h, h / 8, 4.0) for share in (1.55, 1.65))
    pair = [StreamedTensor.INPUTS, StreamedTensor.NOTHING, StreamedTensor.SUMS]
    assert cheapest_transfers(few).transfers == pair
    found = cheapest_transfers(many)
    assert (found.transfers, found.reshards) == ([StreamedTensor.WEIGHTS] * 3, [False] * 3)


def test_a_block_of_inputs_moves_what_the_replay_counted():
    total = cheapest_transfers(attention(2048.0)).total + cheapest_transfers(mlp(2048.0)).total
    per_token = input_streaming_bytes_per_token(12288.0, 2.0, 2.0)
    assert total == received_bytes(2048 * per_token, 8.0)


def test_a_reshard_is_paid_where_a_partner_is_missing():
    # one layer alone: inputs 2 and a reshard 1 against weights 4
    alone = OperatorPrices(weights=4.0, inputs=2.0, sums=9.0, reshard=1.0)
    found = cheapest_transfers([alone])
    assert (found.total, found.transfers, found.reshards) == (3, [StreamedTensor.INPUTS], [True])


def test_rows_of_columns_are_chosen_one_by_one():
    tokens = np.array([2048.0, 1e5])
    found = cheapest_transfers(mlp(tokens))
    rows = [cheapest_transfers(mlp(count)) for count in tokens]
    assert found.total.tolist() == [row.total for row in rows]
    assert [each.tolist() for each in found.transfers] == [[1, 0], [2, 0]]
