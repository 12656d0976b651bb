"""Constants of the all-reduce of servers, fitted to timings of its kernels by family of chips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.fit.constants import FittedConstant, Free
from meshwright.calibration.fit.timings import TimingFit, fit_timings, stored_timings
from meshwright.catalog.systems import load_system
from meshwright.collectives.group import Group, Span
from meshwright.serve.all_reduce import all_reduce_s
from meshwright.spec.calibration import NEUTRAL

OF_ALL_REDUCE = (
    Free("one_shot_start_s", 5e-6, 1.0, 1e-6, 1e-4),
    Free("two_shot_start_s", 1e-5, 1.0, 1e-6, 1e-4),
    Free("shot_link_share", 0.6, 0.5, 0.1, 1.0),
)


@dataclass(frozen=True)
class AllReduceTimings:
    """Timings of one family of chips, as columns."""

    devices: FloatArray
    link_bytes_per_s: FloatArray
    message_bytes: FloatArray
    time_s: FloatArray

    @property
    def is_apart(self) -> BoolArray:
        """Rows kept apart from the fit: every second one."""
        is_second: BoolArray = np.arange(len(self.time_s)) % 2 == 1
        return is_second

    def errors(self, values: FloatArray) -> FloatArray:
        """Return ln(predicted / measured) of each row, for logarithms of the constants."""
        zeros = 0.0 * self.devices
        span = Span(
            self.devices, self.link_bytes_per_s, zeros, zeros, zeros + 1.0,
            is_grid=False, in_network_reduction=False,
        )  # fmt: skip
        named = zip((free.name for free in OF_ALL_REDUCE), np.exp(values).tolist(), strict=True)
        found = all_reduce_s(self.message_bytes, Group((span,)), replace(NEUTRAL, **dict(named)))
        return np.asarray(np.log(found / self.time_s))


def all_reduce_timings() -> dict[str, AllReduceTimings]:
    """Return the published timings by family of chips."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for name, devices, message_bytes, time_s in stored_timings("all_reduces")["rows"]:
        system = load_system(f"{devices}x{name}")
        level = system.levels[0]
        rate = level.bandwidth_bytes_per_s * level.links_per_device
        found.setdefault(system.chip.family, []).append((devices, rate, message_bytes, time_s))
    return {name: AllReduceTimings(*np.array(rows).T) for name, rows in sorted(found.items())}


def fit_all_reduce(found: AllReduceTimings) -> TimingFit:
    """Return the constants of a family of chips."""
    return fit_timings(OF_ALL_REDUCE, found.errors, found.is_apart)


def constants_of_all_reduce() -> Iterator[FittedConstant]:
    """Yield the constants of each family with their intervals."""
    for family, timings in all_reduce_timings().items():
        yield from fit_all_reduce(timings).constants(family)
