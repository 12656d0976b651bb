"""Free constants of a fit: expected value and bounds of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.catalog.calibration import Constant
from meshwright.spec.declaration import file_key


@dataclass(frozen=True)
class Free:
    """One free constant, fitted as its logarithm.

    ``prior`` is the value expected without rows, ``spread`` its standard deviation in the
    logarithm. A scale multiplies the uncalibrated values of several constants.
    """

    name: str
    prior: float
    spread: float
    lowest: float
    highest: float
    per_family: bool = False
    per_framework: bool = False
    scales: tuple[str, ...] = ()
    """Constants that share the scale; empty: the constant itself."""


ATTENTION = ("attention_forward_efficiency", "attention_backward_efficiency")

FREE = (
    Free("matmul_sustained_efficiency", 0.9, 0.1, 0.5, 1.0, per_family=True),
    Free("attention_scale", 0.9, 0.3, 0.3, 1.3, per_family=True, scales=ATTENTION),
    Free("portable_attention_efficiency", 0.6, 0.3, 0.3, 1.0, per_family=True),
    Free("narrow_matmul_efficiency", 0.9, 0.1, 0.6, 1.0),
    # Rates of grouped products alone over those of ordinary ones, by the curves of
    # docs/results/kernels.md in bf16: A100 0.50, GB200 0.60, B200 0.77, H200 1.07, H100 1.19;
    # their mean and scatter.
    Free("grouped_matmul_efficiency", 0.78, 0.4, 0.2, 1.0),
    # By count: an input is cast, a scale is set.
    Free("expert_kernels", 2.0, 1.0, 0.1, 50.0),
    # Of elementwise kernels over routed tokens in fused layers, the same tables: 1.03 to 1.83.
    Free("expert_traffic_factor", 1.3, 0.6, 1.0, 8.0),
    Free("eager_traffic_factor", 2.0, 0.4, 1.0, 6.0),
    Free("elementwise_efficiency", 0.75, 0.15, 0.4, 0.95),
    Free("slow_network_efficiency", 0.8, 0.2, 0.3, 0.98),
    Free("operator_s", 6e-5, 0.7, 5e-6, 6e-4, per_framework=True),
    Free("overlap_slowdown", 0.189, 0.5, 0.01, 0.6),
    Free("jitter", 0.01, 0.7, 0.001, 0.05),
)
"""Constants of a family of chips first, then of a framework and those that all share. No prior is
taken from the rows of the fit."""
UNNAMED = "unnamed"
"""The framework of rows that name none."""


@dataclass(frozen=True)
class Key:
    """A free constant: of a family of chips, of a framework, or of all rows."""

    free: Free
    family: str = ""
    framework: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Family and name, for sorting and for files."""
        return self.family, self.free.name

    def holds(self, family: str, framework: str) -> bool:
        """Return whether jobs of a framework on a family of chips have this constant."""
        return self.family in ("", family) and self.framework in ("", framework)


@dataclass(frozen=True)
class FittedConstant(Constant):
    """One constant of a fit."""

    why: str = "fitted"
    part: str = ""
    """Part of the cost model: ``training``, ``memory``, ``serving`` or ``sram``."""
    place: str = ""
    """Family, framework or server of the constant; empty: all."""


def entries(constants: Iterable[FittedConstant], place: str = "") -> dict[str, Any]:
    """Return the constants of a family, framework or server as files state them."""
    return {file_key(one.name): one.entry for one in constants if one.place == place}


def two_deviations(value: float, spread: float) -> FloatArray:
    """Return a constant, and the ends of its interval: two standard deviations of its logarithm."""
    return np.asarray(np.exp([value, value - 2.0 * spread, value + 2.0 * spread]), dtype=float)


def keys_of(families: Sequence[str], frameworks: Sequence[str] = ()) -> list[Key]:
    """Return the free constants of a fit on rows of some families and frameworks."""
    own = [Key(free, family=f) for f in families for free in FREE if free.per_family]
    own += [Key(free, framework=f) for f in frameworks for free in FREE if free.per_framework]
    return own + [Key(free) for free in FREE if not (free.per_family or free.per_framework)]
