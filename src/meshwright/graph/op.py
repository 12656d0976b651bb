"""Operators and tensors with named dims: the step before anything is split.

Dim names used by transformers (sizes in ``OpGraph.sizes``; token dims are bound when priced):

====================  =============================================================================
``tokens``            tokens of one micro-batch (sequences times length)
``routed_tokens``     tokens times top_k: rows that visit routed experts
``hidden``            width of the residual stream
``qkv``               query, key and value heads side by side
``heads``             attention output: value heads side by side
``ffn`` / ``ffn_in``  inner width of a dense network; ``ffn_in`` counts gate and up together
``experts``           routed experts;  ``expert_ffn`` / ``expert_ffn_in`` their inner width
``shared_ffn`` / ``shared_ffn_in``  inner width of the shared experts
``query_rank``, ``kv_rank``, ``mla_q``, ``mla_kv``  the factors of latent attention
``vocab``             rows of the embedding and columns of the logits
====================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod

from meshwright.spec.model import AttentionSpec

TOKEN_DIMS = ("tokens", "routed_tokens")


class OpKind(StrEnum):
    """What an operator does, as far as its price depends on it."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    EMBEDDING = "embedding"
    ROUTE = "route"
    """Dispatch of tokens to experts, or the way back."""
    LOSS = "loss"


class Phase(StrEnum):
    """Part of a training step."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"


@dataclass(frozen=True)
class Tensor:
    """A tensor by the names of its dims.

    ``word_bytes`` is None for the activation (or weight) type of the workload, else fixed:
    1 for a dropout mask, 4 for FP32 statistics and logits.
    """

    name: str
    dims: tuple[str, ...]
    word_bytes: float | None = None


@dataclass(frozen=True)
class Op:
    """One operator: what it reads, holds, writes, sums over, and keeps for the backward pass.

    A matrix product has one activation input, one weight and one output, and sums over
    ``contracted``. ``saved`` are the tensors that the backward pass needs; a tensor that several
    operators save (by name) is kept once. ``words_per_element`` is the traffic of an elementwise
    operator in words for each element of its output: (forward, backward), unfused.
    """

    name: str
    kind: OpKind
    inputs: tuple[Tensor, ...]
    output: Tensor
    weights: tuple[Tensor, ...] = ()
    contracted: tuple[str, ...] = ()
    saved: tuple[Tensor, ...] = ()
    words_per_element: tuple[float, float] = (0.0, 0.0)
    attention: AttentionSpec | None = None
    region: str = ""
    """Part of the layer: attention, feed_forward, experts, shared_experts, residual, edge."""

    @property
    def is_recomputed_selectively(self) -> bool:
        """Whether selective recomputation runs it again: the attention core."""
        return self.kind is OpKind.ATTENTION


@dataclass(frozen=True)
class LayerGraph:
    """The operators of one kind of layer, in order, and how many such layers there are."""

    ops: tuple[Op, ...]
    count: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the named dims inside this kind of layer."""


@dataclass(frozen=True)
class OpGraph:
    """One step of a model: the kinds of layers, and the operators before and after them."""

    layers: tuple[LayerGraph, ...]
    embedding: LayerGraph
    """Embedding (first stage); its count is 1."""
    head: LayerGraph
    """Final norm, logits and loss (last stage); its count is 1."""
    tied: bool
    """The logits share the weight of the embedding."""


def weight_elements(op: Op, sizes: Mapping[str, int]) -> int:
    """Return the exact number of parameters of an operator."""
    return sum(prod(sizes[dim] for dim in weight.dims) for weight in op.weights)


def matmul_flops_per_row(op: Op, sizes: Mapping[str, int]) -> float:
    """Return the FLOPs of a matrix product for each of its rows: 2 x contracted x output [FLOP]."""
    columns = prod(sizes[dim] for dim in op.output.dims if dim not in TOKEN_DIMS)
    return 2.0 * columns * prod(sizes[dim] for dim in op.contracted)
