"""The price of serving: a pass for columns of strategies, its memory, and derived figures."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from operator import add

import numpy as np

from meshwright.base.arrays import Num, ceil_div, larger, positive_part, smaller, where
from meshwright.cost.energy import dynamic_parts_j, link_energy_j, system_parts_j, total_energy_j
from meshwright.cost.memory import num_axes
from meshwright.cost.money import step_cost_usd
from meshwright.cost.parts import by_field
from meshwright.serve.closed_loop import LoopOf, LoopState, requests_per_s, steady, together
from meshwright.serve.operators import PASS_TIME_PARTS, PassCost, PassTimes, host_of_prompt_s
from meshwright.serve.passes import (
    PassPrice,
    RequestPasses,
    ServingProblem,
    StageHeld,
    loop_of,
    passes_of,
    reserved_bytes,
)
from meshwright.sharding.strategy import PlanOptions, StrategyColumns, StrategyOf
from meshwright.spec.workload import Decode, Server


@dataclass(frozen=True)
class ServingMemory:
    """Memory of one device [bytes]; the parts sum to ``total_bytes``."""

    weights_bytes: Num
    kv_cache_bytes: Num
    """Keys and values of all sequences in flight."""
    working_bytes: Num
    """Largest transient of an operator, and the residual streams between stages."""
    buffers_bytes: Num
    """Runtime and communication library."""
    margin_bytes: Num
    """Memory that the server leaves free."""

    @property
    def total_bytes(self) -> Num:
        """Sum of all parts [bytes]."""
        total: Num = reduce(add, [getattr(self, name) for name in SERVING_MEMORY_PARTS])
        return total


SERVING_MEMORY_PARTS = tuple(entry.name for entry in fields(ServingMemory))


def buffers_bytes(
    strategy: StrategyOf[Num], runtime_bytes: Num, communicator_bytes: Num
) -> Num:  # fmt: skip
    """Return the buffers of runtime and communication library on one device of a replica [bytes].

    Replicas do not communicate with each other, so only axes inside one replica have communicators.
    """
    axes = num_axes(strategy.tp, strategy.cp, strategy.ep, strategy.pp)
    return runtime_bytes + communicator_bytes * axes


MOST_OF_PASS = 0.5
"""Largest share of the memory beside weights and buffers that a pass may take; larger passes are
cut."""


@dataclass(frozen=True)
class CacheRoom:
    """Room for the cache on one device, and its limits [bytes]."""

    cache_bytes: Num
    """Room for keys and values; below 0, weights and passes alone do not fit."""
    working_bytes: Num
    """Room for the transients of the largest pass."""
    margin_bytes: Num
    """Memory that the server leaves free."""

    def sequences(self, each_bytes: Num) -> Num:
        """Return the sequences of this size that have room; infinity without any cache."""
        free = positive_part(self.cache_bytes)
        return where(each_bytes > 0, free / where(each_bytes > 0, each_bytes, 1.0), np.inf)


def cache_room(
    server: Server, capacity_bytes: float, weights_bytes: Num, buffers: Num, working_bytes: Num,
    reserved_bytes: Num,
) -> CacheRoom:  # fmt: skip
    """Return the room for the cache that a server leaves on one device.

    With the share f that it fills, of capacity C, beside weights W, buffers B and the largest pass
    P,

        f C - W - B - P,   or   f (C - W - B - P)

    where the share applies to the rest. Weights of 40 GiB, buffers of 2 GiB and a pass of 1 GiB
    leave 0.9 x 80 - 43 = 29 GiB, or 0.9 x 37 = 33.3 GiB.

    Parameters
    ----------
    working_bytes
        Transients of the pass that is priced.
    reserved_bytes
        Transients of the largest pass of the server, which is cut where it would take more than
        ``MOST_OF_PASS`` of the memory beside weights and buffers.

    Source: vLLM 0.33, ``v1/worker/gpu_worker.py``, ``determine_available_memory``; TensorRT-LLM,
    ``free_gpu_memory_fraction``; SGLang 0.5.23, ``mem_fraction_static`` (2026-11).
    """
    fraction = server.memory_fraction
    filled = capacity_bytes if server.of_free_memory else fraction * capacity_bytes
    left = filled - weights_bytes - buffers
    pass_bytes = smaller(reserved_bytes, MOST_OF_PASS * positive_part(left))
    pass_bytes = larger(working_bytes, pass_bytes)
    free = left - pass_bytes
    if server.of_free_memory:
        margin = (1.0 - fraction) * positive_part(free)
    else:
        margin = capacity_bytes - filled + 0.0 * free
    return CacheRoom(free - margin * float(server.of_free_memory), pass_bytes, margin)


@dataclass(frozen=True)
class ServingTime(PassTimes):
    """Time to the first token, or per output token, of one group of sequences; numbers or columns.

    Its parts are those of all stages.
    """

    pp_comm_s: Num
    host_s: Num
    """Time of the server outside the kernels of a pass [s]."""
    draft_s: Num
    """Time of the passes of a draft, for tokens that the pass checks [s]."""
    wait_s: Num
    """Decode: time until the slowest stage has served the other groups [s]."""
    jitter_s: Num
    """Time of waiting for the slowest of the devices that work together [s]."""


SERVING_TIME_PARTS = tuple(entry.name for entry in fields(ServingTime))


@dataclass(frozen=True)
class ServingPrice:
    """The price of serving for columns of strategies."""

    strategy: StrategyColumns
    plan_options: PlanOptions
    num_groups: Num
    """Groups of ``micro_batch_size`` sequences that one replica holds at once."""
    time: ServingTime
    latency_s: Num
    """Time to the first token (prefill) or per output token (decode) [s]."""
    bottleneck_s: Num
    """Time between two passes through the slowest stage [s]."""
    sequences_in_flight: Num
    """Sequences in flight on the whole system."""
    tokens_per_s: Num
    """Throughput of the whole system: prompt tokens, or output tokens [tokens/s]."""
    tokens_per_s_per_user: Num
    """Throughput of one sequence [tokens/s]."""
    memory: tuple[ServingMemory, ...]
    """Memory of a device of the first, the fullest middle and the last stage."""
    most_sequences: Num
    """Most sequences that the cache of the whole system holds."""
    cache_tokens: Num
    """Most tokens that the cache of one replica holds, as servers print it."""
    flops: Num
    """FLOPs of one pass of one group, on one device of each stage together [FLOP]."""
    traffic_bytes: Num
    link_bytes: Num
    first_token_s: Num | None = None
    """With requests: mean time from sending a request to its first token [s]."""

    @property
    def memory_bytes(self) -> Num:
        """Memory of the fullest device [bytes]."""
        return reduce(larger, [use.total_bytes for use in self.memory])


def price_serving(
    problem: ServingProblem, plan_options: PlanOptions, strategy: StrategyColumns, num_groups: Num
) -> ServingPrice:
    """Return the price of each row of the columns, all under one set of plan options.

    Parameters
    ----------
    strategy
        Degrees; ``micro_batch_size`` is the number of sequences that pass together.
    num_groups
        Such groups in flight in each replica, at most pp: more of them only wait for each other.
    """
    passes = passes_of(problem, plan_options, strategy)
    reserved = reserved_bytes(problem, plan_options, strategy)
    return with_groups(problem, plan_options, strategy, passes, num_groups, reserved)


def with_groups(
    problem: ServingProblem, plan_options: PlanOptions, strategy: StrategyColumns,
    passes: PassPrice,
    num_groups: Num, reserved: tuple[Num, ...],
) -> ServingPrice:  # fmt: skip
    """Return the price of serving with groups of sequences that each make these passes.

    Parameters
    ----------
    reserved
        Bytes for the largest pass of the server, of each stage.
    """
    sequences = strategy.micro_batch_size * num_groups
    if problem.is_decode:
        sequences = smaller(sequences, ceil_div(problem.workload.batch_size, strategy.dp))
    work, clients = problem.workload, None
    if passes.requests is not None and isinstance(work, Decode):
        request = float(work.prompt_length or 0), float(work.answer_length)
        clients = price_clients(problem, strategy, passes.requests, sequences, request, num_groups)
        passes, time = clients.passes, clients.time
    else:
        time = _times(problem, strategy, passes, num_groups)
    bottleneck_s = passes.slowest_s * (1.0 + passes.jitter)
    latency_s, whole = time.total_s, passes.whole
    rates = _rates(problem, strategy, latency_s, bottleneck_s, sequences, clients)
    memory, room = _memories(problem, strategy, passes, sequences, reserved)
    return ServingPrice(
        strategy, plan_options, num_groups, time, latency_s, bottleneck_s, *rates, memory,
        np.floor(room) * strategy.dp, np.floor(room * problem.cached_length),
        whole.flops, whole.traffic_bytes, whole.link_bytes,
        None if clients is None else clients.first_s,
    )  # fmt: skip


@dataclass(frozen=True)
class ClientsPrice:
    """Clients of one replica, each of which sends a request when another one ends."""

    passes: PassPrice
    """Mean pass, with the prompts that it carries."""
    time: ServingTime
    """Time per output token [s]."""
    first_s: Num
    """Mean time from sending a request to its first token [s]."""
    loop: LoopOf[Num]
    state: LoopState[Num]


def price_clients(
    problem: ServingProblem, strategy: StrategyOf[Num], made: RequestPasses, clients: Num,
    request: tuple[Num, Num], num_groups: Num, *, are_equal: bool = False,
    stay_together: bool = False,
) -> ClientsPrice:  # fmt: skip
    """Return the steady state of clients: the one model of requests, in plans and in validation.

    Parameters
    ----------
    clients
        Requests in flight on one replica.
    request
        Tokens of prompt and answer.
    are_equal
        All requests have the same length.
    stay_together
        Prompts pass before any answer goes on, so that requests which start together end so.
    """
    prompt, answer = request
    steps = prompt, answer / problem.tokens_per_step
    loop = loop_of(made, strategy, clients, steps, num_groups, problem, are_equal=are_equal)
    state = together(loop) if stay_together else steady(loop)
    passes = made.mean(state.prompts_of_step / num_groups)
    time = _times(problem, strategy, passes, num_groups)
    first_s = state.first_s + host_of_prompt_s(problem.constants, prompt)
    return ClientsPrice(passes, time, first_s, loop, state)


def _rates(
    problem: ServingProblem, strategy: StrategyColumns, latency_s: Num, bottleneck_s: Num,
    sequences: Num, clients: ClientsPrice | None,
) -> tuple[Num, Num, Num]:  # fmt: skip
    """Return sequences in flight, tokens/s of the system, and tokens/s of one sequence.

    Decode is a closed loop: every sequence in flight makes one token in each pass, so tokens/s
    times the time per token are the sequences in flight (Little's law); of whole requests each
    client waits for the first token too. Prefill is a stream of prompts at the pace of the slowest
    stage.
    """
    length, work = float(problem.pass_length), problem.workload
    if isinstance(work, Decode):
        in_flight = smaller(work.batch_size, sequences * strategy.dp)
        tokens_per_s: Num = in_flight / latency_s
        if clients is not None:
            answer = float(work.answer_length)
            tokens_per_s = answer * requests_per_s(in_flight, clients.first_s, latency_s, answer)
        return in_flight, tokens_per_s, 1.0 / latency_s
    prompts_per_s = strategy.micro_batch_size * strategy.dp / bottleneck_s
    return prompts_per_s * latency_s, prompts_per_s * length, length / latency_s


def _times(
    problem: ServingProblem, strategy: StrategyOf[Num], passes: PassPrice, num_groups: Num
) -> ServingTime:
    """Return the parts of the latency: a token visits every stage, in decode also on the way back.

    With m groups a stage is visited m times before the same group comes again, so a round takes
    at least m times the slowest stage. A step may yield several tokens.
    """
    sends = strategy.pp - 1.0 + float(problem.is_decode) * (strategy.pp > 1)
    pp_comm_s = sends * passes.send_s
    pass_s = passes.whole.total_s + pp_comm_s + passes.host_s + passes.draft_s
    waits = (num_groups > 1) * float(problem.is_decode)
    wait_s = positive_part(num_groups * passes.slowest_s - pass_s) * waits
    of_step = ServingTime(
        **{name: getattr(passes.whole, name) for name in PASS_TIME_PARTS},
        pp_comm_s=pp_comm_s,
        host_s=passes.host_s,
        draft_s=passes.draft_s,
        wait_s=wait_s,
        jitter_s=(pass_s + wait_s) * passes.jitter,
    )
    return by_field(lambda part: part / problem.tokens_per_step, of_step)


def _memories(
    problem: ServingProblem, strategy: StrategyColumns, passes: PassPrice, sequences: Num,
    reserved: tuple[Num, ...],
) -> tuple[tuple[ServingMemory, ...], Num]:  # fmt: skip
    """Return the memory of the first, middle and last stage, and the sequences with room in all."""
    uses, rooms = [], []
    for held, most in zip(passes.held, reserved, strict=True):
        buffers, room = held_room(problem, strategy, held, held.working_bytes, most)
        use = ServingMemory(
            weights_bytes=held.weights_bytes,
            kv_cache_bytes=held.cache_bytes * sequences,
            working_bytes=room.working_bytes,
            buffers_bytes=buffers,
            margin_bytes=room.margin_bytes,
        )
        uses.append(use)
        rooms.append(room.sequences(held.cache_bytes))
    return tuple(uses), reduce(smaller, rooms)


def held_room(
    problem: ServingProblem, strategy: StrategyOf[Num], held: StageHeld, working_bytes: Num,
    reserved: Num,
) -> tuple[Num, CacheRoom]:  # fmt: skip
    """Return the buffers of a device of a stage, and the room beside them and the weights."""
    constants, capacity = problem.calibration, problem.system.chip.main_memory.capacity_bytes
    buffers = buffers_bytes(
        strategy, constants.communication_buffer_bytes, constants.communicator_bytes
    ) + 0.0 * held.weights_bytes  # fmt: skip
    room = cache_room(
        problem.server, capacity, held.weights_bytes, buffers, working_bytes, reserved
    )
    return buffers, room


MILLION = 1.0e6


def energy_j_of_second(
    problem: ServingProblem, strategy: StrategyOf[Num], passes: Num, busy_s: Num,
    work: ServingPrice | PassCost,
) -> Num:  # fmt: skip
    """Return the energy of all devices in a second [J]; NaN: not known.

    Parameters
    ----------
    passes
        Passes that each device has its part in.
    busy_s
        Seconds of a pass in which a device computes.
    work
        FLOPs and bytes of a pass.
    """
    system, one_second = problem.system, 1.0 + 0.0 * passes
    dynamic_j = dynamic_parts_j(
        system.chip, passes * busy_s, passes * work.flops, passes * work.traffic_bytes,
        link_energy_j(system, passes * work.link_bytes),
    )  # fmt: skip
    parts_j = system_parts_j(system, dynamic_j, one_second, strategy.num_devices)
    return total_energy_j(parts_j, one_second)


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
    energy = energy_j_of_second(problem, strategy, passes, busy_s, price)
    one_second = 1.0 + 0.0 * rounds
    rent = step_cost_usd(system.chip, one_second, strategy.num_devices)
    millions = price.tokens_per_s / MILLION
    return energy / millions, rent / millions
