"""Walks of collectives: the messages of an algorithm of the registry, step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt, prod

from meshwright.base.errors import Fault, SpecError
from meshwright.base.units import format_bytes
from meshwright.collectives.group import Group, Span, coordinates_of, group_size, shape_of
from meshwright.collectives.registry import Algorithm, Transfer, collective_algorithms
from meshwright.show.walks.walk import (
    Exchange,
    Member,
    Recorder,
    Walk,
    WalkTensor,
    is_alive,
    loop_of,
    row_of,
)
from meshwright.spec.collective import CollectiveKind

REDUCTIONS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
MOST_CELLS = 60_000
"""Most parts times members times frames of a walk that a reader can follow."""


def span(size: int, kind: str) -> Span[float]:
    """Return one level of a group; the messages depend on its kind and size only."""
    return Span(
        float(size), 1.0, 0.0, 0.0, float(kind != "mesh"), kind != "switch", kind == "switch"
    )


def group_of(shape: Sequence[int], kind: str) -> Group[float]:
    """Return a group of one kind of levels, innermost first."""
    return Group(tuple(span(size, kind) for size in shape))


@dataclass(frozen=True)
class Step:
    """The messages that leave together: source, destination, parts, and whether they add."""

    messages: tuple[tuple[int, int, tuple[int, ...], bool], ...]


@dataclass(frozen=True)
class Steps:
    """The messages of a collective in order, on the fewest parts that they need."""

    kind: CollectiveKind
    size: int
    num_parts: int
    """Number of parts of the data; in an all-to-all and in sends, of all members together."""
    steps: tuple[Step, ...]

    def at_start(self, member: int) -> range:
        """Return the parts of a member before the first step; in a reduction all, as terms."""
        own = self.num_parts // self.size
        if self.kind in REDUCTIONS:
            return range(self.num_parts)
        if self.kind is CollectiveKind.BROADCAST:
            return range(self.num_parts if member == 0 else 0)
        return range(member * own, (member + 1) * own)

    def at_end(self, member: int) -> frozenset[int]:
        """Return the parts that a member wants."""
        own = self.num_parts // self.size
        if self.kind is CollectiveKind.REDUCE_SCATTER:
            return frozenset(range(member * own, (member + 1) * own))
        if self.kind is CollectiveKind.ALL_TO_ALL:
            each = own // self.size
            first = range(member * each, (member + 1) * each)
            return frozenset(source * own + part for source in range(self.size) for part in first)
        if self.kind is CollectiveKind.SEND:
            last = self.size - 1
            sent = range((member - 1) * own, member * own) if member else range(0)
            return frozenset(sent) | frozenset(self.at_start(member) if member == last else ())
        return frozenset(range(self.num_parts))


def steps_of(algorithm: Algorithm, group: Group[float]) -> Steps:
    """Return the steps of an algorithm on a group."""
    transfers = list(algorithm.transfers(1.0, group))
    size, num_chunks = round(float(group_size(group))), algorithm.num_chunks(group)
    is_per_member = algorithm.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND)
    owned = num_chunks if algorithm.kind is CollectiveKind.BROADCAST else max(num_chunks // size, 1)
    together = _together(transfers, num_chunks * (size if is_per_member else 1), owned)
    by_step: defaultdict[int, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        by_step[transfer.step].append(transfer)
    return Steps(
        algorithm.kind,
        size,
        num_chunks * (size if is_per_member else 1) // together,
        tuple(Step(tuple(_messages(by_step[step], together))) for step in sorted(by_step)),
    )


def _messages(
    transfers: Iterable[Transfer], together: int
) -> Iterator[tuple[int, int, tuple[int, ...], bool]]:
    """Yield the messages of a step; parts that a reduction only forwards are a separate message."""
    for transfer in transfers:
        kept = set(transfer.kept) if transfer.reduces else set(transfer.chunks)
        for chunks, adds in ((set(transfer.chunks) - kept, True), (kept, False)):
            if chunks:
                parts = tuple(sorted({chunk // together for chunk in chunks}))
                yield transfer.source, transfer.destination, parts, adds


def _together(transfers: Sequence[Transfer], num_chunks: int, owned: int) -> int:
    """Return the number of neighbouring chunks of an owner that always travel together."""
    carried: list[list[tuple[int, bool]]] = [[] for _ in range(num_chunks)]
    for number, transfer in enumerate(transfers):
        for chunk in transfer.chunks:
            carried[chunk].append((number, chunk in transfer.kept))
    for together in range(owned, 1, -1):
        if owned % together == 0 and all(
            carried[chunk] == carried[chunk - chunk % together] for chunk in range(num_chunks)
        ):
            return together
    return 1


Uses = Mapping[tuple[int, int], set[int]]


def reads_and_writes(steps: Steps) -> tuple[Uses, Uses]:
    """Return by (member, part) the steps that read it, and those that replace it at their end."""
    reads: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    writes: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for number, step in enumerate(steps.steps):
        for source, destination, parts, adds in step.messages:
            for part in parts:
                reads[source, part].add(number)
                (reads if adds else writes)[destination, part].add(number)
    return reads, writes


def play(recorder: Recorder, steps: Steps, tensor: str, phase: str, captions: Captions) -> None:
    """Record the steps on a tensor, with its parts at the start on their members."""
    reads, writes = reads_and_writes(steps)
    wanted = [steps.at_end(member) for member in range(steps.size)]
    nodes = range(recorder.num_members)
    for number, step in enumerate(steps.steps):
        arrived = {(m, part) for m in nodes for part in recorder.parts_of(m, tensor)}
        for source, destination, parts, adds in step.messages:
            recorder.send(source, destination, tensor, parts, adds=adds)
            arrived |= {(destination, part) for part in parts}
        for member, part in arrived:
            at = member, part
            at_end = member < steps.size and part in wanted[member]
            if not is_alive(number, reads.get(at, ()), writes.get(at, ()), at_end=at_end):
                recorder.drop(member, tensor, (part,))
        title = f"step {number + 1} of {len(steps.steps)}"
        what = f"{captions.title}, " if captions.title else ""
        recorder.frame(phase, f"{what}{title}", captions.of(step))


@dataclass(frozen=True)
class Captions:
    """Captions of the frames of a collective."""

    kind: CollectiveKind
    tensor: str
    title: str = ""
    why: str = ""
    """Purpose of the collective, written before the events of a step."""

    def of(self, step: Step) -> str:
        """Return the caption of a step."""
        return f"{self.why} {self._happens(step)}".strip()

    def _happens(self, step: Step) -> str:
        adds = {adds for *_, adds in step.messages}
        copied = {
            CollectiveKind.ALL_TO_ALL: f"Parts of {self.tensor} are on their way to the devices "
            "that want them.",
            CollectiveKind.SEND: f"Every device sends its {self.tensor} to the next one.",
            CollectiveKind.BROADCAST: f"Devices that have {self.tensor} pass it on.",
            CollectiveKind.ALL_REDUCE: f"Finished sums of {self.tensor} are passed on, until all "
            "devices have all of them.",
        }.get(
            self.kind,
            f"Devices pass on their parts of {self.tensor}, until all have all of it.",
        )
        added = (
            f"Devices pass on their terms of {self.tensor}; the receiver adds them to its own, so "
            "that sums grow."
        )
        if adds == {True}:
            return added
        return copied if adds == {False} else f"{added} {copied}"


def words_of(kind: CollectiveKind) -> str:
    """Return a kind of collective as it is written: all-gather."""
    return kind.replace("_", "-")


ENDS = {
    CollectiveKind.ALL_REDUCE: "every device has a tensor of its own; all want the sum",
    CollectiveKind.ALL_GATHER: "every device has one part; all want the whole",
    CollectiveKind.REDUCE_SCATTER: "every device has a tensor of its own; each wants one part of "
    "the sum",
    CollectiveKind.ALL_TO_ALL: "every device has one part for each other device",
    CollectiveKind.BROADCAST: "device 0 has the whole; all want it",
    CollectiveKind.SEND: "every device sends a message to the next one",
}
SHAPES = {"switch": "behind switches", "mesh": "on a mesh", "torus": "on a torus"}
"""Kinds of levels, in the order in which they are tried."""
TRIED = ((4,), (4, 2), (2, 2), (3, 3), (4, 3))
"""Shapes to suggest where the given one does not suit."""


def collective_walk(name: str, shape: Sequence[int], num_bytes: float) -> Walk:
    """Return the walk of an algorithm of the registry.

    Parameters
    ----------
    shape
        Members of each level, innermost first; the kind of level is the first that the algorithm
        runs on, of switch, torus and mesh.
    num_bytes
        Size of the data, as :class:`CollectiveKind` counts [bytes].
    """
    algorithm = collective_algorithms[name]
    kind, group = _group_for(name, algorithm, shape)
    steps = steps_of(algorithm, group)
    tensor = _tensor(steps, num_bytes)
    _check_length(name, steps)
    senders = {m for step in steps.steps for a, b, *_ in step.messages for m in (a, b)}
    has_switch = steps.size in senders
    recorder = Recorder(steps.size + has_switch, [tensor])
    for member in range(steps.size):
        recorder.make(member, tensor.name, steps.at_start(member), is_term=steps.kind in REDUCTIONS)
    at_start = ENDS[steps.kind]
    words = words_of(steps.kind)
    recorder.frame(words, "at the start", f"{at_start[0].upper()}{at_start[1:]}.")
    play(recorder, steps, tensor.name, words, Captions(steps.kind, tensor.name))
    exchange = Exchange(
        words, tensor.name, words, name, "", "", num_bytes, max(recorder.sent[: steps.size])
    )
    return Walk(
        name=name,
        variant=name,
        title=f"{spoken(name)}, {sides_text(shape)} devices {SHAPES[kind]}",
        asked=f"{words} of {format_bytes(num_bytes)}: {at_start}",
        members=_places(shape_of(group), kind, has_switch=has_switch),
        num_devices=steps.size,
        tensors=(tensor,),
        frames=tuple(recorder.frames),
        exchanges=(exchange,),
        alone_bytes=num_bytes,
        notes=("Parts that nobody reads again are dropped from the picture.",),
    )


def spoken(name: str) -> str:
    """Return the name of an algorithm in words: ``Two way ring all-gather``."""
    kind = collective_algorithms[name].kind
    return f"{name.removesuffix(kind)}{words_of(kind)}".replace("_", " ").capitalize()


def can_be_followed(name: str, shape: Sequence[int]) -> bool:
    """Return whether an algorithm runs on a group, in few enough parts to be followed."""
    algorithm = collective_algorithms[name]
    kind = runs_on(algorithm, shape)
    return kind is not None and not _is_long(steps_of(algorithm, group_of(shape, kind)))


def sides_text(shape: Sequence[int]) -> str:
    """Return a shape as it is asked for: rows x columns."""
    return "x".join(map(str, reversed(shape)))


def runs_on(algorithm: Algorithm, shape: Sequence[int]) -> str | None:
    """Return the first kind of level on which an algorithm runs, if any."""
    applies = (kind for kind in SHAPES if algorithm.applies(group_of(shape, kind)))
    return next(applies, None)


def _group_for(name: str, algorithm: Algorithm, shape: Sequence[int]) -> tuple[str, Group[float]]:
    kind = runs_on(algorithm, shape)
    if kind is None:
        fits = [sides_text(other) for other in TRIED if runs_on(algorithm, other)]
        message = f"{name} does not run on a group of {sides_text(shape)}"
        raise SpecError(Fault("--group", message, f"another shape, such as {fits[0]}"))
    return kind, group_of(shape, kind)


def _tensor(steps: Steps, num_bytes: float) -> WalkTensor:
    """Return the data, its parts in rows: one row for each owner, or nearly square."""
    is_owned = steps.kind is not CollectiveKind.BROADCAST and steps.num_parts % steps.size == 0
    is_per_member = steps.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND)
    rows = steps.size if is_owned else _nearly_square(steps.num_parts)
    whole = num_bytes * (steps.size if is_per_member else 1)
    return WalkTensor(
        "T", "the tensor", "data", rows, steps.num_parts // rows, whole / steps.num_parts
    )


def _nearly_square(number: int) -> int:
    return next(rows for rows in range(isqrt(number), 0, -1) if number % rows == 0)


def _is_long(steps: Steps) -> bool:
    return steps.num_parts * steps.size * (len(steps.steps) + 1) > MOST_CELLS


def _check_length(name: str, steps: Steps) -> None:
    if _is_long(steps):
        message = f"{steps.num_parts} parts on {steps.size} devices in {len(steps.steps)} steps"
        fix = "fewer devices, or the algorithm without pieces"
        raise SpecError(Fault("--group", f"{name}: {message} are more than can be followed", fix))


def _places(shape: Sequence[int], kind: str, *, has_switch: bool) -> tuple[Member, ...]:
    """Return members as their levels lie: in columns and rows, one level as a row or a loop.

    A switch that adds lies between the rows.
    """
    names = [f"device {number}" for number in range(prod(shape))]
    if len(shape) == 1:
        members = row_of(names) if kind == "mesh" else loop_of(names)
    else:
        members = tuple(
            Member(name, place[0], sum(c * prod(shape[1:k]) for k, c in enumerate(place) if k))
            for name, place in zip(names, coordinates_of(tuple(shape)), strict=True)
        )
    if has_switch:  # between two rows, or below one
        members = tuple(replace(member, row=2 * member.row) for member in members)
        members += (Member("switch", 0, 1),)
    return members
