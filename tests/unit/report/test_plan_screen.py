"""The screen of a plan: what is said when the winner is not the very fastest."""

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.report.plan import proof_lines


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
