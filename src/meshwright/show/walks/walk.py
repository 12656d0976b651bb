"""Walks as data: members, tensors cut into parts, and frames; and the recorder of a walk.

A walk is never drawn by hand. A recorder is told the parts that members make, send and drop, keeps
the parts that each holds, and refuses impossible steps: to send a part that is not there, to add a
term twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

WORD_BYTES = 2.0
"""Size of a number of a layer, as in BF16 [bytes]."""
Role = Literal["weight", "activation", "gradient", "data"]


@dataclass(frozen=True)
class Member:
    """A device, or the switch that adds, and its place in the picture."""

    name: str
    column: int
    row: int


@dataclass(frozen=True)
class WalkTensor:
    """A tensor, cut into a grid of equal parts, numbered row by row."""

    name: str
    """Its symbol, such as ``Wq``."""
    about: str
    role: Role
    rows: int
    columns: int
    part_bytes: float

    @property
    def num_parts(self) -> int:
        """Parts of the whole tensor."""
        return self.rows * self.columns

    @property
    def num_bytes(self) -> float:
        """Bytes of the whole tensor."""
        return self.num_parts * self.part_bytes


@dataclass(frozen=True)
class Held:
    """Parts of one tensor that a member holds."""

    tensor: str
    parts: tuple[int, ...]
    terms_of: tuple[int, ...] = ()
    """Members with terms in these sums so far; empty: no sums."""


@dataclass(frozen=True)
class Message:
    """Parts that one member sends to another during a frame."""

    source: int
    destination: int
    tensor: str
    parts: tuple[int, ...]
    num_bytes: float
    adds: bool = False
    """Whether the receiver adds it to its own part."""
    num_hops: int = 1
    """Links between neighbours that it crosses."""


@dataclass(frozen=True)
class Frame:
    """One event on all members at once, and the parts held after it."""

    phase: str
    title: str
    caption: str
    """Description of the frame in plain words."""
    computes: tuple[str, ...]
    """Products that each member computes, in words; empty: none."""
    messages: tuple[Message, ...]
    held: tuple[tuple[Held, ...], ...]
    """Parts that each member holds after the frame."""
    held_bytes: tuple[float, ...]
    """Peak of each member during the frame, with arriving parts [bytes]."""
    sent_bytes: tuple[float, ...]
    """Total sent by each member up to the end of the frame [bytes]."""


@dataclass(frozen=True)
class Exchange:
    """One collective or stream of a walk, for the table."""

    kind: str
    tensor: str
    phase: str
    where: str
    """Operator that needs it."""
    dims: str
    """Dims of the full tensor: ``tokens x hidden``."""
    change: str
    """Layout before and after, where each is one layout: ``split by tokens to whole``."""
    num_bytes: float
    """Size of the full tensor on one rank, as :class:`CollectiveKind` counts [bytes]."""
    sent_bytes: float
    """Bytes sent by the member that sends most."""
    is_walked: bool = True
    """Whether it has frames; False: it runs once a step."""


@dataclass(frozen=True)
class Walk:
    """A whole walk."""

    name: str
    variant: str
    """Form or algorithm, which differs between walks that answer the same question."""
    title: str
    asked: str
    """Subject of the walk, in a line."""
    members: tuple[Member, ...]
    num_devices: int
    """Members that hold and compute; a switch comes after them."""
    tensors: tuple[WalkTensor, ...]
    frames: tuple[Frame, ...]
    exchanges: tuple[Exchange, ...]
    alone_bytes: float
    """The most that one device alone holds, with nothing split [bytes]."""
    notes: tuple[str, ...] = ()

    DERIVED: ClassVar[Mapping[str, str]] = {"most_held_bytes": "most_held_bytes"}

    @property
    def most_held_bytes(self) -> float:
        """The most that any member holds during any frame [bytes]."""
        return max(max(frame.held_bytes[: self.num_devices]) for frame in self.frames)

    @property
    def num_steps(self) -> int:
        """Frames in which anything is sent."""
        return sum(bool(frame.messages) for frame in self.frames)

    @property
    def num_hops(self) -> int:
        """Links of the longest message."""
        return max((m.num_hops for frame in self.frames for m in frame.messages), default=0)

    @property
    def sent_bytes(self) -> float:
        """Bytes sent by the member that sends most."""
        return max(self.frames[-1].sent_bytes[: self.num_devices])

    def kept_bytes(self, phase: str) -> float:
        """Return the most that a member still holds at the end of a phase [bytes]."""
        last = [frame for frame in self.frames if frame.phase == phase][-1]
        part_bytes = {tensor.name: tensor.part_bytes for tensor in self.tensors}
        return max(
            sum(part_bytes[group.tensor] * len(group.parts) for group in held)
            for held in last.held[: self.num_devices]
        )

    def tensor(self, name: str) -> WalkTensor:
        """Return a tensor by its name."""
        return next(tensor for tensor in self.tensors if tensor.name == name)


Terms = frozenset[int]
NO_SUM: Terms = frozenset()


class Recorder:
    """Keeps the parts that members hold while a walk is recorded, frame by frame."""

    def __init__(self, num_members: int, tensors: Iterable[WalkTensor] = ()) -> None:
        self.num_members = num_members
        self.tensors = {tensor.name: tensor for tensor in tensors}
        self.frames: list[Frame] = []
        self.sent = [0.0] * num_members
        self._held: list[dict[tuple[str, int], Terms]] = [{} for _ in range(num_members)]
        self._made: list[tuple[int, str, Collection[int], Terms]] = []
        self._messages: list[Message] = []
        self._moved: set[tuple[int, str, int]] = set()
        self._dropped: set[tuple[int, str, int]] = set()

    def parts_of(self, member: int, tensor: str) -> tuple[int, ...]:
        """Return the parts of a tensor that a member holds."""
        return tuple(sorted(part for name, part in self._held[member] if name == tensor))

    def make(
        self, member: int, tensor: str, parts: Collection[int], *, is_term: bool = False
    ) -> None:
        """Let a member make parts in this frame; terms are added to the part there."""
        self._made.append((member, tensor, parts, frozenset({member}) if is_term else NO_SUM))

    def send(
        self, source: int, destination: int, tensor: str, parts: Collection[int], *,
        adds: bool = False, moves: bool = False, num_hops: int = 1,
    ) -> None:  # fmt: skip
        """Let a member send parts in this frame, as they were before it.

        Parameters
        ----------
        moves
            Whether the sender no longer holds them.
        """
        num_bytes = len(parts) * self.tensors[tensor].part_bytes
        self._messages.append(
            Message(source, destination, tensor, tuple(sorted(parts)), num_bytes, adds, num_hops)
        )
        if moves:
            self._moved |= {(source, tensor, part) for part in parts}

    def forget(self, member: int, tensor: str) -> None:
        """Let a member drop a tensor before this frame."""
        for part in self.parts_of(member, tensor):
            del self._held[member][tensor, part]

    def drop(self, member: int, tensor: str, parts: Iterable[int]) -> None:
        """Let a member drop parts at the end of this frame."""
        self._dropped |= {(member, tensor, part) for part in parts}

    def frame(
        self, phase: str, title: str, caption: str, computes: Sequence[str] | None = None
    ) -> None:
        """Write down the parts made, sent and dropped since the last frame."""
        arriving = [
            (message, part, self._held[message.source][message.tensor, part])
            for message in self._messages
            for part in message.parts
        ]
        during = [set(held) for held in self._held]
        for member, tensor, part in self._moved:
            del self._held[member][tensor, part]
        for member, tensor, parts, terms in self._made:
            for part in parts:
                self._make(member, (tensor, part), terms)
        for message, part, terms in arriving:
            self._arrive(message, part, terms)
        for held, seen in zip(self._held, during, strict=True):
            seen.update(held)
        for member, tensor, part in self._dropped:
            self._held[member].pop((tensor, part), None)
        for message in self._messages:
            self.sent[message.source] += message.num_bytes
        nothing = ("",) * self.num_members
        self.frames.append(
            Frame(
                phase,
                title,
                caption,
                nothing if computes is None else tuple(computes),
                tuple(self._messages),
                tuple(map(self._listed, self._held)),
                tuple(map(self._bytes, during)),
                tuple(self.sent),
            )
        )
        self._made, self._messages, self._moved, self._dropped = [], [], set(), set()

    def _make(self, member: int, at: tuple[str, int], terms: Terms) -> None:
        """Let a member make a part, or add to the part there: its own numbers, or other terms."""
        there = self._held[member].get(at)
        if there is not None:
            is_added_before = bool(terms) and terms < there
            if bool(there) != bool(terms) or is_added_before:
                raise ValueError(
                    f"member {member} adds to {at[0]}[{at[1]}], which is something else"
                )
            terms = there | terms
        self._held[member][at] = terms

    def _arrive(self, message: Message, part: int, terms: Terms) -> None:
        """Let a part replace that of the receiver, or add its terms to the terms there."""
        held, at = self._held[message.destination], (message.tensor, part)
        there = held.get(at) if message.adds else None
        if there is not None:
            if there & terms or not there:
                raise ValueError(f"member {message.destination} adds {at[0]}[{part}] twice")
            terms = there | terms
        held[at] = terms

    def _listed(self, held: Mapping[tuple[str, int], Terms]) -> tuple[Held, ...]:
        grouped: defaultdict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
        for (tensor, part), terms in held.items():
            grouped[tensor, tuple(sorted(terms))].append(part)
        order = {name: number for number, name in enumerate(self.tensors)}
        keys = sorted(grouped, key=lambda key: (order[key[0]], key[1]))
        return tuple(Held(name, tuple(sorted(grouped[name, of])), of) for name, of in keys)

    def _bytes(self, held: Iterable[tuple[str, int]]) -> float:
        counts = Counter(tensor for tensor, _ in held)
        return sum(self.tensors[name].part_bytes * count for name, count in counts.items())


def is_alive(after: int, reads: Collection[int], writes: Collection[int], *, at_end: bool) -> bool:
    """Return whether a part held after a step is read again, or needed at the end.

    Parameters
    ----------
    reads, writes
        Steps that read it, and steps that replace it at their end.
    """
    next_read = min((step for step in reads if step > after), default=None)
    next_write = min((step for step in writes if step > after), default=None)
    if next_read is None:
        return at_end and next_write is None
    return next_write is None or next_read <= next_write


def row_of(names: Sequence[str]) -> tuple[Member, ...]:
    """Return members side by side."""
    return tuple(Member(name, column, 0) for column, name in enumerate(names))


def loop_of(names: Sequence[str]) -> tuple[Member, ...]:
    """Return members round a loop of two rows, so that neighbours of a ring stand together."""
    half = (len(names) + 1) // 2
    if len(names) < 4:
        return row_of(names)
    return tuple(
        Member(name, number, 0) if number < half else Member(name, len(names) - 1 - number, 1)
        for number, name in enumerate(names)
    )
