"""Fine-tuning: the last layer of a network, fitted to a few simulated plans of one machine."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright_papers.surrogate.network import Network

SHRINKAGE = 10.0
"""Weight of squared changes of the last layer beside squared errors of the rows."""


def tuned(
    network: Network, features: FloatArray, log_ratio: FloatArray, shrinkage: float = SHRINKAGE
) -> Network:
    """Return a network whose last layer is changed to fit some rows, and no more than they need.

    Ridge regression of what the network leaves over, on what its last layer reads: the change C
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
