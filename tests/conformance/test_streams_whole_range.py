"""The correctness conditions of every form, for each number of members to 64, and of the knobs.

Every knob to 24 members, a quarter of them beyond (all of them hold: two minutes).
"""

from collections import Counter

import numpy as np
import pytest
from oracles.stream_arrays import stream_layer
from oracles.stream_legality import violations
from oracles.stream_links import counted_transfers, links_of

from meshwright.streams.forms import LineStream, enumerate_rounds, reverse, streams

pytestmark = pytest.mark.slow
MEMBERS = range(2, 65)


def check_rounds(form, n):
    """Conditions 1 to 5, transfers, hops and shared rounds, forward and reversed."""
    rounds = enumerate_rounds(form, n)
    assert violations(rounds, form.buffers(n)) == []
    assert counted_transfers(rounds) == form.transfers(n)
    back = reverse(rounds)
    ahead, behind = (
        Counter((s.round, *link) for s in each.sends for link in links_of(each, s))
        for each in (rounds, back)
    )
    assert set(behind.values()) == {1}
    assert len({turn for turn, *_ in ahead.keys() & behind.keys()}) == form.num_shared_rounds(n)
    assert max(len(links_of(rounds, send)) for send in rounds.sends) == form.num_hops(n)


def check_layer(form, n):
    """Condition 6."""
    rng = np.random.default_rng(n)
    inputs, weights = rng.normal(size=(n, 2)), rng.normal(size=(2, 2 * n))
    gradient = rng.normal(size=(n, 2 * n))
    layer = stream_layer(enumerate_rounds(form, n), inputs, weights, gradient)
    np.testing.assert_allclose(layer.output, inputs @ weights, atol=1e-12)
    np.testing.assert_allclose(layer.input_gradient, gradient @ weights.T, atol=1e-11)
    np.testing.assert_allclose(layer.weight_gradient, inputs.T @ gradient, atol=1e-11)
    assert layer.accumulators == form.buffers(n)


@pytest.mark.parametrize("name", streams)
def test_every_form(name):
    for n in MEMBERS:
        check_rounds(streams[name], n)


@pytest.mark.parametrize("name", streams)
def test_every_form_is_dense(name):
    for n in MEMBERS:
        check_layer(streams[name], n)


def test_every_knob():
    for n in MEMBERS:
        step = 1 if n <= 24 else 4
        for line in (LineStream(float(held)) for held in range(1 + n % step, (n + 1) // 2, step)):
            rounds = enumerate_rounds(line, n)
            assert violations(rounds, line.buffers(n)) == []
            assert counted_transfers(rounds) == line.transfers(n)
