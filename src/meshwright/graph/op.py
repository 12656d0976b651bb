"""Operators and tensors with named dims: the step before anything is split.

Dim names used by transformers (sizes in ``OpGraph.sizes``; token dims are bound when priced):

=====================  ============================================================================
``tokens``             tokens of one micro-batch (sequences times length)
``routed_tokens``      tokens times top_k: rows that visit routed experts
``keys``               tokens that one query meets in a materialised score matrix
``hidden``             width of the residual stream
``query``              query heads side by side (MLA: with their rotary parts)
``key`` / ``value``    key and value heads side by side
``heads``              attention output: value heads side by side, one for each query head
``query_heads``        number of query heads;  ``kv_heads`` of key and value heads
``ffn`` / ``ffn_in``   inner width of a dense network; ``ffn_in`` counts gate and up together
``experts``            routed experts;  ``expert_ffn`` / ``expert_ffn_in`` their inner width
``expert_scores``      logits of the router: one for each expert, never split
``shared_ffn`` / ``shared_ffn_in``  inner width of the shared experts
``inner``              values of a recurrence: its heads side by side, as its gate and its output
``inner_heads``        number of those heads;  ``inner_head_size`` the size of one
``state_key``          keys, or queries, of a recurrence: its groups side by side
``state_groups``       number of those groups;  ``conv``, ``chunk`` tokens of a convolution, a chunk
``query_rank``, ``kv_rank``, ``rotary``, ``key_content``  the factors of latent attention: both
                       ranks, the shared rotary key, and the key heads without their rotary part
``vocab``              rows of the embedding and columns of the logits
=====================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod

from meshwright.base.arrays import Num
from meshwright.spec.model import AttentionSpec, RecurrenceSpec

TOKEN_DIMS = ("tokens", "routed_tokens")

UNITS_OF_DIM: Mapping[str, str] = {
    "query": "query_heads",
    "heads": "query_heads",
    "key": "kv_heads",
    "value": "kv_heads",
    "key_content": "kv_heads",
    "inner": "inner_heads",
    "state_key": "state_groups",
    "ffn_in": "ffn",
    "expert_ffn_in": "expert_ffn",
    "shared_ffn_in": "shared_ffn",
}
"""Dims that split only between whole units, and the dim that counts these: heads are never cut,
and the columns of gate and up stay together. All other dims split between single elements."""


class OpKind(StrEnum):
    """Kind of an operator, on which its price depends."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    RECURRENCE = "recurrence"
    """The scan over the chunks of a sequence, which hands a state from one to the next."""
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
    split_word_bytes: float | None = None
    """Bytes of an element where an axis splits the last dim; None: as without a split."""


@dataclass(frozen=True)
class Op:
    """One operator: its inputs, weights, outputs, summed dims, and saved tensors.

    A matrix product has one activation input, one weight and one output, and sums over
    ``contracted``; a fused product (queries, keys and values) has ``other_outputs`` as well.
    For a norm, ``contracted`` are the dims that its statistics run over.
    ``saved`` are the tensors that the backward pass needs; a tensor that several operators save
    (by name) is kept once. ``words_per_element`` is the traffic of an elementwise operator in
    words for each element of ``traffic``: (forward, backward), unfused.
    """

    name: str
    kind: OpKind
    inputs: tuple[Tensor, ...]
    output: Tensor
    other_outputs: tuple[Tensor, ...] = ()
    weights: tuple[Tensor, ...] = ()
    contracted: tuple[str, ...] = ()
    saved: tuple[Tensor, ...] = ()
    words_per_element: tuple[float, float] = (0.0, 0.0)
    attention: AttentionSpec | None = None
    recurrence: RecurrenceSpec | None = None
    region: str = ""
    """Part of the layer: attention, recurrence, feed_forward, experts, shared_experts, residual,
    edge."""
    moved: Tensor | None = None
    """The tensor that ``words_per_element`` counts, where it is not the outputs."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """All outputs: one, or several of a fused product."""
        return (self.output, *self.other_outputs)

    @property
    def traffic(self) -> tuple[Tensor, ...]:
        """Tensors with elements that ``words_per_element`` counts."""
        return self.outputs if self.moved is None else (self.moved,)

    @property
    def is_grouped(self) -> bool:
        """Whether this is a product in which each expert multiplies its own rows."""
        return any("experts" in weight.dims for weight in self.weights)

    @property
    def is_materialized_attention(self) -> bool:
        """Whether this is an attention core that writes its score matrix to memory."""
        return self.kind is OpKind.ATTENTION and self.moved is not None

    @property
    def is_recomputed_selectively(self) -> bool:
        """Whether selective recomputation runs it again: the attention core."""
        return self.kind is OpKind.ATTENTION


@dataclass(frozen=True)
class LayerGraph:
    """The operators of one kind of layer, in order, and the number of such layers."""

    ops: tuple[Op, ...]
    count: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the named dims inside this kind of layer; ``top_k`` where tokens are routed."""

    @property
    def input(self) -> Tensor:
        """Input of the layer: the only tensor that full recomputation keeps."""
        return self.ops[0].inputs[0]

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """All weights, each once, however many operators use it."""
        return tuple({weight.name: weight for op in self.ops for weight in op.weights}.values())

    def bind(self, tokens: Num, keys: Num) -> dict[str, Num]:
        """Return all sizes once the token dims are known (numbers, or columns of them).

        Parameters
        ----------
        tokens
            Tokens of one micro-batch of one data-parallel rank [tokens].
        keys
            Length of the sequences [tokens].
        """
        routed = tokens * self.sizes.get("top_k", 1)
        return {**self.sizes, "tokens": tokens, "routed_tokens": routed, "keys": keys}


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
    columns = sum(
        prod(sizes[dim] for dim in output.dims if dim not in TOKEN_DIMS) for output in op.outputs
    )
    return 2.0 * columns * prod(sizes[dim] for dim in op.contracted)
