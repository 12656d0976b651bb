"""One rank of a plan as a PyTorch program, run for one step on fake ranks and fake tensors.

It is the program of ``export torch``: ``init_device_mesh``, ``parallelize_module``,
``checkpoint_wrapper``, ``fully_shard``, ``torch.distributed.pipelining``, AdamW. Nothing is
allocated or sent, so a rank of any size runs on a laptop; shapes, order and lifetimes of tensors
are those of the real program.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from meshwright.frameworks.launch import (
    GRADIENT_AXES,
    SHARD_AXES,
    degrees,
    layers_of_chunks,
    mesh_dims,
    micro_batches,
)
from meshwright.run.dry.context import ring_attention, ringed
from meshwright.run.dry.fakes import (
    DEVICE,
    FakeStage,
    FakeTensors,
    Replicated,
    default_dtype,
    fake_ranks,
    real_meshes,
    tagged_gradients,
)
from meshwright.run.dry.kernels import gpu_kernels
from meshwright.run.dry.modules import framework_chunk, split_tensors, units_of
from meshwright.run.model import Chunk
from meshwright.run.moments import Category, Counts, Ran, StepPart, summed
from meshwright.run.pipelines import LabelledStage, schedule_of
from meshwright.run.step_recorder import StepRecorder
from meshwright.sharding.strategy import Recompute
from meshwright.train.answer import Plan

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32,
          "tf32": torch.float32}  # fmt: skip
OF_BYTES = {2.0: torch.bfloat16, 4.0: torch.float32}
aten = torch.ops.aten


def chunks_of(plan: Plan, stage: int) -> list[range]:
    """Return the layers of each chunk of a stage."""
    ends = list(accumulate(layers_of_chunks(plan), initial=0))
    return [range(*ends[at : at + 2]) for at in range(stage, len(ends) - 1, degrees(plan)["pp"])]


@dataclass
class RankProgram:
    """Program of one rank: its mesh, its chunks of the model, and its step.

    Programs of frameworks override parts of it.
    """

    framework: ClassVar[str] = "fsdp"
    packages: ClassVar[tuple[str, ...]] = ()
    """Python packages that it needs beside PyTorch, the framework first."""
    installed_by: ClassVar[str] = "'meshwright[frameworks]'"
    update_kind: ClassVar[str] = "foreach"
    """Kernels of AdamW on the device."""
    note: ClassVar[str] = ""
    """Parts of the framework that do not run here."""
    plan: Plan
    stage: int
    sizes: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = degrees(self.plan)
        self.options = self.plan.best.plan_options
        self.work = self.plan.workload
        self.compute = DTYPES[self.work.precision.matmul]
        self.kept = OF_BYTES[self.work.optimizer.weight_bytes_per_param]
        self.reduced = OF_BYTES[self.work.optimizer.reduced_gradient_bytes_per_param]

    @cached_property
    def dims(self) -> dict[str, int]:
        """The mesh, outermost dim first."""
        return mesh_dims(self.plan)

    @property
    def rank(self) -> int:
        """The first rank of the stage."""
        stride = 1
        for axis, size in reversed(self.dims.items()):
            if axis == "pp":
                return self.stage * stride
            stride *= size
        return 0

    @property
    def world_size(self) -> int:
        """All ranks."""
        return int(self.plan.best.strategy.num_devices)

    def run(self, told: Callable[[str], None] = lambda text: None) -> Ran:
        """Run the step; ``told`` is called with the name of each part that begins."""
        logging.getLogger("torch.distributed").setLevel(logging.ERROR)
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            for message in (".*returned a view tensor", ".*torch.jit"):
                warnings.filterwarnings("ignore", message=message)
            stack.enter_context(self.surroundings())
            stack.enter_context(fake_ranks(self.rank, self.world_size))
            told("building")
            mesh = init_device_mesh(
                DEVICE, tuple(self.dims.values()), mesh_dim_names=tuple(self.dims)
            )
            groups = self._groups(mesh)
            stack.enter_context(gpu_kernels())
            stack.enter_context(real_meshes())
            stack.enter_context(FakeTensors())
            recorder = StepRecorder(self._axis_of, self._vocab_sizes)
            stack.enter_context(tagged_gradients(recorder))
            chunks = self._chunks(mesh, groups, recorder)
            modules = nn.ModuleList(chunks)
            # DistributedDataParallel takes DTensors from a module with its first pass.
            self.weights = list(modules.parameters())
            if not self.is_sharded:
                for weight in self.weights:
                    weight.register_post_accumulate_grad_hook(
                        lambda w: recorder.tag([w.grad], Category.GRADIENTS)
                    )
            optimizer = self._optimizer(modules, groups)
            self._tag_resident(recorder, modules, optimizer)
            told("running")
            with recorder, loss_parallel() if self.sizes["tp"] > 1 else nullcontext():
                counts = self._passes(chunks, mesh, recorder)
                self._tag_gradients(recorder, modules)
                recorder.clear()
                with recorder.during(StepPart.OPTIMIZER):
                    optimizer.step()
                optimizer.zero_grad()
            counts = summed([(1, counts), (1, recorder.counts(StepPart.OPTIMIZER))])
            return Ran(self.rank, recorder.moments(), counts)

    def surroundings(self) -> AbstractContextManager[Any]:
        """Return the context manager in which the program runs."""
        return ring_attention() if self.sizes["cp"] > 1 else nullcontext()

    def _groups(self, mesh: DeviceMesh) -> dict[str, DeviceMesh]:
        """Return the meshes of joined axes, and record the axes of every group."""

        def together(axes: tuple[str, ...], name: str) -> DeviceMesh:
            used = tuple(axis for axis in self.dims if axis in axes and self.sizes[axis] > 1)
            found = mesh[used]._flatten(name) if len(used) > 1 else mesh[(used or axes[:1])[0]]
            self._axis_of[found.get_group().group_name] = "*".join(
                axis for axis in axes if axis in used
            )
            return found

        self._axis_of = {mesh.get_group(axis).group_name: axis for axis in self.dims}
        shards = together(SHARD_AXES, "shards")
        groups = {"shards": shards, "gradients": together(GRADIENT_AXES, "gradients")}
        if self.sizes["dp_replicate"] > 1:
            groups["hybrid"] = DeviceMesh._concatenate([mesh["dp_replicate"], shards])
        return groups

    @property
    def _vocab_sizes(self) -> frozenset[int]:
        """Sizes of the vocabulary: of the whole, and on this rank."""
        whole = self.plan.model.vocab_size
        return frozenset({whole, -(-whole // self.sizes["tp"])})

    @property
    def local_length(self) -> int:
        """Tokens of a sequence on this rank, before tp splits them."""
        return self.work.sequence_length // self.sizes["cp"]

    def _chunks(
        self, mesh: DeviceMesh, groups: dict[str, DeviceMesh], recorder: StepRecorder
    ) -> list[nn.Module]:
        chunks: list[nn.Module] = []
        for layers in chunks_of(self.plan, self.stage):
            with default_dtype(self.kept):
                chunk = framework_chunk(self.plan.model, layers, self.local_length)
            if self.sizes["cp"] > 1:
                for layer in chunk.layers.values():
                    layer.mixing.core = ringed(mesh["cp"])
            if self.sizes["tp"] > 1:
                is_split = self.options.sequence_parallel
                split_tensors(chunk, mesh["tp"], sequence_parallel=is_split)
                chunk.tie()
            self._wrap_recompute(chunk)
            if self.options.offload.has_activations:
                chunk.forward = self._saving(  # type: ignore[method-assign]
                    chunk.forward, recorder
                )
            chunks.append(self._over_data(chunk, groups))
        return chunks

    def _wrap_recompute(self, chunk: Chunk) -> None:
        """Recompute layers in the backward pass, all of them or all but their matrix products."""
        if self.options.recompute is Recompute.NONE:
            return
        contexts: dict[str, Any] = {}
        if self.options.recompute is Recompute.SELECTIVE:
            make = partial(create_selective_checkpoint_contexts, _keeps_products)
            contexts = {"context_fn": make}
        for at, layer in chunk.layers.items():
            chunk.layers[at] = checkpoint_wrapper(layer, **contexts)

    def _over_data(self, chunk: Chunk, groups: dict[str, DeviceMesh]) -> nn.Module:
        """Return a chunk with its weights sharded or replicated over data-parallel ranks."""
        if not self.is_sharded:
            if self.compute is not self.kept:
                narrow = torch.autocast(DEVICE, dtype=self.compute)
                chunk.forward = narrow(chunk.forward)  # type: ignore[method-assign]
                for norm in (m for m in chunk.modules() if isinstance(m, nn.RMSNorm)):
                    norm.register_forward_hook(lambda *made: made[-1].to(self.compute))
                if self.sizes["pp"] > 1:
                    chunk.register_forward_hook(lambda *made: made[-1].to(self.compute))
                    if chunk.embedding is None:
                        chunk.register_forward_pre_hook(lambda _, came: came[0].to(self.kept))
            if groups["gradients"].size() == 1:
                return chunk
            mesh = groups["gradients"]
            return Replicated(chunk, device_mesh=mesh, gradient_as_bucket_view=True)
        on_host = self.options.offload.has_weights
        options: dict[str, Any] = {
            "mesh": groups.get("hybrid", groups["shards"]),
            "reshard_after_forward": self.options.zero_stage == 3
            and self.options.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(param_dtype=self.compute, reduce_dtype=self.reduced),
            "offload_policy": CPUOffloadPolicy(pin_memory=False) if on_host else OffloadPolicy(),
        }
        for unit in units_of(chunk):
            fully_shard(unit if len(unit) > 1 else unit[0], **options)
        return fully_shard(chunk, **options)

    @property
    def sums_last(self) -> bool:
        """Whether gradients are summed over ranks, or replicas, only after the last micro-batch."""
        waits = self.sizes["dp_replicate"] > 1 and not self.options.offload.has_weights
        return not self.is_sharded or waits

    @contextmanager
    def _without_sums(self, chunk: Any) -> Iterator[None]:
        """Have backward passes leave gradients, or their shards over replicas, unsummed."""
        if isinstance(chunk, FSDPModule):
            chunk.set_requires_all_reduce(False)
            yield
            chunk.set_requires_all_reduce(True)
        elif isinstance(chunk, DistributedDataParallel):
            with chunk.no_sync():
                yield
        else:  # one rank alone
            yield

    @property
    def is_sharded(self) -> bool:
        """Whether weights are sharded; otherwise each rank has all, under autocast."""
        return self.options.zero_stage >= 2

    def _optimizer(
        self, modules: nn.Module, groups: dict[str, DeviceMesh]
    ) -> torch.optim.Optimizer:
        """Return AdamW with its state after the first step."""
        weights = [p for p in modules.parameters() if p.requires_grad]
        on_device = not self.options.offload.has_optimizer
        group = groups["shards"].get_group()
        if self.options.zero_stage == 1 and group.size() > 1:
            from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of what it imports

            sharing = ZeroRedundancyOptimizer(
                weights, torch.optim.AdamW, group, **{self.update_kind: on_device}
            )
            optimizer, inner = sharing, sharing.optim
        else:
            optimizer = inner = torch.optim.AdamW(weights, **{self.update_kind: on_device})
        with_moments(inner)
        return optimizer

    def _tag_resident(
        self, recorder: StepRecorder, modules: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        offload = self.options.offload
        weights = Category.HOST if offload.has_weights else Category.WEIGHTS
        states = Category.HOST if offload.has_optimizer else Category.STATES
        recorder.tag(modules.parameters(), weights)
        recorder.tag([m.places for m in modules.modules() if isinstance(m, Chunk)],
                     Category.TEMPORARY)  # fmt: skip
        for replicated in (m for m in modules.modules() if isinstance(m, Replicated)):
            recorder.tag(replicated.buckets, Category.GRADIENTS)
        inner = getattr(optimizer, "optim", optimizer)
        found = [value for state in inner.state.values() for value in state.values()]
        recorder.tag(found, states)

    def _tag_gradients(self, recorder: StepRecorder, modules: nn.Module) -> None:
        """State the category of gradients and gathered weights; call it after the passes."""
        on_host = self.options.offload.has_gradients or self.options.offload.has_weights
        kept = Category.HOST if on_host else Category.GRADIENTS
        for weight in self.weights:
            if weight.grad is not None:
                recorder.tag([weight.grad], kept)
        recorder.tag_gathered(modules)

    def _passes(
        self, chunks: Sequence[nn.Module], mesh: DeviceMesh, recorder: StepRecorder
    ) -> Counts:
        """Run the micro-batches, and return the counts of all of them.

        Those of one chunk are alike, so at most two are run.
        """
        number, chunk = micro_batches(self.plan), chunks[0]
        if self.sizes["pp"] > 1:
            self._pipeline(chunks, mesh, recorder, number)
            return recorder.counts()
        seen: list[Counts] = []
        for index in range(min(number, 2)):
            tokens = torch.zeros(
                self.sizes["micro_batch_size"], self.local_length, dtype=torch.int64
            )
            recorder.tag([tokens], Category.ACTIVATIONS)
            is_last = index == min(number, 2) - 1
            with self._without_sums(chunk) if self.sums_last and not is_last else nullcontext():
                made = self._made(chunk, tokens)
                loss = self._loss(mesh, made, tokens)
                del made
                with recorder.during(StepPart.BACKWARD):
                    loss.backward()
                del loss
            self._tag_gradients(recorder, chunk)
            seen.append(recorder.counts())
        if number == 1:
            return seen[0]
        # All but the last are as the first, or all but the first as the second.
        first, both = seen
        times = (number - 2, 1) if self.sums_last else (2 - number, number - 1)
        return summed(zip(times, (first, both), strict=True))

    def _saving(
        self, forward: Callable[..., Tensor], recorder: StepRecorder
    ) -> Callable[..., Tensor]:
        """Return a forward pass that moves what it keeps to the host, as ``save_on_cpu`` does.

        A copy represents the tensor on the host, because all fake tensors are on the CPU.
        """

        def leave(kept: Tensor) -> Tensor:
            copy = kept.detach().clone()
            recorder.tag([copy], Category.HOST)
            return copy

        def saved(*inputs: Tensor) -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(leave, torch.clone):
                return forward(*inputs)

        return saved

    def _made(self, chunk: nn.Module, tokens: Tensor) -> Tensor:
        made: Tensor = chunk(tokens)
        return made

    def _loss(self, mesh: DeviceMesh, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, in FP32 as frameworks compute it."""
        if self.sizes["tp"] > 1:
            logits = DTensor.from_local(logits, mesh["tp"], [Shard(-1)], run_check=False)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))

    def _pipeline(
        self, chunks: Sequence[nn.Module], mesh: DeviceMesh, recorder: StepRecorder, number: int
    ) -> None:
        """Run all micro-batches in the order of the schedule."""
        total, group = len(chunks) * self.sizes["pp"], mesh.get_group("pp")
        stages = [
            self._stage(chunk, self.stage + place * self.sizes["pp"], total, group, recorder)
            for place, chunk in enumerate(chunks)
        ]
        self._run(schedule_of(self.options.schedule, stages, number, partial(self._loss, mesh)))

    def _run(self, schedule: Any, **options: Any) -> None:
        """Run a schedule over the micro-batches of this rank."""
        size = micro_batches(self.plan) * self.sizes["micro_batch_size"]
        batch = torch.zeros(size, self.local_length, dtype=torch.int64)
        inputs = (batch,) if self.stage == 0 else ()
        is_last = self.stage == self.sizes["pp"] - 1
        target = batch if is_last else None
        schedule.step(*inputs, target=target, return_outputs=False, **options)

    def _stage(
        self, chunk: nn.Module, index: int, total: int, group: Any, recorder: StepRecorder,
        **options: Any,
    ) -> LabelledStage:  # fmt: skip
        """Return a stage, with the shapes of its inputs and outputs."""
        given = made = came = back = self._stream()
        if index == 0:
            size = (self.sizes["micro_batch_size"], self.local_length)
            given, back = torch.zeros(size, dtype=torch.int64), None
        if index == total - 1:
            made, came = self._made_last(), None
        return FakeStage(chunk, index, total, torch.device(DEVICE), given, made, came, back,
                      group=group, recorder=recorder, **options)  # fmt: skip

    def _stream(self) -> Tensor:
        """Return a tensor of the shape that stages send."""
        rows = self.local_length // (self.sizes["tp"] if self.options.sequence_parallel else 1)
        size = (self.sizes["micro_batch_size"], rows, self.plan.model.hidden_size)
        return torch.empty(size, dtype=self.compute, requires_grad=True)

    def _made_last(self) -> Tensor:
        """Return a tensor of the shape of the output of the last stage: logits."""
        size = (self.sizes["micro_batch_size"], self.local_length, min(self._vocab_sizes))
        return torch.empty(size, dtype=self.compute, requires_grad=True)


def with_moments(optimizer: torch.optim.Optimizer) -> None:
    """Give AdamW its state after the first step."""
    for weight in (p for part in optimizer.param_groups for p in part["params"]):
        moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.tensor(0.0), **moments}


def _keeps_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_kept = operator in (aten.mm.default, aten.addmm.default, aten.bmm.default)
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE
