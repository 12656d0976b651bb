"""How wrong predictions of serving are: by server, chip, batch and source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from meshwright.calibration.errors import Errors, errors_of
from meshwright.calibration.inference.questions import server_name_of
from meshwright.calibration.predictions import Prediction
from meshwright.calibration.rows import Row
from meshwright.calibration.systems import chip_name_of
from meshwright.report.lines import percent

VIEWS: dict[str, Callable[[Row], str]] = {
    "server": server_name_of,
    "chip": lambda row: chip_name_of(row.hardware),
    "batch": lambda row: "queue" if row.batch is None else str(row.batch),
    "model": lambda row: row.model.name or "unnamed",
}
"""What rows are told apart by."""


def views_of(predictions: Sequence[Prediction]) -> dict[str, dict[str, Errors]]:
    """Return the errors of rows that could be asked, under each view."""
    used = [entry for entry in predictions if entry.refused is None]
    found = {}
    for view, label in VIEWS.items():
        parts: dict[str, list[Prediction]] = {}
        for entry in used:
            parts.setdefault(label(entry.row), []).append(entry)
        found[view] = {name: errors_of(rows) for name, rows in sorted(parts.items())}
    return found


def inference_data(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the errors of serving for programs: of all rows, and by each view."""
    views = {
        f"by_{view}": {name: asdict(errors) for name, errors in parts.items()}
        for view, parts in views_of(predictions).items()
    }
    return {"overall": asdict(errors_of(predictions)), **views}


def inference_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield the errors of serving by server, chip and batch."""
    if not predictions:
        return
    yield f"{'serving':<30}{'rows':>5}{'median':>8}{'p90':>8}{'bias':>8}"
    yield _line("all rows", errors_of(predictions))
    for view, parts in views_of(predictions).items():
        if view != "model":
            for name, errors in parts.items():
                yield _line(f"{view} {name}", errors)
    yield ""


def _line(name: str, errors: Errors) -> str:
    """Return one line of the table."""
    return (
        f"{name:<30}{errors.rows_used:>5}{percent(errors.median_abs_log_error):>8}"
        f"{percent(errors.p90_abs_log_error):>8}{percent(errors.bias_log, sign=True):>8}"
    )


def requests_text(row: Row) -> str:
    """Return the chips, the server and the requests of a row in few words."""
    batch = "queue" if row.batch is None else f"batch {row.batch}"
    chips = f"{row.hardware.chips}x{row.hardware.chip}"
    return f"{chips} {server_name_of(row)} {batch} {row.input_len}+{row.output_len}"
