"""Plans on grids that lost devices, links or rows: legal and alive, or told why not."""

import random
from dataclasses import replace

import numpy as np
import pytest
from sampled import sampled

from meshwright.base.arrays import number_at
from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.network.placement import all_choices
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.topology.levels import network_of
from meshwright.topology.network import connected_components
from meshwright.train.plan_file import from_json, placement_faults, to_json
from meshwright.train.question import make_problem, training
from meshwright.train.words import blocks_in_words
from meshwright.wafer.picture import draw
from meshwright.wafer.price import physical_network
from meshwright.wafer.search import price_as_placed
from meshwright.wafer.simulation import simulate
from meshwright.wafer.training import estimate, plan

MODEL = "gpt2-medium"
FEW = {"pp": [1], "cp": [1], "micro_batch_size": [1], "recompute": ["none"], "zero_stage": [1],
       "tatp": [1]}  # fmt: skip
PLAIN = PlanOptions(sequence_parallel=False, zero_stage=1)


def work(system):
    return training(system, sequence_length=256, global_batch_size=240)


def wafer(shape, **faults):
    return load_system(f"wafer-{shape}").model_copy(update=faults)


def row(number, columns):
    return tuple(range(number * columns, (number + 1) * columns))


def works_there(system, best):
    """Check that a candidate runs on devices that work and reach each other, each once."""
    network, placement = network_of(system), best.placement
    assert placement is not None
    used = list(placement.devices)
    num_hosted = placement.work_shares.count(0.0)
    assert len(used) == best.strategy.num_devices
    assert len(set(used)) == best.estimate.num_devices_used >= len(used) - num_hosted
    assert not set(used) & set(system.dead_devices)
    part = connected_components(network)
    assert len(set(part[used].tolist())) == 1
    assert np.isfinite(best.estimate.step_time_s)
    assert best.estimate.step_time_s >= placement.closed_form_s * (1 - 1e-12)


@pytest.mark.parametrize("faults", [
    pytest.param({"dead_devices": (9,)}, marks=pytest.mark.slow),
    pytest.param({"dead_links": ((0, 1),)}, marks=pytest.mark.slow),
    pytest.param({"dead_devices": row(1, 8)}, marks=pytest.mark.slow),
    {"dead_devices": row(1, 8), "dead_links": ((16, 17), (24, 25))},
])  # fmt: skip
def test_a_fault_leaves_a_legal_plan(faults):
    system = wafer("4x8", **faults)
    best = plan(MODEL, system, work(system), allowed=FEW, top=1).best
    works_there(system, best)
    refusals = all_refusals(
        load_model(MODEL), work(system), stack([best.strategy]), best.plan_options,
        tile_rows=system.chip.tile_rows, tile_columns=system.chip.tile_columns,
    )  # fmt: skip
    assert not any(bool(refusal.mask[0]) for refusal in refusals)


def test_a_dead_row_leaves_the_larger_part():
    """Row 1 of 4 is dead: of the rows 0, 2, 3 only the last two are joined, 8 devices."""
    system = wafer("4x4", dead_devices=row(1, 4))
    best = plan(MODEL, system, work(system), allowed=FEW, top=1).best
    assert set(best.placement.devices) == {*row(2, 4), *row(3, 4)}
    assert best.estimate.num_devices_used == 8


def test_a_fixed_number_that_no_grid_holds_is_told_with_those_that_do():
    """One dead device: 28 = 4x7 or 24 = 3x8 work, paths take up to 31; of 32 one is hosted."""
    system = wafer("4x8", dead_devices=(9,))
    numbers = "24 or 28 or 29 or 30 or 31 or 32"
    with pytest.raises(SpecError, match=f"no strategy of {numbers} devices has tp 27"):
        plan(MODEL, system, work(system), allowed=FEW | {"tp": [27]})


def test_a_given_strategy_that_fits_no_blocks_is_told_with_the_nearest_grids():
    system = wafer("4x4", dead_devices=(5,))
    asked = training(system, sequence_length=256, global_batch_size=22)
    with pytest.raises(InfeasibleError, match="4x3, 3x4") as caught:
        estimate(MODEL, system, asked, make_strategy(dp_shard=11), PLAIN)
    assert "no blocks of 11 devices fit the working part of" in str(caught.value)


def test_six_dies_of_eight_run_along_two_paths():
    """Two dead corners leave blocks of 2x2 and a path of six: dp 2 over paths of three."""
    system = wafer("2x4", dead_devices=(0, 7))
    asked = training(system, sequence_length=2048, global_batch_size=16)
    strategy = make_strategy(dp_shard=2, tatp=3, micro_batch_size=8)
    found = estimate("gpt3-6.7b", system, asked, strategy, PLAIN)
    placement = found.best.placement
    works_there(system, found.best)
    assert (placement.lies_in, set(placement.devices)) == ("paths", {1, 2, 3, 4, 5, 6})
    assert min(placement.work_shares) > 0.999  # whole rows of 16,384 over three
    assert "tatp 3 along each, dp_shard 2 from one to the next" in blocks_in_words(placement)
    assert simulate(found).step.step_time_s == pytest.approx(
        found.best.estimate.step_time_s, rel=0.03
    )
    read = from_json(to_json(found))
    assert read.best == found.best
    assert draw(read).group_names == ("tatp group 0", "tatp group 1")
    moved = replace(read.best.placement, lies_in="rings")
    (fault,) = placement_faults("p", replace(read.best, placement=moved), system)
    assert str(fault) == "p.lies_in: found 'rings' (blocks, paths, cycles)"


@pytest.mark.slow
def test_a_dead_middle_leaves_a_cycle():
    system = wafer("3x3", dead_devices=(4,))
    asked = training(system, sequence_length=2048, global_batch_size=16)
    best = plan("gpt3-6.7b", system, asked, allowed=FEW | {"tatp": [8]}, top=1).best
    works_there(system, best)
    assert best.placement.lies_in == "cycles"
    assert best.estimate.num_devices_used == 8


def random_faults(chance):
    """Return some dead devices and wires of a 4x4 wafer."""
    network = network_of(load_system("wafer-4x4"))
    wires = sorted({(a, b) for a, b in network.link_between if a < b < 16})
    dead = chance.sample(range(16), chance.choice([0, 0, 1, 2, 3, 5]))
    living = [wire for wire in wires if not set(wire) & set(dead)]
    cut = chance.sample(living, min(len(living), chance.choice([0, 1, 2, 4, 8])))
    return {"dead_devices": tuple(sorted(dead)), "dead_links": tuple(cut)}


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 30))]
)
def test_random_faults_give_a_placement_or_a_reason(seed):
    chance = random.Random(seed)
    for _ in range(2):
        system = wafer("4x4", **random_faults(chance))
        strategy = make_strategy(**chance.choice([
            {"dp_shard": 4}, {"tp": 2, "dp_shard": 2}, {"dp_shard": 6}, {"tp": 4, "dp_shard": 2},
        ]))  # fmt: skip
        problem = make_problem(MODEL, system, work(system), "uncalibrated")
        sides = problem.whole_grids or (problem.grid_sides,)
        if fits_some(strategy, sides):
            works_there(system, estimate(MODEL, system, work(system), strategy, PLAIN).best)
            continue
        try:
            best = estimate(MODEL, system, work(system), strategy, PLAIN).best
        except InfeasibleError:
            continue
        works_there(system, best)
        assert best.placement.work_shares.count(0.0) > 0


def fits_some(strategy, grids):
    """Tell whether nested blocks of the axes fit one of the whole grids."""
    return any(True for sides in grids for _ in all_choices(PLAIN, strategy, sides))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 106))
def test_random_faults_leave_a_plan(seed):
    system = wafer("4x4", **random_faults(random.Random(seed)))
    best = plan(MODEL, system, work(system), allowed=FEW, top=1).best
    works_there(system, best)


def of_48(model, strategy, plan_options, **faults):
    system = wafer("6x8", **faults)
    asked = training(system, sequence_length=2048, global_batch_size=128)
    return estimate(model, system, asked, strategy, plan_options)


SIX_BILLION = ("gpt3-6.7b", make_strategy(dp_shard=4, tatp=12, micro_batch_size=8), PLAIN)
EIGHT_BILLION = ("llama3-8b", make_strategy(dp_shard=2, tatp=24, micro_batch_size=16), PLAIN)


def test_fewer_devices_are_used_where_rules_refuse_all():
    """Of ten dies dp is 5 or 10, and neither divides a batch of 8; on eight dies it is 4 or 8."""
    on = wafer("2x5", dead_links=((7, 8),))
    asked = training(on, sequence_length=64, global_batch_size=8)
    best = plan(MODEL, on, asked, allowed=FEW, top=1).best
    assert best.strategy.num_devices == 8
    works_there(on, best)


@pytest.mark.parametrize("case", sampled([
    (SIX_BILLION, {"dead_devices": (19,)}),
    (SIX_BILLION, {"dead_devices": (0,)}),
    (SIX_BILLION, {"dead_devices": (3,)}),
    (SIX_BILLION, {"speed_factors": {19: 0.5}}),
    (SIX_BILLION, {"dead_links": ((19, 20),)}),
    (EIGHT_BILLION, {"dead_devices": (0,)}),
    (EIGHT_BILLION, {"dead_devices": (19,)}),
    (EIGHT_BILLION, {"dead_devices": (19, 30)}),
], 1), ids=lambda case: f"{case[0][0]} {case[1]}")  # fmt: skip
def test_a_fault_of_one_die_of_48_costs_little(case):
    asked, faults = case
    whole, left = of_48(*asked).best, of_48(*asked, **faults).best
    works_there(wafer("6x8", **faults), left)
    loss = whole.estimate.step_time_s / left.estimate.step_time_s - 1.0
    assert -0.05 <= loss <= 0.0
    assert sum(left.placement.sequences) == 128
    assert left.placement.lower_bound_s <= left.estimate.step_time_s


@pytest.mark.parametrize("faults", [{"speed_factors": {5: 0.5}}, {"dead_devices": (5,)}])
@pytest.mark.slow
def test_a_stated_placement_is_not_faster_with_contention(faults):
    """Ranks at a pace of their own have it in closed form as well."""
    system = wafer("4x4", **faults)
    asked = training(system, sequence_length=2048, global_batch_size=16)
    found = plan("gpt3-6.7b", system, asked, allowed=FEW | {"tatp": [8]}, top=1)
    problem = make_problem("gpt3-6.7b", system, asked, "uncalibrated")
    price = price_as_placed(problem, found.best, physical_network(problem))
    closed_s, placed_s = (
        number_at(priced.step.time.total_s) for priced in (price.closed_form, price.contended)
    )
    assert closed_s <= placed_s * (1 + 1e-12)


def test_a_step_with_a_hosted_rank_is_simulated():
    found = of_48(*SIX_BILLION, dead_devices=(19,))
    assert found.best.placement.sequences == (30, 33, 33, 32)
    assert any("hosts 2 ranks" in note for note in found.warnings)
    assert simulate(found).step.step_time_s == pytest.approx(
        found.best.estimate.step_time_s, rel=0.03
    )


def test_islands_are_named_and_the_largest_has_the_plan():
    """Column 6 of 8 is dead: 24 devices left of it, 4 in column 7."""
    system = wafer("4x8", dead_devices=(6, 14, 22, 30))
    found = plan(MODEL, system, work(system), allowed=FEW, top=1)
    assert set(found.best.placement.devices) <= {d for d in range(32) if d % 8 < 6}
    note = next(note for note in found.warnings if "islands" in note)
    assert "2 islands of 24 (0-5, 8-13, 16-21, 24-29), 4 (7, 15, 23, 31) devices" in note


def test_a_step_on_a_grid_with_faults_is_simulated():
    system = wafer("4x4", dead_devices=(5,), dead_links=((0, 1),))
    found = estimate(MODEL, system, work(system), make_strategy(dp_shard=6), PLAIN)
    played = simulate(found)
    used = set(played.step.graph.device[~played.step.graph.is_transfer].tolist())
    assert used == set(found.best.placement.devices)
    assert played.step.step_time_s > 0
