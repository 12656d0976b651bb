"""``--kernels`` of the verbs: curves of kernels against measured times, and their fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meshwright_papers.kernels.fit import curves_text, fit_kernels
from meshwright_papers.kernels.fitted import DEFAULT, load_curves
from meshwright_papers.kernels.tables import published_timings, read_timings
from meshwright_papers.kernels.timings import Timings
from meshwright_papers.kernels.validation import (
    FittedCurves,
    KernelValidation,
    kernel_validation,
)


def validated(path: str | None, curves: str | None) -> KernelValidation:
    """Return the errors of curves on the times of a file.

    Parameters
    ----------
    path
        File of times; None: the published ones.
    curves
        Name or file of the curves; None: those of this package.
    """
    return kernel_validation(_timings(path), load_curves(curves or DEFAULT))


def fitted(path: str | None, name: str, command: str) -> FittedCurves:
    """Return curves fitted to the times of a file: their own file, and their errors."""
    tables = _timings(path)
    curves = fit_kernels(tables)
    return FittedCurves(curves_text(curves, name, command), kernel_validation(tables, curves))


def _timings(path: str | None) -> Sequence[Timings]:
    return published_timings() if path is None else read_timings(Path(path))
