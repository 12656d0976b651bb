"""A language model as its published configuration states it: dims, layer kinds and their order.

A model is a row of layers of a few kinds. ``layer_kinds`` holds the distinct kinds,
``layer_pattern`` says which kind is at each depth, so that models with first dense layers,
interleaved experts or alternating attention windows are exact and not averaged.
Parameter counts are derived (``graph.parameters``), never given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from meshwright.base.errors import Fault, SpecError
from meshwright.spec.declaration import Count, CountOrZero, Declaration
from meshwright.spec.system import DType


class AttentionSpec(Declaration):
    """Self-attention of one layer kind: multi-head, grouped-query, or latent (MLA)."""

    kind: Literal["gqa", "mla"] = "gqa"
    num_heads: Count
    num_kv_heads: Count
    """Key and value heads; equal to ``num_heads`` in plain multi-head attention and in MLA."""
    head_size: Count
    """Size of a query and key head (MLA: without the rotary part)."""
    value_head_size: Count
    window: Count | None = None
    """Tokens that one token sees, itself included; None: all before it."""
    window_kind: Literal["sliding", "chunked"] = "sliding"
    """``sliding``: the last ``window`` tokens; ``chunked``: tokens of the same chunk."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "full", "unweighted"] = "none"
    """Norms on queries and keys: over each head with shared weights, over all heads side by side,
    or over each head without weights."""
    sinks: bool = False
    """One learned sink logit for each head."""
    query_rank: Count | None = None
    """Rank of the compressed query; None: queries are projected at once."""
    output_rank: Count | None = None
    """Rank of the factor that compresses a group of heads; None: heads are projected at once."""
    output_groups: Count = 1
    """Groups of heads, each with a factor of its own."""
    kv_rank: Count | None = None
    """MLA: rank of the compressed keys and values that the cache holds."""
    rope_head_size: CountOrZero = 0
    """MLA: size of the rotary part of a query head and of the one shared rotary key."""
    rotary: bool = True
    """Positions turn queries and keys, in models without learned positions."""
    output_gate: bool = False
    """The output of the heads is multiplied by a learned gate of that width (hidden size x
    heads)."""
    shares_cache: bool = False
    """Keys and values are those of an earlier layer: it has no projections of them, no cache."""
    value_is_key: bool = False
    """One projection makes keys and values; both are cached, as they are normed apart."""
    caches_once: bool = False
    """Keys are the values in the cache too, so that one of them is kept."""
    stride: Count | None = None
    """Tokens that are joined into one more entry of the cache, beside those in the window."""
    chosen_keys: Count | None = None
    """Tokens that a query attends to, chosen by an index among all; the cache keeps every token.
    With a stride: entries of joined tokens."""
    index_heads: CountOrZero = 0
    """Heads of queries of the index; 0: none, or tokens that an earlier layer chose."""
    index_head_size: CountOrZero = 0
    """Size of a query head of the index, and of its one key for each token, which is cached."""

    @property
    def most_keys(self) -> int | None:
        """Tokens that a query attends to at most, joined ones aside; None: all before it."""
        chosen = None if self.stride else self.chosen_keys
        limits = [limit for limit in (self.window, chosen) if limit is not None]
        return min(limits, default=None)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads: {self.num_kv_heads} does not divide num_heads {self.num_heads}"
            )
        if (self.kind == "mla") != (self.kv_rank is not None):
            raise ValueError(f"kv_rank: stated for MLA only, and always there ({self.kind} here)")
        if self.index_heads and self.query_rank is None:
            raise ValueError("index_heads: an index reads compressed queries (query_rank)")
        if self.num_heads % self.output_groups:
            raise ValueError(f"output_groups: {self.output_groups} do not divide {self.num_heads}")
        if self.stride is not None and self.window is None:
            raise ValueError("stride: entries of joined tokens stand beside a window")
        if bool(self.index_heads) != bool(self.index_head_size):
            raise ValueError("index_head_size: stated with index_heads, and only with them")
        if self.value_is_key and self.head_size != self.value_head_size:
            raise ValueError("value_head_size: values that are keys have the size of keys")
        return self


class RecurrenceSpec(Declaration):
    """A recurrent layer: a state of constant size takes the place of keys and values.

    ``mamba2``: the state space of Mamba 2 (Dao and Gu 2024, arXiv 2405.21060); its B and C are keys
    and queries here, its x are values. ``gated_delta``: linear attention by the gated delta rule
    (Yang et al. 2024, arXiv 2412.06464). ``kda``: the delta rule with a decay for each channel of a
    key, and gates of low rank (Kimi Team 2025, arXiv 2510.26692). These work by chunks of tokens.
    ``short_conv``: a gated convolution over the last tokens alone, each channel a head (Liquid AI
    2025, arXiv 2511.23404); its inputs are values times keys, and queries gate its output.
    """

    kind: Literal["mamba2", "gated_delta", "kda", "short_conv"]
    num_heads: Count
    """Heads of values, each with its own state."""
    head_size: Count
    """Size of a value head."""
    num_groups: Count
    """Heads of keys and queries; value heads are divided equally among them."""
    state_size: Count
    """Size of a key and query head: a state is ``state_size`` x ``head_size``."""
    conv_size: Count
    """Tokens that the convolution over keys, queries and values sees."""
    chunk_size: Count
    """Tokens that the kernel treats as a matrix."""
    bias: bool = False
    """Biases on the projections before and after."""
    conv_bias: bool = False
    gate_rank: CountOrZero = 0
    """``kda``: rank of the projections that make the decays and the gate."""
    output_norm: bool = True
    """The gated output is normed; otherwise the gate alone multiplies it."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.num_heads % self.num_groups:
            raise ValueError(
                f"num_groups: {self.num_groups} does not divide num_heads {self.num_heads}"
            )
        if (self.kind == "kda") != bool(self.gate_rank):
            raise ValueError(f"gate_rank: stated for kda only, and always there ({self.kind} here)")
        return self


class FeedForwardSpec(Declaration):
    """A dense feed-forward network."""

    ffn_size: Count
    gated: bool
    bias: bool = False


class ExpertSpec(Declaration):
    """A mixture of experts: routed ones, and shared ones that every token visits."""

    num_experts: Count
    top_k: Count
    ffn_size: Count
    """Inner size of one routed expert."""
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_ffn_size: CountOrZero = 0
    """Inner size of all shared experts together; 0: none."""
    shared_gate: bool = False
    """The shared expert is weighted by a learned gate (hidden size parameters)."""
    num_groups: Count = 1
    """Groups into which the router divides the experts."""
    top_groups: Count = 1
    """Groups that the experts of one token are in, at most."""

    @model_validator(mode="after")
    def _chooses_among_experts(self) -> Self:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k: {self.top_k} of only {self.num_experts} experts")
        if self.num_experts % self.num_groups:
            raise ValueError(f"num_groups: {self.num_groups} do not divide {self.num_experts}")
        if self.top_groups > self.num_groups:
            raise ValueError(f"top_groups: {self.top_groups} of only {self.num_groups} groups")
        if self.top_k * self.num_groups > self.top_groups * self.num_experts:
            raise ValueError(f"top_groups: {self.top_groups} hold fewer than {self.top_k} experts")
        return self


class SideSpec(Declaration):
    """Small products and vectors beside the branches of a layer, or of the embedding.

    Input embeddings of single layers, factors of low rank, mixing of several streams. Every rank of
    tp holds them whole.
    """

    products: tuple[tuple[Count, Count], ...] = ()
    """Width of the input and of the output of each product."""
    num_vector_params: CountOrZero = 0
    """Learned numbers that are not multiplied as a matrix: norms and scales."""


class LayerSpec(Declaration):
    """One kind of layer: attention, a recurrence or both, then a dense network or experts.

    A layer may have one of the two branches alone (Mamba 2, Nemotron-H), with one norm. Attention
    and a recurrence in one layer read the same input, and both outputs are added (Falcon-H1).
    """

    attention: AttentionSpec | None = None
    recurrence: RecurrenceSpec | None = None
    feed_forward: FeedForwardSpec | None = None
    experts: ExpertSpec | None = None
    num_norms: Count = 2
    """Norms over the hidden dim in this layer (Gemma 2 and 3: four; a single branch: one)."""
    norms_before: bool = True
    """Two norms: before the branches or, as in OLMo 2, on the outputs of the branches."""
    parallel_residual: bool = False
    """Attention and feed-forward read the same input, and both outputs are added to it."""
    side: SideSpec | None = None

    @model_validator(mode="after")
    def _is_one_layer(self) -> Self:
        if self.feed_forward is not None and self.experts is not None:
            raise ValueError("feed_forward: a layer has either a dense network or experts")
        if not self.num_branches:
            raise ValueError("feed_forward: a layer has at least one branch")
        if self.num_branches == 1 and (self.num_norms != 1 or self.parallel_residual):
            raise ValueError("num_norms: a layer of a single branch has one norm, before it")
        if not self.norms_before and (self.num_norms != 2 or self.parallel_residual):
            raise ValueError("norms_before: false is known for two norms, one branch at a time")
        return self

    @property
    def num_branches(self) -> int:
        """Branches that are added to the residual stream: one that mixes tokens, and a network."""
        mixes = self.attention is not None or self.recurrence is not None
        return mixes + (self.feed_forward is not None or self.experts is not None)

    @property
    def rare_parts(self) -> tuple[str, ...]:
        """Parts in words that few families have, and programs for the usual ones do not."""
        attention = self.attention
        found = {
            "products beside the branches": self.side is not None,
            "attention beside a recurrence": bool(attention and self.recurrence),
            "keys and values of an earlier layer": bool(attention and attention.shares_cache),
            "values that are keys": bool(attention and attention.value_is_key),
            "tokens chosen by an index": bool(attention and attention.chosen_keys),
            "joined tokens": bool(attention and attention.stride),
            "heads compressed by groups": bool(attention and attention.output_rank),
        }
        return tuple(part for part, is_there in found.items() if is_there)


Region = Literal["attention", "recurrence", "feed_forward", "experts", "shared_experts"]
"""Parts of a layer that hold its products."""
REGIONS: tuple[Region, ...] = get_args(Region)


class WeightFormat(Declaration):
    """Storage of the weights of the products of a quantised checkpoint's layers.

    Embedding, logits, norms and biases stay in the activation type.
    """

    name: str
    """Name such as ``AWQ, 4 bits``."""
    bytes_per_weight: float = Field(gt=0)
    """Scales and zero points of its group included."""
    wide_shares: Mapping[Region, float] = Field(default_factory=dict)
    """Share of the layers that keep a region in the activation type."""
    matmul: DType | None = None
    """Type of both operands of the products in inference; None: weights are widened for them."""
    trains_adapters: bool = True
    """Frozen weights rest in it while adapters are trained; otherwise they are widened before."""
    unpacks: bool = False
    """Inference widens weights in a separate kernel, not inside the product."""

    def bytes_of(self, region: str, wide_bytes: float) -> float:
        """Return the mean bytes of a stored weight of a region.

        Parameters
        ----------
        wide_bytes
            Bytes of one weight in the activation type.
        """
        wide = {str(name): share for name, share in self.wide_shares.items()}.get(region, 0.0)
        return wide * wide_bytes + (1.0 - wide) * self.bytes_per_weight


class ModelSpec(Declaration):
    """A decoder-only transformer."""

    name: str
    architecture: str
    """The Hugging Face architecture or model type that it was read from."""
    hidden_size: Count
    vocab_size: Count
    layer_kinds: tuple[LayerSpec, ...]
    layer_pattern: tuple[CountOrZero, ...]
    """Index into ``layer_kinds`` for each layer, first to last."""
    norm: Literal["rms", "layer", "layer_no_bias", "layer_unweighted"] = "rms"
    """``layer`` has a weight and a bias, ``rms`` and ``layer_no_bias`` a weight,
    ``layer_unweighted`` neither."""
    final_norm: bool = True
    embedding_norm: bool = False
    learned_positions: CountOrZero = 0
    """Rows of the learned position table; 0: rotary, ALiBi or none."""
    side_table: tuple[Count, Count] | None = None
    """Rows and columns of a second token table: the input embeddings of single layers."""
    side: SideSpec | None = None
    """Products and vectors beside the embedding."""
    tied_embeddings: bool = False
    head_bias: bool = False
    max_sequence_length: Count | None = None
    num_prediction_layers: CountOrZero = 0
    """Extra layers for multi-token prediction that the checkpoint holds."""
    prediction_depths: CountOrZero = 0
    """Last layers that are trained to predict further tokens: for each of them the final norm, the
    logits, by the same weight, and the loss are computed once more."""
    weight_format: WeightFormat | None = None
    """Weight format of a quantised checkpoint; None: the weight type of the workload."""
    cache_type: DType | None = None
    """Type of the KV cache for which the checkpoint has scales; None: the type of the workload."""
    conventions: tuple[str, ...] = ()
    """Conventions of the counts: text only, stored head, prediction layers."""
    source: str = ""

    @model_validator(mode="after")
    def _pattern_is_whole(self) -> Self:
        if not self.layer_pattern:
            raise ValueError("layer_pattern: a model needs at least one layer")
        wrong = [kind for kind in self.layer_pattern if kind >= len(self.layer_kinds)]
        if wrong:
            raise ValueError(f"layer_pattern: no layer kind {wrong[0]}")
        return self

    def check_length(self, tokens: int, field: str) -> None:
        """Refuse more tokens of a sequence than there are positions.

        Raises
        ------
        SpecError
            The error names the field that states them.
        """
        if 0 < self.learned_positions < tokens:
            message = (
                f"{tokens} tokens, but {self.name} has learned positions for "
                f"{self.learned_positions}"
            )
            most = self.max_sequence_length or self.learned_positions
            raise SpecError(Fault(field, message, f"at most {most}"))

    @property
    def num_layers(self) -> int:
        """Layers of the model, prediction layers left out."""
        return len(self.layer_pattern)

    @property
    def has_experts(self) -> bool:
        """Whether some layers route tokens to experts."""
        return any(kind.experts is not None for kind in self.layer_kinds)

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """The distinct attentions of the model; none in a purely recurrent one."""
        found = (kind.attention for kind in self.layer_kinds)
        return tuple(dict.fromkeys(spec for spec in found if spec is not None))

    @property
    def recurrences(self) -> tuple[RecurrenceSpec, ...]:
        """The distinct recurrences of the model; none in a transformer."""
        found = (kind.recurrence for kind in self.layer_kinds)
        return tuple(dict.fromkeys(spec for spec in found if spec is not None))

    @property
    def layer_counts(self) -> tuple[int, ...]:
        """Number of layers of each kind."""
        counts = Counter(self.layer_pattern)
        return tuple(counts[kind] for kind in range(len(self.layer_kinds)))
