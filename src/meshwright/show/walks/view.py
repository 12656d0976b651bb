"""The view of a walk: its player, and every frame in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwright.base.registry import version
from meshwright.base.units import format_bytes
from meshwright.show.walks.walk import Exchange, Frame, Held, Message, Walk, WalkTensor
from meshwright.view.parts import Page, Player, Section, Step, Table, Text, Tile
from meshwright.view.registry import view

MOST_NAMED = 8
"""Most messages of a frame that are named one by one."""


def heading(frame: Frame) -> str:
    """Return the heading of a frame."""
    return f"{frame.phase}: {frame.title}"


def parts_text(tensor: WalkTensor, parts: Sequence[int]) -> str:
    """Return parts of a tensor: ``W[2]``, ``W[0,1]``, ``W (5 of 8)``, or ``W`` for all."""
    if len(parts) == tensor.num_parts:
        return tensor.name
    if len(parts) <= 2 and 1 in (tensor.rows, tensor.columns):
        return f"{tensor.name}[{','.join(map(str, parts))}]"
    return f"{tensor.name} ({len(parts)} of {tensor.num_parts})"


def message_text(walk: Walk, message: Message) -> str:
    """Return a message: ``W[2] 3>2``; with a plus where it is added."""
    what = parts_text(walk.tensor(message.tensor), message.parts)
    hops = f" over {message.num_hops} links" if message.num_hops > 1 else ""
    return f"{'+' if message.adds else ''}{what} {message.source}>{message.destination}{hops}"


def sent_text(walk: Walk, frame: Frame) -> str:
    """Return the messages of a frame, or their number and size."""
    messages = frame.messages
    if not messages:
        return ""
    if len(messages) <= MOST_NAMED:
        return "sent: " + ", ".join(message_text(walk, message) for message in messages)
    largest = max(message.num_bytes for message in messages)
    names = " and ".join(dict.fromkeys(message.tensor for message in messages))
    first = message_text(walk, messages[0])
    return (
        f"sent: {len(messages)} messages with parts of {names}, {format_bytes(largest)} at most; "
        f"the first is {first}"
    )


def held_text(walk: Walk, frame: Frame) -> str:
    """Return the most that a member holds during a frame, and the most that one has sent."""
    held = max(frame.held_bytes[: walk.num_devices])
    return (
        f"A device holds at most {format_bytes(held)} ({held / walk.alone_bytes:.0%} of "
        f"{alone_text(walk)}) and has sent "
        f"{format_bytes(max(frame.sent_bytes[: walk.num_devices]))}"
    )


def alone_text(walk: Walk) -> str:
    """Return the reference that the bytes held are compared with."""
    return "the full tensor" if _is_data_only(walk) else "one device alone"


def _is_data_only(walk: Walk) -> bool:
    return all(tensor.role == "data" for tensor in walk.tensors)


HEAD = ("tensor", "collective", "phase", "where", "dims", "layout", "full tensor>",
        "sent by a device>")  # fmt: skip


def cells_of(exchange: Exchange) -> tuple[str, ...]:
    """Return a row of the table of collectives, under ``HEAD``."""
    return (
        exchange.tensor,
        exchange.kind,
        exchange.phase,
        exchange.where,
        exchange.dims,
        exchange.change,
        format_bytes(exchange.num_bytes),
        format_bytes(exchange.sent_bytes),
    )


# --------------------------------------------------------------------------------- the page


@view(Walk)
def walk_page(walk: Walk, beside: Sequence[Walk] = (), command: str = "") -> Page:
    """Return the page of a walk.

    Parameters
    ----------
    beside
        Walks that answer the same question, itself among them.
    """
    sent = _without_empty(HEAD, [cells_of(exchange) for exchange in walk.exchanges])
    tensors = [
        (t.name, t.about, t.role, _cut_text(t), format_bytes(t.num_bytes)) for t in walk.tensors
    ]
    legend = (
        "A square is a tensor; its cells are the parts that the device holds. Solid: numbers that "
        "are complete. Hatched: terms of a sum, Σ2 of two devices so far. Under the name: how much "
        "is held, and sent so far. Space plays, the arrow keys step."
    )
    says = f"{walk.title}. {walk.asked}. Every frame stands in words below."
    steps = [Step(heading(frame), frame.caption, _closing(walk, frame)) for frame in walk.frames]
    player = Player("Player", says, legend, player_data(walk), steps)
    return Page(
        title=walk.title,
        subtitle=walk.asked,
        tiles=list(_tiles(walk)),
        sections=[
            Section("walk", "Step by step", [player]),
            Section("sent", "Collectives", [sent]),
            *([Section("beside", "Side by side", [_side_by_side(walk, beside)])] if beside else []),
            Section(
                "tensors",
                "Tensors",
                [Table(("name", "what it is", "kind", "cut into", "bytes>"), tensors),
                 *map(Text, walk.notes)],
            ),
        ],
        command=command,
        version=version(),
    )  # fmt: skip


def _without_empty(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without the columns in which no row has anything."""
    used = [index for index in range(len(head)) if any(row[index] for row in rows)]
    return Table([head[index] for index in used], [[row[index] for index in used] for row in rows])


def _side_by_side(shown: Walk, walks: Sequence[Walk]) -> Table:
    """Return the bytes sent and held in each of several walks, the shown one among them."""
    phases = {frame.phase: None for frame in shown.frames}
    first = next(iter(phases))
    kept = [f"held after {first}>"] if len(phases) > 1 else []
    head = ("", "steps that send>", "longest way>", "sent by a device>", "held at most>", *kept)
    rows = [
        (
            walk.variant + (" (shown)" if walk.variant == shown.variant else ""),
            str(walk.num_steps),
            f"{walk.num_hops} link" + "s" * (walk.num_hops != 1),
            format_bytes(walk.sent_bytes),
            format_bytes(walk.most_held_bytes),
            *([format_bytes(walk.kept_bytes(first))] if kept else []),
        )
        for walk in walks
    ]
    return Table(head, rows)


def _closing(walk: Walk, frame: Frame) -> str:
    return ". ".join(filter(None, (sent_text(walk, frame), held_text(walk, frame)))) + "."


def _cut_text(tensor: WalkTensor) -> str:
    if tensor.num_parts == 1:
        return "whole"
    if tensor.columns == 1:
        return f"{tensor.rows} parts by rows"
    if tensor.rows == 1:
        return f"{tensor.columns} parts by columns"
    return f"{tensor.rows} x {tensor.columns} parts"


def _tiles(walk: Walk) -> Iterator[Tile]:
    """Yield the tiles of the first screen: collectives, bytes sent and bytes held."""
    walked = [exchange for exchange in walk.exchanges if exchange.is_walked]
    phases = dict.fromkeys(exchange.phase for exchange in walked)
    for phase in phases:
        of_phase = [exchange for exchange in walked if exchange.phase == phase]
        counts = Counter(exchange.kind for exchange in of_phase)
        sent = sum(exchange.sent_bytes for exchange in of_phase)
        answer = ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in counts.items())
        if len(of_phase) == 1:
            answer = f"{of_phase[0].kind} of {of_phase[0].tensor}"
        question = f"What is sent, {phase}?" if len(phases) > 1 else "What is sent?"
        answer = answer[:1].upper() + answer[1:]
        yield Tile(question, answer, f"{format_bytes(sent)} by a device", "sent",
                   label=phase if len(phases) > 1 else "sent")  # fmt: skip
    most = walk.most_held_bytes
    yield Tile(
        "What does a device hold at most?",
        f"{format_bytes(most)}, {most / walk.alone_bytes:.0%} of {alone_text(walk)}",
        f"{alone_text(walk)}: {format_bytes(walk.alone_bytes)}",
        "walk",
        label="held",
    )
    if _is_data_only(walk):
        return
    doubled = replicated_at_rest(walk)
    yield Tile(
        "Is anything held twice at rest?",
        ", ".join(doubled) if doubled else "Nothing",
        "before the first and after the last frame of a phase",
        "tensors",
    )


def replicated_at_rest(walk: Walk) -> list[str]:
    """Return the tensors with a part on several members when a phase begins or ends."""
    ends = [
        frame
        for number, frame in enumerate(walk.frames)
        if number == 0
        or number == len(walk.frames) - 1
        or walk.frames[number + 1].phase != frame.phase
    ]
    found: dict[str, None] = {}
    for frame in ends:
        seen: set[tuple[str, int]] = set()
        for held in frame.held[: walk.num_devices]:
            for group in held:
                for part in group.parts:
                    if (group.tensor, part) in seen:
                        found[group.tensor] = None
                    seen.add((group.tensor, part))
    return list(found)


def player_data(walk: Walk) -> dict[str, Any]:
    """Return a walk in the format of the player: frames as changes of held parts, and words."""
    number = {tensor.name: index for index, tensor in enumerate(walk.tensors)}
    frames, before = [], [dict[str, list[list[Any]]]() for _ in walk.members]
    for frame in walk.frames:
        now = [_by_tensor(held) for held in frame.held]
        frames.append(
            {
                "phase": frame.phase,
                "computes": list(frame.computes) if any(frame.computes) else [],
                "messages": [
                    [m.source, m.destination, number[m.tensor], list(m.parts), m.adds]
                    for m in frame.messages
                ],
                "changes": [
                    {str(number[name]): groups for name, groups in _changes(old, new).items()}
                    for old, new in zip(before, now, strict=True)
                ],
                "held": list(frame.held_bytes),
                "sent": list(frame.sent_bytes),
            }
        )  # fmt: skip
        before = now
    return {
        "members": [vars(member) for member in walk.members],
        "num_devices": walk.num_devices,
        "alone_bytes": walk.alone_bytes,
        "tensors": [
            {"name": t.name, "about": t.about, "role": t.role, "rows": t.rows,
             "columns": t.columns}
            for t in walk.tensors
        ],
        "frames": frames,
    }  # fmt: skip


def _by_tensor(held: Sequence[Held]) -> dict[str, list[list[Any]]]:
    """Return the groups of parts of each tensor, with the number of terms in their sums."""
    found: dict[str, list[list[Any]]] = {}
    for group in held:
        found.setdefault(group.tensor, []).append([list(group.parts), len(group.terms_of)])
    return found


def _changes(
    old: Mapping[str, list[list[Any]]], new: Mapping[str, list[list[Any]]]
) -> dict[str, list[list[Any]]]:
    """Return the tensors that changed; empty: the member holds no part any more."""
    changed = {name: groups for name, groups in new.items() if old.get(name) != groups}
    return changed | {name: [] for name in old if name not in new}
