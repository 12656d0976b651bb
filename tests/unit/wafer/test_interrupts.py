"""Ctrl-C in a search on a grid: the best so far, placed, and no proof."""

import pytest

import meshwright as mw
from meshwright import api
from meshwright.ask.questions import Plan as Question
from meshwright.wafer import training
from meshwright.wafer.search import PlacementSearch

LARGE = {"model": "gpt2-355m", "on": "wafer-6x8", "seq": 1024, "global_batch": 48}
SMALL = {"model": "gpt2-355m", "on": "wafer-2x4", "seq": 1024, "global_batch": 8,
         "tp": 1, "pp": 1, "cp": 1, "mbs": 1, "recompute": "none"}  # fmt: skip


@pytest.fixture(
    scope="module", params=[SMALL, pytest.param(LARGE, marks=pytest.mark.slow)],
    ids=["small", "large"],
)  # fmt: skip
def question(request):
    return request.param


@pytest.fixture(scope="module")
def whole(question):
    return mw.plan(**question, simulated=0)


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def test_the_best_so_far_is_placed_and_not_proven(question, whole):
    found = api.plan.answer(Question.ask(question), api.Call(search=interrupt))
    assert (whole.coverage.is_complete, found.coverage.is_complete) == (True, False)
    assert found.best.placement is not None
    assert found.best.simulated_s is None
    # Its bound holds for the best of all.
    assert found.coverage.lower_bound_s <= whole.best.estimate.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize("is_late", [False, True])
def test_placing_that_is_interrupted_leaves_the_best_so_far(monkeypatch, question, whole, is_late):
    price_next, calls = PlacementSearch._price_next, []

    def some(placing):
        calls.append(placing)
        if is_late or len(calls) > 1:
            price_next(placing)
        if len(calls) == 1:
            interrupt()

    monkeypatch.setattr(PlacementSearch, "_price_next", some)
    found = mw.plan(**question)
    assert not found.coverage.is_complete
    assert found.best.placement is not None
    assert found.coverage.lower_bound_s <= whole.best.estimate.step_time_s * (1 + 1e-9)


def test_progress_goes_on_while_candidates_are_placed(question, whole):
    seen = []
    api.plan.answer(Question.ask(question), api.Call(search=lambda *now: seen.append(now)))
    counts, best, left_s = seen[-1]
    assert counts.priced >= 1
    assert best.times_s[0] == pytest.approx(whole.fastest_s)
    assert left_s >= best.times_s[0] * (1 - 1e-9)


@pytest.mark.parametrize("num_played", [0, 1])
def test_a_simulation_that_is_interrupted_leaves_the_plan(monkeypatch, question, whole, num_played):
    simulated, calls = training._simulated_s, []

    def some(*args):
        calls.append(args)
        return simulated(*args) if len(calls) <= num_played else interrupt()

    monkeypatch.setattr(training, "_simulated_s", some)
    found = mw.plan(**question, simulated=3)
    listed = [found.best, *found.runners_up]
    assert sum(entry.simulated_s is not None for entry in listed) == num_played
    assert {entry.text for entry in listed} == {
        entry.text for entry in (whole.best, *whole.runners_up)
    }
