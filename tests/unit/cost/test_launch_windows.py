"""Transfers that overlap with a layer also run while the device waits for kernel launches."""

import pytest

from meshwright.cost.communication import Windows, comm_cost
from meshwright.graph.op import Phase, Tensor
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.collective import CollectiveKind

KEYS = Tensor("keys", ("tokens",))
FORWARD, BACKWARD = Phase.FORWARD, Phase.INPUT_GRADIENT


def exposed_s(launch_forward_s, launch_backward_s, *phases):
    """Return what rings of 10 s over cp = 5 leave exposed beside a core of 2 s and 4 s."""
    windows = Windows(2.0, 4.0, 0.0, launch_forward_s, launch_backward_s)
    calls = [
        CollectiveCall(
            CollectiveKind.ALL_GATHER, "cp", KEYS, phase, "attention.core: input", streamed=True
        )
        for phase in phases
    ]
    return comm_cost(
        calls, windows, {"tokens": 8.0}, make_strategy(cp=5), PlanOptions(), lambda *_: 10.0, 2.0
    ).cp_s


# Four of five steps overlap with 4/5 of the core, and at least one of the four stays exposed.
@pytest.mark.parametrize(
    ("launches_s", "phases", "right_s"),
    [
        ((0.0, 0.0), (FORWARD,), 10.0 - 1.6),
        ((3.0, 0.0), (FORWARD,), 10.0 - 1.6 - 3.0),
        ((20.0, 0.0), (FORWARD,), 10.0 / 4.0),
        ((0.0, 3.0), (BACKWARD,), 10.0 - 3.2 - 3.0),
        ((3.0, 1.0), (FORWARD, BACKWARD), (10.0 - 1.6 - 3.0) + (10.0 - 3.2 - 1.0)),
        ((3.0, 0.0), (FORWARD, FORWARD), 2.0 * (10.0 - 0.8 - 1.5)),
    ],
)
def test_a_ring_uses_the_core_and_the_wait_for_launches(launches_s, phases, right_s):
    assert exposed_s(*launches_s, *phases) == pytest.approx(right_s)
