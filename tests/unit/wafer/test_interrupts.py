"""Ctrl-C in a search on a grid: the best so far, placed, and no proof."""

import pytest

import meshwright as mw
from meshwright import api
from meshwright.ask.questions import Plan as Question
from meshwright.wafer import training

QUESTION = {"model": "gpt2-355m", "on": "wafer-6x8", "seq": 1024, "global_batch": 48}


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_the_best_so_far_is_placed_and_not_proven():
    whole = mw.plan(**QUESTION, simulated=0)
    found = api.plan.answer(Question.ask(QUESTION), api.Call(search=interrupt))
    assert (whole.coverage.is_complete, found.coverage.is_complete) == (True, False)
    assert found.best.placement is not None
    assert found.best.simulated_s is None
    # Its bound holds for the best of all.
    assert found.coverage.lower_bound_s <= whole.best.estimate.step_time_s * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("num_played", [0, 1])
def test_a_simulation_that_is_interrupted_leaves_the_plan(monkeypatch, num_played):
    whole, simulated, calls = mw.plan(**QUESTION, simulated=0), training._simulated, []

    def some(*args):
        calls.append(args)
        return simulated(*args) if len(calls) <= num_played else interrupt()

    monkeypatch.setattr(training, "_simulated", some)
    found = mw.plan(**QUESTION, simulated=3)
    listed = [found.best, *found.runners_up]
    assert sum(entry.simulated_s is not None for entry in listed) == num_played
    assert {entry.text for entry in listed} == {
        entry.text for entry in (whole.best, *whole.runners_up)
    }
