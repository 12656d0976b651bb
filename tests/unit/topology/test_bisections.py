"""Whether the bandwidth between halves is proven, level by level."""

import pytest

from meshwright.spec.system import NetworkLevel
from meshwright.topology.levels import _bisection_is_exact


def level(size, kind, bandwidth=1e11, **more):
    return NetworkLevel(
        name=kind, size=size, kind=kind, bandwidth_bytes_per_s=bandwidth, latency_s=1e-6, **more
    )


RAILS = {"rail_optimized": True, "oversubscription": 2.0}


@pytest.mark.parametrize(
    ("levels", "is_exact"),
    [
        ([level(4, "torus")], True), ([level(5, "torus")], False), ([level(5, "mesh")], True),
        ([level(4, "mesh"), level(3, "mesh")], True),
        ([level(4, "mesh"), level(3, "mesh", 2e11)], False),
        ([level(4, "torus"), level(3, "torus")], True),
        ([level(3, "torus"), level(5, "torus")], False),
        ([level(4, "torus"), level(3, "mesh")], False),
        ([level(8, "fully_connected"), level(4, "switch")], True),
        ([level(8, "fully_connected"), level(3, "switch")], False),
        ([level(8, "switch"), level(4, "switch", rail_optimized=True)], True),
        ([level(8, "switch"), level(4, "switch", **RAILS)], False),
        ([level(8, "switch"), level(4, "switch", oversubscription=2.0)], True),
        ([level(8, "switch"), level(4, "fully_connected")], False),
    ],
)  # fmt: skip
def test_bisections_that_are_proven(levels, is_exact):
    assert _bisection_is_exact(levels) is is_exact
