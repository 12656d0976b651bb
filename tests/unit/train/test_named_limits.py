"""Each limit of a step is a part of its own, and twice of the largest one helps most."""

import pytest

import meshwright as mw
from meshwright.cost.operator import ProductCost
from meshwright.cost.parts import TimePart
from meshwright.spec.doubled import networks


@pytest.mark.parametrize(
    ("model", "on", "asked", "limit"),
    [
        ("llama3-8b", "8xH100", {"seq": 8192, "global_batch": 8}, "arithmetic"),
        ("gpt3-76b", "wafer-6x8", {"global_batch": 128, "tatp": 12, "mbs": 16},
         "memory"),
        ("gpt3-6.7b", "wafer-4x8", {"global_batch": 32, "dp": 32, "zero": 3}, "memory"),
        ("gpt3-6.7b", "wafer-4x8", {"global_batch": 32, "tatp": 32}, "links"),
        ("llama3-8b", "16xL4", {"global_batch": 16, "tp": 16}, "links"),
        ("llama3-8b", "v5p-64", {"seq": 4096, "global_batch": 64, "dp": 32, "zero": 3},
         "arithmetic"),
    ],
)  # fmt: skip
def test_twice_of_the_largest_limit_makes_a_step_faster_most(model, on, asked, limit):
    plan = mw.estimate(model, on=on, **{"seq": 2048, **asked})
    price = plan.best.estimate
    parts = {TimePart(name): seconds for name, seconds in price.time_parts_s.items()}
    assert sum(parts.values()) == pytest.approx(price.step_time_s, rel=1e-12)
    shown = {
        "arithmetic": parts[TimePart.COMPUTE],
        "memory": parts[TimePart.MAIN_MEMORY] + parts[TimePart.OPTIMIZER],
        "links": sum(seconds for part, seconds in parts.items() if part.axis),
    }
    assert max(shown, key=shown.get) == limit
    resources = {
        "twice the matrix rate": "arithmetic",
        f"twice the {plan.system.chip.main_memory.name} bandwidth": "memory",
        **dict.fromkeys(networks(plan.system), "links"),
    }
    most = next(change for change in plan.changes if change.what in resources)
    assert resources[most.what] == limit
    # What it wins is at most half of what it limits, and of what waits for that.
    after = ("jitter_s", "overlap_slowdown_s", "launch_s")
    waits = shown[limit] + sum(price.time_parts_s[name] for name in after)
    assert 0.0 < most.faster_by_fraction <= 0.5 * waits / price.step_time_s + 0.05


def test_a_kernel_belongs_to_the_slower_of_its_limits():
    """4 ms of traffic under 3 ms of arithmetic: the memory limits all 4 ms, and arithmetic none."""
    assert ProductCost(3e-3, 4e-3, 1.0).memory_bound_s == 4e-3
    assert ProductCost(4e-3, 3e-3, 1.0).memory_bound_s == 0.0


def test_sides_of_a_grid_are_one_network():
    assert list(
        networks(
            mw.estimate("gpt2-medium", on="wafer-4x8", seq=1024, global_batch=32, dp=32).system
        )
    ) == ["twice the columns, rows bandwidth"]
