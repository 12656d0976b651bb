"""The constants of memory, fitted to rows that state it, and the same without each source.

Bytes of tensors follow from the plan. Left to measurements are the overhead of the allocator, as a
factor, the bytes of the runtime, and the bytes of communicators for each axis of several devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, Num
from meshwright.calibration.errors import memory_error_record, source_weights
from meshwright.calibration.fit.constants import FittedConstant
from meshwright.calibration.prediction import Prediction, RowMemory
from meshwright.calibration.rows import Counting
from meshwright.catalog.calibration import MemoryGroupRecord, MemoryRecord

GIB = 2.0**30
HUBER = 0.02
"""Log errors beyond it count linearly: rows that contradict others do not pull."""
NOISE = 0.05
"""Log error of a source that weighs as much as a prior of one spread."""
CONSTANTS = ("allocator_factor", "communication_buffer_bytes", "communicator_bytes")
PRIOR = (1.05, 1.5 * GIB, 0.5 * GIB)
"""An allocator of rounded blocks; context and kernels of CUDA, 1573 MiB on an A100 (BigScience,
chronicles-prequel.md); some tens of channels of NCCL with buffers of 4 MiB both ways
(``NCCL_BUFFSIZE``)."""
SPREAD = (0.05, 0.25 * GIB, 0.5 * GIB)
BOUNDS = ((1.0, 0.5 * GIB, 0.0), (1.3, 6.0 * GIB, 2.0 * GIB))


@dataclass(frozen=True)
class MemoryRows:
    """Rows that state memory which the constants change, priced under the uncalibrated ones."""

    groups: tuple[str, ...]
    multiples: FloatArray
    """Factors of each constant: bytes of all tensors and idle places; if the source counts them,
    one runtime and the axes of several devices, (rows, constants)."""
    measured_bytes: FloatArray

    def log_errors(self, values: FloatArray) -> FloatArray:
        """Return ln(predicted / measured), (rows,)."""
        return np.asarray(np.log(self.multiples @ values / self.measured_bytes))

    def needed(self, values: FloatArray, index: int) -> FloatArray:
        """Return the value of one constant at which each row that feels it would be met."""
        mine = self.multiples[:, index]
        others = self.multiples @ values - mine * values[index]
        needed: FloatArray = (self.measured_bytes - others) / np.where(mine > 0, mine, 1.0)
        return needed[mine > 0]

    def taken(self, chosen: BoolArray) -> MemoryRows:
        """Return some of the rows."""
        groups = tuple(np.array(self.groups)[chosen].tolist())
        return MemoryRows(groups, self.multiples[chosen], self.measured_bytes[chosen])


@dataclass(frozen=True)
class MemoryFit:
    """Fitted constants, with the errors of the rows that made them and of sources left out."""

    rows: MemoryRows
    values: FloatArray
    """Values of the constants, (constants,)."""
    errors: FloatArray
    """ln(predicted / measured), (rows,)."""
    left_out_errors: FloatArray
    """Errors of each row under constants fitted without its source, (rows,); NaN: no other
    source."""


def memory_rows(predictions: Iterable[Prediction]) -> MemoryRows:
    """Return the rows that inform the constants; predictions are under the uncalibrated ones."""
    found: list[tuple[str, RowMemory, Num]] = [
        (entry.row.group, entry.memory, entry.job.problem.calibration.allocator_factor)
        for entry in predictions
        if entry.job and entry.memory and entry.memory.measured_bytes
        and entry.memory.counting in (Counting.DEVICE, Counting.ALLOCATOR)
    ]  # fmt: skip
    multiples = [
        (m.counted_use.allocator_bytes / factor, is_device, is_device * m.num_communicators)
        for _, m, factor in found
        for is_device in (float(m.counting is Counting.DEVICE),)
    ]
    measured = np.array([memory.measured_bytes for _, memory, _ in found], dtype=float)
    return MemoryRows(tuple(group for group, *_ in found), np.array(multiples), measured)


def fit_memory(rows: MemoryRows, prior: Sequence[float] = PRIOR) -> MemoryFit | None:
    """Return the constants of least robust error near a prior; None: no row states memory."""
    if not rows.groups:
        return None
    values = _fitted(rows, prior)
    left_out = np.full(len(rows.groups), np.nan)
    groups = np.array(rows.groups)
    for group in dict.fromkeys(rows.groups):
        out = groups == group
        if not out.all():
            left_out[out] = rows.taken(out).log_errors(_fitted(rows.taken(~out), prior))
    return MemoryFit(rows, values, rows.log_errors(values), left_out)


def constants_of_memory(found: MemoryFit) -> Iterator[FittedConstant]:
    """Yield each constant with the interval that four of five rows ask for, within its bounds."""
    for index, (name, value, least, most) in enumerate(
        zip(CONSTANTS, found.values.tolist(), *BOUNDS, strict=True)
    ):
        needed = found.rows.needed(found.values, index)
        low, high = np.quantile(needed, [0.1, 0.9]) if len(needed) else (least, most)
        ends = max(min(float(low), value), least), min(max(float(high), value), most)
        yield FittedConstant(name, value, *ends, part="memory")


def _fitted(rows: MemoryRows, expected: Sequence[float]) -> FloatArray:
    """Return the constants of least robust error near their expected values, (constants,).

    Too little is worse than too much: the factor is raised until half of the rows have enough.
    """
    from scipy.optimize import least_squares

    weights = source_weights(rows.groups) / NOISE
    prior, spread = np.array(expected), np.array(SPREAD)

    def misfit(steps: FloatArray) -> FloatArray:
        errors = rows.log_errors(prior + spread * steps)
        size = np.abs(errors)
        robust = np.where(size > HUBER, np.sqrt(HUBER * np.abs(2.0 * size - HUBER)), size)
        return np.concatenate([weights * np.sign(errors) * robust, steps])

    bounds = [(np.array(bound) - prior) / spread for bound in BOUNDS]
    values = prior + spread * least_squares(misfit, np.zeros(len(prior)), bounds=bounds).x
    enough = float(np.quantile(rows.needed(values, 0), 0.5, method="higher"))
    values[0] = np.clip(enough, values[0], BOUNDS[1][0])
    return np.asarray(values)


def memory_record(found: MemoryFit) -> MemoryRecord:
    """Return the errors of a fit of memory, on its own rows and on sources left out."""
    groups = np.array(found.rows.groups)

    def of(chosen: BoolArray) -> dict[str, Any]:
        return {
            "rows": int(np.sum(chosen)),
            "fitted": memory_error_record(found.errors[chosen]),
            "left_out": memory_error_record(found.left_out_errors[chosen]),
        }

    by_source = {g: MemoryGroupRecord(**of(groups == g)) for g in dict.fromkeys(found.rows.groups)}
    return MemoryRecord(**of(np.ones(len(groups), dtype=bool)), groups=by_source)
