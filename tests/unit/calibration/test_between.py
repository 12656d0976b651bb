"""Widths of the differences between sources, from jobs that were made with known ones."""

import numpy as np
import pytest

from meshwright.calibration.fit.between import JOB_TRAITS, Source, fit_between
from meshwright.train.measured.learning import NAMES, UNFITTED, Jobs


def made(number, errors, *, of_one_plan=False):
    """Return a source of jobs that wait for the matrix units alone."""
    errors = np.asarray(errors, dtype=float)
    slopes = np.zeros((len(errors), len(NAMES)))
    slopes[:, 0] = 1.0
    same = np.ones((len(errors),) * 2, dtype=bool) if of_one_plan else np.eye(len(errors)) > 0
    degrees, lowest = np.zeros((len(errors), len(JOB_TRAITS))), np.full(len(NAMES), -3.0)
    jobs = Jobs(errors, slopes, degrees, same, lowest, UNFITTED)
    return Source(f"s{number}", "hopper", f"s{number}", np.arange(len(errors)), jobs)


def apart(spread):
    """Return sources that are slower and faster by turns, their jobs 0.02 around that."""
    noise = np.random.default_rng(3).normal(0.0, 0.02, (12, 8))
    return [made(n, spread * (-1) ** n + noise[n]) for n in range(12)]


def test_sources_that_lie_far_apart_have_wide_differences():
    near, far = (fit_between(apart(spread)) for spread in (0.02, 0.3))
    wide, narrow = (b.common**2 + b.resources["compute"] ** 2 for b in (far, near))
    assert wide == pytest.approx(0.3**2, rel=0.5)
    assert narrow < 0.05**2


def test_one_source_has_no_difference():
    assert fit_between([made(1, [0.1, 0.2])]) is None


def test_plans_measured_again_with_huge_errors_are_fitted():
    sources = [made(n, [9.0 * n, 9.0 * n, -40.0], of_one_plan=True) for n in range(4)]
    found = fit_between(sources)
    assert 0 < found.common < 1.0
