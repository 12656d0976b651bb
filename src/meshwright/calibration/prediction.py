"""A row priced: the throughput and the memory that the cost model predicts, and those measured.

Throughput is compared in one unit, tokens per second of the whole job. Sources count FLOPs in their
own ways, so rates in FLOP/s are turned into tokens by the rule of their source, and only where
neither tokens nor seconds are stated. Memory is that of the fullest device, counted as its source
counts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from meshwright.base.errors import Fault, MeshwrightError, SpecError
from meshwright.base.records import Brief, Scalar
from meshwright.calibration.jobs import Job, Reason, RefusedError, job_of
from meshwright.calibration.rows import FlopsRule, Row
from meshwright.cost.memory import fullest
from meshwright.cost.operator import stated_rate
from meshwright.cost.parts import MemoryPart, MemoryUse
from meshwright.cost.pipeline import num_communicators
from meshwright.cost.step import Priced, price_one
from meshwright.graph.flops import ScoreCount, step_flops
from meshwright.graph.parameters import count_parameters
from meshwright.sharding.strategy import Recompute
from meshwright.train.estimate import estimate_of
from meshwright.train.measured.factors import Measurement
from meshwright.wafer.training import GRIDS


def measured_tokens_per_s(job: Job) -> float | None:
    """Return the throughput of the whole job [tokens/s]; None: not measured."""
    row, work = job.row, job.problem.workload
    found, chips = row.measured, job.problem.system.num_devices
    if found.tokens_per_s is not None:
        return found.tokens_per_s
    if found.tokens_per_s_per_chip is not None:
        return found.tokens_per_s_per_chip * chips
    if found.iteration_time_s is not None:
        return work.tokens_per_step / found.iteration_time_s
    if found.samples_per_s is not None:
        return found.samples_per_s * work.sequence_length
    flops, rate = counted_flops_per_token(job), found.tflops_per_chip
    if rate is None and found.mfu is not None:
        peak = stated_rate(job.problem.system.chip, work.precision.activation)
        rate = found.mfu * peak / 1e12
    if rate is None or flops is None:
        return None
    return rate * 1e12 * chips / flops


def counted_flops_per_token(job: Job) -> float | None:
    """Return the FLOPs that the source of a row counts for one token; None: rule not stated.

    Hardware FLOPs of Megatron: 96 B s l h^2 (1 + s/6h + V/16lh), a forward pass repeated; its
    model FLOPs are three quarters of the layers. Rules by parameters: 6 N or 8 N, with full scores
    where they are named. Otherwise the model FLOPs of all products, with full or causal scores.
    """
    rule, model = job.row.flops_counting, job.problem.model
    length = float(job.problem.workload.sequence_length)
    if rule is None:
        return None
    if rule is FlopsRule.EIGHT_N:
        params = (job.row.model.params_b or 0.0) * 1e9
        return 8.0 * params if params else None
    if rule is FlopsRule.SIX_N:
        whole = count_parameters(model).num_params
        return 6.0 * whole + 12.0 * model.num_layers * model.hidden_size * length
    is_hardware = rule in (FlopsRule.HARDWARE, FlopsRule.HARDWARE_CAUSAL)
    is_causal = rule in (FlopsRule.MODEL_CAUSAL, FlopsRule.HARDWARE_CAUSAL)
    flops = step_flops(
        job.problem.graph, num_tokens=1.0, sequence_length=length,
        count=ScoreCount.CAUSAL if is_causal else ScoreCount.FULL,
        recompute="full" if is_hardware else "none",
        freezes_weights=job.problem.workload.optimizer.freezes_weights,
    )  # fmt: skip
    return float(flops.hardware if is_hardware else flops.model)


ANALYTIC = "memory"
"""Task of rows that state the result of a formula of their source; they need not have run."""


class Counting(StrEnum):
    """Bytes that a source counts as memory."""

    DEVICE = "device"
    """All memory that the driver reports: allocator, runtime and communication library."""
    ALLOCATOR = "allocator"
    """Peak of the memory reserved by the allocator of the framework."""
    ALLOCATED = "allocated"
    """Peak of the memory that the allocator gave to tensors at once."""
    RESIDENT = "resident"
    """Bytes of tensors between steps: parameters, gradients, optimizer state."""
    TENSORS = "tensors"
    """Parameters, gradients, optimizer state and kept activations alone."""


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
            use[part] for part in (MemoryPart.WEIGHTS, MemoryPart.GRADIENTS, MemoryPart.OPTIMIZER)
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
    row, use = job.row, _fullest(priced)
    stated = row.measured.memory_bytes_per_chip
    counting = Counting.DEVICE if job.habits.counts_runtime else Counting.ALLOCATOR
    metric = row.measured.memory_metric or ""
    if "allocated" in metric:
        counting = Counting.ALLOCATED if "max" in metric else Counting.RESIDENT
    state, kept = row.measured.param_opt_bytes, row.measured.activation_bytes
    if stated is None and state is not None and kept is not None:
        counting, stated = Counting.TENSORS, state + kept
    is_last = row.measured.memory_of_last_stage and job.strategy.pp > 1
    return RowMemory(
        use=use,
        counting=counting,
        num_communicators=float(num_communicators(job.strategy)),
        measured_bytes=stated,
        fits=None if row.task == ANALYTIC else _fits(job, use),
        stated_use=_plain(priced.step.memory[-1]) if is_last else None,
    )


def used_bytes(use: MemoryUse) -> float:
    """Return the memory in use, without the margin that plans leave free [bytes]."""
    return float(use.total_bytes - use[MemoryPart.MARGIN])


def _fits(job: Job, use: MemoryUse) -> bool:
    """Return whether a row fits, with full recomputation where it may be."""
    capacity = job.problem.system.chip.main_memory.capacity_bytes
    if used_bytes(use) <= capacity or job.row.recompute is not None:
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
    return MemoryUse({part: _one(column) for part, column in use.columns.items()})


DID_NOT_FIT = "oom"


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
            "chip": self.row.hardware.chip, "chips": self.row.hardware.chips,
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
    return [_predicted(row, calibration, is_named, is_placed) for row in rows]


def _predicted(row: Row, calibration: str, is_named: bool, is_placed: bool) -> Prediction:
    """Return the prediction of one row."""
    try:
        if row.task != DID_NOT_FIT and not any(vars(row.measured).values()):
            raise RefusedError(Reason.MEASURED, row.task)
        return compared(job_of(row, calibration, is_named=is_named), is_placed=is_placed)
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
        raise RefusedError(Reason.MEASURED, "the rule by which FLOPs were counted is not known")
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


def _one(column: Any) -> float:
    """Return the number of a column of one row."""
    return float(np.asarray(column, dtype=float).reshape(-1)[0])


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
