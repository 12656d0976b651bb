"""A partition in words and tables: the default screen, and the lines of ``--detail``."""

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
from meshwright.sram.rates import Rates
from meshwright.view.terminal import (
    Bars,
    Row,
    Screen,
    Stacked,
    Table,
    counted,
    screen_width,
    time_lines,
    words,
    wrapped,
)


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


MOST_RUNS = 24
"""Runs of alike stages that a screen lists; the others are counted."""
MOST_ROWS = 6
"""Runs of alike stages on the default screen."""
MOST_OFFERS = 3
"""Changes or levels of memory on the default screen."""
MOST_NAMES = 6
"""Layers that are named when they are too large."""
LAYERS = 23
"""Letters for the layers of a stage."""
OBJECTIVES = {
    "count": "fewest devices",
    "balance": "fewest devices, then the evenest load",
    "time": "most tokens per second",
}


def partition_screen(plan: PartitionPlan, *, next_command: str = "") -> Screen:
    """Return the default screen of a partition, the answer first."""
    screen = Screen(question_line(plan))
    screen.gap()
    label, style = ("FITS", "bold green") if plan.fits else ("NO FIT", "bold red")
    screen.add(label, verdict(plan), style=style)
    for spare, line in zip((0, 3, 5), rate_lines(plan), strict=False):
        screen.add("", line, spare=spare)
    if plan.stages:
        screen.gap()
        screen.add("stages", stages_table(plan, most=MOST_ROWS, columns=5), spare=4)
        number, fullest = fullest_stage(plan)
        parts = {words(n): size for n, size in fullest.parts_bytes.items()}
        head = f"{format_bytes(fullest.held_bytes)} of {format_bytes(fullest.room_bytes)}"
        screen.add("memory", Stacked(f"{head}, stage {number}", parts, fullest.room_bytes,
                                     format_bytes))  # fmt: skip
    if plan.rates is not None:
        screen.gap()
        screen.add("time", Bars(_times(plan.rates), format_seconds))
    if plan.proposals:
        screen.gap()
        rows = [offer_row(plan, offer) for offer in plan.proposals[:MOST_OFFERS]]
        screen.add("instead", Table(("", "", ""), rows))
    elif others := [level for level in plan.levels if level.name != plan.level]:
        screen.gap()
        screen.add("instead", levels_table(others[:MOST_OFFERS]), spare=3)
    elif len(plan.batches) > 1:
        screen.gap()
        screen.add("instead", batches_table([plan.batches[0], plan.batches[-1]]), spare=3)
    screen.gap()
    if plan.warnings:
        left = len(plan.warnings) - 1
        more = f" ({left} more with --detail)" if left else ""
        screen.add("warning", plan.warnings[0] + more, style="yellow", spare=1)
    if next_command:
        screen.add("next", next_command, style="bold")
    return screen


def partition_lines(plan: PartitionPlan) -> list[str]:
    """Return the lines of the detail: all stages, levels, batches, proposals, the proof."""
    return list(_lines(plan))


def _lines(plan: PartitionPlan) -> Iterator[str]:
    tables = []
    if plan.stages:
        tables.append(
            Screen("every stage", [Row("", stages_table(plan, most=MOST_RUNS, columns=9))])
        )
    if len(plan.levels) > 1:
        tables.append(Screen("each level of memory", [Row("", levels_table(plan.levels))]))
    if plan.batches:
        tables.append(Screen("batches that none beats", [Row("", batches_table(plan.batches))]))
    for table in tables:
        table.is_whole = True
        yield from table.text(screen_width()).splitlines()
        yield ""
    if plan.proposals:
        yield "what would help, the cheapest in device seconds first; then what changes the numbers"
        for offer in plan.proposals:
            _, what, cost = offer_row(plan, offer)
            yield from wrapped(f"  {offer.kind:<9} ", f"{what}: {cost}")
        yield ""
    if plan.rates is not None:
        yield from time_lines(
            f"time {latency_of(plan)}", plan.rates.time_parts_s, plan.rates.latency_s
        )
        yield ""
    load_s = [stage.load_s for stage in plan.stages if stage.load_s is not None]
    if load_s:
        yield f"loaded in {format_seconds(max(load_s))} over the host links"
    if plan.largest_batch:
        yield f"largest batch that fits {plan.num_devices_given} devices: {plan.largest_batch:,}"
    yield from wrapped("proof ", proof_text(plan))
    for warning in plan.warnings:
        yield from wrapped("note: ", warning)


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


def rate_lines(plan: PartitionPlan) -> Iterator[str]:
    """Yield tokens per second and times per token, of the system and of one user."""
    price = plan.rates
    if price is None:
        if plan.passes_per_s is not None:
            whole = sum(stage.occupied_s for stage in plan.stages)
            slowest = format_seconds(plan.replicas / plan.passes_per_s)
            yield (f"{plan.passes_per_s:,.0f} passes/s; {format_seconds(whole)} a pass, "
                   f"{slowest} on the slowest stage")  # fmt: skip
        return
    user = ""
    if price.tokens_per_s_per_user is not None:
        user = f" ({price.tokens_per_s_per_user:,.1f} tokens/s for each user)"
    latency = f"{format_seconds(price.latency_s)} {latency_of(plan)}"
    yield f"{price.tokens_per_s:,.0f} tokens/s of the system; {latency}{user}"
    yield (
        f"{counted(price.sequences_in_flight, 'sequence')} in flight, "
        f"{counted(plan.num_groups, 'group')} of {plan.group_size} in each row of stages; "
        f"slowest stage {format_seconds(price.slowest_stage_s)}"
    )
    yield (
        f"system time per token {format_seconds(price.system_time_per_token_s)} = 1 / tokens per "
        f"second; {price.fidelity.replace('_', '-')} model"
    )


def _times(price: Rates) -> dict[str, float]:
    return {words(name): seconds for name, seconds in price.time_parts_s.items() if seconds}


def fullest_stage(plan: PartitionPlan) -> tuple[int, PartitionStage]:
    """Return the stage that fills most of its room, with its number."""
    return max(enumerate(plan.stages), key=lambda entry: entry[1].filled_fraction)


def stages_table(plan: PartitionPlan, *, most: int, columns: int) -> Table:
    """Return the first columns on each stage; stages that are alike share a row."""
    runs, rows = runs_of_alike(plan.stages), []
    for run in runs[:most]:
        stage = run.stages[0]
        cells = (
            run.numbers, run.devices, run.layers(LAYERS), f"{stage.filled_fraction:.1%}",
            "" if stage.work_s is None else format_seconds(stage.work_s),
            format_bytes(sum(stage.load_parts_bytes.values())),
            format_bytes(sum(stage.reserved_parts_bytes.values())),
            format_bytes(stage.sent_bytes) if stage.sent_bytes else "-",
            format_seconds(stage.send_s) if stage.send_s else "",
        )  # fmt: skip
        rows.append(cells[:columns])
    if len(runs) > most:
        left = len(plan.stages) - runs[most].first
        rows.append(("...", f"{left} more", *[""] * (columns - 2)))
    head = ("", "devices", "layers", "filled>", "pass>", "load>", "reserve>", "send>", "in>")
    return Table(head[:columns], rows)


def offer_row(plan: PartitionPlan, offer: Proposal) -> tuple[str, str, str]:
    """Return the row of a proposal: the change, its devices, and its price."""
    cost = "not priced"
    if offer.latency_s is not None and offer.device_s_per_token is not None:
        cost = (f"{format_seconds(offer.latency_s)} {latency_of(plan)}, "
                f"{format_seconds(offer.device_s_per_token)} of devices a token")  # fmt: skip
    changes = "; changes the numbers" if offer.changes_numbers else ""
    devices = counted(offer.num_devices, "device")
    return offer.kind, f"{offer.what}, {devices}", f"{cost}{changes}"


def levels_table(levels: Sequence[PartitionLevel]) -> Table:
    """Return the table of the best cut in each memory of the chip."""
    rows = []
    for level in levels:
        cells = ("a layer is too large", "", "", "")
        if level.num_stages is not None:
            cells = (
                f"{level.num_stages:,} stages", f"{level.num_devices:,} devices",
                "" if level.latency_s is None else format_seconds(level.latency_s),
                "" if level.tokens_per_s is None else f"{level.tokens_per_s:,.0f}",
            )  # fmt: skip
        rows.append((level.name, format_bytes(level.room_bytes), *cells))
    return Table(("held in", "room>", "", "", "time>", "tokens/s>"), rows)


def batches_table(batches: Sequence[PartitionBatch]) -> Table:
    """Return the batches that none beats for the system and for one user."""
    head = ("batch>", "groups>", "stages>", "replicas>", "time>", "tokens/s>")
    rows = [
        (f"{entry.batch_size}", f"{entry.num_groups}", f"{entry.num_stages}", f"{entry.replicas}",
         format_seconds(entry.latency_s), f"{entry.tokens_per_s:,.0f}")
        for entry in batches
    ]  # fmt: skip
    return Table(head, rows)


def proof_text(plan: PartitionPlan) -> str:
    """Return the bounds."""
    proof = plan.proof
    bound = f"all bytes over the room of a device: {proof.lower_bound:,}"
    if proof.weights_lower_bound != proof.lower_bound:
        bound += f" ({proof.weights_lower_bound:,} for the weights alone)"
    text = f"no cut of whatever pieces needs fewer stages than {bound}"
    if proof.num_stages is not None:
        text += f"; no contiguous cut of these layers fewer than {proof.num_stages} (greedy)"
    return text
