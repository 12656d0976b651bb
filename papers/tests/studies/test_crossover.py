"""The crossover study: which axes a plan uses, and that a larger space is never slower."""

from types import SimpleNamespace

from meshwright.sharding.strategy import make_strategy
from meshwright_papers.studies.crossover import SETUPS, SPACES, axes_of, best_in


def test_axes_in_use_are_those_of_more_than_one_device():
    plan = SimpleNamespace(strategy=make_strategy(tp=8, dp_shard=2, dp_replicate=2, ep=4))
    assert axes_of(plan) == ("dp", "tp", "ep")
    assert axes_of(None) == ()


def test_a_larger_space_is_never_slower():
    dense = SETUPS[0]
    times = {space: best_in(dense, 64, space).estimate.step_time_s for space in SPACES}
    # The plan that leads is the fastest that a framework starts with its own memory, by its own
    # price; that of the question orders near ties otherwise.
    near_ties = 1.0 + 1e-3
    assert times["dp"] * near_ties >= times["dp pp tp"]
    assert times["dp pp tp"] * near_ties >= times["with cp"]
    assert times["with ep"] == times["dp pp tp"]
    assert times["with cp ep"] == times["with cp"]
