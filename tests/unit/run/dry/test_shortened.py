"""Shorter steps from which a whole one follows, against the whole one, to the byte."""

from __future__ import annotations

import pytest

from meshwright.run.dry import shortened
from meshwright.run.dry.run import run_rank, stages_of
from meshwright.run.dry.shortened import Short, run_shortened, short_depth, short_length
from meshwright.run.moments import Category, Moments, StepPart, moments_of

from .test_dry_runs import planned


def test_a_line_through_two_depths_reaches_the_whole_one():
    assert Short(4, 6, 12).weights == {4: -3, 6: 4}
    assert sum(n * times for n, times in Short(4, 6, 12).weights.items()) == 12


def test_moments_are_those_before_anything_is_freed():
    weights, kept = Category.WEIGHTS, Category.ACTIVATIONS
    found = moments_of([
        (weights, 8, StepPart.FORWARD, (0, 0)), (kept, 2, StepPart.FORWARD, (1, 0)),
        (kept, 4, StepPart.FORWARD, (1, 1)), (kept, -2, StepPart.FORWARD, (1, 1)),
        (kept, -4, StepPart.BACKWARD, (2, 0)),
    ])  # fmt: skip
    assert found.held_bytes.sum(axis=1).tolist() == [8, 10, 14, 12]
    assert found.usage.peak_bytes == 14
    assert found.usage.at_peak_bytes[kept] == 6
    assert isinstance(found, Moments)


DEEP = [
    {"dp": 8, "global_batch": 16},
    {"dp": 8, "global_batch": 8, "recompute": "full", "offload": "state"},
    {"dp": 8, "global_batch": 24, "zero": 0},
    {"tp": 2, "dp": 4, "global_batch": 4, "recompute": "selective"},
]
LONG = [
    {"pp": 2, "dp": 4, "zero": 2, "global_batch": 4 * 18},
    {"pp": 2, "dp": 4, "zero": 3, "global_batch": 4 * 17, "schedule": "gpipe"},
    {"pp": 2, "dp": 4, "zero": 2, "global_batch": 4 * 26, "schedule": "interleaved", "vpp": 2},
]


def check(plan):
    for stage in stages_of(int(plan.best.strategy.pp)):
        short, whole = run_shortened(plan, stage, run_rank), run_rank(plan, stage)
        assert (short.usage, short.counts) == (whole.usage, whole.counts)


@pytest.mark.slow
@pytest.mark.parametrize("options", DEEP)
def test_fewer_layers_predict_all_of_them(options):
    plan = planned(23, **options)
    assert short_depth(plan) == Short(5, 7, 23)
    check(plan)


@pytest.mark.slow
@pytest.mark.parametrize("options", LONG, ids=["1f1b", "gpipe", "interleaved"])
def test_fewer_micro_batches_predict_all_of_them(options):
    plan = planned(4, **options)
    assert short_length(plan) is not None
    check(plan)


def test_a_pipeline_of_a_thousand_micro_batches_runs_a_few(monkeypatch):
    lengths = []
    cut = shortened.cut
    monkeypatch.setattr(shortened, "cut", lambda *found: lengths.append(found[2]) or cut(*found))
    found = run_shortened(planned(2, pp=2, dp=4, zero=2, global_batch=4096), 1, run_rank)
    assert lengths == [6, 7]
    backward = [number for call, number in found.counts.calls.items()
                if call.axis == "pp" and call.phase == StepPart.BACKWARD]  # fmt: skip
    assert backward == [1024]


def test_five_and_seven_layers_predict_nine(monkeypatch):
    plan = planned(9, dp=8, global_batch=8)
    assert short_depth(plan) is None
    monkeypatch.setattr(shortened, "short_depth", lambda plan: Short(5, 7, 9))
    check(plan)


def test_optimizers_that_deal_whole_weights_run_all_layers():
    assert short_depth(planned(30, dp=8, global_batch=8, zero=1)) is None
