"""What the measured factors of a plan file must be, so that everything that reads it may rely."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.errors import Fault
from meshwright.train.measured.factors import Factor, Factors
from meshwright.train.measured.resources import NAMES

LARGEST = 1e6
"""No factor is larger, nor smaller than one over it."""


def factor_faults(factors: Factors | None) -> Iterator[Fault]:
    """Yield what no factors of a plan can be, by field."""
    if factors is None:
        return
    if factors.num_measurements < 1:
        yield Fault("factors.num_measurements", f"found {factors.num_measurements}, at least 1")
    found = tuple(entry.resource for entry in factors.factors)
    if found != NAMES:
        message = f"found {' '.join(found) or 'none'}"
        yield Fault("factors.factors", message, f"expected {' '.join(NAMES)}")
    for index, entry in enumerate(factors.factors):
        yield from _number_faults(f"factors.factors.{index}", entry)
    yield from _covariance_faults(factors.log_covariance)


def _number_faults(path: str, factor: Factor) -> Iterator[Fault]:
    """Yield numbers that no factor can be."""
    for name in ("factor", "low", "high", "prior_low", "prior_high"):
        found = getattr(factor, name)
        if not 1.0 / LARGEST <= found <= LARGEST:
            yield Fault(f"{path}.{name}", f"found {found}, expected a number above 0")


def _covariance_faults(rows: tuple[tuple[float, ...], ...]) -> Iterator[Fault]:
    """Yield what is no covariance of all factors."""
    sides = {len(rows), *(len(row) for row in rows)}
    if sides != {len(NAMES)}:
        yield Fault("factors.log_covariance", f"expected {len(NAMES)} rows of as many numbers")
    elif any(abs(entry) > LARGEST for row in rows for entry in row):
        yield Fault("factors.log_covariance", "a number is beyond all covariances")
    elif any(rows[n][n] < 0.0 for n in range(len(NAMES))):
        yield Fault("factors.log_covariance", "a variance is below 0")
