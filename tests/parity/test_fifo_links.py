"""A few messages on a ring of 8: fluid sharing beside the FIFO links of another simulator.

Ends in ns by ASTRA-sim 4f387bc (analytical, congestion aware: links serve whole messages one
after the other and store them at each hop, a rank has one message in flight; and unaware: links
are never shared). Links of 4e12 B/s and 200 ns, messages of 4 MB, so 1000 ns of bytes each.
"""

from itertools import pairwise

import numpy as np
import pytest
from grid_networks import grid
from oracles.store_and_forward import store_and_forward

from meshwright.network.routing import make_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import TaskGraphBuilder

RING = grid(1, 8, wraps=True, bandwidth=4e12)
RING.latency_s[:] = 200e-9


def nodes_between(source, target):
    """Return the nodes of the shorter way round."""
    step = 1 if (target - source) % 8 <= 4 else -1
    count = (target - source) * step % 8
    return [(source + step * hop) % 8 for hop in range(count + 1)]


def ends_ns(*messages, stored):
    """Return when each message (source, target, bytes) has arrived [ns]."""
    graph = TaskGraphBuilder(RING)
    ways = [pairwise(nodes_between(source, target)) for source, target, _ in messages]
    routes = make_routes([[RING.link_between[pair] for pair in way] for way in ways])
    graph.transfer(routes, np.array([float(size) for _, _, size in messages]))
    built = graph.build()
    if not stored:
        return np.round(simulate_tasks(built, RING).end_s * 1e9, 6).tolist()
    hops, origin = store_and_forward(built, RING)
    ends = np.zeros(len(messages))
    np.maximum.at(ends, origin, simulate_tasks(hops, RING).end_s * 1e9)
    return np.round(ends, 6).tolist()


MB4 = 4_000_000
SAME_ORDER = {
    "one message over two hops": ([(0, 2)], [2400], [1400]),
    "a shared last link": ([(0, 2), (1, 2)], [2400, 1200], None),
    "two that overlap on two links": ([(0, 3), (1, 4)], [3600, 3600], None),
    "three at the same time": ([(0, 2), (1, 3), (2, 4)], [2400, 2400, 2400], None),
    "three to one": ([(1, 4), (2, 4), (3, 4)], [3600, 2400, 1200], None),
    "opposite directions": ([(0, 2), (2, 0)], [2400, 2400], [1400, 1400]),
}
"""Where whole messages never wait for a link: with store and forward, all ends are equal."""


@pytest.mark.parametrize("name", SAME_ORDER)
def test_with_store_and_forward_ends_are_equal_where_no_two_want_a_link_at_once(name):
    pairs, aware, unaware = SAME_ORDER[name]
    messages = [(source, target, MB4) for source, target in pairs]
    assert ends_ns(*messages, stored=True) == aware
    if unaware is not None:
        assert ends_ns(*messages, stored=False) == unaware


def test_cut_through_messages_share_a_link_where_fifo_lets_one_wait():
    """Both done within 2.2 us: the link is never idle; FIFO takes 2.4, unaware only 1.4."""
    assert ends_ns((0, 2, MB4), (1, 2, MB4), stored=False) == [2200, 2000]


def test_fair_sharing_serves_a_short_message_beside_a_long_one():
    """FIFO ends the long one at 4200 and the short one behind it at 5200; sharing turns it round.

    The short one joins at 1400 with 11.2 MB of the other left, takes half for 2000, and leaves
    7.2 MB: 1800 more. The link ends its work at the same time.
    """
    assert ends_ns((0, 2, MB4), (1, 2, 4 * MB4), stored=True) == [3400, 5200]


def test_a_device_may_send_both_ways_at_once():
    """ASTRA-sim needs 2400: it lets a rank have one message in flight."""
    assert ends_ns((0, 1, MB4), (0, 7, MB4), stored=False) == [1200, 1200]
