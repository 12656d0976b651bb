"""Errors of curves of kernels against measured times: by kernel, chip and variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import UnknownNameError
from meshwright.base.records import Brief, Rows, Scalar, Shown
from meshwright_papers.kernels.fitted import KernelCurves
from meshwright_papers.kernels.timings import Timings, groups_of, place_of, predicted_s


@dataclass(frozen=True)
class KernelErrors(Brief):
    """Errors |ln(predicted / measured)| of some rows of one kernel: median and 90th percentile."""

    kernel: str
    chip: str
    variant: str
    rows: int
    fitted: tuple[float, float] | None
    held_back: tuple[float, float] | None
    """Errors of rows that no fit has seen; None: no such row."""
    left_out: tuple[float, float] | None
    """Errors of all rows on the curve of other chips; None: no other chip has one."""
    bias: float
    """Median of ln(predicted / measured): below 0 is predicted too fast."""

    def as_row(self) -> dict[str, Scalar]:
        """Return the errors; of each kind of rows median and 90th percentile."""
        found: dict[str, Scalar] = {
            "kernel": self.kernel, "chip": self.chip, "variant": self.variant, "rows": self.rows,
            "bias": self.bias,
        }  # fmt: skip
        for name in ("fitted", "held_back", "left_out"):
            pair = getattr(self, name) or (None, None)
            found |= {f"{name}_median": pair[0], f"{name}_p90": pair[1]}
        return found


@dataclass(frozen=True)
class KernelValidation(Shown):
    """Errors by variant, and pooled over the variants of each kernel and chip."""

    WRITTEN: ClassVar[Mapping[str, str]] = {"kernels": "by_chip", "variants": "by_variant"}
    by_variant: tuple[KernelErrors, ...]
    by_chip: tuple[KernelErrors, ...]
    version: str = ""
    command: str = ""

    def rows(self) -> Rows:
        """Return the errors of each kernel, chip and variant."""
        return [entry.as_row() for entry in self.by_variant]


@dataclass(frozen=True)
class FittedCurves(Shown):
    """A file of fitted curves, with their errors."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "kernels": "errors.by_chip", "variants": "errors.by_variant",
    }  # fmt: skip
    text: str
    errors: KernelValidation

    def rows(self) -> Rows:
        """Return the errors of each kernel, chip and variant."""
        return self.errors.rows()


def kernel_validation(tables: Sequence[Timings], curves: KernelCurves) -> KernelValidation:
    """Return the errors of curves on some tables.

    Raises
    ------
    UnknownNameError
        When no chip has a curve of a variant.
    """
    single, pooled = [], []
    for table in tables:
        of_chip: dict[str, list[tuple[FloatArray, FloatArray | None, Timings]]] = {}
        for chip, variant, rows in groups_of(table):
            errors = _errors(rows, variant, chip, curves)
            try:
                others = _errors(rows, variant, chip, curves.without(chip))
            except UnknownNameError:
                others = None
            of_chip.setdefault(chip, []).append((errors, others, rows))
            single.append(_record(table.kernel.name, chip, variant, [(errors, others, rows)]))
        pooled += [
            _record(table.kernel.name, chip, "", parts) for chip, parts in sorted(of_chip.items())
        ]
    return KernelValidation(tuple(single), tuple(pooled))


def _errors(rows: Timings, variant: str, chip: str, curves: KernelCurves) -> FloatArray:
    """Return ln(predicted / measured) of rows of one chip and variant."""
    place = place_of(chip)
    curve = curves.curve(rows.kernel.name, variant, place.chip)
    predicted = predicted_s(rows, variant, place, curve, curves)
    errors: FloatArray = np.log(predicted / rows.measured_s)
    return errors


def _record(
    kernel: str, chip: str, variant: str,
    parts: Sequence[tuple[FloatArray, FloatArray | None, Timings]],
) -> KernelErrors:  # fmt: skip
    errors = np.concatenate([found for found, _, _ in parts])
    held = np.concatenate([rows.held_back for _, _, rows in parts])
    others = [found for _, found, _ in parts if found is not None]
    return KernelErrors(
        kernel, chip, variant, len(errors), _spread(errors[~held]), _spread(errors[held]),
        _spread(np.concatenate(others)) if others else None, float(np.median(errors)),
    )  # fmt: skip


def _spread(errors: FloatArray) -> tuple[float, float] | None:
    if not len(errors):
        return None
    median, p90 = np.percentile(np.abs(errors), (50.0, 90.0))
    return float(median), float(p90)
