"""The small network: weights from a file, a few matrix products to use them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright_papers.surrogate.dataset import DATA
from meshwright_papers.surrogate.features import FEATURES
from meshwright_papers.surrogate.samples import FIRST_LEARNED, QUANTITIES

WEIGHTS_FILE = DATA / "weights.npz"
STAGES = FEATURES.index("log2 pp")
KEPT_BY_ALL = QUANTITIES.index("power_w") - FIRST_LEARNED
"""Column of the quantity that is learned better than its closed form in every plan."""


@dataclass(frozen=True)
class Network:
    """Layers with rectified units between them, from features to logarithms of ratios."""

    centre: FloatArray
    """Mean of each feature in training."""
    spread: FloatArray
    """Standard deviation of each feature in training; 1 of a feature that never changed."""
    lowest: FloatArray
    highest: FloatArray
    """Range of each feature in training: what lies beyond it counts as its edge."""
    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    def log_ratio(self, features: FloatArray) -> FloatArray:
        """Return the logarithm of simulated over closed form, a row for each row of features."""
        ratio: FloatArray = self.hidden(features) @ self.weights[-1] + self.biases[-1]
        return ratio

    def kept_log_ratio(self, features: FloatArray) -> FloatArray:
        """Return the same where it beats the closed form, and 0 elsewhere.

        Where plans have one pipeline stage, messages and step keep their closed form: training
        groups that were left out in turn showed no gain there.
        """
        ratio = self.log_ratio(features)
        kept = np.repeat(features[:, STAGES : STAGES + 1] > 0.0, ratio.shape[1], axis=1)
        kept[:, KEPT_BY_ALL] = True
        return np.where(kept, ratio, 0.0)

    def hidden(self, features: FloatArray) -> FloatArray:
        """Return what the last layer reads."""
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
