"""The line of four by hand, published counts, and the knob between stream and hold."""

import numpy as np
import pytest
from oracles.stream_legality import violations
from oracles.stream_links import counted_transfers

from meshwright.streams.forms import LineStream, enumerate_rounds, streams


def sends_of_round(name, turn):
    """Write the sends of a round on four members as source>destination:item."""
    sends = streams[name].sends(4)
    return sorted(f"{s.source}>{s.destination}:{s.item}" for s in sends if s.round == turn)


def test_line_of_four_by_hand():
    uses = [[items[0] for items in turn] for turn in streams["hold"].uses(4)]
    assert uses == [[0, 1, 2, 3], [1, 2, 1, 2], [2, 3, 0, 1], [3, 0, 3, 0]]
    assert sends_of_round("hold", 0) == ["0>1:0", "1>0:1", "1>2:1", "2>1:2", "2>3:2", "3>2:3"]
    assert sends_of_round("hold", 1) == ["1>0:2", "1>2:0", "2>1:3", "2>3:1"]
    assert sends_of_round("hold", 2) == ["1>0:3", "2>3:0"]
    # stream sends W0 to member 1 and W3 to member 2 again instead of holding them
    assert sends_of_round("stream", 2) == ["0>1:0", "1>0:3", "2>3:0", "3>2:3"]
    assert sends_of_round("stream", 3) == []


@pytest.mark.parametrize(
    ("n", "hold", "stream"), [(4, 12, 14), (8, 56, 74), (16, 240, 338), (32, 992, 1442)]
)
def test_transfers(n, hold, stream):
    # hold: each of N - 1 cuts is crossed once by each of N sub-tensors
    assert streams["hold"].transfers(n) == hold == n * (n - 1)
    # stream: (n / 2 - 1)^2 more on each side
    assert streams["stream"].transfers(n) == stream == hold + 2 * (n // 2 - 1) ** 2


def test_buffers():
    # the middle member of hold keeps about half of the tensor, that of stream two sub-tensors
    assert streams["hold"].buffers(8.0) == (4, 5)
    assert streams["hold"].buffers(9.0) == (5, 6)
    assert streams["stream"].buffers(64.0) == (2, 4)
    assert streams["stream"].buffers(4.0) == (2, 3)
    assert streams["stream"].buffers(2.0) == (1, 1)
    assert streams["ring"].buffers(8.0) == (1, 2)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 19])
def test_every_knob_of_the_line(n):
    for held in range((n + 1) // 2 + 2):
        line = LineStream(float(held))
        rounds = enumerate_rounds(line, n)
        assert violations(rounds, line.buffers(n)) == []
        assert counted_transfers(rounds) == line.transfers(n)


def test_knob_trades_transfers_for_room():
    lines = [LineStream(float(held)) for held in (0, 4, 8, 16)]
    assert [line.transfers(32) for line in lines] == [1442, 1234, 1090, 992]
    assert [line.buffers(32).resident for line in lines] == [2, 6, 10, 16]


def test_hold_never_shares_a_link_in_the_backward_pass():
    # N = 16, n = 8: each sub-tensor sent again on a side adds four rounds, the first one two
    lines = [LineStream(float(held)) for held in (0, 3, 4, 5, 6, 7)]
    assert [line.num_shared_rounds(16) for line in lines] == [14, 14, 10, 6, 2, 0]
    assert streams["hold"].num_shared_rounds(16) == 0
    assert streams["cycle"].num_shared_rounds(16) == 14


def test_ring_in_a_line_moves_almost_twice_the_line():
    # N - 1 rounds of N - 1 single hops and a wrap of N - 1: 2 * 49 against 8 * 7
    assert streams["ring"].transfers(8) == 98
    assert streams["folded_ring"].transfers(8) == 98
    assert streams["cycle"].transfers(8) == 56
    assert streams["ring"].num_hops(8) == 7
    assert streams["folded_ring"].num_hops(8) == 2


def test_cycle_halves_what_a_link_carries():
    assert streams["cycle"].num_parts(np.array([1.0, 2.0, 4.0])).tolist() == [1, 1, 2]
    assert streams["cycle"].needs_cycle
    assert not streams["stream"].needs_cycle


@pytest.mark.parametrize("n", range(1, 65))
def test_a_line_holds_the_most_copies_that_fit(n):
    """Against trying every knob: the least transfers among those whose buffers fit."""
    knobs = [LineStream(float(h)) for h in range((n + 1) // 2 + 1)]
    for fitting in range(n + 3):
        found = LineStream.filling(float(n), float(fitting))
        fit = [line for line in knobs if line.buffers(float(n)).with_incoming <= fitting]
        best = min((line.transfers(float(n)) for line in fit), default=knobs[0].transfers(float(n)))
        assert found.transfers(float(n)) == best
        assert not fit or found.buffers(float(n)).with_incoming <= fitting
