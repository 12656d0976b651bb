"""Walks of a transformer block under tensor parallelism, forward and backward.

Nothing is listed by hand: which member makes which part, and which collective is needed where,
follows from the operator graph and the four-case rule (:mod:`meshwright.sharding`); the steps of a
collective are those of its algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod

from meshwright.base.errors import Fault, SpecError
from meshwright.collectives.registry import collective_algorithms, least_sent_bytes
from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor
from meshwright.report.walks.collective import (
    REDUCTIONS,
    Captions,
    Steps,
    group_of,
    play,
    steps_of,
    words_of,
)
from meshwright.report.walks.walk import Exchange, Recorder, Role, Walk, WalkTensor, loop_of
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
from meshwright.spec.collective import CollectiveKind

AXIS = "tp"
WORD_BYTES = 2.0
SYMBOLS = {
    "layer_input": "X",
    "attention.norm.output": "N",
    "attention.query": "Q",
    "attention.key": "K",
    "attention.value": "V",
    "attention.qk_norm.query": "Qn",
    "attention.qk_norm.key": "Kn",
    "attention.rotary.query": "Qr",
    "attention.rotary.key": "Kr",
    "attention.core.log_sum_exp": "L",
    "attention.heads": "A",
    "attention.output": "O",
    "attention.post_norm.output": "P",
    "residual.attention.output": "R",
    "feed_forward.norm.output": "M",
    "feed_forward.up": "U",
    "feed_forward.activation": "G",
    "feed_forward.down": "D",
    "feed_forward.post_norm.output": "E",
    "residual.network.output": "Y",
    "residual.output": "Y",
}
"""Of the tensors of a block; a weight is W with the letter of its output, a gradient has a d."""
KNOWN_KINDS = (OpKind.MATMUL, OpKind.NORM, OpKind.ELEMENTWISE, OpKind.ATTENTION)


def symbol(name: str) -> str:
    """Return the symbol of a tensor of the graph."""
    if name.endswith(".gradient"):
        return "d" + symbol(name.removesuffix(".gradient"))
    if name.endswith(".weight"):
        return "W" + symbol(name.removesuffix(".weight")).lower()
    return SYMBOLS.get(name, name)


def op_words(op: Op) -> str:
    """Return what an operator is called in words: ``feed-forward, up``."""
    return site_words(op.name)


def site_words(site: str) -> str:
    """Return where something happens in words."""
    text = site.replace("feed_forward", "feed-forward").replace(": ", ", ")
    return text.replace(".", ", ").replace("_", " ")


def _listed(names: Iterable[str]) -> str:
    """Return symbols as a list: Q, K and V."""
    *first, last = list(names)
    return f"{', '.join(first)} and {last}" if first else last


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
    options = PlanOptions(sequence_parallel=sequence_parallel)
    told = _Block(layer, options, size, num_tokens)
    told.walk()
    alone = _Block(layer, PlanOptions(sequence_parallel=False), 1, num_tokens)
    alone.walk()
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
        exchanges=tuple(told.exchanges) + tuple(told.once_a_step()),
        alone_bytes=max(max(frame.held_bytes) for frame in alone.recorder.frames),
        notes=(
            "Matrices only: gains of norms and biases are neither drawn nor counted.",
            "Numbers of two bytes (statistics of attention four), no optimizer state, no dropout.",
            "A collective is that of a ring; every other algorithm moves the same parts.",
        ),
    )


def _check(layer: LayerGraph, size: int, num_tokens: int) -> None:
    """Refuse layers and sizes of which no such picture can be made."""
    if others := sorted({op.kind for op in layer.ops} - set(KNOWN_KINDS)):
        message = f"its layer has operators of kind {', '.join(others)}"
        raise SpecError(Fault("--model", message, "a dense transformer, such as gpt3-175b"))
    sizes = {"tokens": num_tokens, **{d: n for d, n in layer.sizes.items() if d in _UNITS}}
    cut = [f"{number} {dim.replace('_', ' ')}" for dim, number in sizes.items() if number % size]
    if cut:
        shared = gcd(*sizes.values())
        fix = f"a divisor of {shared}" if shared > 1 else "another model"
        raise SpecError(Fault("--group", f"{size} devices do not divide {' and '.join(cut)}", fix))


_UNITS = ("query_heads", "kv_heads", "ffn")
"""What tensor parallelism deals out whole."""


@dataclass(frozen=True)
class _Cut:
    """How a tensor is cut over the group in this walk."""

    is_split: bool
    """At rest; otherwise every member has all of it."""
    num_parts: int


class _Block:
    """Tells the walk of a layer: what is needed before each operator, and what it makes."""

    def __init__(self, layer: LayerGraph, options: PlanOptions, size: int, num_tokens: int) -> None:
        self.layer, self.options, self.size = layer, options, size
        self.sizes: dict[str, float] = {**layer.sizes, "tokens": float(num_tokens)}
        self.forward = self._calls(forward_calls(layer, options))
        self.backward = self._calls(backward_calls(layer, options))
        self.moved = {call.tensor.name for call in (*self.forward, *self.backward)}
        self.recorder = Recorder(size)
        self.exchanges: list[Exchange] = []
        self.passing: list[str] = []
        """Numbers that only the next operator reads, such as statistics of a norm."""
        self.saved = self._last_savers()
        self.rest: dict[str, _Cut] = {}

    def _calls(self, calls: Iterable[CollectiveCall]) -> list[CollectiveCall]:
        return [call for call in calls if call.axis == AXIS and self.size > 1]

    def _last_savers(self) -> dict[str, int]:
        """Return by tensor the first operator that kept it: the last that needs it backward."""
        first: dict[str, int] = {}
        for number, op in enumerate(self.layer.ops):
            for tensor in op.saved:
                first.setdefault(tensor.name, number)
        return first

    # --- tensors

    def declare(self, tensor: Tensor, *, is_weight: bool = False, of: Tensor | None = None) -> str:
        """Make a tensor known, cut as it is anywhere in the walk, and return its symbol.

        Parameters
        ----------
        of
            The tensor whose gradient it is, which is sharded alike.
        """
        name = symbol(tensor.name)
        if name in self.recorder.tensors:
            return name
        source = of or tensor
        sharding = weight_sharding if is_weight else activation_sharding
        dim = sharding(source, self.options).dim_of(AXIS) if self.size > 1 else None
        is_cut = dim is not None or tensor.name in self.moved
        num_parts = self.size if is_cut else 1
        along = len(tensor.dims) - 1 if dim is None else tensor.dims.index(dim)
        is_columns = dim is not None and along > 0
        rows, columns = (1, num_parts) if is_columns else (num_parts, 1)
        elements = prod(self.sizes[d] for d in tensor.dims)
        num_bytes = elements * (tensor.word_bytes or WORD_BYTES)
        role: Role = "gradient" if of else "weight" if is_weight else "activation"
        about = f"{tensor.name}, " + " x ".join(tensor.dims)
        self.recorder.tensors[name] = WalkTensor(
            name, about, role, rows, columns, num_bytes / num_parts
        )
        self.rest[name] = _Cut(dim is not None, num_parts)
        return name

    def own(self, name: str, member: int) -> Sequence[int]:
        """Return the parts that a member has of a tensor at rest."""
        cut = self.rest[name]
        return (member,) if cut.is_split else range(cut.num_parts)

    def everywhere(self, name: str, *, partial: bool = False) -> None:
        """Let every member make a tensor: its own part, or all of it as a term of a sum."""
        for member in range(self.size):
            parts = range(self.rest[name].num_parts) if partial else self.own(name, member)
            self.recorder.make(member, name, parts, is_term=partial)

    def forget(self, name: str) -> None:
        """Let every member drop a tensor before the next frame."""
        for member in range(self.size):
            self.recorder.forget(member, name)

    def drop(self, names: Iterable[str]) -> None:
        """Let every member drop tensors at the end of this frame."""
        for name in names:
            for member in range(self.size):
                self.recorder.drop(member, name, range(self.rest[name].num_parts))

    def to_rest(self, name: str) -> None:
        """Let every member keep its own part only, from this frame on."""
        for member in range(self.size):
            own = set(self.own(name, member))
            parts = [p for p in range(self.rest[name].num_parts) if p not in own]
            self.recorder.drop(member, name, parts)

    # --- the walk

    def walk(self) -> None:
        """Tell the forward pass, then the backward pass."""
        for op in self.layer.ops:
            for weight, _ in matrices(op) if op.kind is OpKind.MATMUL else ():
                self.everywhere(self.declare(weight, is_weight=True))
        self.everywhere(self.declare(self.layer.input))
        self.recorder.frame("forward", "before the layer", self._opening())
        for number, op in enumerate(self.layer.ops):
            self._forward(number, op)
        last = self.layer.ops[-1]
        made = symbol(last.output.name)
        self.forget(made)
        self.everywhere(self.declare(gradient_of(last.output), of=last.output))
        self.recorder.frame(
            "backward",
            "the gradient arrives",
            f"{made} has gone on to the next layer, and d{made} comes back from there. What the "
            "backward pass needs is still held, as it rests.",
        )
        for number in reversed(range(len(self.layer.ops))):
            self._backward(number, self.layer.ops[number])
        self._play_calls(self.backward, "layer input gradient", "backward")

    def _opening(self) -> str:
        split = self.rest[symbol(self.layer.input.name)].is_split
        tokens = (
            "X is split by tokens: no activation is held twice."
            if split
            else "X is there in full on every device."
        )
        return (
            "Each device has its own columns or rows of every weight, whole heads of attention "
            f"among them. {tokens}"
        )

    def _needed(self, calls: Iterable[CollectiveCall], op: Op) -> Iterator[CollectiveCall]:
        return (call for call in calls if call.site.partition(":")[0] == op.name)

    def _forward(self, number: int, op: Op) -> None:
        for call in self._needed(self.forward, op):
            self._play(call, "forward")
        partial = self._partial_outputs(op)
        for output in op.outputs:
            self.everywhere(self.declare(output), partial=output.name in partial)
        inputs = {tensor.name for tensor in op.inputs}
        made = {tensor.name for tensor in op.outputs}
        for tensor in op.saved:
            if tensor.name not in inputs | made:
                self.everywhere(self.declare(tensor))
        for tensor in op.inputs:
            self._settle_input(number, tensor)
        self._drop_passing()
        needed = any(self._needed(self.forward, op))
        self.recorder.frame("forward", op_words(op), *self._told(op, partial, needed=needed))

    def _partial_outputs(self, op: Op) -> set[str]:
        """Return the outputs that arise as terms of a sum over the group."""
        if op.kind is not OpKind.MATMUL or self.size == 1:
            return set()
        products = forward_products(op, self.options)
        return {output.name for _, output, product in products if AXIS in product.local.partial}

    def _settle_input(self, number: int, tensor: Tensor) -> None:
        """Drop what nobody reads again; keep for the backward pass the part that rests."""
        name, later = symbol(tensor.name), self.layer.ops[number + 1 :]
        if any(tensor.name == read.name for op in later for read in op.inputs):
            return
        if tensor.name in self.saved:
            self.to_rest(name)
        else:
            self.drop([name])

    def _backward(self, number: int, op: Op) -> None:
        self._play_calls(self.backward, op.name, "backward")
        layouts = dict(input_gradients(op, self.options))
        made = []
        for tensor in op.inputs:
            name = self.declare(gradient_of(tensor), of=tensor)
            is_partial = self._is_partial(layouts[tensor.name])
            self.everywhere(name, partial=is_partial)
            made.append((name, is_partial))
        weights = []
        if op.kind is OpKind.MATMUL:
            for weight, _ in weight_gradients(op, self.options):
                if len(weight.dims) > 1:
                    weights.append(self.declare(gradient_of(weight), is_weight=True, of=weight))
                    self.everywhere(weights[-1])
        self.drop(symbol(gradient_of(output).name) for output in op.outputs)
        self.drop(symbol(kept) for kept, saver in self.saved.items() if saver == number)
        self._drop_passing()
        self.recorder.frame("backward", op_words(op), *self._told_back(op, made, weights))

    def _drop_passing(self) -> None:
        self.drop(self.passing)
        self.passing = []

    def _is_partial(self, layout: Sharding) -> bool:
        return self.size > 1 and AXIS in layout.partial

    # --- collectives

    def _play_calls(self, calls: Sequence[CollectiveCall], site: str, phase: str) -> None:
        for call in calls:
            if call.site.partition(":")[0] == site:
                self._play(call, phase)

    def _steps(self, kind: CollectiveKind) -> Steps:
        return steps_of(collective_algorithms[f"ring_{kind}"], group_of((self.size,), "switch"))

    def _play(self, call: CollectiveCall, phase: str) -> None:
        """Tell a collective step by step, on the parts that the tensor is cut into."""
        name = symbol(call.tensor.name)
        if name not in self.recorder.tensors:
            self.everywhere(self.declare(call.tensor), partial=call.kind in REDUCTIONS)
            self.recorder.frame(phase, name, f"Each device makes its own term of {name}.")
            self.passing.append(name)
        before = list(self.recorder.sent)
        kind = words_of(call.kind)
        title = f"{kind} of {name}"
        captions = Captions(call.kind, name, title, self._why(call, name))
        play(self.recorder, self._steps(call.kind), name, phase, captions)
        sent = max(now - then for now, then in zip(self.recorder.sent, before, strict=True))
        whole = self.recorder.tensors[name].num_bytes
        where = site_words(call.site)
        self.exchanges.append(Exchange(kind, name, phase, where, whole, sent))

    def _why(self, call: CollectiveCall, name: str) -> str:
        """Return what the four-case rule found: what is there, and what is needed where."""
        site = site_words(call.site.partition(":")[0])
        own = "columns" if self.recorder.tensors[name].columns > 1 else "tokens"
        if call.kind is CollectiveKind.ALL_GATHER:
            return f"Each device has its own {own} of {name}, and needs all of it for: {site}."
        where = f"for its own {own}" if call.kind is CollectiveKind.REDUCE_SCATTER else "in full"
        return (
            f"{name} is a sum of {self.size} terms, one on each device, and each device needs it "
            f"{where} for: {site}."
        )

    def once_a_step(self) -> Iterator[Exchange]:
        """Yield the collectives of weight gradients, which run once for all micro-batches."""
        for call in sync_calls(self.layer, self.options):
            if call.axis == AXIS and self.size > 1:
                num_bytes = WORD_BYTES * prod(self.sizes[d] for d in call.tensor.dims)
                yield Exchange(
                    words_of(call.kind), call.tensor.name, "once a step",
                    site_words(call.site), num_bytes,
                    float(least_sent_bytes(call.kind, num_bytes, float(self.size))),
                    is_walked=False,
                )  # fmt: skip

    # --- words

    def _part(self, name: str, member: int) -> str:
        return f"{name}[{member}]" if self.rest[name].is_split else name

    def _told(
        self, op: Op, partial: set[str], *, needed: bool
    ) -> tuple[str, list[str]]:  # fmt: skip
        """Return the caption of an operator, and what each member computes.

        Parameters
        ----------
        needed
            Whether something had to be sent before it.
        """
        outputs = [symbol(t.name) for t in op.outputs]
        inputs = [symbol(t.name) for t in op.inputs]
        computes = []
        for member in range(self.size):
            own = ", ".join(outputs if partial else [self._part(name, member) for name in outputs])
            computes.append(f"a term of {own}" if partial else f"makes {own}")
        made, read = _listed(outputs), _listed(inputs)
        split = self.rest[outputs[0]].is_split
        if op.kind is OpKind.MATMUL:
            weights = _listed(symbol(weight.name) for weight, _ in matrices(op))
            if partial:
                caption = (
                    f"Each device multiplies its columns of {read} by its rows of {weights}. The "
                    f"result is as large as {made}, but one term of a sum of {self.size}."
                )
            elif split:
                caption = (
                    f"Each device multiplies {read} by its own columns of {weights} and has its "
                    f"own columns of {made}."
                )
            else:
                caption = f"Every device multiplies {read} by {weights}."
            if self.size > 1 and not needed:
                caption += " Nothing had to be sent before."
        elif op.kind is OpKind.ATTENTION:
            caption = "Attention works head by head: each device has heads of its own"
            caption += ", and nothing is sent." if self.size > 1 else "."
        else:
            how = "row by row" if op.kind is OpKind.NORM else "element by element"
            caption = f"{made} from {read}, {how}: {self._share(outputs[0])}"
        return caption, computes

    def _share(self, output: str) -> str:
        """Return which share of an operator between products each device computes."""
        if not self.rest[output].is_split:
            return "every device does all of it, the same on each."
        is_columns = self.recorder.tensors[output].columns > 1
        return "each device its own " + ("columns." if is_columns else "tokens.")

    def _told_back(
        self, op: Op, made: list[tuple[str, bool]], weights: list[str]
    ) -> tuple[str, list[str]]:
        """Return the caption of an operator in the backward pass, and what each computes.

        Gradients of one tensor from several operators add up.
        """
        gradients = dict(made)
        computes = []
        for member in range(self.size):
            parts = [
                f"a term of {name}" if is_partial else self._part(name, member)
                for name, is_partial in gradients.items()
            ]
            parts += [self._part(name, member) for name in weights]
            computes.append("makes " + ", ".join(parts))
        outputs = _listed(f"d{symbol(t.name)}" for t in op.outputs)
        there = [name for name in gradients if self.recorder.parts_of(0, name)]
        verb = "adds to" if there else "makes"
        names = _listed(gradients)
        if any(gradients.values()):
            caption = f"From {outputs} each device makes a term of {names}, a sum of {self.size}"
        elif self.rest[made[0][0]].is_split:
            caption = f"From {outputs} each device {verb} its part of {names}"
        else:
            caption = f"From {outputs} every device {verb} {names}, the same on each"
        if weights:
            caption += f", and makes {_listed(weights)} for the weights that it has"
        return f"{caption}.", computes
