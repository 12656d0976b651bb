"""Questions, plans and their differences in words."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from meshwright.base.arrays import gap_of
from meshwright.base.units import format_bytes, format_days, format_seconds
from meshwright.search.exhaustive import TIE, Coverage
from meshwright.sharding.strategy import Offload, Recompute, ScheduleKind
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import (
    Candidate,
    Comparison,
    Deadline,
    Estimate,
    FrameworkPrice,
    Front,
    HotLink,
    Placement,
    Plan,
    Robustness,
    Trials,
    Verified,
    WhyNot,
)
from meshwright.train.measured.factors import PLAN_ERROR, Factors
from meshwright.train.writing import WRITTEN
from meshwright.view.words import counted, named_type, per_million_tokens, words

SAME = 5e-4
"""Largest relative difference of step times that are called equal [1]."""
_OFFLOADED = {
    Offload.GRADIENTS: "gradients and optimizer",
    Offload.STATE: "weights, gradients and optimizer",
    Offload.ALL: "weights, optimizer and activations",
}
_SCHEDULES = {"1f1b": "1F1B", "zero_bubble": "zero bubble", "gpipe": "GPipe"}


def question_line(asked: Plan | Front | Comparison) -> str:
    """Return the question of an answer in one line."""
    work = asked.workload
    return (
        f"{asked.model.name} on {asked.system.name}: sequence {work.sequence_length:,}, "
        f"global batch {work.global_batch_size:,}, "
        f"{named_type(work.precision.matmul, asked.system.chip)}, {_optimizer(work, asked.model)}"
    )


def _optimizer(work: Training, model: ModelSpec) -> str:
    """Return the optimizer, and the format of frozen weights."""
    stored, preset = model.weight_format, work.optimizer
    rests = stored is not None and stored.trains_adapters and preset.freezes_weights
    rank = f" of rank {work.adapters.rank}" if work.adapters else ""
    on = f" on {stored.name}" if stored is not None and rests else ""
    return f"{preset.name}{rank}{on}"


def speed_in_words(plan: Plan) -> str:
    """Return the step time and the throughput, each with its interval where one is known."""
    price, tokens, step, rate = plan.best.estimate, plan.workload.tokens_per_step, "", ""
    if price.interval_s is not None:
        low_s, high_s = price.interval_s
        step = f" (80 %: {format_seconds(low_s)} to {format_seconds(high_s)})"
        rate = f" ({_rounded(tokens / high_s)} to {_rounded(tokens / low_s)})"
    speed = f"{price.tokens_per_s:,.0f} tokens/s{rate}"
    return f"{format_seconds(price.step_time_s)} a step{step}, {speed}"


def _rounded(value: float) -> str:
    """Return a rate of tokens in three digits: ``66,600``."""
    return f"{float(f'{value:.3g}'):,.0f}"


def interval_in_words(price: Estimate) -> str:
    """Return the interval of a step time, where one is known."""
    if price.interval_s is None:
        return "No interval"
    return " to ".join(map(format_seconds, price.interval_s))


def efficiency_in_words(best: Candidate) -> str:
    """Return the use of the devices, the fidelity, and the result of a simulation."""
    price, simulated = best.estimate, ""
    if best.simulated_s is not None:
        more = best.simulated_s / price.step_time_s - 1.0
        simulated = f", simulated {format_seconds(best.simulated_s)} ({more:+.1%})"
    return (
        f"MFU {price.mfu_causal:.1%}, {price.tokens_per_s_per_device:,.0f} tokens/s a device; "
        f"{price.fidelity.replace('_', '-')} model{simulated}"
    )


def launches_in_words(plan: Plan) -> str:
    """Return the frameworks that start the plan, the fastest of them with their own price.

    Frameworks whose memory alone is against it are named with that; rules are in the details.
    """
    stated = plan.workload.software.framework
    own = stated.partition("==")[0]
    listed = [entry for entry in plan.best.frameworks if entry.framework != own]
    start = sorted((entry for entry in listed if entry.launches),
                   key=lambda entry: entry.step_time_s or 0.0)  # fmt: skip
    starts = ", ".join(entry.framework + price_in_words(entry) * (place < MOST_PRICED)
                       for place, entry in enumerate(start))  # fmt: skip
    lacks = ", ".join(f"{entry.framework} ({entry.why_not})" for entry in listed
                      if not entry.launches and entry.memory_bytes is not None)  # fmt: skip
    lacks = f"; not with {lacks}" if lacks else ""
    if not stated:
        text = f"with {starts}" if starts else "with no framework of the catalog"
        return f"{text}{lacks}; no framework assumed (set --framework)"
    how = "".join(f", {switch} on" for switch in switches_in_words(plan))
    if (parts := plan.workload.software.logit_tiles) > 1:
        how += f", loss in {parts} parts"
    asked = next((entry for entry in plan.best.frameworks if entry.framework == own), None)
    if own in WRITTEN and asked is not None and asked.why_not and asked.memory_bytes is None:
        how += ", but no file of it expresses the plan (export says why)"
    return f"with {stated}, as asked{how}" + (f"; also {starts}" if starts else "") + lacks


MOST_PRICED = 3
"""Frameworks whose price a screen shows; the details have all."""


def price_in_words(entry: FrameworkPrice) -> str:
    """Return the time and the memory of a plan under a framework, where they are known."""
    if entry.step_time_s is None or entry.memory_bytes is None:
        return ""
    return f" {format_seconds(entry.step_time_s)} in {format_bytes(entry.memory_bytes)}"


def verified_in_words(found: Verified) -> str:
    """Return the outcome of a dry run in a line."""
    if found.starts is None:
        return f"not run dry: {found.reason}"
    if not found.starts:
        return f"does not start in a dry run: {found.reason}"
    equal = "equal" if not found.num_unequal else (
        f"{found.num_unequal} of {found.num_collectives} kinds differ"
    )  # fmt: skip
    return (
        f"{'started' if found.fits else 'does not fit'} in a dry run of {found.program}: peak "
        f"{format_bytes(found.peak_bytes or 0.0)}, priced {format_bytes(found.priced_bytes or 0.0)}"
        f"; collectives {equal}"
    )


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


def shortage(price: Estimate) -> str:
    """Return the memory that is too small, of the fullest device or its host, and the shortage."""
    if price.is_tight:
        free = format_bytes(price.margin_bytes - price.device_shortage_bytes)
        return (
            f"it fits with {free} to spare, less than the margin of "
            f"{format_bytes(price.margin_bytes)} for memory that no formula covers"
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


def blocks_in_words(placement: Placement) -> str:
    """Return the blocks, or the paths or cycles of a cover, in words, innermost first."""
    sides = "x".join(map(str, placement.grid_shape))
    ways = "one way" if placement.num_choices == 1 else f"best of {placement.num_choices} ways"
    if placement.lies_in != "blocks":
        parts = ", ".join(
            f"{axis} {prod(shape)} {'along each' if shape[-1] > 1 else 'from one to the next'}"
            for axis, shape in ((axis, placement.shapes[axis]) for axis in placement.axes)
        )
        return f"{placement.lies_in} of working neighbours on {sides}: {parts}; {ways} to lay them"
    blocks = ", ".join(
        f"{axis} {'x'.join(map(str, placement.shapes[axis]))}" for axis in placement.axes
    )
    of = " of rows x columns" if len(placement.grid_shape) == 2 else ""
    return f"blocks{of} on {sides}, from the inside: {blocks or 'one device'}; {ways} to nest them"


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


def trade(ours: Estimate, theirs: Estimate) -> tuple[str, str]:
    """Return the gain and the loss of another plan: time, memory of the fullest device."""
    slower = theirs.step_time_s / ours.step_time_s - 1.0
    more = theirs.memory_bytes - ours.memory_bytes
    memory = f"{abs(more) / 2**30:,.1f} GiB {'more' if more > 0 else 'less'} memory"
    return (
        "as fast" if abs(slower) < SAME else slower_in_words(slower),
        "as much memory" if abs(more) < 2**30 / 20 else memory,
    )


def slower_in_words(slower: float) -> str:
    """Return a difference of step times in words: ``3.0% slower``, ``2.5x as long``."""
    if slower > 1.0:
        return f"{1.0 + slower:.1f}x as long"
    return f"{abs(slower):.1%} {'slower' if slower >= 0 else 'faster'}"


def because_in_words(why: WhyNot, most: int = 3) -> str:
    """Return the parts of a step that are longest against the plan: ``TP communication +2 s``."""
    longer = list(why.because_s.items())[:most]
    return ", ".join(f"{words(name)} +{format_seconds(part_s)}" for name, part_s in longer)


def cost_in_words(plan: Plan) -> str:
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


def _count(number: float) -> str:
    """Return a count in the letters in which it is typed: ``2T``, ``65.54M``."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= scale:
            return f"{number / scale:,.4g}{letter}"
    return f"{number:,.0f}"


def beside_in_words(best: Candidate, yours: Candidate) -> str:
    """Return a running job beside the best plan for it."""
    now_s, best_s = yours.estimate.step_time_s, best.estimate.step_time_s
    text = f"{yours.text}: {format_seconds(now_s)} a step"
    if not yours.estimate.fits:
        return f"{text}, does not fit"
    return f"{text}; the plan is {1.0 - best_s / now_s:.1%} faster" if best_s < now_s else text


def measured_in_words(factors: Factors) -> tuple[str, str]:
    """Return whether measured jobs adjust the constants, and the reason with its warnings."""
    jobs, verdict = counted(factors.num_measurements, "measured job"), factors.verdict
    told = f"constants adjusted by {jobs}" if factors.is_applied else f"{jobs}, constants kept"
    return told, "\n".join((verdict.reason, *verdict.warnings)) if verdict else ""


def memory_in_words(best: Candidate) -> str:
    """Return the memory of the fullest device against its capacity."""
    price = best.estimate
    where = f", {price.fullest_stage} stage" if best.strategy.pp > 1 else ""
    sizes = price.memory_bytes, price.memory_capacity_bytes, price.margin_bytes
    used, room, free = (f"{size / 2**30:,.1f}" for size in sizes)
    margin = f", {free} of it margin" if price.margin_bytes else ""
    return f"{used} of {room} GiB{margin}{where}"


def host_in_words(price: Estimate) -> str:
    """Return the host memory of a device; empty where nothing is on the host."""
    if not price.host_bytes_per_device:
        return ""
    room = price.host_capacity_bytes_per_device
    of = f" of {format_bytes(room)}" if room is not None else ""
    return f"and {format_bytes(price.host_bytes_per_device)}{of} of host memory for each device"


def run_in_words(found: Deadline) -> str:
    """Return the time of a run with a time limit, with the interval of its step."""
    price, system, spread = found.plan.best.estimate, found.plan.system, ""
    if price.interval_s is not None:
        low, high = (found.run_s * step_s / price.step_time_s for step_s in price.interval_s)
        spread = f" (80 %: {format_days(low)} to {format_days(high)})"
    surely = "surely " if found.run_s <= found.within_s else ""
    return (
        f"{system.num_alive:,} {system.chip.name} {take(system.num_alive)} "
        f"{format_days(found.run_s)}{spread}, {'' if found.is_in_time else f'not {surely}'}within "
        f"{format_days(found.within_s)}"
    )


def take(num_devices: int) -> str:
    """Return the verb of a number of devices."""
    return "takes" if num_devices == 1 else "take"


def ends_of(link: HotLink, placement: Placement) -> str:
    """Return the two devices of a link."""
    ends = (_node(end, placement.grid_shape) for end in (link.source, link.target))
    return " to ".join(ends)


def _node(number: int, grid_shape: tuple[int, ...]) -> str:
    """Return a device and its place on the grid; nodes beyond the devices are IO dies."""
    if number >= prod(grid_shape):
        return f"IO die {number - prod(grid_shape)}"
    at, rest = [], number
    for side in grid_shape[::-1]:
        rest, place = divmod(rest, side)
        at.append(place)
    if len(at) == 2:
        return f"{number} (row {at[1]}, column {at[0]})"
    return f"{number} ({', '.join(map(str, at[::-1]))})"


def bound_in_words(plan: Plan, cover: Coverage) -> str:
    """Return the lower bound of all plans, and why the chosen one may be slower, in words."""
    # Placed plans share links, which the search does not see.
    nothing = "nothing" if plan.best.placement is None else "without contention nothing"
    bound = f"{nothing} is faster than {format_seconds(cover.lower_bound_s)} (gap {cover.gap:.1%})"
    behind = gap_of(plan.best.estimate.step_time_s, cover.lower_bound_s)
    if not cover.is_complete or behind < SAME:
        return bound
    if plan.best.placement is not None:
        return f"{bound}; with contention the plan is {behind:.1%} above that"
    return (
        f"{bound}; the plan is {behind:.1%} behind that: simpler plans lead within "
        f"{PLAN_ERROR:.0%}, the error between plans; within {TIE:.0%} plans without offload, then "
        "with less memory"
    )


def robustness_in_words(plan: Plan, robust: Robustness) -> str:
    """Return the rank of the plan under other constants, and the plans of other criteria."""
    faster = 1.0 - robust.best_stays_first_fraction
    text = (
        f"a plan over 1 % faster than plan 1 exists in {faster:.0%} of {robust.num_draws} draws of "
        "the constants"
    )
    if robust.step_time_s is not None:
        low_s, high_s = robust.step_time_s
        text += (
            f"; in 90 % of them plan 1 takes {format_seconds(low_s)} to {format_seconds(high_s)}"
        )
    names, found = plan_names(plan), []
    if robust.least_regret != plan.best.text:
        name = names.get(robust.least_regret, robust.least_regret)
        found.append(f"{name} loses least in the worst draw ({robust.least_regret_fraction:.1%})")
    ties = [names.get(text, text) for text in robust.ties if text != plan.best.text]
    if ties:
        found.append(f"{' or '.join(ties)} {'wins' if len(ties) == 1 else 'win'} in some draws")
    if not found:
        return text
    others = ", ".join(found)
    return f"{text}; {others}: all within 1 % of plan 1 or beyond what the constants can tell"


def plan_names(plan: Plan) -> dict[str, str]:
    """Return the names of the plans of a ranking: ``plan 1`` is the recommended one."""
    ranked = enumerate([plan.best, *plan.runners_up], 1)
    return {entry.text: f"plan {rank}" for rank, entry in ranked}


def trials_in_words(trials: Trials | None, names: Mapping[str, str] | None = None) -> str:
    """Return the plans to run for a few steps; empty where no trial is worth them.

    Parameters
    ----------
    names
        Short names of the plans, where they are not written in full.
    """
    if trials is None or not trials.run:
        return ""
    called = names or {}
    before, after = trials.regret_fractions[0], trials.regret_fractions[-1]
    runs = ", then ".join(called.get(plan, plan) for plan in trials.run)
    shares = sorted(trials.best_fraction.items(), key=lambda item: -item[1])
    odds = ", ".join(f"{called.get(plan, plan)} {share:.0%}" for plan, share in shares)
    return (
        f"to decide by measurement, run a few steps of {runs}: the expected loss against the "
        f"fastest of these plans falls from {before:.1%} to {after:.1%}; probability of being "
        f"the fastest: {odds}"
    )
