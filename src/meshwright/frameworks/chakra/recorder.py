"""The program of one rank while it is being written, and tensor streams in it.

A stream is written round by round: its messages, and the share of the work of each round. An item
is sent on one round after its arrival, and not before the computation of the round before has
ended. Accumulators take the reversed route: each leaves with the partials that were added to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from meshwright.frameworks.chakra.groups import RankMesh
from meshwright.frameworks.chakra.steps import RankExchange, RankWork, Stream
from meshwright.frameworks.chakra.wire import Collective, Compute, Node, TraceMessage
from meshwright.streams.forms import Send, StreamRounds, reverse


class CumulativeRounding:
    """Rounds numbers with a sum within one half of that of the exact ones."""

    def __init__(self) -> None:
        self._exact, self._given = 0.0, 0

    def __call__(self, value: float) -> int:
        """Return the next whole number."""
        self._exact += value
        number = round(self._exact) - self._given
        self._given += number
        return number


class TraceRecorder:
    """Writes down the nodes of one rank in the order of its program.

    Computation runs in this order. An exchange waits for the computation before it, and the
    computation behind it waits for the exchange; the collectives of one group keep their order.
    Exchanges of early tensors may run ahead by one piece of the model.
    """

    def __init__(self, rank: int, mesh: RankMesh) -> None:
        self.rank, self.mesh = rank, mesh
        self.nodes: list[Node] = []
        self.next_tag = 1
        """Next tag of a message of a stream; all members of a group count the same messages."""
        self._last: list[int] = []
        """The last computation."""
        self._piece_began: list[int] = []
        """Last computations before this piece of the model and before the previous piece."""
        self._ahead: list[int] = []
        self._pending: list[int] = []
        """Numbers of the exchanges that the next computation waits for."""
        self._last_of_group: dict[int, int] = {}
        self._groups: dict[tuple[object, ...], tuple[int, tuple[int, ...]]] = {}
        """Groups of the rank, by axis and the sizes that they depend on."""
        self.arrived: list[int] = []
        """Gradients of streams that are complete on their owner in this piece."""
        self._ops, self._bytes, self._us = (
            CumulativeRounding(),
            CumulativeRounding(),
            CumulativeRounding(),
        )

    def begin_piece(self) -> None:
        """Begin the next piece of the model."""
        self._ahead, self._piece_began = self._piece_began, self._last
        self.arrived = []

    def compute(
        self, name: str, work: RankWork, share: float = 1.0, after: Iterable[int] = ()
    ) -> int:
        """Write down a share of some work, and return its number."""
        needs = self.needs(self._last, self._pending, after)
        node = Compute(
            len(self.nodes) + 1, name, self._ops(work.flops * share),
            self._bytes(work.traffic_bytes * share), self._us(1e6 * work.seconds * share), needs,
        )  # fmt: skip
        self.nodes.append(node)
        self._last, self._pending = [node.number], []
        return node.number

    def exchange(self, name: str, step: RankExchange, *, holds_up: bool = True) -> None:
        """Write down a collective of a group; computation overlaps it or waits for it."""
        place = (step.axis, step.sizes)
        if place not in self._groups:
            self._groups[place] = self.mesh.group_of(self.rank, step.axis, dict(step.sizes))
        group, members = self._groups[place]
        if len(members) == 1:
            return
        before = self._ahead if step.is_early else self.waiting()
        ready = [] if holds_up else self.arrived
        order = [self._last_of_group[group]] if group in self._last_of_group else []
        node = Collective(
            len(self.nodes) + 1, name, step.kind, round(step.num_bytes),
            len(members), group, self.needs(before, ready, order),
        )  # fmt: skip
        self.nodes.append(node)
        self._last_of_group[group] = node.number
        if holds_up:
            self._pending.append(node.number)

    def send(self, name: str, destination: int, num_bytes: float, tag: int) -> None:
        """Write down a message that leaves when all nodes before it are done."""
        self.message(name, (self.rank, destination), num_bytes, tag, self.needs(self.waiting()))

    def receive(self, name: str, source: int, num_bytes: float, tag: int) -> None:
        """Write down a message that the next computation waits for."""
        self._pending.append(self.message(name, (source, self.rank), num_bytes, tag, ()))

    def finish(self, work: RankWork, after: Iterable[int]) -> None:
        """Write down the last computation, which waits for all collectives as well."""
        self.compute(work.name, work, after=[*self._last_of_group.values(), *after])

    def message(
        self, name: str, ends: tuple[int, int], num_bytes: float, tag: int, needs: tuple[int, ...]
    ) -> int:
        """Write down one end of a message from the first rank to the second."""
        source, destination = ends
        number, is_send = len(self.nodes) + 1, source == self.rank
        node = TraceMessage(
            number, name, source, destination, round(num_bytes), tag, is_send, needs
        )
        self.nodes.append(node)
        return number

    def waiting(self) -> list[int]:
        """Return the numbers of the nodes that the next exchange waits for."""
        return [*self._last, *self._pending]

    def needs(self, *needs: Iterable[int]) -> tuple[int, ...]:
        """Return numbers in ascending order, each once, without those that another one needs."""
        found = set().union(*needs)
        implied = [before for need in found for before in self.nodes[need - 1].needs]
        return tuple(sorted(found.difference(implied)))


@dataclass(frozen=True)
class StreamPass:
    """One pass of a stream, with the sends of each member and round."""

    rounds: StreamRounds

    @cached_property
    def sends(self) -> dict[tuple[int, int], list[tuple[int, Send]]]:
        """Sends that a member makes or receives in a round, with their numbers in the pass."""
        found: dict[tuple[int, int], list[tuple[int, Send]]] = {}
        for number, send in enumerate(self.rounds.sends):
            for member in (send.source, send.destination):
                found.setdefault((send.round, member), []).append((number, send))
        return found


class Form:
    """A form of the stream on a group: the pass of the items, and that of the accumulators."""

    def __init__(self, rounds: StreamRounds) -> None:
        self.items, self.accumulators = StreamPass(rounds), StreamPass(reverse(rounds))
        self.num_rounds = len(rounds.uses)
        self.num_parts = rounds.num_parts


@dataclass
class _Transit:
    """Items of one pass of a stream at one member, as numbers of the nodes that they wait for."""

    stream_pass: StreamPass
    member: int
    num_bytes: float
    """Size of one item [bytes]."""
    adds_up: bool
    first_tag: int
    held: dict[int, list[int]] = field(default_factory=dict)
    _arriving: list[tuple[int, int]] = field(default_factory=list)

    def exchange(
        self, round_index: int, name: str, group: list[int], recorder: TraceRecorder
    ) -> None:
        """Write down the messages of a round."""
        began = recorder.waiting()
        for number, send in self.stream_pass.sends.get((round_index, self.member), []):
            ends, tag = (group[send.source], group[send.destination]), self.first_tag + number
            if send.source == self.member:
                needs = recorder.needs(began, self.held.get(send.item, ()))
                recorder.message(name, ends, self.num_bytes, tag, needs)
                if self.adds_up:
                    self.held[send.item] = []
            else:
                received = recorder.message(name, ends, self.num_bytes, tag, ())
                self._arriving.append((send.item, received))

    def uses(self, round_index: int) -> tuple[int, ...]:
        """Return the items that the member multiplies in a round."""
        return self.stream_pass.rounds.uses[round_index][self.member]

    def end_round(self, round_index: int, computed: int | None) -> None:
        """Take in the items that have arrived, and the partials that were computed."""
        for item, received in self._arriving:
            before = self.held.get(item, []) if self.adds_up else []
            self.held[item] = [*before, received]
        self._arriving = []
        if self.adds_up and computed is not None:
            for item in self.uses(round_index):
                self.held.setdefault(item, []).append(computed)

    def own_accumulators(self) -> list[int]:
        """Return the numbers of the nodes that complete the member's own accumulators."""
        rounds = self.stream_pass.rounds
        own = [item for item in range(rounds.num_items) if rounds.home(item) == self.member]
        return [number for item in own for number in self.held.get(item, [])]


def write_stream(recorder: TraceRecorder, form: Form, name: str, step: Stream) -> list[int]:
    """Write down an operator round by round; return the nodes that complete its own gradients.

    Where weights and gradients are both streamed, a round computes with the item of the round and
    adds to the accumulator of the reversed round: each is half of the work.
    """
    group = recorder.mesh.along(recorder.rank, "tatp")
    member = group.index(recorder.rank)
    transits = []
    for stream_pass, sub_tensor_bytes, adds_up in (
        (form.items, step.item_bytes, False),
        (form.accumulators, step.accumulator_bytes, True),
    ):
        if sub_tensor_bytes:
            size = sub_tensor_bytes / form.num_parts
            transits.append(_Transit(stream_pass, member, size, adds_up, recorder.next_tag))
            recorder.next_tag += len(stream_pass.rounds.sends)
    for round_index in range(form.num_rounds):
        _write_round(recorder, transits, round_index, f"{name} round {round_index}", group, step)
    return [
        number for transit in transits if transit.adds_up for number in transit.own_accumulators()
    ]


def _write_round(
    recorder: TraceRecorder,
    transits: list[_Transit],
    round_index: int,
    name: str,
    group: list[int],
    step: Stream,
) -> None:
    """Write down the messages of a round, and the share of the work that its items are."""
    for transit in transits:
        transit.exchange(round_index, name, group, recorder)
    used = sum(len(transit.uses(round_index)) for transit in transits)
    items = sum(transit.stream_pass.rounds.num_items for transit in transits)
    computed = None
    if used:
        after = [
            number
            for transit in transits
            if not transit.adds_up
            for item in transit.uses(round_index)
            for number in transit.held.get(item, [])
        ]
        computed = recorder.compute(name, step.work, used / items, after)
    for transit in transits:
        transit.end_round(round_index, computed)
