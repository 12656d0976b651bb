"""The walks by name, with the options of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.collectives.registry import collective_algorithms
from meshwright.graph.op import LayerGraph, OpKind
from meshwright.graph.transformer import build_graph
from meshwright.sharding.strategy import Streamed
from meshwright.show.walks.block import KNOWN_KINDS, block_walk
from meshwright.show.walks.collective import (
    TRIED,
    can_be_followed,
    collective_walk,
    runs_on,
    spoken,
)
from meshwright.show.walks.stream import Layer, stream_walk
from meshwright.show.walks.walk import Walk
from meshwright.spec.model import ModelSpec
from meshwright.streams.forms import streams
from meshwright.view.words import counted

BLOCKS = {"tp": False, "tp-sp": True}
"""Names of the walks of a transformer block, and whether tokens are split."""
STREAMS = {"tspp": "ring", "tatp": "stream"}
"""Names of the walks of a tensor stream, and its form where none is asked for."""
ABOUT: Mapping[str, str] = {
    "tp": "a transformer block under tensor parallelism",
    "tp-sp": "the same with sequence parallelism",
    "tspp": "a linear layer with its weights or inputs streaming round a ring",
    "tatp": "the same between neighbours on a line, in both directions",
}
MOST_MEMBERS = 16


def walk_names() -> dict[str, str]:
    """Return the names of all walks with their descriptions."""
    found = dict(ABOUT)
    for name in collective_algorithms:
        found[name] = spoken(name)
    return found


@dataclass(frozen=True)
class WalkQuestion:
    """Options of a walk."""

    name: str
    shape: tuple[int, ...] | None
    """Members of each level, innermost first; None: the default of the walk."""
    model: ModelSpec
    num_tokens: int
    num_bytes: float
    form: str | None
    streamed: Streamed | None
    """Tensor that is streamed; None: the smaller one."""


def walk_of(question: WalkQuestion) -> Walk:
    """Return the walk that is asked for."""
    name = question.name
    if name not in walk_names():
        raise UnknownNameError("walk", name, walk_names())
    if name in BLOCKS:
        layer, size = dense_layer(question.model), _one_size(question, 4)
        return block_walk(
            name, layer, question.model.name, size, question.num_tokens,
            sequence_parallel=BLOCKS[name],
        )  # fmt: skip
    if name in STREAMS:
        form = question.form or STREAMS[name]
        size, product = _one_size(question, 8), _first_product(question)
        streamed = question.streamed or product.cheaper
        return stream_walk(name, form, size, product, streamed)
    return collective_walk(name, question.shape or usual_shape(name), question.num_bytes)


def walks_beside(question: WalkQuestion) -> list[Walk]:
    """Return the walk that is asked for and the alternatives that answer the same question.

    A block with and without sequence parallelism, a layer under every form of a stream, every
    algorithm of a collective on the same group.
    """
    name = question.name
    if name in BLOCKS:
        return [walk_of(replace(question, name=other)) for other in BLOCKS]
    if name in STREAMS:
        return [walk_of(replace(question, form=form)) for form in streams]
    return list(_same_kind(replace(question, shape=question.shape or usual_shape(name))))


def _same_kind(question: WalkQuestion) -> Iterator[Walk]:
    """Yield the walks of all algorithms of a kind on the same group that can be followed."""
    asked = collective_algorithms[question.name]
    assert question.shape is not None
    for name, algorithm in collective_algorithms.items():
        is_same = runs_on(algorithm, question.shape) == runs_on(asked, question.shape)
        if algorithm.kind is asked.kind and is_same and can_be_followed(name, question.shape):
            yield walk_of(replace(question, name=name))


def usual_shape(name: str) -> tuple[int, ...]:
    """Return a group on which an algorithm runs and can be followed."""
    return next((shape for shape in TRIED if can_be_followed(name, shape)), TRIED[0])


def _one_size(question: WalkQuestion, default: int) -> int:
    """Return the number of members of a walk without levels."""
    if question.shape is None:
        return default
    if len(question.shape) > 1:
        message = "a row of devices has no sides"
        raise SpecError(Fault("--group", message, f"a number, such as {default}"))
    return question.shape[0]


def dense_layer(model: ModelSpec) -> LayerGraph:
    """Return the first layer of attention and a dense network; of models without, the first."""
    layers = build_graph(model).layers
    kinds = [{op.kind for op in layer.ops} for layer in layers]
    dense = (OpKind.ATTENTION in found and found <= set(KNOWN_KINDS) for found in kinds)
    return next((layer for layer, is_it in zip(layers, dense, strict=True) if is_it), layers[0])


def _first_product(question: WalkQuestion) -> Layer:
    """Return the first product of the feed-forward network of a model."""
    model = question.model
    for kind in model.layer_kinds:
        if kind.feed_forward is not None:
            width = kind.feed_forward.ffn_size * (2 if kind.feed_forward.gated else 1)
            return Layer(
                f"First product of the network of {model.name}",
                question.num_tokens,
                model.hidden_size,
                width,
            )
    message = f"{model.name} has no dense feed-forward network"
    raise SpecError(Fault("--model", message, "a dense transformer, such as gpt3-175b"))


def shape_of_text(text: str) -> tuple[int, ...]:
    """Return the members of each level, innermost first, of ``8`` or ``2x4``."""
    words = text.lower().split("x")
    if not all(word.isascii() and word.isdigit() and len(word) < 4 for word in words):
        raise SpecError(
            Fault("--group", f"{text!r} is not a number of members", "such as 8, or 2x4")
        )
    shape = tuple(int(word) for word in reversed(words))
    number = prod(shape)
    if not 2 <= number <= MOST_MEMBERS or (len(shape) > 1 and min(shape) < 2):
        message = f"{text!r} has {counted(number, 'member')}"
        raise SpecError(Fault("--group", message, f"2 to {MOST_MEMBERS}, sides of 2 or more"))
    return shape


TAKES = {
    **dict.fromkeys(BLOCKS, ("model", "seq")),
    **dict.fromkeys(STREAMS, ("model", "seq", "form", "streamed")),
}
"""Options of the walks other than collectives."""
OF_COLLECTIVES = ("size",)


def idle_options(name: str, given: Mapping[str, Any]) -> list[Fault]:
    """Return a fault for each option that does not apply to this walk."""
    takes = TAKES.get(name, OF_COLLECTIVES)
    known = dict.fromkeys((*TAKES["tatp"], *OF_COLLECTIVES))
    listed = ", ".join(f"--{option}" for option in ("group", *takes))
    return [
        Fault(f"--{option}", f"has no effect on the walk {name}", f"it takes {listed}")
        for option in known
        if given.get(option) is not None and option not in takes
    ]


def form_of(text: str | None) -> str | None:
    """Return a form of the registry."""
    if text is not None and text not in streams:
        raise UnknownNameError("tensor stream", text, streams)
    return text
