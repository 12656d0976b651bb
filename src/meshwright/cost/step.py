"""The whole step: pipeline, data-parallel synchronisation, update, memory, energy, money.

A window of computation is spent once; the last bucket of gradients and the first bucket of
parameters have nothing left to hide behind, so part of the synchronisation is always exposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from meshwright.base.arrays import (
    IntArray,
    Num,
    groups_of,
    larger,
    positive_part,
    smaller,
    take_rows,
)
from meshwright.cost.bound import layer_prices, pipeline_price
from meshwright.cost.communication import (
    AxisNetwork,
    Collectives,
    CollectiveTime,
    Exposure,
    overlapped,
    plain,
    slowdown_s,
)
from meshwright.cost.energy import step_energy_parts_j, throttled, total_energy_j
from meshwright.cost.layer import (
    layer_keys,
    layout_of,
    numbered,
    prices_of,
    recomputes_of,
)
from meshwright.cost.memory import (
    ShardDegrees,
    StageState,
    host_of,
    resident_bytes,
    shard_degrees,
    step_host_bytes,
    step_memory,
    sums_replicas_each_pass,
)
from meshwright.cost.money import step_cost_usd
from meshwright.cost.operator import DeviceRates
from meshwright.cost.parts import MemoryUse, StepTime, TimePart
from meshwright.cost.pipeline import (
    PipelinePrice,
    SyncCounts,
    counts_of,
    head_sync_counts,
    send_bytes,
)
from meshwright.cost.problem import Problem, ProblemOf
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import (
    AXES,
    Offload,
    PlanOptions,
    Strategy,
    StrategyColumns,
    StrategyOf,
    stack,
)
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import HostLink
from meshwright.spec.workload import OptimizerPreset, SoftwareStack, Workload


def optimizer_step_s(
    state: StageState, shards: ShardDegrees, plan_options: PlanOptions, optimizer: OptimizerPreset,
    rates: DeviceRates,
) -> Num:  # fmt: skip
    """Return the seconds of an update on the device: its memory traffic and its products.

    The products make updates of matrices orthogonal, where the optimizer does that. Under ZeRO
    whole matrices are dealt to the ranks, at least one to each; otherwise every rank makes all.

    Source: megatron-core 0.19.2, ``optimizer/layer_wise_optimizer.py``.
    """
    is_sharded = plan_options.zero_stage >= 1
    per_param = optimizer.step_traffic_bytes_per_param
    traffic = resident_bytes(state, per_param, shards, is_sharded=is_sharded)
    flops = state.orthogonal_flops + state.expert_orthogonal_flops
    if is_sharded:
        dealt = state.orthogonal_flops / shards.dense
        dealt = dealt + state.expert_orthogonal_flops / shards.expert
        flops = larger(dealt, state.matrix_orthogonal_flops)
    return traffic / rates.memory_bytes_per_s + flops / rates.logits_flops_per_s


def host_update_s(
    state: StageState, shards: ShardDegrees, plan_options: PlanOptions, optimizer: OptimizerPreset,
    host: HostLink,
) -> Num:  # fmt: skip
    """Return the seconds of an update by the processors of the host, with its copies.

    The memory traffic of the update crosses the memory of the host. Gradients that the device sums
    leave it before, weights that the device keeps come back after it; nothing hides either. At
    35.3e9 parameters a host, 28 bytes each, and 614 GB/s: 1.61 s.

    Source: the traffic as on a device (Ren et al. 2021, ZeRO-Offload, section 4.2).
    """
    offload = plan_options.offload

    def passed_s(bytes_per_param: float, bytes_per_s: float) -> Num:
        sharded = plan_options.zero_stage >= 1
        return resident_bytes(state, bytes_per_param, shards, is_sharded=sharded) / bytes_per_s

    copied = optimizer.reduced_gradient_bytes_per_param * (not offload.has_gradients)
    copied += optimizer.updated_bytes_per_param * (not offload.has_weights)
    link_s = passed_s(copied, host.bandwidth_bytes_per_s)
    return link_s + passed_s(optimizer.step_traffic_bytes_per_param, host.kernel_bytes_per_s)


def offload_step_s(
    state: StageState, shards: ShardDegrees, pipeline: PipelinePrice, plan_options: PlanOptions,
    optimizer: OptimizerPreset, host: HostLink, sync: GradientSync | None = None, *,
    updates_on_host: bool = True,
) -> Exposure:  # fmt: skip
    """Return the seconds of host traffic of a step, exposed and hidden.

    Optimizer state is updated on the host, or moves both ways once a step, and weights that the
    device updates go back: fully exposed. Weights (under ZeRO 3 the shard that the others gather)
    arrive for each pass that gathers them, activations leave and come back. Gradients leave in each
    backward pass, and add to those of the micro-batches before, which are read and written on the
    host. All of these, except for one layer of each, hide under computation of the same pass and
    under the exposed part of ``sync`` on other links.
    """
    exposed = pipeline.time[TimePart.COMPUTE] * 0.0
    stage, offload = plan_options.zero_stage, plan_options.offload

    def held(bytes_per_param: float, first_sharded: int) -> Num:
        return resident_bytes(state, bytes_per_param, shards, is_sharded=stage >= first_sharded)

    if offload.has_optimizer and updates_on_host:
        exposed = exposed + host_update_s(state, shards, plan_options, optimizer, host)
    elif offload.has_optimizer:
        moved = 2.0 * held(optimizer.state_bytes_per_param, 1)
        exposed = exposed + moved / host.bandwidth_bytes_per_s
    if offload.has_weights and not (offload.has_optimizer and updates_on_host):
        exposed = exposed + held(optimizer.updated_bytes_per_param, 3) / host.bandwidth_bytes_per_s
    each_pass = exposed * 0.0
    if offload.has_activations:
        each_pass = each_pass + state.kept_bytes - state.cached_bytes
    each_pass = each_pass + state.hosted_bytes
    weights = held(optimizer.weight_bytes_per_param, 3) if offload.has_weights else 0.0
    forward_s = (each_pass + weights) / host.bandwidth_bytes_per_s
    again = 0.0 if plan_options.keeps_gathered else weights
    backward_s = (each_pass + again) / host.bandwidth_bytes_per_s
    m, layers = pipeline.num_micro_batches, larger(pipeline.num_layers, 1.0)
    if offload.has_gradients:
        gradients = held(optimizer.gradient_bytes_per_param, 2)
        added = 3.0 * gradients * (m - 1.0) / m
        backward_s = backward_s + gradients / host.bandwidth_bytes_per_s
        backward_s = backward_s + added / host.kernel_bytes_per_s
    forward_window_s, backward_window_s = pipeline.forward_window_s, pipeline.backward_window_s
    if sync is not None:
        once = (sync.first_forward.exposed_s, sync.last_backward.exposed_s)
        forward_window_s = forward_window_s + sync.each_forward.exposed_s + once[0] / m
        backward_window_s = backward_window_s + sync.each_backward.exposed_s + once[1] / m
    forward = overlapped(forward_s, forward_window_s, layers)
    backward = overlapped(backward_s, backward_window_s, layers)
    return (forward + backward).times(m) + Exposure(exposed, 0.0)


def step_time(
    pipeline: PipelinePrice, data_parallel: Exposure, optimizer_s: Num, offload: Exposure,
    *, sigma: Num,
) -> StepTime:  # fmt: skip
    """Return the whole step.

    Parameters
    ----------
    data_parallel, offload
        Data-parallel communication and host traffic of one step, shown and hidden [s].
    sigma
        Share by which computation slows under communication [1].
    """
    dp_comm_s = data_parallel.exposed_s + pipeline.tied_sync_s
    hidden_s = pipeline.hidden_s + data_parallel.hidden_s + offload.hidden_s
    slowdown = slowdown_s(hidden_s, pipeline.computation_s, sigma)
    before = pipeline.time.total_s + dp_comm_s + slowdown + optimizer_s + offload.exposed_s
    return pipeline.time.plus({
        TimePart.DP_COMM: dp_comm_s,
        TimePart.OVERLAP_SLOWDOWN: slowdown,
        TimePart.OPTIMIZER: optimizer_s,
        TimePart.OFFLOAD: offload.exposed_s,
        TimePart.JITTER: before * pipeline.jitter,
        TimePart.THROTTLE: before * 0.0,
    })  # fmt: skip


@dataclass(frozen=True)
class StepPrice:
    """The price of a step for columns of strategies."""

    time: StepTime
    memory: tuple[MemoryUse, ...]
    """Memory of one device of the first, the fullest middle and the last stage."""
    host_bytes: Num
    """Bytes on the host, for one device."""
    energy_j: Num
    energy_parts_j: dict[str, Num]
    """Energy by part, as far as the parts can be told apart; empty: not known [J]."""
    cost_usd: Num
    num_devices: Num
    flops: Num
    """FLOPs that the slowest device executes."""

    @property
    def memory_bytes(self) -> Num:
        """Memory of the fullest device [bytes]."""
        return reduce(larger, [use.total_bytes for use in self.memory])


def step_times(
    problem: Problem, plan_options: PlanOptions, shards: ShardDegrees, price: PipelinePrice,
    links: SyncLinks,
) -> StepTime:  # fmt: skip
    """Return the time of the step, in parts; the states of single stages do not matter."""
    optimizer, heaviest = problem.workload.optimizer, price.heaviest
    synced = step_sync(problem, plan_options, shards, price, links)
    optimizer_s = optimizer_step_s(heaviest, shards, plan_options, optimizer, problem.rates)
    offloaded = plain(0.0 * optimizer_s)
    if plan_options.uses_host:
        on_host = problem.workload.software.updates_on_host
        offloaded = offload_step_s(
            heaviest, shards, price, plan_options, optimizer, host_of(problem), synced,
            updates_on_host=on_host,
        )  # fmt: skip
        optimizer_s = optimizer_s * (not (on_host and plan_options.offload.has_optimizer))
    sigma = problem.calibration.overlap_slowdown
    return step_time(price, synced.total, optimizer_s, offloaded, sigma=sigma)


def step_sync(
    problem: Problem, plan_options: PlanOptions, shards: ShardDegrees, price: PipelinePrice,
    links: SyncLinks,
) -> GradientSync:  # fmt: skip
    """Return the synchronisation of the fullest stage, copies of full sharding included.

    On CPUs nothing hides what sharding sends: FSDP2 makes its collectives with ``async_op=False``
    on streams of its own, and CPUs have no streams (PyTorch 2.13,
    ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``; 2026-11).
    """
    optimizer, heaviest = problem.workload.optimizer, price.heaviest
    if problem.system.chip.vendor == "CPU" and plan_options.zero_stage > 0:
        plan_options = replace(plan_options, overlap_data_parallel=False)
    kinds = [(heaviest.dense_params, links.dense)]
    if links.expert is not None:
        sent = heaviest.expert_params * shards.padded(plan_options)
        heaviest = replace(heaviest, expert_params=sent)
        kinds.append((heaviest.expert_params, links.expert))
    software = problem.workload.software
    synced = gradient_sync(kinds, price, plan_options, optimizer, software)
    counts = counts_of(price, plan_options, software)
    if software.has_head_in_loss and plan_options.zero_stage >= 2:
        synced = replace(synced, head=_head_sync(problem, plan_options, price, links, counts))
    if plan_options.zero_stage == 3 and (software.copies_shards or software.eager):
        copied_s = sharding_copies_s(
            heaviest, counts, optimizer, problem.rates.elementwise_bytes_per_s
        )
        synced = replace(synced, copies=plain(copied_s))
    if software.shards_by_unit:
        # The first sums over tp are part of the pipeline.
        again_s = (counts.inner_sums - 1.0) / price.num_micro_batches * price.tp_per_step_s
        synced = replace(synced, each_backward=synced.each_backward + plain(again_s))
    return synced


def _head_sync(
    problem: Problem, plan_options: PlanOptions, price: PipelinePrice, links: SyncLinks,
    counts: SyncCounts,
) -> Exposure:  # fmt: skip
    """Return the transfers of the head beyond those of other units; its loss waits for them."""
    optimizer, m = problem.workload.optimizer, price.num_micro_batches
    own = head_sync_counts(counts, plan_options, problem.workload.software, price.num_stages, m)
    unit = price.heaviest.head_params + price.heaviest.tied_params
    gathered_bytes = unit * optimizer.gathered_bytes_per_param(plan_options.zero_stage)
    gathers = own.forward_gathers - counts.forward_gathers
    gathers = gathers + own.backward_gathers - counts.backward_gathers
    gathered_s = links.dense.all_gather.time_s(gathered_bytes, 1.0)
    reduced_bytes = unit * optimizer.reduced_gradient_bytes_per_param
    reduced_s = links.dense.reduce_scatter.time_s(reduced_bytes, 1.0)
    return plain(gathers * gathered_s + (own.scatters - counts.scatters) * reduced_s)


@dataclass(frozen=True)
class Priced:
    """Strategies under one set of plan options, with the price of each."""

    strategy: StrategyColumns
    plan_options: PlanOptions
    step: StepPrice
    pipeline: PipelinePrice


def price_columns(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyColumns,
    network: AxisNetwork | None = None, links: StepCollectives | None = None,
    price: PipelinePrice | None = None,
) -> Priced:  # fmt: skip
    """Return the price of each row of the columns, all under one set of plan options.

    Parameters
    ----------
    network
        The groups of the rows, where they are not those of the order of the axes alone.
    links, price
        The collectives outside of layers, and the price of the pipeline, where they are known.
    """
    if network is None:
        network = problem.shared_network(plan_options.axis_order, strategy)
    strategy = network.strategy
    if links is None:
        links = problem.once(
            "links",
            (problem.calibration.collective_launch_s, problem.workload.software.broadcasts_updates),
            lambda: step_collectives(problem, network), network,
        )  # fmt: skip
    if price is None:
        tables = layer_prices(problem, plan_options, network, recomputes_of(plan_options))
        layers = prices_of(plan_options, tables)
        send_s = links.send.time_s(send_bytes(problem, plan_options, strategy), 1.0)
        price = pipeline_price(problem, plan_options, strategy, layers, send_s)
    shards = shard_degrees(problem, strategy)
    time = step_times(problem, plan_options, shards, price, links.sync)
    time = throttled(problem, plan_options, strategy, price, time)
    parts_j = step_energy_parts_j(problem, plan_options, strategy, price, time)
    step = StepPrice(
        time=time,
        memory=step_memory(problem, plan_options, shards, price.states),
        host_bytes=step_host_bytes(problem, plan_options, shards, price.states),
        energy_j=total_energy_j(parts_j, time.total_s),
        energy_parts_j=parts_j,
        cost_usd=step_cost_usd(problem.system.chip, time.total_s, strategy.num_devices),
        num_devices=strategy.num_devices,
        flops=price.flops,
    )
    return Priced(strategy, plan_options, step, price)


def price_each(
    problem: Problem, option_sets: Sequence[tuple[PlanOptions, int]], network: AxisNetwork
) -> list[tuple[IntArray, Priced]]:
    """Return the price of each row of a network, each under its own plan options; or its bound.

    Rows with the same options are priced together, each part with the numbers of its rows.
    Options and rows that do not change a layer share one price of it. The problem may have a pace
    for each row.

    Parameters
    ----------
    option_sets
        Plan options, each with its number of rows.
    """
    layouts: dict[PlanOptions, dict[PlanOptions, dict[PlanOptions, list[int]]]] = {}
    start = 0
    for plan_options, number in option_sets:
        pipelines = layouts.setdefault(layout_of(plan_options), {})
        of_pipeline = pipelines.setdefault(_pipeline_of(problem, plan_options), {})
        of_pipeline.setdefault(plan_options, []).extend(range(start, start + number))
        start += number
    found = []
    first, link_of = groups_of([
        *(getattr(network.strategy, name) for name in (*AXES, "ep", "etp")),
        *network.placement.keys(AXES),
        *map(numbered, (*network.slowdown.values(), *network.own_slowdown.values())),
    ])  # fmt: skip
    links = step_collectives(problem, take_rows(network, first))
    for layout, pipelines in layouts.items():
        rows = np.array(
            [row for of_each in pipelines.values() for own in of_each.values() for row in own],
            dtype=np.int64,
        )
        part, paced = take_rows(network, rows), problem.of_rows(rows)
        first, equal = layer_keys(part, layout, paced.pace_keys)
        few = take_rows(part, first)
        recomputes = tuple({r: None for one in pipelines for r in recomputes_of(one)})
        tables = layer_prices(paced.of_rows(first), layout, few, recomputes)
        end = 0
        for pipeline, members in pipelines.items():
            begin, end = end, end + sum(map(len, members.values()))
            groups, at_pace = (
                take_rows(part, slice(begin, end)),
                paced.of_rows(np.arange(begin, end)),
            )
            layers = take_rows(prices_of(pipeline, tables), equal[begin:end])
            own_links = take_rows(links, link_of[rows[begin:end]])
            send_s = own_links.send.time_s(send_bytes(at_pace, pipeline, groups.strategy), 1.0)
            price = pipeline_price(at_pace, pipeline, groups.strategy, layers, send_s)
            after = 0
            for plan_options, own in members.items():
                start, after = after, after + len(own)
                some = slice(start, after)
                priced = price_columns(
                    at_pace.of_rows(np.arange(start, after)), plan_options,
                    take_rows(groups.strategy, some), take_rows(groups, some),
                    take_rows(own_links, some), take_rows(price, some),
                )  # fmt: skip
                found.append((rows[begin:end][some], priced))
    return found


def _pipeline_of(problem: Problem, plan_options: PlanOptions) -> PlanOptions:
    """Return the choices that the price of a pipeline depends on: those of its states are not."""
    stage = PlanOptions.zero_stage
    if problem.workload.software.sums_in_last_pass and plan_options.zero_stage == 3:
        stage = 3
    return replace(plan_options, zero_stage=stage, reshard_after_forward=True, offload=Offload.NONE)


def price_one(problem: Problem, plan_options: PlanOptions, strategy: Strategy) -> Priced:
    """Return the price of one strategy: a column of one row."""
    return price_columns(problem, plan_options, stack([strategy]))


def send_s(
    problem: ProblemOf[Workload], plan_options: PlanOptions, strategy: StrategyOf[Num],
    collectives: Collectives,
) -> Num:  # fmt: skip
    """Return the seconds in which one micro-batch passes to the next stage [s]."""
    num_bytes = send_bytes(problem, plan_options, strategy)
    return collectives.time_s(CollectiveKind.SEND, "pp", num_bytes)


@dataclass(frozen=True)
class DataParallelLinks:
    """Collectives over the data-parallel axes, for dense and for expert parameters."""

    reduce_scatter: CollectiveTime
    all_gather: CollectiveTime
    replicate_all_reduce: CollectiveTime
    """All-reduce over dp_replicate of the tensors that one shard holds."""
    all_reduce: CollectiveTime
    """All-reduce over all replicas of a parameter at once: without ZeRO."""
    degrees: Num
    """Devices that share one copy of the sharded state [1]."""
    broadcast: CollectiveTime | None = None
    """Over the shards; None where no software sends weights this way."""


SyncedKinds = Sequence[tuple[Num, DataParallelLinks]]
"""Parameters on one device with their collectives: dense ones, and those of routed experts."""


NOTHING = Exposure(0.0, 0.0)
NO_SOFTWARE = SoftwareStack()


@dataclass(frozen=True)
class GradientSync:
    """Data-parallel synchronisation of a step, by the time of its exposure."""

    first_forward: Exposure = NOTHING
    """Parameters that come once, before the first forward pass."""
    each_forward: Exposure = NOTHING
    """Parameters for the forward pass of each micro-batch."""
    each_backward: Exposure = NOTHING
    """Parameters and gradients of the backward pass of each micro-batch."""
    num_micro_batches: Num = 0.0
    last_backward: Exposure = NOTHING
    """Gradients that leave once, under the last backward pass."""
    replicas: Exposure = NOTHING
    """Sums over the replicas of a shard."""
    norm: Exposure = NOTHING
    """The number for the gradient norm."""
    copies: Exposure = NOTHING
    """Copies of full sharding, of all micro-batches."""
    head: Exposure = NOTHING
    """Transfers of the head that other units do not make, in all micro-batches."""

    @property
    def total(self) -> Exposure:
        """All of it."""
        passes = (self.each_forward + self.each_backward).times(self.num_micro_batches)
        once = (self.last_backward, self.first_forward, self.replicas, self.norm, self.copies,
                self.head)  # fmt: skip
        return reduce(add, once, passes)

    @property
    def at_end(self) -> Exposure:
        """Transfers after the last backward pass of a stage."""
        return self.last_backward + self.replicas + self.norm


def gradient_sync(
    kinds: SyncedKinds, pipeline: PipelinePrice, plan_options: PlanOptions,
    optimizer: OptimizerPreset, software: SoftwareStack = NO_SOFTWARE,
) -> GradientSync:  # fmt: skip
    """Return the seconds of synchronising all kinds of parameters in a step.

    ZeRO 0: one all-reduce of gradients. ZeRO 1: one reduce-scatter, one all-gather of parameters.
    ZeRO 2 and 3: as often as :func:`~meshwright.cost.pipeline.sync_counts` says. Gradients hide
    under the last (ZeRO 2, 3: each) backward pass, parameters under a forward pass; under a
    schedule that splits the backward pass, gradients hide under its weight gradients alone.
    Gradients that are summed behind the last pass, broadcasts of updated weights, and the sum of
    one number for the gradient norm hide under nothing. Transfers of several kinds of parameters
    add: they share the window and the links.

    Source: Rajbhandari et al. 2020 (ZeRO), section 7.
    """
    # Buckets of one layer each; without overlap everything is exposed.
    buckets = larger(pipeline.num_layers, 1.0)

    def show(sent: _Sent, window_s: Num) -> Exposure:
        if not plan_options.overlap_data_parallel:
            return plain(sent.shared_s)
        return overlapped(sent.shared_s, window_s, buckets, sent.alone_s)

    forward_s, backward_s = pipeline.forward_window_s, pipeline.backward_window_s
    gradient_s, stage = pipeline.gradient_window_s, plan_options.zero_stage
    if stage == 0:
        # One all-reduce of all gradients.
        norm_s = sum(links.all_reduce.time_s(0.0, 1.0) for _, links in kinds)
        word = optimizer.reduced_gradient_bytes_per_param
        if software.autocasts_whole_weights:
            word = optimizer.gradient_bytes_per_param
        summed = show(_all_reduce(kinds, buckets, word), gradient_s)
        return GradientSync(last_backward=summed, norm=Exposure(norm_s, 0.0))
    # ZeRO 1 to 3: gradients scattered, weights gathered, one shard summed over its replicas.
    gradient = optimizer.reduced_gradient_bytes_per_param
    weight = optimizer.gathered_bytes_per_param(stage)
    reduced = _sent((k.reduce_scatter, n * gradient, buckets) for n, k in kinds)
    gathered = _sent((k.all_gather, n * weight, buckets) for n, k in kinds)
    replicas = _sent((k.replicate_all_reduce, n * gradient / k.degrees, 1.0) for n, k in kinds)
    norm_s = sum(
        sum(t.time_s(0.0, 1.0) for t in (k.reduce_scatter, k.all_gather, k.replicate_all_reduce))
        for _, k in kinds
    )
    norm = Exposure(norm_s, 0.0)
    if stage == 1:
        if software.sums_whole_gradients:
            reduced, replicas = _all_reduce(kinds, buckets, gradient), replicas.times(0.0)
        update = show(gathered, forward_s)
        if software.broadcasts_updates:
            update = plain(_broadcast(kinds, buckets, optimizer).shared_s)
        last = show(replicas, positive_part(gradient_s - reduced.shared_s))
        return GradientSync(
            first_forward=update, last_backward=show(reduced, gradient_s), replicas=last, norm=norm
        )
    # What is left of the last backward window hides the sum over replicas.
    m, counts = pipeline.num_micro_batches, counts_of(pipeline, plan_options, software)
    again = gathered.times(1.0 if stage == 3 and plan_options.reshard_after_forward else 0.0)
    # Both kinds of transfers share the backward window; gradients come in the last part of it.
    shared_s = smaller(backward_s, gradient_s + again.shared_s)
    at_end = plain(0.0 * shared_s)
    passed = again + reduced
    last = show(replicas, positive_part(shared_s - passed.shared_s))
    if software.sums_in_last_pass and stage == 3:
        passed, at_end = again, show(reduced, gradient_s)
    if sums_replicas_each_pass(plan_options, software) and stage == 3:
        passed, last = passed + replicas, plain(0.0 * shared_s)
    before, behind = show(gathered, forward_s), show(passed, shared_s)
    if software.whole_in_pipelines:
        in_passes, share = 1.0 - counts.at_end, counts.at_end * counts.backward_gathers / m
        behind = behind.times(in_passes) + show(gathered, backward_s).times(share)
        last = last.times(in_passes) + plain(replicas.shared_s).times(counts.at_end)
        at_end = plain(reduced.shared_s).times(counts.at_end)
    synced = GradientSync(
        each_backward=behind, num_micro_batches=m, last_backward=at_end, replicas=last, norm=norm
    )
    if stage == 2:
        return replace(synced, first_forward=before)
    return replace(synced, each_forward=before.times(counts.forward_gathers / m))


@dataclass(frozen=True)
class _Sent:
    """Seconds of some collectives, on links as others share them [s]."""

    shared_s: Num
    alone_s: Num | None
    """Seconds on links that nothing else uses; None where nothing shares them."""

    def __add__(self, other: _Sent) -> _Sent:
        both_s = self.shared_s + other.shared_s
        if self.alone_s is None and other.alone_s is None:
            return _Sent(both_s, None)
        mine_s, theirs_s = (s.shared_s if s.alone_s is None else s.alone_s for s in (self, other))
        return _Sent(both_s, mine_s + theirs_s)

    def times(self, number: float) -> _Sent:
        """Return the seconds multiplied by a number."""
        alone_s = None if self.alone_s is None else number * self.alone_s
        return _Sent(number * self.shared_s, alone_s)


def _sent(collectives: Iterable[tuple[CollectiveTime, Num, Num]]) -> _Sent:
    """Return the seconds of collectives, each with its bytes and messages."""
    return reduce(
        add,
        (
            _Sent(c.time_s(size, number), c.alone_s(size, number) if c.alone else None)
            for c, size, number in collectives
        ),
    )


def _all_reduce(kinds: SyncedKinds, buckets: Num, word_bytes: float) -> _Sent:
    """Return the seconds of summing the gradients of all kinds over all replicas."""
    return _sent((links.all_reduce, params * word_bytes, buckets) for params, links in kinds)


def _broadcast(kinds: SyncedKinds, buckets: Num, optimizer: OptimizerPreset) -> _Sent:
    """Return the seconds in which each rank of a shard sends the weights that it has updated."""
    word = optimizer.updated_bytes_per_param
    return _sent((k.broadcast, n * word, buckets) for n, k in kinds if k.broadcast is not None)


def sharding_copies_s(
    state: StageState, counts: SyncCounts, optimizer: OptimizerPreset, memory_bytes_per_s: Num
) -> Num:  # fmt: skip
    """Return the seconds in which full sharding copies in a step, where no compiler removes it.

    Each gather copies weights out of its buffer (2 bytes in, 2 out), each scatter casts and lays
    out gradients (2 in, 4 out), unless weights are frozen.
    Source: PyTorch FSDP2, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
    """
    gathers = counts.forward_gathers + counts.backward_gathers
    per_param = 4.0 * gathers + 6.0 * counts.scatters * (not optimizer.freezes_weights)
    return (state.dense_params + state.expert_params) * per_param / memory_bytes_per_s


@dataclass(frozen=True)
class SyncLinks:
    """Collectives over the data-parallel axes of dense parameters, and of expert parameters."""

    dense: DataParallelLinks
    expert: DataParallelLinks | None


@dataclass(frozen=True)
class StepCollectives:
    """Collectives outside of layers."""

    send: CollectiveTime
    """Send of the activations of one micro-batch to the next stage."""
    sync: SyncLinks


def step_collectives(problem: Problem, network: AxisNetwork) -> StepCollectives:
    """Return the collectives outside of layers for the strategies of a network."""
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    return StepCollectives(
        collectives.time_over(CollectiveKind.SEND, "pp"), sync_links(problem, collectives)
    )


def sync_links(problem: Problem, collectives: Collectives) -> SyncLinks:
    """Return the data-parallel collectives for the strategies of a network."""

    def over(shard: str, replicate: str, everyone: str, degrees: Num) -> DataParallelLinks:
        return DataParallelLinks(
            reduce_scatter=collectives.beside_others(CollectiveKind.REDUCE_SCATTER, shard),
            all_gather=collectives.beside_others(CollectiveKind.ALL_GATHER, shard),
            replicate_all_reduce=collectives.beside_others(CollectiveKind.ALL_REDUCE, replicate),
            all_reduce=collectives.beside_others(CollectiveKind.ALL_REDUCE, everyone),
            degrees=degrees,
            broadcast=collectives.beside_others(CollectiveKind.BROADCAST, shard) if sends else None,
        )

    sends = problem.workload.software.broadcasts_updates
    s = collectives.network.strategy
    experts = None
    if problem.num_experts:
        experts = over("edp_shard", "edp_replicate", "edp", degree_of("edp_shard", s))
    axes = ("dp_shard*cp", "dp_replicate", "dp_replicate*dp_shard*cp")
    return SyncLinks(over(*axes, s.dp_shard * s.cp), experts)
