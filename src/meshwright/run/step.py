"""One training step of one process: micro-batches, sums of gradients, optimizer.

ZeRO is PyTorch's FSDP2, and pipelines are those of ``torch.distributed.pipelining``. The layers of
a stage are those of :mod:`meshwright.run.layers`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from meshwright.graph.op import Phase
from meshwright.run.layers.loss import cross_entropy
from meshwright.run.mesh import Axis, Mesh, groups_of
from meshwright.run.model import Chunk, draw
from meshwright.run.moments import Category, Usage
from meshwright.run.parts import SLOWEST, Measured
from meshwright.run.pipelines import LabelledStage, schedule_of
from meshwright.run.sharded import stages_of

LEARNING_RATE, EPSILON = 1e-3, 1e-5


def optimizer_of(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return AdamW with one kernel for all weights that are sharded alike, as it is priced.

    Its epsilon keeps rounding errors of zero gradients small.
    """
    alike: defaultdict[object, list[nn.Parameter]] = defaultdict(list)
    for weight in parameters:
        alike[getattr(weight, "device_mesh", None)].append(weight)
    groups = [{"params": weights} for weights in alike.values()]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=EPSILON, fused=True)


class Process:
    """The stages of one process and its optimizer."""

    def __init__(self, mesh: Mesh, dense: Chunk, seed: int) -> None:
        self.mesh, self.job, self.device = mesh, mesh.job, mesh.device
        by_place, self.held = stages_of(mesh, dense)
        self.places, self.stages = list(by_place), list(by_place.values())
        if next(dense.parameters()).is_meta:
            self._draw(seed)
        self.shards = mesh.options.zero_stage > 0 and mesh["dp_shard*cp"].size > 1
        if self.shards:
            for stage in self.stages:
                _shard(stage, mesh)
        self.optimizer = optimizer_of(self.parameters.values())
        self.time_parts_s: defaultdict[str, float] = defaultdict(float)
        self.waits_s: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        """Time of each collective, by part and axis [s]."""
        self.of_pipeline = self._of_pipeline() if mesh["pp"].size > 1 else []
        if self.of_pipeline:
            self.schedule = schedule_of(
                mesh.options.schedule,
                self.of_pipeline,
                self.job.num_micro_batches,
                self.loss,
                scale_grads=False,
            )

    def _draw(self, seed: int) -> None:
        """Allocate and draw the weights of this process, without the dense model."""
        for stage in self.stages:
            stage.to_empty(device=self.device)
            stage.tie()
        for name, weight in self.parameters.items():
            held = self.held[name]
            draw(weight, name, seed, held.place)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All weights of the process by name."""
        return {name: weight for stage in self.stages for name, weight in stage.named_parameters()}

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time inside the context to a part of the step."""
        waits_s, start_s = self.mesh.recorder.waits_s, time.perf_counter()
        before = {axis: len(times) for axis, times in waits_s.items()}
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.time_parts_s[part] += time.perf_counter() - start_s
        for axis, times in waits_s.items():
            if made := times[before.get(axis, 0) :]:
                self.waits_s[part, axis] += made

    def take_times(self) -> Measured:
        """Return the times of a step, and begin anew: all processes call this together.

        The last process to reach a collective waits for none: the shortest time among the members
        is that of the transfer, the rest of the own time a wait for the slowest one.
        """
        of_all: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, dict(self.waits_s))
        found = {(part, ""): time_s for part, time_s in self.time_parts_s.items()}
        for (part, axis), own in self.waits_s.items():
            members = [of_all[rank].get((part, axis), []) for rank in self.mesh[axis].ranks]
            is_paired = len({len(times) for times in members}) == 1
            found[part, axis] = sum(map(min, zip(*members, strict=True))) if is_paired else sum(own)
            waited_s = sum(own) - found[part, axis]
            found[part, SLOWEST] = found.get((part, SLOWEST), 0.0) + waited_s
        for times in (self.time_parts_s, self.waits_s, self.mesh.recorder.waits_s):
            times.clear()
        return found

    def gradients(self, tokens: Tensor) -> float:
        """Compute the gradients of a step, and return the mean loss of all tokens.

        ``tokens`` are the sequences of all processes, each with one more token than its length.
        """
        s, mesh = self.job.strategy, self.mesh
        own = int(s.micro_batch_size) * self.job.num_micro_batches
        mine = tokens[mesh["dp"].index * own :][:own].to(self.device)
        places = mesh.tokens_of(mesh["cp"].index, None, None)
        inputs, targets = mine[:, places], mine[:, places + 1]
        self.optimizer.zero_grad()
        loss = (self._pipelined if self.of_pipeline else self._in_turn)(inputs, targets)
        with self.timed("gradient_sums_s"):
            self._complete()
        sums = torch.tensor([loss], dtype=torch.float64, device=self.device)
        with mesh.recorder.saying("", "loss", Phase.FORWARD, is_counted=False):
            dist.all_reduce(sums)
        return float(sums) / (mesh["tp"].size * mesh["tatp"].size)

    def usage(self) -> Usage:
        """Return the memory of the recorded step."""
        recorder = self.mesh.recorder
        recorder.tag(self.parameters.values(), Category.WEIGHTS)
        recorder.tag([weight.grad for weight in self.parameters.values()], Category.GRADIENTS)
        for stage in self.stages:
            recorder.tag_gathered(stage)
        for one in self.of_pipeline:
            recorder.tag(one.receive_buffers(), Category.TEMPORARY)
        return recorder.moments().usage

    def _in_turn(self, inputs: Tensor, targets: Tensor) -> float:
        """Run the micro-batches in sequence."""
        (stage,), count = self.stages, self.job.num_micro_batches
        total = 0.0
        for number, (x, y) in enumerate(zip(inputs.chunk(count), targets.chunk(count),
                                            strict=True)):  # fmt: skip
            if self.shards and self.mesh.options.zero_stage < 3:
                is_last = number == count - 1
                stage.set_requires_gradient_sync(is_last)
                stage.set_reshard_after_backward(is_last)
            with self.timed("forward_s"):
                loss = self.loss(stage(x), y)
            with self.timed("backward_s"):
                loss.backward()
            total += float(loss)
        return total

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the share of this rank in the mean loss over all tokens of the step."""
        axes = [axis for axis, _ in self.mesh.splits]
        each = cross_entropy(logits, targets, int(self.mesh.words[0]), axes)
        return each.sum() / (self.job.global_batch_size * self.job.sequence_length)

    def _of_pipeline(self) -> list[LabelledStage]:
        """Return the stages of a PyTorch pipeline, with the shapes of their inputs and outputs."""
        s, mesh, model = self.job.strategy, self.mesh, self.job.model
        rows, dtype = int(s.micro_batch_size), next(iter(self.parameters.values())).dtype
        whole = len(mesh.tokens_of(mesh["cp"].index, None, None))
        rest = torch.empty(rows, len(mesh.tokens), model.hidden_size, dtype=dtype, device="meta")
        rest.requires_grad_()
        words = torch.empty(rows, whole, dtype=torch.long, device="meta")
        found = []
        for place, stage in zip(self.places, self.stages, strict=True):
            if self.shards:
                _keep_zero(stage, mesh.options.zero_stage)
            logits = torch.empty(rows, whole, len(mesh.words), dtype=dtype, device="meta")
            logits.requires_grad_()
            found.append(LabelledStage(
                stage, place, int(s.pp * s.num_virtual_stages), self.device, recorder=mesh.recorder,
                input_args=words if stage.is_first else rest,
                output_args=logits if stage.is_last else rest, group=mesh["pp"].group,
            ))  # fmt: skip
        return found

    def _pipelined(self, inputs: Tensor, targets: Tensor) -> float:
        """Run the micro-batches in the order of the pipeline schedule."""
        losses: list[Tensor] = []
        is_first, is_last = self.stages[0].is_first, self.stages[-1].is_last
        with self.timed("pipeline_s"):
            self.schedule.step(
                *([inputs] if is_first else []),
                **({"target": targets, "losses": losses} if is_last else {}),
            )
        return float(sum(float(loss) for loss in losses))

    def _complete(self) -> None:
        """All-reduce the gradients over the axes over which they are partial sums."""
        mesh, phase = self.mesh, Phase.WEIGHT_GRADIENT
        for name, weight in self.parameters.items():
            held = self.held[name]
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradient, first = _local(weight.grad)
            for axis, start, stop in held.sums:
                rows = slice(max(start - first, 0), max(stop - first, 0))
                if gradient[rows].numel():
                    gradient[rows] = mesh[axis].sum(gradient[rows], name, phase)
            is_sharded = isinstance(weight, DTensor)
            if not is_sharded:
                # Stage 0, and experts of which ZeRO has no second copy to shard over.
                axis = "edp" if ".bank." in name else "dp*cp"
                gradient.copy_(mesh[axis].sum(gradient, name, phase))

    def padding(self) -> dict[str, float]:
        """Return the mean padding of an FSDP call over each axis [bytes]."""
        filled: defaultdict[str, float] = defaultdict(float)
        units: defaultdict[str, set[str]] = defaultdict(set)
        for name, weight in self.parameters.items():
            if isinstance(weight, DTensor):
                axis = "edp_shard" if ".bank." in name else "dp_shard*cp"
                size, rows = weight.device_mesh.size(-1), weight.shape[0]
                more = (-rows % size) * (weight.nbytes // rows)
                filled[axis] += more
                filled["dp_replicate"] += more / size
                unit = name.split(".")[1] if name.startswith("layers.") else "edges"
                units[axis].add(unit)
                units["dp_replicate"].add(axis + unit)
        return {axis: number / len(units[axis]) for axis, number in filled.items()}

    def whole_gradients(self) -> dict[str, Tensor]:
        """Return the unsharded gradient of each weight of this process."""
        return {
            name: weight.grad.full_tensor() if isinstance(weight.grad, DTensor) else weight.grad
            for name, weight in self.parameters.items()
            if weight.grad is not None
        }


AT_THE_END = ("set_is_last_backward", "set_reshard_after_backward", "set_requires_gradient_sync")


def _keep_zero(stage: Any, zero_stage: int) -> None:
    """Prevent a pipeline of PyTorch from deferring the collectives of ZeRO (PyTorch 2.13).

    Under ZeRO 3 its stages accumulate unsharded gradients and reduce them once per step
    (``distributed/pipelining/stage.py``, ``backward_maybe_with_nosync``); the plan reduces them in
    each micro-batch and frees the weights. Under ZeRO 1 and 2 its schedules free the weights of all
    but the next three stages (``schedules.py``, ``_add_unshard_reshard``); the plan keeps them
    until the end of the step.
    """
    for module in filter(lambda module: isinstance(module, FSDPModule), stage.modules()):
        for name in AT_THE_END if zero_stage == 3 else ("reshard",):
            setattr(module, name, lambda *given, **named: None)


def _local(gradient: Tensor) -> tuple[Tensor, int]:
    """Return the shard of a gradient on this process, and its first row in the whole."""
    if not isinstance(gradient, DTensor):
        return gradient, 0
    mesh, rows = gradient.device_mesh, gradient.shape[0]
    size, index = mesh.size(-1), mesh.get_local_rank(mesh.ndim - 1)
    return gradient.to_local(), min(-(-rows // size) * index, rows)


def _shard(stage: Chunk, mesh: Mesh) -> None:
    """Apply FSDP2 to each layer; banks of experts are sharded over the copies of the experts."""
    reshards = mesh.options.zero_stage == 3 and mesh.options.reshard_after_forward
    of_experts, unsharded = _device_mesh(mesh, "edp_shard"), set()
    for name, module in stage.named_modules():
        if name.endswith(".bank"):
            if of_experts is None:
                unsharded |= set(module.parameters())
            else:
                _unit(module, of_experts, reshards, set(), mesh["edp_shard"])
    dense = _device_mesh(mesh, "dp_shard*cp")
    for layer in stage.layers.values():
        _unit(layer, dense, reshards, unsharded, mesh["dp_shard*cp"])
    _unit(stage, dense, reshards, unsharded, mesh["dp_shard*cp"])


def _unit(
    module: nn.Module, mesh: Any, reshards: bool, unsharded: set[nn.Parameter], axis: Axis
) -> None:
    made: Any = fully_shard(module, mesh=mesh, reshard_after_forward=reshards,
                            ignored_params=unsharded or None)  # fmt: skip
    made.set_gradient_divide_factor(1.0)
    made.set_force_sum_reduction_for_comms(True)
    if mesh.device_type == "cpu" and hasattr(made, "set_custom_all_gather"):  # PyTorch 2.9
        made.set_custom_all_gather(Timed(axis, dist.all_gather_into_tensor))
        made.set_custom_reduce_scatter(Timed(axis, dist.reduce_scatter_tensor))


@dataclass(frozen=True)
class Timed:
    """A timed collective of FSDP; on CPUs it blocks until it has ended."""

    axis: Axis
    call: Callable[..., Any]

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a buffer of the collective."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **named: Any) -> Any:
        """Run the collective."""
        with self.axis.recorder.waiting(self.axis.name):
            return self.call(output_tensor, input_tensor, **named)


def _device_mesh(mesh: Mesh, shards: str) -> DeviceMesh | None:
    """Return the mesh of FSDP, with replicas as its outer dim; None for one rank."""
    axis, copies = mesh[shards], mesh["dp_replicate"]
    kind = mesh.device.type
    if axis.size == 1:
        return None
    if copies.size == 1:
        return DeviceMesh.from_group(axis.group, kind)
    ranks = [group for rank in copies.ranks for group in groups_of(mesh.job, shards)
             if rank in group]  # fmt: skip
    return DeviceMesh.from_group([copies.group, axis.group], kind, torch.tensor(ranks),
                                 mesh_dim_names=("replicate", "shard"))  # fmt: skip
