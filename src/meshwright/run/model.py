"""The transformer of a model declaration, in plain PyTorch.

It is the dense model of a check, and every program of a plan replaces parts of it: a real run
replaces linear layers, norms, rotations and attention cores with those of one rank, a dry run with
those of a framework. Modules and weights have the names of the operators of ``graph.transformer``.
Queries, keys and values are rows of one weight in this order, as are gate and up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.spec.model import AttentionSpec, ExpertSpec, FeedForwardSpec, LayerSpec, ModelSpec

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0


def unbuilt_parts(model: ModelSpec) -> Iterator[str]:
    """Yield the parts of a model that are not implemented here; parts may repeat."""
    if model.prediction_depths:
        yield "prediction of several tokens"
    for kind in model.layer_kinds:
        yield from kind.rare_parts
        if kind.recurrence is not None:
            yield "recurrent layers"
        if kind.attention is not None:
            if kind.attention.kind == "mla":
                yield "latent attention (MLA)"
            if kind.attention.sinks:
                yield "attention sinks"
            if kind.attention.window is not None and kind.attention.window_kind == "chunked":
                yield "chunked windows"


def norm_of(kind: str, size: int) -> nn.Module:
    """Return a norm over the last dim, with the weights that the kind has."""
    if kind.startswith("rms"):
        return nn.RMSNorm(size, NORM_EPSILON, elementwise_affine=kind == "rms")
    is_weighted = kind != "layer_unweighted"
    return nn.LayerNorm(size, NORM_EPSILON, is_weighted, bias=kind == "layer")


class Joint(nn.Linear):
    """Several linear layers of one input as rows of one weight: y_i = x W_i^T + b_i."""

    def __init__(self, inputs: int, outputs: Sequence[int], *, bias: bool = False) -> None:
        super().__init__(inputs, sum(outputs), bias=bias)
        self.outputs = list(outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return super().forward(x).split(self.outputs, dim=-1)


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


def gated(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """Return silu(gate) * up, or gelu of a network without a gate."""
    return functional.gelu(gate) if up is None else functional.silu(gate) * up


def attend(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, *, window: int | None
) -> Tensor:
    """Return the heads of causal attention; all are (batch, tokens, heads, size)."""
    mask = None
    if window is not None:
        distance = positions[:, None] - positions[None, :]
        mask = (distance >= 0) & (distance < window)
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    made = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return made.transpose(1, 2)


class Attention(nn.Module):
    """Causal grouped-query attention: (batch, tokens, hidden) to the same."""

    def __init__(self, model: ModelSpec, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec, self.rotates = spec, model.learned_positions == 0 and spec.rotary
        heads, values = spec.num_heads * spec.head_size, spec.num_heads * spec.value_head_size
        keys = spec.num_kv_heads * spec.head_size
        sizes = [heads, keys, spec.num_kv_heads * spec.value_head_size]
        sizes += [values] * spec.output_gate
        self.qkv = Joint(model.hidden_size, sizes, bias=spec.qkv_bias)
        self.output = nn.Linear(values, model.hidden_size, bias=spec.output_bias)
        if spec.qk_norm != "none":
            kind = "rms_unweighted" if spec.qk_norm == "unweighted" else "rms"
            of_all = spec.qk_norm == "full"
            self.query_norm = norm_of(kind, heads if of_all else spec.head_size)
            self.key_norm = norm_of(kind, keys if of_all else spec.head_size)
        self.rotate: Callable[..., Tensor] = rotate
        self.core: Callable[..., Tensor] = partial(attend, window=spec.window)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        spec = self.spec
        query, key, value, *gate = self.qkv(x)
        if spec.qk_norm == "full":
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = (part.unflatten(-1, (-1, spec.head_size)) for part in (query, key))
        value = value.unflatten(-1, (-1, spec.value_head_size))
        if spec.qk_norm in ("head", "unweighted"):
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotates:
            query, key = self.rotate(query, positions), self.rotate(key, positions)
        heads = self.core(query, key, value, positions).flatten(2)
        return self.output(heads * torch.sigmoid(gate[0]) if gate else heads)


class FeedForward(nn.Module):
    """The dense network: up (with its gate), activation, down."""

    def __init__(self, hidden: int, spec: FeedForwardSpec) -> None:
        super().__init__()
        self.up = Joint(hidden, [spec.ffn_size] * (1 + spec.gated), bias=spec.bias)
        self.down = nn.Linear(spec.ffn_size, hidden, bias=spec.bias)
        self.gate: Callable[..., Tensor] = gated

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(*self.up(x)))


class Bank(nn.Module):
    """Weights of the experts: (experts, outputs, inputs)."""

    def __init__(self, hidden: int, spec: ExpertSpec) -> None:
        super().__init__()
        self.num_inner = 1 + spec.gated
        inner = self.num_inner * spec.ffn_size
        self.up = nn.Parameter(torch.empty(spec.num_experts, inner, hidden))
        self.down = nn.Parameter(torch.empty(spec.num_experts, hidden, spec.ffn_size))
        self.gate: Callable[..., Tensor] = gated

    def forward(self, rows: Tensor, expert_of: Tensor) -> Tensor:
        """Return the output of each row, computed by its expert."""
        order = expert_of.argsort(stable=True)
        parts = rows[order].split(torch.bincount(expert_of, minlength=len(self.up)).tolist())
        made = [
            self.gate(*(part @ up.T).chunk(self.num_inner, dim=-1)) @ down.T
            for part, up, down in zip(parts, self.up, self.down, strict=True)
        ]
        return torch.cat(made)[order.argsort()]


class Experts(nn.Module):
    """A mixture of experts without dropped tokens; softmax over the k largest scores."""

    def __init__(self, hidden: int, spec: ExpertSpec) -> None:
        super().__init__()
        self.spec = spec
        self.router = nn.Linear(hidden, spec.num_experts, bias=spec.router_bias)
        self.bank = Bank(hidden, spec)
        self.visit: Callable[..., Tensor] = self.bank.forward
        self.shared = self.shared_gate = None
        if spec.shared_ffn_size:
            shared = FeedForwardSpec(ffn_size=spec.shared_ffn_size, gated=spec.gated)
            self.shared = FeedForward(hidden, shared)
            self.shared_gate = nn.Linear(hidden, 1, bias=False) if spec.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        scores, experts = self.router(rows).topk(self.spec.top_k, dim=-1)
        experts = experts.flatten()
        order = experts.argsort(stable=True)
        made = self.visit(rows[order // self.spec.top_k], experts[order])[order.argsort()]
        chosen = made.unflatten(0, (len(rows), self.spec.top_k))
        summed = torch.einsum("tk,tkh->th", scores.softmax(dim=-1), chosen).view_as(x)
        if self.shared is None:
            return summed
        shared = self.shared(x)
        if self.shared_gate is not None:
            shared = shared * torch.sigmoid(self.shared_gate(x))
        return summed + shared


class Layer(nn.Module):
    """One layer: attention, then a feed-forward network or experts, with norms as declared."""

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
        self.norms = nn.ModuleList(norm_of(model.norm, model.hidden_size)
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
        """Remove and return the norms before and after the next branch."""
        before = norms.pop(0) if self.spec.norms_before else nn.Identity()
        has_after = not self.spec.norms_before or self.spec.num_norms == 4
        return before, norms.pop(0) if has_after else nn.Identity()


class Chunk(nn.Module):
    """Consecutive layers of a model, with the embedding and the head if they are at its ends.

    Takes token ids (batch, tokens) or a residual stream, returns a residual stream or logits.
    """

    def __init__(self, model: ModelSpec, layers: range) -> None:
        super().__init__()
        self.model, hidden = model, model.hidden_size
        self.is_first, self.is_last = layers.start == 0, layers.stop == model.num_layers
        self.embedding = self.positions = self.embedding_norm = self.norm = self.logits = None
        if self.is_first:
            self.embedding = nn.Embedding(model.vocab_size, hidden)
            if model.learned_positions:
                self.positions = nn.Embedding(model.learned_positions, hidden)
            if model.embedding_norm:
                self.embedding_norm = norm_of(model.norm, hidden)
        self.layers = nn.ModuleDict(
            {str(at): Layer(model, model.layer_kinds[model.layer_pattern[at]]) for at in layers}
        )
        if self.is_last:
            self.norm = norm_of(model.norm, hidden) if model.final_norm else None
            self.logits = nn.Linear(hidden, model.vocab_size, bias=model.head_bias)
        self.places: Tensor | None = None
        """Positions of its tokens; None: 0, 1, 2, ..."""
        self.tie()

    def tie(self) -> None:
        """Share the weight of the embedding with the logits, if the model ties them."""
        if self.model.tied_embeddings and self.embedding is not None and self.logits is not None:
            self.logits.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        places = self.places
        if places is None:
            places = torch.arange(x.shape[1], device=x.device)
        if self.embedding is not None:
            x = self.embedding(x)
        if self.positions is not None:
            x = x + self.positions(places)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        for layer in self.layers.values():
            x = layer(x, places)
        if self.norm is not None:
            x = self.norm(x)
        return x if self.logits is None else self.logits(x)


def dense(
    model: ModelSpec,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Chunk:
    """Return the whole model with random weights; on device ``meta`` nothing is allocated."""
    with torch.device("meta"):
        made = Chunk(model, range(model.num_layers)).to(dtype)
    if str(device) == "meta":
        return made
    made.to_empty(device=device)
    made.tie()
    for name, weight in made.named_parameters():
        draw(weight, name, seed)
    return made


def draw(weight: Tensor, name: str, seed: int, place: str = "") -> None:
    """Fill a weight with normal numbers of deviation 0.02, around 1 for norms.

    ``place`` distinguishes the parts of one weight; equal names and places give equal numbers.
    """
    generator = torch.Generator().manual_seed(crc32(f"{seed} {name} {place}".encode()))
    values = torch.randn(weight.shape, generator=generator, dtype=torch.float32) * 0.02
    is_of_norm = "norm" in name and name.endswith("weight")
    weight.data.copy_(1.0 + values if is_of_norm else values)
