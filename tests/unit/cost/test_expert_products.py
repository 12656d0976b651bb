"""Matrix products of experts: grouped where a device has several of them."""

from dataclasses import replace

import pytest

from meshwright.base.arrays import number_at
from meshwright.cost.layer import price_layers
from meshwright.sharding.strategy import PlanOptions, Recompute, make_strategy, stack
from meshwright.train.question import make_problem, training


@pytest.fixture(scope="module")
def problem():
    work = training("64xH100", global_batch_size=256, sequence_length=4096)
    return make_problem("mixtral-8x7b", "64xH100", work, "uncalibrated")


def layer_s(problem, ep, efficiency):
    """Return the forward pass of a layer whose grouped products reach a share of their rate."""
    constants = replace(problem.calibration, grouped_matmul_efficiency=efficiency)
    asked = replace(problem, calibration=constants)
    plan_options = PlanOptions(sequence_parallel=False)
    columns = stack([make_strategy(pp=4, dp_shard=16, ep=ep)])
    network = asked.network(plan_options.axis_order, columns)
    prices = price_layers(asked, plan_options, network, (Recompute.NONE,), uses_tatp=False)
    return number_at(prices[Recompute.NONE][0].forward_s)


def test_the_only_expert_of_a_device_is_grouped_with_nothing(problem):
    assert layer_s(problem, 8, 0.5) == layer_s(problem, 8, 1.0)


def test_two_experts_on_a_device_share_one_grouped_product(problem):
    """At half of the rate three products of 8,192 rows, 4,096 x 14,336, take twice as long."""
    added_s = layer_s(problem, 4, 0.5) - layer_s(problem, 4, 1.0)
    least_s = 6 * 8_192 * 4_096 * 14_336 / problem.rates.matmul_flops_per_s
    assert least_s <= added_s <= 1.2 * least_s
