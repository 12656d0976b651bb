"""The screen of a plan: what is said when the winner is not the very fastest."""

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.train.report_detail import plan_lines, proof_lines


@pytest.fixture(scope="module")
def plan():
    workload = mw.training("8xH100", sequence_length=1024, global_batch_size=64)
    return mw.plan("gpt2-medium", "8xH100", workload)


def screen(plan, *, behind, is_complete=True):
    """Return the proof of a plan that is ``behind`` its bound by this fraction."""
    bound_s = plan.best.estimate.step_time_s / (1.0 + behind)
    coverage = replace(plan.coverage, lower_bound_s=bound_s, is_complete=is_complete)
    return " ".join(" ".join(proof_lines(replace(plan, coverage=coverage))).split())


def test_a_tie_says_why_memory_decided(plan):
    assert "the plan is 0.7% behind that" in screen(plan, behind=0.007)


def test_the_fastest_plan_says_nothing_of_ties(plan):
    assert "behind that" not in screen(plan, behind=0.0)


def test_an_interrupted_search_gives_its_gap_instead(plan):
    assert "behind that" not in screen(plan, behind=0.3, is_complete=False)


def test_a_plan_says_where_four_of_five_measurements_lie(plan):
    low_s, high_s = plan.best.estimate.interval_s
    assert low_s < plan.best.estimate.step_time_s < high_s
    assert any(", 80 % within " in line for line in plan_lines(plan, []))
    assert all(entry.estimate.interval_s is not None for entry in plan.runners_up)
    assert all(len(line) <= 100 for line in plan_lines(plan, []))


def test_constants_that_were_not_fitted_give_no_interval(plan):
    work = plan.workload
    other = mw.plan("gpt2-medium", "8xH100", work, calibration="uncalibrated")
    assert other.best.estimate.interval_s is None
    assert not any("80 % within" in line for line in plan_lines(other, []))
    low_s, high_s = other.robustness.step_time_s
    assert 0.9 * low_s < other.best.estimate.step_time_s < high_s
    assert "90 % of them take" in screen(other, behind=0.0)


def test_plans_that_win_under_other_constants_are_named(plan):
    tied = replace(plan, robustness=replace(plan.robustness, ties=(plan.best.text, "tp8 dp1")))
    assert "under some of these constants wins tp8 dp1" in screen(tied, behind=0.0)
    alone = replace(plan, robustness=replace(plan.robustness, ties=(plan.best.text,)))
    assert "under some of these constants wins" not in screen(alone, behind=0.0)


def test_a_family_never_measured_says_how_much_wider_its_interval_is():
    work = mw.training("wafer-4x8", sequence_length=1024, global_batch_size=64)
    found = mw.estimate("gpt2-medium", "wafer-4x8", work, mw.make_strategy(dp_shard=32),
                        mw.Structure(sequence_parallel=False))  # fmt: skip
    assert any("times as wide" in note for note in found.warnings)
    price = found.best.estimate
    hopper = mw.estimate("gpt2-medium", "8xH100", work, mw.make_strategy(dp_shard=8),
                         mw.Structure(sequence_parallel=False)).best.estimate  # fmt: skip
    assert price.interval_s[1] / price.step_time_s > hopper.interval_s[1] / hopper.step_time_s
