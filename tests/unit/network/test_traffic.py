"""Who sends how much to whom: bytes in and out of members, and what links of a mesh carry."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed_problems import grid_problem

from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import collective_algorithms
from meshwright.network.placement import Nesting, block_ranks
from meshwright.network.traffic import Demands, collective_pattern, joined_demands, placed
from meshwright.sharding.strategy import AXES, PlanOptions, StreamForm, make_strategy
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import enumerate_rounds, streams
from meshwright.wafer.contention import contention
from meshwright.wafer.loads import RowGroups, axis_loads
from meshwright.wafer.messages import Message
from meshwright.wafer.price import choice_network, physical_network

SHAPES = [(2, 1), (1, 2), (4, 1), (1, 3), (2, 2), (3, 2), (2, 3), (3, 3), (4, 2), (4, 4)]
INNER = [(1, 1), (1, 2), (3, 2)]
KINDS = [CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE,
         CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND]  # fmt: skip


def block_group(columns, rows):
    """Return the group of a block of a mesh."""
    spans = [Span(float(size), 1e9, 0.0, 0.0, 0.0, True, False) for size in (columns, rows)]
    return Group(tuple(spans))


def in_and_out(source, destination, num_bytes, size):
    """Return the bytes that leave each member and those that reach it."""
    return np.bincount(source, num_bytes, size), np.bincount(destination, num_bytes, size)


@pytest.mark.parametrize("shape", SHAPES)
def test_members_of_a_collective_send_and_receive_what_its_transfers_say(shape):
    group, size, seen = block_group(*shape), shape[0] * shape[1], set()
    for name in collective_algorithms:
        algorithm = collective_algorithms[name]
        if not algorithm.applies(group):
            continue
        seen.add(algorithm.kind)
        ends = [(t.source, t.destination, t.num_bytes) for t in algorithm.transfers(3.0, group)]
        expected = in_and_out(*(np.array(column) for column in zip(*ends, strict=True)), size)
        pattern = collective_pattern(name, group)
        found = in_and_out(pattern.source, pattern.destination, 3.0 * pattern.share, size)
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)
        pairs = list(zip(pattern.source, pattern.destination, pattern.level, strict=True))
        assert len(set(pairs)) == len(pairs), name
        if algorithm.kind is CollectiveKind.ALL_GATHER:
            np.testing.assert_allclose(found[1], 3.0 * (size - 1) / size, rtol=1e-9)
    assert seen >= set(KINDS)


def load_of(message, shape, inner=(1, 1), plan_options=None, sides=None):
    """Return the load of an axis in a block outside of blocks of tp, on a mesh of its own."""
    axis = message.axis
    sides = sides or tuple(a * b for a, b in zip(shape, inner, strict=True))
    asked = grid_problem(*sides)
    unused = tuple(name for name in AXES if name not in ("tp", axis))
    choice = Nesting(("tp", axis, *unused), (inner, shape, *((1, 1) for _ in unused)))
    strategy = make_strategy(**{"tp": inner[0] * inner[1], axis: shape[0] * shape[1]})
    physical = physical_network(asked)
    ranks = block_ranks(physical, asked.grid_sides, choice.axes, choice.shapes)
    groups = RowGroups(choice_network(asked, [(strategy, [choice])]))
    (load,) = axis_loads([(message, 1.0)], plan_options or PlanOptions(), groups, ranks)
    return load, ranks, physical


def is_alone_on_its_links(load, physical):
    found = contention([load], physical)
    busiest_s = found.busy_s[load.axis].max()
    assert found.slowdown == {load.axis: pytest.approx(1.0, abs=1e-12)}
    assert busiest_s == pytest.approx(load.private_s, rel=1e-9)


@pytest.mark.parametrize("num_bytes", [pytest.param(1e3, marks=pytest.mark.slow), 1e9])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_collective_alone_has_the_links_that_its_closed_form_assumes(shape, kind, num_bytes):
    """k groups that lie between each other's members share a link, and the form divides by k."""
    for inner in INNER:
        load, _, physical = load_of(Message("dp_shard", kind, num_bytes), shape, inner)
        is_alone_on_its_links(load, physical)


@pytest.mark.parametrize("form", list(StreamForm))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_alone_has_the_links_that_its_closed_form_assumes(shape, form):
    """The way back of a ring that is folded on a line takes links of the other direction."""
    plan_options = PlanOptions(stream_form=form)
    message = Message("tatp", CollectiveKind.ALL_GATHER, 1e6, overlaps=True, is_stream=True)
    for inner in INNER:
        load, _, physical = load_of(message, shape, inner, plan_options)
        is_alone_on_its_links(load, physical)


@pytest.mark.parametrize("form", list(StreamForm))
@pytest.mark.parametrize("shape", SHAPES)
def test_neighbours_in_a_stream_hand_on_what_its_rounds_say(shape, form):
    """A tensor of N bytes has items of one byte; AUTO is a cycle where the block has one.

    CYCLE on a line is no cycle: a ring whose wrap crosses all of it.
    """
    size = shape[0] * shape[1]
    message = Message("tatp", CollectiveKind.ALL_GATHER, float(size), True, True)
    load, ranks, physical = load_of(message, shape, plan_options=PlanOptions(stream_form=form))
    has_cycle = min(shape) > 1 and size % 2 == 0
    is_open = form in (StreamForm.AUTO, StreamForm.CYCLE)
    on_a_line = {StreamForm.AUTO: "stream", StreamForm.CYCLE: "ring"}.get(form, str(form))
    name = "cycle" if has_cycle and is_open else on_a_line
    rounds = enumerate_rounds(streams[name], size)
    source = np.array([send.source for send in rounds.sends])
    destination = np.array([send.destination for send in rounds.sends])
    each = np.full(len(source), size / rounds.num_items)
    expected = in_and_out(source, destination, each, size)
    demands = load.demands
    found = in_and_out(demands.source, demands.destination, demands.num_bytes, size)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(sorted(mine), sorted(theirs), rtol=1e-12)
    if name not in ("ring", "folded_ring"):
        pairs = zip(demands.source.tolist(), demands.destination.tolist(), strict=True)
        assert all(pair in physical.link_between for pair in pairs)
    assert set(demands.source.tolist()) <= set(ranks.device.reshape(-1).tolist())


def test_one_all_gather_of_a_line_by_hand():
    """Three members, 3 bytes: each link carries what lies behind it, 1 and 2 bytes each way."""
    load, _, physical = load_of(Message("dp_shard", CollectiveKind.ALL_GATHER, 3.0), (3, 1))
    found = contention([load], physical)
    between = physical.link_between
    carried = {ends: found.busy_s["dp_shard"][link] * 1e11 for ends, link in between.items()}
    expected = {(0, 1): 1.0, (1, 2): 2.0, (2, 1): 1.0, (1, 0): 2.0}
    assert carried == pytest.approx(expected)
    assert load.private_s == pytest.approx(2.0 / 1e11)


@given(st.data())
def test_demands_that_are_joined_keep_their_rows_payloads_and_names(data):
    rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=4)
    parts = [
        Demands(
            *(np.array([row[i] for row in listed], dtype=np.int64) for i in (0, 1)),
            np.arange(len(listed)) + 1.0,
            np.array([min(row[2], max(len(listed) - 1, 0)) for row in listed], dtype=np.int64),
            np.zeros(len(listed), dtype=np.int64),
            (f"part {number}",),
        )
        for number, listed in enumerate(data.draw(st.lists(rows, min_size=1, max_size=4)))
    ]
    joined = joined_demands(parts)
    first = 0
    seen: set[int] = set()
    for number, part in enumerate(parts):
        here = slice(first, first + len(part))
        np.testing.assert_array_equal(joined.source[here], part.source)
        np.testing.assert_array_equal(joined.num_bytes[here], part.num_bytes)
        names = {joined.operation_names[index] for index in joined.operation[here]}
        assert names <= {f"part {number}"}
        payloads = joined.payload[here]
        equal = part.payload[:, None] == part.payload[None, :]
        np.testing.assert_array_equal(payloads[:, None] == payloads[None, :], equal)
        assert not seen & set(payloads.tolist())
        seen |= set(payloads.tolist())
        first += len(part)
    assert len(joined) == first


def test_groups_that_follow_one_pattern_have_demands_of_their_own():
    """Two groups of two in an all-gather of 4 bytes: each member gets 2 from its partner."""
    pattern = collective_pattern("line_all_gather", block_group(2, 1))
    demands = placed(pattern, np.array([[0, 5], [7, 3]]), 4.0, "dp")
    rows = zip(demands.source.tolist(), demands.destination.tolist(), demands.num_bytes.tolist(),
               strict=True)  # fmt: skip
    assert sorted(rows) == [(0, 5, 2.0), (3, 7, 2.0), (5, 0, 2.0), (7, 3, 2.0)]
    assert len(set(demands.payload.tolist())) == 4
    assert demands.operation_names == ("dp",)
