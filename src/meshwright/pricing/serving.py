"""The price of serving: one pass of prefill or decode for columns of strategies.

Sampling, the way of the cache from prefill to decode, and queues before the first stage are not
priced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any

from meshwright.base.arrays import ceil_div, larger, positive_part, smaller, where
from meshwright.cost.layer_price import comm_cost, parameters_on_device
from meshwright.cost.local import LocalLayer
from meshwright.cost.serving.memory import SERVING_MEMORY_PARTS, ServingMemory, most_sequences
from meshwright.cost.serving.operators import cached_tokens, cached_words_per_token
from meshwright.cost.serving.passes import (
    PASS_TIME_PARTS,
    PassCost,
    layer_forward,
    live_bytes,
    pass_cost,
    sum_of_passes,
)
from meshwright.cost.stage import POSITIONS, StageLayout, stage_layout
from meshwright.graph.op import LayerGraph, Phase
from meshwright.pricing.layers import Collectives
from meshwright.pricing.price import send_s
from meshwright.pricing.serving_problem import ServingProblem
from meshwright.pricing.steps import jitter_fraction
from meshwright.strategy.strategy import StrategyColumns, StrategyOf, Structure


@dataclass(frozen=True)
class ServingTime:
    """What one pass of one group of sequences takes, through all stages [s]."""

    matmul_compute_s: Any
    """Matrix products that arithmetic limits [s]."""
    matmul_memory_s: Any
    """Matrix products that reading weights limits [s]."""
    attention_s: Any
    elementwise_s: Any
    launch_s: Any
    tp_comm_s: Any
    cp_comm_s: Any
    ep_comm_s: Any
    pp_comm_s: Any
    wait_s: Any
    """Decode: until the slowest stage has served the other groups [s]."""
    jitter_s: Any
    """Waiting for the slowest of the devices that work together [s]."""

    @property
    def total_s(self) -> Any:
        """Time to the first token, or per output token: the sum of the parts [s]."""
        return reduce(add, [getattr(self, name) for name in SERVING_TIME_PARTS])


SERVING_TIME_PARTS = tuple(entry.name for entry in fields(ServingTime))


@dataclass(frozen=True)
class ServingPrice:
    """The price of serving for columns of strategies."""

    strategy: StrategyColumns
    structure: Structure
    num_groups: Any
    """Groups of ``micro_batch_size`` sequences that one replica holds at once."""
    time: ServingTime
    latency_s: Any
    """Time to the first token (prefill) or per output token (decode) [s]."""
    bottleneck_s: Any
    """Time between two passes through the slowest stage [s]."""
    sequences_in_flight: Any
    """On the whole system."""
    tokens_per_s: Any
    """Of the whole system: prompt tokens, or output tokens."""
    tokens_per_s_per_user: Any
    """Of one sequence."""
    memory: tuple[ServingMemory, ...]
    """Of the first, the fullest middle and the last stage."""
    most_sequences: Any
    """Sequences of the whole system for whose cache there is room."""
    flops: Any
    """Of one pass of one group, on one device of each stage together [FLOP]."""
    traffic_bytes: Any
    link_bytes: Any

    @property
    def memory_bytes(self) -> Any:
        """Memory of the fullest device [bytes]."""
        return reduce(larger, [use.total_bytes for use in self.memory])


def price_serving(
    problem: ServingProblem, structure: Structure, strategy: StrategyColumns, num_groups: Any
) -> ServingPrice:
    """Return the price of each row of the columns, all under one structure.

    Parameters
    ----------
    strategy
        Degrees; ``micro_batch_size`` is the number of sequences that pass together.
    num_groups
        Such groups in flight in each replica, at most pp: more of them only wait for each other.
    """
    network = problem.network(structure.axis_order, strategy)
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    costs = [
        _piece_cost(problem, structure, strategy, piece, index, collectives)
        for index, piece in enumerate(problem.pieces)
    ]
    pattern, num_kinds = problem.model.layer_pattern, len(problem.graph.layers)
    layout = stage_layout(pattern, num_kinds, strategy.pp, strategy.num_virtual_stages)
    send = send_s(problem, structure, strategy, collectives) * (strategy.pp > 1)
    whole = sum_of_passes(costs, (*layout.total, 1.0, 1.0))
    jitter = jitter_fraction(_devices_together(strategy), problem.calibration.jitter)
    slowest_s = _slowest_stage_s(costs, layout, send)
    time = _times(problem, strategy, whole, slowest_s, send, jitter, num_groups)
    sequences = strategy.micro_batch_size * num_groups
    if problem.is_decode:
        sequences = smaller(sequences, ceil_div(problem.workload.batch_size, strategy.dp))
    memory, room = _memories(problem, strategy, costs, layout, sequences)
    bottleneck_s = slowest_s * (1.0 + jitter)
    latency_s = time.total_s
    rates = _rates(problem, strategy, latency_s, bottleneck_s, sequences)
    return ServingPrice(
        strategy, structure, num_groups, time, latency_s, bottleneck_s, *rates, memory,
        room * strategy.dp, whole.flops, whole.traffic_bytes, whole.link_bytes,
    )  # fmt: skip


def _rates(
    problem: ServingProblem, strategy: StrategyColumns, latency_s: Any, bottleneck_s: Any,
    sequences: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
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
    problem: ServingProblem, strategy: StrategyColumns, whole: PassCost, slowest_s: Any, send: Any,
    jitter: Any, num_groups: Any,
) -> ServingTime:  # fmt: skip
    """Return the parts of the latency: a token visits every stage, in decode also on the way back.

    With m groups a stage is visited m times before the same group comes again, so a round takes
    at least m times the slowest stage.
    """
    sends = strategy.pp - 1.0 + float(problem.is_decode) * (strategy.pp > 1)
    pp_comm_s = sends * send
    pass_s = whole.total_s + pp_comm_s
    waits = (num_groups > 1) * float(problem.is_decode)
    wait_s = positive_part(num_groups * slowest_s - pass_s) * waits
    return ServingTime(
        **{name: getattr(whole, name) for name in PASS_TIME_PARTS},
        pp_comm_s=pp_comm_s,
        wait_s=wait_s,
        jitter_s=(pass_s + wait_s) * jitter,
    )


def _slowest_stage_s(costs: Sequence[PassCost], layout: StageLayout, send: Any) -> Any:
    """Return the seconds for which one group occupies the slowest stage, its send included."""
    times = []
    for position in POSITIONS:
        counts = (*layout.layers_of(position), *layout.edges_of(position))
        terms = [cost.total_s * count for cost, count in zip(costs, counts, strict=True)]
        times.append(sum(terms[1:], terms[0]))
    return reduce(larger, times) + send


def _devices_together(strategy: StrategyOf[Any]) -> Any:
    """Return the devices that wait for each other: a replica, or all where experts join them."""
    replica = strategy.tp * strategy.cp * strategy.pp
    joins = strategy.ep * strategy.etp > strategy.tp * strategy.cp
    return where(joins, strategy.num_devices, replica)


def _piece_cost(
    problem: ServingProblem, structure: Structure, strategy: StrategyColumns, piece: LayerGraph,
    index: int, collectives: Collectives,
) -> PassCost:  # fmt: skip
    """Return one pass through one kind of layer, or through an edge."""
    engine, shape, work = problem.engine, problem.shape, problem.workload
    length = float(problem.length_of(piece))
    local = LocalLayer(
        sizes=piece.sizes,
        degrees=strategy,
        sequence_length=length,
        sequence_parallel=structure.sequence_parallel,
        expert_load_imbalance=work.expert_load_imbalance,
    )
    total, windows = layer_forward(piece, local, engine, shape)
    calls = [c for c in problem.layouts(structure)[index][0] if c.phase is Phase.FORWARD]
    sizes = piece.bind(length * strategy.micro_batch_size, length)
    word = engine.activation_bytes
    comm = comm_cost(calls, windows, sizes, strategy, structure, collectives.time_s, word)
    working = reduce(larger, [live_bytes(op, local, engine, shape) for op in piece.ops])
    stream = 2.0 * word * local.token_shard * float(problem.model.hidden_size)
    dense, expert = parameters_on_device(piece, structure, strategy)
    is_edge = index >= len(problem.graph.layers)
    weight_word = word if is_edge else shape.weight_word_bytes
    return pass_cost(
        total, comm, engine, working + stream, weight_word * (dense + expert),
        _cache_bytes(problem, piece, local), 0.0 * strategy.tp,
    )  # fmt: skip


def _cache_bytes(problem: ServingProblem, piece: LayerGraph, local: LocalLayer) -> Any:
    """Return the cache of one sequence in one layer on one device; cp splits its tokens."""
    spec = next((op.attention for op in piece.ops if op.attention is not None), None)
    if spec is None:
        return 0.0
    kept = cached_tokens(float(problem.cached_length), spec.window)
    words = cached_words_per_token(spec, local) * ceil_div(kept, local.degrees.cp)
    return problem.shape.cache_word_bytes * words


def _memories(
    problem: ServingProblem, strategy: StrategyColumns, costs: Sequence[PassCost],
    layout: StageLayout, sequences: Any,
) -> tuple[tuple[ServingMemory, ...], Any]:  # fmt: skip
    """Return the memory of the first, middle and last stage, and the sequences with room in all."""
    capacity = problem.system.chip.main_memory.capacity_bytes
    calibration = problem.calibration
    uses, rooms = [], []
    for position in POSITIONS:
        held = sum_of_passes(costs, (*layout.layers_of(position), *layout.edges_of(position)))
        weights = held.weight_bytes
        if problem.graph.tied and position == "first":
            weights = weights - _shared_table_bytes(problem, strategy) * (strategy.pp == 1)
        use = ServingMemory(
            weights_bytes=weights,
            kv_cache_bytes=held.cache_bytes * sequences,
            working_bytes=held.working_bytes,
            buffers_bytes=calibration.communication_buffer_bytes + 0.0 * weights,
            margin_bytes=calibration.memory_margin_fraction * capacity + 0.0 * weights,
        )
        uses.append(use)
        rooms.append(most_sequences(use, held.cache_bytes, capacity))
    return tuple(uses), reduce(smaller, rooms)


def _shared_table_bytes(problem: ServingProblem, strategy: StrategyColumns) -> Any:
    """Return the bytes of a table that one device holds once for the lookup and for the logits."""
    rows = ceil_div(problem.model.vocab_size, strategy.tp)
    return problem.engine.activation_bytes * rows * problem.model.hidden_size


def fullest_use(price: ServingPrice) -> tuple[ServingMemory, Any]:
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
