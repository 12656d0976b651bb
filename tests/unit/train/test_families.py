"""What all layers take at the least, by which families are left out before they are priced."""

from types import SimpleNamespace

import numpy as np
import pytest

from meshwright.sharding.strategy import Recompute
from meshwright.train.families import _layers_s


def pieces(*seconds):
    return tuple(SimpleNamespace(total_s=np.array(of_rows)) for of_rows in seconds)


def test_each_kind_of_layer_counts_with_its_cheapest_recomputation():
    """Three layers of 2 or 4 s and one of 1 or 0.5 s: 3 x 2 + 0.5 = 6.5 s; then 3 x 3 + 1 = 10."""
    layers = [SimpleNamespace(count=3), SimpleNamespace(count=1)]
    problem = SimpleNamespace(graph=SimpleNamespace(layers=layers))
    prices = {
        Recompute.NONE: pieces([2.0, 5.0], [1.0, 1.0]),
        Recompute.FULL: pieces([4.0, 3.0], [0.5, 2.0]),
    }
    assert _layers_s(problem, prices).tolist() == pytest.approx([6.5, 10.0], rel=1e-8)
    assert (_layers_s(problem, prices) <= [6.5, 10.0]).all()
