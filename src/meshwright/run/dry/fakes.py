"""PyTorch parts adapted to fake ranks and fake tensors: groups, meshes, replicas, stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import debug
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.run.moments import Category
from meshwright.run.pipelines import LabelledStage
from meshwright.run.step_recorder import StepRecorder

DEVICE = "cpu"
"""Device of the fake tensors; a build of PyTorch without CUDA has no other."""


@contextmanager
def fake_ranks(rank: int, world_size: int) -> Iterator[None]:
    """Be one rank of a process group that sends nothing."""
    if dist.is_initialized():
        raise RuntimeError("a process group is there already: a dry run makes its own")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        # Cached shardings name groups that no longer exist.
        debug._clear_sharding_prop_cache()


class FakeTensors(FakeTensorMode):
    """Fake tensor mode that copies of a module share."""

    def __deepcopy__(self, memo: Any) -> FakeTensors:
        return self


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create new tensors with a type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def real_meshes() -> Iterator[None]:
    """Keep the ranks of joined meshes real while tensors are fake."""
    join = DeviceMesh._concatenate

    def joined(meshes: Any) -> DeviceMesh:
        with unset_fake_temporarily():
            return join(meshes)

    DeviceMesh._concatenate = staticmethod(joined)
    try:
        yield
    finally:
        DeviceMesh._concatenate = staticmethod(join)


class Replicated(DistributedDataParallel):
    """A module whose gradients are summed over its replicas, in Python.

    PyTorch's reducer runs in C++, where fake tensors have no data to check and to send.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        of_device = {"init_sync": False, "device_ids": None, "output_device": None}
        with _Made() as made:
            super().__init__(module, **options | of_device)
        self.buckets = made.tensors
        self.register_comm_hook(self.process_group, lambda group, bucket: _summed(group, bucket))


class _Made(TorchDispatchMode):
    """Collects the buffers that C++ makes: the buckets of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.empty.memory_format:
            self.tensors.append(result)
        return result


def _summed(group: Any, bucket: Any) -> Any:
    """Sum a bucket of gradients over the ranks of a group, as the reducer does."""
    gradients = bucket.buffer()
    dist.all_reduce(gradients, group=group)
    done: Any = torch.futures.Future()
    done.set_result(gradients)
    return done


@contextmanager
def tagged_gradients(recorder: StepRecorder) -> Iterator[None]:
    """State the category of the gradients that FSDP finds after a backward pass."""

    def tagged(accumulate: Callable[[Any], None]) -> Callable[[Any], None]:
        def run(weight: Any) -> None:
            if weight._unsharded_param.grad is not None:
                recorder.tag([weight._unsharded_param.grad], Category.GRADIENTS)
            accumulate(weight)

        return run

    with ExitStack() as stack:
        for name in ("to_accumulated_grad_if_needed", "accumulate_unsharded_grad_if_needed"):
            stand_in = tagged(getattr(FSDPParam, name))
            stack.enter_context(patch.object(FSDPParam, name, stand_in))
        yield


class FakeStage(LabelledStage):
    """A stage that skips the agreement with its neighbours, because its shapes are stated."""

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Sum the gradients of all micro-batches, behind the last pass."""
        self.recorder.sums_gradients = True
        super().perform_reduce_grad(grad_scale_factor)
        self.recorder.sums_gradients = False

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run a chunk forward; its output stays until its backward pass."""
        made = super().forward_one_chunk(*args, **kwargs)
        self.recorder.keep(made)
        return made

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Any = None) -> Any:
        return received_acc

    def _warmup_backward_result(self, received_result: Any = None) -> Any:
        return _Agreed()


class _Agreed:
    def item(self) -> int:
        return 1
