"""What all layers take at the least, by which families are left out before they are priced."""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sampled import sampled
from small_problems import random_problem

import meshwright as mw
from meshwright.base.errors import InfeasibleError
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import PlanOptions, Recompute, make_strategy, stack
from meshwright.train import families
from meshwright.train.families import LayerTimes, _layers_s
from meshwright.train.search import fewer_devices, search
from meshwright.wafer.training import GRIDS


def pieces(*seconds):
    return tuple(SimpleNamespace(total_s=np.array(of_rows)) for of_rows in seconds)


def test_each_kind_of_layer_counts_with_its_cheapest_recomputation():
    """Three layers of 2 or 4 s and one of 1 or 0.5 s: 3 x 2 + 0.5 = 6.5 s; then 3 x 3 + 1 = 10."""
    layers = [SimpleNamespace(count=3), SimpleNamespace(count=1)]
    problem = SimpleNamespace(graph=SimpleNamespace(layers=layers))
    prices = {
        Recompute.NONE: pieces([2.0, 5.0], [1.0, 1.0]),
        Recompute.FULL: pieces([4.0, 3.0], [0.5, 2.0]),
    }
    assert _layers_s(problem, prices).tolist() == pytest.approx([6.5, 10.0], rel=1e-8)
    assert (_layers_s(problem, prices) <= [6.5, 10.0]).all()


@pytest.mark.parametrize("system", sampled(["8xH100", "wafer-2x4"], 1))
def test_dropped_prices_are_made_again_to_the_last_digit(monkeypatch, system):
    question = {"on": system, "seq": 2048, "global_batch": 32}
    question |= {} if "wafer" in system else {"pp": 1, "cp": 1}
    model = "gpt3-6.7b" if "wafer" in system else "mixtral-8x7b"
    kept = mw.plan(model, **question)
    made, again = [], families._priced_again
    monkeypatch.setattr(families, "MOST_PRICES", 0)
    monkeypatch.setattr(families, "NEAR", 1.0)
    monkeypatch.setattr(families, "_priced_again", lambda *all: made.append(1) or again(*all))
    other = mw.plan(model, **question)
    assert made
    assert (other.best, other.runners_up) == (kept.best, kept.runners_up)
    assert other.robustness == kept.robustness
    assert replace(other.coverage, elapsed_s=0.0) == replace(kept.coverage, elapsed_s=0.0)


def test_members_of_a_family_know_the_replicas_of_their_shards():
    """Accelerate on eight devices: buckets of gradients, which one device alone has not."""
    plan = mw.plan("llama3.2-1b", on="8xH100", seq=8192, global_batch=64, framework="accelerate")
    fixed = {"dp": 8, "mbs": 2, "zero": 0, "recompute": "none"}
    asked = {"seq": 8192, "global_batch": 64, "framework": "accelerate"}
    too_large = mw.fit("llama3.2-1b", on="8xH100", **asked, **fixed)
    assert not too_large.best.estimate.fits
    assert plan.best.estimate.memory_bytes <= plan.system.chip.main_memory.capacity_bytes
    assert plan.best.text != too_large.best.text


def test_times_of_layers_hold_for_any_number_of_replicas_and_stages():
    """Ways to split a layer: the least time of each; 0 where one is unknown or has another kind."""
    times, other, layout = LayerTimes(), LayerTimes(), PlanOptions()
    times.note(layout, stack([make_strategy(tp=2, pp=2), make_strategy(tp=2)]), np.array([3.0, 2]))
    other.note(layout, stack([make_strategy(tp=4), make_strategy(tp=2)]), np.array([1.0, 5]))
    times.add(other)
    asked = stack([make_strategy(tp=2, dp_replicate=3), make_strategy(tp=4), make_strategy(cp=2)])
    assert times.of(layout, asked).tolist() == [2.0, 1.0, 0.0]
    assert not times.of(replace(layout, sequence_parallel=False), asked).any()


@pytest.mark.parametrize("seed", sampled(range(100), 8))
def test_known_times_of_layers_leave_out_no_candidate(seed):
    """Fewer devices: what is left out by the layers of all devices is no candidate without them."""
    chance = random.Random(seed)
    space = GRIDS.space(random_problem(chance), Choices({}))
    try:
        result = search(space, top=64)
    except InfeasibleError:
        return
    within_s = result.lower_bound_s * chance.choice([1.0, 1.05, 1.3])
    unknown = replace(result, families=replace(result.families, layer_times=LayerTimes()))
    few = fewer_devices(space, result, within_s)
    every = fewer_devices(space, unknown, within_s)
    assert few.found == every.found
    assert few.lower_bound_s == every.lower_bound_s
    assert few.counts.pruned_by_bound == every.counts.pruned_by_bound
