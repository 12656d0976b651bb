"""The optimiser against every choice of simple paths, and compiled against plain kernels."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from grid_networks import demands_of, grid

from meshwright.base.compiled import has_numba
from meshwright.network.tcme.optimiser import optimise

TESTS = Path(__file__).parents[1]


def simple_paths(network, source, destination, longest):
    """Return the link lists of all paths without a repeated node, up to a length."""
    found, ahead = [], [([], [source])]
    while ahead:
        links, nodes = ahead.pop()
        if nodes[-1] == destination:
            found.append(links)
        elif len(links) < longest:
            for link in np.flatnonzero(network.source == nodes[-1]).tolist():
                other = int(network.target[link])
                if other not in nodes:
                    ahead.append(([*links, link], [*nodes, other]))
    return found


def least_peak(network, rows):
    """Return the least possible load of the busiest link, whole messages."""
    choices = [simple_paths(network, a, b, 5) for a, b, *_ in rows]
    best = np.inf
    for chosen in product(*choices):
        load = np.zeros(network.num_links)
        for links, row in zip(chosen, rows, strict=True):
            load[links] += row[2]
        best = min(best, load.max())
    return best


@pytest.mark.parametrize("seed", range(12))
def test_four_messages_on_six_devices_are_routed_best(seed):
    random = np.random.default_rng(seed)
    network = grid(2, 3)
    sizes = [1.0, 2.0, 3.0] if seed % 2 else [1.0]
    rows = []
    while len(rows) < 4:
        a, b = random.integers(0, 6, 2).tolist()
        if a != b:
            rows.append((a, b, float(random.choice(sizes)), len(rows)))
    best = least_peak(network, rows)
    routed = optimise(network, demands_of(rows))
    assert routed.certificate.bound_s <= best * (1 + 1e-9)
    assert routed.z_s == pytest.approx(best)


def links_of_a_case():
    """Return the links of a routing that needs descent, escapes and the dual bound."""
    random = np.random.default_rng(0)
    pairs = [(n, int(to)) for _ in range(2) for n, to in enumerate(random.permutation(12))]
    shared = [(0, 5, 1.0, 99), (0, 10, 1.0, 99), (3, 7, 1.0, 99)]
    routed = optimise(grid(3, 4), demands_of([*pairs, *shared]))
    return routed.routes.links.tolist(), routed.certificate.bound_s


@pytest.mark.skipif(not has_numba(), reason="both ways are the same without numba")
def test_plain_kernels_give_the_same_routes():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from test_routing_brute_force import links_of_a_case\n"
        "print(links_of_a_case())"
    )
    places = [str(TESTS), str(TESTS / "parity"), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {places!r}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == str(links_of_a_case()), done.stderr
