"""The best pace of ranks on a grid with faults, by hand and against every placement."""

import random

import numpy as np
import pytest
from placed_problems import grid_problem

from meshwright.cost.bound import best_paces
from meshwright.network.placement import all_choices, stated_ranks
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.wafer.price import physical_network, work_of


def paces(problem, **degrees):
    return tuple(float(one[0]) for one in best_paces(problem, stack([make_strategy(**degrees)])))


def test_ranks_of_dead_devices_are_work_for_the_others():
    """Eight ranks on six devices have 8 / 6 of the work; rows are rounded, by half a row of 64."""
    problem = grid_problem(4, 2, dead_devices=(0, 7), global_batch_size=8, sequence_length=64)
    pace, most_work, states = paces(problem, tp=2, tatp=2, dp_shard=2, micro_batch_size=1)
    assert most_work == pytest.approx(8 / 6 * (64 - 0.5) / 64)
    assert pace == pytest.approx(6 / 8 * 64 / (64 - 0.5))
    assert states == 2.0  # floor(6 / 8 x 2) = 1 of two members keeps the weights of both


def test_the_remaining_members_of_a_stream_hold_all_states():
    """Of streams of 4 on 6 of 8 devices one keeps 3 members at most; without streams 2 ranks lie
    on a device."""
    problem = grid_problem(4, 2, dead_devices=(0, 7), global_batch_size=8, sequence_length=64)
    assert paces(problem, tatp=4, dp_shard=2)[2] == pytest.approx(4 / 3)
    assert paces(problem, dp_shard=8)[2] == 2.0
    assert paces(problem, dp_shard=6)[2] == 1.0


def test_ranks_of_fewer_devices_take_the_fastest():
    """Devices at half speed: four ranks leave them, eight wait for a mean of 7 / 8."""
    problem = grid_problem(
        4, 2, speed_factors={0: 0.5, 5: 0.5}, global_batch_size=8, sequence_length=64
    )
    assert paces(problem, tatp=4)[0] == 1.0
    assert paces(problem, tatp=4, dp_shard=2)[0] == pytest.approx(7 / 8 * 64 / (64 - 0.5))


@pytest.mark.parametrize("seed", range(40))
def test_no_way_to_lay_a_strategy_has_a_better_pace(seed):
    draw = random.Random(seed)
    dead = tuple(sorted(draw.sample(range(8), draw.choice((0, 1, 2)))))
    slow = draw.sample([n for n in range(8) if n not in dead], draw.choice((1, 2)))
    speeds = {n: draw.choice((0.5, 0.8)) for n in slow}
    problem = grid_problem(4, 2, dead_devices=dead, speed_factors=speeds)
    physical = physical_network(problem)
    for tp, tatp, dp in ((1, 8, 1), (2, 2, 2), (1, 4, 2), (1, 3, 2), (2, 3, 1), (4, 1, 2)):
        size = draw.choice((1, 2))
        strategy = make_strategy(tp=tp, tatp=tatp, dp_shard=dp, micro_batch_size=size)
        (pace,), (most_work,), (states,) = map(
            np.atleast_1d, best_paces(problem, stack([strategy]))
        )
        for choice in all_choices(PlanOptions(), strategy, problem.grid_sides):
            ranks = stated_ranks(physical, problem.grid_sides, choice)
            work = None if ranks is None else work_of(problem, strategy, ranks, physical)
            if work is not None:
                assert work.pace <= pace * (1.0 + 1e-12)
                assert work.most_work >= most_work * (1.0 - 1e-12)
                assert work.states >= states
