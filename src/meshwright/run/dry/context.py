"""Sequences split over cp: ring attention of PyTorch's ``context_parallel``, as exported.

On a GPU the core is the flash kernel, one operator under fake tensors; the dispatcher of
``context_parallel`` splits it into a ring.

Source: PyTorch 2.13, ``torch/distributed/tensor/experimental/_context_parallel/_attention.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import _attention as experimental

aten = torch.ops.aten


@contextmanager
def ring_attention() -> Iterator[None]:
    """Run flash attention on split sequences as a ring of keys and values."""
    before = experimental._cp_options.rotate_method
    experimental.set_rotate_method("alltoall")
    experimental._enable_context_parallel_dispatcher()
    try:
        yield
    finally:
        experimental._disable_context_parallel_dispatcher()
        experimental._cp_options.rotate_method = before


def ringed(mesh: DeviceMesh) -> Callable[..., Tensor]:
    """Return the core of attention for sequences that are split over a mesh."""

    def core(query: Tensor, key: Tensor, value: Tensor, turns: Tensor) -> Tensor:
        heads = [
            DTensor.from_local(part.transpose(1, 2), mesh, [Shard(2)], run_check=False)
            for part in (query, key, value)
        ]
        made = aten._scaled_dot_product_flash_attention(*heads, 0.0, True)[0]
        return made.to_local().transpose(1, 2)

    return core
