"""Communication of experts that another micro-batch hides."""

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.base.arrays import number_at
from meshwright.cost.layer import price_layers
from meshwright.cost.parts import TimePart
from meshwright.cost.pipeline import num_paired
from meshwright.cost.step import price_one
from meshwright.frameworks.registry import rendered
from meshwright.sharding.strategy import (
    PlanOptions,
    Recompute,
    ScheduleKind,
    make_strategy,
    stack,
)
from meshwright.train.question import check_problem, make_problem, training

SHOWN = PlanOptions(sequence_parallel=False)
HIDDEN = replace(SHOWN, overlap_expert_parallel=True)
INTERLEAVED = {"schedule": ScheduleKind.INTERLEAVED}
STAGES = make_strategy(pp=4, dp_shard=16, ep=16)
CHUNKS = make_strategy(pp=4, num_virtual_stages=2, dp_shard=16, ep=16)
ASKED = {"on": "64xH100", "seq": 4096, "global_batch": 256, "tp": 1, "pp": 4, "ep": 16, "mbs": 1}


def problem_of(system="64xH100", **fields):
    work = training(system, global_batch_size=256, sequence_length=4096, **fields)
    return make_problem("qwen3-30b-a3b", system, work, "uncalibrated")


@pytest.fixture(scope="module")
def problem():
    return problem_of()


def layer_of(problem, strategy, recompute=Recompute.NONE):
    network = problem.network(SHOWN.axis_order, stack([strategy]))
    return price_layers(problem, SHOWN, network, (recompute,), uses_tatp=False)[recompute][0]


def part(priced, name):
    return number_at(priced.step.time[name])


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_each_pass_hides_no_more_than_the_opposite_one_computes(problem, recompute):
    """Forward transfers behind backward computation, those of the backward pass behind forward."""
    layer = layer_of(problem, STAGES, recompute)
    ep_s, forward_s = number_at(layer.ep_s), number_at(layer.forward_s)
    computed_s = sum(
        number_at(s) for s in (layer.input_gradient_s, layer.weight_gradient_s, layer.recompute_s)
    )
    # Dispatch and combine take as long in each pass; full recomputation repeats the forward ones.
    ep_forward_s = ep_s / (3 if recompute is Recompute.FULL else 2)
    expected = min(ep_forward_s, computed_s) + min(ep_s - ep_forward_s, forward_s)
    assert number_at(layer.paired_s) == pytest.approx(expected, rel=1e-9)
    assert 0 < number_at(layer.paired_s) <= ep_s


@pytest.mark.parametrize(("strategy", "choices"), [(STAGES, {}), (CHUNKS, INTERLEAVED)])
def test_one_chunk_of_a_step_hides_nothing(problem, strategy, choices):
    """16 micro-batches: what shows is what no layer hides, and one chunk of what they do."""
    shown, hidden = (price_one(problem, replace(s, **choices), strategy) for s in (SHOWN, HIDDEN))
    saved_s = part(shown, TimePart.EP_COMM) - part(hidden, TimePart.EP_COMM)
    layer = layer_of(problem, strategy)
    layers, chunks = 48 / 4, number_at(strategy.num_virtual_stages)
    assert saved_s == pytest.approx((16 - 1 / chunks) * layers * number_at(layer.paired_s))
    for name in (TimePart.COMPUTE, TimePart.BUBBLE):
        assert part(hidden, name) == part(shown, name)
    assert part(hidden, TimePart.OVERLAP_SLOWDOWN) > part(shown, TimePart.OVERLAP_SLOWDOWN)
    assert part(shown, TimePart.EP_COMM) > saved_s > 0


def test_no_pair_without_a_second_micro_batch():
    assert number_at(num_paired(HIDDEN, 1.0, 1.0)) == 0.0
    assert number_at(num_paired(HIDDEN, 2.0, 8.0)) == 7.5
    assert number_at(num_paired(SHOWN, 2.0, 8.0)) == 0.0


def test_one_chunk_more_is_in_flight(problem):
    for strategy, choices in ((STAGES, {}), (CHUNKS, INTERLEAVED)):
        shown, hidden = (
            price_one(problem, replace(s, **choices), strategy).pipeline.states[0].in_flight
            for s in (SHOWN, HIDDEN)
        )
        more = 1.0 / number_at(strategy.num_virtual_stages)
        assert number_at(hidden) == pytest.approx(number_at(shown) + more)


@pytest.mark.parametrize(
    ("strategy", "plan_options", "framework", "rule"),
    [
        (replace(STAGES, ep=1.0), HIDDEN, None, "ep-overlap"),
        (STAGES, replace(HIDDEN, schedule=ScheduleKind.GPIPE), None, "ep-overlap"),
        (STAGES, HIDDEN, "megatron", "launch-expert-overlap"),
        (CHUNKS, replace(HIDDEN, **INTERLEAVED), "torchtitan", "launch-expert-overlap"),
        (
            CHUNKS, replace(HIDDEN, recompute=Recompute.FULL, **INTERLEAVED), "megatron",
            "launch-expert-recompute",
        ),
    ],
)  # fmt: skip
def test_what_hides_nothing_or_does_not_start_is_refused(strategy, plan_options, framework, rule):
    problem = problem_of(framework=framework)
    assert rule in [fault.path for fault in check_problem(problem, strategy, plan_options)]


def test_megatron_starts_interleaved_stages_that_hide_it():
    plan = mw.estimate("qwen3-30b-a3b", **ASKED, vpp=2, ep_overlap=True, framework="megatron")
    assert "ep_overlap" in plan.best.text
    (script,) = rendered(plan, "megatron").values()
    assert "--overlap-moe-expert-parallel-comm" in script
    with pytest.raises(mw.MeshwrightError, match="hide communication of experts of each other"):
        rendered(plan, "chakra")


def test_the_search_hides_it_where_it_is_asked_to():
    asked = {**ASKED, "vpp": 2}
    shown = mw.plan("qwen3-30b-a3b", **asked)
    hidden = mw.plan("qwen3-30b-a3b", **asked, ep_overlap=[True, False])
    assert not shown.best.plan_options.overlap_expert_parallel
    assert hidden.best.plan_options.overlap_expert_parallel
    assert hidden.best.estimate.step_time_s < shown.best.estimate.step_time_s
