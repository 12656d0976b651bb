"""The optimiser on small cases: what it returns, parts, candidates, odd input."""

import numpy as np
import pytest
from grid_networks import demands_of, grid, star
from oracles.routing_bounds import best_of, with_lp

from meshwright.network.tcme.moves import make_messages
from meshwright.network.tcme.optimiser import make_problem, optimise


def permutation(size, seed, times=1):
    random = np.random.default_rng(seed)
    return demands_of(
        [(n, int(to)) for _ in range(times) for n, to in enumerate(random.permutation(size))]
    )


def test_rows_are_served_by_the_route_of_their_payload():
    demands = demands_of([(0, 1, 1.0, 5), (3, 3, 1.0, 1), (0, 2, 1.0, 5), (4, 8, 2.0, 9)])
    routed = optimise(grid(3, 3), demands)
    assert len(routed.routes) == 2
    assert routed.first_route.tolist() == [1, -1, 1, 0]
    assert routed.num_bytes.tolist() == [2.0, 1.0]


def test_nothing_to_send_takes_no_time():
    held = [(0, 1, 1.0, 4), (1, 0, 1.0, 4)]
    for rows in ([], [(2, 2)], held, [(0, 3, 0.0, 1)]):
        routed = optimise(grid(2, 2), demands_of(rows))
        assert (routed.z_s, routed.certificate.gap) == (0.0, 0.0)
        assert routed.link_load_bytes.sum() == 0.0


def test_paths_are_in_order():
    network = grid(4, 4)
    demands = permutation(16, 3)
    routed = optimise(network, demands)
    for row in np.flatnonzero(routed.first_route >= 0):
        links = routed.routes.of(int(routed.first_route[row]))
        assert network.source[links[0]] == demands.source[row]
        assert network.target[links[-1]] == demands.destination[row]
        assert (network.target[links[:-1]] == network.source[links[1:]]).all()


def test_a_ring_gather_may_come_from_a_nearer_device():
    """A chain 0, 2, 1 on a line: 1 takes the payload as it passes, so no link carries it twice."""
    routed = optimise(grid(1, 3), demands_of([(0, 2, 1.0, 4), (2, 1, 1.0, 4)]))
    assert routed.default_z_s == 1.0
    assert routed.link_load_bytes.sum() == 2.0
    assert routed.default_load_bytes.sum() == 3.0


def test_senders_that_all_receive_are_taken_to_hold():
    messages, _ = make_messages(demands_of([(0, 1, 1.0, 4), (1, 0, 1.0, 4)]), 2)
    assert messages.holders.tolist() == [0, 1]
    assert len(messages.receivers) == 0


def test_a_receiver_on_a_switch_may_pass_on():
    routed = optimise(star(3), demands_of([(0, 1, 1.0, 4), (1, 2, 1.0, 4)]))
    assert routed.z_s == 1.0


def test_parts_come_closer_to_the_fractional_bound():
    """One message of 4 bytes from corner to corner of 2x2: over both ways in halves."""
    network, demands = grid(2, 2), demands_of([(0, 3, 4.0, 1)])
    assert optimise(network, demands).z_s == 4.0
    split = optimise(network, demands, max_paths=2)
    assert (split.z_s, len(split.routes), split.num_paths) == (2.0, 2, 2)
    assert split.first_route.tolist() == [0]


@pytest.mark.parametrize("seed", range(4))
def test_parts_are_never_worse_than_whole_messages(seed):
    network, demands = grid(4, 5), permutation(20, seed, times=2)
    whole = optimise(network, demands, seed)
    assert optimise(network, demands, seed, max_paths=3).z_s <= whole.z_s * (1 + 1e-9)


def test_the_program_closes_a_gap_that_cuts_leave():
    """Unit messages between all pairs at distance two on a ring of six: the dual sees it."""
    network = grid(3, 4)
    for seed in range(6):
        demands = permutation(12, seed, times=3)
        routed = with_lp(optimise(network, demands), network, demands)
        assert routed.certificate.gap == 0.0


def test_the_best_candidate_is_found_and_hopeless_ones_are_skipped():
    network = grid(4, 4)
    good = demands_of([(n, n + 1) for n in range(0, 16, 2)])
    bad = demands_of([(n, 15 - n) for n in range(16)] * 3)
    best = best_of(network, [bad, good, bad])
    assert (best.index, best.routed.z_s, best.num_pruned) == (1, 1.0, 2)
    assert make_problem(network, bad).bound_s > 1.0


def test_one_seed_one_result():
    network, demands = grid(6, 6), permutation(36, 5, times=3)
    first, again = (optimise(network, demands, seed=4) for _ in range(2))
    assert first.routes.links.tolist() == again.routes.links.tolist()
    assert first.certificate == again.certificate
