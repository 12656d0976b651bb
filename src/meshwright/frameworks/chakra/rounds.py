"""A tensor stream in the program of one rank: the messages and the share of work of each round.

An item goes on one round after its arrival, and not before the computation of the round before
has ended. Accumulators take the reversed way: each leaves with the partials that were added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from meshwright.frameworks.chakra.recorder import Recorder, unique
from meshwright.frameworks.chakra.steps import Stream
from meshwright.streams.registry import Send, StreamRounds, reverse


@dataclass(frozen=True)
class StreamedPiece:
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
    """A form of the stream on a group: the way of the items, and that of the accumulators."""

    def __init__(self, rounds: StreamRounds) -> None:
        self.items, self.accumulators = StreamedPiece(rounds), StreamedPiece(reverse(rounds))
        self.num_rounds = len(rounds.uses)
        self.num_parts = rounds.num_parts


@dataclass
class _Travel:
    """What one member holds of what travels one way, as numbers of nodes by item."""

    way: StreamedPiece
    member: int
    num_bytes: float
    """Of one item [bytes]."""
    adds_up: bool
    first_tag: int
    held: dict[int, list[int]] = field(default_factory=dict)
    _arriving: list[tuple[int, int]] = field(default_factory=list)

    def exchange(self, turn: int, name: str, line: list[int], recorder: Recorder) -> None:
        """Write down the messages of a round."""
        began = recorder.waiting()
        for number, send in self.way.sends.get((turn, self.member), []):
            ends, tag = (line[send.source], line[send.destination]), self.first_tag + number
            if send.source == self.member:
                needs = unique(began, self.held.get(send.item, ()))
                recorder.message(name, ends, self.num_bytes, tag, needs)
                if self.adds_up:
                    self.held[send.item] = []
            else:
                received = recorder.message(name, ends, self.num_bytes, tag, ())
                self._arriving.append((send.item, received))

    def uses(self, turn: int) -> tuple[int, ...]:
        """Return the items that the member multiplies in a round."""
        return self.way.rounds.uses[turn][self.member]

    def end_round(self, turn: int, computed: int | None) -> None:
        """Take in what has arrived, and the partials that were computed."""
        for item, received in self._arriving:
            before = self.held.get(item, []) if self.adds_up else []
            self.held[item] = [*before, received]
        self._arriving = []
        if self.adds_up and computed is not None:
            for item in self.uses(turn):
                self.held.setdefault(item, []).append(computed)

    def at_home(self) -> list[int]:
        """Return what completes the accumulators of the member itself."""
        rounds = self.way.rounds
        own = [item for item in range(rounds.num_items) if rounds.home(item) == self.member]
        return [number for item in own for number in self.held.get(item, [])]


def write_stream(recorder: Recorder, form: Form, name: str, step: Stream) -> list[int]:
    """Write down an operator round by round, and return what completes the gradients it owns.

    Where both travel, a round computes with the item of the round and adds to the accumulator of
    the reversed round: each is half of the work.
    """
    line = recorder.mesh.along(recorder.rank, "tatp")
    member = line.index(recorder.rank)
    travels = []
    for way, sub_tensor_bytes, adds_up in (
        (form.items, step.item_bytes, False),
        (form.accumulators, step.accumulator_bytes, True),
    ):
        if sub_tensor_bytes:
            size = sub_tensor_bytes / form.num_parts
            travels.append(_Travel(way, member, size, adds_up, recorder.next_tag))
            recorder.next_tag += len(way.rounds.sends)
    for turn in range(form.num_rounds):
        _write_round(recorder, travels, turn, f"{name} round {turn}", line, step)
    return [number for travel in travels if travel.adds_up for number in travel.at_home()]


def _write_round(
    recorder: Recorder, travels: list[_Travel], turn: int, name: str, line: list[int], step: Stream
) -> None:
    """Write down the messages of a round, and the share of the work that its items are."""
    for travel in travels:
        travel.exchange(turn, name, line, recorder)
    used = sum(len(travel.uses(turn)) for travel in travels)
    items = sum(travel.way.rounds.num_items for travel in travels)
    computed = None
    if used:
        after = [
            number
            for travel in travels
            if not travel.adds_up
            for item in travel.uses(turn)
            for number in travel.held.get(item, [])
        ]
        computed = recorder.compute(name, step.work, used / items, after)
    for travel in travels:
        travel.end_round(turn, computed)
