"""The textbook's search for a 3D grid (dp, pp, tp): its formulas, as printed there.

Not a price of a real step: no computation, no activations on the tensor axis, no latency. It is
kept so that its choice can stand beside the one of the whole model.

Source: "3D and 4D Parallelism", section 16.9, Code 16.9.1 of the online book at
https://scalablebook.apartsin.com (part IV, chapter 16).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic

import numpy as np

from meshwright.base.arrays import FloatArray, N, where
from meshwright.sharding.space import factorizations


class StateSharding(StrEnum):
    """Whether the data-parallel replicas share out the training state."""

    OVER_DATA = "over_data"
    """The program of the book: state divided by dp * pp * tp."""
    NOT_OVER_DATA = "not_over_data"
    """The book's exercise by hand: every replica holds its whole state."""


@dataclass(frozen=True)
class TextbookSetting:
    """The constants of the textbook's program."""

    num_devices: int = 64
    num_params: float = 70e9
    state_bytes_per_param: float = 16.0
    """Weight, gradient and Adam state in mixed precision."""
    num_layers: int = 80
    activation_bytes: float = 3e9
    """Activations of the whole model for the whole batch on one device."""
    memory_capacity_bytes: float = 80e9
    devices_per_host: int = 8
    num_micro_batches: int = 16
    stage_s: float = 8e-3
    """Computation of one stage for one micro-batch of any size."""
    fast_bytes_per_s: float = 600e9
    """Bandwidth inside a host."""
    pipeline_bytes_per_s: float = 100e9
    """Bandwidth between hosts."""
    data_bytes_per_s: float = 25e9
    """Bandwidth between racks."""

    @property
    def state_bytes(self) -> float:
        """Training state of the whole model."""
        return self.state_bytes_per_param * self.num_params


@dataclass(frozen=True)
class PricedGridOf(Generic[N]):
    """One grid and its price, or one column for each field."""

    dp: N
    pp: N
    tp: N
    tensor_s: N
    pipeline_s: N
    bubble_s: N
    gradient_s: N
    memory_bytes: N

    @property
    def overhead_s(self) -> N:
        """Overhead by which the book ranks: all communication and the bubble of one step [s]."""
        return self.tensor_s + self.pipeline_s + self.bubble_s + self.gradient_s

    @property
    def grid(self) -> tuple[int, int, int]:
        """The shape of one grid as (dp, pp, tp)."""
        return int(self.dp), int(self.pp), int(self.tp)


PricedGrid = PricedGridOf[float]
FIELDS = tuple(PricedGridOf.__dataclass_fields__)


def tensor_s(tp: N, setting: TextbookSetting) -> N:
    """Seconds of the tensor axis: (tp - 1) / tp of one layer's state, once a step.

    A group that is larger than a host uses the link between hosts.
    """
    layer_bytes = setting.state_bytes / setting.num_layers
    fits_host = tp <= setting.devices_per_host
    bytes_per_s = where(fits_host, setting.fast_bytes_per_s, setting.pipeline_bytes_per_s)
    time_s: N = (tp - 1) / tp * layer_bytes / bytes_per_s
    return time_s


def pipeline_s(pp: N, setting: TextbookSetting) -> N:
    """Seconds of the sends between stages: (pp - 1) / pp of the activations, once a step."""
    return (pp - 1) / pp * setting.activation_bytes / setting.pipeline_bytes_per_s


def bubble_s(pp: N, setting: TextbookSetting) -> N:
    """Seconds that the pipeline idles: (pp - 1) / micro-batches of one stage's time."""
    return (pp - 1) / setting.num_micro_batches * setting.stage_s


def gradient_s(dp: N, pp: N, tp: N, setting: TextbookSetting) -> N:
    """Seconds of the data axis: (dp - 1) / dp of one replica's state on one device."""
    return (dp - 1) / dp * (setting.state_bytes / (pp * tp)) / setting.data_bytes_per_s


def memory_bytes(dp: N, pp: N, tp: N, setting: TextbookSetting, sharding: StateSharding) -> N:
    """Bytes on one device: its share of the training state and of the activations."""
    shards = pp * tp * dp if sharding is StateSharding.OVER_DATA else pp * tp
    return setting.state_bytes / shards + setting.activation_bytes / (pp * tp)


def price(
    dp: N, pp: N, tp: N, setting: TextbookSetting, sharding: StateSharding
) -> PricedGridOf[N]:
    """Price one grid, or a column of them."""
    return PricedGridOf(
        dp=dp,
        pp=pp,
        tp=tp,
        tensor_s=tensor_s(tp, setting),
        pipeline_s=pipeline_s(pp, setting),
        bubble_s=bubble_s(pp, setting),
        gradient_s=gradient_s(dp, pp, tp, setting),
        memory_bytes=memory_bytes(dp, pp, tp, setting, sharding),
    )


def ranked_grids(
    setting: TextbookSetting, sharding: StateSharding = StateSharding.OVER_DATA
) -> list[PricedGrid]:
    """Return the grids that are legal and fit, cheapest first; ties in the order of (dp, pp, tp).

    Legal: dp * pp * tp is the number of devices, and a stage holds at least one layer.
    """
    grids = factorizations(setting.num_devices, 3).astype(float)
    dp, pp, tp = grids[grids[:, 1] <= setting.num_layers].T
    priced = price(dp, pp, tp, setting, sharding)
    order = np.lexsort((tp, pp, dp, priced.overhead_s))
    fitting = order[priced.memory_bytes[order] <= setting.memory_capacity_bytes]
    return [_row(priced, int(index)) for index in fitting]


def _row(columns: PricedGridOf[FloatArray], index: int) -> PricedGrid:
    """Return one row of the columns."""
    return PricedGridOf(**{name: float(getattr(columns, name)[index]) for name in FIELDS})
