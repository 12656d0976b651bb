"""Seconds of one training step: a pipeline of micro-batches, then synchronisation and update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, reduce
from typing import Any, TypeVar, cast

import numpy as np

from meshwright.base.arrays import larger, positive_part
from meshwright.base.errors import Fault, SpecError
from meshwright.cost.data_parallel import Exposure, Transfer, overlapped, plain, slowdown_s
from meshwright.cost.energy import step_cost_usd, step_energy_parts_j, throttled, total_energy_j
from meshwright.cost.layer import Collectives, price_layers
from meshwright.cost.memory import (
    MemoryUse,
    ShardDegrees,
    StageState,
    host_bytes,
    memory_use,
    resident_bytes,
)
from meshwright.cost.network import AxisNetwork
from meshwright.cost.pipeline import PipelinePrice, price_pipeline, send_bytes
from meshwright.cost.problem import Problem, ProblemOf
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import (
    Offload,
    Strategy,
    StrategyColumns,
    StrategyOf,
    Structure,
    stack,
)
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import HostLink
from meshwright.spec.workload import OptimizerPreset


@dataclass(frozen=True)
class StepTime:
    """Where the time of a step goes, on the slowest stage [s]; the parts sum to ``total_s``."""

    compute_s: Any
    """Forward, input gradients and weight gradients."""
    recompute_s: Any
    launch_s: Any
    """Waiting for the host to launch kernels."""
    tp_comm_s: Any
    """Exposed communication of tensor and sequence parallelism."""
    cp_comm_s: Any
    ep_comm_s: Any
    tatp_stream_s: Any
    """Rounds of tensor streams that wait for a link or for memory."""
    pp_comm_s: Any
    bubble_s: Any
    dp_comm_s: Any
    """Exposed synchronisation of gradients and parameters."""
    overlap_slowdown_s: Any
    """What computation loses while transfers run beside it."""
    optimizer_s: Any
    offload_s: Any
    jitter_s: Any
    """Waiting for the slowest of many devices."""
    throttle_s: Any
    """Slowed down, so that the mean power stays below a cap."""

    @property
    def total_s(self) -> Any:
        """The whole step [s]."""
        total = getattr(self, TIME_PARTS[0])
        for name in TIME_PARTS[1:]:
            total = total + getattr(self, name)
        return total


TIME_PARTS = tuple(entry.name for entry in fields(StepTime))
PIPELINE_PARTS = TIME_PARTS[:9]
"""Parts that do not depend on how data-parallel state is sharded."""


@dataclass(frozen=True)
class PipelineCost:
    """All micro-batches through the pipeline, and what the rest of the step needs to know."""

    compute_s: Any
    recompute_s: Any
    launch_s: Any
    tp_comm_s: Any
    cp_comm_s: Any
    ep_comm_s: Any
    tatp_stream_s: Any
    pp_comm_s: Any
    bubble_s: Any
    forward_window_s: Any
    """Computation of one micro-batch on the slowest stage, forward [s]."""
    backward_window_s: Any
    num_micro_batches: Any
    num_layers: Any
    """Layers of the slowest stage: buckets of gradients and messages of ZeRO-3."""
    tied_sync_s: Any
    """Summing the gradient of a tied embedding over both ends of the pipeline [s]."""
    hidden_s: Any
    """Communication of all micro-batches that runs beside computation [s]."""

    @property
    def total_s(self) -> Any:
        """The pipeline alone: a lower bound of the step [s]."""
        total = getattr(self, PIPELINE_PARTS[0])
        for name in PIPELINE_PARTS[1:]:
            total = total + getattr(self, name)
        return total


@dataclass(frozen=True)
class DataParallelLinks:
    """Collectives over the data-parallel axes, for dense and for expert parameters."""

    reduce_scatter: Transfer
    all_gather: Transfer
    replicate_all_reduce: Transfer
    """Over dp_replicate, of what one shard holds."""
    all_reduce: Transfer
    """Over all replicas of a parameter at once: without ZeRO."""
    degrees: Any
    """Devices that share one copy of the sharded state [1]."""


SyncedKinds = Sequence[tuple[Any, DataParallelLinks]]
"""Parameters on one device with their collectives: dense ones, and those of routed experts."""


def gradient_sync(
    kinds: SyncedKinds, pipeline: PipelineCost, structure: Structure,
    optimizer: OptimizerPreset, *, sums_whole: bool = False,
) -> Exposure:  # fmt: skip
    """Return the seconds of synchronising all kinds of parameters in a step.

    ZeRO 0: one all-reduce of gradients. ZeRO 1: one reduce-scatter, one all-gather of parameters.
    ZeRO 2: a reduce-scatter after each micro-batch, because only the shard is kept. ZeRO 3: for
    each micro-batch an all-gather (two when weights are dropped in between) and a reduce-scatter.
    Gradients hide under the last (ZeRO 2, 3: each) backward pass, parameters under a forward pass.
    The sum of one number for the gradient norm comes after them and hides under nothing.
    Transfers of several kinds of parameters add: they share the window and the links.

    Parameters
    ----------
    sums_whole
        Gradients are summed on every rank, although ZeRO 1 needs only a shard of them there.

    Source: Rajbhandari et al. 2020 (ZeRO), section 7.
    """
    buckets = larger(pipeline.num_layers, 1.0)
    show = partial(overlapped, num_buckets=buckets) if structure.overlap_data_parallel else plain
    forward_s, backward_s = pipeline.forward_window_s, pipeline.backward_window_s
    if structure.zero_stage == 0:
        exposure = show(_all_reduce_s(kinds, buckets, optimizer), backward_s)
        norm_s = sum(links.all_reduce.time_s(0.0, 1.0) for _, links in kinds)
        return Exposure(exposure.exposed_s + norm_s, exposure.hidden_s)
    reduce_s, gather_s, replicas_s = _shard_s(kinds, buckets, optimizer)
    if sums_whole and structure.zero_stage == 1:
        reduce_s, replicas_s = _all_reduce_s(kinds, buckets, optimizer), 0.0 * replicas_s
    norm_s = sum(_norm_s(links) for _, links in kinds)
    repeats = pipeline.num_micro_batches if structure.zero_stage >= 2 else 1.0
    if structure.zero_stage < 3:
        reduced, gathered = show(reduce_s, backward_s), show(gather_s, forward_s)
        last = show(replicas_s, positive_part(backward_s - reduce_s))
        exposed = repeats * reduced.exposed_s + gathered.exposed_s + last.exposed_s
        hidden = repeats * reduced.hidden_s + gathered.hidden_s + last.hidden_s
        return Exposure(exposed + norm_s, hidden)
    again_s = gather_s if structure.reshard_after_forward else gather_s * 0.0
    forward, backward = show(gather_s, forward_s), show(again_s + reduce_s, backward_s)
    last = show(replicas_s, positive_part(backward_s - again_s - reduce_s))
    exposed = repeats * (forward.exposed_s + backward.exposed_s) + last.exposed_s
    hidden = repeats * (forward.hidden_s + backward.hidden_s) + last.hidden_s
    return Exposure(exposed + norm_s, hidden)


def _all_reduce_s(kinds: SyncedKinds, buckets: Any, optimizer: OptimizerPreset) -> Any:
    """Return the seconds of summing the gradients of all kinds over all replicas."""
    word = optimizer.reduced_gradient_bytes_per_param
    return sum(links.all_reduce.time_s(params * word, buckets) for params, links in kinds)


def _shard_s(kinds: SyncedKinds, buckets: Any, optimizer: OptimizerPreset) -> tuple[Any, Any, Any]:
    """Return the seconds of scattering gradients, gathering weights, and summing over replicas."""
    gradient = optimizer.reduced_gradient_bytes_per_param
    weight = optimizer.gathered_weight_bytes_per_param
    return (
        sum(k.reduce_scatter.time_s(n * gradient, buckets) for n, k in kinds),
        sum(k.all_gather.time_s(n * weight, buckets) for n, k in kinds),
        sum(k.replicate_all_reduce.time_s(n * gradient / k.degrees, 1.0) for n, k in kinds),
    )


def _norm_s(links: DataParallelLinks) -> Any:
    """Return the seconds of summing one number over shards and their replicas."""
    transfers = (links.reduce_scatter, links.all_gather, links.replicate_all_reduce)
    return sum(transfer.time_s(0.0, 1.0) for transfer in transfers)


def sharding_copies_s(
    state: StageState, pipeline: PipelineCost, structure: Structure, memory_bytes_per_s: Any
) -> Any:
    """Return the seconds in which full sharding copies in a step, where no compiler removes it.

    Each gather copies weights out of its buffer (2 bytes in, 2 out), each micro-batch casts and
    lays out gradients for the scatter (2 in, 4 out).
    Source: PyTorch FSDP2, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
    """
    per_param = 4.0 * (1.0 + structure.reshard_after_forward) + 6.0
    params = state.dense_params + state.expert_params
    return pipeline.num_micro_batches * params * per_param / memory_bytes_per_s


def optimizer_step_s(
    state: StageState, shards: ShardDegrees, structure: Structure, optimizer: OptimizerPreset,
    memory_bytes_per_s: Any,
) -> Any:  # fmt: skip
    """Return the seconds of the update: its memory traffic over the parameters of the shard."""
    per_param = optimizer.step_traffic_bytes_per_param
    traffic = resident_bytes(state, per_param, shards, is_sharded=structure.zero_stage >= 1)
    return traffic / memory_bytes_per_s


def offload_step_s(
    state: StageState, shards: ShardDegrees, pipeline: PipelineCost, structure: Structure,
    optimizer: OptimizerPreset, host_bytes_per_s: float,
) -> Exposure:  # fmt: skip
    """Return the seconds of host traffic of a step: what nothing hides, and the rest.

    Optimizer state travels both ways once a step, with nothing beside it. Weights arrive for each
    forward and backward pass, activations leave and come back; both hide under computation of
    the same pass, except for one layer of each.
    """
    exposed = pipeline.compute_s * 0.0
    if structure.offload in (Offload.OPTIMIZER, Offload.ALL):
        moved = resident_bytes(
            state, optimizer.state_bytes_per_param, shards, is_sharded=structure.zero_stage >= 1
        )
        exposed = exposed + 2.0 * moved / host_bytes_per_s
    per_pass_bytes = exposed * 0.0
    if structure.offload in (Offload.WEIGHTS, Offload.ALL):
        params = state.dense_params + state.expert_params
        per_pass_bytes = per_pass_bytes + params * optimizer.gathered_weight_bytes_per_param
    if structure.offload in (Offload.ACTIVATIONS, Offload.ALL):
        per_pass_bytes = per_pass_bytes + state.kept_bytes
    per_pass_s = per_pass_bytes / host_bytes_per_s
    layers = larger(pipeline.num_layers, 1.0)
    forward = overlapped(per_pass_s, pipeline.forward_window_s, layers)
    backward = overlapped(per_pass_s, pipeline.backward_window_s, layers)
    repeats = pipeline.num_micro_batches
    return Exposure(
        exposed + repeats * (forward.exposed_s + backward.exposed_s),
        repeats * (forward.hidden_s + backward.hidden_s),
    )


def step_time(
    pipeline: PipelineCost, data_parallel: Exposure, optimizer_s: Any, offload: Exposure,
    *, sigma: Any, jitter: Any,
) -> StepTime:  # fmt: skip
    """Return the whole step.

    Parameters
    ----------
    data_parallel, offload
        Data-parallel communication and host traffic of one step, shown and hidden [s].
    sigma
        Share by which computation slows under communication [1].
    jitter
        What n devices add to the step of one, as a fraction: s sqrt(2 ln n) [1].
    """
    window_s = pipeline.num_micro_batches * (pipeline.forward_window_s + pipeline.backward_window_s)
    dp_comm_s = data_parallel.exposed_s + pipeline.tied_sync_s
    hidden_s = pipeline.hidden_s + data_parallel.hidden_s + offload.hidden_s
    slowdown = slowdown_s(hidden_s, window_s, sigma)
    before = pipeline.total_s + dp_comm_s + slowdown + optimizer_s + offload.exposed_s
    return StepTime(
        **{name: getattr(pipeline, name) for name in PIPELINE_PARTS},
        dp_comm_s=dp_comm_s,
        overlap_slowdown_s=slowdown,
        optimizer_s=optimizer_s,
        offload_s=offload.exposed_s,
        jitter_s=before * jitter,
        throttle_s=before * 0.0,
    )


def jitter_fraction(num_devices: Any, spread: Any) -> Any:
    """Return what waiting for the slowest of n devices adds to a step, as a fraction.

    s sqrt(2 ln n): the expected largest of n draws with standard deviation s. Source: extreme
    value of normal draws (Cramer 1946, section 28.6), first order.
    """
    values, inverse = np.unique(np.asarray(num_devices, dtype=float), return_inverse=True)
    roots = np.array([math.sqrt(2.0 * math.log(max(n, 1.0))) for n in values.tolist()])
    return spread * roots[inverse].reshape(np.shape(num_devices))


Record = TypeVar("Record")


@dataclass(frozen=True)
class SyncLinks:
    """Collectives over the data-parallel axes of dense parameters, and of expert parameters."""

    dense: DataParallelLinks
    expert: DataParallelLinks | None


@dataclass(frozen=True)
class StepPrice:
    """The price of a step for columns of strategies."""

    time: StepTime
    memory: tuple[MemoryUse, ...]
    """Of the first, the fullest middle and the last stage."""
    host_bytes: Any
    """On the host, for one device [bytes]."""
    energy_j: Any
    energy_parts_j: dict[str, Any]
    """By part, as far as they can be told apart; empty: not known [J]."""
    cost_usd: Any
    num_devices: Any
    flops: Any
    """Executed by the slowest device [FLOP]."""

    @property
    def memory_bytes(self) -> Any:
        """Memory of the fullest device [bytes]."""
        return reduce(larger, [use.total_bytes for use in self.memory])


def take_rows(record: Record, rows: Any) -> Record:
    """Return the named rows of a record of columns; numbers stay as they are."""
    result: Any = record
    if isinstance(record, np.ndarray):
        result = record[rows]
    elif isinstance(record, tuple):
        result = tuple(take_rows(entry, rows) for entry in record)
    elif isinstance(record, dict):
        result = {name: take_rows(entry, rows) for name, entry in record.items()}
    elif is_dataclass(record) and not isinstance(record, type):
        parts = {f.name: take_rows(getattr(record, f.name), rows) for f in fields(record)}
        result = type(record)(**parts)
    return cast(Record, result)


def joined(records: Sequence[Record]) -> Record:
    """Return records of columns put after one another."""
    first: Any = records[0]
    result: Any = first
    if isinstance(first, np.ndarray):
        result = np.concatenate([cast(Any, record) for record in records])
    elif isinstance(first, tuple):
        entries = zip(*[cast(Any, record) for record in records], strict=True)
        result = tuple(joined(list(entry)) for entry in entries)
    elif isinstance(first, dict):
        result = {name: joined([cast(Any, r)[name] for r in records]) for name in first}
    elif is_dataclass(first) and not isinstance(first, type):
        parts = {f.name: joined([getattr(r, f.name) for r in records]) for f in fields(first)}
        result = type(first)(**parts)
    return cast(Record, result)


def sync_links(problem: Problem, collectives: Collectives) -> SyncLinks:
    """Return the data-parallel collectives for the strategies of a network."""
    s = collectives.network.strategy
    dense = _links(collectives, "dp_shard*cp", "dp_replicate", "dp_replicate*dp_shard*cp")
    degrees = s.dp_shard * s.cp
    experts = None
    if problem.num_experts:
        shard_degree = degree_of("edp_shard", s)
        experts = _links(collectives, "edp_shard", "edp_replicate", "edp", shard_degree)
    return SyncLinks(_with_degrees(dense, degrees), experts)


def _links(
    collectives: Collectives, shard: str, replicate: str, everyone: str, degrees: Any = 1.0
) -> DataParallelLinks:
    return DataParallelLinks(
        reduce_scatter=collectives.transfer(CollectiveKind.REDUCE_SCATTER, shard),
        all_gather=collectives.transfer(CollectiveKind.ALL_GATHER, shard),
        replicate_all_reduce=collectives.transfer(CollectiveKind.ALL_REDUCE, replicate),
        all_reduce=collectives.transfer(CollectiveKind.ALL_REDUCE, everyone),
        degrees=degrees,
    )


def _with_degrees(links: DataParallelLinks, degrees: Any) -> DataParallelLinks:
    parts = {f.name: getattr(links, f.name) for f in fields(links)}
    return DataParallelLinks(**{**parts, "degrees": degrees})


def price_step(
    problem: Problem,
    structure: Structure,
    strategy: StrategyOf[Any],
    price: PipelinePrice,
    links: SyncLinks,
) -> StepPrice:
    """Return the whole step for columns of strategies, whose pipelines have these prices."""
    shards = shard_degrees(problem, strategy)
    time = step_times(problem, structure, shards, price, links)
    time = throttled(problem, structure, strategy, price, time)
    on_host = [
        host_bytes(state, shards, structure, problem.workload.optimizer) for state in price.states
    ]
    parts_j = step_energy_parts_j(problem, structure, strategy, price, time)
    return StepPrice(
        time=time,
        memory=step_memory(problem, structure, shards, price.states),
        host_bytes=reduce(larger, on_host),
        energy_j=total_energy_j(parts_j, time.total_s),
        energy_parts_j=parts_j,
        cost_usd=step_cost_usd(problem.system.chip, time.total_s, strategy.num_devices),
        num_devices=strategy.num_devices,
        flops=price.flops,
    )


def step_times(
    problem: Problem,
    structure: Structure,
    shards: ShardDegrees,
    price: PipelinePrice,
    links: SyncLinks,
) -> StepTime:
    """Return the time of the step, in parts; the states of single stages do not matter."""
    optimizer, heaviest = problem.workload.optimizer, price.heaviest
    kinds = [(heaviest.dense_params, links.dense)]
    if links.expert is not None:
        kinds.append((heaviest.expert_params, links.expert))
    software = problem.workload.software
    synced = gradient_sync(
        kinds, price.pipeline, structure, optimizer, sums_whole=software.sums_whole_gradients
    )
    if structure.zero_stage == 3 and software.copies_shards:
        copied = sharding_copies_s(
            heaviest, price.pipeline, structure, problem.engine.elementwise_bytes_per_s
        )
        synced = Exposure(synced.exposed_s + copied, synced.hidden_s)
    optimizer_s = optimizer_step_s(
        heaviest, shards, structure, optimizer, problem.engine.memory_bytes_per_s
    )
    offloaded = plain(0.0 * optimizer_s)
    if structure.offload is not Offload.NONE:
        offloaded = offload_step_s(
            heaviest, shards, price.pipeline, structure, optimizer,
            host_of(problem).bandwidth_bytes_per_s,
        )  # fmt: skip
    return step_time(
        price.pipeline, synced, optimizer_s, offloaded,
        sigma=problem.calibration.overlap_slowdown, jitter=price.jitter,
    )  # fmt: skip


def host_of(problem: Problem) -> HostLink:
    """Return the host that takes what is offloaded.

    Raises
    ------
    SpecError
        When the system has none.
    """
    host = problem.system.host
    if host is None:
        message = f"{problem.system.name} has no host memory to offload to"
        raise SpecError(Fault("offload", message, "offload=none"))
    return host


def step_memory(
    problem: Problem, structure: Structure, shards: ShardDegrees, states: Sequence[StageState]
) -> tuple[MemoryUse, ...]:
    """Return the memory of each stage: of the first, the fullest middle and the last one."""
    return tuple(
        memory_use(
            state, shards, structure, problem.workload.optimizer,
            capacity_bytes=problem.system.chip.main_memory.capacity_bytes,
            margin_fraction=problem.calibration.memory_margin_fraction,
            buffer_bytes=problem.calibration.communication_buffer_bytes,
            communicator_bytes=problem.calibration.communicator_bytes,
            allocator_factor=problem.calibration.allocator_factor,
        )
        for state in states
    )  # fmt: skip


def fits_memory(
    problem: Problem, structure: Structure, shards: ShardDegrees, states: Sequence[StageState]
) -> tuple[Any, Any]:
    """Return the memory of the fullest device [bytes], and whether device and host hold it."""
    uses = step_memory(problem, structure, shards, states)
    needed = reduce(larger, [use.total_bytes for use in uses])
    fits = needed <= problem.system.chip.main_memory.capacity_bytes
    if structure.offload is not Offload.NONE:
        for state in states:
            on_host = host_bytes(state, shards, structure, problem.workload.optimizer)
            fits = fits & (on_host <= host_of(problem).capacity_bytes)
    return needed, fits


def shard_degrees(problem: Problem, strategy: StrategyOf[Any]) -> ShardDegrees:
    """Return over how many devices the state of dense and of expert parameters is split."""
    dense = strategy.dp_shard * strategy.cp
    if not problem.num_experts:
        return ShardDegrees(dense=dense, expert=1.0)
    return ShardDegrees(dense=dense, expert=degree_of("edp_shard", strategy))


@dataclass(frozen=True)
class Priced:
    """Strategies under one structure, with the price of each."""

    strategy: StrategyColumns
    structure: Structure
    step: StepPrice
    pipeline: PipelinePrice


def price_columns(
    problem: Problem,
    structure: Structure,
    strategy: StrategyColumns,
    network: AxisNetwork | None = None,
) -> Priced:
    """Return the price of each row of the columns, all under one structure.

    Parameters
    ----------
    network
        The groups of the rows, where they are not those of the order of the axes alone.
    """
    network = network or problem.network(structure.axis_order, strategy)
    layers = price_layers(
        problem, structure, network, (structure.recompute,),
        uses_tatp=bool((strategy.tatp > 1).any()),
    )  # fmt: skip
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    send = send_s(problem, structure, strategy, collectives)
    pipeline = price_pipeline(problem, structure, strategy, layers[structure.recompute], send)
    step = price_step(problem, structure, strategy, pipeline, sync_links(problem, collectives))
    return Priced(strategy, structure, step, pipeline)


def price_one(problem: Problem, structure: Structure, strategy: Strategy) -> Priced:
    """Return the price of one strategy: a column of one row."""
    return price_columns(problem, structure, stack([strategy]))


def send_s(
    problem: ProblemOf[Any], structure: Structure, strategy: Any, collectives: Collectives
) -> Any:
    """Return the seconds in which one micro-batch passes to the next stage [s]."""
    num_bytes = send_bytes(problem, structure, strategy)
    return collectives.time_s(CollectiveKind.SEND, "pp", num_bytes)
