"""The factored, pruned search returns what a plain loop over every plan returns.

The loop below knows nothing of families, blocks or bounds: it writes down every plan, asks the
rules about each, prices the legal ones in full, and keeps the fastest that fits.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import count, permutations, product

import numpy as np
import pytest
from sampled import sampled
from small_problems import level, model, random_problem, system
from small_problems import problem as problem_of

from meshwright.base.errors import InfeasibleError
from meshwright.cost.energy import idles_above_cap
from meshwright.cost.memory import room_for, shard_degrees
from meshwright.cost.step import price_columns, price_one
from meshwright.sharding import launching
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.rules import Case
from meshwright.sharding.space import MICRO_BATCH_SIZES, Choices, device_counts
from meshwright.sharding.strategy import (
    ContextKind,
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Streamed,
    make_strategy,
    row,
    stack,
    take,
)
from meshwright.spec.workload import Launches
from meshwright.train.search import search
from meshwright.train.space import SearchSpace

SEEDS = range(200)
LARGE_SEEDS = range(1000, 1010)
MOST_PLANS, MOST_OPTION_SETS = 1_000, 6
MOST_PLANS_OF_LARGE, MOST_OPTION_SETS_OF_LARGE = 12_000, 600
IDLE_W, PEAK_W = 2.0, 20.0
OVERHEAD = 0.5
CAPPED_SEEDS = range(2000, 2060)
CHOICES = {
    "sequence_parallel": (True, False),
    "context_kind": tuple(ContextKind),
    "schedule": tuple(ScheduleKind),
    "recompute": tuple(Recompute),
    "zero_stage": (0, 1, 2, 3),
    "offload": tuple(Offload),
    "tp": (1, 2, 3, 4),
    "tatp": (1, 2, 4),
    "cp": (1, 2),
    "pp": (1, 2, 3, 4),
    "dp": (1, 2, 3, 4, 8),
    "dp_shard": (1, 2, 3, 4),
    "micro_batch_size": (1, 2, 3),
    "num_virtual_stages": (1, 2),
    "ep": (1, 2, 4),
    "etp": (1, 2),
    "embedding_layers": (0, 1),
    "head_layers": (0, 1, 2),
    "recompute_layers": (0, 1, 2),
    "recompute_run": (1, 2),
    "overlap_expert_parallel": (False, True),
}


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


def orders_of_axes(problem):
    """Return the orders of the axes: tensor axes inside, the others in any order."""
    if len(problem.system.levels) == 1:
        return [("tp", "tatp", "cp", "dp_shard", "dp_replicate", "pp")]
    inner = [("tp", "tatp"), ("tatp", "tp")] if problem.has_grid else [("tp", "tatp")]
    outer = permutations([("cp",), ("dp_shard", "dp_replicate"), ("pp",)])
    orders = [first + sum(rest, ()) for rest in outer for first in inner]
    experts_inside = [order for order in orders if order[-1] == "pp"]
    return experts_inside if problem.num_experts else orders


def factors_of(problem, number):
    """Yield (tp, tatp, cp, pp, dp) with the product of a number of devices."""
    for tp, cp, pp in product(divisors(number), repeat=3):
        for tatp in divisors(number) if problem.has_grid else [1]:
            if number % (tp * tatp * cp * pp) == 0 and pp <= problem.model.num_layers:
                yield tp, tatp, cp, pp, number // (tp * tatp * cp * pp)


def degrees_of(problem, allowed, keeps):
    """Yield every assignment of degrees as a dict, dp not yet divided into shards.

    Experts are whole or split over tp, unless some degrees of etp are stated.
    """
    batch, layers = problem.workload.global_batch_size, problem.model.num_layers
    for number in device_counts(problem.system.num_alive, problem.system.levels[0].size):
        for tp, tatp, cp, pp, dp in factors_of(problem, number):
            experts = [(1, 1)]
            if problem.num_experts:
                inside = allowed.get("etp", {1, tp})
                pairs = product(divisors(problem.num_experts), inside)
                experts = [(ep, etp) for ep, etp in pairs if dp * cp * tp % (ep * etp) == 0]
            chunks = divisors(-(-layers // pp)) if pp > 1 else [1]
            sizes = [b for b in MICRO_BATCH_SIZES if b == 1 or b <= -(-batch // dp)]
            for (ep, etp), v, b in product(experts, chunks, sizes):
                degrees = {
                    "tp": tp, "tatp": tatp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp,
                    "num_virtual_stages": v, "micro_batch_size": b,
                }  # fmt: skip
                if all(keeps(name, value) for name, value in degrees.items()):
                    yield degrees


def pipelines_of(degrees, keeps):
    """Yield choices of a pipeline that are not others by another name.

    (sequence parallel, context, schedule, streamed): both tensors stream on blocks alone.
    """
    tp, cp, pp, v = (degrees[name] for name in ("tp", "cp", "pp", "num_virtual_stages"))
    tensors = (Streamed.AUTO, Streamed.BOTH)
    choices = product((True, False), ContextKind, ScheduleKind, tensors)
    for split, kind, schedule, streamed in choices:
        same = split and tp == 1
        same |= streamed is Streamed.BOTH and not (split and tp > 1 and degrees["tatp"] > 1)
        same |= kind is not ContextKind.RING and cp == 1
        same |= (v > 1) != (schedule is ScheduleKind.INTERLEAVED)
        same |= pp == 1 and schedule is not ScheduleKind.ONE_F_ONE_B
        asked = {"sequence_parallel": split, "context_kind": kind, "schedule": schedule}
        if not same and all(keeps(name, value) for name, value in asked.items()):
            yield split, kind, schedule, streamed


def shards_of(degrees, keeps):
    """Yield (dp_shard, ZeRO stage, reshard): one replica is one shard under each stage."""
    is_one = degrees["dp"] * degrees["cp"] == 1
    for shard in divisors(degrees["dp"]):
        for stage, reshard in ((0, True), (1, True), (2, True), (3, True), (3, False)):
            is_legal = is_one or (shard == 1 if stage == 0 else shard * degrees["cp"] > 1)
            if is_legal and keeps("dp_shard", shard) and keeps("zero_stage", stage):
                yield shard, stage, reshard


def distinct(plans):
    """Return the plans without those that are another one by another name.

    On one shard all ZeRO stages are the same plan: that of the lowest stage stands for it.
    """
    found = {}
    for strategy, plan_options in plans:
        is_one = strategy.dp * strategy.cp == 1
        same = replace(plan_options, zero_stage=0, reshard_after_forward=True)
        found.setdefault((strategy, same if is_one else plan_options), (strategy, plan_options))
    return list(found.values())


def plans_of(problem, allowed):
    """Yield every plan of a space: degrees and plan options."""

    def keeps(name, value):
        return name not in allowed or value in allowed[name]

    offloads = [o for o in Offload if problem.system.host is not None or o is Offload.NONE]
    offloads = [o for o in offloads if keeps("offload", o)]
    recomputes = [
        {"recompute": kind, "recompute_layers": number, "recompute_run": run}
        for kind in Recompute
        if keeps("recompute", kind)
        for number in (allowed.get("recompute_layers", (0,)) if kind is Recompute.FULL else (0,))
        for run in (allowed.get("recompute_run", (1,)) if kind is Recompute.FULL else (1,))
        if not number or run == 1
    ]
    overlap = problem.workload.software.async_tensor_parallel
    counted = [
        {"embedding_layers": embedding, "head_layers": head, "overlap_expert_parallel": overlaps}
        for embedding in allowed.get("embedding_layers", (0,))
        for head in allowed.get("head_layers", (0,))
        for overlaps in allowed.get("overlap_expert_parallel", (False,))
    ]
    for degrees in degrees_of(problem, allowed, keeps):
        seen = set()
        for order in orders_of_axes(problem):
            axes = {"dp" if axis.startswith("dp") else axis: None for axis in order}
            used = tuple(axis for axis in axes if degrees[axis] > 1)
            if used in seen:
                continue
            seen.add(used)
            for pipeline, shards in product(
                pipelines_of(degrees, keeps), shards_of(degrees, keeps)
            ):
                for recompute, offload, edges in product(recomputes, offloads, counted):
                    rest = {"offload": offload, **recompute, **edges}
                    yield _plan(degrees, order, pipeline, shards, overlap, rest)


def _plan(degrees, order, pipeline, shards, overlap, choices):
    shard, stage, reshard = shards
    rest = {name: value for name, value in degrees.items() if name != "dp"}
    strategy = make_strategy(**rest, dp_shard=shard, dp_replicate=degrees["dp"] // shard)
    plan_options = PlanOptions(
        sequence_parallel=pipeline[0], context_kind=pipeline[1], schedule=pipeline[2],
        zero_stage=stage, reshard_after_forward=reshard, axis_order=order,
        overlap_tensor_parallel=overlap, streamed=pipeline[3], **choices,
    )  # fmt: skip
    return strategy, plan_options


@dataclass
class Truth:
    """What the plain loop found."""

    total: int = 0
    refused: int = 0
    over_memory: int = 0
    dominated: int = 0
    priced: int = 0
    fastest: list = field(default_factory=list)


def is_refused(problem, plan_options, columns):
    """Return which rows any rule refuses."""
    chip, mask = problem.system.chip, np.zeros(len(columns.tp), dtype=bool)
    for refusal in all_refusals(
        problem.model, problem.workload, columns, plan_options,
        tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
    ):  # fmt: skip
        mask |= refusal.mask
    return mask


def grouped(plans):
    """Return (plan options, columns of its strategies), plans without offload first."""
    groups = defaultdict(list)
    for strategy, plan_options in plans:
        groups[plan_options].append(strategy)
    order = sorted(groups, key=lambda plan_options: plan_options.offload is not Offload.NONE)
    return [(plan_options, stack(groups[plan_options])) for plan_options in order]


def brute_force(problem, plans, top):
    """Price every plan of a list, one set of plan options at a time."""
    truth, fits_plainly = Truth(total=len(plans)), set()
    for plan_options, tried in grouped(plans):
        legal = np.flatnonzero(~is_refused(problem, plan_options, tried))
        truth.refused += len(tried.tp) - len(legal)
        if not len(legal):
            continue
        columns = take(tried, legal)
        chosen = [row(columns, index) for index in range(len(legal))]
        priced = price_columns(problem, plan_options, columns)
        shards = shard_degrees(problem, columns)
        fits = room_for(problem, plan_options, shards, priced.pipeline.states).fits
        plain = replace(plan_options, offload=Offload.NONE)
        for index, (strategy, time_s) in enumerate(
            zip(chosen, priced.step.time.total_s.tolist(), strict=True)
        ):
            if plan_options.offload is not Offload.NONE and (strategy, plain) in fits_plainly:
                truth.dominated += 1
            elif not fits[index]:
                truth.over_memory += 1
            else:
                truth.priced += 1
                truth.fastest.append((time_s, strategy, plan_options))
                if plan_options.offload is Offload.NONE:
                    fits_plainly.add((strategy, plan_options))
    truth.fastest = sorted(truth.fastest, key=lambda entry: entry[0])[:top]
    return truth


def random_choices(chance):
    """Return a few fixed choices."""
    allowed = {}
    for name in chance.sample(sorted(CHOICES), 8):
        values = CHOICES[name]
        allowed[name] = tuple(chance.sample(values, chance.randint(1, len(values) - 1)))
    return allowed


def is_small(plans, most_plans, most_option_sets):
    """Return the plans as a list, or None for too many plans or too many sets of options."""
    kept, option_sets = [], set()
    for strategy, plan_options in plans:
        kept.append((strategy, plan_options))
        option_sets.add(plan_options)
        if len(kept) > most_plans or len(option_sets) > most_option_sets:
            return None
    return kept


def space_of(seed, most_plans=MOST_PLANS, most_option_sets=MOST_OPTION_SETS):
    """Return a random problem, choices that leave few plans, one of them legal, and these plans."""
    chance = random.Random(seed)
    problem = random_problem(chance)
    for attempt in count():
        problem = random_problem(chance) if attempt % 20 == 19 else problem
        allowed = random_choices(chance)
        plans = is_small(plans_of(problem, allowed), most_plans, most_option_sets)
        if plans and any(not is_refused(problem, *group).all() for group in grouped(plans)):
            return problem, allowed, plans


def searched(problem, allowed, **options):
    """Return the result of the search."""
    return search(SearchSpace(problem, Choices(allowed)), top=5, **options)


def agree(problem, allowed, plans):
    """Compare the search, pruned and not, with the plain loop: best plans, and every count."""
    plans = distinct(plans)
    truth = brute_force(problem, plans, 5)
    pruned = searched(problem, allowed)
    everything = searched(problem, allowed, prune=False)
    counts = everything.counts
    assert counts.total == pruned.counts.total == truth.total
    assert counts.refused.total() == pruned.counts.refused.total() == truth.refused
    assert counts.does_not_fit + counts.pruned_by_memory == truth.over_memory
    assert (counts.dominated, counts.priced) == (truth.dominated, truth.priced)
    times = [time_s for time_s, _, _ in truth.fastest]
    for result in (pruned, everything):
        np.testing.assert_allclose([f.time_s for f in result.found[:5]], times, rtol=1e-12)
    for found in pruned.found[:1]:
        again = price_one(problem, found.plan_options, found.strategy)
        assert again.step.time.total_s[0] == pytest.approx(times[0], rel=1e-12)
        assert not is_refused(problem, found.plan_options, stack([found.strategy])).any()


@pytest.mark.parametrize("seed", sampled(SEEDS, 5))
def test_search_returns_the_optimum_of_a_plain_loop(seed):
    agree(*space_of(seed))


def powered(problem, chance, **caps):
    """Return a problem with powers, half of them with energies of operations."""
    system = problem.system
    chip = system.chip.model_copy(update={"idle_power_w": IDLE_W, "peak_power_w": PEAK_W})
    levels = system.levels
    if chance.random() < 0.5:
        memory = chip.main_memory.model_copy(update={"energy_j_per_byte": 1e-11})
        chip = chip.model_copy(update={"memories": (memory,), "energy_j_per_flop": 5e-13})
        levels = tuple(e.model_copy(update={"energy_j_per_byte": 1e-10}) for e in levels)
    changed = {"chip": chip, "levels": levels, "overhead_power_fraction": OVERHEAD, **caps}
    return replace(problem, system=system.model_copy(update=changed))


def caps_of(chance, problem):
    """Return a cap that slows most plans down, and leaves no room for some numbers of devices."""
    watts = chance.uniform(1.2, 1.0 + 2.0 * problem.system.num_devices)
    caps = {"max_power_w": watts * IDLE_W * (1.0 + OVERHEAD)}
    if chance.random() < 0.3:
        caps["max_device_power_w"] = IDLE_W + chance.uniform(0.5, 3.0)
    return caps


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(CAPPED_SEEDS, 10))
def test_search_below_a_cap_returns_the_optimum_of_a_plain_loop(seed):
    problem, allowed, plans = space_of(seed)
    chance = random.Random(seed)
    problem = powered(problem, chance, **caps_of(chance, problem))
    system = problem.system
    plans = distinct(plans)
    left = [plan for plan in plans if not idles_above_cap(system, plan[0].num_devices)]
    truth = brute_force(problem, left, 5)
    for prune in (True, False):
        found = searched(problem, allowed, prune=prune)
        counts = found.counts
        assert counts.total == len(plans)
        assert counts.refused.total() == truth.refused + len(plans) - len(left)
        assert counts.does_not_fit + counts.pruned_by_memory == truth.over_memory
        times_s = [time_s for time_s, _, _ in truth.fastest]
        np.testing.assert_allclose([f.time_s for f in found.found[:5]], times_s, rtol=1e-12)
        assert found.gap == 0.0 or not found.found
        for best in found.found[:1]:
            step = price_one(problem, best.plan_options, best.strategy).step
            power_w = float(step.energy_j[0] / step.time.total_s[0])
            assert power_w <= system.max_power_w * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", LARGE_SEEDS)
def test_search_returns_the_optimum_of_a_larger_plain_loop(seed):
    agree(*space_of(seed, MOST_PLANS_OF_LARGE, MOST_OPTION_SETS_OF_LARGE))


LAUNCHED_SEEDS = range(3000, 3080)
AXES_OF_LAUNCHES = ("tp", "cp", "pp", "vpp", "ep", "etp", "dp_replicate", "tatp")


def some(chance, values, least=0):
    """Return some of the values, in their order."""
    kept = set(chance.sample(values, chance.randint(least, len(values))))
    return tuple(value for value in values if value in kept)


def launches_of(chance):
    """Return what a framework may be able to start."""
    stages, flags = (0, 1, 2, 3), (True, False)
    return Launches(
        axes=some(chance, AXES_OF_LAUNCHES, 4),
        schedules=some(chance, tuple(map(str, ScheduleKind)), 1),
        uneven_stages=chance.random() < 0.5,
        zero_stages=some(chance, stages, 2),
        zero_stages_in_pipelines=some(chance, stages) if chance.random() < 0.5 else None,
        zero_stages_without_pipelines=some(chance, stages) if chance.random() < 0.5 else None,
        zero_stages_with_context=some(chance, stages) if chance.random() < 0.5 else None,
        drops_gathered_weights=some(chance, flags, 1),
        overlaps_data_parallel=some(chance, flags, 1),
        overlaps_tensor_parallel=flags,
        overlaps_expert_parallel=some(chance, flags, 1),
        recomputes_beside_experts=chance.random() < 0.5,
        sequence_parallel=some(chance, flags, 1),
        experts_need_sequence_parallel=chance.random() < 0.5,
        context_kinds=some(chance, tuple(map(str, ContextKind)), 1),
        recompute=some(chance, tuple(map(str, Recompute)), 2),
        recompute_layers=chance.random() < 0.5,
        offload={
            what: some(chance, stages)
            for what in some(chance, ("optimizer", "activations", "weights", "all"))
        },
        axis_orders=(("tp", "tatp", "cp", "dp_shard", "dp_replicate", "pp"),),
        precisions=("bf16",),
        vendors=("nobody",),
    )


def starts(problem, strategy, plan_options):
    """Return whether no rule on what the framework starts is broken."""
    case = Case(problem.model, problem.workload, plan_options, stack([strategy]))
    return not any(rule.breaks(case).any() for rule in launching.rules())


@pytest.mark.parametrize("seed", sampled(LAUNCHED_SEEDS, 5))
def test_search_under_a_framework_returns_the_best_that_it_starts(seed):
    """Every plan is written down without the framework; those that it does not start are left."""
    problem, allowed, plans = space_of(seed)
    launches = launches_of(random.Random(seed))
    software = problem.workload.software.model_copy(
        update={"framework": "some", "launches": launches}
    )
    workload = problem.workload.model_copy(update={"software": software})
    asked = replace(problem, workload=workload)
    overlaps = True in launches.overlaps_data_parallel
    tried = [(s, replace(o, overlap_data_parallel=overlaps)) for s, o in plans]
    left = distinct(plan for plan in tried if starts(asked, *plan))
    truth = brute_force(asked, left, 5)
    times_s = [time_s for time_s, _, _ in truth.fastest]
    try:
        found = searched(asked, allowed)
    except InfeasibleError:
        assert not times_s
        return
    np.testing.assert_allclose([f.time_s for f in found.found[:5]], times_s, rtol=1e-12)
    assert found.gap == 0.0 or not found.found
    for best in found.found[:5]:
        assert starts(asked, best.strategy, best.plan_options)


def test_a_lone_replica_is_no_way_out_of_the_shards_that_are_asked_for():
    """Where two shards are fixed, one replica on all devices is offered under no ZeRO stage."""
    problem = problem_of(model(), system(level(4)))
    fixed = Choices({"dp_shard": (2,), "zero_stage": (1, 2)})
    found = search(SearchSpace(problem, fixed), top=50, prune=False)
    assert {entry.strategy.dp_shard for entry in found.found} == {2.0}
    lone = Choices({"dp": (1,), "cp": (1,), "zero_stage": (2, 3)})
    stages = {f.plan_options.zero_stage for f in search(SearchSpace(problem, lone)).found}
    assert stages == {2}  # ZeRO 3 of one shard is the same plan
