"""Laws of routing on random demands, grids with holes, and switches."""

import numpy as np
import pytest
from grid_networks import demands_of, grid, star
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.routing_bounds import lp_bound

from meshwright.base.errors import InfeasibleError
from meshwright.network.routing import default_routes, shortest_routes, xy_routes
from meshwright.network.tcme.bounds import cut_bound, dual_bound
from meshwright.network.tcme.moves import make_messages
from meshwright.network.tcme.optimiser import optimise

SLACK = 1 + 1e-6


@st.composite
def cases(draw):
    """Draw a network and demands on it: payloads with several sources and receivers."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    network = grid(rows, columns, wraps=draw(st.booleans()))
    if draw(st.booleans()):
        network = star(rows * columns)
    elif draw(st.booleans()):
        wires = sorted({tuple(sorted(p)) for p in network.link_between})
        network = network.without(dead_links=draw(st.lists(st.sampled_from(wires), max_size=2)))
    device = st.integers(0, rows * columns - 1)
    size = {0: 1.0, 1: 1.0, 2: 2.0, 3: 2.5}
    payloads = draw(st.lists(st.tuples(device, device, st.integers(0, 9)), min_size=1, max_size=14))
    return network, demands_of([(a, b, size[p % 4], p) for a, b, p in payloads])


def routed_or_none(network, demands, **options):
    try:
        return optimise(network, demands, **options)
    except InfeasibleError:
        return None


def reached(network, messages, message, links):
    """Return the nodes that a route brings its payload to."""
    at = messages.holder_offsets
    known = set(messages.holders[at[message] : at[message + 1]].tolist())
    ahead = set(links.tolist())
    while ready := {link for link in ahead if int(network.source[link]) in known}:
        known |= {int(network.target[link]) for link in ready}
        ahead -= ready
    assert not ahead
    return known


@given(cases())
def test_every_receiver_is_reached_by_a_tree(case):
    network, demands = case
    routed = routed_or_none(network, demands)
    if routed is None:
        return
    messages, _ = make_messages(demands, network.num_nodes)
    assert len(routed.routes) == len(messages.num_bytes)
    for message in range(len(messages.num_bytes)):
        links = routed.routes.of(message)
        to = slice(*messages.receiver_offsets[message : message + 2].tolist())
        members = set(messages.receivers[to].tolist())
        assert members <= reached(network, messages, message, links)
        assert len(set(network.target[links].tolist())) == len(links)
        at = slice(*messages.holder_offsets[message : message + 2].tolist())
        passing = set(network.source[links].tolist()) - members
        passing -= set(messages.holders[at].tolist())
        assert all(network.forwards[node] for node in passing)


@given(cases(), st.integers(0, 3))
def test_never_worse_than_the_default_and_never_below_the_bound(case, seed):
    network, demands = case
    routed = routed_or_none(network, demands, seed=seed)
    if routed is None:
        return
    seconds = np.sort(routed.link_load_bytes / network.bandwidth_bytes_per_s)[::-1]
    default = np.sort(routed.default_load_bytes / network.bandwidth_bytes_per_s)[::-1]
    apart = np.flatnonzero(np.abs(seconds - default) > 1e-9)
    assert not len(apart) or seconds[apart[0]] < default[apart[0]]
    assert routed.z_s == seconds.max(initial=0.0) <= routed.default_z_s * SLACK
    assert routed.certificate.bound_s <= routed.z_s * SLACK
    again = optimise(network, demands, seed=seed)
    assert again.routes.links.tolist() == routed.routes.links.tolist()


@settings(max_examples=25)
@given(cases())
def test_every_bound_lies_below_the_program_and_the_program_below_the_routing(case):
    network, demands = case
    routed = routed_or_none(network, demands)
    messages, _ = make_messages(demands, network.num_nodes)
    if routed is None or not len(messages.num_bytes):
        return
    program_s = lp_bound(network, messages)
    assert dual_bound(network, messages) <= program_s * SLACK
    assert program_s <= routed.z_s * SLACK
    assert cut_bound(network, messages) <= routed.z_s * SLACK
    if len(set(messages.num_bytes.tolist())) == 1:
        assert cut_bound(network, messages) <= program_s * SLACK


@given(st.integers(1, 5), st.integers(1, 5), st.booleans(), st.integers(0, 10**6))
def test_dimension_order_is_a_shortest_way(rows, columns, wraps, seed):
    if rows * columns < 2:
        return
    network = grid(rows, columns, wraps=wraps)
    ends = np.random.default_rng(seed).integers(0, rows * columns, (12, 2))
    demands = demands_of([tuple(pair) for pair in ends.tolist()])
    shortest = shortest_routes(network, demands).num_hops
    for rows_first in (False, True):
        routes, is_whole = xy_routes(network, demands, rows_first=rows_first)
        assert is_whole.all()
        assert (routes.num_hops == shortest).all()


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_time_scales_with_bytes_and_with_bandwidth(factor):
    random = np.random.default_rng(3)
    rows = [(n, int(to), float(2 ** (n % 3)), n) for n, to in enumerate(random.permutation(16))]
    one = optimise(grid(4, 4), demands_of(rows))
    more = optimise(grid(4, 4), demands_of([(a, b, size * factor, p) for a, b, size, p in rows]))
    faster = optimise(grid(4, 4, bandwidth=factor), demands_of(rows))
    assert more.z_s == pytest.approx(one.z_s * factor)
    assert faster.z_s == pytest.approx(one.z_s / factor)
    assert more.certificate.bound_s == pytest.approx(one.certificate.bound_s * factor)


def test_default_routes_of_many_random_faults_arrive_or_are_refused():
    random = np.random.default_rng(1)
    network = grid(5, 5)
    wires = sorted({tuple(sorted(pair)) for pair in network.link_between})
    refused = 0
    for _ in range(60):
        gone = [wires[i] for i in random.choice(len(wires), 12, replace=False)]
        broken = network.without(dead_links=gone)
        pairs = random.integers(0, 25, (20, 2))
        demands = demands_of([tuple(pair) for pair in pairs.tolist()])
        try:
            routes = default_routes(broken, demands)
        except InfeasibleError:
            refused += 1
            continue
        for row in np.flatnonzero(demands.source != demands.destination):
            links = routes.of(int(row))
            assert broken.source[links[0]] == demands.source[row]
            assert broken.target[links[-1]] == demands.destination[row]
            assert (broken.target[links[:-1]] == broken.source[links[1:]]).all()
    assert 0 < refused < 60
