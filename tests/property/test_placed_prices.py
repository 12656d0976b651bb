"""Laws of prices with contention: never faster than closed form, parts that add up, same memory."""

from dataclasses import replace

import pytest
from placed_problems import EXPERT_MODELS, MODELS, ROOM, drawn, every_placement, step_s
from small_problems import level, problem, system

from meshwright.base.arrays import number_at
from meshwright.cost.parts import TimePart
from meshwright.network.placement import all_choices
from meshwright.sharding.strategy import PlanOptions, ScheduleKind, make_strategy
from meshwright.wafer.price import physical_network, price_placed
from meshwright.wafer.search import place, routed


@pytest.mark.parametrize("models", [MODELS, EXPERT_MODELS], ids=["dense", "experts"])
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 40))]
)
def test_contention_costs_time_and_no_memory(seed, models):
    asked, plan_options, strategy = drawn(seed, models)
    for price in every_placement(asked, strategy, plan_options)[:6]:
        alone, together = price.closed_form, price.contended
        assert step_s(together) >= step_s(alone) * (1 - 1e-12)
        for priced in (alone, together):
            parts = [number_at(priced.step.time[name]) for name in TimePart]
            assert min(parts) >= 0.0
            assert sum(parts) == pytest.approx(step_s(priced), rel=1e-12)
        assert number_at(together.step.memory_bytes) == number_at(alone.step.memory_bytes)
        assert number_at(together.step.flops) == number_at(alone.step.flops)
        assert min(price.contention.slowdown.values(), default=1.0) >= 1.0
        if max(price.contention.slowdown.values(), default=1.0) <= 1.0:
            assert step_s(together) == pytest.approx(step_s(alone), rel=1e-12)


@pytest.mark.parametrize("models", [MODELS, EXPERT_MODELS], ids=["dense", "experts"])
@pytest.mark.parametrize(
    "seed", [300, *(pytest.param(s, marks=pytest.mark.slow) for s in range(301, 340))]
)
def test_what_travels_beside_computation_never_shows_longer(seed, models):
    """Gradients that share links with streams are slower meanwhile, but show no longer than if they
    had waited; computation pays for the time that they are under way."""
    asked, plan_options, strategy = drawn(seed, models)
    strategy = replace(strategy, pp=1.0, dp_replicate=strategy.dp_replicate * strategy.pp)
    plan_options = replace(plan_options, schedule=ScheduleKind.ONE_F_ONE_B)
    beside, after = (
        every_placement(asked, strategy, replace(plan_options, overlap_data_parallel=overlaps))
        for overlaps in (True, False)
    )
    for one, other in zip(beside[:6], after[:6], strict=True):
        assert one.ranks.shapes == other.ranks.shapes
        shown, waited = (number_at(p.contended.step.time[TimePart.DP_COMM]) for p in (one, other))
        assert shown <= waited * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(100, 105))
def test_the_best_placement_is_that_of_brute_force(seed):
    asked, plan_options, strategy = drawn(seed)
    physical = physical_network(asked)
    found = place(asked, plan_options, strategy, physical)
    everything = every_placement(asked, strategy, plan_options)
    assert found is not None
    assert found.time_s == pytest.approx(min(step_s(p.contended) for p in everything), rel=1e-12)
    assert found.num_choices == len(everything)
    assert 0 < found.num_priced <= found.num_choices
    assert found.lower_bound_s <= found.time_s * (1 + 1e-12)
    assert found.lower_bound_s == pytest.approx(found.time_s, rel=1e-12)
    (anew,) = routed(asked, [found], physical)
    assert anew.lower_bound_s <= anew.time_s <= found.time_s


@pytest.mark.parametrize("seed", range(200, 203))
def test_a_placement_costs_the_same_alone_and_among_others(seed):
    """Ways to lay a strategy are priced as columns; one row is one way."""
    asked, plan_options, strategy = drawn(seed)
    physical = physical_network(asked)
    choices = list(all_choices(plan_options, strategy, asked.grid_sides))
    ways = [(plan_options, strategy, choice) for choice in choices]
    together = price_placed(asked, ways, physical)
    for choice, price in list(zip(choices, together, strict=True))[:4]:
        (alone,) = price_placed(asked, [(plan_options, strategy, choice)], physical)
        assert step_s(alone.contended) == pytest.approx(step_s(price.contended), rel=1e-12)
        assert alone.contention.slowdown == pytest.approx(price.contention.slowdown)


def test_ways_to_lay_two_axes_by_hand():
    """tp2 dp4 on 4 columns x 2 rows: dp on all columns leaves the rows to tp; else dp is 2x2, and
    tp lies along the columns inside of it or outside."""
    asked = problem(on=system(level(4, "mesh"), level(2, "mesh"), capacity_bytes=ROOM))
    strategy = make_strategy(tp=2, dp_shard=4)
    found = list(all_choices(PlanOptions(), strategy, asked.grid_sides))
    by_level = {
        tuple(
            tuple((a, s[k]) for a, s in zip(c.axes, c.shapes, strict=True) if s[k] > 1)
            for k in (0, 1)
        )
        for c in found
    }
    assert by_level == {
        ((("dp_shard", 4),), (("tp", 2),)),
        ((("tp", 2), ("dp_shard", 2)), (("dp_shard", 2),)),
        ((("dp_shard", 2), ("tp", 2)), (("dp_shard", 2),)),
    }
    assert len(found) == 3
