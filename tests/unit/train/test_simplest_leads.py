"""Of plans within the error of plans the simplest that starts leads; the faster one follows."""

import numpy as np
import pytest

from meshwright.search.leading import complexity
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import Offload, PlanOptions, ScheduleKind, make_strategy, stack
from meshwright.train.explain import what_would_fit
from meshwright.train.measured.factors import PLAN_ERROR
from meshwright.train.plan import plan
from meshwright.train.price import estimate
from meshwright.train.question import make_problem, training
from meshwright.train.search import search
from meshwright.train.space import SearchSpace

MODEL, SYSTEM = "llama3-8b", "16xH100"
WORK = training(SYSTEM, sequence_length=4096, global_batch_size=64)
FEW = {"recompute": ["none"], "micro_batch_size": [1], "context_kind": ["ring"]}


@pytest.fixture(scope="module")
def simple():
    return plan(MODEL, SYSTEM, WORK, allowed=FEW)


@pytest.fixture(scope="module")
def fast():
    return plan(MODEL, SYSTEM, WORK, allowed=FEW, prefers_simple=False)


def of(entry):
    return int(complexity(stack([entry.strategy]), entry.plan_options)[0])


def test_a_simpler_plan_within_the_error_leads_and_the_faster_one_follows(simple, fast):
    times = simple.best.estimate.step_time_s / fast.best.estimate.step_time_s
    assert 1.0 < times <= 1.0 + PLAN_ERROR
    assert of(simple.best) < of(fast.best)
    assert simple.runners_up[0].text == fast.best.text
    assert simple.fastest_s == fast.fastest_s


@pytest.mark.slow
def test_no_plan_that_starts_is_simpler(simple, fast):
    """Every plan within the error, one by one."""
    problem = make_problem(MODEL, SYSTEM, WORK, "calibrated")
    limit_s = fast.fastest_s * (1.0 + PLAN_ERROR)
    every = search(SearchSpace(problem, Choices(FEW)), within_s=limit_s).found
    assert len(every) > 3
    assert of(simple.best) == min(map(of, every))


@pytest.mark.slow
def test_what_a_framework_starts_follows_the_same_rule():
    asked = training(SYSTEM, sequence_length=4096, global_batch_size=64, framework="megatron")
    found = plan(MODEL, SYSTEM, asked, allowed=FEW)
    fastest = plan(MODEL, SYSTEM, asked, allowed=FEW, prefers_simple=False)
    assert of(found.best) <= of(fastest.best)
    assert "megatron" in found.best.launches_with


def test_axes_beyond_data_parallelism_and_unusual_choices_count():
    plain = PlanOptions()
    rows = stack([make_strategy(dp_shard=8), make_strategy(tp=2, dp_shard=4),
                  make_strategy(pp=4, num_virtual_stages=2), make_strategy(dp_shard=8, ep=8),
                  make_strategy(dp_shard=4, dp_replicate=2), make_strategy(cp=8),
                  make_strategy(tp=2, cp=4), make_strategy(dp_replicate=8)])  # fmt: skip
    assert complexity(rows, plain).tolist() == [0, 1, 2, 1, 1, 1, 2, 0]
    unusual = PlanOptions(schedule=ScheduleKind.ZERO_BUBBLE, offload=Offload.OPTIMIZER)
    assert np.all(complexity(rows, unusual) == complexity(rows, plain) + 2)


@pytest.mark.slow
def test_the_advice_of_fit_is_the_plan():
    """Where no single change is enough, ``fit`` and ``plan`` recommend the same."""
    work = training("8xH100", sequence_length=8192, global_batch_size=64)
    strategy, plan_options = make_strategy(dp_shard=8), PlanOptions(sequence_parallel=False)
    advice = what_would_fit(estimate("llama3-70b", "8xH100", work, strategy, plan_options))
    assert [entry.text for entry in advice] == [plan("llama3-70b", "8xH100", work).best.text]
