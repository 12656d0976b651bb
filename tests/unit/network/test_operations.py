"""Collectives and streams written down alike: rounds, items, who computes and sends what."""

import numpy as np
from grid_networks import grid
from oracles.operations import (
    Activity,
    ConcurrencyClass,
    Operation,
    collective_sends,
    stream_sends,
)

from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import collective_algorithms
from meshwright.network.tcme.moves import make_messages
from meshwright.network.tcme.optimiser import optimise
from meshwright.streams.forms import enumerate_rounds, reverse, streams


def on_a_switch(size):
    return Group((Span(float(size), 1.0, 0.0, 0.0, 1.0, False, False),))


def collective(name, size, num_bytes):
    transfers = collective_algorithms[name].transfers(num_bytes, on_a_switch(size))
    return collective_sends(transfers)


def rows(demands):
    columns = (demands.source, demands.destination, demands.num_bytes, demands.payload)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def test_a_ring_gather_sends_whole_shards_that_are_one_payload_each():
    """Four members, 8 bytes: each of 4 shards of 2 bytes makes 3 hops."""
    sends = collective("ring_all_gather", 4, 8.0)
    demands = Operation("dp", np.array([[5, 6, 10, 9]]), sends).demands()
    assert len(demands) == 12
    assert set(demands.num_bytes) == {2.0}
    messages, _ = make_messages(demands, 16)
    assert sorted(messages.holders.tolist()) == [5, 6, 9, 10]
    assert np.diff(messages.receiver_offsets).tolist() == [3, 3, 3, 3]


def test_partial_sums_are_data_of_their_own():
    sends = collective("ring_reduce_scatter", 4, 8.0)
    demands = Operation("dp", np.arange(8).reshape(2, 4), sends).demands()
    assert len(set(demands.payload.tolist())) == len(demands) == 24


def test_rounds_add_up_to_the_whole():
    sends = collective("ring_all_reduce", 5, 10.0)
    operation = Operation("tp", np.arange(5)[None], sends)
    parts = [operation.demands(turn) for turn in range(operation.num_rounds)]
    assert operation.num_rounds == 8
    assert sum(part.num_bytes.sum() for part in parts) == operation.demands().num_bytes.sum()
    assert [len(part) for part in parts] == [5] * 8


def test_an_all_to_all_has_one_receiver_for_each_payload():
    sends = collective("direct_all_to_all", 4, 4.0)
    messages, _ = make_messages(Operation("ep", np.arange(4)[None], sends).demands(), 4)
    assert len(messages.num_bytes) == 12
    assert len(messages.receivers) == len(messages.holders) == 12


def test_pipeline_sends_go_to_the_next_member():
    sends = collective("neighbour_send", 3, 6.0)
    demands = Operation("pp", np.array([[4, 8, 12]]), sends).demands()
    assert [row[:3] for row in rows(demands)] == [(4, 8, 6.0), (8, 12, 6.0)]


def test_a_stream_does_not_wait_for_another_source():
    """TATP on 4: 14 sends of a quarter; only an item sent both ways at once is one payload."""
    sends = stream_sends(enumerate_rounds(streams["stream"], 4), 4.0)
    operation = Operation("tatp", np.arange(4)[None], sends)
    demands = operation.demands()
    assert len(demands) == 14
    assert demands.num_bytes.sum() == 14.0
    first = operation.demands(0)
    assert [row[:2] for row in rows(first)] == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    assert len(set(first.payload.tolist())) == 4
    assert len(make_messages(demands, 4)[0].num_bytes) == len(set(demands.payload.tolist()))


def test_accumulators_of_a_reversed_stream_are_never_merged():
    rounds = reverse(enumerate_rounds(streams["stream"], 4))
    demands = Operation("tatp", np.arange(4)[None], stream_sends(rounds, 4.0, adds=True)).demands()
    assert len(set(demands.payload.tolist())) == len(demands) == 14


def figure_10():
    """Return DP groups {0, 2}, {1, 3} and TATP groups {0, 1}, {2, 3} on four devices."""
    stream = stream_sends(enumerate_rounds(streams["stream"], 2), 2.0)
    gradients = collective("ring_all_reduce", 2, 2.0)
    return ConcurrencyClass(
        (
            Operation("tatp", np.array([[0, 1], [2, 3]]), stream),
            Operation("dp", np.array([[0, 2], [1, 3]]), gradients),
        )
    )


def test_figure_10_says_who_computes_and_sends_what():
    """In round 0 each die multiplies its own sub-weight and sends it over; then the other's."""
    schedule = [done for done in figure_10().schedule() if done.operation == "tatp"]
    assert schedule[:4] == [
        Activity(0, "tatp", 0, (0,), ((1, 0),)),
        Activity(0, "tatp", 1, (1,), ((0, 1),)),
        Activity(0, "tatp", 2, (0,), ((3, 0),)),
        Activity(0, "tatp", 3, (1,), ((2, 1),)),
    ]
    assert [(done.device, done.computes, done.sends) for done in schedule[4:]] == [
        (0, (1,), ()),
        (1, (0,), ()),
        (2, (1,), ()),
        (3, (0,), ()),
    ]


def test_figure_10_has_a_link_for_everything_it_sends():
    """Rows carry the stream, columns the gradients: a byte, and 2 (2 - 1) / 2 * 2 bytes."""
    demands = figure_10().demands()
    assert demands.operation_names == ("tatp", "dp")
    routed = optimise(grid(2, 2), demands)
    assert (routed.default_z_s, routed.z_s, routed.certificate.gap) == (2.0, 2.0, 0.0)
