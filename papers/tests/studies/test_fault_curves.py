"""Curves over the fault rate, and what is known of their points."""

import itertools

import numpy as np
import pytest
from grid_networks import grid

from meshwright.network.faults import balanced_rows, wires
from meshwright.network.regions import hamiltonian_path, make_region
from meshwright_papers.studies.temp.fault_curves import (
    core_fault_curve,
    link_fault_curve,
    relative_rate,
    spread,
    stream_throughput,
)
from meshwright_papers.studies.temp.grid_groups import nested_blocks
from meshwright_papers.studies.temp.recovery import Action, recover

NETWORK = grid(4, 8)
GROUPS = nested_blocks({"tatp": (2, 4), "dp": (2, 2)}, NETWORK).groups("tatp")
NUM_MAPS = 60


@pytest.fixture(scope="module")
def curve():
    rates = (0.0, 0.1, 0.2, 0.35)
    throughput = stream_throughput(4, 8, link_share=0.5)
    return link_fault_curve(NETWORK, GROUPS, rates, range(NUM_MAPS), throughput)


def dead_links_that_leave_a_path():
    """Count the sets of k dead links, of the ten of 2x4, after which there is a path."""
    network = grid(2, 4)
    pairs = wires(network)
    counts = [0] * (len(pairs) + 1)
    for count in range(len(pairs) + 1):
        for dead in itertools.combinations(pairs, count):
            found = hamiltonian_path(make_region(network.without((), dead)))
            counts[count] += found.groups is not None
    return counts


def test_a_block_of_2x4_keeps_a_path_with_an_exact_probability():
    """Seven links make a path, so at most three are dead; 2 x n has n^2 - n + 2 paths: 14.

    sum c_k q^k (1 - q)^(10 - k) = 0.842, 0.554, 0.205 at 10, 20, 35 %.
    """
    counts = dead_links_that_leave_a_path()
    assert counts == [1, 10, 23, 14] + [0] * 7
    for rate, expected in ((0.1, 0.8418), (0.2, 0.5536), (0.35, 0.2052)):
        terms = (c * rate**k * (1 - rate) ** (10 - k) for k, c in enumerate(counts))
        assert sum(terms) == pytest.approx(expected, abs=5e-5)


@pytest.mark.slow
def test_fixed_blocks_reach_that_probability(curve):
    for point, expected in zip(curve, (1.0, 0.8418, 0.5536, 0.2052), strict=True):
        error = np.sqrt(expected * (1 - expected) / (4 * NUM_MAPS))
        assert point.fixed_groups == pytest.approx(expected, abs=4 * error)
        assert point.fixed == pytest.approx(expected**4, abs=4 * np.sqrt(0.25 / NUM_MAPS))


def test_more_faults_are_worse(curve):
    for better, worse in itertools.pairwise(curve):
        assert better.connected >= worse.connected
        assert better.fixed >= worse.fixed
        assert better.regrouped >= worse.regrouped
        assert better.throughput.mean >= worse.throughput.mean
    assert curve[0].throughput.mean == curve[0].throughput.percentile_5 == 1.0


def test_regrouping_helps_and_cannot_help_what_is_cut(curve):
    for point in curve:
        assert point.fixed <= point.regrouped <= point.connected
        assert point.undecided == 0.0
        assert point.throughput_if_connected.mean >= point.throughput.mean
    assert curve[1].regrouped > curve[1].fixed + 0.2


def test_stream_throughput_by_hand():
    """Groups of 7 for 8, t_m = 0.5 t_c: 6 (8/7)^2 + (8/7)^2 a pass, against 7 + 1."""
    throughput = stream_throughput(4, 8, link_share=0.5)
    broken = NETWORK.without([0])
    assert throughput(broken, recover(broken, GROUPS)) == pytest.approx(8 / (7 * (8 / 7) ** 2))
    cross = grid(3, 3).without([0, 2, 6, 8])
    passed = recover(cross, np.array([[1, 3, 4, 5, 7]]))
    slow_links = stream_throughput(1, 5, link_share=0.8)
    assert slow_links(cross, passed) == pytest.approx(5 / (4 * 1.6 + 1))
    dead = grid(1, 2).without([0, 1])
    nothing = recover(dead, np.array([[0], [1]]))
    assert nothing.action is Action.IMPOSSIBLE
    assert stream_throughput(2, 1, 0.5)(dead, nothing) == 0.0


def test_core_faults_with_and_without_balance():
    curve = core_fault_curve(
        NETWORK, GROUPS, (0.0, 0.1, 0.25), range(40), num_cores=64, rows_per_device=256
    )
    for point, rate in zip(curve, (0.0, 0.1, 0.25), strict=True):
        assert point.balanced.mean == pytest.approx(1 - rate, abs=0.01)
        assert point.equal.mean <= point.balanced_in_groups.mean <= point.balanced.mean
    assert curve[0].equal.mean == curve[0].balanced.mean == 1.0
    assert curve[2].equal.mean < curve[2].balanced.mean - 0.1


def test_communication_softens_the_loss_of_cores():
    points = [
        core_fault_curve(
            NETWORK,
            GROUPS,
            (0.25,),
            range(20),
            num_cores=64,
            rows_per_device=256,
            compute_share=share,
        )[0].balanced.mean
        for share in (1.0, 0.8)
    ]
    assert points[1] == pytest.approx(1 / (0.8 / points[0] + 0.2), rel=1e-3)


def test_spread():
    assert spread([0.0] * 10 + [1.0] * 90).percentile_5 == 0.0
    assert spread([1.0, 3.0]).mean == 2.0
    assert np.isnan(spread([]).mean)


def test_relative_rate_by_hand():
    """75 % of the cores in all: rows by speed give 0.75 of the rate, equal rows 0.5."""
    speed = np.array([1.0, 1.0, 0.5, 0.5])
    assert relative_rate(balanced_rows(300, speed), speed) == 0.75
    assert relative_rate(np.full(4, 75), speed) == 0.5
    assert relative_rate(np.zeros(2), np.ones(2)) == 0.0
