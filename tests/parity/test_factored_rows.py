"""What the search prices by parts, priced whole; and what it leaves out, priced after all."""

import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from sampled import sampled
from small_problems import random_problem

from meshwright.base.errors import InfeasibleError
from meshwright.cost.parts import TimePart
from meshwright.cost.step import price_columns
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import ContextKind, Recompute, StrategyOf, row
from meshwright.train.question import make_problem, training
from meshwright.train.search import search
from meshwright.train.space import SearchSpace

NUM_ROWS = 10_000
PRUNED_SEEDS = range(50)


def large_space():
    """GPT-3 175B on 512 A100s, 1536 sequences of 2048 tokens: the whole space of plans."""
    work = training("512xA100", sequence_length=2048, global_batch_size=1536)
    return SearchSpace(make_problem("gpt3-175b", "512xA100", work, "uncalibrated"), Choices())


class Sample:
    """Rows of priced blocks, drawn evenly over all rows that pass: one of ``every``."""

    def __init__(self, every, seed):
        self.every, self.chance = every, np.random.default_rng(seed)
        self.rows = defaultdict(list)
        self.num_seen = 0

    def visit(self, block):
        """Keep some rows of a block with all parts of their price."""
        families = block.families
        number = len(block.family_rows)
        self.num_seen += number
        kept = np.flatnonzero(self.chance.random(number) * self.every < 1.0)
        for index in kept.tolist():
            family = families.option_set_of[block.family_rows[index]]
            plan_options = replace(
                families.option_sets[int(family)],
                zero_stage=block.plan_options.zero_stage,
                reshard_after_forward=block.plan_options.reshard_after_forward,
                offload=block.plan_options.offload,
            )
            parts = [np.broadcast_to(block.time[n], number)[index] for n in TimePart]
            found = (row(block.strategy, index), (*parts, block.memory_bytes[index]))
            self.rows[plan_options].append(found)


def columns_of(strategies):
    names = vars(strategies[0])
    return StrategyOf(**{n: np.array([getattr(s, n) for s in strategies]) for n in names})


def priced_whole(problem, plan_options, strategies):
    """Return time parts and memory of some strategies, through the chain that prices one."""
    step = price_columns(problem, plan_options, columns_of(strategies)).step
    number = len(strategies)
    parts = [np.broadcast_to(step.time[name], number) for name in TimePart]
    return np.stack([*parts, np.broadcast_to(step.memory_bytes, number)], axis=1)


def compare(problem, sample):
    """Return the number of rows compared; fails at the first part that differs."""
    compared = 0
    for plan_options, found in sample.rows.items():
        whole = priced_whole(problem, plan_options, [strategy for strategy, _ in found])
        factored = np.array([numbers for _, numbers in found])
        np.testing.assert_allclose(factored, whole, rtol=1e-12, atol=0.0, err_msg=str(plan_options))
        compared += len(found)
    return compared


@pytest.mark.parametrize(
    ("model", "system", "batch", "every"),
    [
        ("llama3-8b", "8xH100", 64, 20),
        pytest.param("mixtral-8x7b", "64xH100", 1024, 2_000, marks=pytest.mark.slow),
    ],
)
def test_rows_of_a_space_are_their_own_price(model, system, batch, every):
    work = training(system, sequence_length=8192, global_batch_size=batch)
    space = SearchSpace(make_problem(model, system, work, "uncalibrated"), Choices())
    sample = Sample(every=every, seed=11)
    search(space, visit=sample.visit)
    assert compare(space.problem, sample) > 50


@pytest.mark.slow
def test_ten_thousand_rows_of_the_large_space_are_their_own_price():
    space = large_space()
    count = search(space, prune=False).counts
    assert count.total >= 13_000_000
    sample = Sample(every=count.priced / (1.05 * NUM_ROWS), seed=12)
    result = search(space, prune=False, visit=sample.visit)
    assert sample.num_seen == result.counts.priced
    assert compare(space.problem, sample) >= NUM_ROWS


@pytest.mark.parametrize("seed", sampled(PRUNED_SEEDS, 4))
def test_pruning_loses_none_of_the_best(seed):
    chance = random.Random(10_000 + seed)
    result = None
    while result is None:
        fixed = {"recompute": (chance.choice(list(Recompute)),)}
        fixed["context_kind"] = (chance.choice(list(ContextKind)), ContextKind.RING)
        space = SearchSpace(random_problem(chance), Choices(fixed))
        try:
            result = search(space, top=5)
        except InfeasibleError:
            continue
    everything = search(space, top=5, prune=False)
    assert result.counts.total == everything.counts.total
    assert everything.counts.pruned_by_bound == 0
    assert [f.time_s for f in result.found[:5]] == [f.time_s for f in everything.found[:5]]
    assert result.lower_bound_s == everything.lower_bound_s
