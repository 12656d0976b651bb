"""A measured step against its prediction, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.train.answer import Trials
from meshwright.train.measured.factors import Factors


@dataclass(frozen=True)
class Loss:
    """What one resource adds to a step against its prediction."""

    resource: str
    lost_s: float
    """Under the most probable factors; below 0: it is faster than predicted [s]."""
    low_s: float
    """5th percentile over the uncertainty of the factors [s]."""
    high_s: float
    """95th percentile [s]."""


@dataclass(frozen=True)
class Improvement:
    """A single change of the plan, and what it gains under the factors of the measurement."""

    what: str
    plan: str
    step_time_s: float
    """Expected, under the factors [s]."""
    faster_by_fraction: float
    """Of the measured step; below 0: slower."""
    low_fraction: float
    """5th percentile."""
    high_fraction: float
    """95th percentile."""
    is_faster_fraction: float
    """Probability that it is faster at all."""
    memory_bytes: float
    """Of the fullest device, margin included, scaled by the measured memory where there is one."""


@dataclass(frozen=True)
class Diagnosis:
    """Where a measured step loses time, and what would win it back."""

    plan: str
    fidelity: str
    measured_s: float
    predicted_s: float
    """Under the calibrated constants [s]."""
    fitted_s: float
    """Under the most probable factors [s]."""
    surprise: float
    """ln(measured / predicted) over the standard deviation that was expected of it."""
    factors: Factors
    losses: tuple[Loss, ...]
    """By resource; they sum to ``fitted_s - predicted_s``."""
    parts_s: Mapping[str, float]
    """By part of the step, the same difference [s]."""
    not_explained_s: float
    """``measured_s - fitted_s``: of this plan alone, or of the measurement [s]."""
    changes: tuple[Improvement, ...]
    """Those that fit, the largest gain first."""
    left_out: Mapping[str, int]
    """How many single changes break a rule or do not fit."""
    trials: Trials | None
    measured_memory_bytes: float | None = None
    predicted_memory_bytes: float | None = None
    """Of the fullest device, without the margin that is left free [bytes]."""


def diagnosis_data(found: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as plain data."""
    return asdict(found)
