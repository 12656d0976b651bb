"""Seconds of synchronising gradients and parameters over the data-parallel axes.

A window of computation is spent once; the last bucket of gradients and the first bucket of
parameters have nothing left to hide behind, so something always stays exposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

from meshwright.base.arrays import Num, larger, positive_part
from meshwright.collectives.bounds import least_sent_bytes
from meshwright.cost.communication import Collectives, Exposure, Transfer, overlapped, plain
from meshwright.cost.memory import (
    StageState,
)
from meshwright.cost.pipeline import (
    PipelineCost,
)
from meshwright.cost.problem import Problem
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import (
    PlanOptions,
)
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import OptimizerPreset


def synced_bytes(
    params: Num, shards: Num, replicas: Num, num_micro_batches: Num, structure: PlanOptions,
    optimizer: OptimizerPreset,
) -> Num:  # fmt: skip
    """Return what a rank sends at the least to synchronise parameters in a step [bytes].

    As often as the stage of ZeRO asks for it: once, or for each micro-batch.

    Parameters
    ----------
    params
        On one rank, before they are sharded [1].
    shards, replicas
        Ranks that share one copy of the state, and copies [1].
    """
    gradient_bytes = params * optimizer.reduced_gradient_bytes_per_param
    weight_bytes = params * optimizer.gathered_weight_bytes_per_param
    stage = structure.zero_stage
    if stage == 0:
        kind = CollectiveKind.ALL_REDUCE
        sent: Num = least_sent_bytes(kind, gradient_bytes, shards * replicas)
        return sent
    scattered = least_sent_bytes(CollectiveKind.REDUCE_SCATTER, gradient_bytes, shards)
    gathered = least_sent_bytes(CollectiveKind.ALL_GATHER, weight_bytes, shards)
    summed = least_sent_bytes(CollectiveKind.ALL_REDUCE, gradient_bytes / shards, replicas)
    num_scatters = num_micro_batches if stage >= 2 else 1.0
    num_gathers = num_micro_batches * (1.0 + structure.reshard_after_forward) if stage == 3 else 1.0
    result: Num = num_scatters * scattered + num_gathers * gathered + summed
    return result


@dataclass(frozen=True)
class DataParallelLinks:
    """Collectives over the data-parallel axes, for dense and for expert parameters."""

    reduce_scatter: Transfer
    all_gather: Transfer
    replicate_all_reduce: Transfer
    """Over dp_replicate, of what one shard holds."""
    all_reduce: Transfer
    """Over all replicas of a parameter at once: without ZeRO."""
    degrees: Num
    """Devices that share one copy of the sharded state [1]."""


SyncedKinds = Sequence[tuple[Num, DataParallelLinks]]
"""Parameters on one device with their collectives: dense ones, and those of routed experts."""


def gradient_sync(
    kinds: SyncedKinds, pipeline: PipelineCost, structure: PlanOptions,
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


def _all_reduce_s(kinds: SyncedKinds, buckets: Num, optimizer: OptimizerPreset) -> Num:
    """Return the seconds of summing the gradients of all kinds over all replicas."""
    word = optimizer.reduced_gradient_bytes_per_param
    return sum(links.all_reduce.time_s(params * word, buckets) for params, links in kinds)


def _shard_s(kinds: SyncedKinds, buckets: Num, optimizer: OptimizerPreset) -> tuple[Num, Num, Num]:
    """Return the seconds of scattering gradients, gathering weights, and summing over replicas."""
    gradient = optimizer.reduced_gradient_bytes_per_param
    weight = optimizer.gathered_weight_bytes_per_param
    return (
        sum(k.reduce_scatter.time_s(n * gradient, buckets) for n, k in kinds),
        sum(k.all_gather.time_s(n * weight, buckets) for n, k in kinds),
        sum(k.replicate_all_reduce.time_s(n * gradient / k.degrees, 1.0) for n, k in kinds),
    )


def _norm_s(links: DataParallelLinks) -> Num:
    """Return the seconds of summing one number over shards and their replicas."""
    transfers = (links.reduce_scatter, links.all_gather, links.replicate_all_reduce)
    return sum(transfer.time_s(0.0, 1.0) for transfer in transfers)


def sharding_copies_s(
    state: StageState, pipeline: PipelineCost, structure: PlanOptions, memory_bytes_per_s: Num
) -> Num:
    """Return the seconds in which full sharding copies in a step, where no compiler removes it.

    Each gather copies weights out of its buffer (2 bytes in, 2 out), each micro-batch casts and
    lays out gradients for the scatter (2 in, 4 out).
    Source: PyTorch FSDP2, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
    """
    per_param = 4.0 * (1.0 + structure.reshard_after_forward) + 6.0
    params = state.dense_params + state.expert_params
    return pipeline.num_micro_batches * params * per_param / memory_bytes_per_s


@dataclass(frozen=True)
class SyncLinks:
    """Collectives over the data-parallel axes of dense parameters, and of expert parameters."""

    dense: DataParallelLinks
    expert: DataParallelLinks | None


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
    collectives: Collectives, shard: str, replicate: str, everyone: str, degrees: Num = 1.0
) -> DataParallelLinks:
    return DataParallelLinks(
        reduce_scatter=collectives.transfer(CollectiveKind.REDUCE_SCATTER, shard),
        all_gather=collectives.transfer(CollectiveKind.ALL_GATHER, shard),
        replicate_all_reduce=collectives.transfer(CollectiveKind.ALL_REDUCE, replicate),
        all_reduce=collectives.transfer(CollectiveKind.ALL_REDUCE, everyone),
        degrees=degrees,
    )


def _with_degrees(links: DataParallelLinks, degrees: Num) -> DataParallelLinks:
    parts = {f.name: getattr(links, f.name) for f in fields(links)}
    return DataParallelLinks(**{**parts, "degrees": degrees})
