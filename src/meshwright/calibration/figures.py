"""Figures of rows of requests: throughput, times under load, and the plans that they choose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calibration.errors import TIE, FigureErrors, errors_of, intervals_of
from meshwright.calibration.prediction import Prediction
from meshwright.calibration.rows import Row, is_frozen
from meshwright.search.intervals import E2E, THROUGHPUT, TPOT, TTFT


@dataclass(frozen=True)
class Figures:
    """Predictions of rows of requests, by measured figure."""

    throughput: tuple[Prediction, ...]
    """Predictions of the throughput of batches and queues."""
    tpot: tuple[Prediction, ...]
    """Predictions of the time per output token of clients in a closed loop."""
    ttft: tuple[Prediction, ...]
    e2e: tuple[Prediction, ...]
    """Predictions of the time of a whole request, where both times are measured."""

    @property
    def by_name(self) -> dict[str, tuple[Prediction, ...]]:
        """The figures by their name."""
        return {THROUGHPUT: self.throughput, TPOT: self.tpot, TTFT: self.ttft, E2E: self.e2e}


def figures_of(served: Sequence[Prediction]) -> Figures:
    """Return predictions of rows by measured figure."""
    times = {name: tuple(entries) for name, entries in times_by_name(served).items()}
    return Figures(
        throughput=tuple(e for e in served if e.refused is None and not e.times),
        tpot=times.get(TPOT, ()), ttft=times.get(TTFT, ()), e2e=times.get(E2E, ()),
    )  # fmt: skip


def times_by_name(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Return the predictions of each measured time."""
    found: dict[str, list[Prediction]] = defaultdict(list)
    for entry in predictions:
        for name, time in entry.times.items():
            found[name].append(time)
    return found


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
    found: dict[Hashable, dict[Hashable, list[tuple[Row, float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for entry in figures.e2e:
        row, chips = entry.row, float(entry.row.system.num_chips or 1)
        load = (row.batch, row.prompt_tokens, row.answer_tokens, row.shortest_share)
        key = (row.group, row.model.name, row.system.chip, row.framework, row.precision, load)
        measured = (entry.measured_tokens_per_s or 0.0) / chips
        predicted = (entry.predicted_tokens_per_s or 0.0) / chips
        found[key][row.system.num_chips, row.strategy].append((row, measured, predicted))
    regrets = []
    for plans in found.values():
        if len(plans) > 1:
            rates = np.array(
                [np.median([both for _, *both in rows], axis=0) for rows in plans.values()]
            )
            chosen = rates[:, 1].argmax()
            regret = float(rates[:, 0].max() / rates[chosen, 0] - 1.0)
            row = next(iter(plans.values()))[0][0]
            regrets.append((row, regret if regret > TIE else 0.0, regret <= TIE))
    return regrets


def seen(entries: Iterable[Prediction]) -> list[Prediction]:
    """Return the predictions of rows that may be fitted."""
    return [entry for entry in entries if not is_frozen(entry.row)]


def frozen(entries: Iterable[Prediction]) -> list[Prediction]:
    """Return the predictions of rows that no constant, interval or rule was made from."""
    return [entry for entry in entries if is_frozen(entry.row)]
