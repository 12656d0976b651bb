"""Walks of a transformer block under tensor parallelism, forward and backward.

Nothing is listed by hand: which member makes which part, and which collective is needed where,
follows from the operator graph and the four-case rule (:mod:`meshwright.sharding`); the steps of a
collective are those of its algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from meshwright.base.errors import Fault, SpecError
from meshwright.collectives.registry import collective_algorithms, least_sent_bytes
from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor
from meshwright.sharding.algebra import CollectiveCall, Sharding
from meshwright.sharding.axes import (
    activation_sharding,
    forward_products,
    matrices,
    weight_sharding,
)
from meshwright.sharding.derivation import (
    backward_calls,
    forward_calls,
    gradient_of,
    input_gradients,
    sync_calls,
    weight_gradients,
)
from meshwright.sharding.strategy import PlanOptions
from meshwright.show.walks.block_words import (
    backward_caption,
    change_text,
    forward_caption,
    need_caption,
    opening,
    site_words,
    symbol,
)
from meshwright.show.walks.collective import (
    REDUCTIONS,
    Captions,
    Steps,
    group_of,
    play,
    steps_of,
    words_of,
)
from meshwright.show.walks.walk import (
    WORD_BYTES,
    Exchange,
    Recorder,
    Role,
    Walk,
    WalkTensor,
    loop_of,
)
from meshwright.spec.collective import CollectiveKind

AXIS = "tp"
KNOWN_KINDS = (OpKind.MATMUL, OpKind.NORM, OpKind.ELEMENTWISE, OpKind.ATTENTION)
MOST_DEVICES = 8
DEALT_WHOLE = ("query_heads", "kv_heads", "ffn")
"""Dims that tensor parallelism deals out in whole units."""


def block_walk(
    name: str, layer: LayerGraph, model: str, size: int, num_tokens: int, *,
    sequence_parallel: bool,
) -> Walk:  # fmt: skip
    """Return the walk of one layer of a dense transformer over a group of tensor parallelism.

    Parameters
    ----------
    num_tokens
        Tokens of one micro-batch, a single sequence [tokens].
    """
    _check(layer, size, num_tokens)
    told = _Block(layer, PlanOptions(sequence_parallel=sequence_parallel), size, num_tokens)
    alone = _Block(layer, PlanOptions(sequence_parallel=False), 1, num_tokens)
    how = "tensor and sequence parallelism" if sequence_parallel else "tensor parallelism"
    return Walk(
        name=name,
        variant=how,
        title=f"A transformer block under {how}, {size} devices",
        asked=f"One layer of {model}, {num_tokens:,} tokens, forward and backward",
        members=loop_of([f"device {member}" for member in range(size)]),
        num_devices=size,
        tensors=tuple(told.recorder.tensors.values()),
        frames=tuple(told.recorder.frames),
        exchanges=tuple(told.exchanges),
        alone_bytes=max(max(frame.held_bytes) for frame in alone.recorder.frames),
        notes=(
            "Matrices only: gains of norms and biases are neither drawn nor counted.",
            "Numbers of two bytes (statistics four), no optimizer state, no dropout.",
            "A collective is that of a ring; every other algorithm leaves the same parts.",
        ),
    )


def _check(layer: LayerGraph, size: int, num_tokens: int) -> None:
    """Refuse layers and sizes that such a picture cannot show."""
    if others := sorted({op.kind for op in layer.ops} - set(KNOWN_KINDS)):
        message = f"its layer has operators of kind {', '.join(others)}"
        raise SpecError(Fault("--model", message, "a dense transformer, such as gpt3-175b"))
    if size > MOST_DEVICES:
        message = f"a block on {size} devices is more than can be followed"
        raise SpecError(Fault("--group", message, f"at most {MOST_DEVICES}"))
    sizes = {dim: number for dim, number in layer.sizes.items() if dim in DEALT_WHOLE}
    sizes["tokens"] = num_tokens
    cut = [f"{number} {dim.replace('_', ' ')}" for dim, number in sizes.items() if number % size]
    if cut:
        shared = gcd(*sizes.values())
        fix = f"a divisor of {shared}" if shared > 1 else "another model"
        raise SpecError(Fault("--group", f"{size} devices do not divide {' and '.join(cut)}", fix))


@dataclass(frozen=True)
class _Cut:
    """Division of a tensor over the group in this walk."""

    dim: str | None
    """Dim that is split at rest; None: every member has the whole tensor."""
    num_parts: int


class _Block:
    """Records the walk of a layer: inputs and outputs of each operator, collectives before it."""

    def __init__(self, layer: LayerGraph, options: PlanOptions, size: int, num_tokens: int) -> None:
        self.layer, self.options, self.size = layer, options, size
        self.sizes: dict[str, float] = {**layer.sizes, "tokens": float(num_tokens)}
        self.recorder = Recorder(size)
        self.cuts: dict[str, _Cut] = {}
        self.exchanges: list[Exchange] = []
        self.forward = self._active(forward_calls(layer, options))
        self.backward = self._active(backward_calls(layer, options))
        self._moved = {call.tensor.name for call in (*self.forward, *self.backward)}
        self._kept_for = _first_savers(layer)
        self._mixed = self._mixed_gradients()
        self._passing: list[str] = []  # numbers of the next operator only, such as statistics
        self._tell_forward()
        self._tell_backward()
        self.exchanges += self._once_a_step()

    def _active(self, calls: Iterable[CollectiveCall]) -> list[CollectiveCall]:
        return [call for call in calls if call.axis == AXIS and self.size > 1]

    # ------------------------------------------------------------------------------- tensors

    def _declare(
        self, tensor: Tensor, *, role: Role = "activation", of: Tensor | None = None
    ) -> str:
        """Declare a tensor with its division in all of the walk, and return its symbol.

        Parameters
        ----------
        of
            The tensor that it is the gradient of, with the same sharding.
        """
        name = symbol(tensor.name)
        if name in self.cuts:
            return name
        is_weight = (of or tensor).name.endswith(".weight")
        sharding = weight_sharding if is_weight else activation_sharding
        dim = sharding(of or tensor, self.options).dim_of(AXIS) if self.size > 1 else None
        is_cut = dim is not None or tensor.name in self._moved
        num_parts = self.size if is_cut else 1
        is_by_columns = dim is not None and tensor.dims.index(dim) > 0
        rows, columns = (1, num_parts) if is_by_columns else (num_parts, 1)
        part_bytes = self._bytes(tensor) / num_parts
        about = f"{tensor.name}, {_dims_text(tensor)}"
        self.recorder.tensors[name] = WalkTensor(name, about, role, rows, columns, part_bytes)
        self.cuts[name] = _Cut(dim, num_parts)
        return name

    def _bytes(self, tensor: Tensor) -> float:
        """Return the bytes of a whole tensor."""
        return prod(self.sizes[dim] for dim in tensor.dims) * (tensor.word_bytes or WORD_BYTES)

    def _declare_terms(self, name: str) -> str:
        """Declare the terms of a gradient to which other operators add whole numbers."""
        terms = f"{name}'"
        whole = self.recorder.tensors[name]
        self.recorder.tensors[terms] = replace(whole, name=terms, about=f"terms of {name}")
        self.cuts[terms] = self.cuts[name]
        return terms

    def _own(self, name: str, member: int) -> Sequence[int]:
        """Return the parts of a tensor that a member holds at rest."""
        cut = self.cuts[name]
        return range(cut.num_parts) if cut.dim is None else (member,)

    def _make(self, name: str, *, is_term: bool = False) -> None:
        """Let every member make a tensor: its own part, or all of it as a term of a sum."""
        for member in range(self.size):
            parts = range(self.cuts[name].num_parts) if is_term else self._own(name, member)
            self.recorder.make(member, name, parts, is_term=is_term)

    def _drop(self, names: Iterable[str]) -> None:
        """Let every member drop tensors at the end of this frame."""
        for name in names:
            for member in range(self.size):
                self.recorder.drop(member, name, range(self.cuts[name].num_parts))

    def _keep_own(self, name: str) -> None:
        """Let every member keep its own part only, from the end of this frame on."""
        for member in range(self.size):
            own = self._own(name, member)
            others = [part for part in range(self.cuts[name].num_parts) if part not in own]
            self.recorder.drop(member, name, others)

    def _part(self, name: str, member: int) -> str:
        """Return the name of the part of a tensor that a member holds at rest."""
        return name if self.cuts[name].dim is None else f"{name}[{member}]"

    # -------------------------------------------------------------------------- forward pass

    def _tell_forward(self) -> None:
        for op in self.layer.ops:
            for weight, _ in matrices(op) if op.kind is OpKind.MATMUL else ():
                self._make(self._declare(weight, role="weight"))
        source = self._declare(self.layer.input)
        self._make(source)
        self.recorder.frame("forward", "before the layer", opening(self.cuts[source].dim))
        for number, op in enumerate(self.layer.ops):
            fed = self._play_for(op.name, self.forward, "forward")
            self._forward(number, op, is_fed=fed)

    def _forward(self, number: int, op: Op, *, is_fed: bool) -> None:
        """Record an operator: the tensors that it makes, and those kept after it."""
        terms = self._outputs_as_terms(op)
        outputs = [self._declare(output) for output in op.outputs]
        for output, name in zip(op.outputs, outputs, strict=True):
            self._make(name, is_term=output.name in terms)
        known = {tensor.name for tensor in (*op.inputs, *op.outputs)}
        for tensor in op.saved:
            if tensor.name not in known:
                self._make(self._declare(tensor))
        for tensor in op.inputs:
            self._settle(tensor, self.layer.ops[number + 1 :])
        self._drop_passing()
        verb = "a term of" if terms else "makes"
        computes = [
            f"{verb} " + ", ".join(n if terms else self._part(n, member) for n in outputs)
            for member in range(self.size)
        ]
        dim = self.cuts[outputs[0]].dim
        caption = forward_caption(op, dim, self.size, is_term=bool(terms), is_fed=is_fed)
        self.recorder.frame("forward", site_words(op.name), caption, computes)

    def _outputs_as_terms(self, op: Op) -> set[str]:
        """Return the outputs that arise as terms of a sum over the group."""
        if op.kind is not OpKind.MATMUL or self.size == 1:
            return set()
        products = forward_products(op, self.options)
        return {output.name for _, output, product in products if AXIS in product.local.partial}

    def _settle(self, tensor: Tensor, later: Sequence[Op]) -> None:
        """Drop a tensor that is not read again; keep the part at rest for the backward pass."""
        if any(tensor.name == read.name for op in later for read in op.inputs):
            return
        if tensor.name in self._kept_for:
            self._keep_own(symbol(tensor.name))
        else:
            self._drop([symbol(tensor.name)])

    def _drop_passing(self) -> None:
        self._drop(self._passing)
        self._passing = []

    # ------------------------------------------------------------------------- backward pass

    def _tell_backward(self) -> None:
        last = self.layer.ops[-1].output
        made, gradient = (
            symbol(last.name),
            self._declare(gradient_of(last), role="gradient", of=last),
        )
        for member in range(self.size):
            self.recorder.forget(member, made)
        self._make(gradient)
        caption = (
            f"{made} has gone on to the next layer, and {gradient} comes back from there. The "
            "tensors of the backward pass are still held."
        )
        self.recorder.frame("backward", "the gradient arrives", caption)
        for number, op in reversed(list(enumerate(self.layer.ops))):
            self._play_for(op.name, self.backward, "backward")
            self._backward(number, op)
        self._play_for("layer input gradient", self.backward, "backward")

    def _mixed_gradients(self) -> set[str]:
        """Return the gradients with terms of a sum from some operators only."""
        found: dict[str, set[bool]] = {}
        for op in self.layer.ops:
            for name, layout in input_gradients(op, self.options):
                found.setdefault(f"d{symbol(name)}", set()).add(self._is_term(layout))
        return {name for name, kinds in found.items() if len(kinds) > 1}

    def _is_term(self, layout: Sharding) -> bool:
        return self.size > 1 and AXIS in layout.partial

    def _backward(self, number: int, op: Op) -> None:
        """Record an operator backward: the gradients made, and the tensors dropped after it."""
        layouts = dict(input_gradients(op, self.options))
        made: dict[str, bool] = {}
        for tensor in op.inputs:
            name = self._declare(gradient_of(tensor), role="gradient", of=tensor)
            is_term = self._is_term(layouts[tensor.name])
            if is_term and name in self._mixed:
                name = self._declare_terms(name)
            made[name] = is_term
        adds = any(self.recorder.parts_of(0, name) for name in made)
        for name, is_term in made.items():
            self._make(name, is_term=is_term)
        weights = self._weight_gradients(op)
        self._drop(symbol(gradient_of(output).name) for output in op.outputs)
        self._drop(symbol(name) for name, saver in self._kept_for.items() if saver == number)
        self._drop_passing()
        computes = [
            "makes " + ", ".join([
                *(f"a term of {n}" if is_term else self._part(n, member)
                  for n, is_term in made.items()),
                *(self._part(n, member) for n in weights),
            ])
            for member in range(self.size)
        ]  # fmt: skip
        is_split = self.cuts[next(iter(made))].dim is not None
        caption = backward_caption(op, made, weights, self.size, is_split=is_split, adds=adds)
        self.recorder.frame("backward", site_words(op.name), caption, computes)

    def _weight_gradients(self, op: Op) -> list[str]:
        """Let every member make the gradient of its part of each weight matrix."""
        if op.kind is not OpKind.MATMUL:
            return []
        weights = [w for w, _ in weight_gradients(op, self.options) if len(w.dims) > 1]
        names = [self._declare(gradient_of(w), role="gradient", of=w) for w in weights]
        for name in names:
            self._make(name)
        return names

    # --------------------------------------------------------------------------- collectives

    def _play_for(self, site: str, calls: Sequence[CollectiveCall], phase: str) -> bool:
        """Record the collectives before an operator; return whether there are any."""
        needed = [call for call in calls if call.site.partition(":")[0] == site]
        for call in needed:
            self._play(call, phase, site)
        return bool(needed)

    def _play(self, call: CollectiveCall, phase: str, site: str) -> None:
        """Record a collective step by step, on the parts of the tensor."""
        whole = name = symbol(call.tensor.name)
        if name in self._mixed:
            name = f"{name}'"
        if name not in self.cuts:
            self._make(self._declare(call.tensor), is_term=call.kind in REDUCTIONS)
            self.recorder.frame(phase, name, f"Each device makes its own term of {name}.")
            self._passing.append(name)
        before, dim = list(self.recorder.sent), self.cuts[name].dim
        why = need_caption(call.kind, name, dim, self.size, site_words(site))
        kind = words_of(call.kind)
        captions = Captions(call.kind, name, f"{kind} of {name}", why)
        play(self.recorder, self._steps(call.kind), name, phase, captions)
        sent = max(now - then for now, then in zip(self.recorder.sent, before, strict=True))
        self.exchanges.append(
            Exchange(
                kind,
                name,
                phase,
                site_words(call.site),
                _dims_text(call.tensor),
                change_text(call.kind, dim),
                self._bytes(call.tensor),
                sent,
            )
        )
        if name != whole:
            self._make(whole)
            self._drop([name])
            self.recorder.frame(phase, whole, f"The sums in {name} are added to {whole}.")

    def _steps(self, kind: CollectiveKind) -> Steps:
        return steps_of(collective_algorithms[f"ring_{kind}"], group_of((self.size,), "switch"))

    def _once_a_step(self) -> list[Exchange]:
        """Return the collectives of weight gradients, which run once for all micro-batches."""
        return [
            Exchange(
                words_of(call.kind), call.tensor.name, "once a step", site_words(call.site),
                _dims_text(call.tensor), change_text(call.kind, None), self._bytes(call.tensor),
                float(least_sent_bytes(call.kind, self._bytes(call.tensor), float(self.size))),
                is_walked=False,
            )
            for call in self._active(sync_calls(self.layer, self.options))
        ]  # fmt: skip


def _first_savers(layer: LayerGraph) -> dict[str, int]:
    """Return the first operator that keeps each tensor: the last that needs it backward."""
    found: dict[str, int] = {}
    for number, op in enumerate(layer.ops):
        for tensor in op.saved:
            found.setdefault(tensor.name, number)
    return found


def _dims_text(tensor: Tensor) -> str:
    return " x ".join(tensor.dims)
