"""A chunk of a model as PyTorch frameworks run it: one module per projection, GPU kernels.

The tensor-parallel styles of PyTorch split single linear modules, so queries, keys, values, gate
and up have separate weights, as in torchtitan.

Source: torchtitan 0.3.0, ``models/common/attention.py``, ``feed_forward.py`` and ``moe``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn import functional

from meshwright.run.model import Chunk, Joint
from meshwright.spec.model import ModelSpec


class Apart(nn.ModuleList):
    """Several linear layers of one input, each with its own weight."""

    def __init__(self, joint: Joint) -> None:
        has_bias = joint.bias is not None
        super().__init__(nn.Linear(joint.in_features, n, bias=has_bias) for n in joint.outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return all products."""
        return tuple(product(x) for product in self)


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Return heads rotated by complex factors, in FP32; only the factors are kept."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


def flash(query: Tensor, key: Tensor, value: Tensor, turns: Tensor) -> Tensor:
    """Return the heads of attention, computed by one kernel."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    made = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    return made.transpose(1, 2)


def framework_chunk(model: ModelSpec, layers: range, length: int) -> Chunk:
    """Return consecutive layers of a model with modules of a framework, for some tokens."""
    chunk = Chunk(model, layers)
    for layer in chunk.layers.values():
        attention = layer.mixing
        attention.qkv, attention.rotate, attention.core = Apart(attention.qkv), turned, flash
        layer.network.up = Apart(layer.network.up)
    size = model.attentions[0].head_size
    chunk.places = torch.zeros(1, length, 1, size // 2, dtype=torch.complex64)
    return chunk


def units_of(chunk: Chunk) -> list[list[nn.Module]]:
    """Return the modules whose weights are gathered together: each end, and each layer."""
    layers = [[layer] for layer in chunk.layers.values()]
    last = [module for module in (chunk.norm, chunk.logits) if module is not None]
    first = [] if chunk.embedding is None else [chunk.embedding]
    if chunk.model.tied_embeddings and first and last:
        return [first + last, *layers]
    return [*([first] if first else []), *layers, *([last] if last else [])]


class WholeNorm(ParallelStyle):
    """A norm that each rank of tp computes whole: its weight is a DTensor, as all others are.

    AdamW updates all weights in one call, which takes no DTensors beside other tensors.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def taken(_: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> DTensor:
            return DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)

        def given(_: nn.Module, made: DTensor, mesh: DeviceMesh) -> Tensor:
            return made.to_local()

        return distribute_module(module, device_mesh, None, taken, given)


def split_tensors(chunk: Chunk, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Split the modules of a chunk over tp, with the styles of PyTorch."""
    stream: Any = Shard(1) if sequence_parallel else Replicate()
    norms = SequenceParallel() if sequence_parallel else WholeNorm()
    ends: dict[str, Any] = {}
    if chunk.embedding is not None:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    if chunk.norm is not None:
        ends["norm"] = norms
    if chunk.logits is not None:
        ends["logits"] = ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1))
    parallelize_module(chunk, mesh, ends, src_data_rank=None)
    whole = Replicate()
    for layer in chunk.layers.values():
        columns = [f"mixing.qkv.{at}" for at in range(len(layer.mixing.qkv))]
        columns += [f"network.up.{at}" for at in range(len(layer.network.up))]
        split: dict[str, Any] = {
            **{name: ColwiseParallel() for name in columns},
            "mixing.output": RowwiseParallel(output_layouts=stream),
            "network.down": RowwiseParallel(output_layouts=stream),
            # One gather for several linear layers, and one sum of their gradients.
            "mixing": PrepareModuleInput(
                input_layouts=(stream, None), desired_input_layouts=(whole, None)
            ),
            "network": PrepareModuleInput(input_layouts=stream, desired_input_layouts=whole),
            **{f"norms.{at}": norms for at in range(len(layer.norms))},
        }
        parallelize_module(layer, mesh, split, src_data_rank=None)
