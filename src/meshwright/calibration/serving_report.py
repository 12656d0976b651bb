"""Results of a validation of serving beyond throughput: times under load, frozen rows, plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshwright.calibration.errors import TIE, Errors, FigureErrors, errors_of, intervals_of
from meshwright.calibration.prediction import Prediction
from meshwright.calibration.rows import Row, is_frozen
from meshwright.calibration.serving import (
    THROUGHPUT,
    TPOT,
    TTFT,
    predict_first_tokens,
    server_name_of,
)
from meshwright.catalog.calibration import ServingRecord
from meshwright.view.words import percent

UNDER_LOAD = """Clients in a closed loop state two times: the mean time to the first token (TTFT)
and the mean time per output token (TPOT), errors of which are told apart from those of throughputs.
Inside: share of rows within their 80 % interval. Left out: constants fitted without that source.
Frozen: a source and families of model, chip and server, drawn before anybody looked at their
errors, of which no constant, interval or rule knows anything.
"""
PLANS = """Rows of one model, chip, server and load that differ in the plan and its chips: by how
much the plan that is predicted to answer most tokens per second and chip falls short of the one
that was measured to.
"""


class Table(Protocol):
    """Draws a table and an empty line after it."""

    def __call__(
        self, head: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1
    ) -> Iterator[str]:
        """Yield its lines; columns of words come first, then those of numbers."""
        ...


@dataclass(frozen=True)
class Figures:
    """Predictions of rows of requests, by measured figure."""

    throughput: tuple[Prediction, ...]
    """Predictions of the throughput of batches and queues."""
    tpot: tuple[Prediction, ...]
    """Predictions of the time per output token of clients in a closed loop."""
    ttft: tuple[Prediction, ...]

    @property
    def by_name(self) -> dict[str, tuple[Prediction, ...]]:
        """The figures by their name."""
        return {THROUGHPUT: self.throughput, TPOT: self.tpot, TTFT: self.ttft}


def figures_of(served: Sequence[Prediction], calibration: str) -> Figures:
    """Return predictions of rows by measured figure, times to the first token among them."""
    used = [entry for entry in served if entry.refused is None]
    loops = [entry for entry in used if entry.row.closed_loop]
    return Figures(
        throughput=tuple(entry for entry in used if not entry.row.closed_loop),
        tpot=tuple(entry for entry in loops if entry.row.measured.tpot_ms),
        ttft=(
            *predict_first_tokens([entry.row for entry in loops], calibration),
            *(entry for entry in loops if not entry.row.measured.tpot_ms),
        ),
    )


VIEWS: dict[str, Callable[[Row], str]] = {
    "source": lambda row: row.group,
    "server": server_name_of,
    "chip": lambda row: row.hardware.chip or "not stated",
}
"""Groups of figures."""


def figures_data(figures: Figures) -> dict[str, dict[str, FigureErrors]]:
    """Return the errors of each figure for programs: of rows that may be fitted, and of frozen."""
    return {
        name: {
            kind: FigureErrors(**vars(errors_of(rows)), inside=intervals_of(rows).covered)
            for kind, rows in (("seen", _seen(entries)), ("frozen", _frozen(entries)))
            if rows
        }
        for name, entries in figures.by_name.items()
    }


def figure_lines(figures: Figures, record: ServingRecord | None, table: Table) -> Iterator[str]:
    """Yield the errors of each figure: fitted, left out and frozen, then by each view."""
    yield "## Throughput, and times under load\n"
    yield UNDER_LOAD
    rows = []
    for name, entries in figures.by_name.items():
        seen, frozen = _seen(entries), _frozen(entries)
        rows.append((name, "fitted", *_cells(seen)))
        if record is not None and name in record.figures:
            out = record.figures[name]
            errors = out.left_out
            rows.append((name, "left out", out.rows, percent(errors.median), percent(errors.p90),
                         percent(errors.bias, sign=True), percent(out.covered)))  # fmt: skip
        rows.append((name, "frozen", *_cells(frozen)))
    head = ("rows", "median", "p90", "bias", "inside")
    yield from table(("figure", "constants", *head), rows, words=2)
    for view, label in VIEWS.items():
        parts = [
            (name, figure, *_cells(mine))
            for figure, entries in figures.by_name.items()
            for name, mine in _grouped(_seen(entries), label).items()
        ]
        yield from table((view, "figure", *head), sorted(parts), words=2)
    frozen = [entry for entries in figures.by_name.values() for entry in _frozen(entries)]
    if frozen:
        parts = [
            (name, figure, *_cells(mine))
            for figure, entries in figures.by_name.items()
            for name, mine in _grouped(_frozen(entries), _frozen_name).items()
        ]
        yield from table(("frozen", "figure", *head), sorted(parts), words=2)


def plan_lines(figures: Figures, table: Table) -> Iterator[str]:
    """Yield the cost of choosing a plan by prediction."""
    families = plan_regrets(figures)
    if not families:
        return
    yield "## Choosing a plan\n"
    yield PLANS
    rows = []
    kinds: Mapping[str, Callable[[Row], bool]] = {
        "fitted": lambda row: not is_frozen(row), "frozen": is_frozen,
    }  # fmt: skip
    for kind, holds in kinds.items():
        mine = [regret for row, regret, _ in families if holds(row)]
        right = [is_right for row, _, is_right in families if holds(row)]
        if mine:
            shares = (np.mean(mine), np.quantile(mine, 0.9), np.mean(right))
            rows.append((kind, len(mine), *(percent(float(share)) for share in shares)))
    head = ("rows", "families", "mean regret", "p90", "best plan found")
    yield from table(head, rows)


def plan_regrets(figures: Figures) -> list[tuple[Row, float, bool]]:
    """Return of each family a row, the regret of its predicted best plan, and whether it is best.

    Plans with several measurements count with the median of these. Ties are best.
    """
    firsts = {entry.row.id: entry for entry in figures.ttft}
    found: dict[Hashable, dict[Hashable, list[tuple[Row, float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for entry in figures.tpot:
        row, first = entry.row, firsts.get(entry.row.id)
        if first is None:
            continue
        load = (row.batch, row.input_len, row.output_len, row.shortest_share)
        key = (row.group, row.model.name, row.hardware.chip, row.framework, row.precision, load)
        plan = (row.hardware.chips, row.parallelism)
        found[key][plan].append((row, *_rates(entry, first)))
    regrets = []
    for plans in found.values():
        if len(plans) > 1:
            rates = np.array(
                [np.median([rates for _, *rates in rows], axis=0) for rows in plans.values()]
            )
            chosen = rates[:, 1].argmax()
            regret = float(rates[:, 0].max() / rates[chosen, 0] - 1.0)
            row = next(iter(plans.values()))[0][0]
            regrets.append((row, regret if regret > TIE else 0.0, regret <= TIE))
    return regrets


def _rates(step: Prediction, first: Prediction) -> tuple[float, float]:
    """Return answered tokens per second and chip of one client, measured and predicted."""
    row = step.row
    prompt, answer = float(row.input_len or 0), float(row.output_len or 1)

    def rate(per_token: float | None, prompt_rate: float | None) -> float:
        taken_s = prompt / (prompt_rate or np.inf) + (answer - 1.0) / (per_token or np.inf)
        return answer / taken_s / float(row.hardware.chips or 1)

    return (
        rate(step.measured_tokens_per_s, first.measured_tokens_per_s),
        rate(step.predicted_tokens_per_s, first.predicted_tokens_per_s),
    )


def _seen(entries: Iterable[Prediction]) -> list[Prediction]:
    return [entry for entry in entries if not is_frozen(entry.row)]


def _frozen(entries: Iterable[Prediction]) -> list[Prediction]:
    return [entry for entry in entries if is_frozen(entry.row)]


def _frozen_name(row: Row) -> str:
    """Return the name of a frozen part: a family, or a whole source."""
    return (
        f"{row.model.name}, {row.hardware.chip}, {row.framework}" if row.closed_loop else row.group
    )


def _grouped(
    entries: Iterable[Prediction], label: Callable[[Row], str]
) -> dict[str, list[Prediction]]:
    found: dict[str, list[Prediction]] = defaultdict(list)
    for entry in entries:
        found[label(entry.row)].append(entry)
    return found


def _cells(entries: Sequence[Prediction]) -> tuple[object, ...]:
    """Return rows, median, p90, bias, and the share inside intervals."""
    errors: Errors = errors_of(entries)
    return (
        errors.rows_used, percent(errors.median_abs_log_error),
        percent(errors.p90_abs_log_error), percent(errors.bias_log, sign=True),
        percent(intervals_of(entries).covered),
    )  # fmt: skip
