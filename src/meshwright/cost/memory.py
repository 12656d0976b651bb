"""Bytes on one device: activations of a layer, weights, gradients, optimizer, transients.

Each is known at the moments of a step; the memory of a device is that of the moment at which all of
them together are most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import add
from typing import Protocol, TypeVar

import numpy as np

from meshwright.base.arrays import Mask, Num, ceil_div, larger, smaller, where
from meshwright.base.errors import Fault, SpecError
from meshwright.cost.parts import TENSORS, MemoryPart, MemoryUse, by_field
from meshwright.cost.problem import Problem
from meshwright.graph.common import EDGE
from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor
from meshwright.sharding.axes import weight_sharding
from meshwright.sharding.local_sizes import (
    LocalLayer,
    SavedTensor,
    degree_of,
    local_elements,
    local_size,
)
from meshwright.sharding.strategy import PlanOptions, Recompute, ScheduleKind, StrategyOf
from meshwright.spec.system import HostLink
from meshwright.spec.workload import OptimizerPreset, SoftwareStack
from meshwright.topology.wafer import host_link

MIB = 2.0**20
DETERMINISTIC_WORKSPACE_BYTES = 32.0 * MIB
WORKSPACE_BYTES = {
    **dict.fromkeys(("volta", "turing", "ampere", "ada"), 8.125 * MIB),
    **dict.fromkeys(("hopper", "blackwell", "blackwell-gddr"), DETERMINISTIC_WORKSPACE_BYTES),
}
"""Workspace of one handle of cuBLAS, by family of chips; it stays in the allocator [bytes].

Source: PyTorch, CUDA semantics, cuBLAS workspaces: ``:4096:2:16:8``, on Hopper and Blackwell
``:4096:8``, which deterministic products need anywhere.
"""
ENGINE_WORKSPACE_BYTES = {
    **dict.fromkeys(("volta", "turing", "ampere", "ada"), 4.0 * MIB),
    **dict.fromkeys(("hopper", "blackwell", "blackwell-gddr"), 32.0 * MIB + 1024.0),
}
"""Workspace of the products of Transformer Engine, one for both passes [bytes].

Source: Transformer Engine 2, ``pytorch/module/base.py`` (``get_cublas_workspace_size_bytes``).
"""
HANDLES = 2.0
"""Handles of cuBLAS: one each of the threads of the forward and of the backward pass."""
HOST_GRADIENT_BYTES = 4.0
"""Bytes of one gradient that the optimizer on the host reads: FP32, whatever the device sums.

Source: DeepSpeed 0.19 ``runtime/zero/stage_1_and_2.py`` (``single_partition_of_fp32_groups``) and
``stage3.py``; PyTorch FSDP2 keeps gradients in the type of the parameters.
"""
GATHERED_LAYERS = 2.0
"""Layers that ZeRO-3 holds whole at a time: the one at work and the next one."""


@dataclass(frozen=True)
class StageState:
    """Memory of one stage before anything is sharded over data-parallel axes."""

    dense_params: Num
    expert_params: Num
    kept_bytes: Num
    """Activations of one micro-batch [bytes]."""
    in_flight: Num
    """Micro-batches with live activations, in units of all layers of the stage [1]."""
    working_bytes: Num
    """Largest transient of a layer [bytes]."""
    num_layers: Num
    first_block_bytes: Num = 0.0
    """Largest transient of the first block of a layer [bytes]."""
    other_blocks_params: Num = 0.0
    """Parameters of a layer behind its first block [1]."""
    other_blocks_kept_bytes: Num = 0.0
    """Activations of one micro-batch that blocks behind the first ones keep [bytes]."""
    cached_bytes: Num = 0.0
    """Those activations that offload leaves on the device: outputs of stages, and those that
    selective recomputation keeps itself (PyTorch 2.13 ``torch/utils/checkpoint.py``) [bytes]."""
    entry_bytes: Num = 0.0
    """Tensors at the entry of a layer as its backward pass ends there: the stream and its
    normalised copy, and their gradients [bytes]."""
    loss_bytes: Num = 0.0
    """Logits, their loss and its gradient, or the largest transient of another end [bytes]."""
    loss_logit_bytes: Num = 0.0
    """Tensors as wide as the vocabulary in ``loss_bytes`` [bytes]."""
    loss_kept_bytes: Num = 0.0
    """Activations in ``loss_bytes`` [bytes]."""
    logit_bytes: Num = 0.0
    """Logits of one micro-batch in the type of activations [bytes]."""
    logit_place_bytes: Num = 0.0
    """Place of logits that are gone when the gradient of their loss is made [bytes]."""
    output_bytes: Num = 0.0
    """Logits that a schedule keeps until the end of the backward pass [bytes]."""
    waiting_bytes: Num = 0.0
    """Logits of a micro-batch in flight whose backward pass has not begun [bytes]."""
    waiting_kept_bytes: Num = 0.0
    """Activations of the head of such a micro-batch [bytes]."""
    loss_stream_bytes: Num = 0.0
    """Stream at a loss that multiplies by the head: as it comes, in parts, and its gradient
    [bytes]."""
    later_micro_batches: Num = 0.0
    """Micro-batches of a step after the first [1]."""
    wide_kept_bytes: Num = 0.0
    """More activations of one micro-batch where the stream has the type of the weights [bytes]."""
    wide_working_bytes: Num = 0.0
    """More of the largest transient of a layer then [bytes]."""
    wide_loss_bytes: Num = 0.0
    """More activations at the loss then [bytes]."""
    split_share: Num = 0.0
    """1 where tp splits weights whose gradients wait for the end of a backward pass."""
    dealt_params: Num = 0.0
    """Parameters of the largest weight where ZeRO 1 deals whole weights, else 0 [1]."""
    summed_chunks: Num = 1.0
    """Share of its layers with whole sums of gradients at a time [1]."""
    num_chunks: Num = 1.0
    """Chunks of layers through which a micro-batch passes one at a time [1]."""
    layer_params: Num = 0.0
    """Parameters of the largest layer [1]."""
    layer_expert_params: Num = 0.0
    """Parameters of routed experts among them [1]."""
    embedding_params: Num = 0.0
    head_params: Num = 0.0
    """Parameters of the head, those of a tied table left out [1]."""
    tied_params: Num = 0.0
    """Parameters of the table that embedding and head share [1]."""
    others_table_params: Num = 0.0
    """Parameters of the token table of the other ranks of tp, where they split its words [1]."""
    sums_before_scatter: Num = 0.0
    """1 where gradients of several micro-batches are summed before they are scattered, else 0."""
    sums_in_last_pass: Num = 0.0
    """1 where whole gradients of several micro-batches wait for the last backward pass, else 0."""
    num_communicators: Num = 1.0
    """Axes of more than one device."""
    receive_buffer_bytes: Num = 0.0
    """Buffers for messages from other stages that no activation counts [bytes]."""
    hosted_bytes: Num = 0.0
    """Activations of one micro-batch that wait in host memory [bytes]."""
    orthogonal_flops: Num = 0.0
    """FLOPs of one orthogonal update, over the parameters outside of routed experts."""
    expert_orthogonal_flops: Num = 0.0
    matrix_orthogonal_flops: Num = 0.0
    """FLOPs of the orthogonal update of the largest matrix: no rank updates less than one."""

    @property
    def all_params(self) -> Num:
        """Parameters, those of routed experts among them [1]."""
        return self.dense_params + self.expert_params

    @property
    def in_flight_later(self) -> Num:
        """Micro-batches in flight in the second backward pass, and after it [1]."""
        return smaller(self.in_flight, self.later_micro_batches)

    def activations(self, in_flight: Num, behind: Num = 0.0) -> Num:
        """Return the activations of so many micro-batches, of one ``behind`` layers less [bytes].

        A layer is behind once its backward pass is done.
        """
        done = behind / larger(self.num_layers, 1.0)
        return self.kept_bytes * larger(in_flight - done, 0.0)


@dataclass(frozen=True)
class ShardDegrees:
    """Devices over which the optimizer state of dense and of expert parameters is split."""

    dense: Num
    expert: Num
    replicas: Num = 1.0
    """Devices with the same dense shard [1]."""
    padding: Num = 1.0
    """Size of all shards of the experts together, over that of the experts [1]."""

    def padded(self, plan_options: PlanOptions) -> Num:
        """Return the size of messages between shards of experts, over that of the experts [1]."""
        return self.padding if plan_options.zero_stage >= 2 else 1.0


def shard_padding(num_rows: Num, num_shards: Num) -> Num:
    """Return the rows of all shards together, over those that there are [1].

    Every shard has a place for as many rows as the longest one: s ceil(r / s) / r. Of 16 experts
    over 15 shards, two each: 30 / 16 = 1.875.

    Source: PyTorch 2.13 ``distributed/fsdp/_fully_shard/_fsdp_param.py``
    (``padded_sharded_size``).
    """
    return num_shards * ceil_div(num_rows, num_shards) / num_rows


def resident_bytes(
    state: StageState, bytes_per_param: float, shards: ShardDegrees, *, is_sharded: bool
) -> Num:
    """Return the bytes of weights, gradients or optimizer state on one device [bytes]."""
    return bytes_per_param * (sharded_params(state, shards) if is_sharded else state.all_params)


def sharded_params(state: StageState, shards: ShardDegrees) -> Num:
    """Return the parameters of which one device holds the state under ZeRO [1]."""
    return state.dense_params / shards.dense + state.expert_params / shards.expert


def sums_replicas_each_pass(plan_options: PlanOptions, software: SoftwareStack) -> bool:
    """Return whether replicas of a shard sum its gradients in each micro-batch.

    Gradients of offloaded weights do: those that wait for a later sum would stay on the device.

    Source: PyTorch 2.13 ``distributed/fsdp/_fully_shard/_fsdp_collectives.py``,
    ``foreach_reduce`` (``partial_reduce_output``).
    """
    on_host = software.shards_by_unit and plan_options.offload.has_weights
    return (software.sums_replicas_each_pass or on_host) and not software.sums_in_last_pass


_OF_WORK = ("activations", "logits", "temporary")


@dataclass(frozen=True)
class Moment:
    """Memory of a device at a moment beside weights and optimizer state [bytes]."""

    gradients: Num = 0.0
    gathered: Num = 0.0
    activations: Num = 0.0
    logits: Num = 0.0
    temporary: Num = 0.0
    idle: Num = 0.0
    """Places of the allocator that no tensor of the moment may take."""

    def on_fullest(self, work: Num, states: Num) -> Moment:
        """Return the moment on a device with times the work, and times the states, of one rank."""
        of_work = {name: work * getattr(self, name) for name in _OF_WORK}
        return replace(self, gradients=states * self.gradients, **of_work)


@dataclass(frozen=True)
class AtRest:
    """Memory of a device between steps, and the gradients that it keeps [bytes]."""

    weights: Num
    gradients: Num
    states: Num
    buffers: Num = 0.0
    """For messages from other stages, all step long."""

    def with_moment(self, moment: Moment) -> dict[MemoryPart, Num]:
        """Return the tensors of a moment by category [bytes]."""
        return {
            MemoryPart.WEIGHTS: self.weights,
            MemoryPart.GRADIENTS: moment.gradients,
            MemoryPart.STATES: self.states,
            MemoryPart.GATHERED: moment.gathered,
            MemoryPart.ACTIVATIONS: moment.activations,
            MemoryPart.LOGITS: moment.logits,
            MemoryPart.TEMPORARY: moment.temporary + self.buffers,
        }

    def on_fullest(self, work: Num, states: Num) -> AtRest:
        """Return the memory of a device with times the work, and times the states, of one rank."""
        return AtRest(
            states * self.weights, states * self.gradients, states * self.states,
            work * self.buffers,
        )  # fmt: skip

    def total(self, moment: Moment) -> Num:
        """Return all tensors of a moment [bytes]."""
        return reduce(add, self.with_moment(moment).values())


def at_rest(
    state: StageState, shards: ShardDegrees, plan_options: PlanOptions, optimizer: OptimizerPreset,
    *, shards_weights: int = 3, updates_on_host: bool = True,
) -> AtRest:  # fmt: skip
    """Return weights, gradients and optimizer state, each sharded from its stage of ZeRO on.

    ZeRO 1, 2, 3 shard optimizer state, then gradients, then weights (Rajbhandari et al. 2020,
    section 5); ``shards_weights`` is the stage that shards weights. Of 1e9 parameters over 8 shards
    with 2 + 4 + 12 bytes: 2 + 4 + 1.5 GB under ZeRO 1. Where whole weights are dealt over ranks,
    one has the state of the largest weight.
    """
    stage, whole, offload = plan_options.zero_stage, state.all_params, plan_options.offload
    part = sharded_params(state, shards) if stage else whole
    if stage == 1:
        part = larger(part, state.dealt_params)

    def held(bytes_per_param: float, first_sharded: int) -> Num:
        return bytes_per_param * (part if stage >= first_sharded else whole)

    weights = held(optimizer.weight_bytes_per_param, shards_weights)
    states = held(optimizer.state_bytes_per_param + optimizer.update_bytes_per_param, 1)
    if offload.has_optimizer:
        states = states * (0.0 if updates_on_host else part_at_work(state.num_layers))
    if offload.has_weights:
        weights = weights * 0.0
    gradients = held(optimizer.gradient_bytes_per_param, 2)
    return AtRest(weights, gradients, states, state.receive_buffer_bytes)


def part_at_work(num_layers: Num) -> Num:
    """Return the share of the layers of a stage that are whole at a time: two of them, or all."""
    return GATHERED_LAYERS / larger(num_layers, GATHERED_LAYERS)


def backward_moments(
    state: StageState, shards: ShardDegrees, plan_options: PlanOptions, optimizer: OptimizerPreset,
    rest: AtRest, *, gathers: bool = True,
) -> tuple[Moment, ...]:  # fmt: skip
    """Return the loss and a layer's backward pass of a framework that keeps all its gradients.

    All activations are in flight, and all gradients have their place. Gradients that are sent
    together in one message are held twice. In a pipeline, ZeRO-3 that keeps gathered weights sums
    whole gradients until the last micro-batch, as software does that sums them in its last pass.
    Offloaded tensors leave ``GATHERED_LAYERS`` layers
    of themselves on the device, single tensors too. Of 1e9 parameters in 8 layers, gathered in 2
    bytes: 0.5 GB.
    """
    stage, whole, offload = plan_options.zero_stage, state.all_params, plan_options.offload
    at_work = part_at_work(state.num_layers)
    again = smaller(optimizer.bucket_params, whole) * (shards.dense > 1)
    if plan_options.keeps_gathered:
        again = again + whole * state.sums_before_scatter
    again = again + whole * state.sums_in_last_pass
    gradients = rest.gradients
    if offload.has_gradients:
        gradients = whole * optimizer.gradient_bytes_per_param * at_work
    gathered = rest.weights * 0.0
    if gathers and (stage >= 3 or offload.has_weights):
        whole_stage = whole * optimizer.gathered_weight_bytes_per_param
        live = optimizer.live_params * optimizer.gathered_weight_bytes_per_param
        gathered = smaller(larger(whole_stage * at_work, live), whole_stage)
        if plan_options.keeps_gathered:
            gathered = whole_stage
    activations = state.activations(state.in_flight)
    if offload.has_activations:
        activations = state.kept_bytes * at_work
    waiting = larger(state.in_flight - 1.0, 0.0) * state.waiting_bytes
    of_layer = Moment(
        gradients=gradients + again * optimizer.reduced_gradient_bytes_per_param,
        gathered=gathered,
        activations=activations + state.hosted_bytes * at_work,
        logits=waiting,
        temporary=state.working_bytes,
    )
    of_loss = replace(
        of_layer, logits=state.loss_logit_bytes + waiting,
        temporary=state.loss_bytes - state.loss_logit_bytes,
    )  # fmt: skip
    return of_loss, of_layer


def replicated_moments(
    state: StageState, shards: ShardDegrees, plan_options: PlanOptions, optimizer: OptimizerPreset,
    rest: AtRest, *, update_copies: float = 0.0,
) -> tuple[Moment, ...]:  # fmt: skip
    """Return the moments of a step of whole weights under ``DistributedDataParallel``.

    With P parameters, E of the embedding, c bytes of a gradient, b of a narrow copy:

    * Buckets of gradients are there all step long, c P. Gradients of several micro-batches lie
      beside them until the last pass, c P. A rank without others has no buckets.
    * Autocast copies all weights but the embedding for a forward pass, b (P - E). The copies live
      until the backward pass, but for those of recomputed layers, which are made again.
    * The gradient of a table is made whole, c E, before it is added; where tp splits its words, for
      all words. Gradients of weights that tp splits wait for the end of a backward pass: nodes
      that make DTensors are the oldest of the graph.
    * An update makes ``update_copies`` FP32 numbers of each parameter that it updates.

    Of 1e9 parameters in 2 and 4 bytes, several micro-batches, one at a time: 8 + 2 GB.

    Source: PyTorch 2.13 ``nn/parallel/distributed.py`` (``no_sync``, ``gradient_as_bucket_view``),
    ``distributed/tensor/parallel/ddp.py`` and ``aten/src/ATen/autocast_mode.cpp``
    (``cached_cast``), seen in dry runs.
    """
    state = replace(
        state, kept_bytes=state.kept_bytes + state.wide_kept_bytes,
        working_bytes=state.working_bytes + state.wide_working_bytes,
        loss_bytes=state.loss_bytes + state.wide_loss_bytes,
        loss_kept_bytes=state.loss_kept_bytes + state.wide_loss_bytes,
        waiting_kept_bytes=where(
            state.waiting_kept_bytes > 0, state.waiting_kept_bytes + state.wide_loss_bytes, 0.0
        ),
    )  # fmt: skip
    whole, offload = state.all_params, plan_options.offload
    b, c = optimizer.cast_bytes_per_param, optimizer.gradient_bytes_per_param
    later = np.asarray(state.later_micro_batches > 0)
    are_several = np.asarray(shards.dense * shards.replicas > 1)
    on_device = 0.0 if offload.has_activations else 1.0
    of_one = state.cached_bytes if offload.has_activations else state.kept_bytes
    copies = b * (whole - state.embedding_params + state.tied_params)
    held: Num = copies * on_device
    again: Num = 0.0
    if plan_options.recompute is not Recompute.NONE:
        ends = state.head_params + state.tied_params
        held, again = b * ends * on_device, b * state.layer_params
    made = state.embedding_params + state.others_table_params
    made = c * (made + (whole - state.embedding_params) * state.split_share * are_several)

    def passes(in_flight: Num, before: Num, grows: Mask) -> Iterator[Moment]:
        """Yield the moments of a pass over gradients of those before it, which it ``grows``."""
        others = larger(in_flight - 1.0, 0.0)
        full = of_one * in_flight + state.waiting_kept_bytes * others * on_device
        waiting = others * state.waiting_bytes + state.output_bytes
        beside = state.loss_bytes - state.loss_logit_bytes - state.loss_kept_bytes
        kept, logits = state.loss_kept_bytes * on_device, state.loss_logit_bytes
        yield Moment(before, copies + held * others, full, waiting + state.logit_bytes)
        yield Moment(before, held * in_flight, full + kept, waiting + logits, beside)
        yield Moment(before, held * in_flight + again, full, waiting, state.working_bytes)
        left = larger(in_flight - 1.0 / state.num_chunks, 0.0) / larger(in_flight, 1.0)
        summed = before + c * whole * grows
        yield Moment(summed + made, held * in_flight * left, full * left, waiting)

    buckets = c * whole * are_several
    in_flight = where(later, state.in_flight_later, state.in_flight)
    updated = rest.states / larger(optimizer.state_bytes_per_param, 1.0)
    return (
        *passes(in_flight, buckets + c * whole * later, ~(later | are_several)),
        *passes(state.in_flight, buckets, later | ~are_several),
        Moment(c * whole, temporary=4.0 * update_copies * updated),
    )


def unit_moments(
    state: StageState, shards: ShardDegrees, plan_options: PlanOptions, optimizer: OptimizerPreset,
    rest: AtRest, software: SoftwareStack,
) -> tuple[Moment, ...]:  # fmt: skip
    """Return the moments of a step of full sharding by unit: embedding, layers, head.

    With E, L, H parameters of the units, P of all, b bytes of a gathered weight and of its whole
    gradient, c of a reduced gradient, k of a kept one, N shards and n layers:

    * At the loss nothing is gathered, or b H where the head stays, or b P where all weights do;
      gradients are those of earlier micro-batches, k P / N.
    * A unit goes backward with its weights and the message of the next one, b (L + L), and with the
      message of the gradients of the unit before, c H or c L. When its first block begins, whole
      gradients of its other blocks are there, and what these kept is gone. The end of the model is
      reduced from whole gradients into their message, (b + c) H or (b + c) E, over the shards of
      all before it.
    * Where tp splits the words of the embedding, the gradient of the whole table is made first.
    * Replicas sum what a reduction leaves, c P / N of all units. Where they do so in each pass, it
      stays to the end of the pass beside the gradients that it is added to, or that are on the
      host; where they do so once a step, it is added to that of the passes before.
    * Shards of experts that are filled up lie so in messages and gathered weights: L and P of these
      are larger (:func:`shard_padding`), a whole gradient is not.
    * A copy of a message is whole before the message goes: 2 b E, and 2 b H beside b L in the
      forward pass. Stages of several chunks gather all units first, b P, and copy the first one.
    * In a pipeline gradients are summed whole, c P, and reduced after the last pass, one unit at a
      time: c (P + E); weights that are gathered for a backward pass stay, b P. Where a schedule of
      several chunks has no more micro-batches than stages, each chunk is reduced before the next
      one goes backward.
    * Without a pipeline whole sums may wait too, c P, beside the last backward pass; it reduces
      each unit when that is done, and leaves k / N for c. Gradients of the type of the sums are
      added one by one.
    * A loss that multiplies by the head part by part sums its gradient whole, c H, makes that of a
      part, b H, and reduces the sum before the layers go backward, (2 c + k / N) H, with its
      weights gathered, b H. In a pipeline the message stays until the next one.
    * The update has weights, states and gradients alone.

    The allocator keeps the memory of each stream apart. Messages of gathered weights, b (L + E) or
    b (L + H), and reduced gradients, k P / N, are of streams of their own: where they are not at
    work, their places lie idle. So does that of logits, which an FP32 copy does not fit into.

    Two layers of 100 parameters between ends of 50, over 10 shards with b = 2 and c = k = 4: with
    400 bytes of activations and 30 of work, the last layer begins with 400 + 30, its weights and
    those of the other layer, 2 x 2 x 100, and gradients of the head, 4 x 50 + 4 x 50 / 10: 1,050.

    Source: PyTorch 2.13 ``distributed/fsdp/_fully_shard/_fsdp_param_group.py`` (``pre_backward``
    prefetches one unit, ``post_backward`` waits for the reduction of the unit before) and
    ``_fsdp_collectives.py``, seen in dry runs; streams: ``all_gather_copy_in_stream`` and
    ``reduce_scatter_stream`` there, and the pools of ``c10/cuda/CUDACachingAllocator.cpp``.
    """
    step = UnitStep(state, shards, plan_options, optimizer, rest, software)
    return (*step.last_pass(), *step.first_pass(), *step.reductions(), step.update())


@dataclass(frozen=True)
class UnitStep:
    """A step of full sharding by unit: sizes and moments; symbols are of :func:`unit_moments`."""

    state: StageState
    shards: ShardDegrees
    plan_options: PlanOptions
    optimizer: OptimizerPreset
    rest: AtRest
    software: SoftwareStack

    @property
    def head_in_loss(self) -> bool:
        """Whether the loss multiplies by the head."""
        return self.software.has_head_in_loss

    @property
    def sums_each_pass(self) -> bool:
        """Whether replicas sum gradients in each backward pass."""
        return sums_replicas_each_pass(self.plan_options, self.software)

    @property
    def b(self) -> float:
        """Bytes of a gathered weight [bytes]."""
        return self.optimizer.gathered_weight_bytes_per_param

    @property
    def c(self) -> float:
        """Bytes of a reduced gradient [bytes]."""
        return self.optimizer.reduced_gradient_bytes_per_param

    @property
    def g(self) -> float:
        """Bytes of a gradient as a backward pass makes it [bytes]."""
        return 0.0 if self.optimizer.freezes_weights else self.b

    @property
    def whole(self) -> Num:
        """Parameters of all units [1]."""
        return self.state.all_params

    @property
    def piped(self) -> Num:
        """1 in a pipeline, else 0."""
        return self.state.sums_before_scatter

    @property
    def waits(self) -> Num:
        """1 where whole sums wait for the last backward pass without a pipeline, else 0."""
        return self.state.sums_in_last_pass

    @cached_property
    def later(self) -> Mask:
        """Whether a micro-batch follows the first one."""
        return self.state.later_micro_batches > 0

    @property
    def is_gpipe(self) -> bool:
        """Whether all forward passes come before the first backward pass."""
        return self.plan_options.schedule is ScheduleKind.GPIPE

    @property
    def keeps(self) -> bool:
        """Whether gathered weights stay to the backward pass."""
        return self.plan_options.zero_stage < 3 or self.plan_options.keeps_gathered

    @property
    def kept_bytes(self) -> Num:
        """Activations of one micro-batch that stay on the device [bytes]."""
        is_away = self.plan_options.offload.has_activations
        return self.state.cached_bytes if is_away else self.state.kept_bytes

    @property
    def on_device(self) -> float:
        """1 where kept activations stay on the device, else 0."""
        return 0.0 if self.plan_options.offload.has_activations else 1.0

    @cached_property
    def num_layers(self) -> Num:
        """Layers of the stage, at least one [1]."""
        return larger(self.state.num_layers, 1.0)

    @cached_property
    def chunk(self) -> Num:
        """Layers that a micro-batch goes backward through without another one between [1]."""
        return self.num_layers / self.state.num_chunks

    @cached_property
    def shard(self) -> Num:
        """Gradients that stay on the device from one micro-batch to the next [bytes]."""
        offload = self.plan_options.offload
        return self.rest.gradients * (not (offload.has_weights or offload.has_gradients))

    @cached_property
    def each(self) -> Num:
        """Bytes that stay of the gradient of one parameter [bytes]."""
        return self.shard / larger(self.whole, 1.0)

    @cached_property
    def are_replicas(self) -> Mask:
        """Whether shards have replicas, whose sums stay to the end of a backward pass."""
        return self.shards.replicas > 1

    @cached_property
    def of_replicas(self) -> Num:
        """Bytes that replicas sum of the gradient of one parameter [bytes]."""
        return self.c * sharded_params(self.state, self.shards) / larger(self.whole, 1.0)

    @cached_property
    def left_of_unit(self) -> Num:
        """Bytes that a reduction leaves of the gradient of one parameter [bytes]."""
        return where(self.are_replicas, self.of_replicas, self.each)

    @cached_property
    def message(self) -> Num:
        """Bytes of one gradient in a message of a backward pass [bytes]."""
        return self.c * (1.0 - self.piped)

    @cached_property
    def messages(self) -> Num:
        """Places of the messages of gathered weights [bytes]."""
        state = self.state
        end = larger(state.embedding_params, state.head_params + state.tied_params)
        return self.b * (self.layer_sent + end)

    @cached_property
    def layer_sent(self) -> Num:
        """Parameters in a message of a layer, those that fill up shards among them [1]."""
        filled = self.shards.padding - 1.0
        return self.state.layer_params + filled * self.state.layer_expert_params

    @cached_property
    def whole_sent(self) -> Num:
        """Parameters in the messages of all units, those that fill up shards among them [1]."""
        return self.whole + (self.shards.padding - 1.0) * self.state.expert_params

    @cached_property
    def of_unit(self) -> Num:
        """Bytes of one gradient of a unit beside sums: 0 where each is added as it is made."""
        return self.g * (1.0 - self.waits * (self.b == self.c))

    @cached_property
    def own(self) -> Num:
        """Parameters whose gradients the loss reduces [1]."""
        return (self.state.head_params + self.state.tied_params) * self.head_in_loss

    @cached_property
    def late(self) -> Num:
        """Gradients of a tied table that wait for those of the embedding [bytes]."""
        return self.state.tied_params * (not self.head_in_loss) * self.of_unit

    @cached_property
    def summed_whole(self) -> Num:
        """Whole sums of gradients, and shards of chunks that have gone backward [bytes]."""
        state = self.state
        ends = state.embedding_params + state.head_params
        reduced = (1.0 - state.summed_chunks) * (self.whole - ends)
        summed = self.whole - self.own - reduced + state.others_table_params
        return self.c * summed + self.each * (self.own + reduced)

    @cached_property
    def everything(self) -> Num:
        """Gathered weights of all units [bytes]."""
        return self.b * self.whole_sent

    @cached_property
    def two(self) -> Num:
        """Gathered weights of two layers [bytes]."""
        return 2.0 * self.b * self.layer_sent

    @cached_property
    def table(self) -> Num:
        """Gathered weights of a tied table [bytes]."""
        return self.b * self.state.tied_params

    def first_pass(self) -> Iterator[Moment]:
        """Yield the moments of the first backward pass.

        In a pipeline it counts as far as activations are not gone.
        """
        first = UnitPass(self, self.state.in_flight, 0.0 * self.whole, 1.0)
        yield from first.down_to_last_layer()
        if self.is_gpipe:
            yield from first.down_to_embedding()

    def last_pass(self) -> Iterator[Moment]:
        """Yield the moments of the last backward pass, which adds to gradients of earlier ones."""
        state, later = self.state, self.later
        summed = where(self.piped + self.waits > 0, self.summed_whole, self.shard) * later
        in_flight = where(later, state.in_flight_later, state.in_flight)
        last = UnitPass(self, in_flight, summed, where(later, 0.0, 1.0))
        for moment in (*last.down_to_last_layer(), *last.down_to_embedding()):
            if self.is_gpipe:
                # No forward pass lets go what the backward pass before it gathered.
                gathered = larger(moment.gathered, self.piped * self.everything)
                yield replace(moment, gathered=gathered)
            else:
                yield moment

    def reductions(self) -> Iterator[Moment]:
        """Yield an earlier pass that adds to whole sums, and the reduction behind a pipeline."""
        b, c, embedding = self.b, self.c, self.state.embedding_params
        # The first backward pass makes whole sums, each later one adds to them.
        earlier = c * (self.whole - embedding * (self.state.later_micro_batches == 1.0))
        yield Moment(
            gradients=self.waits * (earlier + self.g * embedding),
            gathered=self.waits * b * embedding,
            idle=self.waits * (self.shard + self.messages),
        )
        # The first unit is reduced first, with all others whole beside it.
        unit = where(embedding > 0, embedding, self.layer_sent)
        yield Moment(
            gradients=self.piped * (self.summed_whole + (c + self.each) * unit),
            gathered=self.piped * b * (self.whole_sent - unit),
            idle=self.piped * (self.shard - self.each * unit + self.messages),
        )

    def update(self) -> Moment:
        """Return the update, which copies FP32 numbers of each parameter of a shard."""
        copied = 4.0 * self.software.update_copies * sharded_params(self.state, self.shards)
        on_device = not self.plan_options.offload.has_optimizer
        return Moment(gradients=self.shard, temporary=copied * on_device, idle=self.messages)


@dataclass(frozen=True)
class UnitPass:
    """A forward and a backward pass of a step by unit, over gradients of the passes before it."""

    step: UnitStep
    in_flight: Num
    summed: Num
    """Gradients of the passes before [bytes]."""
    grows: Num
    """1 where no pass is before, else 0."""

    @cached_property
    def waiting(self) -> Num:
        """Logits of other micro-batches [bytes]."""
        state = self.step.state
        return state.waiting_bytes * larger(self.in_flight - 1.0, 0.0) + state.output_bytes

    @cached_property
    def from_whole(self) -> Num:
        """1 where a unit is reduced from whole sums, whose place its shard takes, else 0."""
        return self.step.waits * (1.0 - self.grows)

    @cached_property
    def growth(self) -> Num:
        """Bytes by which gradients that stay grow with each parameter [bytes]."""
        step = self.step
        again = 1.0 if step.sums_each_pass else self.grows
        of_shard = where(step.are_replicas, step.of_replicas * again, self.grows * step.each)
        growth = where(step.piped > 0, self.grows * step.c, of_shard)
        return where(self.from_whole > 0, step.left_of_unit - step.c, growth)

    @cached_property
    def added(self) -> Num:
        """Bytes of a shard that is added to that of earlier micro-batches [bytes]."""
        step = self.step
        added = (1.0 - self.grows) * (1.0 - step.piped) * step.each
        alone = 1.0 * (step.are_replicas & step.sums_each_pass)
        return where(self.from_whole > 0, step.c - step.g, added * (1.0 - alone))

    @cached_property
    def of_one_layer(self) -> Num:
        """Activations of a layer [bytes]."""
        return self.step.kept_bytes / self.step.num_layers

    @cached_property
    def full(self) -> Num:
        """Activations of all micro-batches in flight [bytes]."""
        others = larger(self.in_flight - 1.0, 0.0)
        return self.step.kept_bytes * self.in_flight + self.step.state.waiting_kept_bytes * others

    @cached_property
    def behind_chunk(self) -> Num:
        """Activations without those of the layers of a chunk [bytes]."""
        return larger(self.full - self.step.chunk * self.of_one_layer, 0.0)

    @cached_property
    def held(self) -> Num:
        """Sum and message of the last reduction in a loss of a pipeline [bytes]."""
        return self.step.piped * (self.step.c + self.step.each) * self.step.own

    @cached_property
    def reduced(self) -> Num:
        """Growth that a reduction in the loss has already made, or spares [bytes]."""
        step, head_in_loss = self.step, self.step.head_in_loss
        spared = self.growth * (-step.state.head_params * head_in_loss)
        return spared + (self.grows * step.each * step.own) * head_in_loss

    def left(self, params: Num) -> Num:
        """Return the gathered weights without those of ``params``, which a pipeline keeps."""
        return self.step.everything - (1.0 - self.step.piped) * self.step.b * params

    def idle(self, done: Num, sent: Num) -> Num:
        """Return the places of shards to come and of messages that are not ``sent`` [bytes]."""
        step = self.step
        come = where(
            self.from_whole > 0, step.left_of_unit * done, self.summed + self.growth * done
        )
        shards_to_come = step.shard - where(step.piped > 0, step.each * step.own, come)
        return larger(shards_to_come, 0.0) + step.messages - sent * (1.0 - step.piped)

    def down_to_last_layer(self) -> Iterator[Moment]:
        """Yield the forward pass, the loss, and the backward pass of the last layer."""
        step, head = self.step, self.step.state.head_params
        yield from self.forward()
        yield from self.loss_in_parts() if step.head_in_loss else self.loss()
        of_end = head * (not step.head_in_loss)
        gathered = self.left(head) if step.keeps else step.two
        yield from self.layer_backward(self.full, of_end, head, gathered)

    def forward(self) -> Iterator[Moment]:
        """Yield the gathers of the forward pass.

        The message of a unit is there until the next one is whole.
        """
        step, state = self.step, self.step.state
        embedding, layer, head = state.embedding_params, step.layer_sent, state.head_params
        last_kept = self.behind_chunk + step.chunk * self.of_one_layer
        last_kept = smaller(last_kept, self.full) - self.of_one_layer
        for sent, params, before, kept in (
            (embedding, embedding, 0.0 * step.whole, self.behind_chunk),
            (embedding - state.tied_params + layer, layer, embedding, self.behind_chunk),
            (2.0 * layer, layer, step.whole_sent - head - layer, last_kept),
            (layer + head, head, step.whole_sent - head, self.full),
        ):
            stay = step.b * before if step.keeps else step.table * (before > 0)
            unused = larger(self.idle(0.0, 0.0) - step.b * sent, 0.0)
            gathered = step.b * (sent + params) + stay
            if step.keeps:
                # A pipeline gathers for the first micro-batch of a step alone.
                gathered = where(step.piped * (1.0 - self.grows) > 0, step.everything, gathered)
                kept = where(step.piped > 0, smaller(kept, step.kept_bytes), kept)
            yield Moment(self.summed, gathered, kept, self.waiting, idle=unused)
        at_once = step.b * larger(embedding, layer) + step.everything
        yield Moment(gathered=at_once * step.piped * (state.num_chunks > 1))

    def loss(self) -> Iterator[Moment]:
        """Yield the loss, the logits and the product of the head in the backward pass."""
        step, state = self.step, self.step.state
        logits, head = state.logit_bytes, state.head_params
        beside = state.loss_bytes - state.loss_logit_bytes - state.loss_kept_bytes
        at_loss = self.waiting + state.loss_logit_bytes
        ends = head + state.tied_params
        gathered = step.everything if step.keeps else step.b * ends * step.software.keeps_last_unit
        unused, kept = self.idle(0.0, 0.0) + state.logit_place_bytes, self.full
        yield Moment(self.summed, gathered, kept + state.loss_kept_bytes, at_loss, beside, unused)
        scores = logits * (3.0 - 2.0 * step.on_device) + self.waiting
        copies = 2.0 - step.software.keeps_last_unit
        gathered = step.everything if step.keeps else copies * step.b * head + step.table
        yield Moment(self.summed, gathered, kept, scores, idle=self.idle(0.0, step.b * head))
        gathered = step.everything if step.keeps else step.b * (ends + step.layer_sent)
        unused = self.idle(0.0, step.b * step.layer_sent)
        yield Moment(self.summed + step.g * ends, gathered, kept, scores, idle=unused)

    def loss_in_parts(self) -> Iterator[Moment]:
        """Yield a loss that multiplies by the head, and the reduction of its gradients."""
        step, state, own = self.step, self.step.state, self.step.own
        logits, stream = state.logit_bytes, state.loss_stream_bytes
        beside = state.loss_bytes - state.loss_logit_bytes - state.loss_kept_bytes
        sums, before = self.summed, self.held * (1.0 - self.grows)
        if step.is_gpipe:  # all losses come before a layer goes backward
            is_later = where(step.later, 1.0, 0.0)
            sums, before = step.each * own * is_later, self.held * is_later
        gathered = step.everything if step.keeps else step.b * own
        summing = sums + step.c * own + before
        made, reducing = summing + step.g * own, sums + (2.0 * step.c + step.each) * own
        unused, kept = self.idle(0.0, 0.0), self.full + state.loss_kept_bytes
        at_loss = self.waiting + state.loss_logit_bytes + logits
        yield Moment(summing, gathered, kept, at_loss, beside + stream, unused)
        at_product = 2.0 * logits + self.waiting
        yield Moment(made, gathered, self.full, at_product, stream, unused)
        yield Moment(reducing, gathered, self.full, logits + self.waiting, stream, unused)

    def layer_backward(self, kept: Num, before: Num, done: Num, gathered: Num) -> Iterator[Moment]:
        """Yield the beginning of the backward pass of a layer, of its first block, and its end.

        Parameters
        ----------
        kept
            Activations at its beginning [bytes].
        before, done
            Parameters of the unit before, whose gradients are sent, and of all units before [1].
        gathered
            Gathered weights, a tied table left out [bytes].
        """
        step, state = self.step, self.step.state
        gradients = step.message * before + self.summed + self.growth * done
        gradients = gradients + step.late + self.reduced + self.held
        unused, gathered = self.idle(done, step.b * step.layer_sent), gathered + step.table
        yield Moment(gradients, gathered, kept, self.waiting, state.working_bytes, unused)
        others = step.on_device * state.other_blocks_kept_bytes / step.num_layers
        yield Moment(
            gradients + step.of_unit * state.other_blocks_params, gathered, kept - others,
            self.waiting, state.first_block_bytes, unused,
        )  # fmt: skip
        yield Moment(
            gradients + step.of_unit * state.layer_params, gathered, kept - self.of_one_layer,
            self.waiting, state.entry_bytes, unused,
        )  # fmt: skip

    def down_to_embedding(self) -> Iterator[Moment]:
        """Yield the backward pass behind the last layer: reduction of the head, layers, table."""
        step, state = self.step, self.step.state
        embedding, layer, head = state.embedding_params, state.layer_params, state.head_params
        whole, everything, two, sent = step.whole, step.everything, step.two, step.layer_sent
        of_end = head * (not step.head_in_loss)
        ends = (step.g + step.message + self.added + self.growth) * of_end + self.summed
        ends = ends + step.late + self.reduced + self.held
        gathered = (self.left(head) if step.keeps else step.b * sent) + step.table
        yield Moment(ends, gathered, self.full, self.waiting, idle=self.idle(head, 0.0))
        # The layer before the last one, the one behind the first one, and the first one.
        of_first = self.behind_chunk + self.of_one_layer
        behind_one, behind_two = (
            where(step.num_layers > many, sent, of_end) for many in (1.0, 2.0)
        )
        yield from self.layer_backward(
            larger(self.full - self.of_one_layer, of_first), behind_one, head + layer,
            self.left(head + sent) if step.keeps else two,
        )  # fmt: skip
        in_pipe, alone = everything - step.b * embedding, two
        if step.keeps:
            in_pipe, alone = everything, step.b * embedding + two
        yield from self.layer_backward(
            smaller(of_first + self.of_one_layer, self.full), behind_two,
            larger(whole - embedding - 2.0 * layer, head), where(step.piped > 0, in_pipe, alone),
        )  # fmt: skip
        first = where(step.piped > 0, everything, step.b * (sent + embedding))
        yield from self.layer_backward(of_first, behind_one, whole - embedding - layer, first)
        yield from self.embedding_backward()

    def embedding_backward(self) -> Iterator[Moment]:
        """Yield the gradient of the table, and its reduction."""
        step, state = self.step, self.step.state
        embedding, others = state.embedding_params, state.others_table_params
        made = step.g * (where(step.piped > 0, embedding, 2.0 * embedding) + others)
        made = where(others > 0, made, step.g * (embedding + state.tied_params)) + step.late
        before = step.message * step.layer_sent + self.summed + self.reduced + self.held
        before = before + self.growth * (step.whole - embedding)
        is_first, kept, waiting = embedding > 0, self.behind_chunk, self.waiting
        last = where(step.piped > 0, step.everything, step.b * embedding)
        copies = 1.0 if step.keeps else 2.0
        copied = where(step.piped > 0, step.everything, step.b * embedding * copies)
        yield Moment(before, copied * is_first, kept, waiting)
        yield Moment(before + made, last * is_first, kept, waiting)
        ends = (step.g + step.message + self.added) * embedding + self.summed + self.reduced
        ends = ends + self.growth * step.whole + self.held
        yield Moment(ends, last * step.piped, kept, waiting)


def certain_moments(
    state: StageState, plan_options: PlanOptions, rest: AtRest
) -> tuple[Moment, ...]:
    """Return the moments of a step without anything that sharding brings together for a while.

    No plan of fewer shards, and none that gathers more, has less.
    """
    offload = plan_options.offload
    activations = state.activations(state.in_flight) * (not offload.has_activations)
    on_host = offload.has_weights or offload.has_gradients
    return (
        Moment(activations=activations, temporary=larger(state.working_bytes, state.loss_bytes)),
        Moment(gradients=rest.gradients * (not on_host)),
    )


def stage_moments(
    state: StageState, shards: ShardDegrees, plan_options: PlanOptions, optimizer: OptimizerPreset,
    software: SoftwareStack, *, is_bound: bool = False,
) -> tuple[AtRest, tuple[Moment, ...]]:  # fmt: skip
    """Return the memory of one device of a stage at rest, and at each moment of a step.

    Parameters
    ----------
    is_bound
        Whether weights and gradients that are whole for a while are left out.
    """
    shards_weights = 2 if software.whole_in_pipelines else 3
    least = 0 if software.shards_over_one else shards_weights
    by_unit = software.shards_by_unit and plan_options.zero_stage >= least
    rest = at_rest(
        state, shards, plan_options, optimizer, updates_on_host=software.updates_on_host,
        shards_weights=shards_weights,
    )  # fmt: skip
    if not by_unit and software.autocasts_whole_weights and not is_bound:
        return rest, replicated_moments(
            state, shards, plan_options, optimizer, rest, update_copies=software.update_copies
        )
    if not by_unit:
        moments = backward_moments(
            state, shards, plan_options, optimizer, rest, gathers=not is_bound
        )
        return rest, moments
    if is_bound:
        return rest, certain_moments(state, plan_options, rest)
    return rest, unit_moments(state, shards, plan_options, optimizer, rest, software)


def at_peak(
    tensors: Sequence[Mapping[MemoryPart, Num]],
) -> tuple[dict[MemoryPart, Num], dict[MemoryPart, Num]]:
    """Return each category where all together are most, and the most of each at any moment.

    The first moment counts among equals. Of 8 + 1 bytes at one moment and 2 + 6 at another one: 8
    and 1, and 8 and 6.
    """
    totals = np.broadcast_arrays(*(reduce(add, held.values()) for held in tensors))
    peak = np.stack(totals).argmax(axis=0)

    def chosen(part: MemoryPart) -> Num:
        every = np.broadcast_arrays(*(held[part] for held in tensors), peak)[:-1]
        found: Num = np.take_along_axis(np.stack(every), peak[np.newaxis], axis=0)[0]
        return found

    zero = totals[0] * 0.0
    return (
        {part: chosen(part) for part in TENSORS},
        {part: reduce(larger, [held[part] for held in tensors]) + zero for part in TENSORS},
    )


@dataclass(frozen=True)
class BesideTensors:
    """Memory of a device beside its tensors."""

    allocator_factor: Num = 1.0
    """Memory that the allocator holds over that of the tensors [1]."""
    buffer_bytes: Num = 0.0
    """Runtime and libraries [bytes]."""
    communicator_bytes: Num = 0.0
    """Buffers of each axis of several devices [bytes]."""
    margin_bytes: Num = 0.0
    """Left free [bytes]."""
    workspace_bytes: Num = 0.0
    """Workspace of libraries of matrix products, from the allocator [bytes]."""

    def buffers(self, state: StageState) -> Num:
        """Return the buffers of a device of a stage [bytes]."""
        return self.buffer_bytes + self.communicator_bytes * state.num_communicators


def reserved_bytes(rest: AtRest, moments: Sequence[Moment], beside: BesideTensors) -> Num:
    """Return the most that tensors, workspaces and idle places take together [bytes]."""
    taken = reduce(larger, [rest.total(moment) + moment.idle for moment in moments])
    return beside.allocator_factor * (taken + beside.workspace_bytes)


def memory_use(
    state: StageState, rest: AtRest, moments: Sequence[Moment], beside: BesideTensors
) -> MemoryUse:
    """Return the memory of one device of a stage in training."""
    peak, most = at_peak([rest.with_moment(moment) for moment in moments])
    in_tensors = reduce(add, peak.values())
    zero = in_tensors * 0.0
    beside_tensors = {
        MemoryPart.WORKSPACE: beside.workspace_bytes + zero,
        MemoryPart.FRAGMENTATION: reserved_bytes(rest, moments, beside)
        - (in_tensors + beside.workspace_bytes),
        MemoryPart.BUFFERS: beside.buffers(state) + zero,
        MemoryPart.MARGIN: beside.margin_bytes + zero,
    }
    return MemoryUse(peak | beside_tensors, most)


def needed_bytes(
    state: StageState, rest: AtRest, moments: Sequence[Moment], beside: BesideTensors
) -> Num:
    """Return the sum of the parts of :func:`memory_use` alone [bytes]."""
    return reserved_bytes(rest, moments, beside) + beside.buffers(state) + beside.margin_bytes


def num_axes(*degrees: Num) -> Num:
    """Return the number of degrees above one: axes that have communicators [1]."""
    return sum((degree > 1) * 1.0 for degree in degrees)


def host_bytes(
    state: StageState, shards: ShardDegrees, plan_options: PlanOptions, optimizer: OptimizerPreset,
    software: SoftwareStack,
) -> Num:  # fmt: skip
    """Return the bytes that one device keeps in the memory of its host [bytes].

    An update on the host reads an FP32 copy of the gradients there. Activations have no buffers
    beside them.
    """
    stage, offload = plan_options.zero_stage, plan_options.offload
    updates = offload.has_optimizer and software.updates_on_host
    gradient = HOST_GRADIENT_BYTES if updates else optimizer.gradient_bytes_per_param
    gradient *= not optimizer.freezes_weights
    kept = (
        (offload.has_optimizer, optimizer.state_bytes_per_param, 1),
        (
            offload.has_weights,
            optimizer.weight_bytes_per_param,
            2 if software.whole_in_pipelines else 3,
        ),
        (updates or offload.has_gradients, gradient, 2 if offload.has_gradients else 1),
    )
    total = state.dense_params * 0.0
    for is_there, bytes_per_param, first_sharded in kept:
        if is_there:
            sharded = stage >= first_sharded
            total = total + resident_bytes(state, bytes_per_param, shards, is_sharded=sharded)
    total = total * software.host_buffer_factor
    if offload.has_activations:
        total = total + (state.kept_bytes - state.cached_bytes) * state.in_flight
    return total + state.hosted_bytes * state.in_flight


class DeviceMemory(Protocol):
    """Memory of one device, by part."""

    @property
    def total_bytes(self) -> Num:
        """All of it [bytes]."""


Use = TypeVar("Use", bound=DeviceMemory)


def fullest(uses: Sequence[Use]) -> tuple[Use, Num]:
    """Return the memory of the fullest stage, and the index of that stage in ``uses``."""
    best, index = uses[0], uses[0].total_bytes * 0.0
    for number, use in enumerate(uses[1:], start=1):
        wins = use.total_bytes > best.total_bytes
        best = by_field(partial(where, wins), use, best)
        index = where(wins, float(number), index)
    return best, index


def kept_bytes(
    saved: Sequence[SavedTensor], sizes: Mapping[str, Num], strategy: StrategyOf[Num],
    word_bytes: float, *, on_host: bool = False, logit_tiles: int = 1,
) -> Num:  # fmt: skip
    """Return the activations that one micro-batch leaves in a layer [bytes].

    On the device, or in the memory of its host.
    """
    total: Num = 0.0
    for entry in saved:
        if entry.on_host is not on_host:
            continue
        word: Num = word_bytes if entry.word_bytes is None else entry.word_bytes
        if entry.tensor.split_word_bytes is not None:
            degree = degree_of("*".join(entry.split.get(entry.dims[-1], ())), strategy)
            word = where(degree > 1, entry.tensor.split_word_bytes, word)
        if entry.sent_over:
            word = where(degree_of(entry.sent_over, strategy) > 1, word, 0.0)
        elements = local_elements(entry.tensor, entry.split, sizes, strategy)
        if "vocab" in entry.dims:
            elements = elements / logit_tiles
        total = total + entry.share * word * elements
    return total


def orthogonal_flops(rows: Num, columns: Num, steps: int) -> Num:
    """Return the FLOPs of making the update of a matrix orthogonal (Newton-Schulz) [FLOP].

    Each of the steps is A = X X^T, B = b A + c A A, X = a X + B X, with n rows and m columns, the
    shorter side first: 2 n^2 m + 2 n^3 + 2 n^2 m. Of 4,096 x 11,008 in 5 steps: 4.381e12.

    Source: Jordan et al. 2024, Muon; Liu et al. 2025 (arXiv 2502.16982), section 2.1.
    """
    short, long = smaller(rows, columns), larger(rows, columns)
    return steps * (4.0 * short * short * long + 2.0 * short * short * short)


def orthogonal_work(
    layer: LayerGraph, plan_options: PlanOptions, strategy: StrategyOf[Num], steps: int
) -> tuple[Num, Num, Num]:
    """Return the FLOPs of an update of a layer on one device [FLOP].

    Outside of routed experts, in them, and of the largest matrix. A rank of tp makes its own block
    orthogonal, as NVIDIA/Megatron-LM 0.19.2 does by default (``muon_tp_mode`` blockwise); vectors
    have no part in it.
    """
    dense: Num = 0.0
    expert: Num = 0.0
    largest: Num = 0.0
    for weight in layer.weights:
        split = weight_sharding(weight, plan_options).split
        sides = [local_size(d, split.get(d, ()), layer.sizes, strategy) for d in weight.dims]
        if len(sides) - ("experts" in weight.dims) != 2:
            continue
        flops = orthogonal_flops(sides[-2], sides[-1], steps)
        largest = larger(largest, flops)
        if "experts" in weight.dims:
            expert = expert + sides[0] * flops
        else:
            dense = dense + flops
    return dense, expert, largest


def parameters_on_device(
    layer: LayerGraph, plan_options: PlanOptions, strategy: StrategyOf[Num]
) -> tuple[Num, Num]:
    """Return the parameters of a layer on one device: outside of routed experts, and in them."""
    dense: Num = 0.0
    expert: Num = 0.0
    for weight in layer.weights:
        split = weight_sharding(weight, plan_options).split
        elements = local_elements(weight, split, layer.sizes, strategy)
        if "experts" in weight.dims:
            expert = expert + elements
        else:
            dense = dense + elements
    return dense, expert


def largest_transient_bytes(
    op: Op, local: LocalLayer, word_bytes: float, logit_tiles: int = 1, *, gathers: bool = True,
    of_logits: bool = False,
) -> Num:  # fmt: skip
    """Return the bytes that an operator needs beside kept tensors: gradients out and in.

    They live together; its own inputs and outputs are kept, or brought back. At the edges nothing
    is kept: outputs and their gradients count too. With sequence parallelism the gathered input of
    a product counts as well.

    Parameters
    ----------
    logit_tiles
        Parts of the logits; one is in memory at a time [1].
    gathers
        Whether a product at an edge gathers its input.
    of_logits
        Whether tensors as wide as the vocabulary count alone.
    """

    def size(tensor: Tensor, rows: Num) -> Num:
        is_logits = "vocab" in tensor.dims
        word = word_bytes if tensor.word_bytes is None else tensor.word_bytes
        word = word / logit_tiles if is_logits else word
        return word * rows * local.width(tensor) * (is_logits or not of_logits)

    rows = local.rows_of(op)
    outputs = sum(size(tensor, rows) for tensor in op.outputs)
    gathered: Num = 0.0
    if op.kind is OpKind.MATMUL and "hidden" in op.contracted:
        gathered = sum(size(tensor, local.tokens - local.token_shard) for tensor in op.inputs)
    if op.region == EDGE:
        return 2.0 * (outputs + gathered * gathers)
    return outputs + sum(size(tensor, rows) for tensor in op.inputs) + gathered


def norm_bytes(op: Op, local: LocalLayer, word_bytes: float) -> Num:
    """Return the bytes that the backward pass of a norm needs beside kept tensors [bytes].

    Gradients out and in, or five FP32 tensors where the norm is made in steps of FP32: the gradient
    of the normalised input, its product with the input, a square and two scaled ones. In steps, of
    8,192 tokens of 16,384 elements: 20 x 8,192 x 16,384 = 2.684e9.

    Source: transformers 5.23 ``modeling_llama.py``, ``LlamaRMSNorm``, seen in dry runs.
    """
    elements = local.rows_of(op) * local.width(op.output)
    in_steps = any(t.word_bytes == 4.0 and t.dims == op.output.dims for t in op.saved)
    return elements * (20.0 if in_steps else 2.0 * word_bytes)


def weighed_rows_bytes(op: Op, local: LocalLayer) -> Num:
    """Return the FP32 rows of experts as scores that weigh them go backward, call by call [bytes].

    Three: the gradient of the products, that of the rows, and the products whose sums are gradients
    of scores; 12 R h of R rows, h wide. Of 65,536 rows of 2,048 elements: 1.611e9.

    Source: torchtitan 0.3.0, ``combine`` of ``models/common/token_dispatcher.py``, in dry runs.
    """
    if op.kind is not OpKind.ROUTE or op.moved is None:
        return 0.0
    return 3.0 * 4.0 * local.rows_of(op) * local.width(op.moved)


def logit_bytes(
    part: LayerGraph, local: LocalLayer, word_bytes: float, logit_tiles: int = 1
) -> Num:
    """Return the logits that a part of the model makes, in the type of activations [bytes]."""
    return sum(
        word_bytes * local.rows_of(op) * local.width(op.output) / logit_tiles
        for op in part.ops
        if op.kind is OpKind.MATMUL and "vocab" in op.output.dims
    )


def host_of(problem: Problem) -> HostLink:
    """Return the host that takes offloaded tensors.

    Raises
    ------
    SpecError
        When the system has none.
    """
    host = host_link(problem.system)
    if host is None:
        message = f"{problem.system.name} has no host memory to offload to"
        raise SpecError(Fault("offload", message, "offload=none"))
    return host


def workspace_bytes(problem: Problem) -> float:
    """Return the memory that libraries of matrix products hold on one device [bytes]."""
    family = problem.system.chip.family
    of_handle = WORKSPACE_BYTES.get(family, 0.0)
    if problem.workload.software.deterministic and of_handle:
        of_handle = DETERMINISTIC_WORKSPACE_BYTES
    engine = problem.workload.software.transformer_engine
    return HANDLES * of_handle + engine * ENGINE_WORKSPACE_BYTES.get(family, 0.0)


def step_memory(
    problem: Problem, plan_options: PlanOptions, shards: ShardDegrees,
    states: Sequence[StageState], *, is_bound: bool = False,
) -> tuple[MemoryUse, ...]:  # fmt: skip
    """Return the memory of each stage: of the first, the fullest middle and the last one.

    Parameters
    ----------
    is_bound
        Whether weights and gradients that are whole for a while are left out.
    """
    around = beside_tensors(problem)
    return tuple(
        memory_use(state, *of_stage, around)
        for state, of_stage in _moments_of(problem, plan_options, shards, states, is_bound=is_bound)
    )


def beside_tensors(problem: Problem) -> BesideTensors:
    """Return the memory beside tensors on any device."""
    constants, capacity = problem.calibration, problem.system.chip.main_memory.capacity_bytes
    return BesideTensors(
        allocator_factor=constants.allocator_factor,
        buffer_bytes=constants.communication_buffer_bytes,
        communicator_bytes=constants.communicator_bytes,
        margin_bytes=constants.memory_margin_fraction * capacity,
        workspace_bytes=workspace_bytes(problem),
    )


def _moments_of(
    problem: Problem, plan_options: PlanOptions, shards: ShardDegrees,
    states: Sequence[StageState], *, is_bound: bool = False,
) -> Iterator[tuple[StageState, tuple[AtRest, tuple[Moment, ...]]]]:  # fmt: skip
    """Yield each stage with its moments, on the device with the most work and the most states."""
    work = problem.workload
    for state in states:
        rest, moments = stage_moments(
            state, shards, plan_options, work.optimizer, work.software, is_bound=is_bound,
        )  # fmt: skip
        if problem.pace is not None:
            rest = rest.on_fullest(problem.most_work, problem.states)
            moments = tuple(m.on_fullest(problem.most_work, problem.states) for m in moments)
        yield state, (rest, moments)


def step_host_bytes(
    problem: Problem, plan_options: PlanOptions, shards: ShardDegrees, states: Sequence[StageState]
) -> Num:
    """Return the bytes that the fullest stage keeps on the host, for one device [bytes]."""
    work = problem.workload
    return reduce(
        larger,
        [host_bytes(s, shards, plan_options, work.optimizer, work.software) for s in states],
    )


@dataclass(frozen=True)
class Room:
    """Memory needed on the fullest device and its host, and whether it fits."""

    device_bytes: Num
    host_bytes: Num
    """Host memory for one device [bytes]."""
    on_device: Mask
    on_host: Mask

    @property
    def fits(self) -> Mask:
        """Whether both hold it."""
        return self.on_device & self.on_host


def room_for(
    problem: Problem, plan_options: PlanOptions, shards: ShardDegrees, states: Sequence[StageState]
) -> Room:
    """Return the memory of the fullest device and of the fullest host, and whether they hold it."""
    around = beside_tensors(problem)
    needed = reduce(
        larger,
        [
            needed_bytes(state, *of_stage, around)
            for state, of_stage in _moments_of(problem, plan_options, shards, states)
        ],
    )
    kept = step_host_bytes(problem, plan_options, shards, states)
    has_room = problem.system.chip.main_memory.capacity_bytes
    if not plan_options.uses_host:
        return Room(needed, kept, needed <= has_room, kept <= 0.0)
    return Room(needed, kept, needed <= has_room, kept <= host_of(problem).capacity_bytes)


def shard_degrees(problem: Problem, strategy: StrategyOf[Num]) -> ShardDegrees:
    """Return the devices over which the state of dense and of expert parameters is split.

    Full sharding by unit deals whole experts; over more ranks than experts, parts of each. Without
    ep, replicas count as such ranks. The fullest device has two of 16 experts over 15 shards: an
    eighth.

    Source: torchtitan 0.3.0 ``distributed/fsdp.py`` (``expert_shard_placement``).
    """
    dense = strategy.dp_shard * strategy.cp
    replicas = strategy.dp_replicate + 0.0 * dense
    if not problem.num_experts:
        return ShardDegrees(dense, 1.0, replicas)
    expert, ep = degree_of("edp_shard", strategy), strategy.ep
    if not problem.workload.software.shards_by_unit:
        return ShardDegrees(dense, expert, replicas)
    ranks = expert * where(ep > 1, ep, strategy.dp_replicate)
    deals = ranks <= problem.num_experts
    padding = where(deals, shard_padding(problem.num_experts / ep, expert), 1.0)
    return ShardDegrees(dense, expert / padding, replicas, padding)
