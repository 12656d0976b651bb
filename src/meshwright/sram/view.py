"""The view of a partition: stages with their memory and time, the proof, the alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from meshwright.base.units import format_bytes, format_seconds
from meshwright.spec.workload import Prefill, Training
from meshwright.sram.answer import (
    PartitionBatch,
    PartitionLevel,
    PartitionPlan,
    PartitionStage,
    Proposal,
)
from meshwright.sram.price import Rates
from meshwright.view.drawn import largest
from meshwright.view.parts import (
    Folded,
    Page,
    Part,
    Plot,
    Section,
    Table,
    Text,
    Tile,
    Whole,
)
from meshwright.view.registry import view
from meshwright.view.words import counted, words

MOST_RUNS = 60
"""Runs of alike stages in a chart; further stages are in the table."""
MOST_ROWS, MOST_OFFERS = 6, 3
"""Runs of alike stages, and changes or levels of memory, on the first screen."""
MOST_NAMES = 6
"""Layers that are named when they are too large."""
MOST_LETTERS = 30
"""Letters for the layers of a stage."""
OBJECTIVES = {
    "count": "fewest devices",
    "balance": "fewest devices, then the evenest load",
    "time": "most tokens per second",
}


@view(PartitionPlan)
def partition_page(plan: PartitionPlan) -> Page:
    """Return the page of a partition."""
    sections = (
        Section("memory", "Does it fit?", list(_memory(plan))),
        Section("time", "How fast, and what limits it?", list(_time(plan))),
        Section("others", "What else would do?", list(_others(plan))),
        Section("stages", "What does each stage hold?", list(_stages(plan))),
        Section("sure", "What is proved, and how sure is it?", list(_sure(plan))),
    )
    on = f" on {plan.system}" if plan.system else ""
    return Page(
        title=f"{plan.source} cut into stages{on}",
        subtitle=question_line(plan),
        tiles=list(_tiles(plan)),
        sections=sections,
    )


# ---------------------------------------------------------------------------------------- in words


def question_line(plan: PartitionPlan) -> str:
    """Return the question."""
    on = f" on {plan.system}" if plan.system else ""
    room = f"{plan.level} memory, {format_bytes(plan.room_bytes)} a device"
    work = f": {_work(plan)}" if plan.workload else ""
    split = "" if plan.tensor_degree == 1 else f", each layer split over {plan.tensor_degree}"
    return f"{plan.source}{on}{work}; {room}{split}; {OBJECTIVES[plan.objective]}"


def _work(plan: PartitionPlan) -> str:
    """Return the workload in words."""
    work = plan.workload
    if isinstance(work, Training):
        batch, length = counted(work.global_batch_size, "sequence"), work.sequence_length
        return f"training on {batch} of {length:,} tokens, {work.optimizer.name}"
    assert work is not None
    weights = f"weights {work.precision.weight_name}"
    if isinstance(work, Prefill):
        return f"prefill of {work.batch_size:,} x {work.prompt_length:,} tokens, {weights}"
    batch = counted(work.batch_size, "sequence")
    return f"decode of {batch} with {work.context_length:,} tokens each, {weights}"


def latency_of(plan: PartitionPlan) -> str:
    """Return the words for the latency: of a step, to the first token, or per output token."""
    if isinstance(plan.workload, Training):
        return "of a step"
    return "to the first token" if isinstance(plan.workload, Prefill) else "per output token"


def verdict(plan: PartitionPlan) -> str:
    """Return the number of devices that hold the layers, or the reason why there is no cut."""
    if not plan.stages and not plan.too_large:
        return "a layer fits no stage that is left: earlier stages keep more micro-batches"
    if not plan.stages:
        names = ", ".join(plan.too_large[:MOST_NAMES])
        names += ", ..." if len(plan.too_large) > MOST_NAMES else ""
        count = f"{len(plan.too_large)} of {plan.num_layers}"
        return f"{count} layers are too large for a device: {names}"
    stages = len(plan.stages)
    used = f"{counted(stages, 'stage')} on {counted(stages * plan.tensor_degree, 'device')}"
    if plan.replicas > 1:
        used += f", {plan.replicas} replicas on {plan.num_devices_used} devices"
    return used if plan.fits else f"{used}, but there are {plan.num_devices_given}"


def rates_in_words(plan: PartitionPlan) -> tuple[str, str]:
    """Return the speed, and the times behind it in lines; empty where no times are known."""
    price = plan.rates
    if price is None:
        if plan.passes_per_s is None:
            return "", ""
        whole_s = sum(stage.occupied_s for stage in plan.stages)
        slowest = format_seconds(plan.replicas / plan.passes_per_s)
        note = f"{format_seconds(whole_s)} a pass, {slowest} on the slowest stage"
        return f"{plan.passes_per_s:,.0f} passes/s", note
    user = price.tokens_per_s_per_user
    each = "" if user is None else f", {user:,.1f} tokens/s for each user"
    return f"{price.tokens_per_s:,.0f} tokens/s of the system", (
        f"{format_seconds(price.latency_s)} {latency_of(plan)}{each}; {_model(price)}\n"
        f"{counted(price.sequences_in_flight, 'sequence')} in flight, "
        f"{counted(plan.num_groups, 'group')} of {plan.group_size} in each row of stages; "
        f"slowest stage {format_seconds(price.slowest_stage_s)}"
    )


def _model(price: Rates) -> str:
    known = "calibrated" if price.is_calibrated else "not calibrated"
    return f"{price.fidelity.replace('_', '-')} model, {known}"


def proof_text(plan: PartitionPlan) -> str:
    """Return the bounds."""
    proof = plan.proof
    bound = f"{proof.lower_bound:,}, all bytes over the capacity of a device"
    if proof.weights_lower_bound != proof.lower_bound:
        bound += f" ({proof.weights_lower_bound:,} for the weights alone)"
    text = f"no cut of any kind has fewer stages than {bound}"
    if proof.num_stages is not None:
        text += f"; no contiguous cut of these layers has fewer than {proof.num_stages} (greedy)"
    return text


# ------------------------------------------------------------------------------- the first screen


def _tiles(plan: PartitionPlan) -> Iterator[Tile]:
    yield Tile(
        "Does it fit?", verdict(plan), section="memory", mood="good" if plan.fits else "bad",
        label="FITS" if plan.fits else "NO FIT",
    )  # fmt: skip
    speed, times = rates_in_words(plan)
    if speed:
        yield Tile("How fast is it?", speed, times, "time", label="speed")
    if plan.stages:
        yield Tile("How full is the fullest device?", *_fullest(plan), label="memory",
                   part=_fullest_memory(plan))  # fmt: skip
        table = stages_table(plan, MOST_ROWS, columns=5)
        yield Tile("What does each stage hold?", counted(len(plan.stages), "stage"),
                   "those alike share a row" if len(plan.stages) > len(table.rows) else "",
                   "stages", label="stages", part=table, spare=4)  # fmt: skip
    price = plan.rates
    if price is not None:
        yield Tile("What limits it?", largest(price.time_parts_s, price.latency_s),
                   section="time", label="time", part=_latency(plan, price))  # fmt: skip
    yield from _instead(plan)
    least = plan.proof.num_stages
    yield Tile(
        "What is proved?",
        "no contiguous cut exists" if least is None else
        f"no contiguous cut has fewer than {counted(least, 'stage')}",
        f"no cut of any kind has fewer than {counted(plan.proof.lower_bound, 'stage')}", "sure",
        label="proof", spare=2,
    )  # fmt: skip


def _fullest(plan: PartitionPlan) -> tuple[str, str, str]:
    number, fullest = fullest_stage(plan)
    held, room = format_bytes(fullest.held_bytes), format_bytes(fullest.room_bytes)
    return f"{held} of {room}, stage {number}", "", "memory"


def _instead(plan: PartitionPlan) -> Iterator[Tile]:
    """Yield the changes that make it fit, else other levels of memory, else other batches."""
    others = [level for level in plan.levels if level.name != plan.level]
    if plan.proposals:
        kind, what, cost = offer_row(plan, plan.proposals[0])
        rows = [offer_row(plan, offer) for offer in plan.proposals[:MOST_OFFERS]]
        yield Tile("What would help?", f"{kind}: {what}", cost, "others", label="instead",
                   part=Table(("", "", ""), rows))  # fmt: skip
    elif others:
        yield Tile("What else would do?", ", ".join(level.name for level in others),
                   "", "others", label="instead", part=levels_table(others[:MOST_OFFERS]),
                   spare=3)  # fmt: skip
    elif len(plan.batches) > 1:
        yield Tile("What else would do?", "another batch", "", "others", label="instead",
                   part=batches_table([plan.batches[0], plan.batches[-1]]), spare=3)  # fmt: skip


# ------------------------------------------------------------------------------------ the sections


def _memory(plan: PartitionPlan) -> Iterator[Part]:
    if not plan.stages:
        yield Text(f"There is no cut: {verdict(plan)}.")
        return
    yield _fullest_memory(plan)
    runs, names = _runs(plan)
    each = [run.stages[0].parts_bytes for run in runs]
    parts = list(dict.fromkeys(name for one in each for name in one))
    number, fullest = fullest_stage(plan)
    yield Plot(
        "Memory of a device of each stage",
        f"{verdict(plan)}; the fullest, {number}, holds {format_bytes(fullest.held_bytes)} of "
        f"{format_bytes(fullest.room_bytes)} ({fullest.filled_fraction:.1%}); alike stages share "
        "a bar",
        "stacked",
        Table(("stage", *(f"{words(part)} [bytes]" for part in parts)),
              [(name, *(one.get(part, 0.0) for part in parts))
               for name, one in zip(names, each, strict=True)]),
        limit=plan.room_bytes, limit_name="room",
    )  # fmt: skip


def _fullest_memory(plan: PartitionPlan) -> Whole:
    number, fullest = fullest_stage(plan)
    title = f"Memory of a device of stage {number}, the fullest"
    return Whole(title, fullest.parts_bytes, "bytes", capacity=fullest.room_bytes)


def _latency(plan: PartitionPlan, price: Rates) -> Whole:
    return Whole(f"Time {latency_of(plan)}", price.time_parts_s, "s", price.latency_s)


def _time(plan: PartitionPlan) -> Iterator[Part]:
    if plan.rates is not None:
        yield _latency(plan, plan.rates)
    if any(stage.occupied_s for stage in plan.stages):
        runs, names = _runs(plan)
        slowest_s = max(stage.occupied_s for stage in plan.stages)
        yield Plot(
            "Time of one group on each stage",
            f"{format_seconds(slowest_s)} on the slowest stage, which sets the pace; alike stages "
            "share a bar",
            "stacked",
            Table(("stage", "work [s]", "send [s]"),
                  [(name, run.stages[0].work_s or 0.0, run.stages[0].send_s or 0.0)
                   for name, run in zip(names, runs, strict=True)]),
        )  # fmt: skip
    speed, times = rates_in_words(plan)
    for line in filter(None, (speed, *times.splitlines())):
        yield Text(f"{line[:1].upper()}{line[1:]}.")
    load_s = [stage.load_s for stage in plan.stages if stage.load_s is not None]
    if load_s:
        yield Text(f"Loaded in {format_seconds(max(load_s))} over the host links.")


def _others(plan: PartitionPlan) -> Iterator[Part]:
    if plan.proposals:
        rows = [offer_row(plan, offer) for offer in plan.proposals]
        yield Table(("change", "what", "price"), rows,
                    "Changes that help, the cheapest in device seconds first; then changes of the "
                    "numbers")  # fmt: skip
        priced = [(offer.what, offer.kind, offer.num_devices, offer.latency_s)
                  for offer in plan.proposals if offer.latency_s is not None]  # fmt: skip
        if len(priced) > 1:
            devices = [number for _, _, number, _ in priced]
            yield Plot(
                "Devices against time, by change",
                f"From {min(devices):,} devices to {max(devices):,}", "points",
                Table(("change", "kind", "devices of one pipeline [#]",
                       f"time {latency_of(plan)} [s]"), priced),
            )  # fmt: skip
    if len(plan.levels) > 1:
        yield levels_table(plan.levels, "Each level of memory")
    if len(plan.batches) > 1:
        yield batches_table(plan.batches, "Batches that none beats")
        yield Plot(
            "Latency against throughput",
            f"{len(plan.batches)} batches, from "
            f"{format_seconds(min(batch.latency_s for batch in plan.batches))} {latency_of(plan)} "
            f"to {max(batch.tokens_per_s for batch in plan.batches):,.0f} tokens/s of the system",
            "points",
            Table(("batch", "kind", f"time {latency_of(plan)} [s]", "tokens/s of the system [#]"),
                  [(f"batch {batch.batch_size}, {batch.num_groups} groups", "batch",
                    batch.latency_s, batch.tokens_per_s) for batch in plan.batches]),
        )  # fmt: skip
    if plan.largest_batch:
        yield Text(f"Largest batch that fits {plan.num_devices_given} devices: "
                   f"{plan.largest_batch:,}.")  # fmt: skip


def _stages(plan: PartitionPlan) -> Iterator[Part]:
    if not plan.stages:
        return
    yield stages_table(plan, len(plan.stages), "Stages; those alike share a row")


def _sure(plan: PartitionPlan) -> Iterator[Part]:
    text = proof_text(plan)
    yield Text(f"{text[:1].upper()}{text[1:]}.")
    if plan.too_large:
        names = [(name,) for name in plan.too_large]
        count = counted(len(names), "layer")
        yield Folded(f"Too large for a device: {count}", [Table(("layer",), names)])
    if plan.rates is not None:
        yield Text(f"Times: {_model(plan.rates)}.")


# ------------------------------------------------------------------------------------------ tables


def _runs(plan: PartitionPlan) -> tuple[list[Alike], list[str]]:
    """Return the runs of stages in a chart, and their names."""
    runs = runs_of_alike(plan.stages)[:MOST_RUNS]
    return runs, [f"{run.numbers}: {run.layers(MOST_LETTERS)}" for run in runs]


def fullest_stage(plan: PartitionPlan) -> tuple[int, PartitionStage]:
    """Return the stage that fills most of its room, with its number."""
    return max(enumerate(plan.stages), key=lambda entry: entry[1].filled_fraction)


def stages_table(plan: PartitionPlan, most: int, caption: str = "", columns: int = 9) -> Table:
    """Return the first columns on each stage; stages that are alike share a row."""
    runs, rows = runs_of_alike(plan.stages), []
    for run in runs[:most]:
        stage = run.stages[0]
        cells = (
            run.numbers, run.devices, run.layers(MOST_LETTERS), stage.filled_fraction,
            stage.work_s, sum(stage.load_parts_bytes.values()),
            sum(stage.reserved_parts_bytes.values()), stage.sent_bytes or None,
            stage.send_s or None,
        )  # fmt: skip
        rows.append(cells[:columns])
    if len(runs) > most:
        left = len(plan.stages) - runs[most].first
        rows.append(("...", f"{left} more", *[None] * (columns - 2)))
    head = ("", "devices", "layers", "filled [%]", "pass [s]", "load [bytes]", "reserve [bytes]",
            "send [bytes]", "in [s]")  # fmt: skip
    return Table(head[:columns], rows, caption)


def offer_row(plan: PartitionPlan, offer: Proposal) -> tuple[str, str, str]:
    """Return the row of a proposal: the change, its devices, and its price."""
    cost = "not priced"
    if offer.latency_s is not None and offer.device_s_per_token is not None:
        cost = (f"{format_seconds(offer.latency_s)} {latency_of(plan)}, "
                f"{format_seconds(offer.device_s_per_token)} of devices a token")  # fmt: skip
    changes = "; changes the numbers" if offer.changes_numbers else ""
    devices = counted(offer.num_devices, "device")
    return offer.kind, f"{offer.what}, {devices}", f"{cost}{changes}"


def levels_table(levels: Sequence[PartitionLevel], caption: str = "") -> Table:
    """Return the table of the best cut in each memory of the chip."""
    rows = [
        (level.name, level.room_bytes,
         "a layer is too large" if level.num_stages is None else f"{level.num_stages:,}",
         level.num_devices, level.latency_s, level.tokens_per_s)
        for level in levels
    ]  # fmt: skip
    head = ("held in", "room [bytes]", "stages>", "devices [#]", "time [s]", "tokens/s [#]")
    return Table(head, rows, caption)


def batches_table(batches: Sequence[PartitionBatch], caption: str = "") -> Table:
    """Return the batches that none beats for the system and for one user."""
    head = ("batch [#]", "groups [#]", "stages [#]", "replicas [#]", "time [s]", "tokens/s [#]")
    rows = [
        (entry.batch_size, entry.num_groups, entry.num_stages, entry.replicas, entry.latency_s,
         entry.tokens_per_s)
        for entry in batches
    ]  # fmt: skip
    return Table(head, rows, caption)


# ---------------------------------------------------------------------------- stages that are alike


@dataclass(frozen=True)
class Alike:
    """A run of stages with equally many layers of equal bytes and seconds."""

    first: int
    last: int
    stages: tuple[PartitionStage, ...]

    @property
    def numbers(self) -> str:
        """The stages as a reader counts them: ``3`` or ``3-9``."""
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def devices(self) -> str:
        """Devices of all stages of the run."""
        numbers = [device for stage in self.stages for device in stage.devices]
        if not numbers:
            return ""
        return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"

    def layers(self, most: int) -> str:
        """Return the first to the last layer and the number of each, cut to ``most`` letters."""
        first, last = self.stages[0].first_layer, self.stages[-1].last_layer
        each = f" ({self.stages[0].num_layers} each)" if len(self.stages) > 1 else ""
        kind, _, number = last.rpartition(" ")
        is_numbered = kind and first.startswith(f"{kind} ")
        text = first if first == last else f"{first} - {number if is_numbered else last}"
        room = most - len(each)
        return (text if len(text) <= room else text[: room - 3] + "...") + each


def runs_of_alike(stages: Sequence[PartitionStage]) -> list[Alike]:
    """Return the stages in runs of equal ones."""

    def content(numbered: tuple[int, PartitionStage]) -> tuple[object, ...]:
        stage = numbered[1]
        parts = (*stage.load_parts_bytes.items(), *stage.reserved_parts_bytes.items())
        return (stage.num_layers, parts, stage.room_bytes, stage.work_s, stage.send_s)

    found = []
    for _, group in groupby(enumerate(stages), content):
        members = list(group)
        found.append(Alike(members[0][0], members[-1][0], tuple(stage for _, stage in members)))
    return found
