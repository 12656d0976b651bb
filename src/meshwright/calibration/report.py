"""How wrong predictions of serving are: by server, chip, batch and source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from meshwright.calibration.errors import (
    Errors,
    Family,
    Intervals,
    by_group,
    errors_of,
    families_of,
    intervals_of,
    median_of_medians,
    noise_of,
)
from meshwright.calibration.inference.prediction import server_name_of
from meshwright.calibration.jobs import Reason
from meshwright.calibration.memory import memory_data, memory_lines
from meshwright.calibration.prediction import Prediction
from meshwright.calibration.rows import Row
from meshwright.report.screen import percent

VIEWS: dict[str, Callable[[Row], str]] = {
    "server": server_name_of,
    "chip": lambda row: row.hardware.chip or "not stated",
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


NUM_WORST = 8


@dataclass(frozen=True)
class Validation:
    """Rows with their predictions under one calibration."""

    predictions: tuple[Prediction, ...]
    calibration: str

    @cached_property
    def groups(self) -> dict[str, Errors]:
        """The errors of each source."""
        return {name: errors_of(rows) for name, rows in by_group(self.predictions).items()}

    @property
    def trained(self) -> tuple[Prediction, ...]:
        """The rows of training."""
        return tuple(entry for entry in self.predictions if not entry.row.is_inference)

    @property
    def served(self) -> tuple[Prediction, ...]:
        """The rows of requests."""
        return tuple(entry for entry in self.predictions if entry.row.is_inference)

    @cached_property
    def overall(self) -> Errors:
        """The errors of all rows of training, pooled; where there are none, of all others."""
        return errors_of(self.trained or self.served)

    @property
    def median_of_medians(self) -> float | None:
        """The headline: median over sources of the median error of each, of training alone."""
        rows = by_group(self.trained or self.served)
        return median_of_medians({name: errors_of(found) for name, found in rows.items()})

    @cached_property
    def intervals(self) -> Intervals:
        """How the intervals of all rows of training held what was measured, else of all others."""
        return intervals_of(self.trained or self.served)

    @cached_property
    def families(self) -> list[Family]:
        """Rows that differ only in the plan."""
        return families_of(entry for entry in self.predictions if entry.refused is None)


def validation_data(found: Validation) -> dict[str, Any]:
    """Return a validation for programs."""
    served = {"inference": inference_data(found.served)} if found.served else {}
    return {
        "groups": {name: asdict(errors) for name, errors in found.groups.items()},
        "overall": asdict(found.overall) | {"median_of_medians": found.median_of_medians},
        "rows": [
            {
                "id": entry.row.id,
                "predicted_tokens_per_s": entry.predicted_tokens_per_s,
                "measured_tokens_per_s": entry.measured_tokens_per_s,
                "interval": entry.interval,
                "refused": None if entry.refused is None else str(entry.refused),
            }
            for entry in found.predictions
        ],
        "memory": memory_data(found.trained),
    } | served


def validation_lines(found: Validation) -> Iterator[str]:
    """Yield the errors by source, the families, the worst rows and the refusals."""
    headline = percent(found.median_of_medians)
    yield f"median over sources of the median error: {headline}   ({found.calibration} constants)"
    yield "errors are |ln(predicted / measured)| of the throughput; bias above 0: too fast"
    yield ""
    yield from table_lines(found)
    yield from interval_lines(found)
    yield ""
    yield from inference_lines(found.served)
    yield from memory_lines(found.trained)
    yield from _family_lines(found.families)
    yield from _worst_lines(found.predictions)
    yield from _refusal_lines(found.predictions)


def table_lines(found: Validation) -> Iterator[str]:
    """Yield the table of errors: one line for each source, and all rows together."""
    yield (
        f"{'source':<20}{'rows':>5}{'used':>5}{'median':>8}{'p90':>8}{'bias':>8}{'noise':>7}"
        f"{'memory':>8}{'fits-':>6}{'ooms-':>6}{'ranks':>7}{'regret':>8}"
    )
    rows = by_group(found.predictions)
    for name, errors in found.groups.items():
        yield _error_line(name, errors, noise_of(rows[name]))
    title = "all of training" if found.trained and found.served else "all rows"
    yield _error_line(title, found.overall, noise_of(found.trained or found.served))


def interval_lines(found: Validation) -> Iterator[str]:
    """Yield how many rows lie in their intervals; nothing where there are none."""
    held = found.intervals
    if held.rows and held.covered is not None:
        yield f"80 % intervals hold {held.covered:.1%} of {held.rows} rows, score {held.score:.3f}"


def _error_line(name: str, errors: Errors, noise: float | None) -> str:
    """Return one line of the table."""
    shown = name if len(name) < 20 else f"{name[:16]}..."
    ranks = "-" if errors.spearman is None else f"{errors.spearman:.2f}"
    return (
        f"{shown:<20}{errors.rows:>5}{errors.rows_used:>5}{percent(errors.median_abs_log_error):>8}"
        f"{percent(errors.p90_abs_log_error):>8}{percent(errors.bias_log, sign=True):>8}"
        f"{percent(noise):>7}{percent(errors.memory_median_abs_error):>8}"
        f"{errors.false_fits:>6}{errors.false_ooms:>6}{ranks:>7}{percent(errors.regret_mean):>8}"
    )


def _family_lines(families: Sequence[Family]) -> Iterator[str]:
    """Yield what choosing by prediction costs, beside a rule of thumb."""
    if not families:
        return
    mean = sum(family.regret for family in families) / len(families)
    thumb = sum(family.rule_of_thumb_regret for family in families) / len(families)
    pairs = sum(family.ordered_pairs for family in families)
    right = sum(family.right_pairs for family in families)
    share = f"{right / pairs:.0%} of {pairs}" if pairs else "none"
    yield f"{len(families)} families of rows that differ only in the plan: regret {mean:.1%};"
    yield f"  of the least model parallelism {thumb:.1%}; pairs in the right order: {share}"
    yield f"  {'source and model':<38}{'chips':>6}{'plans':>6}{'regret':>8}{'rule':>8}  chosen"
    for family in sorted(families, key=lambda family: -family.regret):
        row = family.best.row
        yield (
            f"  {f'{row.group} {row.model.name}'[:37]:<38}{row.hardware.chips or 0:>6}"
            f"{len(family.rows):>6}{family.regret:>8.1%}{family.rule_of_thumb_regret:>8.1%}"
            f"  {degrees_text(family.chosen)}"
        )[:100]
    yield ""


def _worst_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield the rows of the largest error."""
    found = worst(predictions, NUM_WORST)
    if not found:
        return
    yield "worst rows"
    for entry in found:
        yield (
            f"  {percent(entry.log_error, sign=True):>7}  {entry.row.id:<24} "
            f"{entry.row.model.name or '':<18} {_asked_text(entry)}"
        )[:100]
    yield ""


def worst(predictions: Sequence[Prediction], number: int) -> list[Prediction]:
    """Return the rows of the largest error, the worst first."""
    known = [entry for entry in predictions if entry.log_error is not None]
    return sorted(known, key=lambda entry: -abs(entry.log_error or 0.0))[:number]


def refusal_counts(predictions: Sequence[Prediction]) -> list[tuple[Reason, int]]:
    """Return how many rows are refused for each reason, the most frequent first."""
    refused = (entry.refused for entry in predictions)
    return Counter(reason for reason in refused if reason is not None).most_common()


def chips_text(entry: Prediction) -> str:
    """Return the chips of a row."""
    assert entry.job is not None
    return f"{entry.row.hardware.chips}x{entry.job.problem.system.chip.name}"


def degrees_text(entry: Prediction) -> str:
    """Return the plan of a row in few words: degrees that are not 1, and the micro-batch."""
    assert entry.job is not None
    s = entry.job.strategy
    degrees = {"tp": s.tp, "pp": s.pp, "vpp": s.num_virtual_stages, "cp": s.cp, "ep": s.ep,
               "dp": s.dp}  # fmt: skip
    shown = [f"{name}{degree:.0f}" for name, degree in degrees.items() if degree > 1]
    return " ".join([*shown, f"mbs{s.micro_batch_size:.0f}"])


def _asked_text(entry: Prediction) -> str:
    """Return what a row ran: chips and plan, or the requests that it served."""
    if entry.job is None:
        return requests_text(entry.row)
    return f"{chips_text(entry)} {degrees_text(entry)}"


def _refusal_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield how many rows are refused for which reason, with one of them."""
    counts = refusal_counts(predictions)
    if counts:
        yield "refused"
    for reason, number in counts:
        first = next(entry for entry in predictions if entry.refused is reason)
        yield f"  {number:>4}  {reason!s:<28} such as {first.row.id}: {first.detail}"[:100]
