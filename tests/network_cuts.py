"""The smallest cut of a network into equal halves of its devices, by trying them all."""

from itertools import combinations, product

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

SCALE = 840


def halves(num_devices):
    """Return one side of each pair of halves, as rows of 0 and 1; it holds device 0."""
    sizes = {num_devices // 2, num_devices - num_devices // 2} - {0}
    rows = [(0, *others) for k in sizes for others in combinations(range(1, num_devices), k - 1)]
    sides = np.zeros((len(rows), num_devices))
    for side, row in zip(sides, rows, strict=True):
        side[list(row)] = 1
    return sides


def smallest_bisection(network):
    """Return the smallest bandwidth from one half of the devices to the other.

    All halves are tried with all sides of the switches. The bandwidth between u, the nodes on one
    side, and the others is the sum of d u less u W u, where W holds the bandwidth of each pair and
    d its sums.
    """
    n = network.num_devices
    weight = np.zeros((network.num_nodes, network.num_nodes))
    np.add.at(weight, (network.source, network.target), network.bandwidth_bytes_per_s)
    assert (weight == weight.T).all()
    # a switch with a single neighbour stands on its side
    middle = [k for k in range(n, network.num_nodes) if (weight[k] > 0).sum() > 1]
    kept = [*range(n), *middle]
    weight = weight[np.ix_(kept, kept)]
    devices = halves(n)
    switches = np.array(list(product([0, 1], repeat=len(middle)))).reshape(2 ** len(middle), -1)
    cut_devices = between(devices, weight[:n], slice(None, n))
    cut_switches = between(switches, weight[n:], slice(n, None))
    joint = devices @ weight[:n, n:] @ switches.T
    return (cut_devices[:, None] + cut_switches - 2 * joint).min() if n > 1 else 0.0


def between(sides, weight, own):
    """Return d u - u W u for each row u of sides."""
    return sides @ weight.sum(axis=1) - ((sides @ weight[:, own]) * sides).sum(axis=1)


def flow_between(network, side):
    """Return the largest flow from some devices to all others: the smallest cut between them."""
    others = np.setdiff1d(np.arange(network.num_devices), side)
    start, end = network.num_nodes, network.num_nodes + 1
    capacity = np.round(network.bandwidth_bytes_per_s * SCALE).astype(np.int32)
    assert np.allclose(capacity, network.bandwidth_bytes_per_s * SCALE)
    plenty = np.full(network.num_devices, capacity.sum(), dtype=np.int32)
    source = np.concatenate([network.source, np.full(len(side), start), others])
    target = np.concatenate([network.target, side, np.full(len(others), end)])
    graph = coo_array(
        (np.concatenate([capacity, plenty]), (source, target)), shape=(end + 1, end + 1)
    )
    return maximum_flow(graph.tocsr(), start, end).flow_value / SCALE
