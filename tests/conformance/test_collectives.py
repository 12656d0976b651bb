"""Every registered collective algorithm: right data at the end, and closed form = replay."""

import heapq
import inspect
from collections import defaultdict, deque

import numpy as np
import pytest
from oracles.collective_data import starting_data, wanted_data
from oracles.occupied_bound import occupied_lower_bound_s
from sampled import one_in

from meshwright.collectives.bounds import lower_bound_s
from meshwright.collectives.group import Group, Span, group_size
from meshwright.collectives.registry import Algorithm, collective_algorithms

OPTIMISM = 0.02
"""How far the form of a pipeline may lie below its replay: pieces that just miss a free link."""


def span(size, kind="switch", bandwidth=1e9, latency_s=1e-6, half=1e3, adds=False):
    is_grid, closes = kind != "switch", kind != "mesh"
    return Span(float(size), bandwidth, latency_s, half, float(closes), is_grid, adds)


GROUPS = {
    "alone": Group((span(1),)),
    "alone on a mesh": Group((span(1, "mesh"), span(1, "mesh"))),
    "pair": Group((span(2),)),
    "switch of 5": Group((span(5, adds=True),)),
    "switch of 8": Group((span(8, adds=True), span(1))),
    "torus of 2": Group((span(2, "torus"),)),
    "torus of 5": Group((span(5, "torus"),)),
    "torus of 6": Group((span(6, "torus"),)),
    "mesh of 2": Group((span(2, "mesh"),)),
    "mesh of 5": Group((span(1, "mesh"), span(5, "mesh"))),
    "hosts": Group((span(4, bandwidth=8e9), span(3, latency_s=5e-6))),
    "three levels": Group((span(2, bandwidth=4e9), span(2, bandwidth=2e9), span(2))),
    "square mesh": Group((span(3, "mesh"), span(3, "mesh"))),
    "mesh 2x4": Group((span(2, "mesh"), span(4, "mesh"))),
    "mesh 4x3": Group((span(4, "mesh"), span(3, "mesh"))),
    "mesh 3x5": Group((span(3, "mesh"), span(1), span(5, "mesh"))),
    "mesh of two speeds": Group((span(2, "mesh"), span(3, "mesh", bandwidth=2e9))),
    "torus 4x3": Group((span(4, "torus"), span(3, "torus"))),
    "torus 2x2x2": Group((span(2, "torus"), span(2, "torus"), span(2, "torus"))),
    "slices": Group((span(3, "torus"), span(2, "mesh"), span(2, latency_s=9e-6))),
}
QUICK_SIZE = 8
MANY = 12_000
"""Chunks times members; what would have more is proven on the smaller groups."""


def is_small_enough(algorithm, group):
    return algorithm.num_chunks(group) * int(group_size(group)) <= MANY


def case(name, where, group):
    """Return an algorithm on a group; the larger groups are left out of the quick run."""
    marks = [pytest.mark.slow] if group_size(group) > QUICK_SIZE else []
    return pytest.param(collective_algorithms[name], group, id=f"{name}-{where}", marks=marks)


CASES = [
    found
    for name in collective_algorithms
    for found in one_in(4, [
        case(name, where, group)
        for where, group in GROUPS.items()
        if collective_algorithms[name].applies(group)
        and is_small_enough(collective_algorithms[name], group)
    ])
]  # fmt: skip
ALGORITHMS = [pytest.param(collective_algorithms[name], id=name) for name in collective_algorithms]


def size_of(group):
    return int(group_size(group))


def scaled(group, **changes):
    """Return the group with fields of all spans multiplied."""
    spans = []
    for one in group.spans:
        values = dict(vars(one))
        values.update({field: values[field] * factor for field, factor in changes.items()})
        spans.append(Span(**values))
    return Group(tuple(spans))


ARRIVAL, TRY = 0, 1


def final_data(kind, size, num_chunks, transfers):
    """Return who holds what after the transfers; what one step sends was held before it."""
    held = starting_data(kind, size, num_chunks)
    steps = defaultdict(list)
    for transfer in transfers:
        steps[transfer.step].append(transfer)
    for step in sorted(steps):
        arrivals = []
        for transfer in steps[step]:
            for chunk in transfer.chunks:
                place = (transfer.source, chunk)
                assert place in held, f"{transfer}: sends what it does not have"
                arrivals.append((transfer, chunk, held[place]))
        for transfer, chunk, content in arrivals:
            place = (transfer.destination, chunk)
            if transfer.reduces and chunk not in transfer.kept and place in held:
                assert not (held[place] & content), f"{transfer}: adds a contribution twice"
                held[place] = held[place] | content
            else:
                held[place] = content
    return held


def replay_s(group, transfers):
    """Return when the last message arrives: each lane of a sender is a private link.

    A message occupies its link for (bytes + message_half) / (bandwidth x share) and arrives a
    latency later. A channel keeps its order; among channels the earliest step that is ready goes.
    """
    listed = sorted(transfers, key=lambda transfer: transfer.step)
    missing, followers = dependencies(listed)
    queues = defaultdict(lambda: defaultdict(deque))
    for index, one in enumerate(listed):
        queues[link_of(one)][one.channel].append(index)
    free_s, now = defaultdict(float), 0.0
    events = [(0.0, TRY, link) for link in queues]
    heapq.heapify(events)
    while events:
        now, event, what = heapq.heappop(events)
        if event == ARRIVAL:
            for follower in followers[what]:
                missing[follower] -= 1
                heapq.heappush(events, (now, TRY, link_of(listed[follower])))
            continue
        heads = [queue[0] for queue in queues[what].values() if queue]
        chosen = min((index for index in heads if missing[index] == 0), default=None)
        if chosen is None or now < free_s[what]:
            continue
        sent = listed[chosen]
        queues[what][sent.channel].popleft()
        used = group.spans[sent.level]
        rate = used.bandwidth_bytes_per_s * sent.share
        free_s[what] = now + (sent.num_bytes + used.message_half_bytes) / rate
        heapq.heappush(events, (free_s[what], TRY, what))
        heapq.heappush(events, (free_s[what] + used.latency_s, ARRIVAL, chosen))
    assert not any(missing), "some messages could never start"
    return now


def link_of(transfer):
    return transfer.source, transfer.level, transfer.lane


def dependencies(listed):
    """Return how many arrivals each transfer waits for, and who waits for each arrival."""
    arrivals = defaultdict(list)
    for index, transfer in enumerate(listed):
        for chunk in transfer.chunks:
            arrivals[transfer.destination, chunk].append(index)
    missing, followers = [], defaultdict(list)
    for index, transfer in enumerate(listed):
        places = [(transfer.source, chunk) for chunk in transfer.chunks]
        needs = {i for at in places for i in arrivals[at] if listed[i].step < transfer.step}
        missing.append(len(needs))
        for earlier in needs:
            followers[earlier].append(index)
    return missing, followers


@pytest.mark.parametrize(("algorithm", "group"), CASES)
def test_every_member_ends_with_the_right_data(algorithm, group):
    num_chunks = algorithm.num_chunks(group)
    held = final_data(algorithm.kind, size_of(group), num_chunks, algorithm.transfers(1e6, group))
    wanted = wanted_data(algorithm.kind, size_of(group), num_chunks)
    assert {place: held.get(place) for place in wanted} == wanted


@pytest.mark.parametrize(("algorithm", "group"), CASES)
def test_traffic_is_what_the_messages_carry(algorithm, group):
    def added(rows):
        total = defaultdict(float)
        for source, destination, share, level in rows:
            total[int(source), int(destination), int(level)] += share
        return dict(total)

    listed = algorithm.transfers(1.0, group)
    expected = added((t.source, t.destination, t.num_bytes, t.level) for t in listed)
    assert added(algorithm.traffic(group).reshape(-1, 4)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("algorithm", "group"), CASES)
def test_messages_carry_the_bytes_of_their_chunks(algorithm, group):
    chunk_bytes = 1e6 / algorithm.num_chunks(group)
    for transfer in algorithm.transfers(1e6, group):
        assert transfer.num_bytes == pytest.approx(len(transfer.chunks) * chunk_bytes)
        assert transfer.source != transfer.destination
        assert len(set(transfer.chunks)) == len(transfer.chunks)
        assert set(transfer.kept) <= set(transfer.chunks)


@pytest.mark.parametrize(("algorithm", "group"), CASES)
def test_lanes_of_a_sender_share_its_port(algorithm, group):
    """On a switch the shares of a sender's lanes add up to at most one; a grid has one per way."""
    shares = {}
    for transfer in algorithm.transfers(1e6, group):
        if transfer.source < size_of(group):
            sender = shares.setdefault((transfer.source, transfer.level), {})
            assert sender.setdefault(transfer.lane, transfer.share) == transfer.share
    for (_, level), lanes in shares.items():
        assert sum(lanes.values()) <= (2.0 if group.spans[level].is_grid else 1.0)


@pytest.mark.parametrize(("algorithm", "group"), CASES)
@pytest.mark.parametrize("num_bytes", [1e3, 1e8])
def test_closed_form_equals_the_replay(algorithm, group, num_bytes):
    form_s = float(algorithm.time_s(num_bytes, group))
    played_s = replay_s(group, algorithm.transfers(num_bytes, group))
    below = OPTIMISM if algorithm.replay_slack else 1e-9
    assert played_s * (1 - below) <= form_s <= played_s * (1 + algorithm.replay_slack + 1e-9)


@pytest.mark.parametrize(("algorithm", "group"), CASES)
def test_a_group_of_one_costs_nothing_and_others_something(algorithm, group):
    if size_of(group) == 1:
        assert float(algorithm.time_s(1e9, group)) == 0.0
        assert not list(algorithm.transfers(1e9, group))
    else:
        assert float(algorithm.time_s(0.0, group)) > 0.0


@pytest.mark.parametrize(("algorithm", "group"), CASES)
def test_never_below_the_bound_and_monotone_in_bytes(algorithm, group):
    times = []
    for num_bytes in (0.0, 1.0, 1e3, 1e6, 1e9):
        times.append(float(algorithm.time_s(num_bytes, group)))
        bound_s = float(lower_bound_s(algorithm.kind, num_bytes, group))
        occupied_s = float(occupied_lower_bound_s(algorithm.kind, num_bytes, group))
        assert times[-1] >= occupied_s * (1 - 1e-12)
        assert occupied_s >= bound_s
    assert times == sorted(times)


@pytest.mark.parametrize(("algorithm", "group"), CASES)
def test_twice_the_bytes_over_twice_the_bandwidth_take_the_same_time(algorithm, group):
    quick = scaled(group, latency_s=0.0, message_half_bytes=0.0)
    quicker = scaled(quick, bandwidth_bytes_per_s=2.0)
    assert float(algorithm.time_s(2e6, quicker)) == float(algorithm.time_s(1e6, quick))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_number_equals_its_row_in_the_column_bit_for_bit(algorithm):
    """Groups over the same kinds of levels, as one column and one by one."""
    families = {}
    for group in GROUPS.values():
        structure = tuple((one.is_grid, one.in_network_reduction) for one in group.spans)
        families.setdefault(structure, []).append(group)
    for groups in families.values():
        all_spans = [group.spans for group in groups]
        column = Group(tuple(_stacked(spans) for spans in zip(*all_spans, strict=True)))
        times = algorithm.time_s(np.full(len(groups), 12345.0), column)
        alone = [algorithm.time_s(12345.0, group) for group in groups]
        assert times.tolist() == [float(time) for time in alone]


def _stacked(spans):
    fields = ("size", "bandwidth_bytes_per_s", "latency_s", "message_half_bytes", "closes")
    columns = {field: np.array([getattr(one, field) for one in spans]) for field in fields}
    return Span(
        **columns, is_grid=spans[0].is_grid, in_network_reduction=spans[0].in_network_reduction
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_applies_somewhere(algorithm):
    assert any(algorithm.applies(group) and size_of(group) > 1 for group in GROUPS.values())


def test_every_concrete_algorithm_is_registered():
    def concrete(base):
        below = [found for sub in base.__subclasses__() for found in concrete(sub)]
        return below if inspect.isabstract(base) else [base, *below]

    registered = {type(collective_algorithms[name]) for name in collective_algorithms}
    assert set(concrete(Algorithm)) == registered
