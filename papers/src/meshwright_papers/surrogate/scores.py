"""How close predicted quantities come to simulated ones: by quantity, and by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright_papers.surrogate.dataset import Rows
from meshwright_papers.surrogate.network import Network
from meshwright_papers.surrogate.samples import FIRST_LEARNED, QUANTITIES
from meshwright_papers.surrogate.tuning import tuned

LEAST_SCORED = 3
"""Rows of a group that must be left to score."""


@dataclass(frozen=True)
class Score:
    """One quantity over some rows."""

    correlation: float
    """Of the logarithms of predicted and simulated values."""
    mean_error: float
    """Mean of |predicted / simulated - 1|."""
    p95_error: float
    worst_group_error: float
    """Largest mean error of a group."""


def predicted(rows: Rows, network: Network | None, *, where_kept: bool = False) -> FloatArray:
    """Return each quantity of each row: closed form times what a network says; None: unchanged.

    Parameters
    ----------
    where_kept
        Leave the closed form where the network is not kept.
    """
    values = rows.closed_form.copy()
    if network is not None:
        says = network.kept_log_ratio if where_kept else network.log_ratio
        values[:, FIRST_LEARNED:] *= np.exp(says(rows.features))
    return values


def errors(values: FloatArray, rows: Rows) -> FloatArray:
    """Return |predicted / simulated - 1| of each quantity of each row."""
    found: FloatArray = np.abs(values / rows.simulated - 1.0)
    return found


def score(values: FloatArray, rows: Rows) -> dict[str, Score]:
    """Return the score of predicted values, by quantity."""
    wrong = errors(values, rows)
    groups, number = np.unique(rows.group, return_inverse=True)
    counts = np.bincount(number, minlength=len(groups))
    found = {}
    for column, name in enumerate(QUANTITIES):
        of_group = np.bincount(number, wrong[:, column], len(groups)) / counts
        both = np.log(values[:, column]), np.log(rows.simulated[:, column])
        found[name] = Score(
            float(np.corrcoef(*both)[0, 1]),
            float(wrong[:, column].mean()),
            float(np.percentile(wrong[:, column], 95)),
            float(of_group.max()),
        )
    return found


def tuned_scores(
    rows: Rows, network: Network, num_rows: int = 6
) -> tuple[dict[str, Score], dict[str, Score], int]:
    """Return scores before and after fine-tuning each group on its first rows, on its others.

    Also returns how many rows the scores are of. Groups with too few rows are left out.

    Parameters
    ----------
    num_rows
        Simulated rows of a group that its network is tuned on; at least as many are left to score.
    """
    kept, values = [], []
    for group in np.unique(rows.group).tolist():
        of_group = rows.take(np.flatnonzero(rows.group == group))
        if len(of_group) < num_rows + LEAST_SCORED:
            continue
        known, others = of_group.take(slice(num_rows)), of_group.take(slice(num_rows, None))
        fitted = tuned(network, known.features, known.log_ratio[:, FIRST_LEARNED:])
        kept.append(np.isin(rows.group, group) & np.isin(rows.index, others.index))
        values.append(predicted(others, fitted))
    scored = rows.take(np.logical_or.reduce(kept))
    before = score(predicted(scored, network), scored)
    return before, score(np.concatenate(values), scored), len(scored)
