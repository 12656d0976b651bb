"""View of a run: whether it is right, the time of its parts, and its collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.base.units import format_bytes, format_seconds
from meshwright.run.answer import Executed, Sent
from meshwright.view.parts import Page, Section, Table, Text, Tile, Whole
from meshwright.view.registry import view
from meshwright.view.words import counted


@view(Executed)
def executed_page(found: Executed) -> Page:
    """Return the page of a run."""
    losses = [(step, loss) for step, loss in enumerate(found.losses, 1)]
    title = f"{found.model}: {found.plan}"
    number = counted(found.num_processes, "process", "processes")
    return Page(
        title=title,
        subtitle=f"{title}, on {number} ({found.device})",
        tiles=list(_tiles(found)),
        sections=[
            Section("sent", "What was sent in a step, and what do the shardings say?",
                    [sent_table([("", found.sent)])] if found.sent
                    else [Text("One process sends nothing.")]),
            *([Section("parts", "Is each part as fast as predicted?", [_parts(found), Text(APART)])]
              if found.parts else []),
            Section("walk", "Who sends what, in which order?", list(_walk(found))),
            Section("losses", "How did the loss go?", [Table(("step>", "loss>"), losses)]),
            Section("notes", "What differs from the plan?",
                    [Text(note) for note in found.notes] or [Text("Nothing.")]),
        ],
    )  # fmt: skip


APART = ("Measured: medians over the steps after the first, on the first process. Layers wait for "
         "each collective and its slowest member; the rest of the passes is computation. "
         "Collectives of PyTorch that overlap computation are compared together with it. Predicted "
         "collectives are the seconds that computation does not hide. The interval of a part is "
         "that of the step, scaled to the part.")  # fmt: skip


def _parts(found: Executed) -> Table:
    """Return the predicted and the measured times of the parts."""
    rows = [(one.part, one.predicted_s, f"{format_seconds(one.low_s)} to "
             f"{format_seconds(one.high_s)}", one.measured_s, "yes" if one.is_within else "NO")
            for one in found.parts]  # fmt: skip
    return Table(("part", "predicted [s]", "interval", "measured [s]", "within"), rows)


def _walk(found: Executed) -> Iterator[Table | Text]:
    """Yield the collectives of the first process in their order, and the rounds of a stream."""
    if found.walk:
        yield Table(
            ("phase", "for", "collective", "over", "calls>", "of a call [bytes]"),
            [(one.phase, one.site, one.kind, one.axis, one.calls, one.sent_bytes / one.calls)
             for one in found.walk],
            "Collectives of the first process, in the order of the first step",
        )  # fmt: skip
    for direction in ("forward", "backward"):
        sends = [one for one in found.rounds if one.direction == direction]
        if sends:
            rows = [(number, ", ".join(f"{one.source}>{one.destination}: {one.item}"
                                       for one in sends if one.round == number),
                     sum(one.num_bytes for one in sends if one.round == number))
                    for number in sorted({one.round for one in sends})]  # fmt: skip
            yield Table(("round>", "member>member: item", "sent [bytes]"), rows,
                        f"Sends of the first {direction} pass of a stream")  # fmt: skip
    if not (found.walk or found.rounds):
        yield Text("The first process sends nothing.")


def sent_table(groups: Iterable[tuple[str, Iterable[Sent]]]) -> Table:
    """Return the table of collectives: of a rank of each stage, or of all processes (no name)."""
    rows = [
        (who, one.axis, one.phase, one.kind, one.calls, one.sent_bytes, one.derived_bytes,
         "yes" if one.is_equal else "NO")
        for who, sent in groups for one in sent
    ]  # fmt: skip
    head = ("stage", "axis", "phase", "collective", "calls>", "sent [bytes]", "derived [bytes]",
            "equal")  # fmt: skip
    return (
        Table(head, rows) if any(row[0] for row in rows) else Table(head[1:], [r[1:] for r in rows])
    )


def sent_answer(sent: Sequence[Sent]) -> str:
    """Return the number of kinds of collectives with the derived bytes."""
    equal = sum(one.is_equal for one in sent)
    return f"{equal} of {counted(len(sent), 'kind')} of collectives equal in bytes"


def _tiles(found: Executed) -> Iterator[Tile]:
    yield Tile("Is it right?", _verdict(found), "", "sent", label="verdict")
    losses = f"{found.losses[0]:.6g} -> {found.losses[-1]:.6g} in {len(found.losses)} steps"
    yield Tile("Does it learn?", losses, "", "losses", label="loss")
    parts = Whole("time of a step", found.time_parts_s, "s")
    yield Tile("Where does the time go?", f"{found.dtype}, {found.global_batch_size} x "
               f"{found.sequence_length} tokens", label="time", part=parts)  # fmt: skip
    if found.communication_s:
        waits = f"{format_seconds(found.communication_s)} of it in collectives and streams"
        yield Tile("How much is communication?", waits, label="waits")
    if found.predicted_s is not None:
        time_s, low_s, high_s = map(format_seconds, found.predicted_s)
        yield Tile("Is it as fast as predicted?", f"{format_seconds(found.step_time_s)} a step; "
                   f"predicted {time_s} ({low_s} to {high_s})", "", "parts", label="predicted",
                   part=_parts(found))  # fmt: skip
    memory = (
        f"a process keeps {format_bytes(found.kept_bytes)} of activations, "
        f"{format_bytes(found.derived_kept_bytes)} derived"
    )
    peak = f"all tensors of the fullest one are {format_bytes(found.peak_bytes)} at their peak"
    if found.allocated_bytes is not None:
        peak += f", {format_bytes(found.allocated_bytes)} allocated"
    yield Tile("How much memory?", memory, peak, label="memory")
    passes = counted(found.num_stream_passes, "stream pass", "stream passes")
    streams = f"; {passes}, {found.wrong_passes} wrong" if found.num_stream_passes else ""
    yield Tile("Is what is sent as derived?", sent_answer(found.sent) + streams, "", "sent",
               label="sent")  # fmt: skip


def _verdict(found: Executed) -> str:
    if not found.is_checked:
        return "it ran; --check compares it with the dense model"
    errors = f"loss {found.loss_error:.1e}, gradients {found.gradient_error:.1e}"
    if found.is_right:
        return f"equal to the dense model: {errors} (at most {found.tolerance:.0e})"
    return f"NOT equal: {errors} ({found.worst_weight}; at most {found.tolerance:.0e}), see sent"
