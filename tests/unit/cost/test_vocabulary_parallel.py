"""Vocabulary parallelism: embedding and logits split over all pipeline stages."""

import pytest

import meshwright as mw
from meshwright.base.arrays import number_at
from meshwright.cost.parts import TimePart
from meshwright.cost.step import price_one
from meshwright.graph.op import Phase
from meshwright.sharding.derivation import derive_calls
from meshwright.sharding.strategy import PlanOptions, ScheduleKind, make_strategy
from meshwright.spec.collective import CollectiveKind as Kind
from meshwright.train.question import check_problem, make_problem, training

STRATEGY = make_strategy(pp=8, dp_shard=8)
ENDS = PlanOptions(sequence_parallel=False)
ALL = PlanOptions(sequence_parallel=False, vocabulary_parallel=True)
DIMS = {"seq": "8k", "global_batch": 256, "pp": 8, "tp": 1}


@pytest.fixture(scope="module")
def problem():
    work = training("64xH100", global_batch_size=256, sequence_length=8192)
    return make_problem("llama3-8b", "64xH100", work, "uncalibrated")


def over_stages(graph, plan_options):
    calls = derive_calls(graph, plan_options, axes=("pp",))
    return [(c.kind, c.tensor.name, c.phase) for c in calls if not c.per_step]


def test_calls_are_those_of_the_paper(problem):
    """Input to all stages, three numbers of each token summed, and the gradient of the input."""
    assert over_stages(problem.graph.head, ALL) == [
        (Kind.BROADCAST, "head.norm.output", Phase.FORWARD),
        *((Kind.ALL_REDUCE, f"head.logits.{name}", Phase.FORWARD)
          for name in ("maximum", "sum_of_exponentials", "target_logit")),
        (Kind.ALL_REDUCE, "head.norm.output.gradient", Phase.INPUT_GRADIENT),
    ]  # fmt: skip
    assert over_stages(problem.graph.embedding, ALL) == [
        (Kind.ALL_REDUCE, "embedding.lookup", Phase.FORWARD),
        (Kind.BROADCAST, "embedding.lookup.gradient", Phase.INPUT_GRADIENT),
    ]
    assert over_stages(problem.graph.head, ENDS) == []


def test_each_stage_holds_its_part_of_both_tables(problem):
    stage = price_one(problem, ALL, STRATEGY).pipeline.states
    tables = 2 * 128_256 * 4_096 / 8
    layers = 4 * (4_096 * 4_096 * 2 + 2 * 4_096 * 1_024 + 3 * 4_096 * 14_336 + 2 * 4_096)
    for position in stage:
        assert number_at(position.dense_params) == layers + tables + 4_096  # and the last norm


def test_no_work_is_lost(problem):
    """A device executes on average what it did before, and the slowest one exactly that."""
    ends, everywhere = (price_one(problem, s, STRATEGY).pipeline for s in (ENDS, ALL))
    assert number_at(everywhere.mean.flops) == pytest.approx(number_at(ends.mean.flops), rel=1e-12)
    assert number_at(everywhere.flops) == pytest.approx(number_at(everywhere.mean.flops), rel=1e-12)
    assert number_at(ends.flops) > 1.3 * number_at(everywhere.flops)


def test_what_it_costs_shows_as_pipeline_communication(problem):
    ends, everywhere = (price_one(problem, s, STRATEGY).pipeline for s in (ENDS, ALL))
    parts = [price.time for price in (ends, everywhere)]
    computed = [number_at(time[TimePart.COMPUTE] + time[TimePart.MAIN_MEMORY]) for time in parts]
    assert computed[1] < computed[0]
    assert number_at(parts[1][TimePart.PP_COMM]) > number_at(parts[0][TimePart.PP_COMM])


def test_one_micro_batch_more_is_in_flight(problem):
    ends, everywhere = (price_one(problem, s, STRATEGY).pipeline.states for s in (ENDS, ALL))
    more = [
        number_at(b.in_flight) - number_at(a.in_flight)
        for a, b in zip(ends, everywhere, strict=True)
    ]
    assert more == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("strategy", "schedule"),
    [(make_strategy(dp_shard=64), ScheduleKind.ONE_F_ONE_B), (STRATEGY, ScheduleKind.ZERO_BUBBLE)],
)
def test_it_needs_stages_in_plain_order(problem, strategy, schedule):
    plan_options = PlanOptions(sequence_parallel=False, vocabulary_parallel=True, schedule=schedule)
    assert "vocabulary-parallel-schedule" in [
        fault.path for fault in check_problem(problem, strategy, plan_options)
    ]


def test_it_is_searched_on_request_only():
    free = mw.plan("llama3-8b", on="64xH100", **DIMS)
    asked = mw.plan("llama3-8b", on="64xH100", vocab_parallel="on", schedule="1f1b", **DIMS)
    alone = price_one(asked.problem, asked.best.plan_options, asked.best.strategy)
    assert not free.best.plan_options.vocabulary_parallel
    assert asked.best.plan_options.vocabulary_parallel
    step_s = number_at(alone.step.time.total_s)
    assert asked.best.estimate.step_time_s == pytest.approx(step_s, rel=1e-12)
    assert asked.coverage.gap == pytest.approx(0.0, abs=1e-12)
    assert "vocabulary_parallel" in asked.best.text


def test_it_is_neither_simulated_nor_exported(tmp_path):
    found = mw.estimate(
        "gpt3-76b", on="wafer-4x8", seq="2k", global_batch=128, pp=2, tp=4, tatp=4, mbs=8,
        vocab_parallel="on",
    )  # fmt: skip
    with pytest.raises(mw.MeshwrightError, match="not simulated"):
        mw.simulate(found)
    for target in ("megatron", "chakra"):
        with pytest.raises(mw.MeshwrightError, match="vocabulary_parallel"):
            mw.export(found, target, out=str(tmp_path / target))
