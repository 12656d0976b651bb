"""Every tensor stream: its rounds are legal, its closed forms equal them, its results are dense."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from oracles.stream_arrays import exchange, stream_layer
from oracles.stream_legality import violations
from oracles.stream_links import counted_transfers, links_of

import meshwright.streams as package
from meshwright.streams.forms import enumerate_rounds, reverse, streams

MEMBERS = (*range(1, 21), 25, 31, 32, 33, 48, 63, 64)
SHARED_MODULES = {
    "__init__",
    "registry",
    "rounds",
    "replay",
    "dense_replay",
    "attention_replay",
    "carriage",
    "policy",
    "product",
    "product_replay",
    "round_model",
    "token_order",
    "volumes",
}


def shared_rounds(rounds):
    """Return the rounds in which an item and an accumulator use one link in one direction."""
    items, accumulators = (
        {(send.round, *link) for send in each.sends for link in links_of(each, send)}
        for each in (rounds, reverse(rounds))
    )
    return {turn for turn, *_ in items & accumulators}


@pytest.mark.parametrize("name", streams)
def test_rounds_are_legal_and_held_as_stated(name):
    """Conditions 1 to 5 of the replay, and the count of transfers."""
    for n in MEMBERS:
        rounds = enumerate_rounds(streams[name], n)
        assert violations(rounds, streams[name].buffers(n)) == []
        assert counted_transfers(rounds) == streams[name].transfers(n)


@pytest.mark.parametrize("name", streams)
def test_longest_send_is_as_stated(name):
    for n in MEMBERS[1:]:
        rounds = enumerate_rounds(streams[name], n)
        longest = max(len(links_of(rounds, send)) for send in rounds.sends)
        assert longest == streams[name].num_hops(n)


@pytest.mark.parametrize("name", streams)
def test_reversed_links_carry_one_accumulator_a_round_after_the_first(name):
    for n in MEMBERS[1:12]:
        rounds = reverse(enumerate_rounds(streams[name], n))
        load = Counter((s.round, *link) for s in rounds.sends for link in links_of(rounds, s))
        assert set(load.values()) == {1}
        assert {s.round for s in rounds.sends} == set(range(1, n))


@pytest.mark.parametrize("name", streams)
def test_items_and_accumulators_meet_in_as_many_rounds_as_stated(name):
    for n in MEMBERS[1:20]:
        rounds = enumerate_rounds(streams[name], n)
        assert len(shared_rounds(rounds)) == streams[name].num_shared_rounds(n)


@pytest.mark.parametrize("name", streams)
def test_exchanges_take_as_many_rounds_as_stated(name):
    for n in MEMBERS[1:12]:
        rounds = enumerate_rounds(streams[name], n)
        ones = [np.ones(1)] * rounds.num_items
        result = exchange(rounds, ones, lambda member, item, block: block)
        assert result.num_rounds == streams[name].num_exchange_rounds(n)
        assert [float(total[0]) for total in result.sums] == [n] * rounds.num_items


@pytest.mark.parametrize("name", streams)
@pytest.mark.parametrize("n", range(1, 13))
def test_streamed_layer_equals_the_dense_one(name, n):
    """Condition 6: Y, dX, dW, and the accumulators take the room of the copies they mirror."""
    rng = np.random.default_rng(n)
    inputs, weights = rng.normal(size=(2 * n + 1, 3)), rng.normal(size=(3, 2 * n + 1))
    gradient = rng.normal(size=(2 * n + 1, 2 * n + 1))
    layer = stream_layer(enumerate_rounds(streams[name], n), inputs, weights, gradient)
    np.testing.assert_allclose(layer.output, inputs @ weights, atol=1e-12)
    np.testing.assert_allclose(layer.input_gradient, gradient @ weights.T, atol=1e-12)
    np.testing.assert_allclose(layer.weight_gradient, inputs.T @ gradient, atol=1e-12)
    assert layer.accumulators == streams[name].buffers(n)


@pytest.mark.parametrize("name", streams)
def test_scalar_equals_column(name):
    entry, members = streams[name], np.arange(1, 65.0)
    forms = (
        entry.num_parts, entry.num_hops, entry.transfers, entry.num_shared_rounds,
        entry.num_exchange_rounds,
    )  # fmt: skip
    for form in forms:
        assert np.broadcast_to(form(members), members.shape).tolist() == [
            form(float(n)) for n in members
        ]
    columns = entry.buffers(members)
    rows = [entry.buffers(float(n)) for n in members]
    assert columns.resident.tolist() == [row.resident for row in rows]
    assert columns.with_incoming.tolist() == [row.with_incoming for row in rows]


@pytest.mark.parametrize("name", streams)
def test_a_dropped_a_doubled_and_a_late_send_are_found(name):
    rounds = enumerate_rounds(streams[name], 6)
    buffers = streams[name].buffers(6)
    sends = rounds.sends

    def conditions(changed):
        broken = type(rounds)(**{**vars(rounds), "sends": changed})
        return {violation.condition for violation in violations(broken, buffers)}

    assert 2 in conditions(sends[1:])
    assert 4 in conditions([*sends, sends[0]])
    assert 2 in conditions([sends[0]._replace(round=sends[0].round + 1), *sends[1:]])


def test_every_module_registers_a_stream():
    modules = {path.stem for path in Path(package.__path__[0]).glob("*.py")}
    registered = {type(streams[name]).__module__.rpartition(".")[2] for name in streams}
    assert modules - SHARED_MODULES == registered
