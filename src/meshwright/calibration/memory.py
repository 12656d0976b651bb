"""The constants of memory, fitted to rows that state it, and the same without each source.

Bytes of tensors follow from the plan. Left to measurements are what the allocator holds beside
them, as a factor, what the runtime takes, and what communicators add for each axis of several
devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.calibration.prediction import (
    DID_NOT_FIT,
    Counting,
    Prediction,
    RowMemory,
    used_bytes,
)
from meshwright.cost.memory import MEMORY_PARTS

GIB = 2.0**30
NUM_WORST = 6
HUBER = 0.02
"""Log errors beyond it count linearly: rows that contradict others do not pull."""
NOISE = 0.05
"""Log error of a source that weighs as much as a prior of one spread."""
CONSTANTS = ("allocator_factor", "communication_buffer", "communicator")
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
    """What each constant multiplies: bytes of all tensors; where the source counts them, one
    runtime, and axes of several devices, (rows, constants)."""
    measured_bytes: FloatArray

    def log_errors(self, values: FloatArray) -> FloatArray:
        """Return ln(predicted / measured), (rows,)."""
        return np.asarray(np.log(self.multiples @ values / self.measured_bytes))

    def asked(self, values: FloatArray, index: int) -> FloatArray:
        """Return the value of one constant at which each row that feels it would be met."""
        mine = self.multiples[:, index]
        others = self.multiples @ values - mine * values[index]
        asked: FloatArray = (self.measured_bytes - others) / np.where(mine > 0, mine, 1.0)
        return asked[mine > 0]

    def taken(self, chosen: Any) -> MemoryRows:
        """Return some of the rows."""
        groups = tuple(np.array(self.groups)[chosen].tolist())
        return MemoryRows(groups, self.multiples[chosen], self.measured_bytes[chosen])


@dataclass(frozen=True)
class MemoryFit:
    """Fitted constants, with the errors of the rows that made them and of sources left out."""

    rows: MemoryRows
    values: FloatArray
    """(constants,)."""
    errors: FloatArray
    """ln(predicted / measured), (rows,)."""
    left_out_errors: FloatArray
    """The same, each row under constants fitted without its source; NaN: there is no other."""


def memory_rows(predictions: Iterable[Prediction]) -> MemoryRows:
    """Return the rows that inform the constants; predictions are under the uncalibrated ones."""
    found: list[tuple[str, RowMemory]] = [
        (entry.row.group, entry.memory)
        for entry in predictions
        if entry.memory and entry.memory.measured_bytes
        and entry.memory.counting is not Counting.TENSORS
    ]  # fmt: skip
    memories = [memory for _, memory in found]
    multiples = [
        (
            m.use.allocator_bytes - m.use.fragmentation_bytes,
            is_device,
            is_device * m.num_communicators,
        )
        for m in memories
        for is_device in (float(m.counting is Counting.DEVICE),)
    ]
    measured = np.array([memory.measured_bytes for memory in memories], dtype=float)
    return MemoryRows(tuple(group for group, _ in found), np.array(multiples), measured)


def fit_memory(rows: MemoryRows) -> MemoryFit | None:
    """Return the constants of least robust error; None where no row states memory."""
    if not rows.groups:
        return None
    values = _fitted(rows)
    left_out = np.full(len(rows.groups), np.nan)
    groups = np.array(rows.groups)
    for group in dict.fromkeys(rows.groups):
        out = groups == group
        if not out.all():
            left_out[out] = rows.taken(out).log_errors(_fitted(rows.taken(~out)))
    return MemoryFit(rows, values, rows.log_errors(values), left_out)


def constants_of(found: MemoryFit) -> Iterator[tuple[str, float, float, float]]:
    """Yield each constant with the interval that four of five rows ask for, within its bounds."""
    for index, (name, value, least, most) in enumerate(
        zip(CONSTANTS, found.values.tolist(), *BOUNDS, strict=True)
    ):
        asked = found.rows.asked(found.values, index)
        low, high = np.quantile(asked, [0.1, 0.9]) if len(asked) else (least, most)
        yield name, value, max(min(float(low), value), least), min(max(float(high), value), most)


def _fitted(rows: MemoryRows) -> FloatArray:
    """Return the constants of least robust error near what is expected of them, (constants,).

    Too little is worse than too much: the factor is raised until half of the rows have enough.
    """
    from scipy.optimize import least_squares

    counts = {group: rows.groups.count(group) for group in set(rows.groups)}
    weights = np.array([counts[group] ** -0.5 for group in rows.groups]) / NOISE
    prior, spread = np.array(PRIOR), np.array(SPREAD)

    def misfit(steps: FloatArray) -> FloatArray:
        errors = rows.log_errors(prior + spread * steps)
        size = np.abs(errors)
        robust = np.where(size > HUBER, np.sqrt(HUBER * np.abs(2.0 * size - HUBER)), size)
        return np.concatenate([weights * np.sign(errors) * robust, steps])

    bounds = [(np.array(bound) - prior) / spread for bound in BOUNDS]
    values = prior + spread * least_squares(misfit, np.zeros(len(prior)), bounds=bounds).x
    enough = float(np.quantile(rows.asked(values, 0), 0.5, method="higher"))
    values[0] = np.clip(enough, values[0], BOUNDS[1][0])
    return np.asarray(values)


def memory_record(found: MemoryFit) -> dict[str, Any]:
    """Return what a fit of memory reached, on its own rows and on sources left out."""
    groups = np.array(found.rows.groups)

    def told(chosen: Any) -> dict[str, Any]:
        return {
            "rows": int(np.sum(chosen)),
            "fitted": asdict(memory_errors(found.errors[chosen])),
            "left_out": asdict(memory_errors(found.left_out_errors[chosen])),
        }

    every = np.ones(len(groups), dtype=bool)
    return told(every) | {
        "groups": {g: told(groups == g) for g in dict.fromkeys(found.rows.groups)}
    }


def fit_lines(found: MemoryFit) -> Sequence[str]:
    """Return the constants and errors of memory for a reader."""
    record = memory_record(found)
    lines = [f"memory of {record['rows']} rows: |ln(predicted / measured)|"]
    lines.append(f"{'source':<20}{'rows':>5}{'median':>9}{'p90':>8}{'bias':>8}{'left out':>10}")
    for name, entry in ({"all": record} | record["groups"]).items():
        inside, out = entry["fitted"], entry["left_out"]["median"]
        left = "-" if out is None else f"{out:.1%}"
        lines.append(
            f"{name[:19]:<20}{entry['rows']:>5}{inside['median']:>9.1%}{inside['p90']:>8.1%}"
            f"{inside['bias']:>+8.1%}{left:>10}"
        )
    for name, value, low, high in constants_of(found):
        unit, size = ("", 1.0) if name.endswith("factor") else (" GiB", GIB)
        shown = [f"{entry / size:.4g}" for entry in (value, low, high)]
        lines.append(f"  {name:<22}{shown[0]}{unit}, {shown[1]} to {shown[2]}")
    return lines


@dataclass(frozen=True)
class MemoryErrors:
    """Errors of memory of some rows; bias above 0 is predicted too full, None is not known."""

    rows: int
    median: float | None
    p90: float | None
    bias: float | None


def memory_errors(errors: FloatArray) -> MemoryErrors:
    """Return the figures of ln(predicted / measured); rows that are NaN are not known."""
    known = errors[~np.isnan(errors)]
    if not len(known):
        return MemoryErrors(0, None, None, None)
    size = np.abs(known)
    figures = np.median(size), np.quantile(size, 0.9), np.median(known)
    return MemoryErrors(len(known), *(round(float(figure), 4) for figure in figures))


def errors_by_group(predictions: Sequence[Prediction]) -> dict[str, MemoryErrors]:
    """Return the errors of each source that states memory, and of all rows as ``all rows``."""
    stated = [(entry.row.group, _log_error(entry)) for entry in predictions]
    known = [(group, error) for group, error in stated if error is not None]
    groups = dict.fromkeys(group for group, _ in known)
    found = {name: [error for group, error in known if group == name] for name in groups}
    found["all rows"] = [error for _, error in known]
    return {name: memory_errors(np.array(errors)) for name, errors in found.items()}


def memory_data(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the memory of a validation for programs: errors, and each row in its parts."""
    groups = {name: asdict(found) for name, found in errors_by_group(predictions).items()}
    return {
        "overall": groups.pop("all rows"),
        "groups": groups,
        "rows": [
            {
                "id": entry.row.id,
                "predicted_bytes": entry.memory.predicted_bytes,
                "measured_bytes": entry.memory.measured_bytes,
                "counting": str(entry.memory.counting),
                "fits": entry.memory.fits,
                "parts_bytes": asdict(entry.memory.use),
            }
            for entry in predictions
            if entry.memory is not None
        ],
    }


def memory_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield the errors of memory by source, the worst rows, and wrong answers on what fits."""
    groups = errors_by_group(predictions)
    if groups["all rows"].rows:
        yield "memory: |ln(predicted / measured)|; bias above 0: too full"
        yield f"{'source':<20}{'rows':>5}{'median':>8}{'p90':>8}{'bias':>8}"
        for name, found in groups.items():
            yield (
                f"{name[:19]:<20}{found.rows:>5}{found.median:>8.1%}{found.p90:>8.1%}"
                f"{found.bias:>+8.1%}"
            )
        yield from (_row_line(entry) for entry in worst_rows(predictions))
        yield ""
    wrong = [entry for entry in predictions if is_wrongly_fitting(entry)]
    if wrong:
        yield "rows that did not fit and are taken to fit, or ran and are taken not to fit"
        yield from (_row_line(entry) for entry in wrong)
        yield ""


def worst_rows(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the rows of the largest error of memory, the worst first."""
    known = [entry for entry in predictions if _log_error(entry) is not None]
    return sorted(known, key=lambda entry: -abs(_log_error(entry) or 0.0))[:NUM_WORST]


def is_wrongly_fitting(entry: Prediction) -> bool:
    """Return whether a row that ran is taken not to fit, or the other way round."""
    return entry.fits is not None and entry.fits is (entry.row.task == DID_NOT_FIT)


def _row_line(entry: Prediction) -> str:
    """Return one row with what fills its memory."""
    assert entry.memory is not None
    use, error = entry.memory.use, _log_error(entry)
    shown = "" if error is None else f"{error:+.1%}"
    parts = {name: getattr(use, name) / GIB for name in MEMORY_PARTS if name != "margin_bytes"}
    told = ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {size:.1f}"
        for name, size in sorted(parts.items(), key=lambda part: -part[1])[:3]
    )
    counted = used_bytes(use) if error is None else entry.memory.predicted_bytes
    total = counted / GIB
    return f"  {shown:>7}  {entry.row.id:<24} {total:.1f} GiB: {told}"[:100]


def _log_error(entry: Prediction) -> float | None:
    """Return ln(predicted / measured) of the memory of a row."""
    return entry.memory.log_error if entry.memory else None
