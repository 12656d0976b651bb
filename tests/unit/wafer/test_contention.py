"""Axes that share links: what adds, who waits, what is routed anew, and the certificate."""

from dataclasses import replace

import numpy as np
import pytest
from grid_networks import demands_of, grid
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base.errors import InfeasibleError
from meshwright.collectives.group import Group, Span
from meshwright.network.faults import SharedWork
from meshwright.network.placement import block_ranks
from meshwright.network.traffic import collective_pattern
from meshwright.wafer.contention import contention
from meshwright.wafer.loads import AxisLoad, Sending, placed_demands
from meshwright.wafer.passes import PipelineShape, StagePass, least_slowdown
from meshwright.wafer.teams import Teams, slowest_devices, teams_of, unit_load

ON = {"overlaps": True}


def load(axis, rows, private_s=None, *, overlaps=False, yields=False, **fields):
    """Return a load; alone on links of one byte a second its busiest message takes its bytes."""
    demands = demands_of([(a, b, size, number) for number, (a, b, size) in enumerate(rows)])
    longest_s = max(size for *_, size in rows) if private_s is None else private_s
    sent = Sending(demands, 1.0, np.array([longest_s]), **fields)
    return AxisLoad(axis, [sent], overlaps, yields)


def beside(compute_s, data_share=1.0):
    """Return passes with computation in the backward one."""
    return {"passes": (StagePass(), StagePass(compute_s, data_share))}


def test_an_axis_alone_is_not_slowed():
    found = contention([load("tp", [(0, 1, 3.0), (1, 0, 3.0)])], grid(1, 2))
    assert found.slowdown == {"tp": 1.0}
    assert found.hottest.tolist() == [3.0, 3.0]
    assert (found.num_routes, found.num_rerouted, found.certificate) == (2, 0, None)


def test_messages_of_one_axis_that_share_a_link_add():
    """0 -> 2 and 1 -> 2 on a line: the link 1 -> 2 carries both."""
    found = contention([load("dp", [(0, 2, 1.0), (1, 2, 1.0)])], grid(1, 3))
    assert found.slowdown == {"dp": 2.0}


def test_the_least_slowdown_is_that_of_the_link_that_all_messages_share():
    """Per private second one link is busy for 2 s and 3 s, another one for 4 s and 1 s: both
    messages together keep the first one busy twice as long as they take, and no link longer."""
    messages = [
        (np.array([4.0, 8.0]), np.array([2.0, 1.0])),
        (np.array([6.0, 2.0]), np.array([1.0, 2.0])),
    ]
    assert least_slowdown(messages) == 2.0
    assert least_slowdown(messages[:1]) == 4.0
    assert least_slowdown([]) == 1.0


@given(st.lists(st.tuples(*[st.floats(0.0, 5.0)] * 3, st.floats(0.0, 1.0)), min_size=1, max_size=5))
def test_no_sum_of_messages_is_slowed_down_less(rows):
    table = np.array(rows)
    busy, private, shares = table[:, :2], table[:, 2:3] + 0.1, table[:, 3]
    least = least_slowdown(list(zip(busy, private, strict=True)))
    shared_s, private_s = (shares @ busy).max(), (shares @ private).max()
    assert max(shared_s, private_s) >= least * private_s * (1 - 1e-12)


def test_streams_are_slowed_down_as_much_as_alone_on_their_links():
    """Two sends of 1 s on one link of 3 s of computation: hidden, and yet slowed down twofold."""
    rows = [(0, 2, 1.0), (1, 2, 1.0)]
    streams = load("tatp", rows, rounds="op", beside_s=3.0, is_stream=True, **ON)
    found = contention([streams], grid(1, 3), **beside(3.0))
    assert found.slowdown == found.own_slowdown == {"tatp": 2.0}


@pytest.mark.parametrize(("data_share", "slowdown"), [(1.0, 1.75), (0.5, 1.625)])
def test_streams_and_gradients_share_a_link_while_both_are_in_flight(data_share, slowdown):
    """Rounds of 3 s send for 2 s, beside gradients for 4 s. Of those 2 s are left for gradients, so
    1 s of them is in flight for half of the pass: 3.5 s, or 3.25 s if every other pass has any."""
    streams = load("tatp", [(0, 1, 2.0)], rounds="op", beside_s=3.0, **ON)
    gradients = load("dp_shard*cp", [(0, 1, 1.0)], yields=True, **ON)
    found = contention([streams, gradients], grid(1, 2), **beside(3.0, data_share))
    assert found.slowdown == {"tatp": pytest.approx(slowdown), "dp_shard*cp": 1.5}
    assert found.own_slowdown == {"tatp": 1.0, "dp_shard*cp": 1.0}
    assert found.hottest.max() == 3.0


def test_gradients_that_outlast_a_pass_have_the_links_to_themselves_then():
    """Rounds that send for all of their 2 s take 4 s beside gradients, 2 s of which fit; 3 s of
    gradients end 1 s after the pass, whose computation of 2 s they overlap with."""
    streams = load("tatp", [(0, 1, 2.0)], rounds="op", beside_s=2.0, **ON)
    gradients = load("dp_shard*cp", [(0, 1, 3.0)], yields=True, **ON)
    found = contention([streams, gradients], grid(1, 2), **beside(2.0))
    assert found.slowdown == {"tatp": 2.0, "dp_shard*cp": pytest.approx((2.0 + 1.0) / 3.0)}


def test_replicas_of_unequal_pace_meet_by_chance_and_the_last_one_counts():
    """Both send 2 s over one link in a pass; the slow one computes 8 s, the other 4 s. In step they
    take 4 s each. Apart, each meets the other for 2 s in 12: 2 (1 + 1/6) s, after 8 s and 4 s."""
    demands = [(0, 2, 2.0), (1, 2, 2.0)]
    network = grid(1, 3)
    together = contention([load("tp", demands)], network, **beside(8.0))
    assert together.slowdown == {"tp": 2.0}
    teams = Teams(np.array([1, 0, 0]), np.array([0.5, 1.0]), np.array([1, 0]))
    apart = contention([load("tp", demands)], network, **beside(8.0), teams=teams)
    assert apart.slowdown == {"tp": pytest.approx(1 + 1 / 6)}


def test_replicas_with_slow_links_of_different_axes_wait_for_each_other_once():
    """Operators of 2 s, whose streams take 1 s, follow messages of 1 s. One replica has a slow link
    for its messages, 3 s more; the other one for its streams, 4 s in place of 1 s, 2 s more than
    they are hidden. The step waits for the first one, 3 s, not 5 s: streams of 2 s are hidden."""
    network = grid(1, 4)
    slow = {(0, 1): 0.25, (3, 2): 0.25}
    pairs = zip(network.source.tolist(), network.target.tolist(), strict=True)
    network = replace(network, bandwidth_bytes_per_s=np.array([slow.get(p, 1.0) for p in pairs]))
    messages = load("tp", [(0, 1, 1.0), (2, 3, 1.0)])
    streams = load("tatp", [(1, 0, 1.0), (3, 2, 1.0)], rounds="op", beside_s=2.0, **ON)
    loads = [messages, streams]
    together = contention(loads, network, **beside(2.0)).slowdown
    assert together == {"tp": pytest.approx(4.0), "tatp": pytest.approx(4.0)}
    teams = Teams(np.array([0, 0, 1, 1]), np.ones(2), np.array([0, 1]))
    apart = contention(loads, network, **beside(2.0), teams=teams).slowdown
    assert apart == {"tp": pytest.approx(4.0), "tatp": 2.0}


def test_a_slow_stage_counts_in_each_micro_batch_and_others_in_the_bubble():
    """Stages of 3 s and 1 s: 4 micro-batches of 3 s and 2 s of the bubble, as 5 passes of 2.8 s."""
    shape = PipelineShape(4.0, 2.0, 1.0)
    assert shape.effective(3.0, 2.0) == pytest.approx(2.8)
    network = grid(1, 4)
    network = replace(network, bandwidth_bytes_per_s=np.where(network.source == 0, 1 / 3.0, 1.0))
    teams = Teams(np.array([1, 1, 0, 0]), np.ones(2), np.array([-1, 0]))
    sends = [load("tp", [(0, 1, 1.0), (2, 3, 1.0)])]
    found = contention(sends, network, **beside(0.0), teams=teams, shape=shape)
    assert found.slowdown == {"tp": pytest.approx(2.8)}


def test_axes_of_the_same_rounds_share_the_links_that_both_use():
    """Of three sub-weights two are sent, on 0 -> 1 for 3 s each; inputs go with the first one for
    3 s: on the same link two rounds take 6 + 3 s in place of 3 + 3, on another one 6 s."""
    streams = {"rounds": "op", **ON}
    weights = load("tatp", [(0, 1, 6.0)], until=2 / 3, **streams)
    for ends, slowdown in (((0, 1), 1.5), ((0, 2), 1.0)):
        inputs = load("tp", [(*ends, 3.0)], until=1 / 3, **streams)
        found = contention([weights, inputs], grid(2, 2)).slowdown
        assert found["tatp"] == pytest.approx(slowdown)


def test_items_and_sums_of_a_stream_have_slow_links_of_their_own():
    """0 -> 1 is at a third. Items cross it in the first of two rounds, sums its other direction at
    full rate in the second: 3 + 1 s in place of 1 + 1."""
    network = grid(1, 2)
    network = replace(network, bandwidth_bytes_per_s=np.where(network.source == 0, 1.0 / 3.0, 1.0))
    sent = [
        Sending(demands_of([(*ends, 1.0, 0)]), 1.0, np.ones(1), rounds="op", since=since,
                until=since + 0.5)
        for ends, since in (((0, 1), 0.0), ((1, 0), 0.5))
    ]  # fmt: skip
    found = contention([AxisLoad("tatp", sent, True)], network)
    assert found.slowdown == {"tatp": pytest.approx(2.0)}


def test_messages_of_other_rounds_come_one_after_the_other():
    """On a line 0 and 1 send to 2, then 2 and 1 send to 0: each time a link carries two messages,
    another one. In the same rounds that is 2 s, one after the other 4 s where 2 s are private."""
    there = demands_of([(0, 2, 1.0, 0), (1, 2, 1.0, 1)])
    back = demands_of([(2, 0, 1.0, 0), (1, 0, 1.0, 1)])
    # Pairs of members that send in the one and in the other, on links of their own.
    ways = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    for names, slowdown in ((("a", "b"), 2.0), (("", ""), 2.0), (("a", "a"), 2.0)):
        sent = [
            Sending(one, 1.0, way, rounds=name)
            for name, one, way in zip(names, (there, back), ways, strict=True)
        ]
        found = contention([AxisLoad("tatp", sent, True)], grid(1, 3))
        assert found.slowdown == {"tatp": slowdown}


def test_starts_of_messages_keep_links_but_are_not_slowed_by_shared_ones():
    """Rounds of 1 s and a start of 1 byte, two on one link: 4 s are 2 s of starts and 2 s of bytes
    in place of 1 s and 1 s."""
    demands = demands_of([(0, 1, 1.0, 0), (0, 1, 1.0, 1)])
    sent = Sending(demands, 1.0, np.ones(1), rounds="op", start_bytes=1.0, start_s=1.0)
    found = contention([AxisLoad("tatp", [sent], True)], grid(1, 2))
    assert found.slowdown == {"tatp": 3.0}


def test_two_axes_that_yield_wait_for_each_other():
    loads = [load(axis, [(0, 1, 1.0)], yields=True, **ON) for axis in ("dp_shard*cp", "pp")]
    assert contention(loads, grid(1, 2)).slowdown["pp"] == 2.0


def test_collectives_that_computation_waits_for_share_links_with_gradients():
    """5 s of tp take 10 s beside gradients, which need 1 s of the 5 that are left: in flight for a
    fifth of the pass, 6 s."""
    waited = load("tp", [(0, 1, 5.0)])
    gradients = load("dp_shard*cp", [(0, 1, 1.0)], yields=True, **ON)
    found = contention([waited, gradients], grid(1, 2), **beside(0.0))
    assert found.slowdown["tp"] == pytest.approx(1.2)


def test_gradients_over_slow_links_are_slow_even_alone():
    """Their exposed part is bounded by that time, not by the time on whole links."""
    gradients = load("dp_shard*cp", [(0, 1, 3.0)], yields=True, **ON)
    found = contention([gradients], grid(1, 2).slowed([(0, 1, 0.1)]), **beside(100.0))
    assert found.own_slowdown == {"dp_shard*cp": 10.0}
    assert found.slowdown == {"dp_shard*cp": pytest.approx(10.0)}


def test_only_links_that_an_axis_uses_slow_it():
    """Streams on 0 -> 1; the gradients of the other row use 2 -> 3."""
    streams = load("tatp", [(0, 1, 9.0)], **ON)
    gradients = load("dp_shard*cp", [(2, 3, 1.0)], yields=True, **ON)
    assert contention([streams, gradients], grid(2, 2), **beside(9.0)).slowdown == {
        "tatp": 1.0, "dp_shard*cp": 1.0
    }  # fmt: skip


def test_a_dead_link_makes_messages_leave_the_dimension_order_and_share():
    """2x2 without the wire 0-1: 0 -> 1 takes 0 2 3 1, and shares 0 -> 2 with another message."""
    network = grid(2, 2).without((), [(0, 1)])
    found = contention([load("dp", [(0, 1, 1.0), (0, 2, 1.0)])], network)
    assert found.num_rerouted == 1
    assert found.slowdown == {"dp": 2.0}
    busy = {ends: found.busy_s["dp"][link] for ends, link in network.link_between.items()}
    assert busy[0, 2] == 2.0
    assert busy[2, 3] == busy[3, 1] == 1.0


def test_a_slow_link_is_busy_for_as_many_more_seconds():
    """A line of three at 1 B/s, the second wire at a quarter: 3 bytes take 3 / 0.25 s on it."""
    network = grid(1, 3).slowed([(2, 1, 0.25)])
    found = contention([load("dp", [(0, 2, 3.0)])], network)
    busy = {ends: found.busy_s["dp"][link] for ends, link in network.link_between.items()}
    assert busy == {(0, 1): 3.0, (1, 0): 0.0, (1, 2): 12.0, (2, 1): 0.0}
    assert found.slowdown == {"dp": 4.0}


def test_routing_leaves_a_slow_link_for_a_longer_way():
    """2x2, its upper wire at a tenth: 1 byte takes 10 s on it, 1 s on each of three others."""
    network = grid(2, 2).slowed([(0, 1, 0.1)])
    found = contention([load("dp", [(0, 1, 1.0)], **ON)], network, is_routed=True)
    assert found.slowdown == {"dp": 1.0}
    assert found.detour == {"dp": 3.0}


def test_a_device_that_cannot_be_reached_is_told():
    network = grid(1, 2).without((), [(0, 1)])
    with pytest.raises(InfeasibleError, match="device 1 cannot be reached from device 0"):
        contention([load("dp", [(0, 1, 1.0)])], network)


def test_routing_relieves_the_busiest_link_and_proves_it():
    """0 -> 3 and 0 -> 1 on 2x2 share 0 -> 1 in dimension order; one of them goes the other way."""
    loads = [load("tatp", [(0, 3, 1.0)], **ON),
             load("dp_shard*cp", [(0, 1, 1.0)], yields=True, **ON)]  # fmt: skip
    assert contention(loads, grid(2, 2), **beside(0.0)).slowdown["tatp"] == 2.0
    found = contention(loads, grid(2, 2), is_routed=True, **beside(0.0))
    assert found.slowdown["tatp"] == 1.0
    assert found.num_rerouted == 1
    assert (found.certificate.z_s, found.certificate.bound_s) == (1.0, 1.0)


def test_default_routes_that_a_bound_proves_best_stay():
    found = contention([load("tatp", [(0, 1, 2.0)], **ON)], grid(1, 2), is_routed=True)
    assert found.num_rerouted == 0
    assert found.certificate.gap == 0.0
    assert found.certificate.z_s == 2.0


@st.composite
def windows(draw):
    """Return some axes on a small grid, all beside computation."""
    rows, columns = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    device = st.integers(0, rows * columns - 1)
    message = st.tuples(device, device, st.sampled_from([1.0, 2.0, 0.5]))
    loads = [
        load(axis, draw(st.lists(message, min_size=1, max_size=6)), yields=axis != "tatp", **ON)
        for axis in ("tatp", "dp_shard*cp", "pp")
    ]
    return grid(rows, columns), loads


@settings(max_examples=15)
@given(windows())
def test_routing_is_never_worse_and_never_below_its_bound(case):
    network, loads = case
    default = contention(loads, network)
    routed = contention(loads, network, is_routed=True)
    assert routed.hottest.max() <= default.hottest.max() * (1 + 1e-9)
    proof = routed.certificate
    assert proof.z_s == pytest.approx(routed.hottest.max())
    assert proof.bound_s <= proof.z_s * (1 + 1e-9)
    for found in (default, routed):
        assert min(found.slowdown.values()) >= 1.0
        assert found.num_rerouted <= found.num_routes == sum(len(one.demands) for one in loads)
        total = sum(found.busy_s.values(), np.zeros(network.num_links))
        np.testing.assert_allclose(found.hottest, total)


@given(windows())
def test_more_messages_never_make_an_axis_faster(case):
    network, loads = case
    fewer = contention(loads[:2], network).slowdown
    more = contention(loads, network).slowdown
    assert all(more[axis] >= fewer[axis] - 1e-12 for axis in fewer)


def test_what_groups_send_does_not_depend_on_which_question_came_first():
    """dp and cp change places beside tp: its groups are the same, listed in another order."""
    network, sides = grid(4, 4), (4, 4)
    blocks = {"tp": (2, 1), "dp_shard": (2, 1), "cp": (1, 4)}
    found = []
    for order in (("tp", "dp_shard", "cp"), ("tp", "cp", "dp_shard")):
        ranks = block_ranks(network, sides, order, [blocks[axis] for axis in order])
        assert ranks is not None
        group = Group((Span(2.0, 1.0, 0.0, 0.0, 0.0, is_grid=True, in_network_reduction=False),))
        pattern = collective_pattern("line_all_gather", group)
        placed_demands.cache_clear()
        found.append(
            (
                ranks.place("tp"),
                ranks.groups("tp"),
                placed_demands(pattern, "tp", ranks.place("tp")),
            )
        )
    (place, groups, demands), (other, others, same) = found
    assert place == other
    assert not np.array_equal(groups, others)
    assert np.array_equal(demands.source, same.source)
    assert np.array_equal(demands.destination, same.destination)


def test_the_slowest_replica_alone_keeps_links_busy_for_the_least_slowdown():
    """Rows of a 2x3 grid are replicas; a device of the second one has 0.5 of the speed. It sends
    over one hop for 3 s and over two for 1 s: a link of 4 s, and one of 1 s."""
    network = grid(2, 3)
    ranks = block_ranks(network, (3, 2), ("tatp", "dp_shard"), [(3, 1), (1, 2)])
    assert ranks is not None
    speed = np.ones((3, 2))
    speed[1, 1] = 0.5
    work = SharedWork(np.array([1, 1]), np.ones((3, 2)), speed, 1)
    slowest, teams = slowest_devices(ranks, work, network), teams_of(ranks, work, network)
    assert slowest.tolist() == [False] * 3 + [True] * 3
    unit = unit_load(network, demands_of([(0, 1, 7.0, 0), (3, 4, 3.0, 1), (3, 5, 1.0, 2)]))
    sent_s = unit.sent_by_s(slowest, network)
    assert sorted(sent_s[sent_s > 0]) == [1.0, 4.0]
    by_team_s, _ = unit.by_team(teams, network)
    np.testing.assert_array_equal(sent_s, by_team_s[teams.pace == 1.0].sum(axis=0))
    np.testing.assert_array_equal(sent_s, unit.of_slowest_s(teams, network))
