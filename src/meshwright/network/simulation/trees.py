"""Which link of a route leads to which: along a path, or down a multicast tree."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.network.routing import Routes
from meshwright.topology.network import Network


def links_before(route: IntArray, link: IntArray, network: Network) -> IntArray:
    """Return for each link of each route the place of the one that leads to it; -1 for none.

    Parameters
    ----------
    route, link
        Number of a route, and one of its links; -1 for no link.
    """
    begins = route * network.num_nodes + network.source[link]
    ends = route * network.num_nodes + network.target[link]
    begins[link < 0], ends[link < 0] = -1, -2
    order = np.argsort(ends, kind="stable")
    found = order[np.minimum(np.searchsorted(ends, begins, sorter=order), len(order) - 1)]
    return np.where(ends[found] == begins, found, -1)


def deepest_latency_s(routes: Routes, network: Network) -> FloatArray:
    """Return the latency of the longest way from the sender down each route [s].

    Of a path the sum of its links; of a tree that of the receiver which is reached last.
    """
    route = np.repeat(np.arange(len(routes)), routes.num_hops)
    link = routes.links
    follows = (route[1:] == route[:-1]) & (network.source[link[1:]] != network.target[link[:-1]])
    if not follows.any():
        return routes.latency_s(network)
    reach_s, before = network.latency_s[link], links_before(route, link, network)
    while (goes_on := before >= 0).any():
        reach_s = reach_s + np.where(goes_on, reach_s[before], 0.0)
        before = np.where(goes_on, before[before], -1)
    deepest = np.zeros(len(routes))
    np.maximum.at(deepest, route, reach_s)
    return deepest
