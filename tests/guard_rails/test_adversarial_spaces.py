"""Twenty spaces, each with one candidate that would exploit a cheap term: none of them wins.

Each test names the candidate, shows that the space holds it, and asserts what stops it: the rule
that refuses it, or the part of its price.
"""

from dataclasses import replace
from functools import cache

import pytest
from lawful import assert_lawful
from small_problems import dense, experts, gqa, level, model, problem, system

from meshwright.cost.memory import room_for, shard_degrees
from meshwright.cost.parts import MemoryPart, TimePart
from meshwright.cost.step import price_one
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import (
    ContextKind,
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    make_strategy,
)
from meshwright.train.question import check_problem, make_problem, training
from meshwright.train.search import search
from meshwright.train.space import SearchSpace

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
LEAN = {"recompute": (Recompute.NONE,), "context_kind": (ContextKind.RING,)}


@cache
def asked(name, on, sequence_length, global_batch_size):
    """Return a problem of the catalog."""
    work = training(on, sequence_length=sequence_length, global_batch_size=global_batch_size)
    return make_problem(name, on, work, "uncalibrated")


def winner(task, **allowed):
    """Return the fastest plan of a space with some choices fixed; it breaks no law."""
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in
              (LEAN | allowed).items()}  # fmt: skip
    found = search(SearchSpace(task, Choices(values))).found[0]
    assert_lawful(task, found)
    return found


def step(task, plan_options, **degrees):
    """Return the parts of the time of one plan, which no rule may refuse [s]."""
    assert not rules_broken(task, plan_options, **degrees)
    time = price_one(task, plan_options, make_strategy(**degrees)).step.time
    return {name: float((time[name] + 0.0 * time.total_s)[0]) for name in TimePart}


def rules_broken(task, plan_options, **degrees):
    """Return the names of the rules that refuse a plan."""
    return {fault.path for fault in check_problem(task, make_strategy(**degrees), plan_options)}


def total_s(parts):
    return sum(parts.values())


def fits(task, plan_options, **degrees):
    """Return whether a plan fits."""
    strategy = make_strategy(**degrees)
    priced = price_one(task, plan_options, strategy)
    shards = shard_degrees(task, priced.strategy)
    return bool(room_for(task, plan_options, shards, priced.pipeline.states).fits[0])


def test_01_tensor_parallelism_over_all_hosts():
    """tp 64 has no bubble and shards everything, but speaks over the slow network in each layer."""
    task = asked("llama3-70b", "64xH100", 8192, 1024)
    huge = step(task, replace(PLAIN, sequence_parallel=True), tp=64)
    assert huge["tp_comm_s"] > huge["compute_s"]
    best = winner(task, pp=(1, 2, 4), num_virtual_stages=1)
    assert best.strategy.tp <= 8
    assert best.time_s < total_s(huge)


def test_02_tensor_streams_over_all_dies():
    """tatp 48 has no collective at all; tokens of 48 dies are slivers, or wait for their links."""
    task = asked("gpt3-76b", "wafer-6x8", 2048, 128)
    assert "tatp-rows" in rules_broken(task, PLAIN, tatp=48, micro_batch_size=1)
    everywhere = step(task, PLAIN, tatp=48, micro_batch_size=16)
    assert everywhere["tatp_stream_s"] > 0
    best = winner(task, pp=1, cp=1, sequence_parallel=True)
    assert best.strategy.tatp < 48
    assert best.time_s < total_s(everywhere)


def test_03_slivers_of_a_sequence():
    """cp 8 leaves 64 tokens of 512 on a device: half a tile of the matrix unit."""
    task = asked("llama3-8b", "8xH100", 512, 64)
    sliver = step(task, PLAIN, cp=8)
    assert not rules_broken(task, PLAIN, cp=8)  # it runs, and pays for whole tiles
    assert sliver["compute_s"] > 1.5 * step(task, PLAIN, dp_replicate=8)["compute_s"]
    assert winner(task).strategy.cp < 8


def test_04_two_tokens_for_each_expert():
    """More copies of 64 experts mean less all-to-all; each sees fewer tokens than a tile."""
    task = asked("deepseek-v2-lite", "8xH100", 128, 64)
    assert not rules_broken(task, PLAIN, dp_shard=8, ep=1)  # it runs, and pays for whole tiles
    alone, together = (
        parts["compute_s"] + parts["main_memory_s"]
        for parts in (step(task, PLAIN, dp_replicate=8), step(task, PLAIN, dp_replicate=8, ep=8))
    )
    assert alone > 2.0 * together
    best = winner(task, tp=1, pp=1, cp=1)
    assert best.strategy.ep > 1


def test_05_micro_batches_so_small_that_launches_decide():
    """One short sequence at a time needs the least memory; the host cannot launch that fast."""
    task = problem(model(), system(level(4)), global_batch_size=16)
    small = step(task, PLAIN, dp_replicate=4, micro_batch_size=1)
    assert small["launch_s"] > small["compute_s"]
    assert winner(task, dp=4).strategy.micro_batch_size == 4


def test_06_as_many_virtual_stages_as_layers():
    """One layer in each chunk makes the bubble small, and sends each activation 16 times as often.

    Where a send takes longer than a chunk computes, the sends show.
    """
    slow = system(level(1), level(2, bandwidth=2e8), capacity_bytes=2.0**30)
    task = problem(model(num_layers=16), slow, global_batch_size=8)
    one = step(task, PLAIN, pp=2)
    chunked = step(
        task, replace(PLAIN, schedule=ScheduleKind.INTERLEAVED), pp=2, num_virtual_stages=8
    )
    assert chunked["bubble_s"] < one["bubble_s"]
    assert chunked["pp_comm_s"] > 2 * one["pp_comm_s"]
    best = winner(task, pp=2, micro_batch_size=1)
    assert best.strategy.num_virtual_stages < 8


def test_07_weights_sharded_over_a_slow_network():
    """ZeRO-3 saves the most memory, and gathers all weights for each of 16 micro-batches.

    Two gathers of BF16 weights and a sum of FP32 gradients take as long as an all-reduce of these.
    Nothing is hidden here: the passes of 16 micro-batches hide more than that of the last one.
    """
    slow = system(level(1), level(4, bandwidth=1e9), capacity_bytes=2.0**30)
    task = problem(model(), slow, global_batch_size=64)
    whole = replace(PLAIN, overlap_data_parallel=False)
    sharded = replace(whole, zero_stage=3)
    thrice, once = step(task, sharded, dp_shard=4), step(task, whole, dp_replicate=4)
    assert thrice["dp_comm_s"] > 16 * once["dp_comm_s"]
    assert winner(task, dp=4, micro_batch_size=1).plan_options.zero_stage < 2


def test_08_everything_offloaded():
    """The host is large; its link takes longer than the computation that it could hide behind."""
    host = system(level(4), capacity_bytes=2.0**30, host_bytes=2.0**40)
    task = problem(model(), host)
    everything = step(task, replace(PLAIN, offload=Offload.ALL), dp_replicate=4)
    assert everything["offload_s"] > everything["compute_s"]
    assert winner(task).plan_options.offload is Offload.NONE


def test_09_full_overlap():
    """However long the backward pass, the last bucket shows, and what is hidden slows it."""
    task = asked("llama3-8b", "8xH100", 8192, 8)
    hidden = step(task, PLAIN, dp_replicate=8)
    exposed = step(task, replace(PLAIN, overlap_data_parallel=False), dp_replicate=8)
    assert hidden["dp_comm_s"] >= exposed["dp_comm_s"] / task.model.num_layers
    sigma = task.calibration.overlap_slowdown
    saved_s = exposed["dp_comm_s"] - hidden["dp_comm_s"]
    assert hidden["overlap_slowdown_s"] == pytest.approx(sigma * saved_s)


def test_10_transfers_of_almost_nothing():
    """The smallest model sends next to nothing; each of its collectives still pays its start."""
    task = problem(model(num_layers=1), system(level(4)), sequence_length=16)
    split = step(task, PLAIN, tp=4)
    start_s = task.calibration.collective_launch_s + 1e-6
    calls_per_micro_batch = 4  # two forward, two backward, at least
    assert split["tp_comm_s"] > 8 * calls_per_micro_batch * start_s
    assert winner(task, dp=(1, 4), pp=1, cp=1).strategy.tp == 1


def test_11_interleaving_with_few_micro_batches():
    """Three micro-batches cannot go round four stages in turns of four."""
    task = problem(model(num_layers=8), system(level(4)), global_batch_size=3)
    interleaved = replace(PLAIN, schedule=ScheduleKind.INTERLEAVED)
    broken = rules_broken(task, interleaved, pp=4, num_virtual_stages=2)
    assert "pp-micro-batches" in broken
    assert winner(task, pp=4).strategy.num_virtual_stages == 1


def test_12_context_parallelism_of_short_sequences():
    """A ring of keys hides behind attention over 65536 tokens, and not behind that over 1024."""
    shares = []
    for length in (1024, 65_536):
        task = asked("llama3-8b", "16xH100", length, 64)
        ring = step(task, replace(PLAIN, zero_stage=1), cp=16, micro_batch_size=8)
        shares.append(ring["cp_comm_s"] / ring["compute_s"])
    assert shares[0] > 0.2 > 10 * shares[1]
    assert winner(asked("llama3-8b", "16xH100", 1024, 64), tp=1, pp=1).strategy.cp == 1


def test_13_experts_across_hosts():
    """With ep 8 no expert has a copy whose gradients need a sum; its tokens cross the network."""
    hosts = system(level(4), level(2, bandwidth=1e9), capacity_bytes=2.0**30)
    task = problem(model(experts(8)), hosts, global_batch_size=32, sequence_length=256)
    across = step(task, PLAIN, dp_replicate=8, ep=8, micro_batch_size=4)
    inside = step(task, PLAIN, dp_replicate=8, ep=4, micro_batch_size=4)
    assert across["dp_comm_s"] < inside["dp_comm_s"]
    assert across["ep_comm_s"] > 10 * inside["ep_comm_s"]
    assert winner(task, tp=1, pp=1, cp=1).strategy.ep <= 4


def test_14_tensor_parallelism_over_a_network_for_data_parallelism():
    """Slices are joined by a network that carries dp only: nothing else may cross it."""
    pods = system(level(4), level(2, bandwidth=1e9, data_parallel_only=True))
    task = problem(model(dense(gqa(8, 8))), pods)
    assert "network-data-parallel-only" in rules_broken(task, PLAIN, tp=8)
    assert winner(task, zero_stage=0).strategy.dp > 1


def test_15_memory_exactly_at_capacity():
    """A plan that would fill the memory to the last byte without a margin does not fit."""
    roomy = problem(model(), system(level(4), capacity_bytes=2.0**30))
    used = price_one(roomy, PLAIN, make_strategy(dp_replicate=4)).step.memory[0]
    margin, total = float(used[MemoryPart.MARGIN][0]), float(used.total_bytes[0])
    assert margin == pytest.approx(roomy.calibration.memory_margin_fraction * 2**30)
    full = problem(model(), system(level(4), capacity_bytes=total - margin))
    assert not fits(full, PLAIN, dp_replicate=4)
    spared = (total - margin) / (1 - roomy.calibration.memory_margin_fraction)
    assert fits(problem(model(), system(level(4), capacity_bytes=spared * 1.0001)), PLAIN,
                dp_replicate=4)  # fmt: skip
    result = search(SearchSpace(full, Choices({"dp": (4,), "zero_stage": (0,)})))
    assert result.counts.does_not_fit + result.counts.pruned_by_memory > 0


def test_16_idle_devices():
    """Fewer devices have less to synchronise; they also compute longer."""
    task = asked("llama3-8b", "64xH100", 8192, 512)
    assert winner(task).strategy.num_devices == 64


def test_17_batches_that_do_not_divide():
    """Six replicas of eight sequences: two of them have two each, and all wait for them. No
    framework starts that, so it is refused; priced it is no faster than what divides."""
    task = problem(model(), system(level(6)), global_batch_size=8)
    assert rules_broken(task, PLAIN, dp_replicate=6) == {"dp-even"}
    uneven = price_one(task, PLAIN, make_strategy(dp_replicate=6)).step.time
    even = step(task, PLAIN, dp_replicate=4)
    assert float(uneven["compute_s"][0]) == even["compute_s"]
    assert float(uneven["dp_comm_s"][0]) >= even["dp_comm_s"]
    assert winner(task).strategy.dp in (1, 2, 4)


def test_18_recomputation_for_nothing():
    """Full recomputation keeps least; it repeats the forward pass, so it never wins with room."""
    task = problem(model(), system(level(4), capacity_bytes=2.0**30))
    kept = step(task, PLAIN, dp_replicate=4)
    again = step(task, replace(PLAIN, recompute=Recompute.FULL), dp_replicate=4)
    assert kept["recompute_s"] == 0
    assert again["recompute_s"] > 0.25 * kept["compute_s"]
    assert winner(task, recompute=tuple(Recompute)).plan_options.recompute is Recompute.NONE


def test_19_pipelines_without_micro_batches():
    """Pipelines send least of all; with one micro-batch, seven of eight stages wait."""
    task = asked("llama3-8b", "8xH100", 8192, 8)
    piped = step(task, PLAIN, pp=8, micro_batch_size=8)
    assert piped["bubble_s"] > 4 * piped["compute_s"]
    assert winner(task, tp=1, cp=1).strategy.pp == 1


def test_20_hybrid_sharding():
    """Shards inside a host gather cheaply; their replicas still sum gradients over the network."""
    task = asked("llama3-8b", "64xH100", 8192, 64)
    sharded = replace(PLAIN, zero_stage=1, overlap_data_parallel=False)
    hybrid = step(task, sharded, dp_shard=8, dp_replicate=8)
    inside = step(task, sharded, dp_shard=8, micro_batch_size=8)
    network = task.system.levels[1]
    shard_bytes = 8.03e9 / 8 * task.workload.optimizer.reduced_gradient_bytes_per_param
    at_best_s = shard_bytes / (network.bandwidth_bytes_per_s * network.links_per_device)
    assert hybrid["dp_comm_s"] - inside["dp_comm_s"] > at_best_s
