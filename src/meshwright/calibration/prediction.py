"""A row priced: the throughput and the memory that the cost model predicts, and those measured.

Throughput is compared in one unit, tokens per second of the whole job. Memory is that of the
fullest device, counted as its source counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from meshwright.base.arrays import number_at
from meshwright.base.errors import Fault, MeshwrightError, SpecError
from meshwright.base.records import Brief, Scalar
from meshwright.calibration.jobs import Job, job_of
from meshwright.calibration.rows import (
    ANALYTIC,
    DID_NOT_FIT,
    Counting,
    Reason,
    RefusedError,
    Row,
)
from meshwright.cost.memory import fullest
from meshwright.cost.parts import MemoryPart, MemoryUse
from meshwright.cost.pipeline import num_communicators
from meshwright.cost.step import Priced, price_one
from meshwright.sharding.strategy import Recompute
from meshwright.train.measured.factors import Measurement
from meshwright.train.price import estimate_of
from meshwright.wafer.training import GRIDS

Made = TypeVar("Made")


def measured_tokens_per_s(job: Job) -> float | None:
    """Return the throughput of the whole job [tokens/s]; None: not measured."""
    found, work = job.row.measured, job.problem.workload
    if found.tokens_per_s is not None:
        return found.tokens_per_s
    if found.tokens_per_s_per_chip is not None:
        return found.tokens_per_s_per_chip * job.problem.system.num_devices
    if found.iteration_time_s is not None:
        return work.tokens_per_step / found.iteration_time_s
    if found.samples_per_s is not None:
        return found.samples_per_s * work.sequence_length
    return None


@dataclass(frozen=True)
class RowMemory:
    """The memory of the fullest device of a row."""

    use: MemoryUse
    """Memory of the fullest device."""
    counting: Counting
    num_communicators: float
    measured_bytes: float | None
    fits: bool | None
    """Whether the row ran within the memory; None: the row does not say."""
    stated_use: MemoryUse | None = None
    """Memory of the device for which the source states it; None: the fullest one."""

    @property
    def counted_use(self) -> MemoryUse:
        """Memory of the device for which the source states it."""
        return self.stated_use or self.use

    @property
    def predicted_bytes(self) -> float:
        """Memory that the source would have counted [bytes]."""
        use = self.counted_use
        resident = sum(
            use[part] for part in (MemoryPart.WEIGHTS, MemoryPart.GRADIENTS, MemoryPart.STATES)
        )
        counted = {
            Counting.DEVICE: used_bytes(use),
            Counting.ALLOCATOR: use.allocator_bytes,
            Counting.ALLOCATED: use.allocator_bytes - use[MemoryPart.FRAGMENTATION],
            Counting.RESIDENT: resident,
            Counting.TENSORS: resident + use[MemoryPart.ACTIVATIONS],
        }
        return float(counted[self.counting])

    @property
    def log_error(self) -> float | None:
        """ln(predicted / measured)."""
        if not self.measured_bytes:
            return None
        return float(np.log(self.predicted_bytes / self.measured_bytes))


def row_memory(job: Job, priced: Priced) -> RowMemory:
    """Return the memory of a row that was priced.

    A row fits when its memory is within that of the chip: the margin of plans is a guard of the
    search. Where recomputation is not stated, the plan may have used any, so a row fits if it fits
    under full recomputation.
    """
    row, use, measured = job.row, _fullest(priced), job.row.measured
    usual = Counting.DEVICE if job.habits.counts_runtime else Counting.ALLOCATOR
    is_last = measured.memory_of_last_stage and job.strategy.pp > 1
    return RowMemory(
        use=use,
        counting=measured.memory_counting or usual,
        num_communicators=float(num_communicators(job.strategy)),
        measured_bytes=measured.memory_bytes,
        fits=None if row.task == ANALYTIC else _fits(job, use),
        stated_use=_plain(priced.step.memory[-1]) if is_last else None,
    )


def used_bytes(use: MemoryUse) -> float:
    """Return the memory in use, without the margin that plans leave free [bytes]."""
    return float(use.total_bytes - use[MemoryPart.MARGIN])


def _fits(job: Job, use: MemoryUse) -> bool:
    """Return whether a row fits, with full recomputation where it may be."""
    capacity = job.problem.system.chip.main_memory.capacity_bytes
    if used_bytes(use) <= capacity or "recompute" in job.row.strategy.stated:
        return used_bytes(use) <= capacity
    leaner = replace(job.plan_options, recompute=Recompute.FULL)
    again = price_one(job.problem, leaner, job.strategy)
    return used_bytes(_fullest(again)) <= capacity


def _fullest(priced: Priced) -> MemoryUse:
    """Return the memory of the fullest device as plain numbers."""
    use, _ = fullest(priced.step.memory)
    return _plain(use)


def _plain(use: MemoryUse) -> MemoryUse:
    """Return memory as plain numbers."""
    return MemoryUse({part: number_at(column) for part, column in use.columns.items()})


@dataclass(frozen=True)
class Prediction(Brief):
    """A row with the prediction of the model; unknown fields are None."""

    row: Row
    job: Job | None = None
    predicted_tokens_per_s: float | None = None
    measured_tokens_per_s: float | None = None
    memory: RowMemory | None = None
    has_room: bool | None = None
    """With requests: whether the cache of one request of full length fits beside the model."""
    parts_s: Mapping[str, float] | None = None
    interval: tuple[float, float] | None = None
    """Throughputs between which four of five such rows lie [tokens/s]."""
    times: Mapping[str, Prediction] = field(default_factory=dict)
    """With requests: predictions of the measured times, each as a rate, by figure."""
    refused: Reason | None = None
    detail: str = ""

    def brief(self) -> str:
        """Return the predicted and the measured rate, or the reason why there is no prediction."""
        if self.refused is not None:
            return f"{self.row.id}: {self.refused}: {self.detail}"
        shown = {"predicted": self.predicted_tokens_per_s, "measured": self.measured_tokens_per_s}
        told = [f"{name} {v:,.0f} tokens/s" for name, v in shown.items() if v is not None]
        return f"{self.row.id}: {', '.join(told)}"

    def as_row(self) -> dict[str, Scalar]:
        """Return the row with its predicted and measured values."""
        low, high = self.interval or (None, None)
        memory = self.memory
        return {
            "id": self.row.id, "source": self.row.group, "model": self.row.model.name,
            "chip": self.row.system.chip, "chips": self.row.system.num_chips,
            "predicted_tokens_per_s": self.predicted_tokens_per_s,
            "measured_tokens_per_s": self.measured_tokens_per_s,
            "interval_low_tokens_per_s": low, "interval_high_tokens_per_s": high,
            "log_error": self.log_error,
            "predicted_bytes": None if memory is None else memory.predicted_bytes,
            "measured_bytes": None if memory is None else memory.measured_bytes,
            "fits": self.fits, "refused": None if self.refused is None else str(self.refused),
        }  # fmt: skip

    @property
    def fits(self) -> bool | None:
        """Whether the row is predicted to fit; None: not predicted."""
        return self.memory.fits if self.memory else self.has_room

    @property
    def memory_log_error(self) -> float | None:
        """ln(predicted / measured) of the memory."""
        return self.memory.log_error if self.memory else None

    @property
    def log_error(self) -> float | None:
        """ln(predicted / measured) of the throughput."""
        if not (self.predicted_tokens_per_s and self.measured_tokens_per_s):
            return None
        return float(np.log(self.predicted_tokens_per_s / self.measured_tokens_per_s))


def predict(
    rows: Sequence[Row], calibration: str, *, is_named: bool = True, is_placed: bool = True
) -> list[Prediction]:
    """Return the prediction of each row, or the reason for which there is none.

    Each row is priced as ``estimate`` prices its question. Where the calibration was fitted, each
    has the interval that held four of five similar rows of sources left out of the fit.

    Parameters
    ----------
    is_named
        Whether the framework is part of the question, with the software that a row states.
    is_placed
        Whether rows on grids are placed and share links; a fit works with closed forms.
    """

    def predicted(row: Row) -> Prediction:
        return compared(job_of(row, calibration, is_named=is_named), is_placed=is_placed)

    return [refused_or(predicted, row) for row in rows]


def refused_or(made: Callable[[Row], Made], row: Row) -> Made | Prediction:
    """Return the prediction that ``made`` makes of a row, or one that names its refusal."""
    try:
        return made(row)
    except RefusedError as error:
        return Prediction(row, refused=error.reason, detail=error.detail)
    except MeshwrightError as error:
        return Prediction(row, refused=Reason.PLAN, detail=str(error).splitlines()[0])


def compared(job: Job, *, is_placed: bool = True) -> Prediction:
    """Return the prediction of a job with its measurement."""
    problem, priced = job.problem, price_one(job.problem, job.plan_options, job.strategy)
    if is_placed and problem.has_grid:
        estimate = GRIDS.price(problem, job.strategy, job.plan_options).estimate
    else:
        estimate = estimate_of(problem, priced)
    row, work = job.row, job.problem.workload
    memory, measured = row_memory(job, priced), measured_tokens_per_s(job)
    if measured is None and memory.measured_bytes is None and row.task != DID_NOT_FIT:
        raise RefusedError(Reason.MEASURED, row.task)
    ends_s = estimate.interval_s
    return Prediction(
        row,
        job,
        predicted_tokens_per_s=estimate.tokens_per_s,
        measured_tokens_per_s=measured,
        memory=memory,
        parts_s=estimate.time_parts_s,
        interval=ends_s and (work.tokens_per_step / ends_s[1], work.tokens_per_step / ends_s[0]),
    )


def measurements(rows: Sequence[Row], calibration: str, origin: str) -> list[Measurement]:
    """Return the measured steps of rows.

    Raises
    ------
    SpecError
        With every row that cannot be priced, or has no throughput.
    """
    predictions = predict(rows, calibration)
    faults = [
        Fault(entry.row.id, *_why_not(entry))
        for entry in predictions
        if entry.job is None or entry.measured_tokens_per_s is None
    ]
    if faults:
        raise SpecError(faults, origin=origin)
    return [measurement(entry) for entry in predictions]


def measurement(entry: Prediction) -> Measurement:
    """Return the measured step of a row that has one."""
    job, tokens_per_s = entry.job, entry.measured_tokens_per_s
    assert job is not None
    assert tokens_per_s is not None
    step_s = job.problem.workload.tokens_per_step / tokens_per_s
    return Measurement(entry.row.id, job.problem, job.strategy, job.plan_options, step_s)


def _why_not(entry: Prediction) -> tuple[str, str]:
    """Return the reason why a row is no measurement of a step, and a fix."""
    if entry.refused is not None:
        return f"{entry.refused}: {entry.detail}", "complete it, or leave it out"
    return "has no measured time or throughput", "leave it out"
