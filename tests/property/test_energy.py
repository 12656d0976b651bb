"""Laws of energy: parts that add up, every link pays, work costs the same wherever it is done."""

import random
from dataclasses import replace

import pytest
from placed_problems import drawn, every_placement, grid_problem
from small_problems import option_sets, problem, random_problem, random_strategy

from meshwright.base.arrays import number_at
from meshwright.cost.parts import TimePart
from meshwright.cost.step import price_one
from meshwright.network.placement import Nesting
from meshwright.sharding.strategy import Offload, PlanOptions, StreamForm, make_strategy
from meshwright.train.question import with_powers
from meshwright.wafer.price import (
    physical_network,
    price_placed,
    step_links,
    with_energy,
)
from meshwright.wafer.search import place

IDLE_W = 0.5
LINK_J_PER_BYTE = 2e-9


def with_energies(asked, **caps):
    """Return a problem whose operations, bytes and links have energies."""
    system = asked.system
    memory = system.chip.main_memory.model_copy(update={"energy_j_per_byte": 5e-11})
    chip = system.chip.model_copy(
        update={"memories": (memory,), "energy_j_per_flop": 1e-12, "idle_power_w": IDLE_W}
    )
    levels = tuple(
        level.model_copy(update={"energy_j_per_byte": LINK_J_PER_BYTE}) for level in system.levels
    )
    changed = {"chip": chip, "levels": levels, "overhead_power_fraction": 0.25, **caps}
    return replace(asked, system=system.model_copy(update=changed))


def energy_j(priced):
    return number_at(priced.step.energy_j)


def by_hop(asked, plan_options, strategy, price):
    """Return a placed price with the energy of the links that its messages cross."""
    price = replace(price, plan_options=plan_options, strategy=strategy)
    return with_energy(asked, price, step_links(asked, price, physical_network(asked)))


def laid(asked, plan_options, strategy, axes, shapes):
    """Return the placed price of a strategy in one way to lay it."""
    unused = tuple(axis for axis in plan_options.axis_order if axis not in axes)
    choice = Nesting((*axes, *unused), (*shapes, *((1, 1) for _ in unused)))
    (price,) = price_placed(asked, [(plan_options, strategy, choice)], physical_network(asked))
    return price


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300, 316))
def test_placed_plans_take_no_less_energy_than_their_closed_form(seed):
    asked, plan_options, strategy = drawn(seed)
    asked = with_energies(asked)
    for price in every_placement(asked, strategy, plan_options)[:3]:
        alone, together = price.closed_form, by_hop(asked, plan_options, strategy, price)
        for name, part in alone.step.energy_parts_j.items():
            assert number_at(together.step.energy_parts_j[name]) >= number_at(part) * (1 - 1e-12), (
                name
            )
        for priced in (alone, together):
            parts = [number_at(part) for part in priced.step.energy_parts_j.values()]
            assert min(parts) >= 0.0
            assert sum(parts) == pytest.approx(energy_j(priced), rel=1e-12)


@pytest.mark.parametrize("form", [StreamForm.LINE_HOLD, StreamForm.CYCLE, StreamForm.RING])
def test_streams_between_neighbours_cross_one_link_each(form):
    """A block of 2x2 has a cycle; forms that send nothing twice send what any gather needs."""
    asked = with_energies(grid_problem(2, 2, global_batch_size=8, sequence_length=64))
    plan_options, strategy = (
        PlanOptions(stream_form=form, sequence_parallel=False),
        make_strategy(tatp=4),
    )
    price = laid(asked, plan_options, strategy, ("tatp",), ((2, 2),))
    alone, together = price.closed_form.step, by_hop(asked, plan_options, strategy, price).step
    for name, part in alone.energy_parts_j.items():
        assert number_at(together.energy_parts_j[name]) == pytest.approx(
            number_at(part), rel=1e-12
        ), name


def test_a_message_between_devices_apart_pays_for_each_link():
    """Two replicas, one beside the other or three links apart: gradients and weights three times.

    ZeRO-1 over two devices: each sends half of the gradients (4 bytes) and of the weights (2).
    """
    asked = with_energies(grid_problem(4, 2, global_batch_size=8, sequence_length=64))
    plan_options = PlanOptions(sequence_parallel=False, zero_stage=1)
    strategy = make_strategy(dp_shard=2, tatp=3)
    lone = make_strategy(dp_shard=2)
    beside = laid(asked, plan_options, lone, ("dp_shard",), ((2, 1),))
    params = number_at(beside.closed_form.pipeline.mean.dense_params)
    expected = params * (4 + 2) / 2 * LINK_J_PER_BYTE * 2
    for step in (beside.closed_form.step, by_hop(asked, plan_options, lone, beside).step):
        assert number_at(step.energy_parts_j["links_j"]) == pytest.approx(expected, rel=1e-12)
    asked = with_energies(grid_problem(6, 2, global_batch_size=8, sequence_length=64))
    inner = laid(asked, plan_options, strategy, ("tatp", "dp_shard"), ((3, 1), (2, 1)))
    outer = laid(asked, plan_options, strategy, ("tatp", "dp_shard"), ((3, 1), (1, 2)))
    near, far = (by_hop(asked, plan_options, strategy, price).step for price in (outer, inner))
    params = number_at(inner.closed_form.pipeline.mean.dense_params)
    moved = params * (4 + 2) / 2 * LINK_J_PER_BYTE * 6
    rise = number_at(far.energy_parts_j["links_j"]) - number_at(near.energy_parts_j["links_j"])
    assert rise == pytest.approx(2 * moved, rel=1e-12)


def test_the_same_work_takes_the_same_energy_on_any_stage():
    asked = with_energies(problem(global_batch_size=8))
    plan_options = PlanOptions(sequence_parallel=False, zero_stage=0)
    one, two = (price_one(asked, plan_options, make_strategy(pp=pp)).step for pp in (1, 2))
    assert number_at(two.energy_parts_j["compute_j"]) == pytest.approx(
        number_at(one.energy_parts_j["compute_j"]), rel=1e-12
    )
    assert (
        number_at(two.energy_parts_j["links_j"]) > number_at(one.energy_parts_j["links_j"]) == 0.0
    )


def test_idle_power_is_a_switch():
    asked = with_energies(problem(global_batch_size=8))
    off = replace(asked, system=with_powers(asked.system, idle_power_w=0.0))
    plan_options, strategy = PlanOptions(sequence_parallel=False), make_strategy(dp_shard=4)
    on, counted = (price_one(what, plan_options, strategy).step for what in (asked, off))
    assert number_at(on.time.total_s) == number_at(counted.time.total_s)
    assert number_at(counted.energy_parts_j["idle_j"]) == 0.0
    idle_j = 4 * IDLE_W * number_at(on.time.total_s)
    assert number_at(on.energy_parts_j["idle_j"]) == pytest.approx(idle_j, rel=1e-12)
    assert energy_j_of(on) - energy_j_of(counted) == pytest.approx(1.25 * idle_j, rel=1e-9)


def energy_j_of(step):
    return number_at(step.energy_j)


@pytest.mark.parametrize("seed", range(12))
def test_below_a_cap_a_plan_draws_the_cap_or_what_it_drew(seed):
    chance = random.Random(seed)
    asked = with_energies(random_problem(chance))
    strategy, plan_options = random_strategy(chance, asked), chance.choice(tuple(option_sets()))
    plan_options = replace(plan_options, offload=Offload.NONE)
    free = price_one(asked, plan_options, strategy)
    drawn_w = energy_j(free) / number_at(free.step.time.total_s)
    idle_w = strategy.num_devices * IDLE_W * 1.25
    for share in (0.2, 0.7, 1.1):
        cap_w = idle_w + share * (drawn_w - idle_w)
        capped = with_energies(asked, max_power_w=cap_w)
        held = price_one(capped, plan_options, strategy).step
        parts = [number_at(held.time[name]) for name in TimePart]
        assert sum(parts) == pytest.approx(number_at(held.time.total_s), rel=1e-12)
        power_w = number_at(held.energy_j) / number_at(held.time.total_s)
        assert power_w == pytest.approx(min(cap_w, drawn_w), rel=1e-9)
        assert (number_at(held.time[TimePart.THROTTLE]) > 0) is (share < 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400, 404))
def test_the_best_placement_below_a_cap_is_that_of_brute_force(seed):
    asked, plan_options, strategy = drawn(seed)
    asked = with_energies(asked)
    first = every_placement(asked, strategy, plan_options)[0].closed_form
    power_w = energy_j(first) / number_at(first.step.time.total_s)
    idle_w = strategy.num_devices * IDLE_W * 1.25
    asked = with_energies(asked, max_power_w=idle_w + 0.6 * (power_w - idle_w))
    physical = physical_network(asked)
    found = place(asked, plan_options, strategy, physical)
    ways = [
        (plan_options, strategy, Nesting(price.ranks.axes, price.ranks.shapes))
        for price in every_placement(asked, strategy, plan_options)
    ]
    times_s = []
    for price in price_placed(asked, ways, physical):
        time_s = number_at(price.contended.step.time.total_s)
        assert time_s >= number_at(price.closed_form.step.time.total_s) * (1 - 1e-12)
        times_s.append(time_s)
    assert found.time_s == pytest.approx(min(times_s), rel=1e-12)
    assert found.lower_bound_s == pytest.approx(found.time_s, rel=1e-12)
