"""Figures of rows of requests: throughput, times under load, and the plans that they choose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calibration.errors import TIE, FigureErrors, errors_of, intervals_of
from meshwright.calibration.prediction import Prediction
from meshwright.calibration.rows import Row, is_frozen
from meshwright.calibration.serving import (
    THROUGHPUT,
    TPOT,
    TTFT,
    predict_first_tokens,
)


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


def figure_errors(figures: Figures) -> dict[str, dict[str, FigureErrors]]:
    """Return the errors of each figure for programs: of rows that may be fitted, and of frozen."""
    return {
        name: {
            kind: one_figure(rows)
            for kind, rows in (("seen", seen(entries)), ("frozen", frozen(entries)))
            if rows
        }
        for name, entries in figures.by_name.items()
    }


def one_figure(entries: Sequence[Prediction]) -> FigureErrors:
    """Return the errors of one figure."""
    return FigureErrors(**vars(errors_of(entries)), inside=intervals_of(entries).covered)


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
        load = (row.batch, row.prompt_tokens, row.answer_tokens, row.shortest_share)
        key = (row.group, row.model.name, row.system.chip, row.framework, row.precision, load)
        plan = (row.system.num_chips, row.strategy)
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
    prompt, answer = float(row.prompt_tokens or 0), float(row.answer_tokens or 1)

    def rate(per_token: float | None, prompt_rate: float | None) -> float:
        taken_s = prompt / (prompt_rate or np.inf) + (answer - 1.0) / (per_token or np.inf)
        return answer / taken_s / float(row.system.num_chips or 1)

    return (
        rate(step.measured_tokens_per_s, first.measured_tokens_per_s),
        rate(step.predicted_tokens_per_s, first.predicted_tokens_per_s),
    )


def seen(entries: Iterable[Prediction]) -> list[Prediction]:
    """Return the predictions of rows that may be fitted."""
    return [entry for entry in entries if not is_frozen(entry.row)]


def frozen(entries: Iterable[Prediction]) -> list[Prediction]:
    """Return the predictions of rows that no constant, interval or rule was made from."""
    return [entry for entry in entries if is_frozen(entry.row)]
