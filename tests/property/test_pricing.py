"""Laws that every price obeys, whatever the plan: scaling, order, symmetry."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import option_sets, random_problem, random_strategy

from meshwright.base.errors import SpecError
from meshwright.cost.parts import MemoryPart, TimePart
from meshwright.cost.step import price_columns
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import (
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    StrategyOf,
    row,
    stack,
    take,
)

OPTION_SETS = tuple(option_sets())
FEW = settings(max_examples=8, derandomize=True)
SEEDS = st.integers(0, 10**9)
TOLERANCE = 1.0 + 1e-12
ALONE = {"overlap_data_parallel": False, "offload": Offload.NONE}
"""Layers hide their own communication, and nothing else hides."""


def legal_rows(task, plan_options, columns):
    """Return which rows no rule refuses."""
    chip, legal = task.system.chip, np.ones(len(columns.tp), dtype=bool)
    for refusal in all_refusals(
        task.model, task.workload, columns, plan_options,
        tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
    ):  # fmt: skip
        legal &= ~refusal.mask
    return legal


def drawn(seed, **fixed):
    """Return a random problem, plan options with some choices fixed, and a few legal plans."""
    chance = random.Random(seed)
    while True:
        task = random_problem(chance)
        plan_options = replace(chance.choice(OPTION_SETS), **fixed)
        if task.system.host is None:
            plan_options = replace(plan_options, offload=Offload.NONE)
        columns = stack([random_strategy(chance, task) for _ in range(40)])
        legal = np.flatnonzero(legal_rows(task, plan_options, columns))
        if len(legal):
            return task, plan_options, take(columns, legal[:8])


def times_s(task, plan_options, columns):
    return price_columns(task, plan_options, columns).step.time.total_s + np.zeros(len(columns.tp))


def memory(task, plan_options, columns):
    return price_columns(task, plan_options, columns).step.memory_bytes + np.zeros(len(columns.tp))


def with_system(task, chip=None, level=None, host=None):
    """Return the problem on a system whose rates are multiplied by some factors."""
    system = task.system
    device, main = system.chip, system.chip.main_memory
    flops, bandwidth = chip or (1.0, 1.0)
    rates = {dtype: rate * flops for dtype, rate in device.matmul_flops_per_s.items()}
    faster = main.model_copy(
        update={"bandwidth_bytes_per_s": main.bandwidth_bytes_per_s * bandwidth}
    )
    device = device.model_copy(update={"matmul_flops_per_s": rates, "memories": (faster,)})
    update = {"chip": device}
    if level is not None:
        update["levels"] = tuple(level(entry) for entry in system.levels)
    if host is not None and system.host is not None:
        speed = system.host.bandwidth_bytes_per_s * host
        update["host"] = system.host.model_copy(update={"bandwidth_bytes_per_s": speed})
    return replace(task, system=system.model_copy(update=update))


def without_launches(task):
    """Return the problem with free launches and no slowdown under overlap."""
    return replace(
        task,
        calibration=replace(task.calibration, launch_s=0.0, operator_s=0.0, overlap_slowdown=0.0),
    )


def times_bandwidth(factor, latency=1.0):
    def scaled(level):
        return level.model_copy(
            update={
                "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s * factor,
                "latency_s": level.latency_s * latency,
            }
        )

    return scaled


@FEW
@given(SEEDS)
def test_everything_twice_as_fast_takes_half_the_time(seed):
    """All rates doubled and all fixed times halved: time is homogeneous of degree -1."""
    task, plan_options, columns = drawn(seed)
    constants = task.calibration
    halved = replace(
        constants,
        launch_s=constants.launch_s / 2,
        operator_s=constants.operator_s / 2,
        collective_launch_s=constants.collective_launch_s / 2,
    )
    fast = with_system(task, (2.0, 2.0), times_bandwidth(2.0, 0.5), 2.0)
    fast = replace(fast, calibration=halved)
    np.testing.assert_allclose(
        times_s(fast, plan_options, columns), times_s(task, plan_options, columns) / 2, rtol=1e-12
    )


@FEW
@given(SEEDS, st.sampled_from(["flops", "memory", "network", "latency", "host"]))
def test_faster_parts_never_make_a_step_slower(seed, part):
    """Of what hides behind computation only one thing is left: several see one window shrink."""
    task, plan_options, columns = drawn(seed, **ALONE)
    task = without_launches(task)
    fast = {
        "flops": lambda: with_system(task, (1.7, 1.0)),
        "memory": lambda: with_system(task, (1.0, 1.7)),
        "network": lambda: with_system(task, level=times_bandwidth(1.7)),
        "latency": lambda: with_system(task, level=times_bandwidth(1.0, 0.3)),
        "host": lambda: with_system(task, host=1.7),
    }[part]()
    before, after = times_s(task, plan_options, columns), times_s(fast, plan_options, columns)
    assert (after <= before * TOLERANCE).all()


@FEW
@given(SEEDS)
def test_capacity_changes_the_margin_alone(seed):
    task, plan_options, columns = drawn(seed)
    main = task.system.chip.main_memory
    larger = main.model_copy(update={"capacity_bytes": main.capacity_bytes * 2})
    chip = task.system.chip.model_copy(update={"memories": (larger,)})
    roomy = replace(task, system=task.system.model_copy(update={"chip": chip}))
    np.testing.assert_array_equal(
        times_s(roomy, plan_options, columns), times_s(task, plan_options, columns)
    )
    more = memory(roomy, plan_options, columns) - memory(task, plan_options, columns)
    margin = task.calibration.memory_margin_fraction * main.capacity_bytes
    np.testing.assert_allclose(more, margin, rtol=1e-9)


@FEW
@given(SEEDS)
def test_the_place_of_axes_of_one_device_changes_nothing(seed):
    task, plan_options, columns = drawn(seed)
    prices = times_s(task, plan_options, columns)
    for index in range(len(columns.tp)):
        alone = row(columns, index)
        idle = [name for name in plan_options.axis_order if getattr(alone, name) == 1]
        used = [name for name in plan_options.axis_order if getattr(alone, name) > 1]
        moved = replace(plan_options, axis_order=(*idle, *used))
        again = times_s(task, moved, stack([alone]))[0]
        assert again == pytest.approx(prices[index], rel=1e-12)  # terms add in another order


@FEW
@given(SEEDS)
def test_replicas_without_zero_are_one_axis(seed):
    """On one level, splitting replicas over dp_replicate and dp_shard is the same plan."""
    task, plan_options, columns = drawn(seed, zero_stage=0, offload=Offload.NONE)
    if len(task.system.levels) > 1 or task.num_experts:
        task = replace(
            task, system=task.system.model_copy(update={"levels": task.system.levels[:1]})
        )
    fields = vars(row(columns, 0))
    merged = StrategyOf(**{n: getattr(columns, n) for n in fields} | {
        "dp_shard": columns.dp, "dp_replicate": np.ones(len(columns.tp)),
    })  # fmt: skip
    np.testing.assert_array_equal(
        memory(task, plan_options, merged), memory(task, plan_options, columns)
    )


@FEW
@given(SEEDS)
def test_recomputation_never_keeps_more_nor_computes_less(seed):
    task, plan_options, columns = drawn(seed, offload=Offload.NONE)
    kept, computed = [], []
    for kind in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL):
        priced = price_columns(task, replace(plan_options, recompute=kind), columns)
        kept.append(max(use[MemoryPart.ACTIVATIONS].max() for use in priced.step.memory))
        parts = (TimePart.COMPUTE, TimePart.MAIN_MEMORY, TimePart.RECOMPUTE)
        computed.append(sum(priced.step.time[part] for part in parts).max())
    assert kept[0] >= kept[1] >= kept[2]
    assert computed[0] <= computed[1] * TOLERANCE
    assert computed[1] <= computed[2] * TOLERANCE


@FEW
@given(SEEDS)
def test_each_zero_stage_holds_no_more_state_than_the_one_before(seed):
    """Stage 3 in weights and states alone: its units have whole weights and gradients for a while.

    Nor what it keeps in a pipeline when it does not give them back: the gradients whole.
    """
    task, plan_options, columns = drawn(seed, zero_stage=0, offload=Offload.NONE)
    plan_options = replace(plan_options, reshard_after_forward=True)
    sharded = columns.dp_shard * columns.cp > 1
    if not sharded.any():
        return
    columns = take(columns, np.flatnonzero(sharded))
    held = []
    for stage in range(4):
        uses = price_columns(task, replace(plan_options, zero_stage=stage), columns).step.memory
        at_rest = [use[MemoryPart.WEIGHTS] + use[MemoryPart.STATES] for use in uses]
        held.append((np.maximum.reduce([use.total_bytes for use in uses]),
                     np.maximum.reduce(at_rest)))  # fmt: skip
    for (more, more_at_rest), (less, at_rest) in pairwise(held[:3]):
        assert (less <= more * TOLERANCE).all()
        assert (at_rest <= more_at_rest * TOLERANCE).all()
    assert (held[3][1] <= held[2][1] * TOLERANCE).all()


@FEW
@given(SEEDS)
def test_gpipe_holds_at_least_what_1f1b_holds_in_the_same_time(seed):
    task, plan_options, columns = drawn(seed, schedule=ScheduleKind.ONE_F_ONE_B)
    gpipe = replace(plan_options, schedule=ScheduleKind.GPIPE)
    assert (memory(task, gpipe, columns) * TOLERANCE >= memory(task, plan_options, columns)).all()
    zero_bubble = replace(plan_options, schedule=ScheduleKind.ZERO_BUBBLE)
    faster = price_columns(task, zero_bubble, columns).step.time[TimePart.BUBBLE]
    assert (
        faster <= price_columns(task, plan_options, columns).step.time[TimePart.BUBBLE] * TOLERANCE
    ).all()


@FEW
@given(SEEDS)
def test_more_balanced_experts_never_make_a_step_slower(seed):
    task, plan_options, columns = drawn(seed, **ALONE)
    task = without_launches(task)
    loaded = task.workload.model_copy(update={"expert_load_imbalance": 1.5})
    even = task.workload.model_copy(update={"expert_load_imbalance": 1.0})
    slow = times_s(replace(task, workload=loaded), plan_options, columns)
    fast = times_s(replace(task, workload=even), plan_options, columns)
    assert (fast <= slow * TOLERANCE).all()
    if not task.num_experts:
        np.testing.assert_array_equal(fast, slow)


@FEW
@given(SEEDS)
def test_a_batch_of_twice_the_sequences_takes_longer_but_no_more_than_twice(seed):
    task, plan_options, columns = drawn(seed, schedule=ScheduleKind.ONE_F_ONE_B)
    batch = task.workload.global_batch_size
    double = task.workload.model_copy(update={"global_batch_size": 2 * batch})
    once = times_s(task, plan_options, columns)
    twice = times_s(replace(task, workload=double), plan_options, columns)
    assert (twice * TOLERANCE >= once).all()
    assert (twice <= 2 * once * TOLERANCE).all()


def test_offload_without_a_host_has_no_price():
    task, _, columns = drawn(3, offload=Offload.NONE)
    bare = replace(task, system=task.system.model_copy(update={"host": None}))
    with pytest.raises(SpecError, match="no host memory"):
        price_columns(bare, PlanOptions(offload=Offload.ALL), columns)
