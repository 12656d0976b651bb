"""A chunk of a pipeline as PyTorch frameworks build it: one module for each projection.

The tensor-parallel styles of PyTorch split single linear modules, so queries, keys, values, gate
and up are weights of their own, as in torchtitan.

Source: torchtitan 0.3.0, ``models/common/attention.py``, ``feed_forward.py`` and ``moe``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

from meshwright.spec.model import AttentionSpec, LayerSpec, ModelSpec


def norm_of(model: ModelSpec, size: int, kind: str | None = None) -> nn.Module:
    """Return a norm over the last dim."""
    kind = kind or model.norm
    if kind == "rms":
        return nn.RMSNorm(size, eps=1e-5)
    return nn.LayerNorm(size, elementwise_affine=kind != "layer_unweighted", bias=kind == "layer")


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Return heads turned by complex factors, in FP32: nothing is kept but the factors."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class Attention(nn.Module):
    """Grouped-query attention: (batch, tokens, hidden) to the same."""

    def __init__(self, model: ModelSpec, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        hidden, heads, keys = model.hidden_size, spec.num_heads, spec.num_kv_heads
        self.rotates = not model.learned_positions and spec.rotary
        self.query = nn.Linear(hidden, heads * spec.head_size, bias=spec.qkv_bias)
        self.key = nn.Linear(hidden, keys * spec.head_size, bias=spec.qkv_bias)
        self.value = nn.Linear(hidden, keys * spec.value_head_size, bias=spec.qkv_bias)
        self.output = nn.Linear(heads * spec.value_head_size, hidden, bias=spec.output_bias)
        if spec.qk_norm == "head":
            self.query_norm = norm_of(model, spec.head_size, "rms")
            self.key_norm = norm_of(model, spec.head_size, "rms")

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Return the output of all heads of this rank."""
        size, wide = self.spec.head_size, self.spec.value_head_size
        query = self.query(x).unflatten(-1, (-1, size))
        key = self.key(x).unflatten(-1, (-1, size))
        value = self.value(x).unflatten(-1, (-1, wide))
        if self.spec.qk_norm == "head":
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotates:
            query, key = rotated(query, turns), rotated(key, turns)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        made = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.output(made.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """The dense network; gate and up are weights of their own."""

    def __init__(self, hidden: int, inner: int, *, gated: bool, bias: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=bias) if gated else None
        self.up = nn.Linear(hidden, inner, bias=bias)
        self.down = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the columns of this rank."""
        if self.gate is None:
            return self.down(functional.gelu(self.up(x)))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """One layer: attention, then a network, each behind its norm."""

    def __init__(self, model: ModelSpec, spec: LayerSpec) -> None:
        super().__init__()
        assert spec.attention is not None
        assert spec.feed_forward is not None
        network = spec.feed_forward
        self.attention_norm = norm_of(model, model.hidden_size)
        self.attention = Attention(model, spec.attention)
        self.network_norm = norm_of(model, model.hidden_size)
        self.network = FeedForward(
            model.hidden_size, network.ffn_size, gated=network.gated, bias=network.bias
        )

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Return the residual stream behind the layer."""
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.network(self.network_norm(x))


class Chunk(nn.Module):
    """Consecutive layers of a model, with the ends that lie beside them."""

    def __init__(self, model: ModelSpec, layers: range, *, length: int) -> None:
        super().__init__()
        self.model = model
        hidden = model.hidden_size
        is_first, is_last = layers.start == 0, layers.stop == model.num_layers
        self.embedding = nn.Embedding(model.vocab_size, hidden) if is_first else None
        self.layers = nn.ModuleList(
            Layer(model, model.layer_kinds[model.layer_pattern[at]]) for at in layers
        )
        has_norm = is_last and model.final_norm
        self.norm = norm_of(model, hidden) if has_norm else None
        self.head = nn.Linear(hidden, model.vocab_size, bias=model.head_bias) if is_last else None
        if model.tied_embeddings and is_first and is_last:
            assert self.embedding is not None
            assert self.head is not None
            self.head.weight = self.embedding.weight
        size = model.attentions[0].head_size
        self.turns = torch.zeros(1, length, 1, size // 2, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream behind the chunk, or the logits of the last one."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, self.turns)
        if self.norm is not None:
            x = self.norm(x)
        return x if self.head is None else self.head(x)

    @property
    def units(self) -> list[list[nn.Module]]:
        """Modules whose weights are gathered together: each end, and each layer."""
        ends = [m for m in (self.norm, self.head) if m is not None]
        if self.embedding is not None and self.model.tied_embeddings and ends:
            return [[self.embedding, *ends], *([layer] for layer in self.layers)]
        first = [] if self.embedding is None else [[self.embedding]]
        return [*first, *([layer] for layer in self.layers), *([ends] if ends else [])]


def split_tensors(chunk: Chunk, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Split the modules of a chunk over tp, with the styles of PyTorch."""
    stream: Any = Shard(1) if sequence_parallel else Replicate()
    ends: dict[str, Any] = {}
    if chunk.embedding is not None:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    if chunk.norm is not None and sequence_parallel:
        ends["norm"] = SequenceParallel()
    if chunk.head is not None:
        ends["head"] = ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1))
    parallelize_module(chunk, mesh, ends, src_data_rank=None)
    for layer in chunk.layers:
        split: dict[str, Any] = {
            **{f"attention.{part}": ColwiseParallel() for part in ("query", "key", "value")},
            "attention.output": RowwiseParallel(output_layouts=stream),
            **{f"network.{part}": ColwiseParallel() for part in ("gate", "up")},
            "network.down": RowwiseParallel(output_layouts=stream),
        }
        if sequence_parallel:
            split |= {"attention_norm": SequenceParallel(), "network_norm": SequenceParallel()}
        # One gather before several products, and one sum of their gradients.
        whole = Replicate()
        split["attention"] = PrepareModuleInput(
            input_layouts=(stream, None), desired_input_layouts=(whole, None)
        )
        split["network"] = PrepareModuleInput(input_layouts=stream, desired_input_layouts=whole)
        parallelize_module(layer, mesh, split, src_data_rank=None)
