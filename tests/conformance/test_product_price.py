"""What a product stream costs an operator against the enumeration of its rounds on a block.

Inputs are gathered over tp in the rounds in which weights stream over tatp: rows and columns.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from oracles.product_stream import ProductStream, enumerate_block, play_product
from oracles.stream_links import links_of
from small_problems import chip, gqa, level, model, problem, system

from meshwright.cost.communication import Collectives
from meshwright.cost.layer import PricedPiece, op_cost
from meshwright.cost.streaming import stream_links
from meshwright.sharding.strategy import PlanOptions, Streamed, StreamForm, make_strategy, stack
from meshwright.spec.model import FeedForwardSpec, LayerSpec
from meshwright.streams.forms import reverse, streams
from meshwright.streams.round_model import StreamedTensor

TOKENS, HIDDEN, FFN = 384, 64, 256
LAYER = LayerSpec(attention=gqa(4, 4), feed_forward=FeedForwardSpec(ffn_size=FFN, gated=False))
SHAPES = [(2, 2), (3, 2), (2, 4), (4, 4), (6, 2)]
COLUMN, ROW = "feed_forward.up", "feed_forward.down"
WORD, GRADIENT = 2.0, 4.0
HOLD = ProductStream(streams["hold"], streams["hold"])
CYCLES = ProductStream(streams["cycle"], streams["cycle"])


def way_of(num_rows, num_columns, *, closes=False, **fields):
    """Return a layer on a block, with rows over tp and columns over tatp."""
    kind = "torus" if closes else "mesh"
    sides = (level(size, kind, latency_s=0.0) for size in (num_columns, num_rows))
    fast = chip(matmul_flops_per_s={"bf16": 1e12}, **fields)
    form = StreamForm.AUTO if closes else StreamForm.LINE_HOLD
    plan_options = PlanOptions(streamed=Streamed.BOTH, stream_form=form)
    what = problem(model(LAYER), system(*sides, chip=fast), sequence_length=TOKENS)
    strategy = make_strategy(tp=num_columns, tatp=num_rows)
    network = what.network(plan_options.axis_order, stack([strategy]))
    (links,) = stream_links(network, plan_options)
    (rows,) = stream_links(network, plan_options, "tp")
    return PricedPiece(what, plan_options, Collectives(network, 0.0), 0, links, rows)


def only(column):
    return float(np.asarray(column).reshape(-1)[0])


def travels(way, name):
    """Return what a member owns of what travels along its row and its column [bytes]."""
    return way.streams.rows.by_op[name], way.streams.by_op[name]


def received_elements(shape):
    """Return what all members receive of X and of W when a linear layer is played on the block."""
    chance = np.random.default_rng(0)
    sizes = ((TOKENS, HIDDEN), (HIDDEN, FFN), (TOKENS, FFN))
    played = play_product(enumerate_block(HOLD, *shape), *(chance.normal(size=s) for s in sizes))
    return played.num_received_inputs, played.num_received_weights


@pytest.mark.parametrize("shape", SHAPES)
def test_a_column_layer_moves_the_elements_of_the_enumeration(shape):
    """Backward both tensors pass again, with accumulators of both gradients."""
    way, members = way_of(*shape), shape[0] * shape[1]
    of_rows, of_columns = travels(way, COLUMN)
    rows, columns = way.streams.rows.links, way.streams.links
    inputs, weights = (number / members for number in received_elements(shape))
    assert only(rows.num_sends * of_rows.forward_item_bytes) == pytest.approx(WORD * inputs)
    assert only(rows.num_sends * of_rows.backward_item_bytes) == pytest.approx(WORD * inputs)
    assert only(rows.num_sends * of_rows.backward_sum_bytes) == pytest.approx(WORD * inputs)
    assert only(columns.num_sends * of_columns.forward_bytes) == pytest.approx(WORD * weights)
    back = only(columns.num_sends * of_columns.backward_bytes)
    assert back == pytest.approx((WORD + GRADIENT) * weights)
    cost = costs_of(way)[COLUMN]
    assert only(cost.forward_link_bytes) == pytest.approx(WORD * (inputs + weights))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_layer_is_the_transposed_column_layer(shape):
    """Sums of the output come home; its gradient passes once, and nothing of the inner tensor."""
    of_rows, of_columns = travels(way_of(*shape), ROW)
    mirrored, weights = travels(way_of(*shape), COLUMN)
    assert of_rows.tensor is StreamedTensor.SUMS
    assert only(of_rows.forward_sum_bytes) == only(mirrored.backward_sum_bytes)
    assert only(of_rows.backward_item_bytes) == only(mirrored.forward_item_bytes)
    assert only(of_rows.forward_item_bytes) == only(of_rows.backward_sum_bytes) == 0.0
    assert only(of_columns.forward_bytes) == only(weights.forward_bytes)
    assert only(of_columns.backward_bytes) == only(weights.backward_bytes)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_links_and_buffers_are_those_of_the_product_stream(shape, closes):
    """A torus closes every side of more than two devices; two are neighbours both ways."""
    way, members = way_of(*shape, closes=closes), shape[0] * shape[1]
    product = CYCLES if closes else HOLD
    num_rows, num_columns = map(float, shape)
    rows, columns = way.streams.rows.links, way.streams.links
    along_rows, along_columns = product.transfers(num_rows, num_columns)
    assert only(rows.num_sends) * members == along_rows
    assert only(columns.num_sends) * members == along_columns
    assert only(columns.num_buffers) == product.weight_buffers(num_rows).with_incoming
    up = next(op for op in way.piece.ops if op.name == COLUMN)
    kept = only(way.local.rows_of(up)) / (TOKENS / members) - 1.0
    assert kept == product.resident_inputs(num_columns)


def costs_of(way):
    """Return the price of each operator, with a main memory that never waits."""
    rates = replace(way.problem.rates, memory_bytes_per_s=1e30, room_bytes=1e12)
    return {
        op.name: op_cost(op, way.local, rates, way.streams, causal=True) for op in way.piece.ops
    }


def busiest_s(columns, *travels):
    """Return the seconds of the busiest link of a column in each of its rounds.

    ``travels`` are rounds with sends, as (stream, seconds of one).
    """
    busy = Counter()
    for rounds, time_s in travels:
        for send in rounds.sends:
            busy.update({(send.round, link): time_s for link in links_of(rounds, send)})
    return [
        max([time_s for (turn, _), time_s in busy.items() if turn == outer], default=0.0)
        for outer in range(columns.num_members)
    ]


def replayed_s(shape, compute_s, row_s, rounds, column_s):
    """Time a block: a sub-tensor passes along the rows in some rounds, beside those of columns."""
    total_s = 0.0
    for outer in range(shape[0]):
        inner_s = [max(compute_s, row_s * ((outer, inner) in rounds)) for inner in range(shape[1])]
        total_s += max(sum(inner_s), column_s[outer])
    return total_s


@pytest.mark.parametrize("bandwidth", [1e9, 8e9, 2e10, 1e12])
@pytest.mark.parametrize("shape", SHAPES)
def test_seconds_are_those_of_the_rounds(shape, bandwidth):
    """Rows and columns travel side by side on links of their own, the slower one shows.

    Four devices of tp lie in a square, which is a cycle: halves go both ways.
    """
    way = with_bandwidth(way_of(*shape), bandwidth)
    num_parts = only(way.streams.rows.links.num_parts)
    rows = streams["hold" if num_parts == 1 else "cycle"]
    block = enumerate_block(ProductStream(rows, streams["hold"]), *shape)
    first = {(0, send.round) for send in block.rows.sends}
    last = {(shape[0] - 1, send.round) for send in reverse(block.rows).sends}
    for name, ahead, back in ((COLUMN, first, first | last), (ROW, last, first)):
        cost, (of_rows, of_columns) = costs_of(way)[name], travels(way, name)
        row_s = only(of_rows.forward_bytes) / (num_parts * bandwidth)
        weight_s = only(of_columns.forward_bytes) / bandwidth
        items = (block.columns, weight_s)
        computes_s = only(cost.forward_s)
        each_s = computes_s / block.num_rounds
        expected = replayed_s(shape, each_s, row_s, ahead, busiest_s(block.columns, items))
        assert computes_s + only(cost.stream_forward_s) == pytest.approx(expected)
        sums = (reverse(block.columns), weight_s * GRADIENT / WORD)
        computes_s = only(cost.input_gradient_s + cost.weight_gradient_s)
        each_s = computes_s / block.num_rounds
        expected = replayed_s(shape, each_s, row_s, back, busiest_s(block.columns, items, sums))
        assert computes_s + only(cost.stream_backward_s) == pytest.approx(expected)


def with_bandwidth(way, bandwidth):
    """Return a layer on links of one speed, all of it reached, whatever the size of a message."""
    fields = {"bandwidth_bytes_per_s": np.array([bandwidth]), "message_half_bytes": np.zeros(1)}
    changed = replace(way, links=replace(way.links, **fields))
    rows = replace(changed.streams.rows, links=replace(way.streams.rows.links, **fields))
    vars(changed)["streams"] = replace(changed.streams, rows=rows)
    return changed
