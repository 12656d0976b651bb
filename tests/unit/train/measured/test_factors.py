"""Factors of resources: by hand where one number decides, and from jobs of known truth."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.search.intervals import Distances
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.calibration import CONSTANTS
from meshwright.spec.workload import SoftwareStack
from meshwright.train.measured.factors import (
    MOST,
    NAMES,
    PLAN_ERROR,
    RESOURCES,
    STEP_NOISE,
    UNFITTED,
    Measurement,
    estimated,
    losses_s,
    lowest_log_factors,
    most_probable,
    noise_covariance,
    prior_covariance,
    residual_spread,
    scaled,
    step_seconds,
)
from meshwright.train.question import make_problem, training

ONES = np.ones((len(RESOURCES), 1))
PRIOR = 0.09 * np.eye(len(RESOURCES))
TRUTH = np.array([[1.15], [1.25], [1.3], [1.4], [1.5], [1.2]])


def job(system, batch, degrees, model="gpt2-medium", **choices):
    """Return a measurable job: problem, strategy, plan options."""
    work = training(system, sequence_length=1024, global_batch_size=batch, software=SoftwareStack())
    problem = make_problem(model, system, work, "uncalibrated")
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
    prior, noise = np.diag([0.09, 0.04]), np.array([[0.04]])
    found, covariance = most_probable(
        np.array([0.1]), np.array([[1.0, 0.0]]), noise, prior, np.full(2, -9.0)
    )
    assert found == pytest.approx([0.1 * 0.09 / (0.09 + 0.04), 0.0])
    assert covariance[0, 0] == pytest.approx(0.09 * 0.04 / (0.09 + 0.04))
    assert covariance[1, 1] == pytest.approx(0.04)


def test_a_measurement_as_predicted_leaves_all_factors_at_one():
    found = estimated([measured(JOBS[0], ONES)], PRIOR)
    assert found.values == pytest.approx(np.ones(len(RESOURCES)), abs=1e-6)
    assert found.num_measurements == 1
    assert [entry.resource for entry in found.factors] == list(NAMES)


def test_several_jobs_tell_the_resources_apart():
    found = estimated([measured(entry, TRUTH) for entry in JOBS], PRIOR)
    errors = np.log(found.values) - np.log(TRUTH[:, 0])
    spreads = np.sqrt(np.diag(found.log_covariance))
    assert np.all(np.abs(errors) <= 2.0 * spreads + 1e-9)
    told = dict(zip(NAMES, found.values.tolist(), strict=True))
    assert told["compute"] == pytest.approx(1.15, rel=0.08)
    assert told["slow_network"] == pytest.approx(1.4, rel=0.12)


def test_fitted_jobs_are_nearer_to_their_measurements():
    jobs = [measured(entry, TRUTH) for entry in JOBS]
    values = estimated(jobs, PRIOR).values[:, None]
    for entry in jobs:
        of_job = entry.problem, entry.strategy, entry.plan_options
        before = abs(math.log(entry.step_s / step_seconds(*of_job, ONES)[0]))
        after = abs(math.log(entry.step_s / step_seconds(*of_job, values)[0]))
        assert after < before


def test_each_job_more_leaves_less_in_doubt():
    jobs = [measured(entry, ONES) for entry in JOBS]
    spreads = [
        np.sqrt(np.diag(estimated(jobs[:number], PRIOR).log_covariance))
        for number in (1, 3, len(jobs))
    ]
    for more, fewer in zip([np.sqrt(np.diag(PRIOR)), *spreads], spreads, strict=False):
        assert np.all(fewer <= more + 1e-12)


def test_equal_plans_share_the_error_of_their_plan():
    twice = [measured(JOBS[0], ONES)] * 2
    own, noise = PLAN_ERROR**2, STEP_NOISE**2
    assert noise_covariance(twice) == pytest.approx(
        np.array([[own + noise, own], [own, own + noise]])
    )
    other = noise_covariance([measured(JOBS[0], ONES), measured(JOBS[1], ONES)])
    assert other == pytest.approx((own + noise) * np.eye(2))


def test_no_resource_is_faster_than_its_data_sheet():
    problem, strategy, plan_options = JOBS[0]
    quick = Measurement("quick", problem, strategy, plan_options, 1e-6)
    found = np.log(estimated([quick], 25.0 * np.eye(len(RESOURCES))).values)
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
    st.lists(st.floats(0.6, 3.0), min_size=6, max_size=6), st.sampled_from(JOBS)
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
    spreads = generator.uniform(0.05, 0.5, len(RESOURCES))
    values, covariance = most_probable(
        errors, slopes, 0.01 * np.eye(number), np.diag(spreads**2), np.full(len(RESOURCES), -9.0)
    )
    assert np.all(np.diag(covariance) <= spreads**2 + 1e-12)
    left = errors - slopes @ values
    cost = left @ left / 0.01 + ((values / spreads) ** 2).sum()
    assert cost <= errors @ errors / 0.01 + 1e-9


def test_draws_have_the_stated_covariance():
    found = estimated([measured(entry, TRUTH) for entry in JOBS[:3]], PRIOR)
    logs = np.log(found.draws(40_000, np.random.default_rng(0)))
    assert np.cov(logs) == pytest.approx(np.array(found.log_covariance), abs=0.003)


def test_constants_under_factors():
    problem = JOBS[0][0]
    found = estimated([measured(JOBS[0], TRUTH)], PRIOR)
    before, after = problem.calibration, found.applied(problem.calibration)
    rate = found.factors[0].factor
    assert after.matmul_sustained_efficiency == before.matmul_sustained_efficiency / rate
    assert after.launch_s == before.launch_s * found.factors[4].factor
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


def test_priors_follow_residuals_and_intervals():
    constants = JOBS[0][0].calibration
    assert residual_spread(None) == UNFITTED
    assert residual_spread(Distances(slower=0.2, faster=0.05632)) == pytest.approx(0.1)
    narrow, wide, widest = (prior_covariance(constants, spread) for spread in (0.02, 0.4, 3.0))
    shared = ~np.eye(len(RESOURCES), dtype=bool)
    assert narrow[shared] == pytest.approx(0.5 * 0.02**2)
    assert np.all(np.diag(wide) >= 0.4**2 - 1e-12)
    assert widest == pytest.approx(MOST**2 * (1.0 + np.eye(len(RESOURCES))))
    low, high = constants.intervals["fast_network_efficiency"]
    ratio = (high - low) / math.sqrt(12.0) / constants.fast_network_efficiency
    assert narrow[2, 2] == pytest.approx(0.5 * 0.02**2 + math.log(1.0 + ratio**2))


def test_what_all_resources_share_scales_a_step_that_no_resource_explains():
    problem, strategy, plan_options = job("1xH100", 8, {}, zero_stage=0)
    seconds = float(step_seconds(problem, strategy, plan_options, ONES)[0])
    slow = Measurement("slow", problem, strategy, plan_options, 1.3 * seconds)
    found = estimated([slow], prior_covariance(problem.calibration, 1.0))
    network = found.factors[NAMES.index("slow_network")]
    assert network.factor > 1.05  # one device tells of software, not of a network
    assert found.factors[0].factor > network.factor
