"""The program of one rank while it is being written: numbers, groups, tags, and what waits."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.frameworks.chakra.groups import RankMesh
from meshwright.frameworks.chakra.program import Collective, Compute, Message, Node
from meshwright.frameworks.chakra.steps import Exchange, Work


class Whole:
    """Whole numbers whose sum is that of the numbers asked for, to within one half."""

    def __init__(self) -> None:
        self._exact, self._given = 0.0, 0

    def __call__(self, value: float) -> int:
        """Return the next whole number."""
        self._exact += value
        number = round(self._exact) - self._given
        self._given += number
        return number


class Recorder:
    """Writes down the nodes of one rank in the order of its program.

    Computation runs in this order. What is exchanged waits for the computation before it, and the
    computation behind it waits for that; the collectives of one group keep their order. What was
    there early may run as far ahead as one piece of the model.
    """

    def __init__(self, rank: int, mesh: RankMesh) -> None:
        self.rank, self.mesh = rank, mesh
        self.nodes: list[Node] = []
        self.next_tag = 1
        """Of the messages of streams: members of a group count all of them alike."""
        self._last: list[int] = []
        """The last computation."""
        self._piece_began: list[int] = []
        """The last computation before this piece of the model, and before the one before it."""
        self._ahead: list[int] = []
        self._pending: list[int] = []
        """What the next computation waits for."""
        self._last_of_group: dict[int, int] = {}
        self.arrived: list[int] = []
        """Gradients of streams that came home in this piece."""
        self._ops, self._bytes, self._us = Whole(), Whole(), Whole()

    def begin_piece(self) -> None:
        """State that the next piece of the model begins."""
        self._ahead, self._piece_began = self._piece_began, self._last
        self.arrived = []

    def compute(self, name: str, work: Work, share: float = 1.0, after: Iterable[int] = ()) -> int:
        """Write down a share of some work, and return its number."""
        needs = unique(self._last, self._pending, after)
        node = Compute(
            len(self.nodes) + 1, name, self._ops(work.flops * share),
            self._bytes(work.traffic_bytes * share), self._us(1e6 * work.seconds * share), needs,
        )  # fmt: skip
        self.nodes.append(node)
        self._last, self._pending = [node.number], []
        return node.number

    def exchange(self, name: str, step: Exchange, *, holds_up: bool = True) -> None:
        """Write down a collective of a group; computation goes on beside it or is held up."""
        group, members = self.mesh.group_of(self.rank, step.axis, dict(step.sizes))
        if len(members) == 1:
            return
        before = self._ahead if step.is_early else self.waiting()
        ready = [] if holds_up else self.arrived
        order = [self._last_of_group[group]] if group in self._last_of_group else []
        node = Collective(
            len(self.nodes) + 1, name, step.kind, round(step.num_bytes),
            len(members), group, unique(before, ready, order),
        )  # fmt: skip
        self.nodes.append(node)
        self._last_of_group[group] = node.number
        if holds_up:
            self._pending.append(node.number)

    def send(self, name: str, destination: int, num_bytes: float, tag: int) -> None:
        """Write down a message that leaves when all before it is done."""
        self.message(name, (self.rank, destination), num_bytes, tag, unique(self.waiting()))

    def receive(self, name: str, source: int, num_bytes: float, tag: int) -> None:
        """Write down a message that the next computation waits for."""
        self._pending.append(self.message(name, (source, self.rank), num_bytes, tag, ()))

    def finish(self, work: Work, after: Iterable[int]) -> None:
        """Write down the last computation, which waits for all collectives as well."""
        self.compute(work.name, work, after=[*self._last_of_group.values(), *after])

    def message(
        self, name: str, ends: tuple[int, int], num_bytes: float, tag: int, needs: tuple[int, ...]
    ) -> int:
        """Write down one end of a message from the first rank to the second."""
        source, destination = ends
        number, is_send = len(self.nodes) + 1, source == self.rank
        node = Message(number, name, source, destination, round(num_bytes), tag, is_send, needs)
        self.nodes.append(node)
        return number

    def waiting(self) -> list[int]:
        """Return what whatever comes next waits for."""
        return [*self._last, *self._pending]


def unique(*needs: Iterable[int]) -> tuple[int, ...]:
    """Return numbers in ascending order, each once."""
    return tuple(sorted(set().union(*needs)))
