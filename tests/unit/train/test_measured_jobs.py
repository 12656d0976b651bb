"""Measured steps: diagnosis, plans under measured factors, plan files that hold them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from meshwright.base.errors import SpecError
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.workload import Precision
from meshwright.train import plan_file as files
from meshwright.train.measured.diagnose import diagnose
from meshwright.train.measured.factors import Measurement, step_seconds
from meshwright.train.measured.learning import learn
from meshwright.train.question import training
from meshwright.wafer.training import estimate, explain, plan

WORK = training("8xH100", sequence_length=1024, global_batch_size=64, framework="megatron-bridge")
FP8 = Precision(matmul="fp8")
STRATEGY, PLAN_OPTIONS = make_strategy(dp_shard=4, tp=2), PlanOptions()


@pytest.fixture(scope="module")
def ran():
    return estimate("gpt2-medium", "8xH100", WORK, STRATEGY, PLAN_OPTIONS)


@pytest.fixture(scope="module")
def slow(ran):
    """Return a step that took half as long again and more than predicted."""
    return diagnose(ran, 1.6 * ran.best.estimate.step_time_s)


@pytest.fixture(scope="module")
def factors(ran):
    """Return the factors behind two slow jobs."""
    problem, seconds = ran.problem, ran.best.estimate.step_time_s
    other = make_strategy(dp_shard=8, micro_batch_size=2)
    other_s = float(step_seconds(problem, other, PLAN_OPTIONS, np.ones((7, 1)))[0])
    return learn(
        [
            Measurement("one", problem, STRATEGY, PLAN_OPTIONS, 1.6 * seconds),
            Measurement("two", problem, other, PLAN_OPTIONS, 1.6 * other_s),
        ]
    )


def test_all_parts_sum_to_the_difference(ran, slow):
    whole = slow.measured_s - slow.predicted_s
    assert slow.predicted_s == pytest.approx(ran.best.estimate.step_time_s)
    assert sum(e.lost_s for e in slow.losses) + slow.not_explained_s == pytest.approx(whole)
    assert sum(slow.parts_s.values()) + slow.not_explained_s == pytest.approx(whole)
    assert slow.predicted_s < slow.fitted_s < slow.measured_s
    assert slow.surprise > 1.0


def test_intervals_hold_their_middle(slow):
    for loss in slow.losses:
        assert loss.low_s <= loss.lost_s <= loss.high_s
    for factor in slow.factors.factors:
        assert factor.low < factor.factor < factor.high
    gains = [entry.faster_by_fraction for entry in slow.changes]
    assert gains == sorted(gains, reverse=True)
    assert gains
    for entry in slow.changes:
        assert entry.low_fraction < entry.high_fraction
        assert entry.step_time_s == pytest.approx(
            slow.measured_s * (1.0 - entry.faster_by_fraction)
        )


def test_a_step_as_predicted_has_nothing_to_explain(ran):
    found = diagnose(ran, ran.best.estimate.step_time_s)
    assert found.surprise == pytest.approx(0.0, abs=1e-9)
    assert found.not_explained_s == pytest.approx(0.0, abs=1e-9)
    assert [e.lost_s for e in found.losses] == pytest.approx([0.0] * 7, abs=1e-9)


def test_changes_are_priced_as_plans_under_the_factors(ran, slow):
    entry = next(e for e in slow.changes if e.what == "mbs 1 to 2")
    changed = replace(STRATEGY, micro_batch_size=2.0)
    priced = estimate("gpt2-medium", "8xH100", WORK, changed, PLAN_OPTIONS, factors=slow.factors)
    assert entry.step_time_s == pytest.approx(priced.best.estimate.step_time_s)
    assert entry.memory_bytes == pytest.approx(priced.best.estimate.memory_bytes)
    assert entry.plan == priced.best.text


def test_recorded_launches_gain_what_launches_cost(ran, slow):
    """A setting of the software leaves what the measurement holds beyond the factors."""
    entry = next(e for e in slow.changes if e.what == "CUDA graphs")
    recorded = WORK.software.model_copy(update={"cuda_graphs": True})
    work = WORK.model_copy(update={"software": recorded})
    priced = estimate("gpt2-medium", "8xH100", work, STRATEGY, PLAN_OPTIONS, factors=slow.factors)
    expected = 1.0 - priced.best.estimate.step_time_s / slow.fitted_s
    assert entry.faster_by_fraction == pytest.approx(expected)


def test_a_choice_of_no_effect_gains_nothing(slow):
    """Without tensor parallelism over hosts, one stage more or less of ZeRO changes little."""
    entry = next(e for e in slow.changes if e.what == "zero 1 to 0")
    assert abs(entry.faster_by_fraction) < 0.03
    assert entry.low_fraction > -0.1
    assert entry.high_fraction < 0.1


def test_measured_memory_decides_what_fits(ran):
    seconds, capacity = 1.1 * ran.best.estimate.step_time_s, ran.best.estimate.memory_capacity_bytes
    lean = diagnose(ran, seconds)
    full = diagnose(ran, seconds, measured_memory_bytes=0.9 * capacity)
    assert full.left_out["does not fit"] > lean.left_out["does not fit"]
    assert full.measured_memory_bytes == 0.9 * capacity
    assert all(entry.memory_bytes <= capacity for entry in full.changes)


def test_trials_are_among_the_leading_changes(slow):
    assert slow.trials is not None
    leading = [entry.what for entry in slow.changes][:7]
    assert set(slow.trials.run) <= set(leading)
    assert set(slow.trials.best_fraction) <= {"as it runs", *leading}
    assert list(slow.trials.regret_fractions) == sorted(slow.trials.regret_fractions, reverse=True)
    assert len(slow.trials.regret_fractions) == len(slow.trials.run) + 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_no_measurement_is_refused(ran, seconds):
    with pytest.raises(SpecError, match="measured_s"):
        diagnose(ran, seconds)
    with pytest.raises(SpecError, match="measured_memory_bytes"):
        diagnose(ran, 1.0, measured_memory_bytes=seconds)


def test_chips_of_other_families_are_refused(ran):
    other = estimate("gpt2-medium", "8xA100", WORK, STRATEGY, PLAN_OPTIONS)
    jobs = [
        Measurement(p.system.name, p.problem, STRATEGY, PLAN_OPTIONS, 1.0) for p in (ran, other)
    ]
    with pytest.raises(SpecError, match="ampere, hopper"):
        learn(jobs)


@pytest.mark.slow
def test_a_plan_under_factors_is_the_same_from_its_file(factors):
    under = plan("gpt2-medium", "8xH100", WORK, factors=factors)
    plain = plan("gpt2-medium", "8xH100", WORK)
    assert under.best.estimate.step_time_s > 1.05 * plain.best.estimate.step_time_s
    assert plain.factors is None
    read = files.from_json(files.to_json(under))
    assert read == under
    assert read.problem.calibration.source.endswith("adjusted by 2 measurements")
    shares = explain(read).shares
    assert sum(shares.values()) == pytest.approx(1.0)


def width(found):
    """Return the ratio of the ends of an interval."""
    low_s, high_s = found.best.estimate.interval_s
    assert low_s < found.best.estimate.step_time_s < high_s
    return high_s / low_s


def test_measurements_narrow_the_interval(ran, factors):
    def estimated(**given):
        work = WORK.model_copy(update={"precision": FP8})
        return estimate("gpt2-medium", "8xH100", work, STRATEGY, PLAN_OPTIONS, **given)

    once = learn([Measurement("one", ran.problem, STRATEGY, PLAN_OPTIONS, 0.1)])
    assert width(estimated(factors=once)) < width(estimated())
    under = estimate("gpt2-medium", "8xH100", WORK, STRATEGY, PLAN_OPTIONS, factors=factors)
    assert width(under) <= width(ran) * (1.0 + 1e-12)


def test_the_order_of_measurements_does_not_matter(ran):
    jobs = [
        Measurement("plain", ran.problem, STRATEGY, PLAN_OPTIONS, 0.1),
        Measurement(
            "fp8",
            replace(ran.problem, workload=WORK.model_copy(update={"precision": FP8})),
            STRATEGY, PLAN_OPTIONS, 0.08,
        ),
    ]  # fmt: skip
    assert learn(jobs).values == pytest.approx(learn(jobs[::-1]).values, rel=1e-4)


def test_plans_name_their_trials(factors):
    found = plan("gpt2-medium", "8xH100", WORK, factors=factors).robustness.trials
    assert found is not None
    assert len(found.regret_fractions) == len(found.run) + 1
    assert 0.9 <= sum(found.best_fraction.values()) <= 1.0 + 1e-9


def test_broken_factors_of_a_file_are_told_at_once(factors):
    under = estimate("gpt2-medium", "8xH100", WORK, STRATEGY, PLAN_OPTIONS, factors=factors)
    data = json.loads(files.to_json(under))
    data["factors"]["num_measurements"] = 0
    data["factors"]["factors"][0]["factor"] = -1.0
    data["factors"]["factors"][1]["resource"] = "magic"
    data["factors"]["log_covariance"][0] = [1.0]
    with pytest.raises(SpecError) as error:
        files.from_json(json.dumps(data))
    assert [fault.path for fault in error.value.faults] == [
        "factors.num_measurements", "factors.factors", "factors.factors.0.factor",
        "factors.log_covariance",
    ]  # fmt: skip
