"""All micro-batches through the pipeline: its stages, the slowest one, bubble, sends, memory.

Prices of pieces are in the order of :attr:`ProblemOf.pieces`: each kind of layer, the embedding,
the head. So are the counts of a :class:`StageLayout`. Where some layers are recomputed, layers with
and without recomputation are separate kinds (:func:`~meshwright.cost.layer.prices_of`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np

from meshwright.base.arrays import (
    FloatArray,
    Num,
    ceil_div,
    column,
    groups_of,
    larger,
    number_at,
    positive_part,
    read_only,
    smaller,
    where,
)
from meshwright.cost.communication import EXPOSED_PART
from meshwright.cost.layer import HeldMemory, LayerCost, split_backward, weighted_part, weighted_sum
from meshwright.cost.memory import (
    StageState,
    num_axes,
    orthogonal_work,
    sums_replicas_each_pass,
)
from meshwright.cost.parts import StepTime, TimePart, by_field
from meshwright.cost.problem import Problem, ProblemOf
from meshwright.graph.op import OpKind
from meshwright.schedule.pipeline_schedules import Gathers, schedules
from meshwright.sharding.axes import weight_sharding
from meshwright.sharding.dealing import chunk_lengths, dealing_of, dealt_kinds
from meshwright.sharding.derivation import stage_boundary_calls
from meshwright.sharding.local_sizes import local_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, ScheduleKind, Strategy, StrategyOf
from meshwright.spec.workload import SoftwareStack, Workload

ROUNDING = 1e-9
"""Largest relative difference of sums of the same parts in another order."""
POSITIONS = ("first", "middle", "last")


@dataclass(frozen=True)
class StageLayout:
    """Layers of each kind, embeddings and heads of stages: numbers, or columns of shape (rows,)."""

    counts: Mapping[str, tuple[Num, ...]]
    """Layers of the first, the fullest middle and the last stage, by position."""
    total: tuple[Num, ...]
    """Layers of all stages together."""
    is_last: Mapping[str, Num]
    """1.0 where a position is the last stage (the first one where it is alone), else 0.0."""
    num_stages: Num
    run_layers: Num
    """Layers that are recomputed together: of a run, or of the longest chunk [1]."""


@lru_cache(maxsize=4096)
def deal_layers(
    pattern: tuple[int, ...], num_kinds: int, num_stages: int, num_chunks: int,
    plan_options: PlanOptions,
) -> FloatArray:  # fmt: skip
    """Return the number of layers of each kind in each stage, shape (stages, kinds).

    ``num_chunks`` is the number of chunks of one device; chunk c of the model belongs to stage c
    mod ``num_stages``. Kinds are those of :func:`~meshwright.sharding.dealing.dealt_kinds`.
    """
    chunks = num_stages * num_chunks
    lengths = chunk_lengths(len(pattern), chunks, plan_options)
    chunk_of_layer = np.repeat(np.arange(chunks), lengths)
    kinds = dealt_kinds(pattern, num_kinds, lengths, plan_options)
    counts = np.zeros((num_stages, num_kinds * plan_options.kinds_of_recomputation))
    np.add.at(counts, (chunk_of_layer % num_stages, kinds), 1.0)
    return read_only(counts)


def stage_layout(
    pattern: tuple[int, ...], weights: Sequence[float], num_stages: FloatArray,
    num_chunks: FloatArray, plan_options: PlanOptions,
) -> StageLayout:  # fmt: skip
    """Return the layout of each pair of stages and chunks, as columns.

    The fullest middle stage is the one of most parameters. Among equals it holds the most layers
    of each kind that any of them holds: at most one too many for alternating kinds.
    Under vocabulary parallelism each stage has its part of the embedding and of the head.

    Parameters
    ----------
    weights
        Parameters of one layer of each kind [1].
    """
    num_kinds = len(weights)
    has_edges_on_all = plan_options.vocabulary_parallel
    dealing = dealing_of(plan_options)
    dealt_weights = np.tile(weights, plan_options.kinds_of_recomputation)
    pairs = np.stack([num_stages, num_chunks]).astype(np.int64)
    distinct, pair_of = groups_of(pairs)
    pairs = pairs[:, distinct]
    table = np.zeros((4, len(dealt_weights), pairs.shape[1]))
    longest = np.zeros(pairs.shape[1])
    for place, (stages, chunks) in enumerate(pairs.T.tolist()):
        counts = deal_layers(pattern, num_kinds, stages, chunks, dealing)
        longest[place] = chunk_lengths(len(pattern), stages * chunks, plan_options).max()
        table[0, :, place] = counts[0]
        if stages > 1:
            table[2, :, place] = counts[-1]
        if stages > 2:
            held = counts[1:-1] @ dealt_weights
            fullest = held >= held.max() * (1.0 - ROUNDING)
            table[1, :, place] = counts[1:-1][fullest].max(axis=0)
        table[3, :, place] = counts.sum(axis=0)
    columns = table[:, :, pair_of]
    one, alone = num_stages * 0.0 + 1.0, (num_stages == 1) * 1.0
    is_last = {"first": alone, "middle": alone * 0.0, "last": 1.0 - alone}
    edges = {p: (one, one) if has_edges_on_all else (one * (p == "first"), is_last[p])
             for p in POSITIONS}  # fmt: skip
    num_edges = num_stages if has_edges_on_all else 1.0
    return StageLayout(
        counts={p: (*columns[row], *edges[p]) for row, p in enumerate(POSITIONS)},
        total=(*columns[3], num_edges, num_edges),
        is_last=is_last,
        num_stages=num_stages,
        run_layers=np.minimum(longest, plan_options.recompute_run)[pair_of],
    )


def stages_of(
    problem: ProblemOf[Workload], plan_options: PlanOptions, strategy: StrategyOf[Num]
) -> StageLayout:
    """Return the layers of the stages of columns of strategies."""
    stages, chunks = column(strategy.pp), column(strategy.num_virtual_stages)
    pattern, weights = problem.model.layer_pattern, problem.layer_weights
    return stage_layout(pattern, weights, stages, chunks, plan_options)


def recomputed_shares(
    problem: Problem, plan_options: PlanOptions, strategy: Strategy
) -> tuple[float, ...]:
    """Return the share of the layers of each kind that are recomputed, as far as any are."""
    pattern, num_kinds = problem.model.layer_pattern, len(problem.graph.layers)
    if not plan_options.recomputes_some:
        return (1.0,) * num_kinds
    total = stages_of(problem, plan_options, strategy).total
    return tuple(number_at(total[kind]) / pattern.count(kind) for kind in range(num_kinds))


def slowest_stage(
    costs: Sequence[LayerCost], layout: StageLayout, *, overlap_expert_parallel: bool = False
) -> tuple[LayerCost, Num]:
    """Return the slowest stage, its layers and edges added up, and the number of its layers."""
    by_position = [layout.counts[position] for position in POSITIONS]
    totals_s = [cost.total_s - cost.paired_s * overlap_expert_parallel for cost in costs]
    times = []
    for counts in by_position:
        terms = [total_s * count for total_s, count in zip(totals_s, counts, strict=True)]
        times.append(sum(terms[1:], terms[0]))
    middle_wins = (times[1] > times[0]) & (times[1] >= times[2])
    last_wins = (times[2] > times[0]) & np.logical_not(middle_wins)
    chosen = [
        where(last_wins, last, where(middle_wins, middle, first))
        for first, middle, last in zip(*by_position, strict=True)
    ]
    return weighted_sum(costs, chosen), sum(chosen[1:-2], chosen[0])


def mean_of_others(
    costs: Sequence[LayerCost], layout: StageLayout, slowest: LayerCost
) -> tuple[Num, Num, Num]:
    """Return one micro-batch through the other stages: forward, input and weight gradients [s].

    Mean over the stages besides the slowest. The step of a pipeline takes m times the slowest
    stage, plus one micro-batch through each of the others (filling and draining).
    """
    forward_s, gradient_s, total_s = (
        weighted_part(costs, layout.total, name)
        for name in ("forward_total_s", "weight_gradient_pass_s", "total_s")
    )
    others = larger(layout.num_stages - 1.0, 1.0)
    slowest_gradient_s = slowest.weight_gradient_pass_s
    slowest_input_s = slowest.total_s - slowest.forward_total_s - slowest_gradient_s
    return (
        (forward_s - slowest.forward_total_s) / others,
        (total_s - forward_s - gradient_s - slowest_input_s) / others,
        (gradient_s - slowest_gradient_s) / others,
    )


@dataclass(frozen=True)
class MeanWork:
    """Work of one device in a step, on average over all stages."""

    busy_s: Num
    """Seconds of computation, the update left out."""
    flops: Num
    memory_traffic_bytes: Num
    """Traffic of all passes, the update left out [bytes]."""
    link_traffic_bytes: Num
    """Least bytes that it sends: data-parallel axes, and sums once a step, left out [bytes]."""
    dense_params: Num
    expert_params: Num
    update_share: Num = 1.0
    """Seconds of the update over those on the device with the largest update [1]."""


@dataclass(frozen=True)
class SyncCounts:
    """Transfers of all sharded weights and gradients of a stage in a step, by kind [1]."""

    forward_gathers: Num
    """Gathers of weights that forward passes wait for."""
    backward_gathers: Num
    scatters: Num
    replica_sums: Num
    inner_sums: Num
    """Sums over tp of the gradients of weights that its ranks hold whole."""
    at_end: Num
    """1 where gradients are summed behind the last pass and hide under none, else 0."""


def sync_counts(
    plan_options: PlanOptions, software: SoftwareStack, num_stages: Num, gathers: Gathers,
    num_micro_batches: Num,
) -> SyncCounts:  # fmt: skip
    """Return the transfers over data-parallel axes in a step of m micro-batches.

    ZeRO 1 gathers and scatters once, ZeRO 2 scatters m times, ZeRO 3 gathers m times for forward
    passes, m times for backward passes unless weights stay, and scatters m times. Replicas of a
    shard sum once, or with each scatter. Software that sums whole gradients scatters them once.
    Gradients of weights that tp leaves whole are summed over it once, or before each scatter of a
    unit.

    ZeRO 3 in 1F1B of four stages and eight micro-batches: 4 + 5 gathers and one scatter, not
    8 + 8 and 8.

    Parameters
    ----------
    gathers
        Gathers in a pipeline whose forward passes let weights go.

    Source: Rajbhandari et al. 2020 (ZeRO), section 7; PyTorch 2.13 ``distributed/pipelining``.
    """
    m, stage = num_micro_batches, plan_options.zero_stage
    one = 0.0 * m + 1.0
    none = 0.0 * one
    # DistributedDataParallel leaves DTensors, and their sums over tp, to each backward pass.
    inner_sums = m if stage < 2 and software.broadcasts_updates else one
    counts = SyncCounts(one, none, m if stage == 2 else one, one, inner_sums, none)
    if stage == 3:
        again = none if plan_options.keeps_gathered else m
        scatters = one if software.sums_in_last_pass else m
        replica_sums = m if sums_replicas_each_pass(plan_options, software) else one
        inner_sums = scatters if software.shards_by_unit else one
        counts = SyncCounts(m, again, scatters, replica_sums, inner_sums, none)
    if stage < 2 or not software.whole_in_pipelines:
        return counts
    piped = SyncCounts(one, none, one, one, one, at_end=one)
    if stage == 3 and not plan_options.keeps_gathered:
        piped = replace(piped, forward_gathers=gathers.forward, backward_gathers=gathers.backward)
    return by_field(lambda alone, in_pipes: where(num_stages > 1, in_pipes, alone), counts, piped)


def head_sync_counts(
    counts: SyncCounts, plan_options: PlanOptions, software: SoftwareStack, num_stages: Num,
    num_micro_batches: Num,
) -> SyncCounts:  # fmt: skip
    """Return the transfers of the head, where those of other units are known.

    A loss that multiplies by the head gathers it, drops it and reduces its gradient in each of m
    micro-batches, in a pipeline too. The norm before the head, of the same unit, gathers both again
    for its backward pass; from the second micro-batch on it drops both in its forward pass, unless
    the backward pass of a pipeline has left them there. In a pipeline of eight micro-batches the
    head is gathered 8 + 8 times and reduced 8 times, any other unit under ZeRO 2 once.

    The last unit may be kept from its forward to its backward pass instead.

    Source: torchtitan 0.3.0 ``components/loss.py``, ``ChunkedLossWrapper``, and ``_fully_shard`` of
    PyTorch 2.13, seen in dry runs.
    """
    m, stage = num_micro_batches, plan_options.zero_stage
    if software.keeps_last_unit and stage == 3:
        return replace(counts, backward_gathers=0.0 * counts.backward_gathers)
    if not software.has_head_in_loss or stage < 2:
        return counts
    drops = 1.0 if stage == 3 and plan_options.reshard_after_forward else 0.0
    alone = replace(counts, forward_gathers=2.0 * m - 1.0 + drops, backward_gathers=m)
    piped = replace(counts, forward_gathers=m + drops, backward_gathers=m, scatters=m)
    return by_field(lambda one, other: where(num_stages > 1, other, one), alone, piped)


@dataclass(frozen=True)
class PipelinePrice:
    """All micro-batches through the pipeline, for columns of strategies.

    It holds all that the rest of the step needs; numbers, or columns of shape (rows,).
    """

    time: StepTime
    """Parts of the passes; their sum is a lower bound of the step [s]."""
    forward_window_s: Num
    """One micro-batch on the slowest stage, forward: computation and waits for kernels [s]."""
    backward_window_s: Num
    gradient_window_s: Num
    """Part of the backward pass in which gradients of weights become complete: less than the whole
    where a schedule splits it [s]."""
    computation_s: Num
    """Computation of all micro-batches, which hidden transfers slow down [s]."""
    num_micro_batches: Num
    num_stages: Num
    forward_gathers: Num
    """Gathers of all weights of a stage where a pipeline keeps them behind backward passes [1]."""
    backward_gathers: Num
    num_layers: Num
    """Layers of the slowest stage: buckets of gradients and messages of ZeRO-3."""
    tied_sync_s: Num
    """Summing the gradient of a tied embedding over both ends of the pipeline [s]."""
    hidden_s: Num
    """Communication of all micro-batches that overlaps with computation [s]."""
    states: tuple[StageState, ...]
    """Memory of the first, the fullest middle and the last stage."""
    heaviest: StageState
    """The most of everything that any stage holds."""
    jitter: Num
    """Share by which waiting for the slowest of all devices prolongs a step."""
    tp_per_step_s: Num
    """Sums over tp and tatp of gradients of tensors that all members hold, once [s]."""
    flops: Num
    """FLOPs executed on the slowest stage in a step."""
    memory_traffic_bytes: Num
    """Bytes that cross the main memory on the slowest stage in a step."""
    mean: MeanWork | None
    """Work of one device on average; None where the energy is not needed."""


def counts_of(
    pipeline: PipelinePrice, plan_options: PlanOptions, software: SoftwareStack
) -> SyncCounts:
    """Return the transfers over data-parallel axes in a step."""
    gathers = Gathers(pipeline.forward_gathers, pipeline.backward_gathers)
    m = pipeline.num_micro_batches
    return sync_counts(plan_options, software, pipeline.num_stages, gathers, m)


def price_pipeline(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num],
    costs: Sequence[LayerCost], send_s: Num,
) -> PipelinePrice:  # fmt: skip
    """Return the price of the pipeline for columns of strategies, from the prices of pieces.

    Parameters
    ----------
    send_s
        Seconds to pass the activations of one micro-batch to the next stage [s].
    """
    costs = split_backward(costs, plan_options)
    layout = stages_of(problem, plan_options, strategy)
    slowest, num_layers = slowest_stage(
        costs, layout, overlap_expert_parallel=plan_options.overlap_expert_parallel
    )
    others_s = mean_of_others(costs, layout, slowest)
    p, v, m = strategy.pp, strategy.num_virtual_stages, micro_batches(problem, strategy)
    sends_s = exposed_sends_s(problem, plan_options, slowest.total_s, send_s, p, v, m)
    gradients_s = slowest.input_gradient_s + slowest.weight_gradient_s
    backward_s = gradients_s + slowest.recompute_s
    backward_window_s = backward_s + slowest.backward_launch_s
    states = stage_states(problem, plan_options, strategy, costs, layout, m)
    gathers = schedules[plan_options.schedule].num_gathers(p, v, m)
    paired_s = slowest.paired_s * num_paired(plan_options, v, m)
    of_axes = {part: m * getattr(slowest, name) for name, part in EXPOSED_PART.items()}
    return PipelinePrice(
        # m micro-batches through the slowest stage, its bubble and its sends.
        time=StepTime({
            TimePart.COMPUTE: m * positive_part(slowest.forward_s + gradients_s - slowest.memory_s),
            TimePart.MAIN_MEMORY: m * slowest.memory_s,
            TimePart.RECOMPUTE: m * slowest.recompute_s,
            TimePart.LAUNCH: m * slowest.launch_s,
            **of_axes,
            TimePart.EP_COMM: of_axes[TimePart.EP_COMM] - paired_s,
            TimePart.TP_COMM: m * slowest.tp_s + slowest.per_step_s,
            TimePart.PP_COMM: sends_s * (p > 1) + m * slowest.pp_s,
            TimePart.BUBBLE: schedules[plan_options.schedule].bubble_s(*others_s, send_s, p, v, m),
        }),
        forward_window_s=slowest.forward_s + slowest.forward_launch_s,
        backward_window_s=backward_window_s,
        gradient_window_s=slowest.weight_gradient_pass_s
        if plan_options.schedule is ScheduleKind.ZERO_BUBBLE
        else backward_window_s,
        computation_s=m * (slowest.forward_s + backward_s),
        num_micro_batches=m,
        num_stages=p,
        forward_gathers=gathers.forward,
        backward_gathers=gathers.backward,
        num_layers=num_layers,
        tied_sync_s=tied_sync_s(problem, plan_options, strategy, send_s),
        hidden_s=m * slowest.hidden_s + paired_s,
        states=states,
        heaviest=heaviest_of(states),
        jitter=jitter_fraction(strategy.num_devices, problem.calibration.jitter),
        tp_per_step_s=slowest.per_step_s,
        flops=slowest.flops * m,
        memory_traffic_bytes=slowest.memory_traffic_bytes * m,
        mean=_mean_work(problem, plan_options, strategy, costs, layout, m),
    )  # fmt: skip


def _mean_work(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num],
    costs: Sequence[LayerCost], layout: StageLayout, num_micro_batches: Num,
) -> MeanWork:  # fmt: skip
    """Return the work of a device in a step on average: all layers and edges, over the stages.

    Neighbouring stages send each micro-batch once a chunk, in both directions.
    """

    def mean(name: str) -> Num:
        return weighted_part(costs, layout.total, name) / strategy.pp

    sends = 2.0 * (strategy.pp - 1.0) / strategy.pp * strategy.num_virtual_stages
    sent = mean("link_traffic_bytes") + sends * send_bytes(problem, plan_options, strategy)
    computation = ("forward_s", "input_gradient_s", "weight_gradient_s", "recompute_s")
    return MeanWork(
        busy_s=num_micro_batches * sum(mean(name) for name in computation),
        flops=num_micro_batches * mean("flops"),
        memory_traffic_bytes=num_micro_batches * mean("memory_traffic_bytes"),
        link_traffic_bytes=num_micro_batches * sent,
        dense_params=mean("dense_params") - _shared_table_params(problem, plan_options, strategy),
        expert_params=mean("expert_params"),
    )


def micro_batches(problem: Problem, strategy: StrategyOf[Num]) -> Num:
    """Return the micro-batches of one step on the rank that has most of them."""
    sequences = ceil_div(problem.workload.global_batch_size, strategy.dp)
    return ceil_div(sequences, strategy.micro_batch_size)


def num_paired(plan_options: PlanOptions, num_virtual_stages: Num, num_micro_batches: Num) -> Num:
    """Return the micro-batches with expert communication that another one hides.

    In the steady state each forward pass runs beside the backward pass of an earlier micro-batch;
    the first chunk forward and the last one backward run alone. The fill and the drain of the
    pipeline are in the bubble, where nothing is hidden.
    Source: DeepSeek-V3 technical report (arXiv 2412.19437), section 3.2.1; megatron-core,
    ``overlap_moe_expert_parallel_comm``.
    """
    if not plan_options.overlap_expert_parallel:
        return 0.0 * num_micro_batches
    return num_micro_batches - 1.0 / num_virtual_stages


def exposed_sends_s(
    problem: Problem, plan_options: PlanOptions, stage_s: Num, send_s: Num, num_stages: Num,
    num_virtual_stages: Num, num_micro_batches: Num,
) -> Num:  # fmt: skip
    """Return the seconds for which the slowest stage waits for its sends in a step [s].

    Stages of plain schedules wait for each of their sends; interleaved ones send during the next
    chunk, so only the sends of warm-up and cool-down are exposed, and the excess of a send over a
    third of a chunk (forward and backward are three parts).

    Parameters
    ----------
    stage_s
        One micro-batch through the slowest stage, forward and backward [s].
    """
    schedule, v, m = schedules[plan_options.schedule], num_virtual_stages, num_micro_batches
    overlaps = problem.workload.software.overlaps_sends
    if plan_options.schedule is ScheduleKind.INTERLEAVED and overlaps:
        late_s = m * v * positive_part(send_s - stage_s / (3.0 * v))
        return schedule.num_exposed_sends(num_stages, v, m) * send_s + late_s
    return m * schedule.sends_per_micro_batch(v) * send_s


def send_bytes(
    problem: ProblemOf[Workload], plan_options: PlanOptions, strategy: StrategyOf[Num]
) -> Num:
    """Return the activations of one micro-batch that pass from stage to stage [bytes]."""
    whole = boundary_bytes(problem, plan_options, strategy)
    if problem.workload.software.scatters_sends and not plan_options.sequence_parallel:
        return whole / strategy.tp
    return whole


def boundary_bytes(
    problem: ProblemOf[Workload], plan_options: PlanOptions, strategy: StrategyOf[Num]
) -> Num:
    """Return the activations of one micro-batch between two stages, as stored [bytes]."""
    call = stage_boundary_calls(problem.graph, replace(plan_options, zero_stage=0))[0]
    sizes = problem.bound_sizes(problem.graph.layers[0], strategy.micro_batch_size)
    return problem.rates.activation_bytes * local_elements(call.tensor, call.split, sizes, strategy)


def receive_buffer_bytes(
    boundary_bytes: Num, num_micro_batches: Num, in_flight: Num, num_chunks: Num, is_first: Num,
    is_last: Num,
) -> Num:  # fmt: skip
    """Return the bytes of receive buffers of one device whose pipeline has one a micro-batch.

    Each of v chunks of layers has a buffer for the activations and one for the gradients of each of
    m micro-batches; the first chunk of the model receives no activations, the last one no
    gradients. Activations of micro-batches in flight are those that the backward pass keeps:

        b (v - first) (m - in flight) + b (v - last) m

    With 0.25 GB between stages, 8 micro-batches and 2 in flight, a middle device has 3.5 GB.

    Parameters
    ----------
    boundary_bytes
        Activations of one micro-batch between two stages [bytes].
    is_first, is_last
        1 where the device has the first or the last chunk of the model, else 0.

    Source: PyTorch 2.13, ``distributed/pipelining/stage.py``, ``_setup_forward_recv_info`` and
    ``_create_grad_recv_info``, which allocate the buffers of all micro-batches before the first.
    """
    activations = (num_chunks - is_first) * larger(num_micro_batches - in_flight, 0.0)
    return boundary_bytes * (activations + (num_chunks - is_last) * num_micro_batches)


def entry_bytes(stream_bytes: Num, tp: Num, whole_bytes: Num) -> Num:
    """Return the bytes at the entry of a layer as its backward pass ends there.

    The stream and its gradient; its normalised copy, whole over tp, with two gradients: the sum of
    products before, and that of the query, whose own gradient is split:

        2 stream + (3 + 1 / tp) whole

    Of 0.25 GB over two devices of tp, 0.5 GB whole: 2.25 GB.

    Source: the order of operators in dry runs of PyTorch 2.13.
    """
    return 2.0 * stream_bytes + (3.0 + 1.0 / tp) * whole_bytes


def num_communicators(strategy: StrategyOf[Num]) -> Num:
    """Return the axes of more than one device [1]."""
    s = strategy
    return num_axes(s.dp, s.tp, s.cp, s.ep, s.pp, s.tatp)


def table_params(problem: Problem, strategy: StrategyOf[Num]) -> Num:
    """Return the parameters of the token table on one device of an end of the pipeline [1]."""
    rows = ceil_div(problem.model.vocab_size, strategy.tp * strategy.tatp)
    return rows * problem.model.hidden_size


def _shared_table_params(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num]
) -> Num:
    """Return the parameters that embedding and head share on one device [1].

    Of a tied table: on the only stage, or under vocabulary parallelism on each.
    """
    if not problem.graph.tied:
        return 0.0 * strategy.pp
    if plan_options.vocabulary_parallel:
        return table_params(problem, replace(strategy, tp=strategy.tp * strategy.pp))
    return table_params(problem, strategy) * (strategy.pp == 1)


def tied_sync_s(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num], send_s: Num
) -> Num:
    """Return the seconds of summing the gradient of a tied embedding over both ends.

    Two ranks exchange halves and gather: each sends its part of the table once, as fast as a
    message between stages, and no faster than one.
    """
    if not problem.graph.tied or plan_options.vocabulary_parallel:
        return 0.0 * send_s
    word = problem.workload.optimizer.reduced_gradient_bytes_per_param
    table_bytes = word * table_params(problem, strategy)
    messages = larger(table_bytes / send_bytes(problem, plan_options, strategy), 1.0)
    return messages * send_s * (strategy.pp > 1)


def stage_states(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num],
    costs: Sequence[HeldMemory], layout: StageLayout, num_micro_batches: Num,
) -> tuple[StageState, ...]:  # fmt: skip
    """Return the memory of the first, the fullest middle and the last stage."""
    return tuple(
        _stage_state(problem, plan_options, strategy, costs, layout, position, num_micro_batches)
        for position in POSITIONS
    )


def heaviest_of(states: Sequence[StageState]) -> StageState:
    """Return the most of everything that any of some stages holds."""
    return by_field(lambda *held: reduce(larger, held), *states)


def _stage_state(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num],
    costs: Sequence[HeldMemory], layout: StageLayout, position: str, num_micro_batches: Num,
) -> StageState:  # fmt: skip
    """Return the memory of the stage at a position."""

    def held(name: str) -> Num:
        return weighted_part(costs, layout.counts[position], name)

    # Micro-batches in flight at the position, from the closed form of the schedule.
    index = {"first": 0.0, "middle": 1.0}.get(position, strategy.pp - 1.0) + 0.0 * strategy.pp
    in_flight = schedules[plan_options.schedule].peak_in_flight(
        index, strategy.pp, strategy.num_virtual_stages, num_micro_batches
    )
    if plan_options.overlap_expert_parallel:
        # A chunk of the next micro-batch goes forward beside the backward pass.
        chunk = 1.0 / strategy.num_virtual_stages
        in_flight = smaller(in_flight + chunk, num_micro_batches)
    if plan_options.vocabulary_parallel:
        # The barrier before the gradient of the logits keeps one micro-batch more (Yeung et al.
        # 2024, figure 10 b).
        in_flight = smaller(in_flight + 1.0, num_micro_batches)
    is_last = layout.is_last[position]
    counts, software = layout.counts[position], problem.workload.software
    kept = held("kept_bytes")
    # A run of layers is brought back as a whole before its last layer goes backward.
    working = weighted_part(costs[:-2], counts[:-2], "working_bytes")
    working = working + (layout.run_layers - 1.0) * held("recomputed_bytes")
    of_first = weighted_part(costs[:-2], counts[:-2], "working_first_bytes")
    of_first = of_first + (layout.run_layers - 1.0) * held("recomputed_bytes")
    of_ends = weighted_part(costs[-2:], counts[-2:], "working_bytes")
    stream = boundary_bytes(problem, plan_options, strategy)
    whole = stream * strategy.tp if plan_options.sequence_parallel else stream
    cached = 0.0 * kept
    of_products = software.shards_by_unit and software.selective_recompute == "all_but_products"
    if of_products and plan_options.recompute is Recompute.SELECTIVE:
        cached = kept - stream * sum(counts[1:-2], counts[0])
    if software.keeps_stage_outputs:
        sent = strategy.num_virtual_stages * stream * (1.0 - is_last)
        kept, cached = kept + sent, cached + sent
    buffers: Num = 0.0
    if software.keeps_receive_buffers:
        # Two stages have no middle one.
        buffers = (strategy.pp > (2 if position == "middle" else 1)) * receive_buffer_bytes(
            stream, num_micro_batches, in_flight,
            strategy.num_virtual_stages, (index == 0) * 1.0, is_last,
        )  # fmt: skip
    params = held("dense_params")
    if plan_options.vocabulary_parallel or position == "first":
        params = params - _shared_table_params(problem, plan_options, strategy)
    # GPipe runs all forward passes first: their logits wait for the backward passes.
    logits = costs[-1].logit_bytes * counts[-1]
    outputs, waiting, waiting_kept = 0.0 * logits, 0.0 * logits, 0.0 * logits
    if plan_options.schedule is ScheduleKind.GPIPE:
        waiting = costs[-1].working_bytes * is_last
        if software.whole_in_pipelines and not software.has_head_in_loss:
            waiting_kept = costs[-1].working_kept_bytes * is_last
    if software.whole_in_pipelines:
        # Schedules of PyTorch keep their outputs; losses that wait keep log-probabilities in FP32.
        outputs = logits * (strategy.pp > 1)
        waiting = smaller(waiting, logits * (1.0 + 4.0 / problem.rates.activation_bytes))
    of_loss: Num = 0.0
    place = logits * (software.loss == "plain" and not software.has_head_in_loss)
    if software.has_head_in_loss:
        # The stage hands on its stream, of which a loss that waits has the gradient.
        at_end = whole * counts[-1]
        outputs = at_end * (strategy.pp > 1)
        waiting = 2.0 * at_end * (plan_options.schedule is ScheduleKind.GPIPE)
        of_loss = at_end * (2.0 + 4.0 / problem.rates.activation_bytes) - outputs
        of_ends = larger(of_ends - at_end, 0.0)  # the stream that the head keeps is among them
    layers = counts[:-2]
    num_layers = sum(layers[1:], layers[0])
    unit_params = [cost.dense_params + cost.expert_params for cost in costs]
    layer = reduce(
        larger, [n * (count > 0) for n, count in zip(unit_params[:-2], layers, strict=True)]
    )
    of_experts = [c.expert_params * (n > 0) for c, n in zip(costs[:-2], layers, strict=True)]
    tied = _shared_table_params(problem, plan_options, strategy) * (position == "first")
    embedding = unit_params[-2] * counts[-2]
    waits = software.sums_in_last_pass and plan_options.zero_stage == 3
    in_turn = plan_options.wraps * (num_micro_batches <= strategy.pp)
    return StageState(
        **_orthogonal_work(problem, plan_options, strategy, num_layers),
        dense_params=params,
        expert_params=held("expert_params"),
        kept_bytes=kept,
        cached_bytes=cached,
        hosted_bytes=held("hosted_bytes"),
        in_flight=where(in_flight > 0, in_flight, 0.0),
        working_bytes=working,
        first_block_bytes=of_first,
        other_blocks_params=weighted_part(costs[:-2], counts[:-2], "working_other_params"),
        other_blocks_kept_bytes=weighted_part(costs[:-2], counts[:-2], "other_kept_bytes"),
        entry_bytes=entry_bytes(stream, strategy.tp, whole),
        loss_bytes=of_ends,
        loss_logit_bytes=weighted_part(costs[-2:], counts[-2:], "working_logit_bytes"),
        loss_kept_bytes=weighted_part(costs[-2:], counts[-2:], "working_kept_bytes"),
        logit_bytes=logits,
        logit_place_bytes=place,
        output_bytes=outputs,
        waiting_bytes=waiting,
        waiting_kept_bytes=waiting_kept,
        loss_stream_bytes=of_loss,
        later_micro_batches=larger(num_micro_batches - 1.0, 0.0),
        **_whole_weights(problem, plan_options, strategy, counts, stream),
        num_chunks=strategy.num_virtual_stages,
        summed_chunks=where(in_turn > 0, 1.0 / strategy.num_virtual_stages, 1.0),
        layer_params=layer,
        layer_expert_params=reduce(larger, of_experts),
        embedding_params=embedding,
        head_params=unit_params[-1] * counts[-1] - tied,
        tied_params=tied,
        others_table_params=embedding * (strategy.tp - 1.0) * software.whole_table_gradients,
        num_layers=num_layers,
        sums_before_scatter=(strategy.pp > 1) * 1.0,
        sums_in_last_pass=(strategy.pp == 1) * (num_micro_batches > 1) * (1.0 * waits),
        num_communicators=num_communicators(strategy),
        receive_buffer_bytes=buffers,
    )


def _whole_weights(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num],
    counts: Sequence[Num], stream: Num,
) -> dict[str, Num]:  # fmt: skip
    """Return the memory that whole weights of PyTorch (ZeRO 0 and 1) add to a stage [bytes].

    Under autocast the inputs of norms have the type of weights that are wider
    (PyTorch 2.13 ``aten/src/ATen/autocast_mode.h``: products alone are cast).
    """
    optimizer, software = problem.workload.optimizer, problem.workload.software
    if not software.autocasts_whole_weights:
        return {}
    wide = optimizer.weight_bytes_per_param / problem.rates.activation_bytes
    more = (wide - 1.0) * optimizer.trains_wide_weights
    norms = [
        float(sum(op.kind is OpKind.NORM and "hidden" in op.output.dims for op in kind.ops))
        for kind in problem.graph.layers
    ]
    keeps = plan_options.recompute is Recompute.NONE
    kept = [(n if keeps else 1.0) * count for n, count in zip(norms, counts, strict=False)]
    sizes = [
        local_elements(
            weight, weight_sharding(weight, plan_options).split, piece.sizes, strategy
        ) * (count > 0)
        for piece, count in zip(problem.pieces, counts, strict=True) for weight in piece.weights
    ]  # fmt: skip
    return {
        "wide_kept_bytes": more * stream * sum(kept),
        "wide_working_bytes": more * stream * max(n - 1.0 for n in norms),
        "wide_loss_bytes": more * stream * counts[-1],
        "split_share": (strategy.tp > 1) * 1.0,
        "dealt_params": reduce(larger, sizes),
    }


def _orthogonal_work(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num], num_layers: Num
) -> dict[str, Num]:
    """Return the FLOPs of an orthogonal update of so many layers of a mean kind [FLOP]."""
    steps = problem.workload.optimizer.orthogonal_steps
    if not steps:
        return {}
    kinds, whole = problem.graph.layers, sum(kind.count for kind in problem.graph.layers)
    work = [orthogonal_work(kind, plan_options, strategy, steps) for kind in kinds]
    dense, expert = (
        sum(kind.count * flops[part] for kind, flops in zip(kinds, work, strict=True)) / whole
        for part in (0, 1)
    )
    return {
        "orthogonal_flops": num_layers * dense,
        "expert_orthogonal_flops": num_layers * expert,
        "matrix_orthogonal_flops": reduce(larger, [flops[2] for flops in work]),
    }


def jitter_fraction(num_devices: Num, spread: Num) -> Num:
    """Return the share by which waiting for the slowest of n devices prolongs a step.

    s sqrt(2 ln n): the expected largest of n draws with standard deviation s. Source: extreme
    value of normal draws (Cramer 1946, section 28.6), first order.
    """
    values, inverse = np.unique(np.asarray(num_devices, dtype=float), return_inverse=True)
    roots = np.array([math.sqrt(2.0 * math.log(max(n, 1.0))) for n in values.tolist()])
    return spread * roots[inverse].reshape(np.shape(num_devices))
