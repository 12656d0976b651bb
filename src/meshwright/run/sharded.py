"""Model of one process: the modules of the dense model, each with its slice of the weights.

Each local weight is recorded as a slice of a dense weight (:class:`WeightPart`), so the matching
slice of any dense weight or gradient can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from meshwright.run.layers.attention import attention
from meshwright.run.layers.column import Column
from meshwright.run.layers.elementwise import gate, rotated
from meshwright.run.layers.embedding import VocabularyEmbedding
from meshwright.run.layers.experts import dispatch_and_combine
from meshwright.run.layers.linear import SplitLinear
from meshwright.run.layers.norm import SplitNorm
from meshwright.run.layers.pieces import Owner
from meshwright.run.layers.products import Product
from meshwright.run.layers.row import Row
from meshwright.run.layers.streamed_tokens import StreamedTokens
from meshwright.run.layers.streamed_weights import StreamedWeights
from meshwright.run.layers.streams import Stream
from meshwright.run.layers.tokens import Tokens
from meshwright.run.layers.ulysses import heads_to_tokens, tokens_to_heads
from meshwright.run.mesh import Mesh, heads_axis
from meshwright.run.model import Attention, Chunk, Experts, FeedForward
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.strategy import ContextKind, Recompute, Streamed

Index = dict[int, Tensor]
Open = tuple[str, int, int]
"""An axis over which rows of a gradient are partial sums: axis, first row, row after the last."""


@dataclass(frozen=True)
class WeightPart:
    """Slice of a dense weight on this process, and the sums that its gradient still needs."""

    index: Index = field(default_factory=dict)
    sums: tuple[Open, ...] = ()

    def of(self, whole: Tensor) -> Tensor:
        """Return this slice of a dense weight or gradient."""
        for dim, index in self.index.items():
            whole = whole.index_select(dim, index.to(whole.device))
        return whole

    @property
    def place(self) -> str:
        """Text that identifies this slice of the dense weight."""
        return " ".join(f"{dim}:{int(index[0])}" for dim, index in self.index.items())


class Builder:
    """Replaces the layers of the dense model with those of one process."""

    def __init__(self, mesh: Mesh, dense: Chunk) -> None:
        self.mesh = mesh
        self.weights = dict(dense.named_parameters(remove_duplicate=False))
        self.held: dict[str, WeightPart] = {}
        """Slice of each parameter of the process, by its name."""
        self.heads = mesh[heads_axis(mesh.job)]
        self.streams_inputs = mesh.options.streamed is Streamed.INPUTS
        tatp = mesh["tatp"]
        self.stream = Stream(tatp, mesh.form_of("tatp")) if tatp.size > 1 else None
        self.token_axes = ("tp",) * mesh.splits_tokens + ("tatp",) * (tatp.size > 1)
        """Axes that split the tokens of a norm within a micro-batch of one data-parallel rank."""

    def stage(self, layers: range) -> Chunk:
        """Return consecutive layers of the model with the weights of this process."""
        mesh, dtype = self.mesh, next(iter(self.weights.values())).dtype
        with torch.device("meta"):
            made = Chunk(mesh.job.model, layers).to(dtype)
        made.places = mesh.tokens
        if made.embedding is not None:
            table = self.take("embedding.weight", {0: mesh.words})
            made.embedding = VocabularyEmbedding(table, int(mesh.words[0]), mesh.splits)
        for name in ("positions", "embedding_norm", "norm"):
            if (module := getattr(made, name)) is not None:
                setattr(made, name, self.whole(module, name))
        if made.logits is not None:
            made.logits = self.head()
        made.tie()
        for at, layer in made.layers.items():
            self.layer(f"layers.{at}", layer)
            if mesh.options.recompute is Recompute.FULL:
                layer.forward = partial(_again, layer.forward)
        return made

    def layer(self, name: str, layer: nn.Module) -> None:
        """Replace the modules of a layer by those of this rank."""
        if layer.mixing is not None:
            self.attention(f"{name}.mixing", layer.mixing)
        if isinstance(layer.network, FeedForward):
            self.feed_forward(f"{name}.network", layer.network)
        elif isinstance(layer.network, Experts):
            self.experts(f"{name}.network", layer.network)
        for at, norm in enumerate(layer.norms):
            layer.norms[at] = self.whole(norm, f"{name}.norms.{at}")

    def attention(self, name: str, module: Attention) -> None:
        """Give attention the heads of this rank."""
        spec, size, number = module.spec, self.heads.size, self.heads.index
        queries = torch.arange(spec.num_heads).tensor_split(size)[number]
        keys = torch.unique(queries // (spec.num_heads // spec.num_kv_heads))
        parts = [(spec.head_size, queries), (spec.head_size, keys), (spec.value_head_size, keys)]
        parts += [(spec.value_head_size, queries)] * spec.output_gate
        rows, start = [], 0
        for (width, heads), length in zip(parts, module.qkv.outputs, strict=True):
            rows.append(start + _of_heads(heads, width))
            start += length
        shared: tuple[Open, ...] = ()
        if spec.num_kv_heads < size:
            first, last = len(rows[0]), sum(map(len, rows[:3]))
            shared = ((f"{heads_axis(self.mesh.job)}/{size // spec.num_kv_heads}", first, last),)
        for norm in ("query_norm", "key_norm"):
            if hasattr(module, norm):
                # Its gradient is a sum over all heads, which tp splits even without SP.
                norm_here = self.whole(getattr(module, norm), f"{name}.{norm}", ("tp", "tatp"))
                setattr(module, norm, norm_here)
        module.qkv = self.column(f"{name}.qkv", rows, shared)
        module.output = self.row(f"{name}.output", _of_heads(queries, spec.value_head_size))
        travels = None if self.streams_inputs else self.stream
        tatp = self.mesh["tatp"].index if travels else None
        whole = self.mesh.tokens_of(self.mesh["cp"].index, tatp, None)
        module.rotate = lambda heads, at_rest: rotated(heads, whole)
        module.core = SplitCore(self.mesh, spec.window, travels)

    def feed_forward(self, name: str, module: FeedForward) -> None:
        """Give the feed-forward network the columns of this rank, the same for gate and up."""
        length = module.down.in_features
        mine = torch.arange(length).tensor_split(self.heads.size)[self.heads.index]
        module.up = self.column(f"{name}.up", [at * length + mine for at in
                                               range(len(module.up.outputs))])  # fmt: skip
        module.down, module.gate = self.row(f"{name}.down", mine), gate

    def experts(self, name: str, module: Experts) -> None:
        """Take the experts of this rank of ep; shared experts are split like a dense network."""
        ep, bank = self.mesh["ep"], module.bank
        mine = {0: torch.arange(module.spec.num_experts).tensor_split(ep.size)[ep.index]}
        bank.up, bank.down = (nn.Parameter(self.take(f"{name}.bank.{one}", mine))
                              for one in ("up", "down"))  # fmt: skip
        bank.gate, module.visit = gate, partial(dispatch_and_combine, bank, ep)
        if module.shared is not None:
            self.feed_forward(f"{name}.shared", module.shared)
        if module.shared_gate is not None:
            module.shared_gate = self.whole(module.shared_gate, f"{name}.shared_gate")
        module.router = self.whole(module.router, f"{name}.router")

    def take(
        self, name: str, index: Index | None = None, *,
        sums: Sequence[str] = (), shared: tuple[Open, ...] = (),
    ) -> Tensor:  # fmt: skip
        """Return a slice of a dense weight, and record it.

        Its gradient needs sums over the axes ``sums``; the rows ``shared`` need sums over the ranks
        that hold the same rows.
        """
        made = WeightPart(index or {}).of(self.weights[name].detach()).clone()
        self.held[name] = WeightPart(
            index or {}, (*((axis, 0, len(made)) for axis in sums), *shared)
        )
        return made

    def whole(
        self, module: nn.Module, name: str, sums: Sequence[str] | None = None
    ) -> nn.Module:  # fmt: skip
        """Return a module whose weights every rank holds: a norm, a router, a gate.

        Its gradients need sums over ``sums``; None: over the axes that split its tokens.
        """
        for weight in dict(module.named_parameters()):
            taken = self.take(f"{name}.{weight}", sums=self.token_axes if sums is None else sums)
            setattr(module, weight, nn.Parameter(taken))
        return SplitNorm(module) if isinstance(module, nn.RMSNorm | nn.LayerNorm) else module

    def column(
        self, name: str, parts: Sequence[Tensor], shared: tuple[Open, ...] = ()
    ) -> nn.Module:
        """Return the column-parallel layer with these rows of a dense weight, one output per part.

        ``shared`` are the rows among them that other ranks hold too: those of a key head.
        """
        rows = torch.cat(list(parts))
        sums = [axis for axis in self.token_axes if axis == "tatp" and not self.streams_inputs]
        bias = self._bias(name, {0: rows}, sums=sums, shared=shared)
        product, own = self.product(len(rows))
        shared = tuple((axis, *_overlap(start, stop, own)) for axis, start, stop in shared)
        weight = self.take(f"{name}.weight", {0: rows[own.start : own.stop]}, shared=shared)
        tokens = self.tokens(self.stream if self.streams_inputs else None)
        return SplitLinear(Column, weight, bias, (tokens, product, _site(name)),
                           outputs=[len(part) for part in parts])  # fmt: skip

    def row(self, name: str, columns: Tensor) -> nn.Module:
        """Return the row-parallel layer with these columns of a dense weight."""
        bias = self._bias(name, sums=self.token_axes)
        product, own = self.product(self.weights[f"{name}.weight"].shape[0])
        index = {0: torch.arange(own.start, own.stop), 1: columns}
        tokens = self.tokens(self.stream if self.streams_inputs else None)
        return SplitLinear(Row, self.take(f"{name}.weight", index), bias,
                           (tokens, product, _site(name)))  # fmt: skip

    def head(self) -> nn.Module:
        """Return the output layer: over tatp it always streams its inputs."""
        rows = {0: self.mesh.words}
        weight, bias = self.take("logits.weight", rows), self._bias("logits", rows)
        return SplitLinear(Column, weight, bias,
                           (self.tokens(self.stream), Product(), "head.logits"))  # fmt: skip

    def tokens(self, stream: Stream | None) -> Tokens:
        """Return the tokens of a layer, gathered or streamed."""
        tp, splits = self.mesh["tp"], self.mesh.splits_tokens
        return Tokens(tp, splits) if stream is None else StreamedTokens(tp, splits, stream)

    def product(self, rows: int) -> tuple[Product, range]:
        """Return the products with a weight of some rows, and the rows on this rank."""
        if self.stream is None or self.streams_inputs:
            return Product(), range(rows)
        streamed, mine = StreamedWeights(self.stream, rows), self.stream.own_items
        return streamed, range(streamed.cut[mine.start][0], streamed.cut[mine.stop - 1][1])

    def _bias(self, name: str, index: Index | None = None, **more: Any) -> Tensor | None:
        has_bias = f"{name}.bias" in self.weights
        return self.take(f"{name}.bias", index, **more) if has_bias else None


def _again(forward: Callable[..., Tensor], *given: Any) -> Tensor:
    """Run a layer, and recompute all of it in the backward pass, collectives included."""
    with set_checkpoint_early_stop(False):
        return checkpoint(forward, *given, use_reentrant=False)


def _of_heads(heads: Tensor, width: int) -> Tensor:
    """Return the indices of the rows of some heads."""
    return (heads[:, None] * width + torch.arange(width)).flatten()


def _overlap(start: int, stop: int, own: range) -> tuple[int, int]:
    """Return the rows from start to stop that are in a range, counted from its start."""
    first, last = max(start, own.start), min(stop, own.stop)
    return (first - own.start, last - own.start) if first < last else (0, 0)


def _site(name: str) -> str:
    """Return the operator of the graph for a module: ``attention.qkv``."""
    return ".".join(name.split(".")[-2:]).replace("mixing", "attention")


class SplitCore:
    """Core of attention with the heads of one rank, on tokens that cp and tatp may split."""

    def __init__(self, mesh: Mesh, window: int | None, tatp: Stream | None) -> None:
        cp, is_ulysses = mesh["cp"], mesh.options.context_kind is ContextKind.ULYSSES
        self.turns = cp if is_ulysses and cp.size > 1 else None
        has_ring = cp.size > 1 and not is_ulysses
        self.streams = [Stream(cp, mesh.form_of("cp"))] if has_ring else []
        self.streams += [] if tatp is None else [tatp]
        own = mesh["tatp"].index if tatp else None

        def positions(of_cp: int, member: int | None) -> Tensor:
            if not is_ulysses:
                return mesh.tokens_of(of_cp, member, None)
            return torch.cat([mesh.tokens_of(at, member, None) for at in range(cp.size)])

        query = positions(cp.index, own)

        def mask_of(owner: Owner) -> Tensor:
            members = list(owner)
            of_cp = members.pop(0) if has_ring else cp.index
            distance = query[:, None] - positions(of_cp, members.pop(0) if tatp else own)[None]
            seen = distance >= 0
            return seen if window is None else seen & (distance < window)

        self.mask_of = mask_of

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, at_rest: Tensor) -> Tensor:
        if self.turns is None:
            return attention(query, key, value, self.streams, self.mask_of)
        key, value = (_for_all(part, self.turns.size) for part in (key, value))
        query, key, value = (tokens_to_heads(part, self.turns, "attention.core")
                             for part in (query, key, value))  # fmt: skip
        heads = attention(query, key, value, self.streams, self.mask_of)
        return heads_to_tokens(heads, self.turns, "attention.core")


def _for_all(x: Tensor, size: int) -> Tensor:
    """Return key heads repeated until each rank of Ulysses has one."""
    return x if x.shape[2] % size == 0 else x.repeat_interleave(size // x.shape[2], dim=2)


def stages_of(mesh: Mesh, dense: Chunk) -> tuple[dict[int, Chunk], dict[str, WeightPart]]:
    """Return the stages of a process by their index in the model, and the slices of its weights.

    A process has one stage, or a chunk of layers for each virtual one.
    """
    builder, job = Builder(mesh, dense), mesh.job
    pp, number = mesh["pp"].size, mesh["pp"].index
    count = pp * int(job.strategy.num_virtual_stages)
    lengths = [int(n) for n in chunk_lengths(job.model.num_layers, count, job.plan_options)]
    firsts = {place: sum(lengths[:place]) for place in range(number, count, pp)}
    stages = {place: builder.stage(range(first, first + lengths[place]))
              for place, first in firsts.items()}  # fmt: skip
    return stages, builder.held
