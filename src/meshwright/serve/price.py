"""The price of serving: a pass for columns of strategies, its memory, and derived figures."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from operator import add

import numpy as np

from meshwright.base.arrays import Num, ceil_div, larger, positive_part, smaller, where
from meshwright.cost.energy import (
    dynamic_parts_j,
    link_energy_j,
    step_cost_usd,
    system_parts_j,
    total_energy_j,
)
from meshwright.cost.memory import num_axes
from meshwright.serve.closed_loop import steady
from meshwright.serve.operators import PASS_TIME_PARTS
from meshwright.serve.passes import PassPrice, ServingProblem, loop_of, passes_of
from meshwright.sharding.strategy import PlanOptions, StrategyColumns, StrategyOf
from meshwright.spec.workload import Decode


@dataclass(frozen=True)
class ServingMemory:
    """Memory of one device [bytes]; the parts sum to ``total_bytes``."""

    weights_bytes: Num
    kv_cache_bytes: Num
    """Keys and values of all sequences in flight."""
    working_bytes: Num
    """Largest transient of an operator, and the residual streams that arrive and leave."""
    buffers_bytes: Num
    """Runtime and communication library."""
    margin_bytes: Num
    """Left free for fragmentation."""

    @property
    def total_bytes(self) -> Num:
        """All of it [bytes]."""
        total: Num = reduce(add, [getattr(self, name) for name in SERVING_MEMORY_PARTS])
        return total


SERVING_MEMORY_PARTS = tuple(entry.name for entry in fields(ServingMemory))


def buffers_bytes(
    strategy: StrategyOf[Num], runtime_bytes: Num, communicator_bytes: Num
) -> Num:  # fmt: skip
    """Return what runtime and communication library take on one device of a replica [bytes].

    Replicas do not speak with each other, so only axes inside of one have communicators.
    """
    axes = num_axes(strategy.tp, strategy.cp, strategy.ep, strategy.pp)
    return runtime_bytes + communicator_bytes * axes


def most_sequences(use: ServingMemory, cache_bytes: Num, capacity_bytes: float) -> Num:
    """Return the sequences whose cache fits in the memory left over; infinity without any cache.

    Parameters
    ----------
    cache_bytes
        Cache of one sequence on this device [bytes].
    """
    free = positive_part(capacity_bytes - (use.total_bytes - use.kv_cache_bytes))
    return where(cache_bytes > 0, np.floor(free / where(cache_bytes > 0, cache_bytes, 1.0)), np.inf)


@dataclass(frozen=True)
class ServingTime:
    """What a token of one group of sequences takes, or its prompts, through all stages [s]."""

    matmul_compute_s: Num
    """Matrix products that arithmetic limits [s]."""
    matmul_memory_s: Num
    """Matrix products that reading weights limits [s]."""
    attention_s: Num
    elementwise_s: Num
    launch_s: Num
    reduction_s: Num
    """Sums over the cores of a chip, one after another [s]."""
    tp_comm_s: Num
    cp_comm_s: Num
    ep_comm_s: Num
    pp_comm_s: Num
    host_s: Num
    """Of the server outside the kernels of a pass [s]."""
    draft_s: Num
    """Passes of a draft whose tokens the pass checks [s]."""
    wait_s: Num
    """Decode: until the slowest stage has served the other groups [s]."""
    jitter_s: Num
    """Waiting for the slowest of the devices that work together [s]."""

    @property
    def total_s(self) -> Num:
        """Time to the first token, or per output token: the sum of the parts [s]."""
        total: Num = reduce(add, [getattr(self, name) for name in SERVING_TIME_PARTS])
        return total

    def over(self, tokens: float) -> ServingTime:
        """Return the time for each of some tokens that a pass yields."""
        return ServingTime(**{name: part / tokens for name, part in vars(self).items()})


SERVING_TIME_PARTS = tuple(entry.name for entry in fields(ServingTime))


@dataclass(frozen=True)
class ServingPrice:
    """The price of serving for columns of strategies."""

    strategy: StrategyColumns
    structure: PlanOptions
    num_groups: Num
    """Groups of ``micro_batch_size`` sequences that one replica holds at once."""
    time: ServingTime
    latency_s: Num
    """Time to the first token (prefill) or per output token (decode) [s]."""
    bottleneck_s: Num
    """Time between two passes through the slowest stage [s]."""
    sequences_in_flight: Num
    """On the whole system."""
    tokens_per_s: Num
    """Of the whole system: prompt tokens, or output tokens."""
    tokens_per_s_per_user: Num
    """Of one sequence."""
    memory: tuple[ServingMemory, ...]
    """Of the first, the fullest middle and the last stage."""
    most_sequences: Num
    """Sequences of the whole system for whose cache there is room."""
    flops: Num
    """Of one pass of one group, on one device of each stage together [FLOP]."""
    traffic_bytes: Num
    link_bytes: Num
    first_token_s: Num | None = None
    """Of requests: mean, from when a request is sent to its first token [s]."""

    @property
    def memory_bytes(self) -> Num:
        """Memory of the fullest device [bytes]."""
        return reduce(larger, [use.total_bytes for use in self.memory])


def price_serving(
    problem: ServingProblem, structure: PlanOptions, strategy: StrategyColumns, num_groups: Num
) -> ServingPrice:
    """Return the price of each row of the columns, all under one structure.

    Parameters
    ----------
    strategy
        Degrees; ``micro_batch_size`` is the number of sequences that pass together.
    num_groups
        Such groups in flight in each replica, at most pp: more of them only wait for each other.
    """
    passes = passes_of(problem, structure, strategy)
    return with_groups(problem, structure, strategy, passes, num_groups)


def with_groups(
    problem: ServingProblem, structure: PlanOptions, strategy: StrategyColumns, passes: PassPrice,
    num_groups: Num,
) -> ServingPrice:  # fmt: skip
    """Return the price of serving with groups of sequences that each make these passes."""
    sequences = strategy.micro_batch_size * num_groups
    if problem.is_decode:
        sequences = smaller(sequences, ceil_div(problem.workload.batch_size, strategy.dp))
    first_s, work = None, problem.workload
    if passes.requests is not None and isinstance(work, Decode):
        steps = work.answer_length / problem.tokens_per_step
        request = float(work.prompt_length or 0), steps
        loop = loop_of(passes.requests, strategy, sequences, request, num_groups, problem)
        state = steady(loop)
        first_s = state.first_s + problem.constants.host_prompt_s
        passes = passes.requests.mean(state.prompts_of_step / num_groups)
    time = _times(problem, strategy, passes, num_groups).over(problem.tokens_per_step)
    bottleneck_s = passes.slowest_s * (1.0 + passes.jitter)
    latency_s, whole = time.total_s, passes.whole
    rates = _rates(problem, strategy, latency_s, bottleneck_s, sequences)
    memory, room = _memories(problem, strategy, passes, sequences)
    return ServingPrice(
        strategy, structure, num_groups, time, latency_s, bottleneck_s, *rates, memory,
        room * strategy.dp, whole.flops, whole.traffic_bytes, whole.link_bytes,
        first_s,
    )  # fmt: skip


def _rates(
    problem: ServingProblem, strategy: StrategyColumns, latency_s: Num, bottleneck_s: Num,
    sequences: Num,
) -> tuple[Num, Num, Num]:  # fmt: skip
    """Return sequences in flight, tokens/s of the system, and tokens/s of one sequence.

    Decode is a closed loop: every sequence in flight makes one token in each pass, so tokens/s
    times the time per token are the sequences in flight (Little's law). Prefill is a stream of
    prompts at the pace of the slowest stage.
    """
    length = float(problem.pass_length)
    if problem.is_decode:
        in_flight = smaller(problem.workload.batch_size, sequences * strategy.dp)
        return in_flight, in_flight / latency_s, 1.0 / latency_s
    prompts_per_s = strategy.micro_batch_size * strategy.dp / bottleneck_s
    return prompts_per_s * latency_s, prompts_per_s * length, length / latency_s


def _times(
    problem: ServingProblem, strategy: StrategyColumns, passes: PassPrice, num_groups: Num
) -> ServingTime:
    """Return the parts of the latency: a token visits every stage, in decode also on the way back.

    With m groups a stage is visited m times before the same group comes again, so a round takes
    at least m times the slowest stage.
    """
    sends = strategy.pp - 1.0 + float(problem.is_decode) * (strategy.pp > 1)
    pp_comm_s = sends * passes.send_s
    pass_s = passes.whole.total_s + pp_comm_s + passes.host_s + passes.draft_s
    waits = (num_groups > 1) * float(problem.is_decode)
    wait_s = positive_part(num_groups * passes.slowest_s - pass_s) * waits
    return ServingTime(
        **{name: getattr(passes.whole, name) for name in PASS_TIME_PARTS},
        pp_comm_s=pp_comm_s,
        host_s=passes.host_s,
        draft_s=passes.draft_s,
        wait_s=wait_s,
        jitter_s=(pass_s + wait_s) * passes.jitter,
    )


def _memories(
    problem: ServingProblem, strategy: StrategyColumns, passes: PassPrice, sequences: Num
) -> tuple[tuple[ServingMemory, ...], Num]:
    """Return the memory of the first, middle and last stage, and the sequences with room in all."""
    capacity = problem.system.chip.main_memory.capacity_bytes
    calibration = problem.calibration
    buffers = buffers_bytes(
        strategy, calibration.communication_buffer_bytes, calibration.communicator_bytes
    )
    uses, rooms = [], []
    for held in passes.held:
        zero = 0.0 * held.weights_bytes
        use = ServingMemory(
            weights_bytes=held.weights_bytes,
            kv_cache_bytes=held.cache_bytes * sequences,
            working_bytes=held.working_bytes,
            buffers_bytes=buffers + zero,
            margin_bytes=calibration.memory_margin_fraction * capacity + zero,
        )
        uses.append(use)
        rooms.append(most_sequences(use, held.cache_bytes, capacity))
    return tuple(uses), reduce(smaller, rooms)


def fullest_use(price: ServingPrice) -> tuple[ServingMemory, Num]:
    """Return the memory of the fullest stage, and the index of that stage in ``memory``."""
    best, index = price.memory[0], price.memory[0].total_bytes * 0.0
    for number, use in enumerate(price.memory[1:], start=1):
        wins = use.total_bytes > best.total_bytes
        parts = {
            name: where(wins, getattr(use, name), getattr(best, name))
            for name in SERVING_MEMORY_PARTS
        }
        best, index = ServingMemory(**parts), where(wins, float(number), index)
    return best, index


MILLION = 1.0e6


def per_million_tokens(problem: ServingProblem, price: ServingPrice) -> tuple[Num, Num]:
    """Return energy [J] and rent [USD] of the devices in use for a million tokens; NaN: unknown.

    Over a second, every device runs its share of the passes that make the tokens of a second.
    """
    system, strategy, time = problem.system, price.strategy, price.time
    step_s = price.latency_s * problem.tokens_per_step
    rounds = 1.0 / (step_s if problem.is_decode else price.bottleneck_s)
    groups = price.num_groups if problem.is_decode else 1.0
    passes = rounds * groups / strategy.pp
    busy_s = time.matmul_compute_s + time.matmul_memory_s + time.attention_s + time.elementwise_s
    busy_s = (busy_s + time.draft_s) * problem.tokens_per_step
    one_second = 1.0 + 0.0 * rounds
    dynamic_j = dynamic_parts_j(
        system.chip, passes * busy_s, passes * price.flops, passes * price.traffic_bytes,
        link_energy_j(system, passes * price.link_bytes),
    )  # fmt: skip
    parts_j = system_parts_j(system, dynamic_j, one_second, strategy.num_devices)
    energy = total_energy_j(parts_j, one_second)
    rent = step_cost_usd(system.chip, one_second, strategy.num_devices)
    millions = price.tokens_per_s / MILLION
    return energy / millions, rent / millions
