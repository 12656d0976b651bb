"""The parity table of our own model: each far point has a reason that adds up."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script():
    """Return the modules of the parity script."""
    sys.path.insert(0, str(ROOT / "papers" / "benchmarks"))
    try:
        yield importlib.import_module("calculon_parity")
    finally:
        sys.path.remove(str(ROOT / "papers" / "benchmarks"))


@pytest.fixture(scope="module")
def own(script):
    points = script.reference_points()
    provider = next(p for p in script.PROVIDERS if p.title == "own model")
    return points, provider, provider.rows(points)


@pytest.mark.slow
def test_each_difference_has_a_reason(script, own):
    points, provider, estimates = own
    assert len(estimates) == len(points) == 50
    assert script.unexplained(points, estimates) == []
    for point, estimate in zip(points, estimates, strict=True):
        for far, word in (
            (script.difference(estimate.step_s, point.step_s), "time: "),
            (script.difference(estimate.memory_bytes, point.memory_bytes), "memory: "),
        ):
            if far is not None and abs(far) > 0.05:
                named = estimate.reason.split(word)[1].split(";")[0].split(", ")
                assert all(name.rsplit(" ", 1)[0] in provider.mechanisms for name in named)


@pytest.mark.slow
def test_terms_sum_to_both_prices(script, own):
    model = importlib.import_module("calculon_own_model")
    mapping = importlib.import_module("calculon_mapping")
    for point in own[0]:
        if point.refusal or not point.execution["training"]:
            continue
        question = mapping.question_of(point.model, point.system, point.execution)
        ours, theirs = model.breakdowns(point, question)
        priced = model.price_one(question.problem, question.plan_options, question.strategy)
        assert ours[0].total == pytest.approx(float(priced.step.time.total_s[0]), rel=1e-9)
        assert ours[1].total == pytest.approx(float(priced.step.memory_bytes[0]), rel=1e-9)
        assert theirs[0].total == pytest.approx(point.step_s, rel=1e-9)
        assert theirs[1].total == pytest.approx(point.memory_bytes, rel=1e-9)


def test_the_page_has_all_points(script):
    points = script.reference_points()
    text = (ROOT / "docs" / "results" / "calculon_parity.md").read_text(encoding="utf-8")
    section = text.split("## Own model")[1]
    assert all(f"\n| {point.name} | " in section for point in points)


@pytest.mark.slow
def test_a_missing_reason_is_noticed(script, own):
    points, _, _ = own
    blank = [script.Estimate(2 * (p.step_s or 1.0), p.memory_bytes) for p in points]
    assert len(script.unexplained(points, blank)) == 50
