"""How wrong predicted memory is: by source, for readers and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.calibration.memory.prediction import used_bytes
from meshwright.calibration.predictions import DID_NOT_FIT, Prediction
from meshwright.cost.memory import MEMORY_PARTS

GIB = 2.0**30
NUM_WORST = 6


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
