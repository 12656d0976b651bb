"""The dense transformer of a model declaration, in plain PyTorch: the reference of every plan.

Modules and weights have the names of the operators of ``graph.transformer``; queries, keys and
values, and gate and up, are rows of one weight, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.base.errors import Fault, SpecError
from meshwright.spec.model import AttentionSpec, ExpertSpec, FeedForwardSpec, LayerSpec, ModelSpec

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0


def check_runnable(model: ModelSpec) -> None:
    """Refuse models with parts that are not built here.

    Raises
    ------
    SpecError
        Latent attention, recurrences, sinks, chunked windows, several predicted tokens.
    """
    faults = [Fault("model", f"{model.name} has {part}, which run does not build", "another model")
              for part in dict.fromkeys(_unknown_parts(model))]  # fmt: skip
    if faults:
        raise SpecError(faults)


def _unknown_parts(model: ModelSpec) -> Iterator[str]:
    """Yield the parts of a model that are not built here."""
    if model.prediction_depths:
        yield "prediction of several tokens"
    for kind in model.layer_kinds:
        if kind.recurrence is not None:
            yield "recurrent layers"
        if kind.attention is not None:
            if kind.attention.kind == "mla":
                yield "latent attention (MLA)"
            if kind.attention.sinks:
                yield "attention sinks"
            if kind.attention.window is not None and kind.attention.window_kind == "chunked":
                yield "chunked windows"


class Norm(nn.Module):
    """Root-mean-square or layer norm over the last dim, with the weights that the kind has."""

    def __init__(self, kind: str, size: int, *, is_weighted: bool = True) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        has_weight = is_weighted and kind != "layer_unweighted"
        self.weight = nn.Parameter(torch.ones(size)) if has_weight else None
        self.bias = nn.Parameter(torch.zeros(size)) if has_weight and kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "rms":
            return functional.rms_norm(x, (self.size,), self.weight, NORM_EPSILON)
        return functional.layer_norm(x, (self.size,), self.weight, self.bias, NORM_EPSILON)


class Linear(nn.Module):
    """Y = X W^T + b; W has a row for each output."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn the two halves of each head by angles that grow with the position (Su et al. 2021).

    ``x`` is (batch, tokens, heads, size), ``positions`` (tokens).
    """
    half = x.shape[-1] // 2
    exponents = torch.arange(half, device=x.device, dtype=torch.float64) / half
    angles = positions.to(torch.float64)[:, None] * ROTARY_BASE**-exponents
    cos, sin = (part[:, None, :].to(x.dtype) for part in (angles.cos(), angles.sin()))
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned if x.shape[-1] == 2 * half else torch.cat([turned, x[..., 2 * half :]], dim=-1)


def gated(inner: Tensor, *, is_gated: bool) -> Tensor:
    """Return silu(gate) * up of both halves, or gelu of a network without a gate."""
    if not is_gated:
        return functional.gelu(inner)
    gate, up = inner.chunk(2, dim=-1)
    return functional.silu(gate) * up


class Attention(nn.Module):
    """Causal grouped-query attention: (batch, tokens, hidden) to the same."""

    def __init__(self, model: ModelSpec, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec, self.rotates = spec, model.learned_positions == 0 and spec.rotary
        heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_size
        values = spec.value_head_size
        self.sizes = [heads * size, kv_heads * size, kv_heads * values]
        if spec.output_gate:
            self.sizes.append(heads * values)
        self.qkv = Linear(model.hidden_size, sum(self.sizes), bias=spec.qkv_bias)
        self.output = Linear(heads * values, model.hidden_size, bias=spec.output_bias)
        if spec.qk_norm != "none":
            of_all, weighted = spec.qk_norm == "full", spec.qk_norm != "unweighted"
            sizes = self.sizes[:2] if of_all else [size, size]
            self.query_norm = Norm("rms", sizes[0], is_weighted=weighted)
            self.key_norm = Norm("rms", sizes[1], is_weighted=weighted)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        spec = self.spec
        query, key, value, *gate = self.qkv(x).split(self.sizes, dim=-1)
        if spec.qk_norm == "full":
            query, key = self.query_norm(query), self.key_norm(key)
        query = query.unflatten(-1, (spec.num_heads, spec.head_size))
        key = key.unflatten(-1, (spec.num_kv_heads, spec.head_size))
        value = value.unflatten(-1, (spec.num_kv_heads, spec.value_head_size))
        if spec.qk_norm in ("head", "unweighted"):
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotates:
            query, key = rotate(query, positions), rotate(key, positions)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        mask = None
        if spec.window is not None:
            distance = positions[:, None] - positions[None, :]
            mask = (distance >= 0) & (distance < spec.window)
        made = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        heads = made.transpose(1, 2).flatten(-2)
        return self.output(heads * torch.sigmoid(gate[0]) if gate else heads)


class FeedForward(nn.Module):
    """The dense network: up (with its gate), activation, down."""

    def __init__(self, hidden: int, spec: FeedForwardSpec) -> None:
        super().__init__()
        self.gated = spec.gated
        self.up = Linear(hidden, (1 + spec.gated) * spec.ffn_size, bias=spec.bias)
        self.down = Linear(spec.ffn_size, hidden, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gated(self.up(x), is_gated=self.gated))


class Experts(nn.Module):
    """A mixture of experts without dropped tokens: top-k of a softmax, weights of the k sum to 1.

    The weight of an expert multiplies the activation, before the product with ``down``.
    """

    def __init__(self, hidden: int, spec: ExpertSpec) -> None:
        super().__init__()
        self.spec = spec
        inner = (1 + spec.gated) * spec.ffn_size
        self.router = Linear(hidden, spec.num_experts, bias=spec.router_bias)
        self.up = nn.Parameter(torch.empty(spec.num_experts, inner, hidden))
        self.down = nn.Parameter(torch.empty(spec.num_experts, hidden, spec.ffn_size))
        if spec.shared_ffn_size:
            shared = FeedForwardSpec(ffn_size=spec.shared_ffn_size, gated=spec.gated)
            self.shared = FeedForward(hidden, shared)
            self.shared_gate = Linear(hidden, 1) if spec.shared_gate else None

    def counts(self, experts: Tensor) -> list[int]:
        """Return the rows of each expert; a dry run, whose tensors have no values, states them."""
        return torch.bincount(experts, minlength=self.spec.num_experts).tolist()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        scores, experts = self.router(rows).topk(self.spec.top_k, dim=-1)
        weights = scores.softmax(dim=-1).flatten()
        order = experts.flatten().argsort(stable=True)
        token = order // self.spec.top_k
        parts = rows[token].split(self.counts(experts.flatten()))
        weight_parts = weights[order].split([len(part) for part in parts])
        made = []
        for expert, (part, weight) in enumerate(zip(parts, weight_parts, strict=True)):
            inner = gated(part @ self.up[expert].T, is_gated=self.spec.gated)
            made.append((inner * weight[:, None]) @ self.down[expert].T)
        summed = torch.zeros_like(rows).index_add(0, token, torch.cat(made)).view_as(x)
        if not self.spec.shared_ffn_size:
            return summed
        shared = self.shared(x)
        if self.shared_gate is not None:
            shared = shared * torch.sigmoid(self.shared_gate(x))
        return summed + shared


class Layer(nn.Module):
    """One layer: attention, then a network; norms where the declaration has them."""

    def __init__(self, model: ModelSpec, spec: LayerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.mixing = self.network = None
        if spec.attention is not None:
            self.mixing = Attention(model, spec.attention)
        if spec.feed_forward is not None:
            self.network = FeedForward(model.hidden_size, spec.feed_forward)
        elif spec.experts is not None:
            self.network = Experts(model.hidden_size, spec.experts)
        self.norms = nn.ModuleList(Norm(model.norm, model.hidden_size)
                                   for _ in range(spec.num_norms))  # fmt: skip

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        norms, spec = list(self.norms), self.spec
        if spec.parallel_residual:
            assert self.mixing is not None
            assert self.network is not None
            return x + self.mixing(norms[0](x), positions) + self.network(norms[-1](x))
        if self.mixing is not None:
            before, after = self._around(norms)
            x = x + after(self.mixing(before(x), positions))
        if self.network is not None:
            before, after = self._around(norms)
            x = x + after(self.network(before(x)))
        return x

    def _around(self, norms: list[nn.Module]) -> tuple[nn.Module, nn.Module]:
        """Take the norm before the next branch, and the one on its output."""
        before = norms.pop(0) if self.spec.norms_before else nn.Identity()
        has_after = not self.spec.norms_before or self.spec.num_norms == 4
        return before, norms.pop(0) if has_after else nn.Identity()


class Transformer(nn.Module):
    """The whole model: tokens (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.model = model
        hidden = model.hidden_size
        self.embedding = nn.Embedding(model.vocab_size, hidden)
        self.positions = None
        if model.learned_positions:
            self.positions = nn.Embedding(model.learned_positions, hidden)
        self.embedding_norm = Norm(model.norm, hidden) if model.embedding_norm else None
        kinds = model.layer_kinds
        self.layers = nn.ModuleList(Layer(model, kinds[kind]) for kind in model.layer_pattern)
        self.norm = Norm(model.norm, hidden) if model.final_norm else None
        self.logits = Linear(hidden, model.vocab_size, bias=model.head_bias)
        self.tie()

    def tie(self) -> None:
        """Let logits use the weight of the embedding, where the model ties them."""
        if self.model.tied_embeddings:
            self.logits.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        for layer in self.layers:
            x = layer(x, positions)
        return self.logits(x if self.norm is None else self.norm(x))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the targets."""
        return functional.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())


def dense(
    model: ModelSpec,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Transformer:
    """Return the model on a device; ``meta`` allocates nothing, else weights are drawn.

    Raises
    ------
    SpecError
        The model has parts that are not built here.
    """
    check_runnable(model)
    with torch.device("meta"):
        made = Transformer(model).to(dtype)
    if str(device) == "meta":
        return made
    made.to_empty(device=device)
    made.tie()
    for name, weight in made.named_parameters():
        draw(weight, name, seed)
    return made


def draw(weight: Tensor, name: str, seed: int, place: str = "") -> None:
    """Fill a weight with normal numbers of deviation 0.02, around 1 in norms.

    ``place`` tells parts of one weight apart: equal names and places have equal numbers.
    """
    generator = torch.Generator().manual_seed(crc32(f"{seed} {name} {place}".encode()))
    values = torch.randn(weight.shape, generator=generator, dtype=torch.float32) * 0.02
    is_of_norm = "norm" in name and name.endswith("weight")
    weight.data.copy_(1.0 + values if is_of_norm else values)
