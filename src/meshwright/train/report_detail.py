"""Lines of ``--detail`` on the screens of training: efficiency, parts, ranking, proof, trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from string import ascii_uppercase
from typing import TYPE_CHECKING

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.search.exhaustive import TIE, Coverage
from meshwright.train.answer import (
    Candidate,
    Estimate,
    OperatorPlan,
    Placement,
    Plan,
    Robustness,
    Trials,
    WhyNot,
)
from meshwright.train.measured.factors import PLAN_ERROR
from meshwright.train.report import blocks_in_words
from meshwright.view.screen import memory_lines, time_lines, wrapped
from meshwright.view.words import JOULES_PER_KWH, counted, words

if TYPE_CHECKING:
    from meshwright.train.compare import Comparison, Entry
    from meshwright.train.explain import Explanation
    from meshwright.train.measured.factors import Factors
    from meshwright.train.robustness import Change


SHOWN_TIE = 5e-4


def plan_lines(plan: Plan, changes: list[Change]) -> Iterator[str]:
    """Yield the lines that the screen of a plan leaves out, at the width of the terminal."""
    yield from efficiency_lines(plan.best)
    yield ""
    yield from device_lines(plan.best)
    yield ""
    step = plan.best.estimate
    yield from time_lines("time of a step", step.time_parts_s, step.step_time_s)
    yield ""
    if plan.best.placement is not None:
        yield from placement_lines(plan.best.placement)
        yield ""
    if plan.operators is not None:
        yield from operator_lines(plan.operators, plan.best.estimate.step_time_s)
        yield ""
    if plan.runners_up:
        yield from ranking_lines(plan)
        yield ""
    yield from limit_lines(plan, changes)
    for why in plan.why_not:
        yield from why_not_lines(why)
    yield from proof_lines(plan)
    if plan.factors is not None:
        yield from factor_lines(plan.factors)
    for warning in plan.warnings:
        yield from wrapped("warning: ", warning)


def efficiency_lines(best: Candidate) -> Iterator[str]:
    """Yield the utilisation of the devices, the energy and its parts, and the order of axes."""
    price, order = best.estimate, best.plan_options.axis_order
    axes = tuple(name for name in order if getattr(best.strategy, name) > 1)
    if best.placement is not None:
        axes = best.placement.axes
    yield (
        f"MFU {price.mfu_causal:.1%} (causal scores), {price.mfu_full:.1%} (full s^2); "
        f"HFU {price.hfu:.1%}; fidelity {price.fidelity}"
    )
    yield from energy_lines(price)
    yield (
        f"{price.num_devices_used} devices, {price.num_micro_batches} micro-batches; "
        f"axes from the inside: {' '.join(axes) or 'none'}"
    )


def energy_lines(price: Estimate) -> Iterator[str]:
    """Yield the energy of a step, its mean power and its parts; nothing where it is not known."""
    if not (price.energy_j and price.power_w and price.tokens_per_j):
        return
    ranked = sorted(price.energy_parts_j.items(), key=lambda item: -item[1])
    shares = ", ".join(
        f"{words(name)} {part / price.energy_j:.0%}" for name, part in ranked if part
    )
    text = (
        f"{format_si(price.energy_j, 'J')}, {format_si(price.power_w, 'W')}, "
        f"{price.tokens_per_j:.3g} tokens/J: {shares}"
    )
    yield from wrapped("energy  ", text)


def device_lines(candidate: Candidate) -> Iterator[str]:
    """Yield the memory of the fullest device by part, and that of its host."""
    price = candidate.estimate
    where = f"{price.fullest_stage} stage" if candidate.strategy.pp > 1 else "every device"
    parts, capacity = price.memory_parts_bytes, price.memory_capacity_bytes
    yield from memory_lines(parts, price.memory_bytes, capacity, where)
    if price.host_bytes_per_device:
        yield f"  and {format_bytes(price.host_bytes_per_device)} in host memory for each device"


def ranking_lines(plan: Plan) -> Iterator[str]:
    """Yield the best candidates, each with the frameworks that can start it."""
    yield f"top {1 + len(plan.runners_up)}"
    for number, entry in enumerate((plan.best, *plan.runners_up), start=1):
        price = entry.estimate
        head = (
            f"  {number}  {format_seconds(price.step_time_s):>8} "
            f"{format_bytes(price.memory_bytes):>9}  "
        )
        yield from wrapped(head, entry.text)
        if not plan.workload.software.framework:
            names = ", ".join(entry.launches_with) or "no framework of the catalog"
            yield from wrapped(" " * len(head), f"launches with {names}", hang=len(head))


def front_lines(found: Sequence[Candidate], unknown: Sequence[str]) -> Iterator[str]:
    """Yield the front: plans that no other one beats in every respect."""
    yield f"{len(found)} plans of which none is beaten in every respect"
    yield f"  {'time':>8} {'memory':>9} {'energy':>10} {'money':>10}  plan"
    for entry in found:
        price = entry.estimate
        energy = (
            "unknown" if price.energy_j is None else f"{price.energy_j / JOULES_PER_KWH:.3g} kWh"
        )
        money = "unknown" if price.cost_usd is None else f"{price.cost_usd:.3g} USD"
        head = (
            f"  {format_seconds(price.step_time_s):>8} {format_bytes(price.memory_bytes):>9} "
            f"{energy:>10} {money:>10}  "
        )
        yield from wrapped(head, entry.text)
    if unknown:
        yield "left out, because not known: " + ", ".join(words(name) for name in unknown)


def limit_lines(plan: Plan, changes: list[Change]) -> Iterator[str]:
    """Yield the largest parts of the time, the memory left, and the best changes."""
    price = plan.best.estimate
    ranked = sorted(price.time_parts_s.items(), key=lambda item: -item[1])
    first = ", ".join(f"{words(name)} {t / price.step_time_s:.0%}" for name, t in ranked[:3])
    headroom = price.memory_capacity_bytes - price.memory_bytes
    yield f"limits: {first}; {format_bytes(headroom)} of memory left"
    helps = [c for c in changes if c.faster_by_fraction > 0.002][:4]
    if helps:
        text = ", ".join(f"{c.what} {c.faster_by_fraction:.1%} faster" for c in helps)
        yield from wrapped("would change it: ", text)


def why_not_lines(why: WhyNot) -> Iterator[str]:
    """Yield the comparison of the best plan with each missing feature."""
    parts = ", ".join(
        f"{words(name)} +{format_seconds(seconds)}"
        for name, seconds in list(why.because_s.items())[:3]
    )
    text = (
        f"{why.candidate.text}: {format_seconds(why.candidate.estimate.step_time_s)} "
        f"({why.slower_by_fraction:+.1%}); {parts}"
    )
    yield from wrapped(f"why not {why.question}: ", text)


def proof_lines(plan: Plan) -> Iterator[str]:
    """Yield the coverage of the space, and the robustness of the choice."""
    cover = plan.coverage
    if cover is None:
        return
    refused = sum(cover.num_refused.values())
    head = "proof: " if cover.is_complete else "interrupted, best so far: "
    text = (
        f"{cover.num_candidates:,} candidates = {cover.num_priced:,} priced + {refused:,} refused "
        f"by rule + {cover.num_over_memory:,} over memory + {cover.num_beyond_bound:,} beyond the "
        f"bound + {cover.num_dominated:,} dominated; {bound_in_words(plan, cover)}; "
        f"{cover.elapsed_s:.2f} s"
    )
    yield from wrapped(head, text)
    robust = plan.robustness
    if robust is not None:
        drawn = ""
        if robust.step_time_s is not None:
            low_s, high_s = robust.step_time_s
            drawn = f", 90 % of them take {format_seconds(low_s)} to {format_seconds(high_s)}"
        text = (
            f"in {robust.best_stays_first_fraction:.0%} of {robust.num_draws} draws of the "
            f"constants no plan is over 1 % faster than plan 1{drawn}"
        )
        yield from wrapped("robust: ", text + _criteria(plan, robust))
        yield from plan_trial_lines(plan)


def plan_names(plan: Plan) -> dict[str, str]:
    """Return the names of the plans of a ranking: ``plan 1`` is the recommended one."""
    ranked = enumerate([plan.best, *plan.runners_up], 1)
    return {entry.text: f"plan {rank}" for rank, entry in ranked}


def _criteria(plan: Plan, robust: Robustness) -> str:
    """Name the plans that other criteria choose, and the reason why plan 1 is recommended."""
    names = plan_names(plan)
    found = []
    if robust.least_regret != plan.best.text:
        name = names.get(robust.least_regret, robust.least_regret)
        found.append(f"{name} loses least in the worst draw ({robust.least_regret_fraction:.1%})")
    ties = [names.get(text, text) for text in robust.ties if text != plan.best.text]
    if ties:
        found.append(f"{' or '.join(ties)} {'wins' if len(ties) == 1 else 'win'} in some draws")
    if not found:
        return ""
    return f"; {', '.join(found)}: all within 1 % of plan 1 or beyond what the constants can tell"


def bound_in_words(plan: Plan, cover: Coverage) -> str:
    """Return the lower bound of all plans, and why the chosen one may be slower, in words."""
    # Placed plans share links, which the search does not see.
    nothing = "nothing" if plan.best.placement is None else "without contention nothing"
    bound = f"{format_seconds(cover.lower_bound_s)} (gap {cover.gap:.1%})"
    return f"{nothing} is faster than {bound}{_tie_clause(plan, cover)}"


def _tie_clause(plan: Plan, cover: Coverage) -> str:
    """Give the reason for a plan that is not the fastest: it is simpler, or needs less."""
    behind = plan.best.estimate.step_time_s / cover.lower_bound_s - 1.0
    if not cover.is_complete or behind < SHOWN_TIE:
        return ""
    if plan.best.placement is not None:
        return f"; with contention the plan is {behind:.1%} above that"
    return (
        f"; the plan is {behind:.1%} behind that: what is simpler leads within "
        f"{PLAN_ERROR:.0%}, the error of plans against each other; within {TIE:.0%} what needs no "
        "offload, then less memory"
    )


INDENT = " " * 13


def comparison_lines(found: Comparison) -> Iterator[str]:
    """Yield each recipe with its interval, its plan and the time of its search."""
    ours = found.entries[0]
    yield (
        f"{'recipe':<14} {'placed by':<9} {'step':>9} {'within':>7} {'ours is':>12} "
        f"{'memory':>10} {'MFU':>6} {'tokens/J':>9} {'search':>8}"
    )
    for entry in found.entries:
        yield from _entry_lines(entry, ours)
    yield ""
    if any(entry.best is not None and entry.best.estimate.interval_s for entry in found.entries):
        yield "within: four of five measurements lie within this factor of the step, either way"
    for name, title in {entry.recipe: entry.title for entry in found.entries}.items():
        yield from wrapped(f"{name:<14} ", title)


def _entry_lines(entry: Entry, ours: Entry) -> Iterator[str]:
    """Yield the figures of a recipe and its plan, or the reason why it has none."""
    head = f"{entry.recipe:<14} {entry.mapper or '-':<9} "
    if entry.best is None:
        yield from wrapped(f"{head}{'none':>9} ", entry.why_none.partition(". It takes")[0])
        return
    price = entry.best.estimate
    speedup = entry.speedup_of(ours)
    saved = price.tokens_per_j
    within = f"{price.interval_s[1] / price.step_time_s:.2f}x" if price.interval_s else ""
    times = "" if speedup is None or entry is ours else f"{speedup:.2f}x faster"
    yield (
        f"{head}{format_seconds(price.step_time_s):>9} {within:>7} {times:>12} "
        f"{format_bytes(price.memory_bytes):>10} {price.mfu_causal:>6.1%} "
        f"{'unknown' if saved is None else f'{saved:.1f}':>9} {entry.search_s:>6.1f} s"
    )
    yield from wrapped(INDENT, entry.best.text)


def explain_lines(plan: Plan, explanation: Explanation) -> Iterator[str]:
    """Yield the lines that the screen of an explanation leaves out."""
    price = plan.best.estimate
    yield from time_lines("time of a step", price.time_parts_s, price.step_time_s)
    left = price.memory_capacity_bytes - price.memory_bytes
    yield f"memory left on the fullest device: {format_bytes(left)}"
    yield ""
    if plan.best.placement is not None:
        yield from placement_lines(plan.best.placement)
        yield from hottest_lines(plan.best.placement)
        yield ""
    yield "the same plan on a better system"
    for change in explanation.changes:
        yield f"  {change.what:<40} {change.faster_by_fraction:>7.1%} faster"
    yield ""
    for why in explanation.why_not:
        yield from why_not_lines(why)
    for name, reason in explanation.not_possible.items():
        yield from wrapped(f"why not {name}: ", reason)
    yield from plan_trial_lines(plan)


def factor_lines(factors: Factors) -> Iterator[str]:
    """Yield the factors under which the constants of a plan are scaled."""
    shown = [
        f"{words(entry.resource)} {entry.factor:.2f} ({entry.low:.2f} to {entry.high:.2f})"
        for entry in factors.factors
    ]
    number = counted(factors.num_measurements, "measurement")
    text = "time over the calibrated time, by resource: " + ", ".join(shown)
    yield from wrapped(f"adjusted by {number}: ", text)


def plan_trial_lines(plan: Plan) -> Iterator[str]:
    """Yield the shown plans to run for a few steps, named by their rank."""
    if plan.robustness is None or plan.robustness.trials is None:
        return
    yield from trial_lines(plan.robustness.trials, plan_names(plan))


def trial_lines(trials: Trials, names: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the plans to run for a few steps; nothing where no trial is worth them.

    Parameters
    ----------
    names
        Short names of the plans, where they are not written in full.
    """
    if not trials.run:
        return
    called = names or {}
    before, after = trials.regret_fractions[0], trials.regret_fractions[-1]
    runs = ", then ".join(called.get(plan, plan) for plan in trials.run)
    shares = sorted(trials.best_fraction.items(), key=lambda item: -item[1])
    odds = ", ".join(f"{called.get(plan, plan)} {share:.0%}" for plan, share in shares)
    text = (
        f"to decide by measurement, run a few steps of {runs}: the expected loss against the "
        f"fastest of these plans falls from {before:.1%} to {after:.1%}; probability of being "
        f"the fastest: {odds}"
    )
    yield from wrapped("trials: ", text)


BUSY = {"compute": "arithmetic", "hbm": "HBM", "d2d": "links", "exposed": "exposed"}


def placement_lines(placement: Placement) -> Iterator[str]:
    """Yield the places of the ranks and the waiting times of their messages, in a few lines."""
    yield from wrapped("placement: ", blocks_in_words(placement))
    slower = {axis: f for axis, f in placement.slowdown.items() if f > 1.005}
    waits = "no two axes share a busy link"
    if slower:
        ordered = sorted(slower.items(), key=lambda item: -item[1])
        waits = "links shared with others make " + ", ".join(f"{a} {f:.2f}x" for a, f in ordered)
        waits += " slower than links of " + ("its own" if len(slower) == 1 else "their own")
    yield from wrapped("routes: ", f"{placement.routing}; {waits}")
    busy = ", ".join(
        f"{BUSY[name]} {format_seconds(seconds)}" for name, seconds in placement.busy_s.items()
    )
    yield f"busiest device in a step: {busy}"


def hottest_lines(placement: Placement) -> Iterator[str]:
    """Yield the busiest links and the axes that share them."""
    yield "hottest links, in the backward pass of a micro-batch"
    for link in placement.hottest_links:
        ends = " -> ".join(
            node_name(device, placement.grid_shape) for device in (link.source, link.target)
        )
        shares = ", ".join(
            f"{axis} {seconds / link.busy_s:.0%}"
            for axis, seconds in sorted(link.by_axis_s.items(), key=lambda item: -item[1])
        )
        yield from wrapped(f"  {format_seconds(link.busy_s):>8}  ", f"{ends}: {shares}")


def node_name(number: int, grid_shape: tuple[int, ...]) -> str:
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


def operator_lines(plan: OperatorPlan, one_for_all_s: float) -> Iterator[str]:
    """Yield the options, their operators, the price and the proofs; at most 100 columns wide."""
    faster = one_for_all_s / plan.step_time_s - 1.0
    than = f"{faster:.1%} faster" if faster >= 0 else f"{-faster:.1%} slower"
    yield (
        f"a strategy for each operator: {format_seconds(plan.step_time_s)} a step "
        f"({than} than one for all), {format_bytes(plan.memory_bytes)}; {plan.fidelity}"
    )
    for number, option in enumerate(plan.options):
        yield from wrapped(f"  {_letter(number)}  ", option.text)
        axes = option.axes
        blocks = ", ".join(f"{axis} {'x'.join(map(str, option.shapes[axis]))}" for axis in axes)
        place = f"blocks of rows x columns, from the inside: {blocks or 'none'}"
        yield from wrapped("     ", place)
    yield f"  {'layers':<9} option  operators"
    for run in plan.runs:
        layers = "edge" if run.first_layer is None else str(run.first_layer)
        if run.first_layer is not None and run.first_layer != run.last_layer:
            layers += f"-{run.last_layer}"
        head = f"  {layers:<9} {_letter(run.option):<6}  "
        yield from wrapped(head, ", ".join(run.operators))
    yield from time_lines("  time of a step", plan.time_parts_s, plan.step_time_s)
    yield from wrapped(
        "  proof: ",
        f"alone on its links {format_seconds(plan.closed_form_s)}, no choice among "
        f"{plan.num_options} options takes less than {format_seconds(plan.closed_form_bound_s)} "
        f"(gap {plan.closed_form_gap:.2%}); with contention and resharding no plan of these "
        f"micro-batches takes less than {format_seconds(plan.lower_bound_s)} "
        f"(gap {plan.gap:.1%}); found in {plan.search_s:.1f} s",
    )


def _letter(number: int) -> str:
    """Return the name of an option: A to Z, then A1."""
    times, letter = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[letter] + (str(times) if times else "")
