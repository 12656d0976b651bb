"""The model of one process: the modules of the dense one, each with its share of the weights.

A weight that a process holds is some indices of some dims of a dense weight (:class:`Held`), so
that any weight or gradient can be cut out of the dense one and compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from meshwright.run.layers.attention import attention
from meshwright.run.layers.column import Column
from meshwright.run.layers.elementwise import SplitNorm, gate, rotated
from meshwright.run.layers.embedding import VocabularyEmbedding
from meshwright.run.layers.experts import Bank, SplitExperts
from meshwright.run.layers.pieces import Place
from meshwright.run.layers.products import Product, Resident, SplitLinear, StreamedWeights
from meshwright.run.layers.row import Row
from meshwright.run.layers.streams import Stream
from meshwright.run.layers.tokens import Tokens
from meshwright.run.layers.ulysses import heads_to_tokens, tokens_to_heads
from meshwright.run.mesh import Mesh, heads_axis
from meshwright.run.model import Attention, Experts, FeedForward, Layer, Norm, Transformer
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.strategy import ContextKind, Recompute, Streamed

Index = dict[int, Tensor]


@dataclass(frozen=True)
class Held:
    """A weight of a process: which part of which dense weight, and what its gradient lacks."""

    dense: str
    index: Index
    sums: tuple[tuple[str, int, int], ...] = ()
    """Axes over which the gradient is still a sum, with the rows (of the first dim) concerned."""
    is_expert: bool = False

    def of(self, whole: Tensor) -> Tensor:
        """Return this part of a whole weight or gradient."""
        for dim, index in self.index.items():
            whole = whole.index_select(dim, index.to(whole.device))
        return whole

    @property
    def place(self) -> str:
        """Text that tells this part of the dense weight from others."""
        return " ".join(f"{dim}:{int(index[0])}" for dim, index in self.index.items())


@dataclass
class Builder:
    """Makes the modules of one process out of dense ones."""

    mesh: Mesh
    dense: Transformer
    held: dict[str, Held] = field(default_factory=dict)
    """The part that each parameter of the process is, by its name."""

    def __post_init__(self) -> None:
        self.weights = dict(self.dense.named_parameters(remove_duplicate=False))
        options = self.mesh.options
        self.heads = self.mesh[heads_axis(self.mesh.job)]
        self.streams_inputs = options.streamed is Streamed.INPUTS
        tatp = self.mesh["tatp"]
        self.stream = Stream(tatp, self.mesh.form_of("tatp")) if tatp.size > 1 else None
        token_axes = ["tp"] * self.mesh.splits_tokens + ["tatp"] * (tatp.size > 1)
        self.token_axes = tuple(token_axes)
        """Axes that split the tokens of a norm, within a micro-batch of one data rank."""

    def take(
        self, name: str, index: Index | None = None, *, sums: Sequence[str] = (),
        shared: tuple[tuple[str, int, int], ...] = (), of: str = "", is_expert: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return a part of a dense weight, and note it under the name that it will have."""
        dense = self.weights[of or name]
        part = Held(of or name, index or {}, is_expert=is_expert)
        made = part.of(dense.detach()).clone()
        rows = made.shape[0]
        part = Held(part.dense, part.index, (*((axis, 0, rows) for axis in sums), *shared),
                    is_expert)  # fmt: skip
        self.held[name] = part
        return made

    def whole(self, module: nn.Module, name: str) -> nn.Module:
        """Return a small module whose weights every rank holds: a norm, a router, a gate."""
        for weight in dict(module.named_parameters()):
            self.take(f"{name}.{weight}", sums=self.token_axes)
        return SplitNorm(module) if isinstance(module, Norm) else module

    def chunk(self, length: int) -> Tensor:
        """Return the indices of this rank among columns that tp (and tatp) share."""
        return torch.arange(length).tensor_split(self.heads.size)[self.heads.index]

    def column(self, name: str, rows: Tensor, shared: tuple[int, int, int] | None = None) -> Any:
        """Return the column-parallel layer with these rows of a dense weight.

        ``shared``: ranks that hold the same key head, and its rows among these.
        """
        marks: tuple[tuple[str, int, int], ...] = ()
        if shared is not None:
            marks = ((f"{heads_axis(self.mesh.job)}/{shared[0]}", *shared[1:]),)
        sums = [axis for axis in self.token_axes if axis == "tatp" and not self.streams_inputs]
        bias = self._bias(name, {0: rows}, sums=sums, shared=marks)
        product, own = self.product(len(rows))
        marks = tuple((axis, *_overlap(start, stop, own)) for axis, start, stop in marks)
        weight = self.take(f"{name}.weight", {0: rows[own.start : own.stop]}, shared=marks)
        return SplitLinear(Column, weight, bias, self.tokens, product, _site(name))

    def row(self, name: str, columns: Tensor) -> Any:
        """Return the row-parallel layer with these columns of a dense weight."""
        bias = self._bias(name, sums=self.token_axes)
        product, own = self.product(self.weights[f"{name}.weight"].shape[0])
        index = {0: torch.arange(own.start, own.stop), 1: columns}
        weight = self.take(f"{name}.weight", index)
        return SplitLinear(Row, weight, bias, self.tokens, product, _site(name))

    def _bias(self, name: str, index: Index | None = None, **more: Any) -> Tensor | None:
        has_bias = f"{name}.bias" in self.weights
        return self.take(f"{name}.bias", index, **more) if has_bias else None

    @property
    def tokens(self) -> Tokens:
        """The way of the tokens of a layer."""
        return self._tokens(self.stream if self.streams_inputs else None)

    def _tokens(self, stream: Stream | None) -> Tokens:
        return Tokens(self.mesh["tp"], self.mesh.splits_tokens, stream)

    def head(self) -> Any:
        """Return the last product: its inputs travel over tatp whatever the layers stream."""
        rows = {0: self.words()}
        weight, bias = self.take("logits.weight", rows), self._bias("logits", rows)
        return SplitLinear(Column, weight, bias, self._tokens(self.stream), Resident(),
                           "head.logits")  # fmt: skip

    def product(self, rows: int) -> tuple[Product, range]:
        """Return the products of a weight of these rows, and the rows that rest here."""
        if self.stream is None or self.streams_inputs:
            return Resident(), range(rows)
        streamed = StreamedWeights(self.stream, rows)
        first = self.stream.axis.index * self.stream.num_parts
        mine = streamed.cut[first : first + self.stream.num_parts]
        return streamed, range(mine[0][0], mine[-1][1])

    def attention(self, name: str, module: Attention) -> nn.Module:
        """Return attention with the heads of this rank."""
        spec, size, number = module.spec, self.heads.size, self.heads.index
        queries = torch.arange(spec.num_heads).tensor_split(size)[number]
        keys = torch.unique(queries // (spec.num_heads // spec.num_kv_heads))
        parts = [(spec.head_size, queries), (spec.head_size, keys), (spec.value_head_size, keys)]
        parts += [(spec.value_head_size, queries)] * spec.output_gate
        rows, start = [], 0
        for (width, heads), length in zip(parts, module.sizes, strict=True):
            rows.append(start + _of_heads(heads, width))
            start += length
        shared = None
        if spec.num_kv_heads < size:
            first = len(rows[0])
            shared = (size // spec.num_kv_heads, first, first + len(rows[1]) + len(rows[2]))
        for norm in ("query_norm", "key_norm"):
            if hasattr(module, norm):
                setattr(module, norm, self.whole(getattr(module, norm), f"{name}.{norm}"))
        qkv = self.column(f"{name}.qkv", torch.cat(rows), shared)
        output = self.row(f"{name}.output", _of_heads(queries, spec.value_head_size))
        return SplitAttention(module, self, qkv, output, list(map(len, rows)))

    def feed_forward(self, name: str, module: FeedForward) -> nn.Module:
        """Return the dense network with the columns of this rank: of gate and up alike."""
        length = self.weights[f"{name}.down.weight"].shape[1]
        mine = self.chunk(length)
        rows = torch.cat([mine, length + mine]) if module.gated else mine
        up, down = self.column(f"{name}.up", rows), self.row(f"{name}.down", mine)
        return SplitFeedForward(up, down, is_gated=module.gated)

    def experts(self, name: str, module: Experts) -> nn.Module:
        """Return the experts of this rank of ep; shared ones are split as a dense network."""
        ep = self.mesh["ep"]
        mine = {0: torch.arange(module.spec.num_experts).tensor_split(ep.size)[ep.index]}
        up, down = (
            self.take(f"{name}.bank.{one}", mine, of=f"{name}.{one}", is_expert=True)
            for one in ("up", "down")
        )
        shared = gate = None
        if module.spec.shared_ffn_size:
            shared = self.feed_forward(f"{name}.shared", module.shared)
            if module.shared_gate is not None:
                gate = self.whole(module.shared_gate, f"{name}.shared_gate")
        router = self.whole(module.router, f"{name}.router")
        bank = Bank(up, down, is_gated=module.spec.gated)
        return SplitExperts(module.spec, router, bank, ep, shared, gate)

    def layer(self, number: int) -> Layer:
        """Return a layer of the model, with its modules replaced by those of this rank."""
        made, name = self.dense.layers[number], f"layers.{number}"
        if made.mixing is not None:
            made.mixing = self.attention(f"{name}.mixing", made.mixing)
        if isinstance(made.network, FeedForward):
            made.network = self.feed_forward(f"{name}.network", made.network)
        elif isinstance(made.network, Experts):
            made.network = self.experts(f"{name}.network", made.network)
        for index, norm in enumerate(made.norms):
            made.norms[index] = self.whole(norm, f"{name}.norms.{index}")
        return made

    def words(self) -> Tensor:
        """Return the words of the vocabulary that this rank holds."""
        axis = self.mesh["tp*tatp"]
        return torch.arange(self.mesh.job.model.vocab_size).tensor_split(axis.size)[axis.index]


def _of_heads(heads: Tensor, width: int) -> Tensor:
    """Return the indices of some heads that lie side by side."""
    return (heads[:, None] * width + torch.arange(width)).flatten()


def _overlap(start: int, stop: int, own: range) -> tuple[int, int]:
    """Return the rows between start and stop that are in a range, counted from its start."""
    first, last = max(start, own.start), min(stop, own.stop)
    return (first - own.start, last - own.start) if first < last else (0, 0)


def _site(name: str) -> str:
    """Return the operator of the graph that a module is: ``attention.qkv``."""
    return ".".join(name.split(".")[-2:]).replace("mixing", "attention")


class SplitFeedForward(nn.Module):
    """The dense network: its column-parallel and its row-parallel product, the gate between."""

    def __init__(self, up: nn.Module, down: nn.Module, *, is_gated: bool) -> None:
        super().__init__()
        self.up, self.down, self.is_gated = up, down, is_gated

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gate(self.up(x), is_gated=self.is_gated))


class SplitAttention(nn.Module):
    """Attention with the heads of one rank, on tokens that cp and tatp may split."""

    def __init__(
        self, dense: Attention, builder: Builder, qkv: nn.Module, output: nn.Module,
        sizes: list[int],
    ) -> None:  # fmt: skip
        super().__init__()
        mesh, self.spec, self.rotates = builder.mesh, dense.spec, dense.rotates
        self.qkv, self.output, self.sizes = qkv, output, sizes
        if hasattr(dense, "query_norm"):
            self.query_norm, self.key_norm = dense.query_norm, dense.key_norm
        is_ulysses = mesh.options.context_kind is ContextKind.ULYSSES
        self.cp = mesh["cp"] if is_ulysses and mesh["cp"].size > 1 else None
        ring = mesh["cp"].size > 1 and not is_ulysses
        travels = builder.stream is not None and not builder.streams_inputs
        self.streams = [Stream(mesh["cp"], mesh.form_of("cp"))] if ring else []
        self.streams += [builder.stream] if travels and builder.stream is not None else []
        tatp = mesh["tatp"].index if travels else None

        def positions(cp: int, member: int | None) -> Tensor:
            if not is_ulysses:
                return mesh.tokens_of(cp, member, None)
            return torch.cat([mesh.tokens_of(c, member, None) for c in range(mesh["cp"].size)])

        self.positions = mesh.tokens_of(mesh["cp"].index, tatp, None)
        """Positions of the tokens of the projections."""
        query = positions(mesh["cp"].index, tatp)

        def sees(place: Place) -> Tensor:
            members = list(place)
            cp = members.pop(0) if ring else mesh["cp"].index
            distance = query[:, None] - positions(cp, members.pop(0) if travels else tatp)[None]
            seen = distance >= 0
            return seen if self.spec.window is None else seen & (distance < self.spec.window)

        self.sees = sees

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        spec = self.spec
        query, key, value, *gate = self.qkv(x).split(self.sizes, dim=-1)
        if spec.qk_norm == "full":
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = (part.unflatten(-1, (-1, spec.head_size)) for part in (query, key))
        # A part of the projection would keep all of it for the backward pass.
        value = value.contiguous().unflatten(-1, (-1, spec.value_head_size))
        if spec.qk_norm in ("head", "unweighted"):
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotates:
            query, key = rotated(query, self.positions), rotated(key, self.positions)
        if self.cp is not None:
            key, value = (_for_all(part, self.cp.size) for part in (key, value))
            query, key, value = (tokens_to_heads(part, self.cp, "attention.core")
                                 for part in (query, key, value))  # fmt: skip
        heads = attention(query, key, value, self.streams, self.sees)
        if self.cp is not None:
            heads = heads_to_tokens(heads, self.cp, "attention.core")
        heads = heads.flatten(2)
        return self.output(heads * torch.sigmoid(gate[0]) if gate else heads)


def _for_all(x: Tensor, size: int) -> Tensor:
    """Return key heads repeated until each rank of Ulysses has one."""
    return x if x.shape[2] % size == 0 else x.repeat_interleave(size // x.shape[2], dim=2)


class Stage(nn.Module):
    """Consecutive layers of the model, with what comes before the first and after the last one.

    Takes tokens or a residual stream at rest, returns a residual stream or logits.
    """

    def __init__(self, builder: Builder, layers: range) -> None:
        super().__init__()
        dense, mesh = builder.dense, builder.mesh
        model, words = mesh.job.model, builder.words()
        self.mesh, self.words = mesh, words
        self.is_first, self.is_last = layers.start == 0, layers.stop == model.num_layers
        self.checkpoints = mesh.options.recompute is Recompute.FULL
        self.layers = nn.ModuleDict({str(number): builder.layer(number) for number in layers})
        self.embedding = self.positions = self.embedding_norm = self.norm = self.logits = None
        splits = ((mesh["tatp"], True), (mesh["tp"], mesh.splits_tokens))
        self.splits = tuple((axis, cuts) for axis, cuts in splits if axis.size > 1)
        table = None
        if self.is_first:
            table = builder.take("embedding.weight", {0: words})
            self.embedding = VocabularyEmbedding(table, int(words[0]), self.splits)
            if dense.positions is not None:
                self.positions = builder.whole(dense.positions, "positions")
            if dense.embedding_norm is not None:
                self.embedding_norm = builder.whole(dense.embedding_norm, "embedding_norm")
        if self.is_last:
            if dense.norm is not None:
                self.norm = builder.whole(dense.norm, "norm")
            self.logits = builder.head()
            self.tie()

    def tie(self) -> None:
        """Let the last product use the weight of the embedding, where the model ties them."""
        is_tied = self.mesh.job.model.tied_embeddings
        if is_tied and self.embedding is not None and self.logits is not None:
            self.logits.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        mesh = self.mesh
        if self.embedding is not None:
            x = self.embedding(x)
            if self.positions is not None:
                x = x + self.positions(mesh.tokens)
            if self.embedding_norm is not None:
                x = self.embedding_norm(x)
        for layer in self.layers.values():
            if self.checkpoints:
                with set_checkpoint_early_stop(False):
                    x = checkpoint(layer, x, mesh.tokens, use_reentrant=False)
            else:
                x = layer(x, mesh.tokens)
        if self.logits is None:
            return x
        return self.logits(x if self.norm is None else self.norm(x))


def stages_of(mesh: Mesh, dense: Transformer) -> tuple[list[tuple[int, Stage]], dict[str, Held]]:
    """Return the stages of a process with their places in the model, and what its weights are.

    A process has one stage, or a chunk of layers for each virtual one. The dense model is used up.
    """
    builder, job = Builder(mesh, dense), mesh.job
    pp, number = mesh["pp"].size, mesh["pp"].index
    count = pp * int(job.strategy.num_virtual_stages)
    lengths = [int(n) for n in chunk_lengths(job.model.num_layers, count, job.plan_options)]
    found = []
    for place in range(number, count, pp):
        first = sum(lengths[:place])
        found.append((place, Stage(builder, range(first, first + lengths[place]))))
    return found, builder.held
