"""Walks of tensor streams: one linear layer, forward and backward, round by round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from meshwright.base.units import format_bytes
from meshwright.sharding.strategy import Streamed
from meshwright.show.walks.walk import (
    WORD_BYTES,
    Exchange,
    Recorder,
    Walk,
    WalkTensor,
    is_alive,
    loop_of,
    row_of,
)
from meshwright.streams.forms import Send, StreamRounds, enumerate_rounds, reverse, streams

TITLES = {"tspp": "Tensor stream (TSPP)", "tatp": "Topology-aware tensor stream (TATP)"}


@dataclass(frozen=True)
class Layer:
    """A linear layer Y = X W."""

    name: str
    num_tokens: int
    in_size: int
    out_size: int

    @property
    def input_bytes(self) -> float:
        """Size of X [bytes]."""
        return WORD_BYTES * self.num_tokens * self.in_size

    @property
    def weight_bytes(self) -> float:
        """Size of W [bytes]."""
        return WORD_BYTES * self.in_size * self.out_size

    @property
    def output_bytes(self) -> float:
        """Size of Y [bytes]."""
        return WORD_BYTES * self.num_tokens * self.out_size

    @property
    def cheaper(self) -> Streamed:
        """Tensor that is cheaper to stream: the smaller one.

        Source: selective transfer policy of TEMP (arXiv 2512.14256).
        """
        return Streamed.WEIGHTS if self.weight_bytes <= self.input_bytes else Streamed.INPUTS


@dataclass(frozen=True)
class _Sides:
    """The streamed and the resident tensor, with the parts of each and of the output."""

    streamed: Streamed
    rounds: StreamRounds
    layer: Layer

    @property
    def travels(self) -> str:
        return "W" if self.streamed is Streamed.WEIGHTS else "X"

    @property
    def stays(self) -> str:
        return "X" if self.streamed is Streamed.WEIGHTS else "W"

    def tensors(self) -> list[WalkTensor]:
        """Return X, W, Y and their gradients: N parts of the resident one, items of the other."""
        members, items = self.rounds.num_members, self.rounds.num_items
        rows, columns = (members, items) if self.streamed is Streamed.WEIGHTS else (items, members)
        layer = self.layer
        found = [
            WalkTensor("X", f"input, {layer.num_tokens} tokens x {layer.in_size}", "activation",
                       rows, 1, layer.input_bytes / rows),
            WalkTensor("W", f"weight, {layer.in_size} x {layer.out_size}", "weight",
                       1, columns, layer.weight_bytes / columns),
            WalkTensor("Y", f"output, {layer.num_tokens} tokens x {layer.out_size}", "activation",
                       rows, columns, layer.output_bytes / (rows * columns)),
        ]  # fmt: skip
        gradients = [
            replace(t, name=f"d{t.name}", about=f"gradient of {t.name}", role="gradient")
            for t in found
        ]
        return [*found, *gradients]

    def product(self, member: int, item: int) -> str:
        """Return the product of a member in the forward pass."""
        parts = {self.stays: member, self.travels: item}
        return f"X{parts['X']} W{parts['W']}"

    def gradient(self, name: str, part: int) -> str:
        """Return the term of a part in the gradient of the other tensor."""
        return f"X{part}ᵀ dY" if name == "X" else f"dY W{part}ᵀ"

    def tile(self, member: int, item: int) -> int:
        """Return the part of Y that a member makes with an item."""
        members, items = self.rounds.num_members, self.rounds.num_items
        row, column = (member, item) if self.streamed is Streamed.WEIGHTS else (item, member)
        return row * (items if self.streamed is Streamed.WEIGHTS else members) + column

    def tiles(self, member: int) -> list[int]:
        """Return all parts of Y of a member."""
        return [self.tile(member, item) for item in range(self.rounds.num_items)]


def stream_walk(
    name: str, form: str, num_members: int, layer: Layer, streamed: Streamed
) -> Walk:  # fmt: skip
    """Return the walk of one layer under a form of the registry."""
    rounds = enumerate_rounds(streams[form], num_members)
    sides = _Sides(streamed, rounds, layer)
    recorder = Recorder(num_members, sides.tensors())
    members = range(num_members)
    for member in members:
        recorder.make(member, sides.stays, (member,))
        recorder.make(member, sides.travels, _own(rounds, member))
    recorder.frame(
        "forward",
        "at rest",
        f"Both tensors are split: each device has one part of {sides.stays} and one of "
        f"{sides.travels}. Nothing is held twice.",
    )
    _forward(recorder, sides)
    forward_sent = max(recorder.sent)
    _backward(recorder, sides)
    whole = recorder.tensors[sides.travels].num_bytes
    kind = "tensor stream"
    dims = "in x out" if streamed is Streamed.WEIGHTS else "tokens x in"
    backward_sent = max(recorder.sent) - forward_sent
    place = loop_of if rounds.is_cycle else row_of
    return Walk(
        name=name,
        variant=form,
        title=f"{TITLES.get(name, name)}: Y = X W on {num_members} devices in "
        + ("a cycle" if rounds.is_cycle else "a line"),
        asked=f"{layer.name}: {sides.travels} travels (form: {form}), {sides.stays} stays",
        members=place([f"device {member}" for member in members]),
        num_devices=num_members,
        tensors=tuple(recorder.tensors.values()),
        frames=tuple(recorder.frames),
        exchanges=(
            Exchange(kind, sides.travels, "forward", "Y = X W", dims, "", whole, forward_sent),
            Exchange(
                kind,
                f"{sides.travels}, d{sides.travels}",
                "backward",
                "dX = dY Wᵀ, dW = Xᵀ dY",
                dims,
                "",
                2 * whole,
                backward_sent,
            ),
        ),
        alone_bytes=0.0 if num_members == 1 else _alone_bytes(layer),
        notes=tuple(_notes(sides)),
    )


def _notes(sides: _Sides) -> Iterator[str]:
    """Yield the assumptions of the picture, and the tensor that is cheaper to stream."""
    layer, rounds = sides.layer, sides.rounds
    cheaper = "W" if layer.cheaper is Streamed.WEIGHTS else "X"
    yield (
        f"X has {format_bytes(layer.input_bytes)}, W {format_bytes(layer.weight_bytes)}: "
        f"streaming {cheaper} sends less."
    )
    yield "Each direction of a link carries one message a round, backward one and a sum."
    yield "Numbers of two bytes, gradients too; no optimizer state."
    if layer.num_tokens % rounds.num_items or layer.out_size % rounds.num_items:
        yield f"Parts count as equal, though {rounds.num_items} do not divide the layer evenly."


def _alone_bytes(layer: Layer) -> float:
    return stream_walk("", "hold", 1, layer, Streamed.WEIGHTS).most_held_bytes


def _own(rounds: StreamRounds, member: int) -> range:
    """Return the items that a member owns."""
    return range(member * rounds.num_parts, (member + 1) * rounds.num_parts)


def _by_round(sends: Iterable[Send]) -> Mapping[int, list[Send]]:
    found: defaultdict[int, list[Send]] = defaultdict(list)
    for send in sends:
        found[send.round].append(send)
    return found


def num_hops(rounds: StreamRounds, send: Send) -> int:
    """Return the links between neighbours that a send crosses."""
    apart = abs(send.source - send.destination)
    return 1 if rounds.is_cycle and apart == rounds.num_members - 1 else apart


def _send_items(recorder: Recorder, sides: _Sides, turn: int) -> None:
    """Record the sends of a round, and drop the copies that are not needed after it."""
    rounds = sides.rounds
    for send in _by_round(rounds.sends)[turn]:
        recorder.send(
            send.source, send.destination, sides.travels, (send.item,),
            num_hops=num_hops(rounds, send),
        )  # fmt: skip
    reads: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    writes: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for send in rounds.sends:
        reads[send.source, send.item].add(send.round)
        writes[send.destination, send.item].add(send.round)
    for number, used in enumerate(rounds.uses):
        for member, items in enumerate(used):
            for item in items:
                reads[member, item].add(number)
    for member in range(rounds.num_members):
        for item in range(rounds.num_items):
            at = member, item
            if rounds.home(item) != member and not is_alive(
                turn, reads[at], writes[at], at_end=False
            ):
                recorder.drop(member, sides.travels, (item,))


def _forward(recorder: Recorder, sides: _Sides) -> None:
    rounds = sides.rounds
    last = len(rounds.uses) - 1
    for turn, used in enumerate(rounds.uses):
        computes = []
        for member, items in enumerate(used):
            recorder.make(member, "Y", [sides.tile(member, item) for item in items])
            computes.append(_joined(sides.product(member, item) for item in items))
        _send_items(recorder, sides, turn)
        caption = f"Each device multiplies its part of {sides.stays} by one of {sides.travels}"
        caption += (
            f", while the next one arrives{_way(rounds, turn)}."
            if turn < last
            else ". Nothing has to arrive any more: each device has a part of Y of its own."
        )
        recorder.frame("forward", f"round {turn + 1} of {last + 1}", caption, computes)


def _joined(terms: Iterable[str]) -> str:
    return " + ".join(terms)


def _way(rounds: StreamRounds, turn: int) -> str:
    """Return the distance of the messages of a round in words, with its unit of links."""
    farthest = max((num_hops(rounds, s) for s in rounds.sends if s.round == turn), default=0)
    return " from a neighbour" if farthest <= 1 else f", the farthest over {farthest} links"


def _backward(recorder: Recorder, sides: _Sides) -> None:
    """Record the backward pass: the tensor streams again, and sums of its gradient go home.

    Sums run on the reversal of the rounds: in the reversed round in which a member used an item it
    adds its own term.
    """
    rounds, stays, travels = sides.rounds, sides.stays, sides.travels
    members = range(rounds.num_members)
    for member in members:
        recorder.make(member, "dY", sides.tiles(member))
        recorder.forget(member, "Y")
    recorder.frame(
        "backward",
        "the gradient of Y is there",
        "Each device has the gradient of its own part of Y, and Y itself has gone on.",
    )
    back = reverse(rounds)
    returning = _by_round(back.sends)
    last = len(rounds.uses) - 1
    for turn, used in enumerate(rounds.uses):
        computes = []
        for member, items in enumerate(used):
            made = back.uses[turn][member]
            recorder.make(member, f"d{stays}", (member,))
            recorder.make(member, f"d{travels}", made, is_term=True)
            computes.append(
                f"d{stays}{member} += {_joined(sides.gradient(travels, item) for item in items)}; "
                f"d{travels}{','.join(map(str, made))} += {sides.gradient(stays, member)}"
            )
        _send_items(recorder, sides, turn)
        for send in returning[turn]:
            recorder.send(
                send.source, send.destination, f"d{travels}", (send.item,), adds=True,
                moves=True, num_hops=num_hops(rounds, send),
            )  # fmt: skip
        if turn == last:
            for member in members:
                recorder.drop(member, "dY", sides.tiles(member))
        recorder.frame(
            "backward",
            f"round {turn + 1} of {last + 1}",
            f"{travels} streams again for d{stays}. Sums of d{travels} run the forward pass "
            "backwards: each device adds its term and passes the sum on, until it is home."
            if turn < last
            else f"Each device has the whole gradient of its own part of {travels}.",
            computes,
        )
