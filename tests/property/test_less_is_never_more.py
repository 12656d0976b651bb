"""Less of a resource is never better: not for a stated strategy, not for the best plan.

Questions are of the catalog. In models so small that launches take nearly all of a pass, rings and
streams that hide behind computation may break the law by less than three per cent, because launches
hide behind the same computation.
"""

import random
from dataclasses import replace

import pytest

from meshwright.base.arrays import number_at
from meshwright.base.errors import InfeasibleError
from meshwright.catalog.systems import load_system
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_one
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import (
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    make_strategy,
    plan_string,
)
from meshwright.train.question import check_problem, make_problem, training
from meshwright.train.search import search
from meshwright.train.space import SearchSpace

TOLERANCE = 1.0 + 1e-4
"""Of chunks that send while others compute, and of rounding."""
SYSTEMS = ("8xH100", "16xH100", "32xA100", "64xH100", "16xB200", "8xL40S", "16xMI300X")
MODELS = ("llama3-8b", "qwen3-14b", "mixtral-8x7b", "qwen3-30b-a3b", "llama3-70b")
FRAMEWORKS = (None, "megatron", "torchtitan", "accelerate", "deepspeed", "fsdp")


def with_levels(system, **factors):
    levels = tuple(
        level.model_copy(update={n: getattr(level, n) * by for n, by in factors.items()})
        for level in system.levels
    )
    return system.model_copy(update={"levels": levels})


def with_memory(system, **factors):
    main = system.chip.main_memory
    less = main.model_copy(update={n: getattr(main, n) * by for n, by in factors.items()})
    memories = (*system.chip.memories[:-1], less)
    return system.model_copy(update={"chip": system.chip.model_copy(update={"memories": memories})})


def with_flops(system, factor):
    rates = {dtype: rate * factor for dtype, rate in system.chip.matmul_flops_per_s.items()}
    chip = system.chip.model_copy(update={"matmul_flops_per_s": rates})
    return system.model_copy(update={"chip": chip})


def with_host(system, **factors):
    host = system.host
    update = {n: getattr(host, n) * by for n, by in factors.items()}
    return system.model_copy(update={"host": host.model_copy(update=update)})


LESS = {
    "FLOP/s": lambda system: with_flops(system, 0.5),
    "memory bandwidth": lambda system: with_memory(system, bandwidth_bytes_per_s=0.5),
    "memory": lambda system: with_memory(system, capacity_bytes=0.5),
    "network": lambda system: with_levels(system, bandwidth_bytes_per_s=0.5),
    "latency": lambda system: with_levels(system, latency_s=2.0),
    "host link": lambda system: with_host(system, bandwidth_bytes_per_s=0.5),
    "host rate": lambda system: with_host(system, memory_bandwidth_bytes_per_s=0.5),
    "host memory": lambda system: with_host(system, capacity_bytes=0.5),
}


def lesser(task: Problem, resource: str) -> Problem:
    """Return the problem with half of a resource, or twice the latency."""
    return replace(task, system=LESS[resource](task.system))


def random_question(chance) -> Problem:
    system, framework = load_system(chance.choice(SYSTEMS)), chance.choice(FRAMEWORKS)
    named = {} if framework is None else {"framework": framework}
    work = training(
        system, global_batch_size=system.num_devices * chance.choice([1, 2, 8]),
        sequence_length=chance.choice([1024, 4096, 8192]), **named,
    )  # fmt: skip
    return make_problem(chance.choice(MODELS), system, work, "calibrated")


def random_plan(chance, task):
    """Return a random strategy with its options; None where no whole replica is left."""
    tp, pp, cp = chance.choice([1, 2, 4, 8]), chance.choice([1, 2, 4]), chance.choice([1, 1, 2])
    chunks = chance.choice([1, 2]) if pp > 1 else 1
    kinds = [kind for kind in ScheduleKind if kind is not ScheduleKind.INTERLEAVED]
    schedule = chance.choice(kinds) if pp > 1 else ScheduleKind.ONE_F_ONE_B
    strategy = make_strategy(
        tp=tp, pp=pp, cp=cp, dp_shard=task.system.num_devices // (tp * pp * cp),
        num_virtual_stages=chunks, micro_batch_size=chance.choice([1, 2]),
        ep=chance.choice([1, 2, 4]) if task.num_experts else 1,
    )  # fmt: skip
    plan_options = PlanOptions(
        sequence_parallel=tp > 1,
        zero_stage=chance.choice([0, 1, 2, 3]),
        reshard_after_forward=chance.random() < 0.6,
        recompute=chance.choice(list(Recompute)),
        schedule=ScheduleKind.INTERLEAVED if chunks > 1 else schedule,
        offload=chance.choice([Offload.NONE, Offload.NONE, Offload.NONE, *Offload]),
    )
    return None if strategy.dp_shard < 1 else (strategy, plan_options)


def legal_question(chance):
    """Return a question with a plan that no rule but those of its framework refuses."""
    while True:
        task = random_question(chance)
        free = task.workload.software.model_copy(update={"launches": None})
        unbound = replace(task, workload=task.workload.model_copy(update={"software": free}))
        plan = random_plan(chance, task)
        if plan is not None and not check_problem(unbound, *plan):
            return task, *plan


def worse_strategies(seed):
    """Return what less of a resource makes faster, of a plan of a random question."""
    task, strategy, plan_options = legal_question(random.Random(seed))

    def step_s(asked):
        return number_at(price_one(asked, plan_options, strategy).step.time.total_s)

    whole_s, found = step_s(task), []
    for resource in LESS:
        less_s = step_s(lesser(task, resource))
        if whole_s > less_s * TOLERANCE:
            found.append((seed, resource, whole_s / less_s, plan_string(strategy, plan_options)))
    return found


def best_s(task) -> float:
    """Return the time of the best plan [s]; infinite where nothing fits."""
    try:
        found = search(SearchSpace(task, Choices())).found
    except InfeasibleError:
        return float("inf")
    return found[0].time_s if found else float("inf")


def worse_plans(seed, resources):
    """Return what less of a resource makes better, of the best plan of a random question."""
    task, found = random_question(random.Random(seed)), []
    whole_s = best_s(task)
    for resource in resources:
        less_s = best_s(lesser(task, resource))
        if whole_s > less_s * TOLERANCE:
            found.append((seed, resource, whole_s / less_s, task.model.name, task.system.name))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_less_of_a_resource_never_makes_a_strategy_faster(seed):
    assert worse_strategies(seed) == []


@pytest.mark.parametrize("resource", ["FLOP/s", "memory", "network", "host memory"])
def test_less_of_a_resource_never_makes_the_best_plan_better(resource):
    assert worse_plans(3, [resource]) == []


@pytest.mark.slow
def test_a_campaign_of_strategies():
    assert [bad for seed in range(500) for bad in worse_strategies(seed)] == []


@pytest.mark.slow
def test_a_campaign_of_plans():
    assert [bad for seed in range(40) for bad in worse_plans(seed, LESS)] == []
