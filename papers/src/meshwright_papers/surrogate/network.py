"""The small network: weights from a file, a few matrix products to use them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import UnsupportedError
from meshwright_papers.surrogate.dataset import DATA, FIRST_LEARNED, QUANTITIES, Rows
from meshwright_papers.surrogate.features import FEATURES

WEIGHTS_FILE = DATA / "weights.npz"
STAGES = FEATURES.index("log2 pp")
KEPT_BY_SOME = QUANTITIES.index("step_s") - FIRST_LEARNED
"""Column of the quantity that is learned better than its closed form in pipelines alone."""


@dataclass(frozen=True)
class Network:
    """Layers with rectified units between them, from features to logarithms of ratios."""

    centre: FloatArray
    """Mean of each feature in training."""
    spread: FloatArray
    """Standard deviation of each feature in training; 1 of a feature that never changed."""
    lowest: FloatArray
    highest: FloatArray
    """Range of each feature in training: values beyond it count as its edge."""
    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    def log_ratio(self, features: FloatArray) -> FloatArray:
        """Return the logarithm of simulated over closed form, a row for each row of features."""
        ratio: FloatArray = self.hidden(features) @ self.weights[-1] + self.biases[-1]
        return ratio

    def kept_log_ratio(self, features: FloatArray) -> FloatArray:
        """Return the same where it beats the closed form, and 0 elsewhere.

        Where plans have one pipeline stage, the step keeps its closed form: training groups that
        were left out in turn showed no gain there.
        """
        ratio = self.log_ratio(features)
        ratio[:, KEPT_BY_SOME] *= features[:, STAGES] > 0.0
        return ratio

    def hidden(self, features: FloatArray) -> FloatArray:
        """Return the inputs of the last layer."""
        inside = np.minimum(np.maximum(features, self.lowest), self.highest)
        values = (inside - self.centre) / self.spread
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            values = np.maximum(values @ weight + bias, 0.0)
        return values

    def with_last_layer(self, weight: FloatArray, bias: FloatArray) -> Network:
        """Return the same network with another last layer."""
        return replace(self, weights=(*self.weights[:-1], weight), biases=(*self.biases[:-1], bias))


def scaled_network(
    features: FloatArray, weights: Sequence[FloatArray], biases: Sequence[FloatArray],
    target_centre: FloatArray, target_spread: FloatArray,
) -> Network:  # fmt: skip
    """Return the network of weights that were trained on standard features and targets."""
    centre, spread = standard(features)
    return Network(
        centre, spread, features.min(axis=0), features.max(axis=0),
        (*weights[:-1], weights[-1] * target_spread),
        (*biases[:-1], biases[-1] * target_spread + target_centre),
    )  # fmt: skip


def standard(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the standard deviation of each column; 1 where it never changes."""
    spread = table.std(axis=0)
    return table.mean(axis=0), np.where(spread > 1e-12, spread, 1.0)


def write_network(network: Network, path: Path) -> None:
    """Write a network as one file."""
    layers: dict[str, Any] = {f"weight{n}": w for n, w in enumerate(network.weights)}
    layers |= {f"bias{n}": b for n, b in enumerate(network.biases)}
    np.savez_compressed(
        path,
        centre=network.centre, spread=network.spread,
        lowest=network.lowest, highest=network.highest,
        feature_names=np.array(FEATURES),
        provenance=np.array(json.dumps(network.provenance, sort_keys=True)),
        **layers,
    )  # fmt: skip


def read_network(path: Path) -> Network:
    """Return the network of a file.

    Raises
    ------
    ValueError
        When it reads other features than this version has.
    """
    with np.load(path) as file:
        if tuple(file["feature_names"]) != FEATURES:
            raise ValueError(f"{path.name}: other features; train it anew")
        num_layers = sum(name.startswith("weight") for name in file.files)
        return Network(
            file["centre"], file["spread"], file["lowest"], file["highest"],
            tuple(file[f"weight{n}"] for n in range(num_layers)),
            tuple(file[f"bias{n}"] for n in range(num_layers)),
            json.loads(str(file["provenance"])),
        )  # fmt: skip


@cache
def shipped_network() -> Network:
    """Return the network that was trained on the shipped rows."""
    return read_network(WEIGHTS_FILE)


HIDDEN = (64, 64)
SHRINKAGE = 2.0
"""Weight of squared weights beside squared errors."""
EPOCHS = 100
BATCH_ROWS = 32


def targets(rows: Rows) -> FloatArray:
    """Return the logarithms of simulated over closed form, for inexact quantities only."""
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


TUNING_SHRINKAGE = 10.0
"""Weight of squared changes of the last layer beside squared errors of the rows."""


def tuned(
    network: Network,
    features: FloatArray,
    log_ratio: FloatArray,
    shrinkage: float = TUNING_SHRINKAGE,
) -> Network:
    """Return a network with its last layer changed to fit some rows, as little as possible.

    Ridge regression of the residual of the network on the inputs of its last layer: the change C
    minimises |r - H C|^2 + shrinkage |C|^2. No change is a choice, so the squared error of the
    rows never grows.

    Parameters
    ----------
    log_ratio
        Logarithms of simulated over closed form of these rows.
    """
    left = log_ratio - network.log_ratio(features)
    table = np.column_stack([network.hidden(features), np.ones(len(features))])
    normal = table.T @ table + shrinkage * np.eye(table.shape[1])
    change = np.linalg.solve(normal, table.T @ left)
    return network.with_last_layer(
        network.weights[-1] + change[:-1], network.biases[-1] + change[-1]
    )
