"""Constants of dispatch to experts, fitted to timings of its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.fit.constants import Free
from meshwright.calibration.fit.timings import TimingFit, fit_timings, stored_timings
from meshwright.collectives.group import Group, Span
from meshwright.serve.dispatch import modes_s
from meshwright.spec.calibration import NEUTRAL
from meshwright.spec.model import ExpertSpec

OF_DISPATCH = (
    Free("low_latency_start_s", 1.5e-5, 1.0, 1e-6, 1e-4),
    Free("low_latency_turn_s", 6e-6, 1.0, 1e-7, 1e-4),
    Free("throughput_start_s", 4e-5, 1.0, 1e-6, 1e-3),
    Free("throughput_turn_s", 3e-5, 1.0, 1e-7, 1e-3),
    Free("dispatch_inner_share", 0.6, 0.5, 0.1, 1.0),
    Free("dispatch_outer_share", 0.9, 0.3, 0.2, 1.0),
)
"""Constants of all chips."""


@dataclass(frozen=True)
class Timings:
    """Timings of dispatch and combination, as columns: sizes, the links, and the time."""

    columns: dict[str, FloatArray]
    is_apart: BoolArray
    """Rows kept apart from the fit."""

    @cached_property
    def links(self) -> Group[FloatArray]:
        """The links of each row."""
        known = self.columns
        ones = np.ones(len(known["hosts"]))

        def span(size: str, rate: str) -> Span[FloatArray]:
            return Span(known[size], known[rate], 0.0 * ones, 0.0 * ones, ones, False, False)

        return Group((span("in_host", "inner_bytes_per_s"), span("hosts", "outer_bytes_per_s")))

    def errors(self, values: FloatArray) -> FloatArray:
        """Return ln(predicted / measured) of each row, for logarithms of the constants."""
        known = self.columns
        names = [free.name for free in OF_DISPATCH]
        constants = replace(NEUTRAL, **dict(zip(names, np.exp(values).tolist(), strict=True)))
        found = np.zeros(len(known["time_s"]))
        for top_k in np.unique(known["top_k"]):
            experts = ExpertSpec(num_experts=4096, top_k=int(top_k), ffn_size=1)
            low_latency_s, throughput_s = modes_s(
                known["tokens"], known["token_bytes"], experts, self.links, constants
            )
            predicted = np.where(known["is_low_latency"] > 0, low_latency_s, throughput_s)
            mine = known["top_k"] == top_k
            found[mine] = np.log(predicted / known["time_s"])[mine]
        return found


def timings() -> Timings:
    """Return the published timings; both directions of every second setting are kept apart."""
    content = stored_timings("dispatch")
    values = np.array(content["rows"], dtype=float)
    columns = dict(zip(content["columns"], values.T, strict=True))
    return Timings(columns, np.arange(len(values)) // 2 % 2 == 1)


def fit_dispatch(found: Timings) -> TimingFit:
    """Return the constants of all chips."""
    return fit_timings(OF_DISPATCH, found.errors, found.is_apart)
