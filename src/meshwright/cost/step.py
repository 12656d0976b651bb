"""Seconds of one training step: a pipeline of micro-batches, then synchronisation and update."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from meshwright.base.arrays import larger, positive_part
from meshwright.cost.data_parallel import Exposure, Transfer, overlapped, plain, slowdown_s
from meshwright.cost.memory import ShardDegrees, StageState, resident_bytes
from meshwright.spec.workload import OptimizerPreset
from meshwright.strategy.strategy import Offload, Structure


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


def gradient_sync(
    params: Any, links: DataParallelLinks, pipeline: PipelineCost, structure: Structure,
    optimizer: OptimizerPreset,
) -> tuple[Any, Any]:  # fmt: skip
    """Return (exposed, hidden) seconds of synchronising one kind of parameters in a step.

    ZeRO 0: one all-reduce of gradients. ZeRO 1: one reduce-scatter, one all-gather of parameters.
    ZeRO 2: a reduce-scatter after each micro-batch, because only the shard is kept. ZeRO 3: for
    each micro-batch an all-gather (two when weights are dropped in between) and a reduce-scatter.
    Gradients hide under the last (ZeRO 2, 3: each) backward pass, parameters under a forward pass.
    The sum of one number for the gradient norm comes after them and hides under nothing.

    Source: Rajbhandari et al. 2020 (ZeRO), section 7.
    """
    gradient_bytes = params * optimizer.reduced_gradient_bytes_per_param
    weight_bytes = params * optimizer.gathered_weight_bytes_per_param
    buckets, hide = larger(pipeline.num_layers, 1.0), structure.overlap_data_parallel
    forward_s, backward_s = pipeline.forward_window_s, pipeline.backward_window_s

    def show(transfer_s: Any, window_s: Any) -> Exposure:
        return overlapped(transfer_s, window_s, buckets) if hide else plain(transfer_s)

    if structure.zero_stage == 0:
        exposure = show(links.all_reduce.time_s(gradient_bytes, buckets), backward_s)
        return exposure.exposed_s + links.all_reduce.time_s(0.0, 1.0), exposure.hidden_s
    replicas_s = links.replicate_all_reduce.time_s(gradient_bytes / links.degrees, 1.0)
    reduce_s = links.reduce_scatter.time_s(gradient_bytes, buckets)
    gather_s = links.all_gather.time_s(weight_bytes, buckets)
    norm_s = links.reduce_scatter.time_s(0.0, 1.0) + links.all_gather.time_s(0.0, 1.0)
    norm_s = norm_s + links.replicate_all_reduce.time_s(0.0, 1.0)
    repeats = pipeline.num_micro_batches if structure.zero_stage >= 2 else 1.0
    if structure.zero_stage < 3:
        reduced, gathered = show(reduce_s, backward_s), show(gather_s, forward_s)
        last = show(replicas_s, positive_part(backward_s - reduce_s))
        exposed = repeats * reduced.exposed_s + gathered.exposed_s + last.exposed_s
        return exposed + norm_s, repeats * reduced.hidden_s + gathered.hidden_s + last.hidden_s
    again_s = gather_s if structure.reshard_after_forward else gather_s * 0.0
    forward, backward = show(gather_s, forward_s), show(again_s + reduce_s, backward_s)
    last = show(replicas_s, positive_part(backward_s - again_s - reduce_s))
    exposed = repeats * (forward.exposed_s + backward.exposed_s) + last.exposed_s
    return exposed + norm_s, repeats * (forward.hidden_s + backward.hidden_s) + last.hidden_s


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
) -> Any:  # fmt: skip
    """Return the seconds of host traffic that nothing hides.

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
    forward = overlapped(per_pass_s, pipeline.forward_window_s, layers).exposed_s
    backward = overlapped(per_pass_s, pipeline.backward_window_s, layers).exposed_s
    return exposed + pipeline.num_micro_batches * (forward + backward)


def step_time(
    pipeline: PipelineCost, dp_exposed_s: Any, dp_hidden_s: Any, optimizer_s: Any, offload_s: Any,
    *, sigma: Any, jitter: Any,
) -> StepTime:  # fmt: skip
    """Return the whole step.

    Parameters
    ----------
    dp_exposed_s, dp_hidden_s
        Data-parallel communication of one step, shown and hidden [s].
    sigma
        Share by which computation slows under communication [1].
    jitter
        What n devices add to the step of one, as a fraction: s sqrt(2 ln n) [1].
    """
    window_s = pipeline.num_micro_batches * (pipeline.forward_window_s + pipeline.backward_window_s)
    dp_comm_s = dp_exposed_s + pipeline.tied_sync_s
    slowdown = slowdown_s(dp_hidden_s, window_s, sigma)
    before = pipeline.total_s + dp_comm_s + slowdown + optimizer_s + offload_s
    return StepTime(
        **{name: getattr(pipeline, name) for name in PIPELINE_PARTS},
        dp_comm_s=dp_comm_s,
        overlap_slowdown_s=slowdown,
        optimizer_s=optimizer_s,
        offload_s=offload_s,
        jitter_s=before * jitter,
    )
