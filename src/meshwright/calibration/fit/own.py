"""Measured jobs of users: the published constants under the factors of these jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.calibration.fit.constants import UNNAMED, FittedConstant
from meshwright.calibration.prediction import Prediction, measurement
from meshwright.catalog.calibration import load_calibration
from meshwright.train.measured.factors import SCALED, Factors, Measurement, step_seconds
from meshwright.train.measured.learning import jobs_of, learn

OF_FRAMEWORKS = "operator_s"
"""The scaled constant of frameworks; the others are of families of chips."""


@dataclass(frozen=True)
class OwnFit:
    """Factors behind measured jobs, with ln(predicted / measured) of these."""

    groups: tuple[str, ...]
    """The source of each job."""
    expected: FloatArray
    """Errors under the published constants, (jobs,)."""
    errors: FloatArray
    """Errors under the factors, where these are applied, (jobs,)."""
    left_out: FloatArray
    """Errors under factors of all other plans, (jobs,); NaN where there is one plan."""
    factors: dict[str, Factors]
    """By family of chips."""
    constants: tuple[FittedConstant, ...]


def fit_own(predictions: Sequence[Prediction], base: str) -> OwnFit:
    """Return the factors behind rows.

    Parameters
    ----------
    predictions
        Rows with a measured throughput, under the published constants.
    base
        Calibration with these constants.
    """
    ordered = sorted(predictions, key=_family)
    jobs, frameworks = [measurement(entry) for entry in ordered], {UNNAMED}
    frameworks |= {entry.row.framework for entry in ordered if entry.row.framework}
    factors, errors, left_out = dict[str, Factors](), list[float](), list[float]()
    constants: list[FittedConstant] = []
    for family in dict.fromkeys(map(_family, ordered)):
        own = [job for job, entry in zip(jobs, ordered, strict=True) if _family(entry) == family]
        found = factors[family] = learn(own)
        if found.is_applied:
            constants += _constants(family, found, frameworks, base)
        errors += [_error(job, found) for job in own]
        left_out += jobs_of(own).left_out().tolist()
    return OwnFit(
        groups=tuple(entry.row.group for entry in ordered),
        expected=np.array([entry.log_error for entry in ordered], dtype=float),
        errors=np.array(errors),
        left_out=np.array(left_out),
        factors=factors,
        constants=tuple(constants),
    )


def _family(entry: Prediction) -> str:
    """Return the family of the chips of a row that was priced."""
    assert entry.job is not None
    return entry.job.problem.system.chip.family


def _error(job: Measurement, factors: Factors) -> float:
    """Return ln(predicted / measured throughput) of a job under factors, where they apply."""
    values = factors.values if factors.is_applied else np.ones(len(factors.values))
    seconds = step_seconds(job.problem, job.strategy, job.plan_options, values[:, None])
    return float(np.log(job.step_s / seconds[0]))


def _constants(
    family: str, factors: Factors, frameworks: Iterable[str], base: str
) -> Iterator[FittedConstant]:
    """Yield the constants of a family of chips under its factors, and those of frameworks."""

    def one(name: str, place: str, framework: str) -> FittedConstant:
        found = factors.applied(load_calibration(family, base, framework))
        low, high = found.intervals[name]
        return FittedConstant(name, getattr(found, name), low, high, part="training", place=place)

    for name in SCALED:
        if name != OF_FRAMEWORKS:
            yield one(name, family, "")
    for framework in sorted(frameworks):
        known = "" if framework == UNNAMED else framework
        yield one(OF_FRAMEWORKS, framework, known)
