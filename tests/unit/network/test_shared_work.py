"""Ranks of dead and slow devices: who hosts them, which way streams take, how work is shared."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.network.faults import SharedWork, balanced_rows, shared_work
from meshwright.network.placement import block_ranks
from meshwright.topology import grid
from meshwright.topology.network import LinkSpec

AXES = ("tatp", "dp_shard", "tp", "cp", "dp_replicate", "pp")
ALONE = (1, 1)
BLOCKS = ((4, 3), (2, 2), *[ALONE] * 4)
"""On six rows of eight: streams of twelve in blocks of 3x4, four of them."""


def mesh(*dead, cut=(), rows=6, columns=8):
    return grid.mesh((rows, columns), LinkSpec(2e12, 200e-9)).build().without(dead, cut)


def ranks_on(network, shapes=BLOCKS, axes=AXES):
    sides = network.grid_shape[::-1]
    return block_ranks(network, sides, axes, shapes, may_have_holes=True)


def test_work_of_four_groups_one_of_which_has_lost_a_device():
    """128 sequences by 12, 12, 12 and 11 devices: 33, 33, 32 and 30."""
    network = mesh(0)
    work = shared_work(ranks_on(network), network.speed_factor, 128, 2048.0, 8)
    assert work.sequences.tolist() == [30, 33, 33, 32]
    assert work.num_hosted == 2
    assert work.states == 12 / 11
    # 33 sequences in 4 micro-batches: 16,896 rows on 12 devices, 1,408 each; of 8 it is 1,366.
    assert work.pace == pytest.approx(1366 / 1408)
    assert work.most_work == pytest.approx(1408 / 1366)
    assert np.count_nonzero(work.share == 0.0) == 1


def test_what_ranks_compute_on_average_beside_the_last_one():
    """Speeds of 1 and 0.5 with equal shares take 1 and 2: on average 0.75 of the last one.

    Of four ranks three share the work of one that is hosted: 4/3 each, and 3/4 of the ranks work.
    """
    none, half = np.zeros(0, dtype=np.int64), np.array([1.0, 0.5])
    assert SharedWork(none, np.ones(2), half, 1).mean_busy == 0.75
    hosted = SharedWork(none, np.array([4 / 3, 4 / 3, 4 / 3, 0.0]), np.ones(4), 2)
    assert hosted.mean_busy == pytest.approx(0.75)


def test_equal_devices_share_equally():
    network = mesh()
    work = shared_work(ranks_on(network), network.speed_factor, 128, 2048.0, 8)
    assert work.pace == work.most_work == 1.0
    assert work.sequences.tolist() == [32] * 4


def test_one_group_shares_rows_as_the_study_of_faults_does():
    speed = np.ones(48)
    speed[[3, 17]] = 0.5, 0.75
    work = shared_work(ranks_on(mesh(), ((8, 6), *[ALONE] * 5)), speed, 1, 48 * 100.0, 1)
    rows = balanced_rows(4800, speed)
    assert work.pace == pytest.approx(rows.mean() / (rows / speed).max())


def test_members_of_tensor_parallel_groups_work_on_the_same_rows():
    """Of four groups of tp, each along a row of two, one device is slow: both take fewer rows."""
    network = mesh(rows=2, columns=4)
    speed = np.array([0.5, *[1.0] * 7])
    axes = ("tp", "tatp", "dp_shard", "cp", "dp_replicate", "pp")
    ranks = ranks_on(network, ((2, 1), (2, 2), *[ALONE] * 4), axes)
    work = shared_work(ranks, speed, 1, 700.0, 1)
    assert np.round(work.share[:, 0].ravel() * 175).tolist() == [100, 100]


@pytest.mark.parametrize("dead", [(0,), (3,), (19,), (9, 10), (0, 47)])
def test_a_stream_around_the_dead_goes_along_neighbours_and_closes_over_free_wires(dead):
    network = mesh(*dead)
    ranks = ranks_on(network)
    groups = ranks.groups("tatp")
    order = ranks.visit("tatp", closes=True)
    for group in groups.reshape(len(groups), -1)[:, order].tolist():
        hosts = [device for place, device in enumerate(group) if device not in group[:place]]
        steps = list(pairwise([*hosts, hosts[0]]))
        apart = [sum(abs(a - b) for a, b in zip(divmod(x, 8), divmod(y, 8), strict=True))
                 for x, y in steps]  # fmt: skip
        assert set(apart[:-1]) == {1}
        assert apart[-1] <= 2
        if apart[-1] == 2:
            first, last = steps[-1][::-1]
            wires = {frozenset(step) for step in steps[:-1]}
            between = [d for d in hosts if (d, first) in network.link_between
                       and (d, last) in network.link_between]  # fmt: skip
            assert between
            assert not wires & {frozenset((d, end)) for d in between for end in (first, last)}


@given(
    dead=st.sets(st.integers(0, 47), max_size=6),
    slow=st.dictionaries(st.integers(0, 47), st.floats(0.2, 1.0), max_size=4),
    batch=st.integers(4, 200),
    micro_batch=st.sampled_from([1, 2, 8]),
)
def test_every_rank_lives_and_all_work_is_done(dead, slow, batch, micro_batch):
    network = mesh(*dead)
    ranks = ranks_on(network)
    speed = network.speed_factor.copy()
    speed[[d for d in slow if d not in dead]] = [f for d, f in slow.items() if d not in dead]
    if ranks is None:
        return
    used = set(ranks.device.ravel().tolist())
    assert not used & dead
    work = shared_work(ranks, speed, batch, 256.0, micro_batch)
    if work is None:
        return
    assert work.sequences.sum() == batch
    assert 0.0 < work.pace <= 1.0 <= work.most_work
    assert (work.share[~ranks.is_host] == 0.0).all()
    # No split is faster than the mean speed: whole rows and sequences only take longer.
    per_replica = -(-batch // 4)
    num_micro_batches = -(-per_replica // micro_batch)
    equal = -(-micro_batch * 256 // 12) * num_micro_batches * 48
    mean_speed = speed[sorted(used)].sum() / 48.0
    assert work.pace <= max(mean_speed * equal / (batch * 256.0), 0.0) * 1.02 + 0.02
