"""Rate of attention over cached latents (MLA), fitted to timings of its kernels by family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.fit.constants import FittedConstant, Free
from meshwright.calibration.fit.timings import TimingFit, fit_timings, stored_timings
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_chip

NAME = "latent_rate_share"
OF_LATENTS = (
    Free("start_s", 1e-5, 1.0, 1e-6, 1e-4),
    Free(NAME, 1.0, 0.5, 0.1, 4.0),
    Free("read_share", 1.0, 0.5, 0.1, 2.0),
)
LATENT, ROTARY = 512.0, 64.0
"""Words of a cached token of DeepSeek-V3."""


@dataclass(frozen=True)
class LatentTimings:
    """Timings of one family of chips, as columns."""

    arithmetic_s: FloatArray
    """Time at the rate of attention in training steps [s]."""
    reading_s: FloatArray
    """Time to read the cache once [s]."""
    time_s: FloatArray

    @property
    def is_apart(self) -> BoolArray:
        """Rows kept apart from the fit: every second one."""
        is_second: BoolArray = np.arange(len(self.time_s)) % 2 == 1
        return is_second

    def errors(self, values: FloatArray) -> FloatArray:
        """Return ln(predicted / measured): a start, then arithmetic or reading, the slower one.

        Parameters
        ----------
        values
            Logarithms of the start, of the rate of arithmetic and of that of reading.
        """
        start_s, rate, read = np.exp(values)
        found = start_s + np.maximum(self.arithmetic_s / rate, self.reading_s / read)
        return np.asarray(np.log(found / self.time_s))


def latent_timings(base: str) -> dict[str, LatentTimings]:
    """Return the published timings by family of chips, under the constants of training."""
    content = stored_timings("latents")
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name, sequences, past_tokens, heads, time_s in content["rows"]:
        chip = load_chip(name)
        constants, memory = load_calibration(chip.family, base), chip.main_memory
        rate = chip.matmul_flops_per_s["bf16"] * constants.attention_forward_efficiency
        read = (memory.bandwidth_bytes_per_s or 0.0) * constants.memory_efficiency
        flops = 2.0 * (2.0 * LATENT + ROTARY) * heads * sequences * past_tokens
        cache_bytes = 2.0 * (LATENT + ROTARY) * sequences * past_tokens
        found.setdefault(chip.family, []).append((flops / rate, cache_bytes / read, time_s))
    return {name: LatentTimings(*np.array(rows).T) for name, rows in sorted(found.items())}


def fit_latents(found: LatentTimings) -> TimingFit:
    """Return start and rates of a family of chips."""
    return fit_timings(OF_LATENTS, found.errors, found.is_apart)


def constants_of_latents(base: str) -> Iterator[FittedConstant]:
    """Yield the rate of each family with its interval."""
    for family, timings in latent_timings(base).items():
        found = fit_latents(timings).constants(family)
        yield from (one for one in found if one.name == NAME)
