"""Constants of the all-reduce in a pass, fitted to timings of its kernels by family of chips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.fit.constants import FittedConstant, Free
from meshwright.calibration.fit.timings import TimingFit, fit_timings, stored_timings
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_system
from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import best_affine_candidates
from meshwright.serve.all_reduce import all_reduce_s
from meshwright.spec.calibration import NEUTRAL
from meshwright.spec.collective import CollectiveKind

OF_KERNELS = (
    Free("one_shot_start_s", 5e-6, 1.0, 1e-6, 1e-4),
    Free("two_shot_start_s", 1e-5, 1.0, 1e-6, 1e-4),
    Free("shot_link_share", 0.6, 0.5, 0.1, 1.0),
)
"""Constants of kernels that servers bring along."""
OF_LIBRARY = (Free("collective_rate_share", 0.8, 0.5, 0.2, 1.2),)


@dataclass(frozen=True)
class AllReduceTimings:
    """Timings of one family of chips, of one kind of kernels, as columns."""

    devices: FloatArray
    message_bytes: FloatArray
    time_s: FloatArray
    links: Group[FloatArray]
    """Links of a host: at full rate, or at that of training for a library."""

    @property
    def is_apart(self) -> BoolArray:
        """Rows kept apart from the fit: every second one."""
        is_second: BoolArray = np.arange(len(self.time_s)) % 2 == 1
        return is_second

    def kernel_errors(self, values: FloatArray) -> FloatArray:
        """Return ln(predicted / measured) of kernels of servers, for logarithms of constants."""
        named = zip((free.name for free in OF_KERNELS), np.exp(values).tolist(), strict=True)
        found = all_reduce_s(self.message_bytes, self.links, replace(NEUTRAL, **dict(named)))
        return np.asarray(np.log(found / self.time_s))

    def library_errors(self, values: FloatArray) -> FloatArray:
        """Return ln(predicted / measured) of a library, for the logarithm of its rate."""
        span = self.links.spans[0]
        rate = span.bandwidth_bytes_per_s * np.exp(values[0])
        forms = best_affine_candidates(
            CollectiveKind.ALL_REDUCE, Group((replace(span, bandwidth_bytes_per_s=rate),))
        )
        found = np.min(
            [fixed_s + self.message_bytes * slope for _, fixed_s, slope in forms], axis=0
        )
        return np.asarray(np.log(found / self.time_s))


def all_reduce_timings(base: str, *, of_library: bool) -> dict[str, AllReduceTimings]:
    """Return the published timings by family of chips.

    Parameters
    ----------
    base
        Calibration with the constants of training.
    """
    rows: dict[str, list[tuple[float, ...]]] = {}
    for is_library, name, devices, message_bytes, time_s in stored_timings("all_reduces")["rows"]:
        if bool(is_library) is not of_library:
            continue
        system = load_system(f"{devices}x{name}")
        level, family = system.levels[0], system.chip.family
        share = load_calibration(family, base).fast_network_efficiency if of_library else 1.0
        rate = share * level.bandwidth_bytes_per_s * level.links_per_device
        of_links = rate, level.latency_s, level.message_half_bytes, level.in_network_reduction
        rows.setdefault(family, []).append((devices, message_bytes, time_s, *of_links))
    found = {}
    for family, entries in sorted(rows.items()):
        devices, message_bytes, time_s, rate, latency_s, half, reduces = np.array(entries).T
        span = Span(
            devices, rate, latency_s, half, 0.0 * rate + 1.0,
            is_grid=False, in_network_reduction=bool(reduces.all()),
        )  # fmt: skip
        found[family] = AllReduceTimings(devices, message_bytes, time_s, Group((span,)))
    return found


def fit_kernels(found: AllReduceTimings) -> TimingFit:
    """Return the constants of kernels of servers on a family of chips."""
    return fit_timings(OF_KERNELS, found.kernel_errors, found.is_apart)


def fit_library(found: AllReduceTimings) -> TimingFit:
    """Return the rate of a library on a family of chips."""
    return fit_timings(OF_LIBRARY, found.library_errors, found.is_apart)


def constants_of_all_reduce(base: str) -> Iterator[FittedConstant]:
    """Yield the constants of each family with their intervals."""
    for of_library, fit in ((False, fit_kernels), (True, fit_library)):
        for family, timings in all_reduce_timings(base, of_library=of_library).items():
            yield from fit(timings).constants(family)
