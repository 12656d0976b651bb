"""Any fault map leaves a legal result: 500 seeded maps of links, devices, rows and cores."""

import numpy as np
import pytest
from grid_networks import grid

from meshwright.network.blocks import connected_parts
from meshwright.network.faults import FaultRates, balanced_rows, random_faults
from meshwright_papers.studies.temp.grid_groups import hop_distances, nested_blocks
from meshwright_papers.studies.temp.recovery import Action, recover

NUM_MAPS = 500
NETWORKS = {(4, 8): grid(4, 8), (6, 8): grid(6, 8)}
LIMIT = 2_000


def blocks(shape):
    tiles = {"tatp": (2, 4), "dp": (shape[0] // 2, shape[1] // 4)}
    return nested_blocks(tiles, NETWORKS[shape]).groups("tatp")


def rates_of(seed):
    """Every kind of fault in turn, at any rate up to a third; the last kind is all of them."""
    chance = np.random.default_rng(seed)
    link, device, row, core = chance.random(4) / 3
    kinds = [
        FaultRates(link=link),
        FaultRates(device=device),
        FaultRates(row=row),
        FaultRates(core=core, num_cores=4),
        FaultRates(link / 3, device / 3, row / 3, core, num_cores=4),
    ]
    return kinds[seed % len(kinds)]


def check_groups(network, groups, found):
    used = found.groups.ravel()
    assert len(set(used.tolist())) == used.size
    assert np.isin(used, connected_parts(network)[0]).all()
    assert used.size + found.idle.size == len(network.alive)
    if found.action is Action.IMPOSSIBLE:
        assert len(found.groups) < len(groups)
        return
    assert len(found.groups) == len(groups)
    hops = hop_distances(network)[found.groups[:, :-1], found.groups[:, 1:]]
    assert hops.max(initial=0) <= found.longest_hop
    assert (found.action is Action.SHRUNK) == (found.group_size < groups.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "first"), [((4, 8), 0), ((6, 8), 1)])
def test_every_map_has_a_legal_result(shape, first):
    groups = blocks(shape)
    for seed in range(first, NUM_MAPS, len(NETWORKS)):
        broken = random_faults(NETWORKS[shape], rates_of(seed), seed).applied(NETWORKS[shape])
        found = recover(broken, groups, limit=LIMIT)
        check_groups(broken, groups, found)
        if found.action is not Action.IMPOSSIBLE:
            for group in found.groups:
                rows = balanced_rows(1000, broken.speed_factor[group])
                assert rows.sum() == 1000
                assert rows.min() > 0


def test_the_same_seed_gives_the_same_recovery():
    groups = blocks((6, 8))
    for seed in (0, 4, 9):
        broken = random_faults(NETWORKS[6, 8], rates_of(seed), seed).applied(NETWORKS[6, 8])
        first, again = (recover(broken, groups, limit=LIMIT) for _ in range(2))
        assert first.action is again.action
        assert np.array_equal(first.groups, again.groups)
