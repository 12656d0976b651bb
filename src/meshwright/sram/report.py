"""Neighbouring stages that are alike, printed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from meshwright.base.units import format_bytes, format_seconds
from meshwright.report.screen import counted, time_lines, words, wrapped
from meshwright.spec.workload import Prefill, Training
from meshwright.sram.answer import PartitionPlan, PartitionStage
from meshwright.sram.rates import Rates


@dataclass(frozen=True)
class Alike:
    """A run of stages that hold as many layers of equal bytes and seconds."""

    first: int
    last: int
    stages: tuple[PartitionStage, ...]

    @property
    def numbers(self) -> str:
        """The stages as a reader counts them: ``3`` or ``3-9``."""
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def devices(self) -> str:
        """The devices of all of them."""
        numbers = [device for stage in self.stages for device in stage.devices]
        if not numbers:
            return ""
        return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"

    def layers(self, most: int) -> str:
        """Return the first layer to the last one, and how many on each stage, so many letters."""
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
MOST_NAMES = 6
"""Layers that are named when they are too large."""
LAYERS = 23
"""Letters for the layers of a stage."""
OBJECTIVES = {
    "count": "fewest devices",
    "balance": "fewest devices, then the evenest load",
    "time": "most tokens per second",
}


def partition_lines(plan: PartitionPlan) -> list[str]:
    """Return the screen of a partition, at most 100 columns wide."""
    return list(_lines(plan))


def _lines(plan: PartitionPlan) -> Iterator[str]:
    yield from wrapped("", _question(plan))
    yield from _verdict(plan)
    if plan.stages:
        yield ""
        yield from _stages(plan)
    if plan.rates is not None:
        yield ""
        yield from time_lines(f"time {_what(plan)}", plan.rates.time_parts_s, plan.rates.latency_s)
    if plan.proposals:
        yield ""
        yield from _proposals(plan)
    if len(plan.levels) > 1:
        yield ""
        yield from _levels(plan)
    if plan.batches:
        yield ""
        yield from _batches(plan)
    yield ""
    yield from _proof(plan)
    for warning in plan.warnings:
        yield from wrapped("note: ", warning)


def _question(plan: PartitionPlan) -> str:
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
    weights = f"weights {work.precision.weight}"
    if isinstance(work, Prefill):
        return f"prefill of {work.batch_size:,} x {work.prompt_length:,} tokens, {weights}"
    batch = counted(work.batch_size, "sequence")
    return f"decode of {batch} with {work.context_length:,} tokens each, {weights}"


def _what(plan: PartitionPlan) -> str:
    """Return what the latency is the time of."""
    if isinstance(plan.workload, Training):
        return "of a step"
    return "to the first token" if isinstance(plan.workload, Prefill) else "per output token"


def _verdict(plan: PartitionPlan) -> Iterator[str]:
    """Yield whether it fits, on how many devices, and what it yields."""
    if not plan.stages:
        yield from wrapped("DOES NOT FIT  ", _reason(plan))
        return
    stages = len(plan.stages)
    used = f"{counted(stages, 'stage')} on {counted(stages * plan.tensor_degree, 'device')}"
    if plan.replicas > 1:
        used += f", {plan.replicas} replicas on {plan.num_devices_used} devices"
    if plan.fits:
        yield f"FITS  {used}"
    else:
        yield f"DOES NOT FIT  {used}, but there are {plan.num_devices_given}"
    if plan.rates is not None:
        yield from _rates(plan, plan.rates)
        return
    times_s = [stage.work_s + (stage.send_s or 0.0) for stage in plan.stages if stage.work_s]
    if times_s:
        whole, slowest = format_seconds(sum(times_s)), format_seconds(max(times_s))
        yield f"      {whole} a pass, {slowest} on the slowest stage"


def _reason(plan: PartitionPlan) -> str:
    """Return why there is no cut at all."""
    if not plan.too_large:
        return "a layer fits no stage that is left: earlier stages keep more micro-batches"
    names = ", ".join(plan.too_large[:MOST_NAMES])
    names += ", ..." if len(plan.too_large) > MOST_NAMES else ""
    return f"{len(plan.too_large)} of {plan.num_layers} layers are too large for a device: {names}"


def _rates(plan: PartitionPlan, price: Rates) -> Iterator[str]:
    """Yield tokens per second and times per token, of the system and of one user."""
    user = ""
    if price.tokens_per_s_per_user is not None:
        user = f" ({price.tokens_per_s_per_user:,.1f} tokens/s a user)"
    latency = f"{format_seconds(price.latency_s)} {_what(plan)}"
    yield f"      {price.tokens_per_s:,.0f} tokens/s of the system; {latency}{user}"
    yield (
        f"      {counted(price.sequences_in_flight, 'sequence')} in flight, "
        f"{counted(plan.num_groups, 'group')} of {plan.group_size} in each row of stages; "
        f"slowest stage {format_seconds(price.slowest_stage_s)}"
    )
    yield (
        f"      system time per token {format_seconds(price.system_time_per_token_s)} = 1 / tokens "
        f"per second; fidelity {price.fidelity}"
    )


def _stages(plan: PartitionPlan) -> Iterator[str]:
    """Yield what each device loads, sets aside and sends."""
    yield (
        f"{'stage':<8}{'devices':<14}{'layers':<{LAYERS + 1}}{'load':>9}{'reserve':>10}"
        f"{'filled':>7}{'pass':>9}{'send':>10}{'in':>9}"
    )
    runs = runs_of_alike(plan.stages)
    for run in runs[:MOST_RUNS]:
        yield _stage_line(run)
    if len(runs) > MOST_RUNS:
        left = len(plan.stages) - runs[MOST_RUNS].first
        yield f"  and {left} stages more; --json lists all"
    fullest = max(plan.stages, key=lambda stage: stage.filled_fraction)
    parts = {**fullest.load_parts_bytes, **fullest.reserved_parts_bytes}
    held = ", ".join(f"{words(n)} {format_bytes(size)}" for n, size in parts.items() if size)
    yield from wrapped("fullest  ", f"stage {plan.stages.index(fullest)}: {held}")
    load_s = [stage.load_s for stage in plan.stages if stage.load_s is not None]
    if load_s:
        yield f"loaded   in {format_seconds(max(load_s))} over the host links"


def _stage_line(run: Alike) -> str:
    """Return the line of stages that are alike."""
    stage = run.stages[0]
    loaded, reserved = (
        sum(stage.load_parts_bytes.values()),
        sum(stage.reserved_parts_bytes.values()),
    )
    work = "" if stage.work_s is None else format_seconds(stage.work_s)
    send = format_bytes(stage.sent_bytes) if stage.sent_bytes else "-"
    send_time = format_seconds(stage.send_s) if stage.send_s else ""
    what = f"{run.numbers:<8}{run.devices:<14}{run.layers(LAYERS):<{LAYERS + 1}}"
    return (
        f"{what}{format_bytes(loaded):>9}{format_bytes(reserved):>10}"
        f"{stage.filled_fraction:>7.1%}{work:>9}{send:>10}{send_time:>9}"
    ).rstrip()


def _proposals(plan: PartitionPlan) -> Iterator[str]:
    """Yield what would make it fit, the cheapest first."""
    yield "what would help, the cheapest in device seconds first; then what changes the numbers"
    for offer in plan.proposals:
        cost = "not priced"
        if offer.latency_s is not None and offer.device_s_per_token is not None:
            cost = (f"{format_seconds(offer.latency_s)} {_what(plan)}, "
                    f"{format_seconds(offer.device_s_per_token)} of devices a token")  # fmt: skip
        changes = "; changes the numbers" if offer.changes_numbers else ""
        yield from wrapped(
            f"  {offer.kind:<9} ",
            f"{offer.what}: {counted(offer.num_devices, 'device')}; {cost}{changes}",
        )


def _levels(plan: PartitionPlan) -> Iterator[str]:
    """Yield the same in each memory of the chip."""
    yield f"{'held in':<18}{'room':>10}{'stages':>9}{'devices':>9}{'time':>11}{'tokens/s':>14}"
    for level in plan.levels:
        if level.num_stages is None:
            shown = f"{'a layer is too large':>29}"
        else:
            time = format_seconds(level.latency_s) if level.latency_s is not None else ""
            rate = f"{level.tokens_per_s:,.0f}" if level.tokens_per_s is not None else ""
            shown = f"{level.num_stages:>9}{level.num_devices:>9}{time:>11}{rate:>14}"
        yield f"  {level.name:<16}{format_bytes(level.room_bytes):>10}{shown}"


def _batches(plan: PartitionPlan) -> Iterator[str]:
    """Yield the batches that none beats for the system and for one user."""
    yield f"{'batch':>8}{'groups':>8}{'stages':>8}{'replicas':>10}{'time':>11}{'tokens/s':>14}"
    for entry in plan.batches:
        yield (
            f"{entry.batch_size:>8}{entry.num_groups:>8}{entry.num_stages:>8}{entry.replicas:>10}"
            f"{format_seconds(entry.latency_s):>11}{entry.tokens_per_s:>14,.0f}"
        )
    if plan.largest_batch:
        yield f"largest batch that fits {plan.num_devices_given} devices: {plan.largest_batch:,}"


def _proof(plan: PartitionPlan) -> Iterator[str]:
    """Yield the bounds."""
    proof = plan.proof
    bound = f"all bytes over the room of a device: {proof.lower_bound:,}"
    if proof.weights_lower_bound != proof.lower_bound:
        bound += f" ({proof.weights_lower_bound:,} for the weights alone)"
    text = f"no cut of whatever pieces needs fewer stages than {bound}"
    if proof.num_stages is not None:
        text += f"; no contiguous cut of these layers fewer than {proof.num_stages} (greedy)"
    yield from wrapped("proof ", text)
