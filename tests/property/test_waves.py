"""Waves on blocks of all shapes: nothing sent before it is there, and links loaded as promised."""

from collections import defaultdict
from fractions import Fraction

import pytest

from meshwright.collectives.block import corner_plan, even_plan, gather_messages, hamiltonian_cycle

SIDES = range(2, 8)
EVEN = [(even_plan, inner, outer) for inner in SIDES for outer in SIDES]
CORNER = [
    (corner_plan, inner, outer)
    for inner in SIDES
    for outer in SIDES
    if inner != outer and min(inner, outer) >= 3
]


@pytest.mark.parametrize(("plan", "inner", "outer"), EVEN + CORNER)
def test_every_piece_reaches_everybody_once(plan, inner, outer):
    members = range(inner * outer)
    held = [{(rank, piece) for piece in range(plan(inner, outer).num_pieces)} for rank in members]
    every = set().union(*held)
    phases = defaultdict(list)
    for message in gather_messages(plan(inner, outer), inner, outer):
        phases[message.phase].append(message)
    for phase in sorted(phases):
        for message in phases[phase]:
            assert held[message.source].issuperset(message.pieces)
        for message in phases[phase]:
            assert held[message.destination].isdisjoint(message.pieces)
            held[message.destination].update(message.pieces)
    assert all(pieces == every for pieces in held)


def busiest(plan, inner, outer):
    """Return the shards on the busiest link of each phase."""
    most = defaultdict(int)
    for message in gather_messages(plan, inner, outer):
        most[message.phase] = max(most[message.phase], len(message.pieces))
    return [Fraction(pieces, plan.num_pieces) for pieces in most.values()]


@pytest.mark.parametrize(("plan", "inner", "outer"), CORNER)
def test_corner_waves_take_the_bytes_of_the_bound(plan, inner, outer):
    """(N - 1)/2 shards through each link of a corner, in R + C - 1 messages."""
    phases = busiest(plan(inner, outer), inner, outer)
    assert len(phases) == inner + outer - 1
    assert sum(phases) == Fraction(inner * outer - 1, 2)


@pytest.mark.parametrize(("plan", "inner", "outer"), EVEN)
def test_even_waves_take_as_many_messages_as_hops(plan, inner, outer):
    short, long = sorted((inner, outer))
    edges = 2 * inner * outer - inner - outer
    phases = busiest(plan(inner, outer), inner, outer)
    assert len(phases) == inner + outer - 2
    assert sum(phases) == Fraction(short * (long - 1) * (inner * outer - 1), edges)


@pytest.mark.parametrize(("plan", "inner", "outer"), EVEN)
def test_a_gather_beside_a_reduction_loads_all_links_alike_in_every_phase(plan, inner, outer):
    """The gather in phase p, the reduction of the next piece (a gather in reverse) in R + C - p."""
    load = defaultdict(lambda: defaultdict(int))
    period = inner + outer
    for message in gather_messages(plan(inner, outer), inner, outer):
        down, up = message.phase + 1, period - message.phase - 1
        load[down][message.source, message.destination] += len(message.pieces)
        load[up][message.destination, message.source] += len(message.pieces)
    links = 2 * (2 * inner * outer - period)
    total = defaultdict(int)
    for phase in range(1, period):
        assert len(load[phase]) == links
        assert len(set(load[phase].values())) == 1
        for link, pieces in load[phase].items():
            total[link] += pieces
    assert set(total.values()) == {(inner * outer - 1) * inner * outer}


@pytest.mark.parametrize("inner", SIDES)
@pytest.mark.parametrize("outer", SIDES)
def test_a_cycle_visits_each_neighbour_after_neighbour(inner, outer):
    if inner % 2 and outer % 2:
        pytest.skip("no cycle: the colours of a chessboard do not come out even")
    cells = hamiltonian_cycle(outer, inner)
    assert sorted(cells) == [(row, column) for row in range(outer) for column in range(inner)]
    for (row, column), (below, beside) in zip(cells, cells[1:] + cells[:1], strict=True):
        assert abs(row - below) + abs(column - beside) == 1
