"""What all layers take at the least, by which families are left out before they are priced."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sampled import sampled

import meshwright as mw
from meshwright.sharding.strategy import Recompute
from meshwright.train import families
from meshwright.train.families import _layers_s


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
