"""Seconds of one training step: a pipeline of micro-batches, then synchronisation and update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from meshwright.base.arrays import larger, positive_part
from meshwright.cost.data_parallel import Exposure, Transfer, overlapped, plain, slowdown_s
from meshwright.cost.memory import ShardDegrees, StageState, resident_bytes
from meshwright.sharding.strategy import Offload, Structure
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
