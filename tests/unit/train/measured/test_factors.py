"""Factors of resources: by hand where one number decides, and from jobs of known truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.calibration import CONSTANTS, Between, Tail
from meshwright.spec.workload import SoftwareStack
from meshwright.train.measured.factors import (
    NAMES,
    RESOURCES,
    STEP_NOISE,
    Measurement,
    losses_s,
    lowest_log_factors,
    scaled,
    step_seconds,
)
from meshwright.train.measured.learning import (
    JOB_TRAITS,
    Jobs,
    estimated,
    jobs_of,
    learn,
    prior_covariance,
)
from meshwright.train.question import make_problem, training

ONES = np.ones((len(RESOURCES), 1))
TRUTH = np.array([[1.15], [1.1], [1.25], [1.3], [1.4], [1.5], [1.2]])


def differing(alone, job=0.05, common=0.0, scatter=0.0):
    """Return differences between sources: each resource and each job as widely."""
    return Between(
        common=common, resources=dict.fromkeys(NAMES, alone), job=Tail(distance=job, factors={}),
        job_scatter=scatter,
    )  # fmt: skip


def some_jobs(errors, slopes, between, lowest=-9.0):
    """Return dense jobs of different plans with stated errors and slopes."""
    number = len(errors)
    return Jobs(
        np.array(errors), np.array(slopes), np.zeros((number, len(JOB_TRAITS))),
        np.eye(number, dtype=bool), np.full(len(NAMES), lowest), between,
    )  # fmt: skip


def one_slope(*slopes):
    """Return slopes over the first resource alone, (jobs, resources)."""
    return [[slope, *[0.0] * (len(NAMES) - 1)] for slope in slopes]


def job(system, batch, degrees, model="gpt2-medium", **choices):
    """Return a measurable job: problem, strategy, plan options."""
    work = training(system, sequence_length=1024, global_batch_size=batch, software=SoftwareStack())
    problem = make_problem(model, system, work, "uncalibrated")
    wide = replace(problem.calibration, between=differing(0.3))
    problem = replace(problem, calibration=wide)
    return problem, make_strategy(**degrees), PlanOptions(**choices)


JOBS = [
    job("8xH100", 64, {"dp_shard": 8, "micro_batch_size": 8}),
    job("8xH100", 8, {"dp_shard": 8}, zero_stage=1),
    job("8xH100", 8, {"tp": 8, "micro_batch_size": 4}, zero_stage=0),
    job("64xH100", 64, {"dp_shard": 64}, zero_stage=3, overlap_data_parallel=False),
    job(
        "64xH100", 512, {"tp": 8, "dp_shard": 8, "micro_batch_size": 4}, overlap_data_parallel=False
    ),
    job("64xH100", 64, {"dp_shard": 64}, zero_stage=1, overlap_data_parallel=False),
    job("64xH100", 64, {"tp": 16, "dp_shard": 4}, zero_stage=1),
    job("64xH100", 512, {"dp_shard": 64, "micro_batch_size": 8}, recompute="full"),
]


def measured(entry, factors):
    """Return a job as measured on a machine of known factors."""
    problem, strategy, plan_options = entry
    seconds = step_seconds(problem, strategy, plan_options, factors)[0]
    return Measurement("job", problem, strategy, plan_options, float(seconds))


def test_one_job_and_one_resource_by_hand():
    own = 0.04 - STEP_NOISE**2
    jobs = some_jobs([0.1], one_slope(1.0), differing(0.3, job=math.sqrt(own)))
    found, covariance = jobs.most_probable()
    assert found == pytest.approx([0.1 * 0.09 / (0.09 + 0.04), *[0.0] * (len(NAMES) - 1)])
    assert covariance[0, 0] == pytest.approx(0.09 * 0.04 / (0.09 + 0.04))
    assert covariance[1, 1] == pytest.approx(0.09)
    # N(0.1; 0, 0.13) over N(0.1; 0, 0.04)
    ratio = math.sqrt(0.04 / 0.13) * math.exp(0.005 / 0.04 - 0.005 / 0.13)
    assert jobs.evidence == pytest.approx(ratio)


def test_a_scale_that_is_not_known_makes_large_errors_weaker_evidence():
    known, unknown = (
        some_jobs([0.4], one_slope(1.0), differing(0.1, scatter=scatter)) for scatter in (0.0, 0.7)
    )
    assert known.evidence > unknown.evidence > 1.0
    assert known.most_probable()[0][0] > unknown.most_probable()[0][0] > 0.0


def test_few_jobs_near_the_published_constants_change_nothing():
    verdict = some_jobs([0.05], one_slope(1.0), differing(0.1)).verdict()
    assert not verdict.is_applied
    assert "stay as published" in verdict.reason
    assert verdict.left_out is None
    assert len(verdict.warnings) == 1


def test_plans_that_contradict_each_other_change_nothing():
    between = differing(0.3, job=0.05)
    agreeing = some_jobs([0.3, 0.3, 0.3], one_slope(1.0, 1.0, 1.0), between).verdict()
    assert agreeing.is_applied
    assert agreeing.left_out < 0.05
    assert not agreeing.warnings
    verdict = some_jobs([0.3, -0.3, 0.3], one_slope(1.0, 1.0, 1.0), between).verdict()
    assert not verdict.is_applied


def test_factors_that_do_not_apply_leave_the_constants():
    kept = learn([measured(JOBS[0], ONES)])
    assert not kept.is_applied
    assert kept.applied(JOBS[0][0].calibration) is JOBS[0][0].calibration
    slow = learn([measured(JOBS[0], 2.0 * ONES)])
    assert slow.is_applied
    assert slow.applied(JOBS[0][0].calibration).memory_efficiency < 0.8


def test_a_measurement_as_predicted_leaves_all_factors_at_one():
    found = estimated([measured(JOBS[0], ONES)])
    assert found.values == pytest.approx(np.ones(len(RESOURCES)), abs=1e-6)
    assert found.num_measurements == 1
    assert [entry.resource for entry in found.factors] == list(NAMES)


def test_several_jobs_tell_the_resources_apart():
    found = estimated([measured(entry, TRUTH) for entry in JOBS])
    errors = np.log(found.values) - np.log(TRUTH[:, 0])
    spreads = np.sqrt(np.diag(found.log_covariance))
    assert np.all(np.abs(errors) <= 2.0 * spreads + 1e-9)
    told = dict(zip(NAMES, found.values.tolist(), strict=True))
    assert told["compute"] == pytest.approx(1.15, rel=0.08)
    assert told["slow_network"] == pytest.approx(1.4, rel=0.12)


def test_fitted_jobs_are_nearer_to_their_measurements():
    jobs = [measured(entry, TRUTH) for entry in JOBS]
    values = estimated(jobs).values[:, None]
    for entry in jobs:
        of_job = entry.problem, entry.strategy, entry.plan_options
        before = abs(math.log(entry.step_s / step_seconds(*of_job, ONES)[0]))
        after = abs(math.log(entry.step_s / step_seconds(*of_job, values)[0]))
        assert after < before


def test_each_job_more_leaves_less_in_doubt():
    jobs = [measured(entry, ONES) for entry in JOBS]
    spreads = [
        np.sqrt(np.diag(estimated(jobs[:number]).log_covariance)) for number in (1, 3, len(jobs))
    ]
    for more, fewer in zip([np.full(len(NAMES), 0.3), *spreads], spreads, strict=False):
        assert np.all(fewer <= more + 1e-12)


def test_equal_plans_share_the_error_of_their_plan():
    own, noise = 0.05**2, STEP_NOISE**2
    (twice,) = np.unique(jobs_of([measured(JOBS[0], ONES)] * 2).noise, axis=0)
    assert twice == pytest.approx(np.array([[own + noise, own], [own, own + noise]]))
    other = jobs_of([measured(JOBS[0], ONES), measured(JOBS[1], ONES)])
    assert other.noise[0] == pytest.approx((own + noise) * np.eye(2))


def test_no_resource_is_faster_than_its_data_sheet():
    problem, strategy, plan_options = JOBS[0]
    problem = replace(problem, calibration=replace(problem.calibration, between=differing(5.0)))
    quick = Measurement("quick", problem, strategy, plan_options, 1e-6)
    found = np.log(estimated([quick]).values)
    limits = lowest_log_factors(problem.calibration)
    assert np.all(found >= np.array(limits) - 1e-6)
    assert found[0] == pytest.approx(limits[0], abs=1e-6)


def test_every_resource_at_half_speed_takes_a_device_twice_as_long():
    problem, strategy, plan_options = job("1xH100", 8, {}, zero_stage=0)
    once, twice = (
        step_seconds(problem, strategy, plan_options, factor * ONES)[0] for factor in (1.0, 2.0)
    )
    assert twice == pytest.approx(2.0 * once, rel=1e-9)


@settings(max_examples=10)
@given(
    st.lists(st.floats(0.6, 3.0), min_size=7, max_size=7), st.sampled_from(JOBS)
)  # fmt: skip
def test_losses_sum_to_the_whole_difference(factors, entry):
    columns = np.array(factors)[:, None]
    lost = losses_s(*entry, columns)[:, 0]
    whole = step_seconds(*entry, columns)[0] - step_seconds(*entry, ONES)[0]
    assert lost.sum() == pytest.approx(whole, rel=1e-9, abs=1e-12)


def test_one_slow_resource_carries_the_whole_loss():
    for index in range(len(RESOURCES)):
        columns = ONES.copy()
        columns[index] = 1.7
        lost = losses_s(*JOBS[4], columns)[:, 0]
        whole = step_seconds(*JOBS[4], columns)[0] - step_seconds(*JOBS[4], ONES)[0]
        assert lost[index] == pytest.approx(whole)
        assert np.delete(lost, index) == pytest.approx(np.zeros(len(RESOURCES) - 1), abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_measurements_never_widen_what_is_known(seed, number):
    generator = np.random.default_rng(seed)
    slopes = generator.uniform(0.0, 1.0, (number, len(RESOURCES)))
    errors = generator.normal(0.0, 0.3, number)
    spread, job = generator.uniform(0.05, 0.5, 2)
    values, covariance = some_jobs(errors, slopes, differing(spread, job)).most_probable()
    assert np.all(np.diag(covariance) <= spread**2 + 1e-12)
    left, noise = errors - slopes @ values, job**2 + STEP_NOISE**2
    cost = left @ left / noise + values @ values / spread**2
    assert cost <= errors @ errors / noise + 1e-9


def test_draws_have_the_stated_covariance():
    found = estimated([measured(entry, TRUTH) for entry in JOBS[:3]])
    logs = np.log(found.draws(40_000, np.random.default_rng(0)))
    assert np.cov(logs) == pytest.approx(np.array(found.log_covariance), abs=0.003)


def test_constants_under_factors():
    problem = JOBS[0][0]
    found = estimated([measured(JOBS[0], TRUTH)])
    before, after = problem.calibration, found.applied(problem.calibration)
    rate = found.factors[0].factor
    assert after.matmul_sustained_efficiency == before.matmul_sustained_efficiency / rate
    assert after.launch_s == before.launch_s * found.factors[NAMES.index("launches")].factor
    assert after.checkpoint_s == before.checkpoint_s
    assert after.source.endswith("; adjusted by 1 measurement")
    for name in CONSTANTS:
        low, high = after.intervals[name]
        assert low <= getattr(after, name) <= high or before.intervals[name] == (low, high)


def test_every_scaled_constant_is_one():
    for resource in RESOURCES:
        assert {*resource.rates, *resource.times} <= set(CONSTANTS)
    changed = scaled(JOBS[0][0].calibration, [1.0] * len(RESOURCES))
    assert changed == JOBS[0][0].calibration


def test_the_prior_is_what_all_share_and_what_each_has_alone():
    found = prior_covariance(differing(0.3, common=0.2))
    assert found == pytest.approx(0.04 + 0.09 * np.eye(len(NAMES)))


def test_a_family_without_rows_may_differ_more():
    seen, unseen = (
        make_problem("gpt2-medium", system, JOBS[0][0].workload, "calibrated")
        for system in ("8xH100", "8xGaudi2")
    )
    known, other = (jobs_of([Measurement("", p, *JOBS[1][1:], 1.0)]) for p in (seen, unseen))
    wider = max(
        tail.factors["unseen_family"]
        for tail in (seen.calibration.spread.slower, seen.calibration.spread.faster)
    )
    assert other.prior == pytest.approx(wider**2 * known.prior)


def test_what_all_resources_share_scales_a_step_that_no_resource_explains():
    problem, strategy, plan_options = job("1xH100", 8, {}, zero_stage=0)
    seconds = float(step_seconds(problem, strategy, plan_options, ONES)[0])
    slow = Measurement("slow", problem, strategy, plan_options, 1.3 * seconds)
    common = replace(problem.calibration, between=differing(0.3, common=0.3))
    slow = replace(slow, problem=replace(problem, calibration=common))
    found = estimated([slow])
    network = found.factors[NAMES.index("slow_network")]
    assert network.factor > 1.05  # one device tells of software, not of a network
    assert found.factors[0].factor > network.factor
