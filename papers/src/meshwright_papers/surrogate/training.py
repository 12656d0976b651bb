"""Training: the network by scikit-learn (extra ``learn``), the multivariate regression in NumPy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import UnsupportedError
from meshwright_papers.surrogate.dataset import Rows
from meshwright_papers.surrogate.network import Network, scaled_network, standard
from meshwright_papers.surrogate.samples import FIRST_LEARNED

HIDDEN = (64, 64)
SHRINKAGE = 2.0
"""Weight of squared weights beside squared errors."""
EPOCHS = 100
BATCH_ROWS = 32


def targets(rows: Rows) -> FloatArray:
    """Return what is learned: logarithms of simulated over closed form, of what is not exact."""
    return rows.log_ratio[:, FIRST_LEARNED:]


def train_network(rows: Rows, seed: int = 0) -> Network:
    """Return a network trained on rows.

    Raises
    ------
    UnsupportedError
        Without scikit-learn.
    """
    goal, features = targets(rows), rows.features
    centre, spread = standard(goal)
    feature_centre, feature_spread = standard(features)
    fitted = fit(
        (features - feature_centre) / feature_spread, (goal - centre) / spread, seed, EPOCHS
    )
    return scaled_network(features, fitted.coefs_, fitted.intercepts_, centre, spread)


def fit(features: FloatArray, goal: FloatArray, seed: int, epochs: int) -> Any:
    """Return the regressor of scikit-learn, fitted to standard features and targets."""
    try:
        from sklearn.neural_network import MLPRegressor
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "training needs scikit-learn: pip install 'meshwright[learn]'"
        ) from error
    model = MLPRegressor(
        hidden_layer_sizes=HIDDEN, alpha=SHRINKAGE, batch_size=BATCH_ROWS, max_iter=epochs,
        tol=0.0, n_iter_no_change=epochs, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)  # it stops after the epochs asked for
        return model.fit(features, goal)


def regression(rows: Rows) -> Network:
    """Return the multivariate linear regression on the same features: a network of one layer."""
    goal, features = targets(rows), rows.features
    centre, spread = standard(features)
    table = np.column_stack([(features - centre) / spread, np.ones(len(features))])
    found = np.linalg.lstsq(table, goal, rcond=None)[0].astype(np.float64)
    zero, one = np.zeros(goal.shape[1]), np.ones(goal.shape[1])
    return scaled_network(features, [found[:-1]], [found[-1]], zero, one)
