"""Full recomputation of some layers of each chunk: between none and all of them."""

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.base.arrays import number_at
from meshwright.cost.parts import MemoryPart, TimePart
from meshwright.cost.pipeline import deal_layers
from meshwright.cost.step import price_one
from meshwright.sharding.strategy import PlanOptions, Recompute, ScheduleKind, make_strategy
from meshwright.train.question import make_problem, training

NONE = PlanOptions(sequence_parallel=False)
FULL = replace(NONE, recompute=Recompute.FULL)
STAGES = make_strategy(pp=4, dp_shard=16)
CHUNKS = make_strategy(pp=4, num_virtual_stages=2, dp_shard=16)


@pytest.fixture(scope="module")
def problem():
    work = training("64xH100", global_batch_size=256, sequence_length=8192)
    return make_problem("llama3-8b", "64xH100", work, "uncalibrated")


def some(number, **choices):
    return replace(FULL, recompute_layers=number, **choices)


def test_the_first_layers_of_each_chunk_are_counted_before_the_others():
    """Kinds 0 0 1 0 0 1, two stages of one run of three: one layer each, two of other kinds."""
    assert deal_layers((0, 0, 1) * 2, 2, 2, 1, some(1)).tolist() == [[1, 0, 1, 1]] * 2
    assert deal_layers((0, 0, 1) * 2, 2, 2, 1, some(2)).tolist() == [[2, 0, 0, 1]] * 2


def test_chunks_of_one_stage_each_recompute_their_own():
    """Twelve layers on 2 x 2 chunks of three: two of each recomputed, four of six in a stage."""
    assert deal_layers((0,) * 12, 1, 2, 2, some(2)).tolist() == [[4, 2], [4, 2]]


def test_time_and_memory_of_n_layers_are_those_of_n_full_and_the_rest_kept(problem):
    """Stages of 8 of 32 layers: n of 8 of what full adds, and of what it saves, to hand."""
    none, full = (price_one(problem, s, STAGES) for s in (NONE, FULL))
    for number in (1, 3, 8):
        found = price_one(problem, some(number), STAGES)
        for pick in (
            lambda p: number_at(p.step.time[TimePart.RECOMPUTE]),
            lambda p: number_at(p.step.memory[1][MemoryPart.ACTIVATIONS]),
            lambda p: number_at(p.step.flops),
        ):
            share = number / 8
            expected = pick(none) + share * (pick(full) - pick(none))
            assert pick(found) == pytest.approx(expected, rel=1e-12)
        assert number_at(found.step.memory[1][MemoryPart.TEMPORARY]) == number_at(
            full.step.memory[1][MemoryPart.TEMPORARY]
        )


@pytest.mark.parametrize(
    ("strategy", "choices"),
    [(STAGES, {}), (CHUNKS, {"schedule": ScheduleKind.INTERLEAVED}), (STAGES, {"head_layers": 2})],
)
def test_time_rises_and_activations_fall_with_each_layer(problem, strategy, choices):
    """Beyond the longest chunk nothing changes any more: all of it is recomputed."""
    prices = [price_one(problem, some(n, **choices), strategy) for n in range(1, 12)]
    times = [number_at(price.step.time.total_s) for price in prices]
    kept = [number_at(price.step.memory[1][MemoryPart.ACTIVATIONS]) for price in prices]
    none, full = (price_one(problem, replace(s, **choices), strategy).step for s in (NONE, FULL))
    assert times == sorted(times)
    assert kept == sorted(kept, reverse=True)
    assert number_at(none.time.total_s) < times[0] < times[-1]
    assert times[-1] == pytest.approx(number_at(full.time.total_s), rel=1e-12)
    assert kept[-1] == pytest.approx(number_at(full.memory[1][MemoryPart.ACTIVATIONS]), rel=1e-12)


def test_hardware_flops_count_what_is_repeated():
    """HFU over MFU grows by the share of layers that are repeated: 2 of 8, 8 of 8."""
    asked = {"on": "64xH100", "seq": 8192, "global_batch": 256, "pp": 4, "tp": 1}
    ratio = {}
    for number in (0, 2, 8):
        kind = "full" if number else "none"
        plan = mw.estimate("llama3-8b", **asked, recompute=kind, recompute_layers=number)
        ratio[number] = plan.best.estimate.hfu / plan.best.estimate.mfu_causal
    assert ratio[2] - ratio[0] == pytest.approx((ratio[8] - ratio[0]) / 4, rel=1e-9)


def test_a_number_of_layers_asks_for_full_recomputation():
    asked = {"on": "64xH100", "seq": 8192, "global_batch": 256, "pp": 4, "tp": 1}
    plan = mw.estimate("llama3-8b", **asked, recompute_layers=2)
    assert plan.best.text.endswith("recompute=full, recompute_layers=2")
    with pytest.raises(mw.MeshwrightError, match="says nothing about selective recomputation"):
        mw.estimate("llama3-8b", **asked, recompute_layers=2, recompute="selective")


@pytest.mark.parametrize(("length", "fewest"), [("8k", 2), ("32k", 4)])
def test_the_search_offers_what_it_is_given_and_takes_the_fewest_that_fit(length, fewest):
    asked = {"on": "8xH100", "seq": length, "global_batch": 8, "pp": 8, "tp": 1, "vpp": 1}
    found = mw.plan("llama3-8b", **asked, recompute="full", recompute_layers=[2, 4], mbs=1)
    assert found.best.plan_options.recompute_layers == fewest


@pytest.mark.slow
def test_a_simulated_step_lies_between_those_of_none_and_of_all_layers():
    """Stages of 8 layers: 3 of them recomputed take 3/8 of the way, in compute time."""
    asked = {"on": "wafer-6x8", "seq": 4096, "global_batch": 48, "pp": 4, "tp": 4}
    played = {
        number: mw.simulate(
            mw.estimate(
                "llama3-8b", **asked, recompute="full" if number else "none",
                recompute_layers=number,
            )
        ).step.step_time_s
        for number in (0, 3, 8)
    }  # fmt: skip
    assert played[0] < played[3] < played[8]
    assert (played[3] - played[0]) / (played[8] - played[0]) == pytest.approx(3 / 8, abs=0.05)


def runs_of(number, **choices):
    return replace(FULL, recompute_run=number, **choices)


def test_runs_count_their_first_layer_before_the_others():
    """Twelve layers on 2 x 2 chunks of three: runs of two keep two inputs a chunk, 4 of 6."""
    assert deal_layers((0,) * 12, 1, 2, 2, runs_of(2)).tolist() == [[4, 2], [4, 2]]
    assert deal_layers((0,) * 12, 1, 2, 2, runs_of(5)).tolist() == [[2, 4], [2, 4]]


@pytest.mark.parametrize(("number", "inputs"), [(1, 8), (2, 4), (3, 3), (8, 1), (20, 1)])
def test_a_run_keeps_one_input_and_brings_all_of_its_layers_back(problem, number, inputs):
    """Stages of 8 layers of llama3-8b in sequences of 8192 in bf16: 64 MiB for each input.

    A layer brings back what it would have kept, so N layers of a run (at most the 8 of the stage)
    bring back N - 1 times as much as one layer alone in addition. FLOPs and time are the same.
    """
    full, found = (price_one(problem, s, STAGES) for s in (FULL, runs_of(number)))
    none = price_one(problem, NONE, STAGES)
    memory = found.step.memory[1]
    assert number_at(memory[MemoryPart.ACTIVATIONS]) == 3 * inputs * 8192 * 4096 * 2
    of_layer = number_at(none.step.memory[1][MemoryPart.ACTIVATIONS]) / (3 * 8)
    brought_back = number_at(
        memory[MemoryPart.TEMPORARY] - full.step.memory[1][MemoryPart.TEMPORARY]
    )
    assert brought_back == pytest.approx((min(number, 8) - 1) * of_layer, rel=1e-12)
    assert number_at(found.step.flops) == number_at(full.step.flops)
    assert number_at(found.step.time.total_s) == pytest.approx(
        number_at(full.step.time.total_s), rel=1e-12
    )


def test_a_run_says_nothing_about_some_of_the_layers():
    asked = {"on": "64xH100", "seq": 8192, "global_batch": 256, "pp": 4, "tp": 1}
    plan = mw.estimate("llama3-8b", **asked, recompute_run=4)
    assert plan.best.text.endswith("recompute=full, recompute_run=4")
    with pytest.raises(mw.MeshwrightError, match="recompute-runs"):
        mw.estimate("llama3-8b", **asked, recompute_run=4, recompute_layers=2)


def test_the_search_takes_the_runs_that_it_is_given():
    asked = {"on": "8xH100", "seq": "32k", "global_batch": 8, "pp": 8, "tp": 1, "vpp": 1}
    found = mw.plan("llama3-8b", **asked, recompute="full", recompute_run=4, mbs=1)
    assert found.best.plan_options.recompute_run == 4
