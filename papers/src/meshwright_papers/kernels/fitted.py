"""Fitted curves of kernels, by chip; a chip without one draws from its family."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from meshwright.base.errors import UnknownNameError
from meshwright.catalog.files import load_file, looks_like_path
from meshwright.catalog.systems import load_chip
from meshwright.spec.declaration import Declaration
from meshwright.spec.system import ChipSpec
from meshwright_papers.kernels.curves import Curve, curve_type, range_of

DEFAULT = "kernels"
"""Name of the fitted curves."""
DATA = Path(__file__).parent / "data"
Key = tuple[str, str]
"""A kernel and a variant of it."""


class _CurvesFile(Declaration):
    """Curves as they are in a file: by kernel, variant and chip."""

    name: str
    curves: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]


@dataclass(frozen=True)
class KernelCurves:
    """Curves by kernel and variant, then by chip."""

    fitted: Mapping[Key, Mapping[str, Curve]]

    def curve(self, kernel: str, variant: str, chip: ChipSpec) -> Curve:
        """Return the curve of a chip: its own, else the mean of its family, vendor, or all.

        Raises
        ------
        UnknownNameError
            When no chip has a curve of this kernel and variant.
        """
        if (kernel, variant) not in self.fitted:
            known = [name for other, name in self.fitted if other == kernel]
            raise UnknownNameError(f"variant of {kernel}", variant, known)
        found = self.fitted[kernel, variant]
        if chip.name in found:
            return found[chip.name]
        others = {name: load_chip(name) for name in found}
        near = [name for name, other in others.items() if other.family == chip.family]
        near = near or [name for name, other in others.items() if other.vendor == chip.vendor]
        return mean_curve([found[name] for name in near or found])

    def without(self, chip_name: str) -> KernelCurves:
        """Return the curves of all other chips."""
        kept = {
            key: {name: curve for name, curve in curves.items() if name != chip_name}
            for key, curves in self.fitted.items()
        }
        return KernelCurves({key: curves for key, curves in kept.items() if curves})


def mean_curve(curves: list[Curve]) -> Curve:
    """Return the geometric mean of curves; for a choice of some values the most common one."""
    numbers = {}
    for name in curves[0].numbers:
        values = [curve.numbers[name] for curve in curves]
        if range_of(type(curves[0]), name) is None:
            numbers[name] = Counter(values).most_common(1)[0][0]
        else:
            numbers[name] = math.exp(sum(map(math.log, values)) / len(values))
    return replace(curves[0], **numbers)


@cache
def load_curves(name_or_path: str = DEFAULT) -> KernelCurves:
    """Return the fitted curves, or those of a YAML file.

    Raises
    ------
    SpecError, UnknownNameError
        With all faults of the file; there are no curves of this name.
    """
    if looks_like_path(name_or_path):
        path = Path(name_or_path)
    elif name_or_path == DEFAULT:
        path = DATA / f"{DEFAULT}.yaml"
    else:
        raise UnknownNameError("kernel curves", name_or_path, [DEFAULT])
    file = load_file(_CurvesFile, path)
    return KernelCurves({
        (kernel, variant): {
            chip: curve_type(kernel, variant)(**numbers) for chip, numbers in chips.items()
        }
        for kernel, variants in file.curves.items()
        for variant, chips in variants.items()
    })  # fmt: skip
