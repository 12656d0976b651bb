"""The screens of training: the answer first, within 24 lines; the rest is in the detail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshwright.base.units import format_bytes, format_days, format_seconds
from meshwright.cost.problem import UNCALIBRATED_NOTE
from meshwright.sharding.strategy import Offload, Recompute, ScheduleKind
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import (
    Candidate,
    Deadline,
    Estimate,
    Front,
    Placement,
    Plan,
    Replan,
)
from meshwright.train.question import frameworks_on
from meshwright.train.writing import WRITTEN
from meshwright.view.pieces import largest
from meshwright.view.screen import (
    Bars,
    Row,
    Screen,
    Stacked,
    Table,
)
from meshwright.view.words import (
    JOULES_PER_KWH,
    counted,
    named_type,
    per_million_tokens,
    rent_rate,
    words,
)

if TYPE_CHECKING:
    from meshwright.train.compare import Comparison
    from meshwright.train.explain import Explanation

SAME = 5e-4
"""Largest relative difference of step times that are called equal [1]."""
_WARNINGS_BY_WEIGHT = (
    "interrupted", UNCALIBRATED_NOTE.split(":")[0], "outside the evidence", "stay idle",
    "the slowest device", "does not divide", "the busiest expert",
)  # fmt: skip
_OFFLOADED = {
    Offload.GRADIENTS: "gradients and optimizer",
    Offload.STATE: "weights, gradients and optimizer",
    Offload.ALL: "weights, optimizer and activations",
}
_SCHEDULES = {"1f1b": "1F1B", "zero_bubble": "zero bubble", "gpipe": "GPipe"}


def plan_screen(
    plan: Plan, *, others: Sequence[Candidate] = (), yours: Candidate | None = None,
    next_command: str = "",
) -> Screen:  # fmt: skip
    """Return the screen of a plan or of the price of one strategy.

    Parameters
    ----------
    others
        Other plans to show where the plan has no runners-up, such as changes that fit.
    yours
        The job as its files start it, where the question was read from them.
    """
    price = plan.best.estimate
    screen = Screen(question_line(plan))
    screen.gap()
    _add_verdict(screen, plan)
    _add_plan(screen, plan.best)
    if plan.proof:
        screen.add("proof", plan.proof)
    if yours is not None:
        screen.add("yours", _beside(plan.best, yours))
    if plan.best.placement is None or frameworks_on(plan.system.chip):
        screen.add("launches", launches_in_words(plan), spare=2)
    if plan.best.placement is not None:
        screen.add("placed", blocks_in_words(plan.best.placement), spare=2)
    if plan.operators is not None:
        gain = price.step_time_s / plan.operators.step_time_s - 1.0
        screen.add("operators", f"each group of operators with its own strategy: "
                   f"{format_seconds(plan.operators.step_time_s)} a step, "
                   f"{slower_in_words(-gain)} than one for all")  # fmt: skip
    if plan.factors is not None:
        number = counted(plan.factors.num_measurements, "measured job")
        screen.add("adjusted", f"constants adjusted by {number}")
    screen.gap()
    _add_memory(screen, plan.best)
    screen.gap()
    named = {words(name): seconds for name, seconds in plan.best.estimate.time_parts_s.items()}
    screen.add("time", Bars(named, format_seconds, spare=4))
    _add_alternatives(screen, plan.best, plan.runners_up or others)
    _add_end(screen, plan.warnings, next_command)
    return screen


def _add_verdict(screen: Screen, plan: Plan) -> None:
    """Add the verdict, the speed and the cost."""
    price, work = plan.best.estimate, plan.workload
    tokens, step, rate = work.tokens_per_step, "", ""
    if price.interval_s is not None:
        low_s, high_s = price.interval_s
        step = f" (80 %: {format_seconds(low_s)} to {format_seconds(high_s)})"
        rate = f" ({_round(tokens / high_s)} to {_round(tokens / low_s)})"
    speed = f"{price.tokens_per_s:,.0f} tokens/s{rate}"
    text = f"{format_seconds(price.step_time_s)} a step{step}, {speed}"
    label, style = _verdict(price)
    screen.add(label, text if price.fits else shortage(price), style=style)
    if not price.fits:
        screen.add("", text)
    screen.add(
        "",
        f"MFU {price.mfu_causal:.1%}, {price.tokens_per_s_per_device:,.0f} tokens/s a device; "
        f"{price.fidelity.replace('_', '-')} model{_simulated(plan.best)}",
        spare=2,
    )  # fmt: skip
    screen.add("cost", _cost(plan))
    if rate := rent_rate(plan.system.chip, price.num_devices_used):
        screen.add("", rate, spare=2)


def _beside(best: Candidate, yours: Candidate) -> str:
    """Return a running job beside the best plan for it."""
    now_s, best_s = yours.estimate.step_time_s, best.estimate.step_time_s
    text = f"{yours.text}: {format_seconds(now_s)} a step"
    if not yours.estimate.fits:
        return f"{text}, does not fit"
    return f"{text}; the plan is {now_s / best_s - 1.0:.1%} faster" if best_s < now_s else text


def _round(value: float) -> str:
    """Return a rate of tokens in three digits: ``66,600``."""
    return f"{float(f'{value:.3g}'):,.0f}"


def _cost(plan: Plan) -> str:
    """Return days, money and energy: of the whole run where its tokens are stated."""
    price, work = plan.best.estimate, plan.workload
    million = work.tokens_per_step / 1e6
    usd = None if price.cost_usd is None else price.cost_usd / million
    text = per_million_tokens(usd, None if price.energy_j is None else price.energy_j / million)
    if plan.run_s is None or work.total_tokens is None:
        return text
    run = f"{format_days(plan.run_s)} for {_count(work.total_tokens)} tokens"
    if price.cost_usd is not None:
        # devices are rented by the day, restarts included, not by the step
        run += f", {price.cost_usd / price.step_time_s * plan.run_s:,.0f} USD"
    if work.batch_ramp is not None:
        added_s = price.ramp_s / price.goodput_fraction
        run += f", {format_days(added_s)} of it because the batch grows"
    return f"{run} (goodput {price.goodput_fraction:.1%}); {text}"


def _add_plan(screen: Screen, best: Candidate) -> None:
    screen.add("plan", best.text, style="bold")
    screen.add("", plan_in_words(best), spare=3)


def launches_in_words(plan: Plan) -> str:
    """Return the frameworks that can start the plan, and the one it was priced for, in words."""
    stated, names = plan.workload.software.framework, plan.best.launches_with
    if stated:
        others = [name for name in names if name != stated.partition("==")[0]]
        how = "".join(f", {switch} on" for switch in switches_in_words(plan))
        if stated.partition("==")[0] in WRITTEN and len(others) == len(names):
            how += ", but no file can say it (export names why)"
        return f"with {stated}, as asked{how}" + (f"; also {', '.join(others)}" if others else "")
    text = f"with {', '.join(names)}" if names else "with no framework of the catalog"
    return f"{text}; no framework assumed (set --framework)"


def switches_in_words(plan: Plan) -> list[str]:
    """Return the switches of the framework that are on in a plan."""
    software, best = plan.workload.software, plan.best
    overlaps = best.plan_options.overlap_tensor_parallel and best.strategy.tp > 1
    found = {
        "torch.compile": software.compiled, "compiled loss": software.loss == "compiled",
        "fused loss": software.loss in ("linear", "cut"), "async TP": overlaps,
        "CUDA graphs": software.cuda_graphs,
    }  # fmt: skip
    return [name for name, is_on in found.items() if is_on]


def plan_in_words(best: Candidate) -> str:
    """Return the degrees and choices of a plan in the words of the field."""
    s, plan_options, price = best.strategy, best.plan_options, best.estimate
    parts = []
    if s.tp > 1:
        how = " with sequence parallelism" if plan_options.sequence_parallel else ""
        parts.append(f"tensor parallel {s.tp:.0f}{how}")
    if s.tatp > 1:
        parts.append(f"tensor streams over {s.tatp:.0f}")
    if s.pp > 1:
        kind = _SCHEDULES.get(str(plan_options.schedule), str(plan_options.schedule))
        if s.num_virtual_stages > 1:
            kind += f" {s.num_virtual_stages:.0f}"
        parts.append(f"{s.pp:.0f} pipeline stages ({kind})")
    if s.cp > 1:
        parts.append(f"context parallel {s.cp:.0f} ({plan_options.context_kind})")
    if s.ep > 1:
        hides = ", its communication behind another micro-batch"
        parts.append(f"expert parallel {s.ep:.0f}{hides * plan_options.overlap_expert_parallel}")
    if s.dp > 1:
        parts.append(f"data parallel {s.dp:.0f}")
    if plan_options.zero_stage and s.dp_shard * s.cp > 1:
        parts.append(f"ZeRO-{plan_options.zero_stage}")
    if plan_options.recompute is not Recompute.NONE:
        some = f" of {', '.join(plan_options.recompute_modules)}" * bool(
            plan_options.recompute_modules
        )
        if plan_options.stored_tensors:
            some = f" of all but {', '.join(plan_options.stored_tensors)}"
        if plan_options.recomputes_some:
            some = f" of {counted(plan_options.recompute_layers, 'layer', 'layers')} in each chunk"
        if plan_options.recomputes_runs:
            some = f" of {plan_options.recompute_run} layers from one input"
        parts.append(f"{plan_options.recompute} recomputation{some}")
    if plan_options.offload is not Offload.NONE:
        parts.append(
            f"{_OFFLOADED.get(plan_options.offload, plan_options.offload)} offloaded to the host"
        )
    if plan_options.stored_tensors and plan_options.offloaded_tensors:
        parts.append(f"{', '.join(plan_options.offloaded_tensors)} offloaded to the host")
    hosted = s.num_devices - price.num_devices_used
    ranks = f"{s.num_devices:.0f} ranks of " if hosted > 0 else ""
    batches = (
        f"{counted(price.num_micro_batches, 'micro-batch', 'micro-batches')} of "
        f"{s.micro_batch_size:.0f} "
        f"on {ranks}{price.num_devices_used:,} devices"
    )
    return f"{', '.join(parts) or 'one device'}; {batches}"


def _add_memory(screen: Screen, best: Candidate, *, has_legend: bool = True) -> None:
    """Add the fullest device against its capacity."""
    price = best.estimate
    where = f", {price.fullest_stage} stage" if best.strategy.pp > 1 else ""
    margin = f", {_gib(price.margin_bytes)} of it margin" if price.margin_bytes else ""
    head = f"{_gib(price.memory_bytes)} of {_gib(price.memory_capacity_bytes)} GiB{margin}{where}"
    named = {words(name): size for name, size in price.memory_parts_bytes.items()}
    stack = Stacked(head, named, price.memory_capacity_bytes, _gib, most=5 if has_legend else 0)
    screen.add("memory", stack)
    if price.host_bytes_per_device:
        room = price.host_capacity_bytes_per_device
        of = f" of {format_bytes(room)}" if room is not None else ""
        host = f"and {format_bytes(price.host_bytes_per_device)}{of} of host memory for each device"
        screen.add("", host, spare=2)


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f}"


def _add_alternatives(screen: Screen, best: Candidate, others: Sequence[Candidate]) -> None:
    """Add the two alternatives that trade most: the fastest, and the one with least memory."""
    if not others:
        return
    by_time = sorted(others, key=lambda entry: entry.estimate.step_time_s)
    by_memory = sorted(others, key=lambda entry: entry.estimate.memory_bytes)
    chosen = list(dict.fromkeys(map(others.index, (*by_time[:1], *by_memory[:1], *others))))[:2]
    screen.gap()
    rows = [(difference(best, entry), *_trade(best.estimate, entry.estimate))
            for entry in map(others.__getitem__, sorted(chosen))]  # fmt: skip
    screen.add("instead", Table(("", "", ""), rows), spare=1)


def _trade(ours: Estimate, theirs: Estimate) -> tuple[str, str]:
    """Return the gain and the loss of another plan: time, memory of the fullest device."""
    slower = theirs.step_time_s / ours.step_time_s - 1.0
    more = theirs.memory_bytes - ours.memory_bytes
    memory = f"{_gib(abs(more))} GiB {'more' if more > 0 else 'less'} memory"
    return (
        "as fast" if abs(slower) < SAME else slower_in_words(slower),
        "as much memory" if abs(more) < 2**30 / 20 else memory,
    )


def difference(best: Candidate, other: Candidate) -> str:
    """Return the features of another plan that this one lacks: ``vpp10, interleaved, no sp``."""
    ours, theirs = (
        {_kind(word): word for word in entry.text.replace(",", "").split()}
        for entry in (best, other)
    )
    has = [word for kind, word in theirs.items() if ours.get(kind) != word]
    lacks = [f"no {word}".removeprefix("no no-") for kind, word in ours.items()
             if kind not in theirs]  # fmt: skip
    return ", ".join(has + lacks) or other.text


def _kind(word: str) -> str:
    """Return the degree or choice that a word of a plan string states."""
    if word in map(str, ScheduleKind):
        return "schedule"
    return word.partition("=")[0].rstrip("0123456789")


def _add_end(screen: Screen, warnings: Sequence[str], next_command: str) -> None:
    """Add the most important warning, and the next command."""
    screen.gap()
    if warnings:
        ranked = [text for mark in _WARNINGS_BY_WEIGHT for text in warnings if mark in text]
        left = len(warnings) - 1
        more = f" ({left} more with --detail)" if left else ""
        screen.add("warning", (ranked or warnings)[0] + more, style="yellow")
    if next_command:
        screen.add("next", next_command, style="bold")


def fit_screen(plan: Plan, would_fit: Sequence[Candidate], *, next_command: str = "") -> Screen:
    """Return the screen of a fit: the verdict, the memory by part, and nearby changes that fit."""
    price = plan.best.estimate
    screen = Screen(question_line(plan))
    screen.gap()
    left = price.memory_capacity_bytes - price.memory_bytes
    room = f"{format_bytes(left)} left on the fullest device, beside the margin"
    label, style = _verdict(price)
    screen.add(label, room if price.fits else shortage(price), style=style)
    _add_plan(screen, plan.best)
    screen.add("launches", launches_in_words(plan), spare=2)
    screen.gap()
    _add_memory(screen, plan.best, has_legend=False)
    parts = {words(name): size for name, size in price.memory_parts_bytes.items()}
    screen.add("", Bars(parts, format_bytes, most=8, whole=price.memory_capacity_bytes), spare=1)
    if would_fit:
        screen.gap()
        rows = [(difference(plan.best, entry), f"{_gib(entry.estimate.memory_bytes)} GiB")
                for entry in would_fit]  # fmt: skip
        screen.add("fits with", Table(("", ">"), rows))
    elif not price.fits:
        screen.gap()
        text = f"no plan on {plan.system.name}: more devices, or an optimizer with less state"
        screen.add("fits with", text)
    _add_end(screen, plan.warnings, next_command)
    return screen


def _verdict(price: Estimate) -> tuple[str, str]:
    """Return the verdict on memory in a word, and its style."""
    if price.fits:
        return "FITS", "bold green"
    return ("TIGHT", "bold yellow") if price.is_tight else ("NO FIT", "bold red")


def shortage(price: Estimate) -> str:
    """Return the memory that is too small, of the fullest device or its host, and the shortage."""
    if price.is_tight:
        free = format_bytes(price.margin_bytes - price.device_shortage_bytes)
        return (
            f"it fits with {free} to spare, less than the margin of "
            f"{format_bytes(price.margin_bytes)} for what no formula knows"
        )
    parts = []
    if price.device_shortage_bytes:
        parts.append(f"{format_bytes(price.device_shortage_bytes)} too much on the fullest device")
    if price.host_shortage_bytes:
        parts.append(
            f"{format_bytes(price.host_shortage_bytes)} too much for each device in the memory of "
            "its host"
        )
    return " and ".join(parts)


def front_screen(found: Sequence[Candidate], unknown: Sequence[str], *, most: int = 10) -> Screen:
    """Return the plans that no other one beats in time, memory, energy and money at once."""
    screen = Screen(f"{len(found)} plans of which none is beaten in every respect")
    rows = []
    number = len(found)
    steps = max(min(number, most) - 1, 1)
    chosen = sorted({round(k * (number - 1) / steps) for k in range(min(number, most))})
    for entry in map(found.__getitem__, chosen):
        price = entry.estimate
        energy = "unknown" if price.energy_j is None else f"{price.energy_j / JOULES_PER_KWH:.3g}"
        money = "unknown" if price.cost_usd is None else f"{price.cost_usd:.3g}"
        rows.append((format_seconds(price.step_time_s), _gib(price.memory_bytes), energy, money,
                     entry.text))  # fmt: skip
    screen.add("", Table(("step>", "GiB>", "kWh>", "USD>", "plan"), rows))
    if number > most:
        screen.add("", f"and {number - most} between them with --detail")
    if unknown:
        screen.add("left out", f"not known: {', '.join(words(name) for name in unknown)}")
    return screen


def front_in_brief(found: Front) -> str:
    """Return the size of a front, and its ends: the fastest plan, and that of least memory."""
    by_time = sorted(found.candidates, key=lambda entry: entry.estimate.step_time_s)
    by_memory = min(found.candidates, key=lambda entry: entry.estimate.memory_bytes)
    ends = [f"{name}: {format_seconds(entry.estimate.step_time_s)} a step, "
            f"{_gib(entry.estimate.memory_bytes)} GiB, {entry.text}"
            for name, entry in (("fastest", by_time[0]), ("least memory", by_memory))]  # fmt: skip
    return "\n".join([f"{question_line(found)}: {counted(len(by_time), 'plan')}", *ends])


def replan_screen(changed: Replan, *, next_command: str = "") -> Screen:
    """Return the plan after a loss of devices, the cost of the loss, and the state that moves."""
    screen = plan_screen(changed.plan, next_command=next_command)
    lost = (
        f"{changed.num_lost} devices lost: {changed.throughput_fraction:.1%} of the throughput; "
        f"{format_bytes(changed.moved_bytes_per_device)} to load on each device"
    )
    what = "; ".join(changed.changed) or "the plan stays as it is"
    screen.rows[1:1] = [Row("change", lost, style="bold"), Row("", what, spare=2)]
    return screen


def _take(num_devices: int) -> str:
    return "takes" if num_devices == 1 else "take"


def deadline_screen(found: Deadline, *, next_command: str = "") -> Screen:
    """Return the plan for a run with a time limit: its verdict, and the number of devices.

    Days have the interval of the step.
    """
    plan, price = found.plan, found.plan.best.estimate
    screen = plan_screen(plan, next_command=next_command)
    spread = ""
    if price.interval_s is not None:
        low, high = (found.run_s * step_s / price.step_time_s for step_s in price.interval_s)
        spread = f" (80 %: {format_days(low)} to {format_days(high)})"
    surely = "surely " if found.run_s <= found.within_s else ""
    text = (
        f"{plan.system.num_alive:,} {plan.system.chip.name} {_take(plan.system.num_alive)} "
        f"{format_days(found.run_s)}{spread}, {'' if found.is_in_time else f'not {surely}'}within "
        f"{format_days(found.within_s)}"
    )
    label, style = ("IN TIME", "bold green") if found.is_in_time else ("LATE", "bold red")
    verdict = [Row(label, text, style=style)]
    others = [tried for tried in found.tried if tried.num_devices != plan.system.num_devices]
    if others:
        took = [
            f"{one.num_devices:,} "
            + (
                "without a plan"
                if one.run_s is None
                else f"{_take(one.num_devices)} {format_days(one.run_s)}"
            )
            for one in others
        ]
        verdict.append(Row("", f"the fewest that do of those tried; {', '.join(took)}", spare=1))
    screen.rows[1:1] = verdict
    return screen


def comparison_screen(found: Comparison, *, next_command: str = "") -> Screen:
    """Return the recipes side by side, the best plan of each as one line."""
    ours, screen = found.ours, Screen(question_line(found))
    screen.gap()
    if ours.best is not None:
        price = ours.best.estimate
        text = f"{format_seconds(price.step_time_s)} a step, {price.tokens_per_s:,.0f} tokens/s"
        screen.add("best", text, style="bold green")
        screen.add("plan", ours.best.text, style="bold")
        screen.gap()
    places = any(entry.mapper for entry in found.entries)
    rows = []
    for entry in found.entries:
        placed = [entry.mapper or "-"] if places else []
        if entry.best is None:
            rows.append((entry.recipe, *placed, "none fits", "", "", "", ""))
            continue
        price, times = entry.best.estimate, entry.speedup_of(ours)
        gain = "" if times is None or entry is ours else f"{times:.2f}x"
        saved = "" if price.tokens_per_j is None else f"{price.tokens_per_j:.1f}"
        rows.append((entry.recipe, *placed, format_seconds(price.step_time_s), gain,
                     _gib(price.memory_bytes), f"{price.mfu_causal:.1%}", saved))  # fmt: skip
    heads = ("recipe", *(["placed by"] if places else []), "step>", "ours faster>", "GiB>",
             "MFU>", "tokens/J>")  # fmt: skip
    shown = rows[:14]
    screen.add("", Table(heads, shown))
    if len(rows) > len(shown):
        screen.add("", f"and {len(rows) - len(shown)} more with --detail")
    _add_end(screen, (), next_command)
    return screen


def comparison_in_brief(found: Comparison) -> str:
    """Return the lead of the screen of a comparison, and the recipe that comes next."""
    ours, lead = found.ours, comparison_screen(found).lead
    others = {entry.recipe: times for entry in found.entries[1:]
              if (times := entry.speedup_of(ours)) is not None}  # fmt: skip
    if not others:
        return lead if ours.best is not None else f"{lead}\nNO FIT: {ours.why_none}"
    name = min(others, key=lambda recipe: others[recipe])
    return f"{lead}\nnext: {name}, {others[name]:.2f}x the time"


def explain_screen(plan: Plan, explanation: Explanation, *, next_command: str = "") -> Screen:
    """Return the reasons for a plan: its time, the best changes, and why the others lose."""
    price = plan.best.estimate
    screen = Screen(question_line(plan))
    screen.gap()
    _add_verdict(screen, plan)
    _add_plan(screen, plan.best)
    screen.add("launches", launches_in_words(plan), spare=2)
    screen.gap()
    screen.add("time", Bars({words(n): t for n, t in price.time_parts_s.items()}, format_seconds,
                            most=3))  # fmt: skip
    helps = [change for change in explanation.changes if change.faster_by_fraction > SAME][:3]
    if helps:
        text = ", ".join(f"{c.what} {c.faster_by_fraction:.1%} faster" for c in helps)
        screen.add("hardware", text, spare=2)
    screen.gap()
    others = [why for why in explanation.why_not if not why.question.startswith("the runner-up")]
    rows = []
    for why in others:
        longer = list(why.because_s.items())[:1]
        because = ", ".join(f"{words(name)} +{format_seconds(time_s)}" for name, time_s in longer)
        rows.append((why.question, slower_in_words(why.slower_by_fraction), because))
    rows += [(name, "impossible", reason) for name, reason in explanation.not_possible.items()]
    if rows:
        screen.add("why not", Table(("", "", ""), rows[:5]), spare=1)
    if not rows and plan.runners_up:
        _add_alternatives(screen, plan.best, plan.runners_up)
    _add_end(screen, plan.warnings, next_command)
    return screen


def explanation_in_brief(found: Explanation) -> str:
    """Return a plan, its limits, and the change that gains most."""
    price, text = found.plan.best.estimate, f"{question_line(found.plan)}\n{found.plan.best.text}"
    limits = largest(price.time_parts_s, price.step_time_s)
    helps = max(found.changes, key=lambda change: change.faster_by_fraction)
    return (f"{text}\n{format_seconds(price.step_time_s)} a step: {limits}; {helps.what}: "
            f"{helps.faster_by_fraction:.1%} faster")  # fmt: skip


def slower_in_words(slower: float) -> str:
    """Return a difference of step times in words: ``3.0% slower``, ``2.5x as long``."""
    if slower > 1.0:
        return f"{1.0 + slower:.1f}x as long"
    return f"{abs(slower):.1%} {'slower' if slower >= 0 else 'faster'}"


def _count(number: float) -> str:
    """Return a count in the letters in which it is typed: ``2T``, ``65.54M``."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= scale:
            return f"{number / scale:,.4g}{letter}"
    return f"{number:,.0f}"


def _optimizer(work: Training, model: ModelSpec) -> str:
    """Return the optimizer, and the format of frozen weights."""
    stored, preset = model.weight_format, work.optimizer
    rests = stored is not None and stored.trains_adapters and preset.freezes_weights
    rank = f" of rank {work.adapters.rank}" if work.adapters else ""
    on = f" on {stored.name}" if stored is not None and rests else ""
    return f"{preset.name}{rank}{on}"


def question_line(plan: Plan | Front | Comparison) -> str:
    """Return the question in one line."""
    work = plan.workload
    return (
        f"{plan.model.name} on {plan.system.name}: sequence {work.sequence_length:,}, "
        f"global batch {work.global_batch_size:,}, "
        f"{named_type(work.precision.matmul, plan.system.chip)}, {_optimizer(work, plan.model)}"
    )


def _simulated(entry: Candidate) -> str:
    """Return the result of a simulation in words; empty where there was none."""
    if entry.simulated_s is None:
        return ""
    more = entry.simulated_s / entry.estimate.step_time_s - 1.0
    return f", simulated {format_seconds(entry.simulated_s)} ({more:+.1%})"


def blocks_in_words(placement: Placement) -> str:
    """Return the blocks in words, innermost first."""
    sides = "x".join(map(str, placement.grid_shape))
    blocks = ", ".join(
        f"{axis} {'x'.join(map(str, placement.shapes[axis]))}" for axis in placement.axes
    )
    of = " of rows x columns" if len(placement.grid_shape) == 2 else ""
    ways = "one way" if placement.num_choices == 1 else f"best of {placement.num_choices} ways"
    return f"blocks{of} on {sides}, from the inside: {blocks or 'one device'}; {ways} to nest them"
