"""The view of a loop: the time of a step and its parts, and the memory of each phase."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds
from meshwright.loop.answer import LoopPlan, LoopStep
from meshwright.view.parts import Code, Page, Part, Section, Table, Text, Tile, Whole
from meshwright.view.pieces import provenance
from meshwright.view.registry import view
from meshwright.view.words import JOULES_PER_KWH, counted, rent_rate, words

NAMES = {
    "prompts_s": "prompts", "full_s": "answers, at least half of them", "tail_s": "answers, tail",
    "park_s": "offload and load", "update_s": "training", "critic_update_s": "training of critic",
    "reference_s": "reference log-probs", "old_log_probs_s": "old log-probs",
}  # fmt: skip


@view(LoopPlan)
def loop_page(plan: LoopPlan) -> Page:
    """Return the page of the fastest step of a loop."""
    sections = (
        Section("time", "Where does the step go?", [_time(plan)]),
        Section("memory", "What is on a device in each phase?", list(_memory(plan))),
        Section("others", "Why not another engine or split?", [_others(plan)]),
        Section("start", "How does verl start it?", [_verl(plan)] if plan.verl else []),
        Section("sure", "How sure is it?", [Text(_proof(plan)), provenance(plan.system)]),
    )
    return Page(
        title=f"{plan.work.algorithm} of {plan.model.name} on {plan.system.name}",
        subtitle=question_of_loop(plan),
        tiles=list(_tiles(plan)),
        sections=sections,
    )


def question_of_loop(plan: LoopPlan) -> str:
    """Return the question in a line: model, system, algorithm, sizes and sharing."""
    work, lengths = plan.work, plan.work.lengths
    answers = f"{lengths.mean:,.0f}" if lengths.are_equal else (
        f"{lengths.mean:,.0f} (at most {lengths.longest:,.0f})"
    )  # fmt: skip
    how = "colocated"
    if plan.sharing.apart:
        how = f"apart, {counted(plan.sharing.staleness, 'update')} behind"
    return (
        f"{plan.model.name} on {plan.system.name}: {work.algorithm}, {work.prompts:,} prompts x "
        f"{work.samples} answers of {work.prompt:,} + {answers} tokens, "
        f"{counted(work.num_updates, 'update')} a step, {how}"
    )


def _tiles(plan: LoopPlan) -> Iterator[Tile]:
    best = plan.best
    ends = best.interval_s
    between = f" (80 %: {format_seconds(ends[0])} to {format_seconds(ends[1])})" if ends else ""
    yield Tile(
        "How long is a step?", f"{format_seconds(best.step_time_s)} a step{between}",
        f"{best.tokens_per_s:,.0f} tokens/s, {best.answer_tokens_per_s:,.0f} of answers; rollout "
        f"{format_seconds(best.rollout_s)}; closed-form model", "time", "good", "FITS",
    )  # fmt: skip
    train, rolls = best.training, best.rollout
    devices = f" on {best.train_devices:,}" if plan.sharing.apart else ""
    yield Tile(
        "How is it trained?", f"{train.text}{devices}",
        f"{format_seconds(train.estimate.step_time_s)} an update of "
        f"{plan.workload.tokens_per_step:,} tokens, MFU {train.estimate.mfu_causal:.1%}"
        + ("" if best.park == "none" else f"; parked between phases: {best.park}"),
        "start", label="train",
    )  # fmt: skip
    devices = f" on {best.rollout_devices:,}" if plan.sharing.apart else ""
    yield Tile(
        "How does it roll out?", f"{rolls.text}{devices}",
        f"{plan.engine} at a memory share of {best.memory_share:.2f}; longest answer "
        f"{plan.longest_answer:,.0f} tokens, {plan.cut_share:.1%} cut off",
        "start", label="rollout",
    )  # fmt: skip
    yield Tile("Where does the step go?", "", "", "time", label="time", part=_time(plan))
    full = best.fullest
    yield Tile(
        "Which phase is fullest?",
        f"{words(full.phase)}, {format_bytes(full.memory_bytes)} of "
        f"{format_bytes(plan.memory_capacity_bytes)}; {full.knob} lowers it first",
        "", "memory", label="memory", part=_phases(plan),
    )  # fmt: skip
    energy = "" if best.energy_j is None else f" and {best.energy_j / JOULES_PER_KWH:.3g} kWh"
    cost = "price unknown" if best.cost_usd is None else f"{best.cost_usd:.3g} USD{energy} a step"
    every = best.train_devices + best.rollout_devices * plan.sharing.apart
    yield Tile("What does it cost?", cost, rent_rate(plan.system.chip, every), label="cost")
    yield Tile("Is it the best?", _proof(plan), "", "sure", label="proof", spare=1)
    rows = [
        (one.text, f"{one.step_time_s / best.step_time_s - 1.0:.0%} slower") for one in plan.others
    ]
    if rows:
        yield Tile("Why not another engine?", rows[0][0], rows[0][1], "others", label="instead",
                   part=Table(("", ""), rows[:2]), spare=2)  # fmt: skip
    note = "all with --detail" if plan.verl else ""
    yield Tile("How does verl start it?", _first_options(plan), note, "start",
               label="verl", spare=3)  # fmt: skip


def _proof(plan: LoopPlan) -> str:
    least = format_seconds(plan.lower_bound_s)
    if plan.sharing.apart:
        splits = f"fastest of the {plan.num_combinations:,} splits of the devices that were tried"
        return f"{splits}; none of these takes less than {least}"
    tried = f"fastest of {plan.num_combinations:,} combinations of plan and engine"
    return f"{tried}, at most {plan.gap:.0%} slower; no combination takes less than {least}"


def _first_options(plan: LoopPlan) -> str:
    if not plan.verl:
        if plan.sharing.apart:
            return "its recipes for roles apart have options of their own"
        return "does not train so: --framework fsdp, --recompute full or none, --offload none"
    shown = (
        "strategy",
        "tensor_model_parallel_size",
        "gpu_memory_utilization",
        "ppo_max_token_len_per_gpu",
    )
    return ", ".join(
        f"{name.rpartition('.')[2]}={value}" for name, value in plan.verl.items()
        if name.rpartition(".")[2] in shown
    )  # fmt: skip


def _time(plan: LoopPlan) -> Whole:
    parts = {NAMES.get(name, words(name)): s for name, s in plan.best.time_parts_s.items() if s}
    return Whole("Time of a step", parts, "s", plan.best.step_time_s)


def _phases(plan: LoopPlan) -> Table:
    """Return the memory of each phase in a line: its total and its largest parts."""
    rows = []
    for phase in plan.best.memory:
        parts = sorted(phase.memory_parts_bytes.items(), key=lambda part: -part[1])
        shown = ", ".join(
            f"{words(name)} {size / 2**30:.1f}" for name, size in parts[:4] if size >= 2**26
        )
        rows.append((words(phase.phase), format_bytes(phase.memory_bytes), shown))
    return Table(("", "memory>", "GiB of its largest parts"), rows)


def _memory(plan: LoopPlan) -> Iterator[Part]:
    for phase in plan.best.memory:
        parts = {words(name): size for name, size in phase.memory_parts_bytes.items() if size}
        yield Whole(
            f"{words(phase.phase)} ({phase.knob})", parts, "bytes",
            capacity=plan.memory_capacity_bytes,
        )  # fmt: skip


def _others(plan: LoopPlan) -> Table:
    def cells(one: LoopStep) -> tuple[str | float, ...]:
        return (
            one.training.text, one.rollout.text, one.train_devices, one.rollout_devices, one.park,
            f"{one.memory_share:.2f}", one.step_time_s, one.rollout_s,
        )  # fmt: skip

    return Table(
        ("training", "engine", "devices of training [#]", "of rollouts [#]", "parked", "share>",
         "step [s]", "rollout [s]"),
        [cells(one) for one in plan.steps()], "Steps, the fastest first",
    )  # fmt: skip


def _verl(plan: LoopPlan) -> Code:
    lines = [f"{name}={value}" for name, value in plan.verl.items()]
    return Code("python3 -m verl.trainer.main_ppo \\\n  " + " \\\n  ".join(lines))
