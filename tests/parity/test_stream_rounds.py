"""The round model against timings of the enumerated streams: same answer by two routes."""

from collections import Counter, defaultdict

import pytest
from oracles.stream_arrays import walk_behind
from oracles.stream_links import links_of

from meshwright.streams.forms import LineStream, enumerate_rounds, reverse, streams
from meshwright.streams.round_model import backward_s, exchange_s, forward_s

FORMS = {name: streams[name] for name in streams} | {"knob": LineStream(2.0)}


def event_driven_forward_s(rounds, compute_s, link_s):
    """Time a pass in which everything starts as soon as it can, in the order of its rounds."""
    home = {(rounds.home(item), item): 0.0 for item in range(rounds.num_items)}
    arrivals = defaultdict(dict, {key: {0: 0.0} for key in home})
    link_free_s, done_s = defaultdict(float), [0.0] * rounds.num_members

    def there_s(member, item, turn):
        """Return when the copy that serves this round arrived."""
        copies = arrivals[member, item]
        return copies[max(first for first in copies if first <= turn)]

    for turn, used in enumerate(rounds.uses):
        for member, items in enumerate(used):
            ready_s = max(there_s(member, item, turn) for item in items)
            done_s[member] = max(done_s[member], ready_s) + compute_s
        for send in (s for s in rounds.sends if s.round == turn):
            links = links_of(rounds, send)
            start_s = max(
                there_s(send.source, send.item, turn), *(link_free_s[link] for link in links), 0.0
            )
            link_free_s.update(dict.fromkeys(links, start_s + link_s))
            arrivals[send.destination, send.item][turn + 1] = start_s + link_s
    return max(done_s)


def synchronous_backward_s(rounds, compute_s, link_s, accumulator_s):
    """Time rounds that end together, each with its busiest link."""
    busy = Counter()
    for each, item_s in ((rounds, link_s), (reverse(rounds), accumulator_s)):
        for send in each.sends:
            for link in links_of(each, send):
                busy[send.round, link] += item_s
    total_s = 0.0
    for turn in range(rounds.num_members):
        links_s = [time_s for (when, _), time_s in busy.items() if when == turn]
        total_s += max([compute_s, *links_s])
    return total_s


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("link_s", [0.5, 1.0, 3.0])
def test_forward_equals_the_event_driven_stream(name, link_s):
    for n in (1, 2, 3, 4, 5, 8, 9, 12):
        rounds = enumerate_rounds(FORMS[name], n)
        expected = event_driven_forward_s(rounds, 1.0, link_s)
        assert forward_s(float(n), 1.0, link_s, 0.0).total_s == pytest.approx(expected)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("link_s", "accumulator_s"), [(0.6, 0.6), (1.5, 3.0), (3.0, 1.5)])
def test_backward_equals_the_synchronous_rounds(name, link_s, accumulator_s):
    for n in (1, 2, 3, 4, 5, 8, 9, 12):
        rounds = enumerate_rounds(FORMS[name], n)
        expected = synchronous_backward_s(rounds, 1.0, link_s, accumulator_s)
        shared = FORMS[name].num_shared_rounds(float(n))
        found = backward_s(float(n), 1.0, link_s, accumulator_s, 0.0, shared)
        assert found.total_s == pytest.approx(expected)


def synchronous_exchange_s(rounds, compute_s, link_s, accumulator_s, *, walks):
    """Time rounds that end together: items out, and sums behind them or on the reversed way."""
    n = rounds.num_members
    back = walk_behind(rounds) if walks else reverse(rounds).sends
    late = 0 if walks else n - 1
    busy = Counter()
    for sends, shift, item_s in ((rounds.sends, 0, link_s), (back, late, accumulator_s)):
        for send in sends:
            for link in links_of(rounds, send):
                busy[send.round + shift, link] += item_s
    total_s = 0.0
    for turn in range(1 + max((when for when, _ in busy), default=0)):
        links_s = [time_s for (when, _), time_s in busy.items() if when == turn]
        total_s += max([compute_s if turn < n else 0.0, *links_s])
    return total_s


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("link_s", "accumulator_s"), [(0.6, 0.6), (1.5, 3.0), (3.0, 1.5)])
def test_exchange_equals_the_synchronous_rounds(name, link_s, accumulator_s):
    for n in (2, 3, 4, 5, 8, 9, 12):
        form = FORMS[name]
        rounds = enumerate_rounds(form, n)
        walks = form.num_exchange_rounds(n) == n + 1
        expected = synchronous_exchange_s(rounds, 1.0, link_s, accumulator_s, walks=walks)
        found = exchange_s(
            float(n), 1.0, link_s, accumulator_s, 0.0, form.num_exchange_rounds(float(n))
        )
        assert found.total_s == pytest.approx(expected)


def test_an_exchange_of_one_member_computes_only():
    found = exchange_s(1.0, 2.0, 5.0, 7.0, 0.0, 1.0)
    assert (found.total_s, found.exposed_stream_s) == (2.0, 0.0)
