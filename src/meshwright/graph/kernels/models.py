"""Every model of the catalog as kernels: one rule for each kind of operator, one table of dims.

Heads, gate and up are side by side in one dim of an operator graph; here such a dim names its
factors (``kv_heads*query_group*score_size``), so that the legal splits follow from dims alone.
Routed rows are ``experts`` by ``slots``. A dispatch reads tokens at the place of slots: split over
tokens it fills its own slots of all experts, and an all-to-all brings them to the experts (Lepikhin
et al. 2020, arXiv 2006.16668, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from meshwright.graph.common import EDGE
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Dims, Kernel, Operand, Unit, Weight, single_dims
from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor
from meshwright.graph.recurrence import RECURRENCE
from meshwright.graph.transformer import build_graph
from meshwright.spec.model import LayerSpec, ModelSpec


def model_graphs(
    model: ModelSpec, tokens: int, *, expert_capacity: float = 1.0
) -> tuple[DataflowGraph, ...]:
    """Return embedding, each kind of layer with its count, and head, for one sequence.

    All scores of attention are counted, as without a causal mask; a window limits the keys. The
    loss needs whole rows of logits.

    Parameters
    ----------
    tokens
        Length of the sequence.
    expert_capacity
        Rows that an expert has room for, over the mean number that it receives.
    """
    graph = build_graph(model, flash_attention=False)
    kinds = [kind for kind, n in zip(model.layer_kinds, model.layer_counts, strict=True) if n]
    layers = [
        _Conversion(layer, tokens, expert_capacity, kind).graph(f"{model.name}.layer{number}")
        for number, (layer, kind) in enumerate(zip(graph.layers, kinds, strict=True))
    ]
    ends = [
        _Conversion(end, tokens, expert_capacity).graph(f"{model.name}.{name}")
        for name, end in (("embedding", graph.embedding), ("head", graph.head))
    ]
    return (ends[0], *layers, ends[1])


@dataclass(frozen=True)
class _Conversion:
    """One kind of layer, or one end of a model, on its way to kernels."""

    layer: LayerGraph
    tokens: int
    expert_capacity: float
    kind: LayerSpec | None = None

    def graph(self, name: str) -> DataflowGraph:
        """Return the kernels of all operators."""
        kernels = tuple(kernel for op in self.layer.ops for kernel in _RULES[op.kind](self, op))
        entry = self.layer.input
        is_data = self.layer.ops[0].kind is OpKind.EMBEDDING
        held = [kernel.dims for kernel in kernels]
        held += [read.dims for kernel in kernels for read in kernel.inputs]
        held += [weight.dims for kernel in kernels for weight in kernel.weights]
        dims = {dim for part in held for dim in single_dims(part)} | {"tokens"}
        sizes = self.sizes()
        return DataflowGraph(
            name=name,
            kernels=kernels,
            sizes={dim: size for dim, size in sizes.items() if dim in dims},
            inputs={entry.name: self.dims(entry)},
            outputs=(kernels[-1].name,),
            tiled="tokens",
            repeats=self.layer.count,
            constants=(entry.name,) if is_data else (),
        )

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all dims, and of the factors of those that name some."""
        sizes = {**self.layer.sizes, "tokens": self.tokens, "keys": self.tokens}
        if self.kind is not None:
            sizes["gate_up"] = 2
            if (spec := self.kind.attention) is not None:
                sizes |= {
                    "query_group": spec.num_heads // spec.num_kv_heads,
                    "score_size": spec.head_size + spec.rope_head_size,
                    "content_size": spec.head_size,
                    "value_size": spec.value_head_size,
                    "keys": min(self.tokens, spec.window or self.tokens),
                }
            if (scan := self.kind.recurrence) is not None:
                sizes |= {
                    "group_heads": scan.num_heads // scan.num_groups,
                    "state_size": scan.state_size,
                    "chunk": min(self.tokens, scan.chunk_size),
                }
        if "experts" in sizes:
            rows = self.tokens * sizes["top_k"] * self.expert_capacity
            sizes |= {"slots": ceil(rows / sizes["experts"]), "choices": sizes["top_k"]}
        return sizes

    def dims(self, tensor: Tensor) -> Dims:
        """Return the dims of a tensor, each with its factors."""
        return tuple(name for dim in tensor.dims for name in self.written(dim))

    def written(self, dim: str) -> Dims:
        """Return the dims of a dataflow graph for one dim of an operator graph."""
        if dim.endswith("ffn_in"):
            inner = dim.removesuffix("_in")
            is_gated = self.layer.sizes[dim] > self.layer.sizes[inner]
            return (f"{inner}*gate_up" if is_gated else inner,)
        return _FACTORS.get(dim, (dim,))

    def reads(self, *tensors: Tensor) -> tuple[Operand, ...]:
        """Return tensors as they are read with their own dims."""
        return tuple(Operand(tensor.name, self.dims(tensor)) for tensor in tensors)

    def weights(self, *tensors: Tensor) -> tuple[Weight, ...]:
        """Return the weights of an operator."""
        return tuple(Weight(tensor.name, self.dims(tensor)) for tensor in tensors)


_FACTORS: Mapping[str, Dims] = {
    "query": ("kv_heads*query_group*score_size",),
    "key": ("kv_heads*score_size",),
    "key_content": ("kv_heads*content_size",),
    "value": ("kv_heads*value_size",),
    "heads": ("kv_heads*query_group*value_size",),
    "query_heads": ("kv_heads*query_group",),
    "inner": ("state_groups*group_heads*inner_head_size",),
    "inner_heads": ("state_groups*group_heads",),
    "state_key": ("state_groups*state_size",),
    "routed_tokens": ("experts", "slots"),
}


def _product(of: _Conversion, op: Op) -> Iterator[Kernel]:
    """Yield one product for each output of a fused one."""
    for output in op.outputs:
        held = [w for w in op.weights if len(op.outputs) == 1 or w.name.startswith(output.name)]
        yield Kernel(
            output.name,
            Unit.MATRIX,
            of.dims(output),
            of.reads(*op.inputs),
            of.weights(*held),
            flops_per_point=2.0,
        )


def _attention(of: _Conversion, op: Op) -> Iterator[Kernel]:
    """Yield scores, softmax and their product with the values."""
    query, key, value = op.inputs
    scores: Dims = ("tokens", "kv_heads", "query_group", "keys")
    keys = Operand(key.name, ("keys", *of.dims(key)[1:]))
    values = Operand(value.name, ("keys", *of.dims(value)[1:]))
    names = f"{op.name}.scores", f"{op.name}.probabilities"
    yield Kernel(names[0], Unit.MATRIX, scores, (*of.reads(query), keys), flops_per_point=2.0)
    sinks = tuple(Weight(sink.name, ("kv_heads", "query_group")) for sink in op.weights)
    read = (Operand(names[0], scores),)
    yield Kernel(names[1], Unit.VECTOR, scores, read, sinks, whole=frozenset({"keys"}))
    weighed = (Operand(names[1], scores), values)
    dims = of.dims(op.output)
    yield Kernel(op.output.name, Unit.MATRIX, dims, weighed, flops_per_point=2.0)


_BY_HEAD: Dims = ("tokens", "state_groups", "group_heads", "chunk")
"""Dims of the values that a token of a scan has for each token of its chunk, by head."""
_SINGLE_STATE: Dims = ("state_groups", "group_heads", "state_size", "inner_head_size")


def _at(place: str, of: _Conversion, tensor: Tensor) -> Operand:
    """Return a tensor with its tokens read at another place: as ``chunk``, or all as ``keys``."""
    return Operand(tensor.name, (place, *of.dims(tensor)[1:]))


def _matrix(name: str, dims: Dims, *reads: Operand) -> Kernel:
    return Kernel(name, Unit.MATRIX, dims, reads, flops_per_point=2.0)


def _scan(of: _Conversion, op: Op) -> Iterator[Kernel]:
    """Yield a scan: products within chunks, and over a state.

    The states of all chunks are one product over all tokens: a lower bound of a scan that runs
    chunk by chunk.
    """
    assert op.recurrence is not None
    rule = {"mamba2": _state_space, "gated_delta": _delta_rule}[op.recurrence.kind]
    yield from rule(of, op)


def _state_space(of: _Conversion, op: Op) -> Iterator[Kernel]:
    """Yield scores by group, their decay by head, both parts of the result, and their sum."""
    (value, key, query, step), name, dims = op.inputs, op.name, of.dims(op.output)
    scores: Dims = ("tokens", "state_groups", "chunk")
    yield _matrix(f"{name}.scores", scores, *of.reads(query), _at("chunk", of, key))
    reads = (Operand(f"{name}.scores", scores), *of.reads(step))
    yield Kernel(f"{name}.decayed", Unit.VECTOR, _BY_HEAD, reads, of.weights(*op.weights))
    decayed = Operand(f"{name}.decayed", _BY_HEAD)
    yield _matrix(f"{name}.within", dims, decayed, _at("chunk", of, value))
    yield _matrix(f"{name}.state", _SINGLE_STATE, _at("keys", of, key), _at("keys", of, value))
    state = Operand(f"{name}.state", _SINGLE_STATE)
    yield _matrix(f"{name}.across", dims, *of.reads(query), state)
    parts = (Operand(f"{name}.within", dims), Operand(f"{name}.across", dims))
    yield Kernel(op.output.name, Unit.VECTOR, dims, parts, is_sum=True)


def _delta_rule(of: _Conversion, op: Op) -> Iterator[Kernel]:
    """Yield the new part of each value, then the result as for a state space."""
    (value, key, query, *steps), name, dims = op.inputs, op.name, of.dims(op.output)
    written: Dims = ("tokens", "state_groups", "group_heads", "state_size")
    yield _matrix(f"{name}.overlaps", _BY_HEAD, *of.reads(key), _at("chunk", of, key))
    reads = (Operand(f"{name}.overlaps", _BY_HEAD), *of.reads(*steps))
    yield Kernel(
        f"{name}.inverse", Unit.VECTOR, _BY_HEAD, reads, of.weights(*op.weights),
        whole=frozenset({"chunk"}), flops_per_point=of.sizes()["chunk"] / 3.0,
    )  # fmt: skip
    inverse = Operand(f"{name}.inverse", _BY_HEAD)
    yield _matrix(f"{name}.values", dims, inverse, _at("chunk", of, value))
    yield _matrix(f"{name}.keys", written, inverse, _at("chunk", of, key))
    values = Operand(f"{name}.values", ("keys", *dims[1:]))
    yield _matrix(f"{name}.state", _SINGLE_STATE, _at("keys", of, key), values)
    state = Operand(f"{name}.state", _SINGLE_STATE)
    yield _matrix(f"{name}.held", dims, Operand(f"{name}.keys", written), state)
    parts = (Operand(f"{name}.values", dims), Operand(f"{name}.held", dims))
    yield Kernel(f"{name}.new", Unit.VECTOR, dims, parts, is_sum=True)
    yield _matrix(f"{name}.scores", _BY_HEAD, *of.reads(query), _at("chunk", of, key))
    decayed = (Operand(f"{name}.scores", _BY_HEAD), *of.reads(*steps))
    yield Kernel(f"{name}.decayed", Unit.VECTOR, _BY_HEAD, decayed)
    new = Operand(f"{name}.new", ("chunk", *dims[1:]))
    yield _matrix(f"{name}.within", dims, Operand(f"{name}.decayed", _BY_HEAD), new)
    yield _matrix(f"{name}.across", dims, *of.reads(query), state)
    sums = (Operand(f"{name}.within", dims), Operand(f"{name}.across", dims))
    yield Kernel(op.output.name, Unit.VECTOR, dims, sums, is_sum=True)


def _norm(of: _Conversion, op: Op) -> Iterator[Kernel]:
    """Yield a norm over a whole dim; norms of queries and keys over each head, or over all."""
    if op.region == RECURRENCE and "inner" in op.output.dims:
        yield _gated_norm(of, op)
        return
    for number, output in enumerate(op.outputs):
        over = single_dims(of.written(op.contracted[number])) if op.contracted else ("score_size",)
        held = op.weights if len(op.outputs) == 1 else op.weights[number : number + 1]
        weights = (
            Weight(w.name, ("score_size",) if w.dims == ("head_size",) else of.dims(w))
            for w in held
        )
        read = of.reads(op.inputs[number])
        dims = of.dims(output)
        yield Kernel(output.name, Unit.VECTOR, dims, read, tuple(weights), whole=frozenset(over))


def _gated_norm(of: _Conversion, op: Op) -> Kernel:
    """Return the norm of a recurrence over each head, each group or the whole row, times a gate."""
    dims = of.dims(op.output)
    is_head = op.weights[0].dims == ("inner_head_size",)
    over = {"inner_head_size"} if is_head else {"group_heads", "inner_head_size"}
    over |= set(single_dims(of.written("inner"))) if op.contracted else set()
    reads, weights = of.reads(*op.inputs), of.weights(*op.weights)
    return Kernel(op.output.name, Unit.VECTOR, dims, reads, weights, whole=frozenset(over))


def _elementwise(of: _Conversion, op: Op) -> Iterator[Kernel]:
    """Yield a sum, or a function of each element; the last output reads all inputs that are left.

    The key of latent attention is its own part and the rotary one that all heads share: a move.
    Learned positions are looked up, then added; a convolution has its own taps.
    """
    if op.weights:
        yield from (_positions if op.region == EDGE else _convolution)(of, op)
        return
    for number, output in enumerate(op.outputs):
        is_last = number == len(op.outputs) - 1
        inputs = op.inputs[number:] if is_last else op.inputs[number : number + 1]
        dims = of.dims(output)
        is_sum = len(inputs) > 1 and not op.saved and all(of.dims(i) == dims for i in inputs)
        is_join = len(inputs) > 1 and not op.saved and not is_sum
        unit = Unit.NONE if is_join else Unit.VECTOR
        yield Kernel(output.name, unit, dims, of.reads(*inputs), is_sum=is_sum)


def _positions(of: _Conversion, op: Op) -> Iterator[Kernel]:
    dims = of.dims(op.output)
    name = f"{op.output.name}.lookup"
    yield Kernel(name, Unit.NONE, dims, weights=of.weights(*op.weights))
    reads = (*of.reads(*op.inputs), Operand(name, dims))
    yield Kernel(op.output.name, Unit.VECTOR, dims, reads, is_sum=True)


def _convolution(of: _Conversion, op: Op) -> Iterator[Kernel]:
    for source, output in zip(op.inputs, op.outputs, strict=True):
        held = [weight for weight in op.weights if weight.name.startswith(f"{source.name}.")]
        yield Kernel(
            output.name, Unit.VECTOR, of.dims(output), of.reads(source), of.weights(*held),
            flops_per_point=2.0,
        )  # fmt: skip


def _lookup(of: _Conversion, op: Op) -> Iterator[Kernel]:
    dims = of.dims(op.output)
    yield Kernel(op.output.name, Unit.NONE, dims, of.reads(*op.inputs), of.weights(*op.weights))


def _route(of: _Conversion, op: Op) -> Iterator[Kernel]:
    """Yield the move of tokens to experts, or the way back and the sum over the chosen ones."""
    if op.output.dims[0] == "routed_tokens":
        reads = (Operand(t.name, ("slots", *of.dims(t)[1:])) for t in op.inputs)
        yield Kernel(op.output.name, Unit.NONE, of.dims(op.output), tuple(reads))
        return
    (rows,) = op.inputs
    back: Dims = ("choices", "tokens", "hidden")
    name = f"{op.name}.rows"
    read = (Operand(rows.name, ("experts", "tokens", "hidden")),)
    yield Kernel(name, Unit.NONE, back, read)
    dims = of.dims(op.output)
    yield Kernel(op.output.name, Unit.VECTOR, dims, (Operand(name, back),), is_sum=True)


def _loss(of: _Conversion, op: Op) -> Iterator[Kernel]:
    yield Kernel(
        op.output.name,
        Unit.VECTOR,
        of.dims(op.output),
        of.reads(*op.inputs),
        whole=frozenset({"vocab"}),
        word_bytes=op.output.word_bytes,
    )


_RULES = {
    OpKind.MATMUL: _product,
    OpKind.ATTENTION: _attention,
    OpKind.RECURRENCE: _scan,
    OpKind.NORM: _norm,
    OpKind.ELEMENTWISE: _elementwise,
    OpKind.EMBEDDING: _lookup,
    OpKind.ROUTE: _route,
    OpKind.LOSS: _loss,
}
