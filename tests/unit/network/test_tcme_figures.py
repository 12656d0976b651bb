"""The published cases of contention, before and after, with proven bounds.

Source: TEMP (arXiv 2512.14256), figures 5, 8 and 11; groups as in the text, one unit a message.
"""

from itertools import pairwise

import numpy as np
import pytest
from grid_networks import demands_of, grid
from oracles.operations import Operation, stream_sends
from oracles.routing_bounds import best_of, lp_bound

from meshwright.network.tcme.moves import make_messages
from meshwright.network.tcme.optimiser import optimise
from meshwright.streams.forms import enumerate_rounds, streams

BLOCKS = [[0, 1, 5, 4], [2, 3, 7, 6], [8, 9, 13, 12], [10, 11, 15, 14]]
STRIDED = [[0, 2, 10, 8], [1, 3, 11, 9], [4, 6, 14, 12], [5, 7, 15, 13]]


def ring(groups):
    return [(a, b) for group in groups for a, b in zip(group, group[1:] + group[:1], strict=True)]


def chain(groups, *, both=False):
    pairs = [(a, b) for group in groups for a, b in pairwise(group)]
    return pairs + [(b, a) for a, b in pairs] if both else pairs


def lp(network, demands):
    return lp_bound(network, make_messages(demands, network.num_nodes)[0])


def test_figure_5b_two_messages_leave_the_shared_link():
    """0 to 2 and 1 to 3 share the link 1-2 under XY; the other row is idle."""
    routed = optimise(grid(2, 4), demands_of([(0, 2), (1, 3)]))
    assert (routed.default_z_s, routed.z_s, routed.certificate.bound_s) == (2.0, 1.0, 1.0)


def test_figure_5b_copies_of_one_datum_need_to_cross_once():
    """Data 1 lies on 0 and 1, data 2 on 4 and 5: each crosses the middle once, over its row."""
    rows = [(0, 2, 1.0, 1), (1, 3, 1.0, 1), (4, 6, 1.0, 2), (5, 7, 1.0, 2)]
    routed = optimise(grid(2, 4), demands_of(rows))
    assert (routed.default_z_s, routed.z_s, routed.certificate.gap) == (2.0, 1.0, 0.0)
    assert routed.link_load_bytes.sum() == 4.0


def test_figure_5b_four_messages_of_their_own_must_share():
    """Four units over the two links from the left half to the right: 2 is proven."""
    routed = optimise(grid(2, 4), demands_of([(0, 2), (1, 3), (4, 6), (5, 7)]))
    assert (routed.default_z_s, routed.z_s, routed.certificate.gap) == (2.0, 2.0, 0.0)


@pytest.mark.parametrize(("form", "num_hops"), [("ring", 3), ("stream", 1)])
def test_figure_8_the_line_form_needs_one_hop(form, num_hops):
    """On dies 0 to 3 of a row the closing send of the ring makes 3 hops, TATP never more than 1."""
    sends = stream_sends(enumerate_rounds(streams[form], 4), 4.0)
    operation = Operation("tatp", np.arange(12).reshape(3, 4), sends)
    routed = [optimise(grid(3, 4), operation.demands(turn)) for turn in range(3)]
    assert max(r.routes.num_hops.max() for r in routed) >= num_hops
    assert all(r.z_s == 1.0 and r.certificate.gap == 0.0 for r in routed)
    if form == "stream":
        assert all((r.num_bytes == 1.0).all() and r.routes.num_hops.max() <= 2 for r in routed)


@pytest.mark.parametrize(("both", "fractional"), [(False, 1.5), (True, 2.0)])
def test_figure_11_rerouting_cannot_help(both, fractional):
    """2x2 FSDP rings beside strided TATP chains on 4x4: XY is as good as whole messages get."""
    network = grid(4, 4)
    demands = demands_of(ring(BLOCKS) + chain(STRIDED, both=both))
    routed = optimise(network, demands)
    assert (routed.default_z_s, routed.z_s, routed.certificate.gap) == (2.0, 2.0, 0.0)
    assert lp(network, demands) == pytest.approx(fractional)


def test_figure_11_swapping_the_placement_can_help():
    """TATP inside the blocks, FSDP strided: 22 / 13 for messages that may be cut, and 2 parts."""
    network = grid(4, 4)
    before = demands_of(ring(BLOCKS) + chain(STRIDED, both=True))
    after = demands_of(ring(STRIDED) + chain(BLOCKS, both=True))
    assert lp(network, after) == pytest.approx(22 / 13)
    best = best_of(network, [before, after], max_paths=4)
    assert best.index == 1
    assert best.routed.z_s == 1.75


@pytest.mark.parametrize(("rows", "num_rings"), [(4, 4), (6, 6)])
def test_random_rings_and_column_chains_meet_the_rounded_program(rows, num_rings):
    """Rings of 8 drawn at random beside chains down the columns: XY 3 to 5, ours ceil(LP).

    The program is solved only where the bound of the optimiser is not met.
    """
    network, columns = grid(rows, 8), 8
    met, totals = 0, np.zeros(2)
    for seed in range(10):
        members = np.random.default_rng(seed).permutation(rows * columns).reshape(num_rings, 8)
        down = [(n, n + columns) for n in range((rows - 1) * columns)]
        demands = demands_of(ring(members.tolist()) + down)
        routed = optimise(network, demands)
        totals += routed.default_z_s, routed.z_s
        bound_s = routed.certificate.bound_s
        if routed.z_s > bound_s:
            bound_s = np.ceil(lp(network, demands) - 1e-9)
        met += routed.z_s == bound_s
    assert met == 10
    assert totals[1] <= 0.85 * totals[0]
