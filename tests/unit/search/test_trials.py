"""Short trials: expected regret by hand, and the choice against every other one."""

from itertools import combinations
from math import pi, sqrt

import numpy as np
import pytest

from meshwright.search.robustness import choose_trials, expected_regret, with_plan_errors

NUM_DRAWS = 40_000
GENERATOR = np.random.default_rng(7)


def random_plans(seed, number=5, num_draws=400):
    """Return draws of ln(time) of plans that share two resources and have errors of their own."""
    generator = np.random.default_rng(seed)
    shared = generator.normal(0.0, 0.05, (2, num_draws))
    loads = generator.uniform(0.0, 1.0, (number, 2))
    middle = generator.uniform(0.0, 0.03, (number, 1))
    return with_plan_errors(middle + loads @ shared, 0.02, seed)


def test_regret_of_two_plans_by_hand():
    # One is known, the other slower by a normal of spread s: E max(0, -s z) = s / sqrt(2 pi).
    spread, noise = 0.01, 0.005
    table = np.vstack([np.zeros(NUM_DRAWS), spread * GENERATOR.standard_normal(NUM_DRAWS)])
    table[1] -= table[1].mean()
    before = expected_regret(table, [], noise)
    assert before == pytest.approx(spread / sqrt(2 * pi), rel=0.03)
    # A trial moves the expectation by a normal of s^2 / sqrt(s^2 + noise^2), which it wins back.
    left = spread - spread**2 / sqrt(spread**2 + noise**2)
    assert expected_regret(table, [1], noise) == pytest.approx(left / sqrt(2 * pi), rel=0.08)


def test_exact_trials_of_all_plans_leave_no_regret():
    table = random_plans(3)
    assert expected_regret(table, range(len(table)), 1e-6) == pytest.approx(0.0, abs=1e-6)


def test_plans_that_move_together_need_no_trial():
    shared = GENERATOR.normal(0.0, 0.2, 500)
    table = np.array([[0.0], [0.004], [0.01]]) + shared
    found = choose_trials(table, 0.02)
    assert found.chosen == ()
    assert found.regrets == pytest.approx([0.0], abs=1e-12)
    assert found.best_shares == pytest.approx([1.0, 0.0, 0.0])


@pytest.mark.parametrize("seed", range(8))
def test_the_first_trial_is_the_best_single_one(seed):
    table = random_plans(seed)
    found = choose_trials(table, 0.01, worth=0.0)
    singles = [expected_regret(table, [n], 0.01) for n in range(len(table))]
    assert found.chosen[0] == int(np.argmin(singles))
    assert found.regrets[1] == pytest.approx(min(singles))
    assert list(found.regrets) == sorted(found.regrets, reverse=True)


@pytest.mark.parametrize("seed", range(8))
def test_one_after_another_is_near_the_best_pair(seed):
    table = random_plans(seed)
    found = choose_trials(table, 0.01, most=2, worth=0.0)
    pairs = [expected_regret(table, pair, 0.01) for pair in combinations(range(len(table)), 2)]
    saved, possible = found.regrets[0] - found.regrets[-1], found.regrets[0] - min(pairs)
    assert saved >= 0.75 * possible


def test_known_plans_are_not_tried_again():
    table = random_plans(1)
    first = choose_trials(table, 0.01, worth=0.0).chosen[0]
    assert first not in choose_trials(table, 0.01, known=(first,), worth=0.0).chosen
    everything = range(len(table))
    assert choose_trials(table, 0.01, known=everything, worth=0.0).chosen == ()


def test_trials_stop_where_they_are_not_worth_it():
    table = random_plans(2)
    assert choose_trials(table, 0.01, worth=1.0).chosen == ()
    assert len(choose_trials(table, 0.01, most=1, worth=0.0).chosen) == 1
